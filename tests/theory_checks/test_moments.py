"""Exact moments: the project's own methods, differentiated, beside recursions written down from the
papers' equations, in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import topologies
from dsgd import compressors, problems
from theory_checks.machinery import moments, runs
from theory_checks.statements.asynchronous_sgd import with_table
from theory_checks.statements.error_compensated_sgd import any_compressor

N, D, STEPS = 4, 4, 40
GAMMA, SIGMA, COMPRESSION = 0.15, 0.7, 0.9
RING = topologies.ring(N)
SEEDS, LIMIT = 1_500, 5  # runs of a Monte Carlo estimate; standard errors that it may be off


class Numbers:
    """Of f_n(x) = x^T A_n x / 2 - b_n^T x, from x_0."""

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


# --- Moments of s' = M s + c + noise of a covariance, in numpy.

Law = tuple[np.ndarray, np.ndarray]  # mean and covariance


def laws(
    first: np.ndarray, affine: Callable[[int], tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> list[Law]:
    """Of s_0, ..., s_T; `affine(t)` is M, c and the covariance of the noise."""
    mean, covariance = first, np.zeros((first.size, first.size))
    found = [(mean, covariance)]
    for t in range(STEPS):
        M, c, noise = affine(t)
        mean, covariance = M @ mean + c, M @ covariance @ M.T + noise
        found.append((mean, covariance))
    return found


def square(law: Law, P: np.ndarray, q: np.ndarray | float = 0.0) -> float:
    """E|P s + q|^2."""
    mean, covariance = law
    return float(np.sum((P @ mean + q) ** 2) + np.trace(P @ covariance @ P.T))


def of_one_model(of: Numbers, law: Law, x: np.ndarray) -> dict[str, float]:
    """What is asked of the one model x = (the matrix x) s."""
    away = of.A @ x  # [N, d, s]
    mean, covariance = law[0], law[1]
    at, around = x @ mean - of.best, x @ covariance @ x.T
    return {
        "slope": square(law, of.mean_A @ x, -of.mean_b),
        "gap": float(at @ of.mean_A @ at + np.trace(of.mean_A @ around)) / 2,
        "spread": np.mean(
            [square(law, away[n] - of.mean_A @ x, of.mean_b - of.b[n]) for n in range(N)]
        ),
    }


def agree(found: dict[str, np.ndarray], expected: list[dict[str, float]]) -> None:
    assert len(next(iter(found.values()))) == STEPS + 1
    for name in expected[0]:
        np.testing.assert_allclose(
            found[name], [each[name] for each in expected], rtol=1e-10, atol=1e-12, err_msg=name
        )


def of_one_worker(of: Numbers) -> np.ndarray:
    r"""The covariance of $A x - b_n + \xi$ with n uniform."""
    away = of.b - of.mean_b
    return SIGMA**2 / D * np.eye(D) + away.T @ away / N


@pytest.mark.long
def test_sgd_draws_a_worker(numbers):
    """What workers differ in is noise: with one Hessian, it is that of b_n."""
    of, I = numbers(True), np.eye(D)
    expected = []
    for law in laws(
        of.start, lambda t: (I - GAMMA * of.mean_A, GAMMA * of.mean_b, GAMMA**2 * of_one_worker(of))
    ):
        same = of_one_model(of, law, I)
        expected.append(
            {
                "slope": same["slope"],
                "gap": same["gap"],
                "asked": same["slope"],
                "stale": 0.0,
                "consensus": 0.0,
            }
        )
    agree(
        moments.second_moments(
            moments.with_step(algorithms.sgd), of.problem, GAMMA, steps=STEPS, one_worker=True
        ),
        expected,
    )


@pytest.mark.parametrize(("via", "messages"), [("server", N * N + N), ("ring", N * N)])
def test_compressed_sgd_with_additive_errors(numbers, via, messages):
    r"""Through servers the errors are $\frac1N \sum \epsilon_n + \epsilon$ (3.4), around the ring
    $\frac1N \sum_k \epsilon_k$ (3.5).
    """
    of, I = numbers(False), np.eye(D)
    total = (SIGMA**2 + COMPRESSION**2) / N + (COMPRESSION**2 if via == "server" else 0.0)
    affine = I - GAMMA * of.mean_A, GAMMA * of.mean_b, GAMMA**2 * total / D * I
    expected = [of_one_model(of, law, I) for law in laws(of.start, lambda t: affine)]
    build = moments.with_compressor(algorithms.compressed_sgd, via)
    agree(
        moments.second_moments(
            build, of.problem, GAMMA, steps=STEPS, compression=COMPRESSION, messages=messages
        ),
        expected,
    )


def test_error_compensated_sgd_with_additive_errors(numbers):
    r"""The state is $(x, m)$, $m = \frac1N \sum_n \delta_n + \delta$: with $\epsilon$ of mean
    square $(1 + 1/N) s'^2$, the step is along $v + \epsilon$,
    $v = \frac1N \sum_n (f_n' + \xi_n) + m$, and $m' = -\epsilon$."""
    of, I = numbers(False), np.eye(D)
    M = np.block([[I - GAMMA * of.mean_A, -GAMMA * I], [np.zeros((D, 2 * D))]])
    c = np.concatenate([GAMMA * of.mean_b, np.zeros(D)])
    xi, epsilon = np.sqrt(SIGMA**2 / (N * D)), np.sqrt((1 + 1 / N) * COMPRESSION**2 / D)
    B = np.block([[-GAMMA * xi * I, -GAMMA * epsilon * I], [np.zeros((D, D)), -epsilon * I]])
    expected = [
        of_one_model(of, law, np.eye(D, 2 * D))
        for law in laws(np.append(of.start, np.zeros(D)), lambda t: (M, c, B @ B.T))
    ]
    build = moments.with_compressors(any_compressor)
    agree(
        moments.second_moments(
            build, of.problem, GAMMA, steps=STEPS, compression=COMPRESSION, messages=N * N + N
        ),
        expected,
    )


TABLE = np.array([0, 3, 1, 2, 0, 0, 3, 2] * 8, np.int32)


def test_asynchronous_sgd_with_a_table_of_staleness(numbers):
    """The state is (x_t, x_{t-1}, x_{t-2}, x_{t-3}), and x_{t+1} = x_t - gamma (A x_{t-s} - b +
    noise).
    """
    of, tau = numbers(True), 3
    I, size = np.eye(D), (tau + 1) * D

    def seen(t):  # x_{t-s} = (this matrix) (state)
        return np.kron(np.eye(tau + 1)[min(TABLE[t % len(TABLE)], t)][None], I)

    now, shift = np.eye(D, size), np.kron(np.eye(tau + 1, k=-1), I)

    def affine(t):
        M, c, noise = shift.copy(), np.zeros(size), np.zeros((size, size))
        M[:D] = now - GAMMA * of.mean_A @ seen(t)
        c[:D], noise[:D, :D] = GAMMA * of.mean_b, GAMMA**2 * of_one_worker(of)
        return M, c, noise

    expected = []
    for t, law in enumerate(laws(np.tile(of.start, tau + 1), affine)):
        same = of_one_model(of, law, now)
        asked = {
            "asked": square(law, of.mean_A @ seen(t), -of.mean_b),
            "stale": square(law, of.mean_A @ (now - seen(t))),
        }
        expected.append({"slope": same["slope"], "gap": same["gap"], **asked})
    assert expected[1]["stale"] > 0
    assert expected[4]["stale"] == 0
    how = {"steps": STEPS, "one_worker": True, "varying": True, "more": TABLE}
    agree(
        moments.second_moments(
            with_table(tau, algorithms.asynchronous_sgd), of.problem, GAMMA, **how
        ),
        expected,
    )


def test_decentralized_sgd_on_a_ring(numbers):
    """X' = (X - gamma G) W; the columns of X, one a worker, one below the other."""
    of = numbers(False)
    W = np.array([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]]) / 3
    np.testing.assert_allclose(RING.W, W)
    mix = np.kron(W, np.eye(D))  # X W, where W is symmetric
    A = np.zeros((N * D, N * D))
    for n in range(N):
        A[n * D : (n + 1) * D, n * D : (n + 1) * D] = of.A[n]
    mean = np.kron(np.ones((1, N)) / N, np.eye(D))
    M, c = mix @ (np.eye(N * D) - GAMMA * A), GAMMA * mix @ of.b.ravel()
    expected = []
    for law in laws(np.tile(of.start, N), lambda t: (M, c, GAMMA**2 * SIGMA**2 / D * mix @ mix.T)):
        away = np.eye(N * D) - np.kron(np.ones((N, N)) / N, np.eye(D))
        more = {
            "consensus": square(law, away) / N,
            "asked": square(law, mean @ A, -of.mean_b),
            "stale": square(law, of.mean_A @ mean - mean @ A),
            "local": square(law, A, -of.b.ravel()) / N,
            "around": square(
                law,
                A - np.kron(np.ones((N, 1)), of.mean_A @ mean),
                np.tile(of.mean_b, N) - of.b.ravel(),
            )
            / N,
        }
        expected.append({**of_one_model(of, law, mean), **more})
    assert expected[-1]["consensus"] > 0.01
    assert expected[-1]["stale"] > 1e-5
    agree(
        moments.second_moments(
            moments.with_step(algorithms.decentralized_sgd, RING), of.problem, GAMMA, steps=STEPS
        ),
        expected,
    )


def test_runs_over_many_seeds_agree_with_exact_moments(numbers):
    """The loop that everybody uses; every round's mean is within 5 standard errors."""
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


@pytest.mark.long
def test_there_is_a_record_before_each_step_and_one_after_the_last(numbers):
    """However long the program is that is compiled for it; the records that two have in common are
    equal.
    """
    find = partial(
        moments.second_moments,
        moments.with_step(algorithms.minibatch_sgd),
        numbers(False).problem,
        GAMMA,
    )
    long = find(steps=512)["slope"]
    assert long.shape == (513,)
    for steps in (1, 511):
        np.testing.assert_allclose(find(steps=steps)["slope"], long[: steps + 1], rtol=1e-12)


def test_momentum_is_affine_and_has_numbers(numbers):
    """Its memory is part of the state: (x, m), m' = 0.9 m + g, x' = x - gamma m'."""
    of, I = numbers(False), np.eye(D)
    M = np.block([[I - GAMMA * of.mean_A, -0.9 * GAMMA * I], [of.mean_A, 0.9 * I]])
    c = np.concatenate([GAMMA * of.mean_b, -of.mean_b])
    B = np.concatenate([-GAMMA * I, I]) * SIGMA / np.sqrt(N * D)
    x = np.eye(D, 2 * D)
    expected = [
        of_one_model(of, law, x)
        for law in laws(np.concatenate([of.start, np.zeros(D)]), lambda t: (M, c, B @ B.T))
    ]

    def heavy_ball(of, compressor):
        return algorithms.minibatch_sgd(optax.sgd(of.learning_rate, momentum=0.9))

    agree(moments.second_moments(heavy_ball, of.problem, GAMMA, steps=STEPS), expected)


def first_worker_only(optimizer):
    """SGD that asks one worker, always the same."""
    inner = algorithms.sgd(optimizer)
    return inner._replace(
        query=lambda state, round_: inner.query(state, round_)._replace(
            workers=jnp.zeros(1, jnp.int32)
        )
    )


def now_and_then(optimizer):
    """Mini-batch SGD that rests in round 3."""
    inner = algorithms.minibatch_sgd(optimizer)

    def update(state, gradients, round):
        return inner.update(
            state,
            jax.tree.map(lambda leaf: jnp.where(round.step == 3, 0 * leaf, leaf), gradients),
            round,
        )

    return inner._replace(update=update)


def at_random(optimizer):
    """Mini-batch SGD that rests every other time, by chance."""
    inner = algorithms.minibatch_sgd(optimizer)

    def update(state, gradients, round):
        awake = jax.random.bernoulli(round.next_key())
        return inner.update(
            state, jax.tree.map(lambda leaf: jnp.where(awake, leaf, 0 * leaf), gradients), round
        )

    return inner._replace(update=update)


def clipped(optimizer):
    return algorithms.minibatch_sgd(optax.chain(optax.clip(100.0), optimizer))


def mantissas(optimizer):
    return algorithms.compressed_sgd(optimizer, compressors.clipping(1), allow_biased=True)


def scheduled(optimizer):
    return algorithms.minibatch_sgd(
        optax.chain(optax.scale_by_schedule(lambda count: 1 / (1 + count)), optimizer)
    )


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (first_worker_only, "worker 0 of 4 is queried in 100.0% of rounds"),
        (now_and_then, "rounds differ from each other"),
        (at_random, "draws random numbers other than"),
        pytest.param(clipped, "not affine", marks=pytest.mark.long),
        (mantissas, "not affine"),
        pytest.param(
            scheduled, "something other than floating-point numbers", marks=pytest.mark.long
        ),
    ],
)
def test_what_is_not_one_affine_map_is_refused(numbers, method, says):
    """Each has a round that looks affine at t = 0, with one key, or on small numbers."""
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
    r"expected a problem from problems\.quadratic": (
        algorithms.minibatch_sgd,
        lambda of: problems.robust_regression(N, D),
        False,
    ),
    "need equal Hessians": (algorithms.sgd, lambda of: of(False).problem, True),
    "expected one_worker=False": (algorithms.minibatch_sgd, lambda of: of(True).problem, True),
    "a custom sampler": (
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
        (N * N, rf"at least \d+ messages; expected messages = {N * N}"),
        (N * N + N - 1, "at least"),
        (N * N + N + 1, "which may be smaller"),
    ],
)
def test_a_round_with_another_number_of_messages_is_refused(numbers, messages, message):
    """With N * N + N - 1, too, although two of the messages share a row with the first key that is
    tried.
    """
    build = moments.with_compressor(algorithms.compressed_sgd, "server")
    with pytest.raises(ValueError, match=message):
        moments.second_moments(
            build, numbers(False).problem, GAMMA, steps=3, compression=1.0, messages=messages
        )
