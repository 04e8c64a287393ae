"""Corrected local steps on graphs: methods that equal others, sums that are 0, and limits.

All runs have six workers, in float64. Each method has one program; its arguments are the
method's hyperparameters (`theory_checks.machinery.trajectories`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import sampled

import algorithms
import dsgd
import topologies
from dsgd import clusters, problems
from tests.algorithms import quadratics
from tests.methods import graphs, local_exact_diffusion
from tests.methods.given import on_quadratics, quadratic
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import N, Trajectory

GAMMA, T = 0.02, 3_000
IRREGULAR, LAZY, COMPLETE = (graphs.topology(name, N) for name in ("irregular", "lazy", "complete"))


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = GAMMA
    period: int = 4
    step: float = 1.0
    correction: float = 0.25
    probability: float = 0.25


METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "K-GT": lambda of: algorithms.k_gt(optax.sgd(of.gamma), IRREGULAR, of.period, of.step),
    "K-GT, complete": lambda of: algorithms.k_gt(optax.sgd(of.gamma), COMPLETE, of.period, of.step),
    "SCAFFOLD": lambda of: algorithms.scaffold(optax.sgd(of.gamma), of.period),
    "ATC tracking": lambda of: algorithms.atc_tracking(optax.sgd(of.gamma), IRREGULAR),
    "LED": lambda of: algorithms.local_exact_diffusion(
        optax.sgd(of.gamma), LAZY, of.period, of.correction
    ),
    "D2": lambda of: algorithms.d2(optax.sgd(of.gamma), LAZY),
    "exact diffusion": lambda of: algorithms.exact_diffusion(optax.sgd(of.gamma), IRREGULAR),
    "ProxSkip": lambda of: algorithms.prox_skip(
        optax.sgd(of.gamma), IRREGULAR, of.probability, of.step
    ),
    "ProxSkip, complete": lambda of: algorithms.prox_skip(
        optax.sgd(of.gamma), COMPLETE, of.probability, of.step
    ),
    "Scaffnew": lambda of: algorithms.scaffnew(optax.sgd(of.gamma), of.probability),
}
GROUPS = np.kron(np.eye(2), np.full((3, 3), 1 / 3))
HIERARCHY = topologies.from_matrix([GROUPS, GROUPS, COMPLETE.W], "hierarchy")
METHODS |= {
    "hierarchical": lambda of: algorithms.local_sgd(optax.sgd(of.gamma), of.period, HIERARCHY)
}
METHODS |= {
    f"{name}, unequal work": lambda of, name=name: algorithms.with_local_work(
        METHODS[name](of), some_rounds
    )
    for name in ("K-GT", "LED", "exact diffusion")
}


def some_rounds(state: dsgd.State, round: dsgd.Round) -> dsgd.LocalWork:
    """Returns the local work of worker n: it computes in the first n + 1 of every N rounds."""
    computes = (round.step % N <= jnp.arange(N))[:, None]
    return dsgd.LocalWork(computes, jnp.ones(computes.shape))


build = quadratics.builders(METHODS)
in_float64 = quadratics.in_float64


@cache
def run(name: str, numbers: Numbers, noise: float = 0.0) -> Trajectory:
    """Runs from a common point; the noise of a gradient depends on the round and the worker."""
    return quadratics.run(build(name), numbers, T, noise=noise)


def models(name: str, numbers: Numbers, noise: float = 0.0) -> np.ndarray:
    """Returns the workers' models after each round, `[T, N, d]`."""
    return trajectories.rows(run(name, numbers, noise).states.workers.params)[1:]


IDENTITIES: dict[str, tuple[tuple[str, Numbers], tuple[str, Numbers]]] = {
    "K-GT of one step": (("K-GT", Numbers(period=1)), ("ATC tracking", Numbers())),
    "K-GT on the complete graph": (("K-GT, complete", Numbers()), ("SCAFFOLD", Numbers())),
    "LED of one step": (("LED", Numbers(period=1, correction=1.0)), ("D2", Numbers())),
    "LED of one step, lazy": (
        ("LED", Numbers(period=1, correction=1.0)),
        ("exact diffusion", Numbers()),
    ),
    "ProxSkip without skips": (
        ("ProxSkip", Numbers(probability=1.0, step=0.5)),
        ("exact diffusion", Numbers()),
    ),
    "ProxSkip on the complete graph": (("ProxSkip, complete", Numbers()), ("Scaffnew", Numbers())),
}


@pytest.mark.parametrize("name", sampled(IDENTITIES))
def test_two_methods_are_the_same(name):
    left, right = (models(*side, noise=0.5) for side in IDENTITIES[name])
    assert np.ptp(left) > 0.1
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)


def test_on_the_complete_graph_the_consensus_step_of_k_gt_is_scaffolds_global_step():
    """SCAFFOLD, option II: $x \\leftarrow x + \\eta \\frac1N \\sum_n (y_n - x)$."""
    numbers = Numbers(step=0.5)
    A, b, x = quadratics.arrays()
    G, c, X = quadratic(A, b), np.zeros((N, len(x))), []
    for _ in range(10):
        y = np.tile(x, (N, 1))
        for _ in range(numbers.period):
            y = y - GAMMA * (G(0, y) - c + c.mean(axis=0))
        c = c - c.mean(axis=0) + (x - y) / (numbers.period * GAMMA)
        x = x + numbers.step * (y - x).mean(axis=0)
        X.append(np.tile(x, (N, 1)))
    found = models("K-GT, complete", numbers)[numbers.period - 1 :: numbers.period]
    np.testing.assert_allclose(found[:10], X, rtol=0, atol=1e-12)


EXACT = [
    ("K-GT", Numbers()),
    ("K-GT", Numbers(step=0.5)),
    ("LED", Numbers()),
    ("LED", Numbers(correction=0.1)),
    ("ProxSkip", Numbers(step=0.5)),
    ("ProxSkip", Numbers(step=0.3)),
]


@pytest.mark.parametrize(("name", "numbers"), EXACT)
def test_the_limit_is_the_optimum_and_the_corrections_are_the_gradients_there(name, numbers):
    """In one local step the correction cancels the local gradient at the optimum."""
    A, b, _ = quadratics.arrays()
    best = np.tile(quadratics.minimizer(), (N, 1))
    np.testing.assert_allclose(models(name, numbers)[-1], best, rtol=0, atol=1e-9)
    correction = trajectories.rows(run(name, numbers).states.workers.correction)[-1]
    weight = {
        "K-GT": 1 / numbers.period,
        "LED": numbers.correction,
        "ProxSkip": numbers.probability,
    }[name]
    slopes = quadratic(A, b)(0, best)
    assert np.abs(slopes).max() > 0.5
    np.testing.assert_allclose(weight * correction, numbers.gamma * slopes, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["K-GT", "LED", "exact diffusion"])
def test_workers_that_compute_in_some_rounds_only_do_not_move_the_limit(name):
    """Without a gradient, a worker makes no step along its correction either."""
    numbers = Numbers(correction=0.1)
    last = models(f"{name}, unequal work", numbers)[-1]
    best = np.tile(quadratics.minimizer(), (N, 1))
    np.testing.assert_allclose(last, best, rtol=0, atol=1e-6)


def test_the_limit_of_k_gt_is_the_optimum_if_workers_and_messages_are_missing():
    cluster = clusters.Cluster(
        clusters.constant(1.0),
        present=clusters.bernoulli(0.6, 1.0),
        delivered=clusters.bernoulli(0.7, 1.0),
        participation_period=4,
    )
    method = algorithms.k_gt(optax.sgd(GAMMA), topologies.ring(N), 4)
    problem = problems.random_quadratic(N, 3, heterogeneity=2.0, seed=1)
    options: Any = {"key": jax.random.key(0), "cluster": cluster, "record_every": 4_000, "mesh": 1}
    found = dsgd.run(method, problem, steps=4_000, **options).history
    assert found["grad_sqnorm"][0] > 0.1
    assert found["grad_sqnorm"][-1] < 1e-10
    assert found["consensus"][-1] < 1e-10


@pytest.mark.parametrize(("name", "numbers"), EXACT)
def test_the_sum_of_the_corrections_is_0(name, numbers):
    corrections = trajectories.rows(run(name, numbers, noise=0.5).states.workers.correction)
    assert np.abs(corrections).max() > 0.1
    np.testing.assert_allclose(corrections.sum(axis=1), 0, atol=1e-12)


@pytest.mark.parametrize(
    ("tau", "beta", "grows"), [(4, 1.0, True), (4, 0.52, True), (4, 0.48, False)]
)
def test_a_correction_step_that_is_too_large_diverges_and_is_refused(tau, beta, grows):
    """With W of smallest eigenvalue 0, disagreement contracts if beta tau < 2."""
    W = graphs.matrices("lazy", N)(0)
    smallest = np.linalg.eigvalsh(W)[0]
    shifted = (W - smallest * np.eye(N)) / (1 - smallest)
    topology = topologies.from_matrix(shifted, "shifted")
    given = on_quadratics(*quadratics.arrays(), 1e-3, 1_200, [lambda number: shifted])
    last = list(local_exact_diffusion.recursion(given, tau, beta))[-1]["params"]
    assert (np.abs(last).max() > 1e3) == grows
    if grows:
        with pytest.raises(ValueError, match=r"correction_step = .* with period = 4.*below 0\.5"):
            algorithms.local_exact_diffusion(optax.sgd(0.1), topology, tau, beta)
    else:
        algorithms.local_exact_diffusion(optax.sgd(0.1), topology, tau, beta)


def test_local_sgd_on_a_schedule_of_groups_is_hierarchical():
    """Groups average every four rounds, all workers every twelve."""
    found, x = models("hierarchical", Numbers()), np.tile(quadratics.arrays()[2], (N, 1))
    G = quadratic(*quadratics.arrays()[:2])
    for t in range(1, 37):
        x = x - GAMMA * G(t, x)
        if t % 12 == 0:
            x = np.tile(x.mean(axis=0), (N, 1))
        elif t % 4 == 0:
            x = np.repeat(x.reshape(2, 3, -1).mean(axis=1), 3, axis=0)
        np.testing.assert_allclose(found[t - 1], x, rtol=0, atol=1e-12)


def test_prox_skip_refuses_a_combination_with_negative_eigenvalues():
    """W of this ring has the smallest eigenvalue -1/3."""
    step, ring = optax.sgd(0.1), topologies.ring(N)
    algorithms.prox_skip(step, ring, 0.5, 0.75)
    with pytest.raises(ValueError, match=r"consensus_step = 0.76 on ring\(6\).*at most 0.75"):
        algorithms.prox_skip(step, ring, 0.5, 0.76)
