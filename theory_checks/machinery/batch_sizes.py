"""The batches that DropCompute leaves, and the left sides of its theorems: sums over rounds,
weighted by the number of computed samples.

On quadratics, given the seconds of all micro-batches, a round is an affine map, which is computed
by applying the method's own `query` and `update` to the unit vectors. If the seconds of all rounds
are given, mean and covariance follow without sampling; this is the theorem for batches that are
independent of the gradients, conditional on the seconds. If the seconds take two values and the
noise depends on them, all possible tables of a round are enumerated with their probabilities, which
is again exact. On other problems, the project's loop is run with many seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import algorithms
import dsgd
from dsgd import clusters
from dsgd.base import Algorithm, Now, Problem
from theory_checks.machinery import moments
from theory_checks.machinery.rounds import Build, Rounds, Timetable, place_on_one_device
from theory_checks.machinery.statement import Method

_TABLES = 512  # number of tables in a program: one size, so that it is compiled once


class Times(NamedTuple):
    """Arrays that a compiled program takes as arguments: the seconds of each micro-batch, `[T, N,
    M]`, and the threshold tau.
    """

    seconds: Any
    threshold: Any


class Sums(NamedTuple):
    """Sums over T rounds.

    Args:
        total: K, the total number of computed samples; its expectation.
        slope: sum of b_i E|f'(x_i)|^2.
        gap: sum of b_i (E f(x_i) - f*).
        largest: b, the largest batch.
    """

    total: float
    slope: float
    gap: float
    largest: int


def simulate_worker(
    takes: Iterable[float], threshold: float, stop: str, spent: float = 0.0
) -> tuple[int, float]:
    """Returns how many micro-batches a worker computes, and for how long, by Algorithm 1 of
    DropCompute, lines 4 to 9.

    Args:
        takes: seconds of each micro-batch.
        threshold: tau, seconds of a period.
        stop: "preempt": at tau; "between": before the next micro-batch after tau.
        spent: seconds that the worker has spent in earlier rounds of the period.
    """
    clock, count = spent, 0
    for one in takes:
        if stop == "between" and clock > threshold:
            break
        if stop == "preempt" and clock + one >= threshold:
            clock = threshold
            break
        clock, count = clock + one, count + 1
    return count, clock - spent


def counts(seconds: np.ndarray, threshold: float, stop: str) -> np.ndarray:
    """Returns how many micro-batches each worker computes, `[..., N, M]` to `[..., N]`, by the
    recursion, independently of the method's code.
    """
    threshold = float(np.float32(threshold))
    rows = seconds.reshape(-1, seconds.shape[-1]).astype(np.float32).astype(float)
    return np.array([simulate_worker(row, threshold, stop)[0] for row in rows]).reshape(
        seconds.shape[:-1]
    )


def mark_computed(seconds: np.ndarray, threshold: float, stop: str) -> np.ndarray:
    """Returns which micro-batches are computed, bool `[..., M]`."""
    return np.arange(seconds.shape[-1]) < counts(seconds, threshold, stop)[..., None]


@cache
def _build_on_table(
    method: Method, stop: str, micro_batches: int, correction: str = "none"
) -> Build:
    """Returns a function that builds the method on the table of times in the instance's `more`. It
    returns the same object for equal arguments.
    """

    def build(of, compressor):
        options = {"stop": stop, "correction": correction}
        inner = method(
            algorithms.minibatch_sgd(optax.sgd(of.learning_rate)),
            of.more.threshold,
            micro_batches,
            **options,
        )
        now = Now(Timetable(of.more.seconds))

        def query(state, round):
            return inner.query(state, round._replace(now=now))

        def update(state, gradients, round):
            return inner.update(state, gradients, round._replace(now=now))

        return inner._replace(query=query, update=update)

    return build


class Maps(NamedTuple):
    """Rounds with given times as affine maps, x -> M x + c + B z, relative to the minimiser on both
    sides.

    Args:
        slopes: M, `[k, d, d]`.
        moved: c, `[k, d]`.
        noise: B, `[k, d, NMd]`.
        start: the start relative to the minimiser, `[d]`.
        A: the mean Hessian, `[d, d]`.
    """

    slopes: np.ndarray
    moved: np.ndarray
    noise: np.ndarray
    start: np.ndarray
    A: np.ndarray


def maps(
    method: Method,
    problem: Problem,
    seconds: np.ndarray,
    threshold: float,
    stop: str,
    learning_rate: float,
    correction: str = "none",
) -> Maps:
    """Returns the method's rounds on a quadratic as affine maps.

    Args:
        method: as `algorithms.drop_compute`.
        problem: a quadratic with the same data for all workers.
        seconds: seconds of each micro-batch, `[k, N, M]`, k at most 512.
        threshold, stop, correction: arguments of the method.
        learning_rate: gamma.

    Raises:
        ValueError: if k > 512.
    """
    k, N, M = seconds.shape
    if k > _TABLES:
        raise ValueError(f"maps: seconds of {k} rounds; expected at most {_TABLES}")
    table = np.ones((_TABLES, N, M), np.float32)
    table[:k] = seconds
    with jax.enable_x64(True):
        of = moments.instance(problem, learning_rate, more=Times(table[:1], np.float32(threshold)))
        build = _build_on_table(method, stop, M, correction)
        found = np.asarray(
            _rounds(
                of._replace(root=jnp.eye(of.b.shape[1])),
                table,
                build=build,
                gradient=problem.gradient,
            )
        )[:k]
    A, best, start_offset = center(problem)
    start, d = found[:, 0], len(A)
    columns = np.moveaxis(found[:, 1:] - start[:, None], 1, 2)
    slopes, noise = columns[..., :d], columns[..., d:]
    return Maps(slopes, start + slopes @ best - best, noise, start_offset, A)


def center(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the mean Hessian of a quadratic, its minimiser, and the start relative to the
    minimiser.
    """
    with jax.enable_x64(True):
        of = moments.instance(problem, 1.0)
        A, b = (np.asarray(part).mean(axis=0) for part in (of.A, of.b))
        best = np.linalg.solve(A, b)
        return A, best, np.asarray(of.start) - best


@partial(jax.jit, static_argnames=("build", "gradient"))
def _rounds(of, seconds, *, build, gradient):
    """Returns the model after a round from 0, from each unit vector, and from 0 with each unit of
    noise, `[k, 1 + d + NMd, d]`. These determine the affine map.
    """

    def everything(of, seconds):
        (N, d), M = of.b.shape, seconds.shape[2]
        points = jnp.eye(1 + d + N * M * d)[:, 1:]

        def model_after(seconds, point):
            rounds = Rounds(
                build,
                gradient,
                of._replace(more=of.more._replace(seconds=seconds[None])),
                jax.random.key(0),
                None,
            )
            return rounds.next_state(
                jnp.int32(0), point[:d], point[d:].reshape(N, M, d), rounds.silence(1)
            )

        return jax.vmap(jax.vmap(model_after, (None, 0)), (0, None))(seconds, points)

    return place_on_one_device(everything)(of, seconds)


class Path(NamedTuple):
    """Moments given the times, before each round.

    Args:
        batches: b_i, `[T]`.
        slope: E|f'(x_i)|^2, `[T]`.
        gap: E f(x_i) - f*, `[T]`.
    """

    batches: np.ndarray
    slope: np.ndarray
    gap: np.ndarray

    @property
    def sums(self) -> Sums:
        b = self.batches
        return Sums(float(b.sum()), float(b @ self.slope), float(b @ self.gap), int(b.max()))


def conditional(
    method: Method,
    problem: Problem,
    seconds: np.ndarray,
    threshold: float,
    stop: str,
    learning_rate: float,
    correction: str = "none",
) -> Path:
    """Returns exact moments given the times, for noise that is independent of them.

    Args:
        method: as `algorithms.drop_compute`.
        problem: a quadratic with the same data for all workers.
        seconds: seconds of each micro-batch, `[T, N, M]`, T at most 512.
        threshold, stop, correction: arguments of the method.
        learning_rate: gamma, of the method.
    """
    d = problem.data.b.shape[1]
    of = maps(method, problem, seconds, threshold, stop, learning_rate, correction)
    noise = (problem.constants.noise or 0.0) ** 2 / d
    m, S, slope, gap = of.start, np.zeros((d, d)), list[float](), list[float]()
    for M, c, B in zip(of.slopes, of.moved, of.noise, strict=True):
        both = S + np.outer(m, m)
        slope.append(np.trace(of.A @ both @ of.A))
        gap.append(np.trace(of.A @ both) / 2)
        m, S = M @ m + c, M @ S @ M.T + noise * B @ B.T
    return Path(counts(seconds, threshold, stop).sum(axis=1), np.array(slope), np.array(gap))


class Pairs(NamedTuple):
    r"""Latencies with two values, which determine the noise: $\xi = -\sqrt{p / (1 - p)}$ for fast
    micro-batches and $\sqrt{(1 - p) / p}$ for slow ones, with mean 0 and variance 1.

    Args:
        fast, slow: seconds.
        chance: p, probability of the slow value.
    """

    fast: float
    slow: float
    chance: float

    def tables(self, N: int, M: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns all tables of a round `[2^(NM), N, M]`, their noise, and their probabilities
        `[2^(NM)]`.
        """
        slow = np.array(list(product((False, True), repeat=N * M))).reshape(-1, N, M)
        odds = np.sqrt(self.chance / (1 - self.chance))
        chances = np.where(slow, self.chance, 1 - self.chance).prod(axis=(1, 2))
        return np.where(slow, self.slow, self.fast), np.where(slow, 1 / odds, -odds), chances


class Ends(NamedTuple):
    """Results of rounds whose times and noise are dependent.

    Args:
        sums: sums of the theorems.
        mean: mean of the model after the last round, relative to the minimiser, `[d]`.
        map: the map of the mean, x -> M x + c, `[d, d + 1]`.
    """

    sums: Sums
    mean: np.ndarray
    map: np.ndarray

    @property
    def rest(self) -> np.ndarray:
        """Returns the mean state to which the rounds converge, the fixed point of `map`."""
        M, c = self.map[:, :-1], self.map[:, -1]
        return np.linalg.solve(np.eye(len(c)) - M, c)


def dependent(
    method: Method,
    problem: Problem,
    pairs: Pairs,
    threshold: float,
    stop: str,
    learning_rate: float,
    *,
    steps: int,
    noise: float,
    M: int,
) -> Ends:
    r"""Returns exact results for noise $\sigma \xi v$ of each micro-batch that is a function of its
    own seconds, with a unit vector v.

    Args:
        method: as `algorithms.drop_compute`.
        problem: a quadratic without noise, with the same data for all workers.
        pairs: joint distribution of seconds and noise.
        threshold, stop: arguments of the method.
        learning_rate: gamma, of the method.
        steps: T.
        noise: sigma.
        M: number of micro-batches.
    """
    N, d = problem.data.b.shape
    seconds, xi, chances = pairs.tables(N, M)
    of = maps(method, problem, seconds, threshold, stop, learning_rate)
    z = noise * xi[..., None] * np.full(d, d**-0.5)
    # One matrix for each table, acting on (x - x*, 1).
    whole = np.zeros((len(seconds), d + 1, d + 1))
    whole[:, :d, :d], whole[:, :d, d], whole[:, d, d] = (
        of.slopes,
        of.moved + np.einsum("kdz,kz->kd", of.noise, z.reshape(len(z), -1)),
        1,
    )
    mean, squares = (
        np.tensordot(chances, whole, 1),
        np.einsum("k,kab,kcd->acbd", chances, whole, whole).reshape((d + 1) ** 2, -1),
    )
    first, size = np.append(of.start, 1), (d + 1) ** 2
    # The sum over all rounds is carried together with the second moments, so that a matrix power
    # computes both.
    adding = np.block([[squares, np.zeros((size, size))], [np.eye(size), np.eye(size)]])
    added = np.linalg.matrix_power(adding, steps) @ np.append(
        np.outer(first, first), np.zeros(size)
    )
    every = added[size:].reshape(d + 1, d + 1)[:d, :d]
    batch = float(chances @ counts(seconds, threshold, stop).sum(axis=1))
    slope, gap = batch * np.trace(of.A @ every @ of.A), batch * np.trace(of.A @ every) / 2
    last = (np.linalg.matrix_power(mean, steps) @ first)[:d]
    return Ends(Sums(batch * steps, float(slope), float(gap), N * M), last, mean[:d])


@cache
def _factory(method: Method, stop: str, micro_batches: int) -> Callable[..., Algorithm]:
    """Returns a function (learning rate, threshold) -> the method."""

    def factory(learning_rate, threshold):
        return method(
            algorithms.minibatch_sgd(optax.sgd(learning_rate)), threshold, micro_batches, stop=stop
        )

    return factory


class Seeds(NamedTuple):
    """Results of each run.

    Args:
        total: number of samples that were computed, `[seeds]`.
        slope: sum of b_i |f'(x_i)|^2, `[seeds]`.
    """

    total: np.ndarray
    slope: np.ndarray


def simulate(
    method: Method,
    problem: Problem,
    cluster: clusters.Cluster,
    threshold: float,
    stop: str,
    learning_rate: float,
    *,
    steps: int,
    micro_batches: int,
    seeds: int,
    seed: int,
) -> Seeds:
    """Runs the project's loop with several seeds.

    Args:
        method: as `algorithms.drop_compute`.
        problem: with batches of one sample.
        cluster: with seconds that are independent of the samples.
        threshold, stop, micro_batches: arguments of the method.
        learning_rate: gamma.
        steps: T.
        seeds, seed: number of runs, and the seed of their key.
    """
    with jax.enable_x64(True):
        axes: Any = {"learning_rate": np.array([learning_rate]), "threshold": np.array([threshold])}
        factory = _factory(method, stop, micro_batches)
        found = dsgd.sweep(
            factory,
            problem,
            steps=steps,
            key=jax.random.key(seed),
            seeds=seeds,
            cluster=cluster,
            mesh=1,
            **axes,
        )
    # A record contains the number of samples of the preceding round.
    b = found.history["samples"][0, 0, :, 1:].sum(axis=-1)
    return Seeds(b.sum(axis=-1), (b * found.history["grad_sqnorm"][0, 0, :, :-1]).sum(axis=-1))
