"""Votes on signs, TernGrad, and Adam with one bit per element: what compression loses, and
limits.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import compressors
from dsgd.compressors.scales import clip_to_rms
from tests.algorithms import quadratics
from tests.methods.compressors import parts_at
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import D, N

T, GAMMA, WARM_UP = 2_000, 0.02, 300
float64 = quadratics.float64


def vote(of: Any) -> dsgd.Algorithm:
    """Returns the vote on momenta with decreasing steps."""
    steps = optax.scale_by_schedule(lambda t: -0.1 / jnp.sqrt(1.0 + t))
    return algorithms.majority_vote(steps, of.more)


def one_bit(of: Any) -> dsgd.Algorithm:
    return algorithms.one_bit_adam(optax.sgd(GAMMA), WARM_UP, beta2=0.9, epsilon=0.1)


def models(build: Any, A: np.ndarray, b: np.ndarray, beta: float = 0.0) -> np.ndarray:
    """Returns the models of a run with exact gradients $A_n x - b_n$ from 0, `[T, d]`."""
    of = quadratics.instance(0.0, np.zeros(D))._replace(A=A, b=b, more=np.float64(beta))
    return trajectories.run(build, of, length=T).home


# --- Votes.


def test_votes_lead_to_the_lower_median_of_the_minimizers():
    """With diagonal Hessians each element is a problem of one variable. Between the two minimizers
    in the middle the votes are a tie, which counts as positive.
    """
    A, b, _ = quadratics.arrays()
    diagonals = np.einsum("nii->ni", A)
    x = models(vote, diagonals[:, :, None] * np.eye(D), b)[-1]
    sorted_minimizers = np.sort(b / diagonals, axis=0)
    assert np.diff(sorted_minimizers, axis=0)[2].max() > 0.1
    np.testing.assert_allclose(x, sorted_minimizers[2], rtol=0, atol=2 * 0.1 / np.sqrt(T))


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("liars", [2, 3])
def test_fewer_than_half_of_the_workers_cannot_change_the_vote(liars, beta):
    """Some workers send the opposite signs. From half of the workers on, all votes are ties."""
    A, b, _ = quadratics.arrays()
    sides = np.where(np.arange(N) < liars, -1.0, 1.0)
    found = models(vote, sides[:, None, None] * A[0], sides[:, None] * b[0], beta)
    if liars < N / 2:
        honest = models(vote, np.tile(A[0], (N, 1, 1)), np.tile(b[0], (N, 1)), beta)
        np.testing.assert_array_equal(found, honest)
        assert np.abs(found[-1] - np.linalg.solve(A[0], b[0])).max() < 0.1
    else:
        steps = 0.1 / np.sqrt(1.0 + np.arange(T))
        np.testing.assert_allclose(found, np.tile(-np.cumsum(steps)[:, None], D), atol=1e-12)


# --- Adam with one bit.


def test_no_part_of_a_momentum_is_lost():
    """x minus the errors, scaled as a step, makes the steps of the exact mean of the momenta."""
    of = quadratics.instance(0.5, quadratics.arrays()[2])
    found = trajectories.run(one_bit, of, length=WARM_UP + 50)
    server = found.states.server
    x, m, v = (trajectories.rows(leaf, 1) for leaf in (server.params, server.m, server.v))
    of_workers, of_servers = (
        parts_at(path)(found) for path in ("workers.worker", "workers.server")
    )
    errors = of_workers.mean(axis=1) + of_servers
    step = GAMMA / (np.sqrt(v[-1]) + 0.1)
    shadow = x - step * errors
    mean = 0.9 * m[:-1] + 0.1 * found.gradients.mean(axis=1)
    later = slice(WARM_UP, None)
    assert np.abs(errors[later]).max() > 0.1
    np.testing.assert_allclose(
        np.diff(shadow, axis=0)[later], (-step * mean)[later], rtol=0, atol=1e-12
    )


def test_an_element_without_gradient_does_not_move():
    """A message of one bit cannot be 0 for it, and its step would be divided by epsilon."""
    A, b, _ = (np.array(part) for part in quadratics.arrays())
    A[:, 0], A[:, :, 0], b[:, 0] = 0, 0, 0
    x = models(one_bit, A, b)
    assert not x[:, 0].any()
    rest = np.linalg.solve(A[:, 1:, 1:].mean(axis=0), b[:, 1:].mean(axis=0))
    assert np.abs(x[-1, 1:] - rest).max() < 0.1


# --- TernGrad.

GRADIENTS = {
    "biases": np.random.default_rng(0).normal(size=(4, 3)),
    "weights": 10 * np.random.default_rng(1).normal(size=(4, 2, 5)) ** 3,
}
DRAWS = 4_000


@pytest.mark.parametrize("limit", [None, 1.5])
def test_terngrad_is_unbiased_after_clipping_with_the_stated_variance(limit):
    """Over many keys; each layer has its own scale, and the sum of the digits is an integer."""
    problem = dsgd.Problem(
        init=lambda key: jax.tree.map(lambda g: jnp.zeros(g.shape[1:]), GRADIENTS),
        loss=dsgd.Loss(lambda params, batch: jnp.zeros(()), lambda params, batch: batch),
        sample=lambda key, mine: mine,
        data=GRADIENTS,
    )
    method = algorithms.tern_grad(optax.sgd(1.0), limit)
    found = dsgd.run(method, problem, steps=1, key=jax.random.key(2), seeds=DRAWS, mesh=1).params
    for layer, rows in GRADIENTS.items():
        g = rows.reshape(4, -1)
        y = g if limit is None else np.array([clip_to_rms(jnp.asarray(row), limit) for row in g])
        s, estimates = np.abs(y).max(), -np.asarray(found[layer]).reshape(DRAWS, -1)
        digits = estimates * 4 / s
        np.testing.assert_allclose(digits, np.round(digits), rtol=0, atol=1e-9)
        error = estimates - y.mean(axis=0)
        spread = error.std(axis=0) / np.sqrt(DRAWS)
        assert (np.abs(error.mean(axis=0)) <= 5 * spread + 1e-9).all()
        sqdist = (error**2).sum(axis=1)
        stated = (s * np.abs(y).sum() - (y**2).sum()) / 16
        assert abs(sqdist.mean() - stated) <= 5 * sqdist.std() / np.sqrt(DRAWS)


# --- Invalid arguments.


@pytest.mark.parametrize(
    "method",
    [
        lambda: algorithms.one_bit_adam(optax.sgd(0.01), 5),
        lambda: algorithms.zero_one_adam(0.01, 5),
    ],
    ids=["1-bit", "0/1"],
)
def test_second_moments_of_half_precision_gradients_do_not_underflow(method):
    """The square of 1e-4 is 0 in float16."""
    slopes = jnp.full((N, D), 1e-4, jnp.float16)
    problem = dsgd.Problem(
        lambda key: jnp.zeros(D, jnp.float16),
        lambda x, batch: jnp.mean(batch @ x),
        slopes,
        lambda key, mine: mine,
    )
    found = dsgd.run(method(), problem, steps=1, key=jax.random.key(0), mesh=1)
    v = found.state.server.v
    assert v == pytest.approx(np.full(D, 0.001 * np.float64(np.float16(1e-4)) ** 2), rel=1e-5)


def test_empty_layers_are_sent_as_nothing():
    problem = dsgd.Problem(
        lambda key: {"full": jnp.zeros(D), "empty": jnp.zeros((0, 2))},
        lambda x, batch: jnp.mean(batch @ x["full"]),
        jnp.ones((N, D)),
        lambda key, mine: mine,
    )
    for method in (
        algorithms.tern_grad(optax.sgd(0.1)),
        algorithms.diana(optax.sgd(0.1), compressors.qsgd(4)),
    ):
        found = dsgd.run(method, problem, steps=1, key=jax.random.key(0), mesh=1)
        assert found.params["empty"].shape == (0, 2)
        assert np.all(np.isfinite(found.params["full"]))
