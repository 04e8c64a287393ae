"""Votes on signs, TernGrad, and Adam with one bit per element: methods that equal others, what
compression loses, and limits.

All runs but those of TernGrad have six workers. Each method has one program, whose arguments are
the method's hyperparameters (`theory_checks.machinery.trajectories`).
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

import algorithms
import dsgd
from dsgd import compressors
from dsgd.compressors.scales import clipped
from tests.algorithms import quadratics
from tests.methods.compressors import in_parts
from tests.methods.zero_one_adam import doubling, stretching
from theory_checks.machinery import trajectories
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.trajectories import LAYERS, D, N, Trajectory

T = 3_000
IDENTITY = compressors.identity


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = 0.02
    decay: float = 0.0
    beta: float = 0.0
    warm_up: int = 300
    updates: int = T
    stretch: int = 1
    longest: int = 1


def decreasing(of: Any) -> optax.GradientTransformation:
    return optax.scale_by_schedule(lambda t: -of.gamma / jnp.sqrt(1.0 + t))


def decayed(of: Any) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(of.decay), optax.sgd(of.gamma))


METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "vote": lambda of: algorithms.majority_vote(decreasing(of), of.beta),
    "Lion": lambda of: algorithms.distributed_lion(decayed(of)),
    "1-bit": lambda of: algorithms.one_bit_adam(
        optax.sgd(of.gamma), of.warm_up, beta2=0.9, epsilon=0.1
    ),
    "uncompressed": lambda of: algorithms.one_bit_adam(
        optax.sgd(of.gamma), of.warm_up, IDENTITY, beta2=0.9, epsilon=0.1
    ),
    "0/1": lambda of: algorithms.zero_one_adam(
        of.gamma,
        of.warm_up,
        IDENTITY,
        updates=of.updates,
        stretch=of.stretch,
        longest=of.longest,
        beta2=0.9,
        epsilon=0.1,
    ),
}
build = quadratics.builders(METHODS)
in_float64 = quadratics.in_float64


@cache
def run(name: str, numbers: Numbers, noise: float = 0.0) -> Trajectory:
    return quadratics.run(build(name), numbers, T, noise=noise)


def models(found: Trajectory) -> np.ndarray:
    """Returns the models after each round, `[T, d]`."""
    return found.home


def on(name: str, numbers: Numbers, A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the models of a run with exact gradients $A_n x - b_n$ from 0, `[T, d]`."""
    of: Instance = quadratics.instance(0.0, np.zeros(D))._replace(A=A, b=b)
    of = of._replace(more=jax.tree.map(np.asarray, numbers))
    return trajectories.run(build(name), of, length=T).home


# --- Votes.


def test_votes_lead_to_the_lower_median_of_the_minimizers():
    """With diagonal Hessians each element is a problem of one variable. Between the two minimizers
    in the middle the votes are a tie, which counts as positive.
    """
    A, b, _ = quadratics.arrays()
    diagonals = np.einsum("nii->ni", A)
    x = on("vote", Numbers(gamma=0.1), diagonals[:, :, None] * np.eye(D), b)[-1]
    sorted_minimizers = np.sort(b / diagonals, axis=0)
    assert np.diff(sorted_minimizers, axis=0)[2].max() > 0.1
    np.testing.assert_allclose(x, sorted_minimizers[2], rtol=0, atol=2 * 0.1 / np.sqrt(T))


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("liars", [2, 3])
def test_fewer_than_half_of_the_workers_cannot_change_the_vote(liars, beta):
    """Some workers send the opposite signs. From half of the workers on, all votes are ties."""
    A, b, _ = quadratics.arrays()
    sides = np.where(np.arange(N) < liars, -1.0, 1.0)
    numbers = Numbers(gamma=0.1, beta=beta)
    found = on("vote", numbers, sides[:, None, None] * A[0], sides[:, None] * b[0])
    if liars < N / 2:
        honest = on("vote", numbers, np.tile(A[0], (N, 1, 1)), np.tile(b[0], (N, 1)))
        np.testing.assert_array_equal(found, honest)
        assert np.abs(found[-1] - np.linalg.solve(A[0], b[0])).max() < 0.1
    else:
        steps = 0.1 / np.sqrt(1.0 + np.arange(T))
        np.testing.assert_allclose(found, np.tile(-np.cumsum(steps)[:, None], D), atol=1e-12)


def test_equal_workers_make_the_steps_of_lion():
    A, b, _ = (np.asarray(part) for part in quadratics.arrays())
    found = on("Lion", Numbers(decay=0.3), np.tile(A[0], (N, 1, 1)), np.tile(b[0], (N, 1)))
    lion = optax.lion(0.02, weight_decay=0.3)
    x = jnp.zeros(D)
    state = lion.init(x)
    step = jax.jit(lion.update)
    for t in range(100):
        updates, state = step(A[0] @ x - b[0], state, x)
        x = x + updates
        np.testing.assert_allclose(found[t], x, rtol=0, atol=1e-12)


def test_weight_decay_bounds_the_elements_of_distributed_lion():
    numbers = Numbers(gamma=0.02, decay=4.0)
    A, b, _ = quadratics.arrays()
    x = on("Lion", numbers, A, 10 * b)
    assert np.abs(x).max() == pytest.approx(1 / 4.0, rel=1e-6)
    assert np.abs(x).max() <= 1 / 4.0 + 1e-12


# --- Adam with one bit.


def test_without_compression_01_adam_is_1_bit_adam_is_adam_with_fixed_second_moments():
    numbers = Numbers()
    left, right = (models(run(name, numbers, 0.5)) for name in ("0/1", "uncompressed"))
    assert np.ptp(left) > 0.1
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)
    A, b, x = quadratics.arrays()
    noise = run("uncompressed", numbers, 0.5).noise
    m = v = np.zeros(D)
    for t in range(400):
        g = (np.einsum("nij,j->ni", A, x) - b + noise[t]).mean(axis=0)
        m = 0.9 * m + 0.1 * g
        v = 0.9 * v + 0.1 * g**2 if t < numbers.warm_up else v
        x = x - numbers.gamma * m / (np.sqrt(v) + 0.1)
        np.testing.assert_allclose(right[t], x, rtol=0, atol=1e-12)


def test_no_part_of_a_momentum_is_lost():
    """x minus the errors, scaled as a step, makes the steps of the exact mean of the momenta."""
    numbers = Numbers()
    found = run("1-bit", numbers, 0.5)
    server = found.states.server
    x, m, v = (trajectories.rows(leaf, 1) for leaf in (server.params, server.m, server.v))
    of_workers, of_servers = (
        in_parts(path)(found) for path in ("workers.worker", "workers.server")
    )
    errors = of_workers.mean(axis=1) + of_servers
    step = numbers.gamma / (np.sqrt(v[-1]) + 0.1)
    shadow = x - step * errors
    mean = 0.9 * m[:-1] + 0.1 * found.gradients.mean(axis=1)
    later = slice(numbers.warm_up, None)
    assert np.abs(errors[later]).max() > 0.1
    np.testing.assert_allclose(
        np.diff(shadow, axis=0)[later], (-step * mean)[later], rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", ["uncompressed", "0/1"])
def test_the_limit_is_exact_without_compression_and_local_steps(name):
    x = models(run(name, Numbers()))[-1]
    np.testing.assert_allclose(x, quadratics.minimizer(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["1-bit", "0/1"])
def test_the_error_is_proportional_to_the_step_size(name):
    """With one bit the models keep moving; local steps have a bias."""
    errors = []
    for gamma in (0.02, 0.005):
        x = models(run(name, Numbers(gamma=gamma, longest=4)))[-400:]
        errors.append(np.linalg.norm(x - quadratics.minimizer(), axis=1).mean())
    assert 3 < errors[0] / errors[1] < 5.5


def test_an_element_without_gradient_does_not_move():
    """A message of one bit cannot be 0 for it, and its step would be divided by epsilon."""
    A, b, _ = (np.array(part) for part in quadratics.arrays())
    A[:, 0], A[:, :, 0], b[:, 0] = 0, 0, 0
    x = on("1-bit", Numbers(), A, b)
    assert not x[:, 0].any()
    rest = np.linalg.solve(A[:, 1:, 1:].mean(axis=0), b[:, 1:].mean(axis=0))
    assert np.abs(x[-1, 1:] - rest).max() < 0.1


def test_the_rounds_of_01_adam_that_send_are_those_of_its_schedules():
    numbers = Numbers(warm_up=700, updates=5, stretch=96, longest=8)
    sent = run("0/1", numbers).sent[:, 0]
    T_v = doubling(numbers.updates, numbers.warm_up)
    T_u = stretching(numbers.warm_up, numbers.stretch, numbers.longest, T)
    exchanged = sum(2 * (N - 1) * 64 * -(-d // N) for d in LAYERS)
    reduced = round(2 * (N - 1) / N * 64 * D)
    expected = exchanged * np.isin(np.arange(T), T_u) + reduced * np.isin(np.arange(T), T_v)
    np.testing.assert_array_equal(sent, expected)
    assert len(T_v) == 36


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
        y = g if limit is None else np.array([clipped(jnp.asarray(row), limit) for row in g])
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

STEP = optax.sgd(0.1)
INVALID: list[tuple[Callable, dict[str, Any], str]] = [
    (algorithms.majority_vote, {"momentum": 1.0}, "momentum = 1.0; expected a number in [0, 1)"),
    (algorithms.distributed_lion, {"beta2": -0.1}, "beta2 = -0.1; expected a number in [0, 1)"),
    (algorithms.tern_grad, {"limit": 0.5}, "limit = 0.5; expected a number in [1, inf)"),
    (algorithms.one_bit_adam, {"warm_up": 0}, "warm_up = 0; expected an integer"),
    (algorithms.one_bit_adam, {"warm_up": 1, "epsilon": -1.0}, "epsilon = -1.0; expected a number"),
]


@pytest.mark.parametrize(("method", "options", "words"), INVALID)
def test_arguments_out_of_range_are_refused(method, options, words):
    with pytest.raises(ValueError) as error:
        method(STEP, **options)
    assert words in str(error.value)
    assert str(error.value).startswith(f"{method.__name__}: ")


def test_a_compressor_without_contraction_is_refused():
    method = algorithms.one_bit_adam(STEP, 1, compressors.clipped_ternary())
    with pytest.raises(ValueError, match=r"one_bit_adam: clipped_ternary.* states no contraction"):
        method.init(jnp.zeros(20), 4)


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
