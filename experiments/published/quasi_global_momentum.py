r"""QG-DSGDm: Lin et al., "Quasi-global momentum: accelerating decentralized deep learning on
heterogeneous data", 2021.

The paper trains ResNet-20 on CIFAR-10 on a ring of 16 workers with a Dirichlet partition. Its
claim is in the abstract: the method is much more robust to heterogeneity than the others, with 1 to
20 % more test accuracy. Here a multilayer perceptron is trained on digits, with the same ring and
partition, momentum 0.9 of Nesterov's form, batches of 16 and 300 steps; each method has the step
size of a grid with the smallest loss.
"""

from __future__ import annotations

import numpy as np
import optax

import algorithms
import topologies
from dsgd import problems
from experiments.published.outcomes import Claim, Outcome, Panel
from experiments.published.searches import best_histories

ALPHAS, STEPS, RATES = (10.0, 1.0, 0.1), 300, (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def qg_dsgdm_1(quick: bool) -> Outcome:
    """Table 1's question: momentum on a ring of 16 workers, against the heterogeneity."""
    ring = topologies.ring(16)
    builds = {
        "DSGD": lambda learning_rate: algorithms.decentralized_sgd(optax.sgd(learning_rate), ring),
        "DSGDm-N": lambda learning_rate: algorithms.decentralized_sgd(
            optax.sgd(learning_rate, momentum=0.9, nesterov=True), ring
        ),
        "QG-DSGDm-N": lambda learning_rate: algorithms.quasi_global_momentum(
            optax.sgd(learning_rate), ring, nesterov=True
        ),
    }
    found = {}
    for alpha in ALPHAS[-1:] if quick else ALPHAS:
        problem = problems.neural_network(
            "mlp", "digits", 16, "dirichlet", alpha=alpha, batch_size=16
        )
        best = best_histories(builds, problem, STEPS, RATES, quick)
        found |= {(alpha, name): history for name, history in best.items()}
    return compare(found)


def compare(found: dict[tuple[float, str], dict[str, np.ndarray]]) -> Outcome:
    """Returns the claims about accuracies, and their curves."""
    alphas = list(dict.fromkeys(alpha for alpha, _ in found))
    last = {
        key: 100 * history["test_accuracy"][:, -5:].mean(axis=1) for key, history in found.items()
    }
    rows = []
    for other in ("DSGDm-N", "DSGD"):
        gain = np.mean(last[0.1, "QG-DSGDm-N"] - last[0.1, other])
        what = f"α = 0.1: accuracy of QG-DSGDm-N minus {other}, % points"
        rows.append(Claim(what, "1 to 20 more", gain, "paper's text", 1.0, 20.0))
    if len(alphas) > 1:
        gains = [np.mean(last[alpha, "QG-DSGDm-N"] - last[alpha, "DSGDm-N"]) for alpha in alphas]
        what = "the same gain over DSGDm-N at α = 0.1 minus at α = 10"
        rows.append(
            Claim(what, "larger if heterogeneous", gains[-1] - gains[0], "paper's text", 0.0)
        )
    panels = [
        Panel(
            "steps",
            "test accuracy, %",
            {
                name: (history["step"], 100 * history["test_accuracy"])
                for (each, name), history in found.items()
                if each == alpha
            },
            log="",
            title=f"α = {alpha:g}",
        )
        for alpha in alphas
    ]
    return Outcome(rows, panels, "Digits are much easier than CIFAR-10, so that gains are smaller.")
