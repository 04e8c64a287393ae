"""Tracking on directed graphs: methods that are the same, limits, rates, and topologies that a
method cannot use.

All runs have six workers, in float64, with exact gradients. Each method has one program on each
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import networkx as nx
import numpy as np
import optax
import pytest
from budgets import sampled

import algorithms
import dsgd
import theory_checks
import topologies
from dsgd import problems
from tests.algorithms import quadratics
from tests.methods import graphs
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import D, N

GAMMA, T = 0.05, 2_500
STEP = optax.sgd(GAMMA)
BALANCED, UNBALANCED, PULL, PUSHES, PULLS, DOWN, UP = (
    graphs.topology(name, N)
    for name in (
        *("exponential", "directed", "directed, pull"),
        *("pushes", "pushes, pull", "tree, pull", "tree, push"),
    )
)

ON_UNBALANCED: dict[str, Callable[[float], dsgd.Algorithm]] = {
    "push_diging": lambda step: algorithms.push_diging(optax.sgd(step), UNBALANCED),
    "push_pull": lambda step: algorithms.push_pull(optax.sgd(step), PULL, UNBALANCED),
    "ab": lambda step: algorithms.ab(optax.sgd(step), PULL, UNBALANCED),
}
METHODS: dict[str, Callable[[], dsgd.Algorithm]] = {
    "atc_tracking": lambda: algorithms.atc_tracking(STEP, BALANCED),
    "gradient_tracking": lambda: algorithms.gradient_tracking(STEP, BALANCED),
    "push_diging, balanced": lambda: algorithms.push_diging(STEP, BALANCED),
    "push_pull, balanced": lambda: algorithms.push_pull(STEP, BALANCED, BALANCED),
    "ab, balanced": lambda: algorithms.ab(STEP, BALANCED, BALANCED),
    "sgp": lambda: algorithms.stochastic_gradient_push(STEP, UNBALANCED),
    **{name: partial(method, GAMMA) for name, method in ON_UNBALANCED.items()},
    "push_diging, schedule": lambda: algorithms.push_diging(STEP, PUSHES),
    "push_pull, schedule": lambda: algorithms.push_pull(STEP, PULLS, PUSHES),
    "ab, schedule": lambda: algorithms.ab(STEP, PULLS, PUSHES),
    "push_pull, tree": lambda: algorithms.push_pull(STEP, DOWN, UP),
}


@pytest.fixture(scope="module", autouse=True)
def in_float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@cache
def states(name: str) -> Any:
    """Returns the workers' states before the first round and after each, leaves `[T + 1, ...]`."""
    instance = quadratics.instance(0.0, quadratics.arrays()[2])
    return trajectories.run(lambda of: METHODS[name](), instance, length=T).states.workers


def models(name: str) -> np.ndarray:
    """Returns the workers' models after each round, `[T, N, d]`."""
    found = states(name)
    x = trajectories.rows(found.params)[1:]
    return x / np.asarray(found.weight)[1:, :, None] if hasattr(found, "weight") else x


# --- Methods that are the same if the matrices are doubly stochastic.


@pytest.mark.parametrize("name", ["push_diging, balanced", "push_pull, balanced"])
def test_on_a_doubly_stochastic_matrix_the_method_is_atc_tracking_bit_for_bit(name):
    assert np.ptp(models(name)[:, 0]) > 1
    np.testing.assert_array_equal(models(name), models("atc_tracking"))


def test_on_a_doubly_stochastic_matrix_ab_is_gradient_tracking():
    found, expected = models("ab, balanced"), models("gradient_tracking")
    np.testing.assert_allclose(found[:60], expected[:60], rtol=0, atol=1e-13)


# --- Limits and rates.

EXACT = [name for name in METHODS if name.startswith(("push_", "ab"))]


@pytest.mark.parametrize("name", sampled(EXACT))
def test_the_limit_is_the_minimizer(name):
    found = models(name)[-1]
    np.testing.assert_allclose(found, np.tile(quadratics.minimizer(), (N, 1)), rtol=0, atol=1e-9)


def test_without_trackers_the_limit_is_another_point():
    assert np.linalg.norm(models("sgp")[-1] - quadratics.minimizer(), axis=1).min() > 0.01


@pytest.mark.parametrize("name", EXACT)
def test_the_sum_of_the_trackers_is_the_sum_of_the_gradients(name):
    found = states(name)
    trackers, gradients = (
        trajectories.rows(leaf)[:60].sum(axis=1) for leaf in (found.tracker, found.gradient)
    )
    np.testing.assert_allclose(trackers, gradients, rtol=0, atol=1e-12)


def iteration(name: str) -> np.ndarray:
    """Returns the matrix that maps (x, y) of a round to those of the next one, where y is the
    tracker before its message; for Push-DIGing with the limit of its weights.
    """
    A = np.zeros((N * D, N * D))
    for n, hessian in enumerate(quadratics.arrays()[0]):
        A[n * D : (n + 1) * D, n * D : (n + 1) * D] = hessian
    P, R = (np.kron(one.W, np.eye(D)) for one in (UNBALANCED, PULL))
    if name == "push_diging":
        weights = np.linalg.matrix_power(UNBALANCED.W, 1_000) @ np.ones(N)
        v = np.repeat(weights, D)
        # X = U / v: the rows of the matrix for X sum to 1, and the step is divided by v.
        R = P * v / v[:, None]
        step = -GAMMA * P / v[:, None]
    else:
        step = -GAMMA * (R if name == "push_pull" else np.eye(N * D))
    return np.block([[R, step], [A @ (R - np.eye(N * D)), P + A @ step]])


@pytest.mark.parametrize("name", ["push_diging", "push_pull", "ab"])
def test_the_rate_is_linear_with_the_spectral_radius_of_the_iteration(name):
    """The component of the error along the eigenvector of the largest eigenvalue below 1 shrinks by
    this eigenvalue in every round, and all others shrink faster. The eigenvalue 1 belongs to the
    difference of the trackers' and the gradients' sums, which is 0.
    """
    eigenvalues, vectors = np.linalg.eig(iteration(name).T)
    order = np.argsort(-np.abs(eigenvalues))
    np.testing.assert_allclose(eigenvalues[order[:D]], 1, atol=1e-9)
    assert np.isreal(eigenvalues[order[D]])
    rate, slowest = float(np.real(eigenvalues[order[D]])), np.real(vectors[:, order[D]])
    assert 0.9 < rate < 1
    A, b, _ = quadratics.arrays()
    first, last = 100, 400  # from here on, the weights of Push-DIGing have their limit
    x, received, gradients = (
        rows[first : last + 1]
        for rows in (
            models(name),
            *(
                trajectories.rows(getattr(states(name), part))[1:]
                for part in ("tracker", "gradient")
            ),
        )
    )
    y = received + np.einsum("nij,tnj->tni", A, x) - b - gradients
    error = np.stack([x - quadratics.minimizer(), y], axis=1).reshape(len(x), -1)
    component = error @ slowest
    np.testing.assert_allclose(component[1:] / component[:-1], rate, rtol=1e-6)
    size = np.linalg.norm(error, axis=1)
    assert size[-1] < 3 * size[0] * rate ** (last - first)
    computed = theory_checks.linear_rate(ON_UNBALANCED[name], problems.quadratic(A, b), GAMMA)
    assert computed == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize("name", ["push_diging, schedule", "push_pull, schedule"])
def test_in_float32_the_models_stay_at_the_minimizer(name):
    """The sum of the trackers is that of the gradients up to rounding, which must not accumulate.
    The minimizer is 0, and gradients near it have no other rounding errors. On a schedule the
    models never come to rest, so that each of 20,000 rounds has new errors.
    """
    A, b, _ = quadratics.arrays()
    b = np.round(1024 * (b - b.mean(axis=0))) / 1024
    b[-1] = -b[:-1].sum(axis=0)
    run: Any = {"steps": 20_000, "key": jax.random.key(0), "record_every": 20_000, "mesh": 1}
    with jax.enable_x64(False):
        found = dsgd.run(METHODS[name](), problems.quadratic(A, b, start=np.ones(D)), **run).params
    assert np.abs(found).max() < np.finfo(np.float32).eps * np.abs(b).max()


# --- Topologies that a method cannot use.

OTHER_NAMES = topologies.from_graph(nx.cycle_graph(["a", "b", "c", "d", "e", "f"], nx.DiGraph))
TO_FIVE = topologies.from_graph(nx.DiGraph([(n, 5) for n in range(5)]), topologies.push, "in")
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "rows": (
        lambda: algorithms.push_pull(STEP, UNBALANCED, UNBALANCED),
        "push_pull: pull: the rows of W of directed do not sum to 1.*topologies.pull",
    ),
    "columns": (
        lambda: algorithms.ab(STEP, PULL, PULL),
        "ab: push: the columns of W of directed, pull do not sum to 1.*topologies.push",
    ),
    "numbers of workers": (
        lambda: algorithms.push_pull(STEP, PULL, topologies.ring(7)),
        r"directed, pull has 6 workers, push = ring\(7\) has 7 workers",
    ),
    "names": (
        lambda: algorithms.push_pull(STEP, PULL, OTHER_NAMES),
        "has 6 workers, push = from_graph has the workers .*'a', 'b'",
    ),
    "roots": (
        lambda: algorithms.push_pull(STEP, DOWN, TO_FIVE),
        r"reach all others on tree, pull are \[2\], those that all .* on in, push are \[5\]",
    ),
    "a method of gossip": (
        lambda: algorithms.push_diging(STEP, PULL),
        "push_diging: directed, pull is a topology for 'pull', which only algorithms.push_pull",
    ),
    "a tree for push-sum": (
        lambda: algorithms.stochastic_gradient_push(STEP, UP),
        "tree, push is a topology for 'push'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_topologies_that_a_method_cannot_use_are_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_doubly_stochastic_topology_has_every_role():
    """Also if it was made with other weights."""
    ring = topologies.ring(N, topologies.pull)
    algorithms.push_pull(STEP, topologies.ring(N), ring)
    algorithms.stochastic_gradient_push(STEP, topologies.ring(N, topologies.push))
    algorithms.extra(STEP, ring)
