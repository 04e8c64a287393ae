r"""BEER: Zhao, Li, Li, Richtarik and Chi, "BEER: fast O(1/T) rate for decentralized nonconvex
optimization with communication compression", 2022.

Published values are read from the figures that `experiments.ipynb` of the authors' repository
liboyue/beer stores, to about 0.01; settings are those of the notebook. The data set a9a of LIBSVM
is read from the folder `DSGD_DATA` of the environment.

Workers have equal parts of the samples, sorted by label, and batches of 100. f is the logistic loss
with a bias plus $0.05 \sum_j x_j^2 / (1 + x_j^2)$; the samples are divided by $|A|_2 / 2 \sqrt M$.
W has the smallest spectral norm of $W - \frac1n 1 1^T$ among the symmetric ones of the graph.
Messages are quantised to 16 levels of their norm and a sign, unbiased. The authors' workers start
at different uniform vectors, here all start at their mean, since copies of the models must be
equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import numpy as np
import optax

import algorithms
import dsgd
import topologies
from dsgd import compressors, problems, workers
from experiments.published import libsvm
from experiments.published.outcomes import Number, Outcome, Panel
from experiments.published.weights import fastest, spectral_norm

Curve = tuple[np.ndarray, np.ndarray]
Published = Mapping[str, Mapping[int, float]]
SLOPE, READING = "$|f'(\\bar x)|$", 0.015
LEVELS = compressors.whole_model(compressors.qsgd(16)._replace(delta=lambda d: 1 - d / 1024))
ALPHA = {  # the spectral norm of W - J, 40 workers
    "ring": 0.9877637,
    "star": 0.9512197,
    "grid": 0.9374354,
    "ER, p = 0.2": 0.5755565,
    "ER, p = 0.5": 0.2307983,
}
FIGURE_1 = {  # rounds: norm of the gradient
    "DSGD": {200: 0.099, 1_900: 0.049},
    "D2": {200: 0.086, 1_900: 0.006},
    "CHOCO-SGD": {1_900: 0.06},
    "BEER": {200: 0.086, 1_900: 0.006},
}
FIGURE_2 = {
    "ring": {200: 0.3, 500: 0.297, 1_000: 0.142, 1_500: 0.097},
    "star": {200: 0.127, 500: 0.066, 1_000: 0.026, 1_900: 0.02},
    "grid": {200: 0.312, 500: 0.286, 1_000: 0.196, 1_900: 0.152},
    "ER, p = 0.2": {200: 0.045, 1_900: 0.048},
    "ER, p = 0.5": {200: 0.003, 1_900: 0.004},
}
DIFFERENCES_1 = """The curve of BEER is under that of D2 in the figure, and has its values.
Gradients below 0.01 are smaller than the figure resolves."""
DIFFERENCES_2 = """Ring, star and grid have the published W. The random graphs are others: of 20,
those with the spectral norm of W - J closest to the published one. One start was
published, on which the curve of the ring depends."""


def problem(n: int, batch_size: int) -> dsgd.Problem:
    """Returns the paper's problem, whose start is the mean of a uniform vector of each worker."""
    data = libsvm.load("a9a")
    M = len(data.train_targets) // n * n
    A = np.column_stack((data.train_inputs[:M], np.ones(M)))
    A *= 2 * np.sqrt(M) / np.linalg.norm(A, 2)
    labels = data.train_targets[:M]
    made = problems.binary_logistic_regression(
        data._replace(train_inputs=A, train_targets=labels, test_inputs=A[:0]),
        n,
        np.split(np.argsort(labels, kind="stable"), n),
        regularizer=problems.nonconvex(0.05),
        batch_size=batch_size,
    )
    return made._replace(init=lambda key: jax.random.uniform(key, (n, A.shape[1])).mean(axis=0))


def mix_then_step(learning_rate: float, W: dsgd.Topology) -> dsgd.Algorithm:
    """Returns the authors' DSGD, X W - gamma G(X), in which the step is not averaged."""

    def update(state, gradients, round):
        mixed = round.mix(state.workers, W)
        return dsgd.State(workers=mixed - learning_rate * gradients)

    return dsgd.Algorithm(
        "mix_then_step",
        lambda x, N: dsgd.State(workers=workers.replicate(x, N)),
        lambda state, round: dsgd.Query(state.workers),
        update,
        lambda state: state.workers,
    )


def slopes(method: dsgd.Algorithm, given: dsgd.Problem, rounds: int, seeds: int) -> Curve:
    """Returns the rounds and the norms of the gradients."""
    history = dsgd.run(
        method, given, steps=rounds, key=jax.random.key(0), seeds=seeds, record_every=20
    ).history
    return history["step"], np.sqrt(history["grad_sqnorm"])


def outcome(
    found: Mapping[str, Curve], published: Published, differences: str, first: Sequence[Number] = ()
) -> Outcome:
    """Returns the rows of the rounds that were run, and the panel."""
    rows = [
        Number(
            f"{name}: {rounds:,} rounds",
            value,
            found[name][1][:, np.searchsorted(found[name][0], rounds)],
            "authors' outputs",
            (max(value - READING, 0), value + READING),
        )
        for name, values in published.items()
        for rounds, value in values.items()
        if rounds <= found[name][0][-1]
    ]
    circles = {name: ([*values], [*values.values()]) for name, values in published.items()}
    panel = Panel("rounds", SLOPE, found, circles)
    return Outcome([*first, *rows], [panel], differences)


def beer_1(quick: bool) -> Outcome:
    """Figure 1: BEER, CHOCO-SGD, DSGD and D2 on a ring of 10 workers."""
    W, step = fastest(topologies.ring(10)), optax.sgd(0.1)
    half = topologies.from_matrix((W.W + np.eye(10)) / 2)
    cases = {
        "DSGD": mix_then_step(0.1, W),
        "D2": algorithms.d2(step, half),
        "CHOCO-SGD": algorithms.choco_sgd(step, W, LEVELS, 0.7),
        "BEER": algorithms.beer(step, W, LEVELS, 0.7),
    }
    given, rounds, seeds = problem(10, 100), 600 if quick else 2_000, 2 if quick else 5
    found = {name: slopes(method, given, rounds, seeds) for name, method in cases.items()}
    return outcome(found, FIGURE_1, DIFFERENCES_1)


def beer_2(quick: bool) -> Outcome:
    """Figure 2: BEER on five graphs of 40 workers."""
    graphs = [topologies.ring(40), topologies.star(40), topologies.grid(8, 5)]
    fixed = dict(zip(ALPHA, map(fastest, graphs), strict=False))
    for name, p in (("ER, p = 0.2", 0.2), ("ER, p = 0.5", 0.5)):
        drawn = [fastest(topologies.erdos_renyi(40, p, seed)) for seed in range(20)]
        fixed[name] = min(drawn, key=lambda W, name=name: abs(spectral_norm(W) - ALPHA[name]))
    given, rounds, seeds = problem(40, 100), 600 if quick else 2_000, 2 if quick else 3
    step, norms, found = optax.sgd(0.5), [], {}
    for name, W in fixed.items():
        tolerance = 0.03 if name.startswith("ER") else 1e-4
        what = f"{name}: spectral norm of W - J"
        norms.append(
            Number(what, ALPHA[name], spectral_norm(W), "authors' outputs", None, tolerance)
        )
        found[name] = slopes(algorithms.beer(step, W, LEVELS, 0.7), given, rounds, seeds)
    return outcome(found, FIGURE_2, DIFFERENCES_2, norms)
