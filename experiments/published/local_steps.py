"""Gossip with local steps on heterogeneous quadratics, for the papers about it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import optax

import algorithms
import dsgd
import topologies
from dsgd import problems

WORKERS = 8
RING = topologies.ring(WORKERS, topologies.lazy)
RATES = np.geomspace(0.001, 0.064, 13)
SEEDS, EVERY = 4, 8  # runs whose mean gap is compared with a target; rounds of a record
Build = Callable[[optax.GradientTransformation, int], dsgd.Algorithm]


def quadratics(heterogeneity: float, noise: float = 0.0) -> dsgd.Problem:
    """Returns quadratics with L = 1 and mu = 0.1 in 20 dimensions."""
    return problems.random_quadratic(WORKERS, 20, heterogeneity=heterogeneity, noise=noise)


def local_dsgd(optimizer: optax.GradientTransformation, period: int) -> dsgd.Algorithm:
    """Decentralized SGD whose workers communicate after every `period` steps."""
    rounds = [np.eye(WORKERS)] * (period - 1) + [RING.W]
    return algorithms.decentralized_sgd(optimizer, dsgd.Topology("local steps", rounds))


def fewest_rounds(
    build: Build, problem: dsgd.Problem, period: int, target: float, steps: int
) -> tuple[float, np.ndarray]:
    """Returns the fewest communication rounds to a gap over all step sizes, and the gaps of this
    step size; infinite if none reaches it.

    Args:
        build: (optimizer, period) -> method.
        problem: the problem.
        period: local steps between two communication rounds.
        target: of the mean of $f(\\bar x) - f^*$ over the runs.
        steps: number of local steps.
    """
    found = dsgd.sweep(
        lambda learning_rate: build(optax.sgd(learning_rate), period),
        problem,
        steps=steps,
        key=jax.random.key(0),
        seeds=SEEDS,
        record_every=EVERY,
        learning_rate=RATES,
    )
    gaps = found.history["gap"].mean(axis=1)
    first = [np.flatnonzero(gap <= target) for gap in gaps]
    needed = [at[0] * EVERY / period if len(at) else np.inf for at in first]
    best = int(np.argmin(needed))
    return needed[best], gaps[best]
