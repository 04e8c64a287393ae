"""MARINA and three-point compressors: a method that equals another, a bound, and the constants of
three-point compressors.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import sampled

import algorithms
import dsgd
from algorithms import three_points
from dsgd import compressors, problems
from dsgd.base import Compressor
from tests.algorithms import quadratics
from theory_checks.machinery import trajectories

T = 600
TOP = compressors.top_k(0.4)
float64 = quadratics.float64


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


GUARANTEED = {
    "lag": three_points.lag(4.0),
    "clag": three_points.clag(TOP, 4.0),
    "ef21": three_points.ef21(TOP),
    "v1": three_points.v1(TOP),
    "v3": three_points.v3(TOP, three_points.lag(4.0)),
    "v4": three_points.v4(TOP, TOP),
}


@pytest.mark.parametrize("name", sampled(GUARANTEED))
def test_the_gradients_are_below_the_bound_at_the_largest_step(name):
    """Compares sums, T times the averages, for each number T of rounds. Layers are compressed
    separately; all of them have the smallest A and the largest B.
    """
    point = GUARANTEED[name]
    constants = np.array([point.constants(d) for d in trajectories.LAYERS])
    A, B = constants[:, 0].min(), constants[:, 1].max()
    H, b, start = quadratics.arrays()
    mean, shift, best = H.mean(axis=0), b.mean(axis=0), quadratics.minimizer()
    L_minus, L_plus = (
        np.linalg.eigvalsh(matrix).max() ** power
        for matrix, power in ((mean, 1), (np.mean(H @ H, axis=0), 0.5))
    )
    gamma = 1 / (L_minus + L_plus * np.sqrt(B / A))
    method = algorithms.three_point(optax.sgd(float(gamma)), point)
    found = trajectories.run(lambda squares: method, quadratics.instance(0.0, start), length=T)
    x = np.concatenate([start[None], found.home[:-1]])
    sums = np.cumsum(np.sum((x @ mean - shift) ** 2, axis=1))
    h = trajectories.rows(found.states.workers.estimate)[1]
    first = np.mean(np.sum((h - (H @ start - b)) ** 2, axis=1))
    excess = (start - best) @ mean @ (start - best) / 2
    assert (sums <= 2 * excess / gamma + first / A).all()


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

    def squares(key):
        now = dsgd.Round(jnp.int32(1), len(x), key)
        return np.sum((np.asarray(point.apply(send, x, h, y, now)) - x) ** 2, axis=1)

    coins = {bool(jax.random.bernoulli(jax.random.key(i), P)): jax.random.key(i) for i in range(20)}
    return P * squares(coins[True]) + (1 - P) * squares(coins[False])


def test_more_clients_than_workers_are_refused():
    method = algorithms.marina(optax.sgd(0.1), compressors.random_k(0.5), 0.5, clients=4)
    with pytest.raises(ValueError, match="clients = 4, but there are 3 workers; expected at most"):
        dsgd.run(method, problems.random_quadratic(3, 4), steps=1, key=jax.random.key(0))
