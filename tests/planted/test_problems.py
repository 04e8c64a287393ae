"""Mistakes in problems: samplers, weights, partitions, gradients of samples, running averages, labels."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

RISKS, MODELS, QUADRATIC = "tests/cases/test_empirical_risks.py", "tests/cases/test_models.py", "tests/dsgd/problems/test_quadratic.py"

MISTAKES = [
    Mistake("dsgd/problems/examples.py", "later = place >= m", "later = place > m", f"{RISKS} -k each_epoch"),
    Mistake(
        "dsgd/problems/examples.py", "counted = jnp.arange(B) < size", "counted = jnp.arange(B) <= size", f"{RISKS} -k small_client_has"
    ),
    Mistake("dsgd/problems/examples.py", "(len(batch.weights)) < samples", "(len(batch.weights)) <= samples", f"{RISKS} -k take_counts"),
    Mistake("dsgd/problems/finite_sum.py", "numbers / numbers.mean()", "numbers / numbers.sum()", f"{RISKS} -k weighted_objective"),
    Mistake("dsgd/problems/per_sample.py", "leaf / count.astype(leaf.dtype)", "leaf / len(batch.weights)", f"{MODELS} -k clipping_is"),
    Mistake("dsgd/problems/averages.py", "b / jnp.where(a == 1, 1, 1 - a)", "b", f"{MODELS} -k running_averages"),
    Mistake("dsgd/problems/partition.py", "smallest >= least)", "smallest >= 0)", f"{RISKS} -k every_part"),
    Mistake("dsgd/problems/targets.py", "(low, high) == (1, K)", "(low, high) == (0, K)", f"{MODELS} -k labels_outside"),
    Mistake("dsgd/problems/quadratic.py", "np.sqrt(np.mean(np.sum(local**2, axis=1)))", "np.mean(np.sum(local**2, axis=1))", QUADRATIC),
]


def test_mistakes_are_found(long):
    assert mistakes.survivors(MISTAKES) == []
