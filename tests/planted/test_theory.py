"""Mistakes in methods that theory finds, in bounds, and in what left sides are measured with."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

TESTS = "tests/theory_checks"
HOLDS = f"{TESTS}/test_statements.py::test_statement_holds"
VALUES = f"{TESTS}/test_bounds.py::test_values_are_those_computed_by_hand"
OUTCOMES = f"{TESTS}/test_outcomes.py"
S = "theory_checks/statements"
M = "theory_checks/machinery"

METHODS = [
    Mistake(
        "algorithms/decentralized/exact_diffusion.py", "lambda pull: share * pull", "lambda pull: pull", f"{HOLDS}[exact_diffusion,_linear]"
    ),
    Mistake("algorithms/decentralized/extra.py", "lambda pull: pull / 2, pull", "lambda pull: pull, pull", f"{HOLDS}[EXTRA,_every_round]"),
    Mistake(
        "algorithms/decentralized/gradient_tracking.py",
        "optax.tree.sub(optax.tree.add(y, gradients), state.gradient)",
        "optax.tree.add(y, gradients)",
        f"{HOLDS}[gradient_tracking,_every_round]",
    ),
    Mistake(
        "algorithms/decentralized/choco_sgd.py", "half.params, laplacian)", "half.params, sent.received)", f"{HOLDS}[CHOCO,_every_round]"
    ),
    Mistake(
        "algorithms/decentralized/deepsqueeze.py",
        "optax.tree.sub(v, sent.decoded)",
        "optax.tree.sub(half.params, sent.decoded)",
        f"{HOLDS}[DeepSqueeze,_every_round]",
    ),
    Mistake(
        "algorithms/compressed/error_compensated_sgd.py",
        "optax.tree.add(sent.received, memory.server)",
        "sent.received",
        f"{HOLDS}[EC-SGD_loses_nothing]",
    ),
    Mistake("algorithms/compressed/ef21.py", "known.model, mean)", "known.model, known.mean)", f"{HOLDS}[EF21,_every_round]"),
    Mistake("algorithms/synchronous/scaffold.py", "g - own + c[None]", "g - own", f"{HOLDS}[SCAFFOLD,_every_round]"),
    Mistake("algorithms/synchronous/backup_workers_sgd.py", "leaf / counted", "leaf / N", f"{HOLDS}[backup_workers,_every_round]"),
    Mistake(
        "algorithms/asynchronous/asynchronous_sgd.py",
        "/ jnp.maximum(1, staleness), new)",
        "/ jnp.maximum(1, staleness - 1), new)",
        f"{HOLDS}[ASGD,_given_delays,_staleness-aware,_every_round]",
    ),
    Mistake(
        "algorithms/dropcompute/stopping.py", "done = ends < threshold", "done = ends <= threshold", f"{HOLDS}[DropCompute,_every_round]"
    ),
]
BOUNDS = [
    Mistake(f"{S}/sgd.py", "return noisy / (2 - learning_rate * smoothness)", "return noisy / 2", VALUES),
    Mistake(f"{S}/compressed_sgd.py", "inflation = w + w * (1 + w) / N", "inflation = w + w * (1 + w)", VALUES),
    Mistake(f"{S}/asynchronous_sgd.py", "1 / (2 * smoothness * (staleness + 1)", "1 / (smoothness * (staleness + 1)", VALUES),
    Mistake(f"{S}/decentralized_sgd.py", "math.hypot(p, math.sqrt(1 - q**2) * r)", "math.hypot(p, r)", VALUES),
    Mistake(f"{S}/ef21.py", "np.sqrt(c**2 + 4 * a)", "np.sqrt(c**2 + a)", VALUES),
    Mistake(
        f"{S}/dropcompute_convex.py",
        "noisy /= 1 - learning_rate * smoothness * batch_size",
        "noisy /= 1 - learning_rate * smoothness",
        VALUES,
    ),
    Mistake(f"{S}/local_sgd.py", "return drift / (1 - size)", "return drift", f"{TESTS}/test_decentralized_theory.py"),
    Mistake(f"{S}/consensus_lemmas.py", "return 8 / 7 *", "return 5 / 7 *", f"{HOLDS}[consensus_by_slopes]"),
    Mistake(f"{M}/ranges.py", "lambda x: 0 <= x < 1", "lambda x: 0 <= x <= 1", f"{TESTS}/test_bounds.py"),
]
MACHINERY = [
    Mistake(
        f"{M}/moments.py",
        "(problem.constants.noise or 0.0) ** 2 / d",
        "(problem.constants.noise or 0.0) ** 2",
        f"{HOLDS}[local_SGD,_consensus]",
    ),
    Mistake(f"{M}/probes.py", '"by_key": one - one[:, :, :1]', '"by_key": 0 * one', f"{TESTS}/test_moments.py"),
    Mistake(f"{M}/search.py", "/ (1 - 2 * _EDGES)", "/ (1 - _EDGES)", OUTCOMES),
    Mistake(f"{M}/statement.py", "self.measured <= self.bound + room", "abs(self.measured) <= abs(self.bound) + room", OUTCOMES),
    Mistake("theory_checks/recursions/graphs.py", "np.maximum(degrees", "np.minimum(degrees", f"{HOLDS}[EXTRA,_every_round]"),
]


def test_mistakes_are_found(long):
    assert mistakes.survivors([*METHODS, *BOUNDS, *MACHINERY]) == []
