"""MARINA and three-point compressors: methods that equal others, their limits, absent workers, and
the constants of three-point compressors.

Runs have six workers, in float64. Each method has one program, whose arguments are the method's
hyperparameters (`theory_checks.machinery.trajectories`).
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
from algorithms import memories, three_points
from dsgd import clusters, compressors, problems
from dsgd.base import Compressor
from tests.algorithms import quadratics
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import N, Trajectory

T = 600
TOP, RANDOM, IDENTITY = compressors.top_k(0.4), compressors.random_k(0.5), compressors.identity


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = 0.1
    zeta: float = 0.0
    probability: float = 0.3


def _of_point(point: Callable[[Any], three_points.ThreePoint]) -> Callable[[Any], dsgd.Algorithm]:
    return lambda of: algorithms.three_point(sgd(of), point(of))


METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "GD": lambda of: algorithms.gradient_descent(sgd(of)),
    "EF21": lambda of: algorithms.error_feedback(sgd(of), memories.Up(TOP, shift=1.0)),
    "MARINA": lambda of: algorithms.marina(sgd(of), RANDOM, of.probability),
    "MARINA, identity": lambda of: algorithms.marina(sgd(of), IDENTITY, of.probability),
    "PP-MARINA": lambda of: algorithms.marina(sgd(of), RANDOM, of.probability, clients=2),
    "PP-MARINA, all": lambda of: algorithms.marina(sgd(of), IDENTITY, of.probability, clients=N),
    "VR-MARINA, identity": lambda of: algorithms.vr_marina(sgd(of), IDENTITY, of.probability),
    "LAG": lambda of: algorithms.lag(sgd(of), of.zeta),
    "CLAG": lambda of: algorithms.clag(sgd(of), TOP, of.zeta),
    "3PC, EF21": _of_point(lambda of: three_points.ef21(TOP)),
    "v1": _of_point(lambda of: three_points.v1(TOP)),
    "v2": _of_point(lambda of: three_points.v2(TOP, RANDOM)),
    "v3": _of_point(lambda of: three_points.v3(TOP, three_points.lag(of.zeta))),
    "v4": _of_point(lambda of: three_points.v4(TOP, TOP)),
    "v5": _of_point(lambda of: three_points.v5(RANDOM, of.probability)),
}


def sgd(of: Any) -> optax.GradientTransformation:
    return optax.sgd(of.gamma)


build = quadratics.builders(METHODS)
in_float64 = quadratics.in_float64


@cache
def run(name: str, numbers: Numbers) -> Trajectory:
    return quadratics.run(build(name), numbers, T)


IDENTITIES: dict[str, tuple[tuple[str, Numbers], tuple[str, Numbers]]] = {
    f"{ours} = {theirs}, {tuple(numbers)}": ((ours, numbers), (theirs, numbers))
    for ours, theirs, numbers in (
        ("MARINA, identity", "GD", Numbers()),
        ("MARINA", "GD", Numbers(probability=1.0)),
        ("PP-MARINA, all", "GD", Numbers()),
        ("VR-MARINA, identity", "GD", Numbers()),
        ("LAG", "GD", Numbers()),
        ("LAG", "GD", Numbers(zeta=0.9)),
        ("CLAG", "EF21", Numbers()),
        ("3PC, EF21", "EF21", Numbers()),
        ("v5", "MARINA", Numbers()),
    )
}


@pytest.mark.parametrize("name", sampled(IDENTITIES))
def test_two_methods_are_the_same(name):
    ours, theirs = (run(*which).home for which in IDENTITIES[name])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


@pytest.mark.parametrize("elements", [7, 2])
def test_marina_with_permuted_elements_of_equal_data_is_gradient_descent(elements):
    """Also if the number of workers does not divide that of elements, or is larger."""
    same = problems.random_quadratic(3, elements, heterogeneity=0.0, equal_hessians=True, seed=1)
    permuted = algorithms.marina(optax.sgd(0.1), compressors.perm_k(3), 0.2)
    ours, theirs = (
        dsgd.run(method, same, steps=20, key=jax.random.key(2)).params
        for method in (permuted, algorithms.gradient_descent(optax.sgd(0.1)))
    )
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


EXACT = ("MARINA", "PP-MARINA", "LAG", "CLAG", "3PC, EF21", "v1", "v2", "v3", "v4", "v5")


@pytest.mark.parametrize("name", sampled(EXACT))
def test_the_limit_is_the_optimum_for_any_data(name):
    found = run(name, Numbers(zeta=4.0))
    np.testing.assert_allclose(found.home[-1], quadratics.minimizer(), rtol=0, atol=1e-9)


# Of deterministic methods, with thresholds of 4.
GUARANTEED = {
    "LAG": three_points.lag(4.0),
    "CLAG": three_points.clag(TOP, 4.0),
    "3PC, EF21": three_points.ef21(TOP),
    "v1": three_points.v1(TOP),
    "v3": three_points.v3(TOP, three_points.lag(4.0)),
    "v4": three_points.v4(TOP, TOP),
}


@pytest.mark.parametrize("name", GUARANTEED)
def test_the_gradients_are_below_the_bound_at_the_largest_step(name):
    """Compares sums, T times the averages, for each number T of rounds. Layers are compressed
    separately; all of them have the smallest A and the largest B.
    """
    constants = np.array([GUARANTEED[name].constants(d) for d in trajectories.LAYERS])
    A, B = constants[:, 0].min(), constants[:, 1].max()
    H, b, start = quadratics.arrays()
    mean, shift, best = H.mean(axis=0), b.mean(axis=0), quadratics.minimizer()
    L_minus, L_plus = (
        np.linalg.eigvalsh(matrix).max() ** power
        for matrix, power in ((mean, 1), (np.mean(H @ H, axis=0), 0.5))
    )
    gamma = 1 / (L_minus + L_plus * np.sqrt(B / A))
    found = run(name, Numbers(gamma=float(gamma), zeta=4.0))
    x = np.concatenate([start[None], found.home[:-1]])
    sums = np.cumsum(np.sum((x @ mean - shift) ** 2, axis=1))
    h = trajectories.rows(found.states.workers.estimate)[1]
    first = np.mean(np.sum((h - (H @ start - b)) ** 2, axis=1))
    excess = (start - best) @ mean @ (start - best) / 2
    assert (sums <= 2 * excess / gamma + first / A).all()


@pytest.mark.parametrize("name", ["LAG", "CLAG", "v3"])
def test_lazy_workers_send_fewer_messages(name):
    always, lazy = (np.mean(run(name, Numbers(zeta=zeta)).sent) for zeta in (0.0, 4.0))
    assert lazy < 0.95 * always


@pytest.mark.parametrize("name", sampled(["LAG", "CLAG", "v2", "v5"]))
def test_absent_workers_and_lost_messages_leave_the_limit(name):
    here = clusters.trace(np.array([[0, 1, 1, 0], [1, 0, 1, 1], [1, 1, 0, 1]], float), 1.0)
    place = clusters.Cluster(
        clusters.constant(1.0), present=here, delivered=clusters.bernoulli(0.8, 1.0)
    )
    of: Any = Numbers(zeta=2.0)
    problem = problems.random_quadratic(3, 4, heterogeneity=1.0, seed=1)
    options: dict[str, Any] = {"cluster": place, "steps": 3 * T, "record_every": 3 * T}
    found = dsgd.run(METHODS[name](of), problem, key=jax.random.key(0), **options)
    assert found.history["grad_sqnorm"][-1] < 1e-20


def test_marina_refuses_absent_workers():
    place = clusters.Cluster(clusters.constant(1.0), present=clusters.bernoulli(0.5, 1.0))
    of: Any = Numbers()
    with pytest.raises(ValueError, match="a difference that does not arrive is missing"):
        dsgd.run(
            METHODS["MARINA"](of),
            problems.random_quadratic(3, 4),
            steps=1,
            key=jax.random.key(0),
            cluster=place,
        )


# --- Constants.

SMALL = 3  # elements


def one_of(i: int) -> Compressor:
    """Returns the compressor of one element, i, times d. The uniform mixture over i is random-1."""

    def compress(key, x):
        return SMALL * jnp.where(jnp.arange(SMALL) == i, x, 0)

    return Compressor(
        compress, lambda message, d: message, lambda message: 64, f"one({i})", lambda d: d - 1
    )


ZETA, P = 0.5, 0.3
LARGEST, PAIR = compressors.top_k(0.3), compressors.top_k(0.6)
# Three-point compressors whose outcomes are equally likely.
POINTS: dict[str, list[three_points.ThreePoint]] = {
    "ef21": [three_points.ef21(LARGEST)],
    "lag": [three_points.lag(ZETA)],
    "clag": [three_points.clag(LARGEST, ZETA)],
    "clag, large threshold": [three_points.clag(PAIR, 20.0)],
    "v1": [three_points.v1(LARGEST)],
    "v2": [three_points.v2(LARGEST, one_of(i)) for i in range(SMALL)],
    "v3": [three_points.v3(PAIR, three_points.lag(ZETA))],
    "v4": [three_points.v4(LARGEST, LARGEST)],
    "v5": [three_points.v5(one_of(i), P) for i in range(SMALL)],
}


@pytest.mark.parametrize("name", POINTS)
def test_constants_bound_the_error(name):
    """The expected error over all outcomes, of the coins too, on vectors at random scales."""
    points, scales = POINTS[name], 10.0 ** np.arange(-2, 3)
    A, B = points[0].constants(SMALL)
    assert 0 < A <= 1
    assert B >= 0
    draw = np.random.default_rng(0).normal(size=(40, 2, SMALL))
    away = np.concatenate([draw * [[[scale], [1]]] for scale in scales])
    x = jnp.asarray(np.random.default_rng(1).normal(size=(len(away), SMALL)))
    h, y = x + away[:, 0], x + away[:, 1]
    error = np.mean([_error(point, x, h, y) for point in points], axis=0)
    bound = (1 - A) * np.sum((h - y) ** 2, axis=1) + B * np.sum((x - y) ** 2, axis=1)
    assert (error <= bound * (1 + 1e-12) + 1e-15).all()
    assert (error > 0.01 * bound).any()


def _error(point: three_points.ThreePoint, x: Any, h: Any, y: Any) -> np.ndarray:
    """Returns the squared error of each row, expected over the coin of MARINA."""

    def send(C, vectors, senders=None):
        keys = jax.random.split(jax.random.key(0), len(vectors))
        decoded = jax.vmap(lambda key, v: compressors.apply(C, key, v))(keys, vectors)
        return decoded if senders is None else jnp.where(senders[:, None], decoded, 0)

    def of(key):
        now = dsgd.Round(jnp.int32(1), len(x), key)
        return np.sum((np.asarray(point.apply(send, x, h, y, now)) - x) ** 2, axis=1)

    coins = {bool(jax.random.bernoulli(jax.random.key(i), P)): jax.random.key(i) for i in range(20)}
    return P * of(coins[True]) + (1 - P) * of(coins[False])


# --- Arguments.

WRONG = {
    "a biased Q": (lambda: algorithms.marina(optax.sgd(0.1), TOP, 0.5), "top_k(0.4) is biased"),
    "p": (lambda: algorithms.vr_marina(optax.sgd(0.1), RANDOM, 0.0), "vr_marina: probability = 0"),
    "no clients": (
        lambda: algorithms.marina(optax.sgd(0.1), RANDOM, 0.5, clients=0),
        "marina: clients = 0",
    ),
    "zeta": (lambda: algorithms.lag(optax.sgd(0.1), -1.0), "threshold = -1.0"),
    "no contraction": (
        lambda: algorithms.clag(optax.sgd(0.1), compressors.natural._replace(delta=None), 1.0),
        "natural states no contraction",
    ),
    "a biased Q of v5": (lambda: three_points.v5(TOP, 0.5), "three_points.v5: the compressor top"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name):
    make, words = WRONG[name]
    with pytest.raises(ValueError) as caught:
        make()
    assert words in str(caught.value)


def test_more_clients_than_workers_are_refused():
    method = algorithms.marina(optax.sgd(0.1), RANDOM, 0.5, clients=4)
    with pytest.raises(ValueError, match="clients = 4, but there are 3 workers; expected at most"):
        dsgd.run(method, problems.random_quadratic(3, 4), steps=1, key=jax.random.key(0))
