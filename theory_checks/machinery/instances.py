"""Random problems with exactly known constants, and graphs, on which statements are tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

import topologies
from dsgd import problems
from dsgd.base import Constants, Problem
from dsgd.graphs.topology import Topology
from dsgd.problems.quadratic import FromZero, Quadratic
from theory_checks.machinery.statement import Condition, Draws, need

HESSIANS = ("isotropic", "equal", "different", "indefinite")
SMOOTHNESS = 1.5
"""Of instances that state no other: not 1, so that a bound with a wrong power of L is seen."""


def quadratic(
    draws: Draws,
    workers: int,
    dimension: int,
    *,
    hessians: Sequence[str] = HESSIANS,
    noisy: bool = True,
    at_zero: bool = False,
    alike: bool = False,
) -> Problem:
    """Returns a random quadratic problem.

    Args:
        draws: source of the random numbers.
        workers, dimension: N, d.
        hessians: kinds to choose from. "isotropic": all A_n = L I, for which most bounds are tight;
            "equal": one matrix for all workers, with eigenvalues over several orders of magnitude;
            "different": one matrix for each worker; "indefinite": different matrices, one of which
            has negative eigenvalues.
        noisy: whether gradients may have noise.
        at_zero: whether to start at 0 instead of a random point.
        alike: whether all workers have the same data, provided that their Hessians are equal.
    """
    kind = draws.choice(hessians)
    L = draws.real(0.2, 5.0)
    noise = draws.real(0.0, 3.0) if noisy else 0.0
    spread = 0.0 if alike else draws.real(0.0, 3.0)
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    A = _hessians(kind, L, workers, dimension, rng)
    b = spread * rng.normal(size=(workers, dimension)) + rng.normal(size=dimension)
    near = draws.choice((True, False))  # near the minimiser noise dominates
    minimizer = np.linalg.solve(A.mean(axis=0), b.mean(axis=0))
    start = (
        None
        if at_zero
        else (minimizer if near else 0) + (0.1 if near else 3) * rng.normal(size=dimension)
    )
    return problems.quadratic(A, b, noise=noise, start=start)


def _hessians(kind: str, L: float, N: int, d: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "isotropic":
        return np.broadcast_to(L * np.eye(d), (N, d, d))
    count = 1 if kind == "equal" else N
    eigenvalues = L * 10 ** rng.uniform(-3, 0, (count, d))
    bases = np.linalg.qr(rng.normal(size=(count, d, d)))[0]
    if kind == "indefinite" and N > 1:
        eigenvalues[0] *= -0.3 / N  # for one worker only, so that the mean stays positive definite
        eigenvalues[1:] = np.maximum(eigenvalues[1:], 0.4 * L)
    A = np.einsum("nij,nj,nkj->nik", bases, eigenvalues, bases)
    return np.broadcast_to((A + np.swapaxes(A, 1, 2)) / 2, (N, d, d))


def wells(
    workers: int,
    dimension: int,
    *,
    start: ArrayLike,
    smoothness: float = SMOOTHNESS,
    noise: float = 0.0,
    heterogeneity: float = 0.0,
    samples: int = 8,
    batch_size: int = 1,
    replacement: bool = True,
    seed: int = 0,
) -> Problem:
    r"""Returns a non-convex problem with minima and maxima in all directions, whose constants are
    exact and the same everywhere.

    $$ f_n(x) = \frac1M \sum_m \Big( L \sum_i (1 - \cos(x_i + s_i)) + c_{nm}^T x \Big), \qquad
    \sum_{n,m} c_{nm} = 0 $$

    $f'' = L\, \mathrm{diag}(\cos(x + s))$ is $\pm L$ at minima and maxima, and $f \ge 0$ is 0 at $x
    = -s$. The gradients of samples differ by constants: $\sigma^2 = \frac1B \frac1M \sum_m |c_{nm}
    - c_n|^2$ (without replacement times $\frac{M-B}{M-1}$) for every n, and $\varsigma^2 = \frac1N
    \sum_n |c_n|^2$. Near a minimum, with little noise, f is $\frac L2 |x + s|^2$, for which most
    bounds are tight.

    Args:
        workers, dimension: N, d.
        start: s, `[d]` or one number for all elements: the distance of x = 0, where methods start,
            from a minimum; pi is a maximum.
        smoothness: L.
        noise: root mean square of the difference between the gradient of a sample and that of its
            worker: sigma if B = 1.
        heterogeneity: varsigma; 0 if N = 1.
        samples, batch_size, replacement: M, B, and whether a sample may be drawn twice in a batch.
        seed: seed of c.

    Returns:
        A problem that starts at 0. Problems of the same shape share one program.
    """
    rng = np.random.default_rng(seed)
    shape = (workers, samples, dimension)
    deviations = _rescale(rng.normal(size=shape), noise, axis=1)
    common = (
        _rescale(rng.normal(size=(workers, 1, dimension)), heterogeneity, axis=0)
        if workers > 1
        else 0.0
    )
    s = np.broadcast_to(np.asarray(start, float), shape)
    inputs, L = np.stack([deviations + common, s], axis=2), np.full(shape[:2], smoothness)
    fewer = 1.0 if replacement else (samples - batch_size) / (samples - 1)
    return Problem(
        init=FromZero(dimension),
        loss=_loss_of_wells,
        # `truncate=None`, since the loss is a mean without weights
        sample=replace(
            problems.minibatch(batch_size, replacement),
            local_samples=(samples,) * workers,
            truncate=None,
        ),
        data=problems.Examples(
            jnp.asarray(inputs, float), jnp.asarray(L, float), jnp.ones(shape[:2])
        ),
        constants=Constants(
            smoothness=smoothness,
            minimum=0.0,
            minimizer=-s[0, 0],
            noise=noise * float(np.sqrt(fewer / batch_size)),
            heterogeneity=heterogeneity if workers > 1 else 0.0,
        ),
        name=f"wells({workers} workers, d = {dimension})",
    )


def _rescale(c: np.ndarray, size: float, axis: int) -> np.ndarray:
    """Subtracts the mean of c, `[..., d]`, along an axis and scales it such that its mean square
    along the axis is size^2.
    """
    c = c - c.mean(axis=axis, keepdims=True)
    return (
        size * c / np.sqrt(np.mean(np.sum(c**2, axis=-1, keepdims=True), axis=axis, keepdims=True))
    )


def _loss_of_wells(x: jax.Array, batch: problems.Examples) -> jax.Array:
    c, s = batch.inputs[:, 0], batch.inputs[:, 1]
    # 2 sin^2 of half the angle, since 1 - cos loses digits near a minimum.
    return jnp.mean(
        2 * batch.targets * jnp.sum(jnp.sin((x[None] + s) / 2) ** 2, axis=1)
        + jnp.sum(c * x[None], axis=1)
    )


def bowl(
    workers: int,
    dimension: int,
    *,
    distance: float,
    smoothness: float = SMOOTHNESS,
    noise: float = 0.0,
    heterogeneity: float = 0.0,
    seed: int = 0,
) -> Problem:
    r"""Returns the problem $f_n(x) = \frac L2 |x|^2 - b_n^T x$, starting at 0, for which the
    smoothness inequality is tight.

    Args:
        workers, dimension: N, d.
        distance: distance of the minimiser from 0 in each direction.
        smoothness, noise, heterogeneity: L, sigma, varsigma (0 if N = 1).
        seed: seed of the differences between workers.
    """
    b = np.full((workers, dimension), smoothness * distance)
    if workers > 1:
        b = b + _rescale(
            np.random.default_rng(seed).normal(size=(workers, dimension)), heterogeneity, axis=0
        )
    return problems.quadratic(np.full((workers, dimension), smoothness), b, noise=noise)


def unit_bowl(workers: int, start: Sequence[float], noise: float = 0.0) -> Problem:
    """Returns the problem f_n(x) = |x|^2 / 2 of all workers, from `start`."""
    shape = (workers, len(start))
    return problems.quadratic(np.ones(shape), np.zeros(shape), noise=noise, start=start)


def uneven(problem: Problem) -> Problem:
    """Returns a quadratic of N workers and d elements, N a divisor of d, in which the noise of
    worker n is confined to the n-th part of the vector, which starts at worker n in a ring
    all-reduce.
    """
    N, d = problem.data.b.shape
    part = (
        np.kron(np.eye(N), np.ones(d // N)) * np.sqrt(N) * np.asarray(problem.data.scale)[:, None]
    )
    return problem._replace(
        data=problem.data._replace(scale=jnp.asarray(part, float)), sample=_sample_unevenly
    )


def _sample_unevenly(key: jax.Array, data: Quadratic) -> Quadratic:
    return data._replace(
        noise=data.scale * jax.random.normal(key, data.b.shape, data.b.dtype), scale=jnp.zeros(())
    )


def sample_noise(problem: Problem) -> float:
    """Returns sigma of a single sample of a `wells` problem, which does not depend on the batch
    size.
    """
    c = np.asarray(problem.data.inputs[:, :, 0], np.float64)
    return float(
        np.sqrt(np.mean(np.sum((c - c.mean(axis=1, keepdims=True)) ** 2, axis=2), axis=1).max())
    )


STARTS = {"near": (0.0, 0.1), "far": (0.0, 2.0), "hilltop": (np.pi, 0.1)}
"""Distributions of s in `random_wells`: mean and standard deviation of each element."""


def random_wells(
    draws: Draws,
    workers: int,
    dimension: int,
    *,
    batches: Sequence[tuple[int, bool]] = ((1, True),),
    alike: bool = False,
) -> Problem:
    """Returns a `wells` problem with random parameters.

    Args:
        draws: source of the random numbers.
        workers, dimension: N, d.
        batches: pairs (B, whether with replacement) to choose from. Each needs its own program.
        alike: whether all workers have the same data, up to the noise of their samples.
    """
    batch_size, replacement = draws.choice(batches)
    mean, spread = STARTS[draws.choice(tuple(STARTS))]
    seed = draws.integer(0, 2**32 - 1)
    return wells(
        workers,
        dimension,
        start=mean + spread * np.random.default_rng(seed).normal(size=dimension),
        smoothness=draws.real(0.2, 5.0),
        noise=10 ** draws.real(-2.0, 0.5),
        heterogeneity=0.0 if alike else draws.real(0.0, 1.0),
        batch_size=batch_size,
        replacement=replacement,
        seed=seed,
    )


def full_batch(problem: Problem) -> Problem:
    """Returns the same problem with batches of all samples of a worker, that is, without noise."""
    sampler = replace(problem.sampler, draw=_all, batch_size=problem.max_local_samples)
    return problem._replace(sample=sampler, constants=problem.constants._replace(noise=0.0))


def _all(key: jax.Array, data):
    return data


@cache
def graphs() -> tuple[Topology, ...]:
    """Returns undirected graphs of 2 to 8 workers, sparse and dense."""
    return (
        topologies.ring(2),
        topologies.chain(3),
        topologies.complete(4),
        topologies.star(5),
        topologies.erdos_renyi(6, 0.6, 1),
        topologies.ring(8),
    )


class Known(NamedTuple):
    """Constants of a problem that bounds need.

    Args:
        gap: D = f(x_1) - f*, or f(x_1) minus a lower bound of f.
        smoothness: L.
        noise: sigma, of the gradient of one worker.
        heterogeneity: varsigma if it holds everywhere; None: it is only known on a path.
    """

    gap: float
    smoothness: float
    noise: float
    heterogeneity: float | None


def constants(problem: Problem) -> Known:
    """Returns the constants of a problem.

    Raises:
        ValueError: if its smoothness, minimum or noise is unknown, or if it starts at the minimum.
    """
    of = problem.constants
    missing = [name for name in ("smoothness", "minimum", "noise") if getattr(of, name) is None]
    if missing:
        raise ValueError(
            f"{problem.name}: unknown {', '.join(missing)}; expected a problem with all "
            "constants, such as problems.quadratic"
        )
    gap = _gap(problem)
    if not gap > 0:
        raise ValueError(
            f"{problem.name}: f(x_1) - f* = {gap:.3g}; expected a start above the minimum"
        )
    everywhere = of.heterogeneity if equal_hessians(problem) else None
    return Known(gap, float(of.smoothness or 0.0), float(of.noise or 0.0), everywhere)


def _gap(problem: Problem) -> float:
    """Returns f(x_1) - f*. For a quadratic it is computed from the distance to the minimiser, since
    the difference would lose digits.
    """
    with jax.enable_x64(True):
        first = problem.init(jax.random.key(0))
        if isinstance(problem.data, Quadratic):
            A, delta = (
                np.asarray(problem.data.A, np.float64).mean(axis=0),
                np.asarray(first - problem.constants.minimizer, np.float64),
            )
            return float(delta @ (A * delta if A.ndim == 1 else A @ delta)) / 2
        return float(_loss_of_all(problem.loss, first, problem.data)) - float(
            problem.constants.minimum or 0.0
        )


def equal_hessians(problem: Problem) -> bool:
    """Whether the problem's heterogeneity is the same everywhere: for quadratics, whether all
    workers have the same Hessian.
    """
    if not isinstance(problem.data, Quadratic):
        return True
    A = np.asarray(problem.data.A)
    return bool(np.abs(A - A[:1]).max() <= 1e-12 * np.abs(A).max())


@partial(jax.jit, static_argnames="loss")
def _loss_of_all(loss, params, data):
    return jnp.mean(jax.vmap(loss, (None, 0))(params, data))


def same_heterogeneity(problem: Problem) -> Condition:
    """Returns the condition that (1/N) sum |f_n' - f'|^2 has one bound everywhere."""
    given = f"{problem.name} has an unknown heterogeneity, or different Hessians"
    return Condition(
        "one varsigma for all points", constants(problem).heterogeneity is not None, given
    )


def same_workers(problem: Problem, topology: Topology) -> Condition:
    """Returns the condition that the graph has as many workers as the problem."""
    return Condition(
        "as many workers as the problem has",
        topology.n == problem.workers,
        f"{topology.name} has {topology.n} nodes for {problem.workers} workers",
    )


def one_matrix(problem: Problem, topology: Topology, matrix: str, holds: bool) -> list[Condition]:
    """Returns the conditions that the graph has as many workers as the problem, and one matrix of
    this kind for all rounds.

    Args:
        problem, topology: of N workers each.
        matrix: the kind of the matrix, in words.
        holds: whether the graph's matrix is of this kind.
    """
    return [
        same_workers(problem, topology),
        Condition(
            f"one {matrix} W",
            holds and topology.period == 1,
            f"{topology.name} is not {matrix}, or a schedule",
        ),
    ]


def require_step(
    where: str, learning_rate: float, name: str, limit: float, *, strictly: bool = False
) -> None:
    """Raises a ValueError if a bound is evaluated at a step size that its theorem does not
    allow.
    """
    need(where, [step_below(name, limit, learning_rate, strictly=strictly)])


def step_below(
    name: str, limit: float, learning_rate: float, *, strictly: bool = False, symbol: str = "gamma"
) -> Condition:
    """Returns the condition that the step size is positive and at most the limit, or strictly below
    it.
    """
    holds = 0 < learning_rate < limit if strictly else 0 < learning_rate <= limit * (1 + 1e-12)
    return Condition(
        f"0 < {symbol} {'<' if strictly else '<='} {name}",
        holds,
        f"{symbol} = {learning_rate:.6g}, {name} = {limit:.6g}",
    )
