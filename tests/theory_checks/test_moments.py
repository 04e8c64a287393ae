"""Exact moments: the project's methods, differentiated, compared with recursions from the papers'
equations in numpy, in which each number of the noise is tried separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
import topologies
from dsgd import compressors, problems
from tests.methods import decentralized_sgd
from tests.methods.given import quadratic_given
from theory_checks.machinery import moments, runs
from theory_checks.statements.asynchronous_sgd import with_table
from theory_checks.statements.error_compensated_sgd import any_compressor

N, D, STEPS = 4, 4, 40
GAMMA, SIGMA, COMPRESSION = 0.15, 0.7, 0.9
RING = topologies.ring(N)
SEEDS, LIMIT = 1_500, 5  # runs of a Monte Carlo estimate; maximal deviation in standard errors


class Numbers:
    """Numbers of f_n(x) = x^T A_n x / 2 - b_n^T x, from x_0."""

    def __init__(self, equal: bool) -> None:
        rng = np.random.default_rng(3)
        raw = rng.normal(size=(1 if equal else N, D, D))
        A = raw @ np.swapaxes(raw, 1, 2) / D + 0.05 * np.eye(D)
        self.A = np.broadcast_to(A, (N, D, D)) / np.linalg.norm(A, 2, axis=(1, 2)).max()
        self.b, self.start = rng.normal(size=(N, D)), rng.normal(size=D)
        self.mean_A, self.mean_b = self.A.mean(axis=0), self.b.mean(axis=0)
        self.best = np.linalg.solve(self.mean_A, self.mean_b)
        self.problem = problems.quadratic(self.A, self.b, noise=SIGMA, start=self.start)


@pytest.fixture(scope="module")
def numbers() -> Callable[[bool], Numbers]:
    made = {equal: Numbers(equal) for equal in (True, False)}
    return made.__getitem__


# --- Second moments of affine recursions, in numpy.

# the model [T + 1, D], and the points at which workers are queried
Rounds = tuple[np.ndarray, np.ndarray]


def vectors(of: Numbers, x: np.ndarray, asked: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the vectors whose squares are computed, `[T + 1, ...]`."""
    slope = x @ of.mean_A.T - of.mean_b
    local = np.einsum("nij,tnj->tni", of.A, asked) - of.b
    there = np.einsum("nij,tj->tni", of.A, x) - of.b
    return {
        "slope": slope,
        "gap": (x - of.best) @ np.linalg.cholesky(of.mean_A) / np.sqrt(2),
        "spread": (there - slope[:, None]) / np.sqrt(N),
        "consensus": (asked - asked.mean(axis=1, keepdims=True)) / np.sqrt(N),
        "asked": local.mean(axis=1),
        "stale": slope - local.mean(axis=1),
        "local": local / np.sqrt(N),
        "around": (local - slope[:, None]) / np.sqrt(N),
    }


def second_moments(
    of: Numbers, rounds: Callable[[np.ndarray], Rounds], *shape: int
) -> dict[str, np.ndarray]:
    """Returns second moments of rounds that are affine in independent noise of variance 1, `[T,
    *shape]`: each number of the noise adds the square of its own effect.
    """

    def at(noise):
        return vectors(of, *rounds(noise.reshape(STEPS, *shape)))

    exact = at(np.zeros((STEPS, *shape)))
    total = {name: value**2 for name, value in exact.items()}
    for impulse in np.eye(STEPS * math.prod(shape)):
        for name, value in at(impulse).items():
            total[name] += (value - exact[name]) ** 2
    return {name: squares.reshape(STEPS + 1, -1).sum(axis=1) for name, squares in total.items()}


def steps(of: Numbers, direction: Callable) -> Rounds:
    """Returns x_{t+1} = x_t - gamma direction(t, models until t), with all workers queried at the
    last model.
    """
    x = [of.start]
    for t in range(STEPS):
        x.append(x[t] - GAMMA * direction(t, x))
    return np.stack(x), np.tile(np.stack(x)[:, None], (1, N, 1))


def agree(of: Numbers, build: Callable, rounds: Callable, *shape: int, **options) -> None:
    found = moments.second_moments(build, of.problem, GAMMA, steps=STEPS, **options)
    expected = second_moments(of, rounds, *shape)
    assert found.keys() == expected.keys()
    if options.get("one_worker"):  # if the differences between workers are noise
        expected = {name: expected[name] for name in ("slope", "gap", "asked", "stale")}
    for name in expected:
        np.testing.assert_allclose(
            found[name], expected[name], rtol=1e-10, atol=1e-12, err_msg=name
        )


def query_one_worker(of: Numbers, z: np.ndarray) -> np.ndarray:
    r"""Returns $\xi + b_n - \bar b$ with uniform n, with the covariance of a draw, from D + N
    numbers.
    """
    return SIGMA / np.sqrt(D) * z[:D] + z[D:] @ (of.b - of.mean_b) / np.sqrt(N)


@pytest.mark.long
def test_sgd_draws_a_worker(numbers):
    """The differences between workers are noise: with equal Hessians, that of b_n."""
    of = numbers(True)

    def rounds(z):
        return steps(of, lambda t, x: of.mean_A @ x[t] - of.mean_b + query_one_worker(of, z[t]))

    agree(of, moments.with_step(algorithms.sgd), rounds, D + N, one_worker=True)


@pytest.mark.parametrize(("via", "messages"), [("server", N * N + N), ("ring", N * N)])
def test_compressed_sgd_with_additive_errors(numbers, via, messages):
    r"""Through servers the errors are $\frac1N \sum \epsilon_n + \epsilon$ (3.4), around the ring
    $\frac1N \sum_k \epsilon_k$ (3.5).
    """
    of = numbers(False)
    total = (SIGMA**2 + COMPRESSION**2) / N + (COMPRESSION**2 if via == "server" else 0.0)

    def rounds(z):
        return steps(of, lambda t, x: of.mean_A @ x[t] - of.mean_b + np.sqrt(total / D) * z[t])

    build = moments.with_compressor(algorithms.compressed_sgd, via == "ring")
    agree(of, build, rounds, D, compression=COMPRESSION, messages=messages)


def test_error_compensated_sgd_with_additive_errors(numbers):
    r"""With $m = \frac1N \sum_n \delta_n + \delta$ and $\epsilon$ of mean square
    $(1 + 1/N) s'^2$ the step is along $v + \epsilon$,
    $v = \frac1N \sum_n (f_n' + \xi_n) + m$, and $m' = -\epsilon$.
    """
    of = numbers(False)

    def rounds(z):
        xi = np.sqrt(SIGMA**2 / (N * D)) * z[:, 0]
        epsilon = np.sqrt((1 + 1 / N) * COMPRESSION**2 / D) * z[:, 1]

        def direction(t, x):
            v = of.mean_A @ x[t] - of.mean_b + xi[t] - (epsilon[t - 1] if t else 0)
            return v + epsilon[t]

        return steps(of, direction)

    build = moments.with_compressors(any_compressor)
    agree(of, build, rounds, 2, D, compression=COMPRESSION, messages=N * N + N)


TABLE = np.array([0, 3, 1, 2, 0, 0, 3, 2] * 8, np.int32)


def test_asynchronous_sgd_with_a_table_of_staleness(numbers):
    """x_{t+1} = x_t - gamma (A x_{t-s} - b + noise)."""
    of = numbers(True)
    read = [t - min(TABLE[t], t) for t in range(STEPS + 1)]

    def rounds(z):
        x, _ = steps(
            of, lambda t, x: of.mean_A @ x[read[t]] - of.mean_b + query_one_worker(of, z[t])
        )
        return x, np.tile(x[read][:, None], (1, N, 1))

    build = with_table(3, algorithms.asynchronous_sgd)
    agree(of, build, rounds, D + N, one_worker=True, varying=True, more=TABLE)


def test_decentralized_sgd_on_a_ring(numbers):
    of = numbers(False)
    W = np.array([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]]) / 3
    np.testing.assert_allclose(RING.W, W)

    def rounds(z):
        given = quadratic_given(
            of.A, of.b, of.start, GAMMA, STEPS, [lambda number: W], SIGMA / np.sqrt(D) * z
        )
        X = np.stack([given.X, *(each["params"] for each in decentralized_sgd.recursion(given))])
        return X.mean(axis=1), X

    agree(of, moments.with_step(algorithms.decentralized_sgd, RING), rounds, N, D)


def test_runs_over_many_seeds_agree_with_exact_moments(numbers):
    """The project's loop; every round's mean is within 5 standard errors."""
    of = numbers(True)
    exact = moments.second_moments(
        moments.with_step(algorithms.decentralized_sgd, RING), of.problem, GAMMA, steps=STEPS
    )
    factory = runs.with_step(algorithms.decentralized_sgd, RING)
    history = runs.histories(factory, of.problem, steps=STEPS, learning_rates=[GAMMA], seeds=SEEDS)
    gaps = history["loss"] - of.problem.constants.minimum
    for name, values in (
        ("slope", history["grad_sqnorm"]),
        ("gap", gaps),
        ("consensus", history["consensus"]),
    ):
        error = values[0].std(axis=0, ddof=1) / np.sqrt(SEEDS)
        assert (np.abs(values[0].mean(axis=0) - exact[name]) <= LIMIT * error + 1e-10).all(), name
        assert error[1:].max() < 0.1 * exact[name].max(), f"{name}: the estimates say too little"


def first_worker_only(optimizer):
    """Returns SGD that always queries the same worker."""
    inner = algorithms.sgd(optimizer)
    return inner._replace(
        query=lambda state, round_: inner.query(state, round_)._replace(
            workers=jnp.zeros(1, jnp.int32)
        )
    )


def now_and_then(optimizer):
    """Returns mini-batch SGD that makes no step in round 3."""
    inner = algorithms.minibatch_sgd(optimizer)

    def update(state, gradients, round):
        return inner.update(
            state,
            jax.tree.map(lambda leaf: jnp.where(round.step == 3, 0 * leaf, leaf), gradients),
            round,
        )

    return inner._replace(update=update)


def at_random(optimizer):
    """Returns mini-batch SGD that makes a step with probability 1/2."""
    inner = algorithms.minibatch_sgd(optimizer)

    def update(state, gradients, round):
        awake = jax.random.bernoulli(round.next_key())
        return inner.update(
            state, jax.tree.map(lambda leaf: jnp.where(awake, leaf, 0 * leaf), gradients), round
        )

    return inner._replace(update=update)


def mantissas(optimizer):
    return algorithms.compressed_sgd(optimizer, compressors.clipping(1), allow_biased=True)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (first_worker_only, "worker 0 of 4 .* 100.0%"),
        (now_and_then, "rounds differ"),
        (at_random, "draws random numbers"),
        (mantissas, "not affine"),
    ],
)
def test_rounds_that_are_not_one_affine_map_are_refused(numbers, method, says):
    """Each has a round that looks affine at t = 0, with one key, or for small numbers."""
    one_worker = method is first_worker_only
    with pytest.raises(ValueError, match=says):
        moments.second_moments(
            moments.with_step(method),
            numbers(one_worker).problem,
            GAMMA,
            steps=3,
            one_worker=one_worker,
        )


REFUSED = {
    r"problems\.quadratic": (
        algorithms.minibatch_sgd,
        lambda of: problems.robust_regression(N, D),
        False,
    ),
    "equal Hessians": (algorithms.sgd, lambda of: of(False).problem, True),
    "one_worker=False": (algorithms.minibatch_sgd, lambda of: of(True).problem, True),
    "sampler": (
        algorithms.minibatch_sgd,
        lambda of: of(True).problem._replace(
            sample=lambda key, mine: mine._replace(noise=jnp.ones_like(mine.b))
        ),
        False,
    ),
}


@pytest.mark.parametrize("says", REFUSED)
def test_problems_that_have_no_exact_moments_are_refused(numbers, says):
    method, problem, one_worker = REFUSED[says]
    with pytest.raises(ValueError, match=says):
        moments.second_moments(
            moments.with_step(method), problem(numbers), GAMMA, steps=3, one_worker=one_worker
        )


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (N * N, rf"at least \d+ messages.*{N * N}"),
        (N * N + N - 1, "at least"),
        (N * N + N + 1, "smaller|fewer"),
    ],
)
def test_a_round_with_another_number_of_messages_is_refused(numbers, messages, message):
    """Also with N * N + N - 1 messages, although two of them share a row with the first key that is
    tried.
    """
    build = moments.with_compressor(algorithms.compressed_sgd)
    with pytest.raises(ValueError, match=message):
        moments.second_moments(
            build, numbers(False).problem, GAMMA, steps=3, compression=1.0, messages=messages
        )
