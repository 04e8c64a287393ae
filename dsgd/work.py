"""How much each worker computes in a round: local batches of unequal sizes, micro-batches that
count or do not.

    algorithms.unequal_work(algorithms.minibatch_sgd(optax.sgd(0.1)), work.local_batches([32, 16,
    16, 8], batch_size=8, micro_batches=4))

Sizes, and what counts, may be traced values, which change while training: M is static. Of those
nothing can be refused: numbers out of range are cut to it, and where nobody computes anything,
gradients are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpy.typing import ArrayLike

from dsgd import array_likes, checks
from dsgd.base import Problem, Work

__all__ = ["local_batches", "micro_batches", "weighted"]

AVERAGES = ("samples", "workers")


@checks.arguments
def local_batches(
    sizes: ArrayLike | jax.Array,
    *,
    batch_size: int,
    micro_batches: int = 1,
    average: str = "samples",
    present: ArrayLike | jax.Array | None = None,
) -> Work:
    r"""Worker n computes $b_n$ samples, in micro-batches of B of which the last is what remains.

    $$ \frac1N \sum_n g_n = \sum_n r_n \bar g_n, \qquad r_n = \frac{b_n}{\sum_k b_k} \quad
    \text{(eq. 9 of Cannikin)} $$

    $\bar g_n$ is the mean over worker n's samples. A micro-batch that is not full costs as much as
    a full one where it is simulated.

    Args:
        sizes: b, integers `[N]`, at most M B.
        batch_size: B, of the problem.
        micro_batches: M.
        average: "samples", the equation: all samples count the same; "workers": all $\bar g_n$ do,
            $r_n = 1 / N$ (0 of a worker without samples).
        present: who takes part, bool `[N]` (`Round.present`): the sums, and N, are of those, as is
            the mean that methods take; None: everybody.

    Raises:
        ValueError: sizes that are no integers `[N]`, negative, above M B, or all 0; batch_size or
            micro_batches < 1, or M B >= 2^31; another average; present that is not bool `[N]`.

    Source: Nie et al., "Cannikin", section 4.3; the weights are those of LB-BSP.
    """
    B = checks.positive_int("local_batches: batch_size", batch_size, most=None)
    M = checks.positive_int("local_batches: micro_batches", micro_batches, most=None)
    if np.iinfo(np.int32).max < M * B:
        numbers = f"{checks.shown(M)[:30]} micro-batches of {checks.shown(B)[:30]}"
        raise ValueError(
            f"local_batches: {numbers}: need fewer than 2^31 samples, which are counted in int32"
        )
    each = _array(sizes)
    if each.ndim != 1 or not jnp.issubdtype(each.dtype, jnp.integer):
        raise ValueError(f"local_batches: sizes = {checks.typed(each)}: need integers [N]")
    if isinstance(each, np.ndarray):
        if not each.size or each.min() < 0 or each.max() > M * B:
            most = f"0 to {M * B}, the capacity ({M} micro-batches of {B})"
            raise ValueError(
                f"local_batches: sizes = {checks.shown(each.tolist())}: need integers [N] from "
                f"{most}"
            )
        _need_some("local_batches: sizes", each)
    xp, each = _library(each), each.astype(np.int32)
    filled = xp.clip(each[:, None] - B * np.arange(M, dtype=np.int32)[None], 0, B).astype(np.int32)
    return _averaged("local_batches", filled, average, present)


@checks.arguments
def micro_batches(
    counted: ArrayLike | jax.Array,
    *,
    average: str = "samples",
    present: ArrayLike | jax.Array | None = None,
) -> Work:
    r"""Worker n computes some of M micro-batches, each a whole batch of the problem.

    $$ \frac1N \sum_n g_n = \frac{\sum_{nm} c_{nm} \bar g_{nm}}{\sum_{nm} c_{nm}} $$

    Args:
        counted: c, bool `[N, M]`.
        average: "samples", the equation: all micro-batches that count do so equally; "workers": all
            workers, whatever each has (0 of one without any).
        present: as of `local_batches`.

    Raises:
        ValueError: not bool `[N, M]`, or nothing counts; another average; present that is not bool
            `[N]`.
    """
    each = _array(counted)
    if each.ndim != 2 or each.dtype != bool or not each.size:
        raise ValueError(f"micro_batches: counted = {checks.typed(each)}: need bool [N, M]")
    if isinstance(each, np.ndarray):
        _need_some("micro_batches: counted", each)
    return _averaged("micro_batches", each, average, present)


@checks.arguments
def weighted(weights: ArrayLike | jax.Array) -> Work:
    r"""Whole micro-batches with weights of their own, $g_n = \sum_m w_{nm} \bar g_{nm}$; those of
    weight 0 are not computed.

    Args:
        weights: w, floating `[N, M]`.

    Raises:
        ValueError: not floating `[N, M]`, a weight that is negative, infinite or NaN, or all 0.
    """
    each = _array(weights)
    if each.ndim != 2 or not jnp.issubdtype(each.dtype, jnp.floating) or not each.size:
        raise ValueError(
            f"weighted: weights = {checks.typed(each)}: need floating-point numbers [N, M]"
        )
    if isinstance(each, np.ndarray):
        _need_weights("weighted: weights", each)
        array_likes.kept("weighted: weights", each)
        _need_some("weighted: weights", each)
    return Work(each != 0, each)


def in_samples(
    work: Work, batch_size: int | None = None, batch_sizes: Sequence[int] | None = None
) -> Work:
    """The same work with `samples` as int32, within what there is; that of problems without a batch
    size in whole draws.

    Args:
        work: of N workers.
        batch_size, batch_sizes: of the problem.
    """
    most = (batch_size or 1) if batch_sizes is None else np.asarray(batch_sizes, np.int32)[:, None]
    if work.samples.dtype == bool:
        return work._replace(samples=jnp.where(work.samples, most, 0).astype(jnp.int32))
    samples = jnp.asarray(work.samples)
    if samples.dtype.itemsize < 4:  # int8 has no room for the batch size, to which they are cut
        samples = samples.astype(jnp.int32)
    return work._replace(samples=jnp.clip(samples, 0, most).astype(jnp.int32))


def of_each(work: Work) -> jax.Array:
    """What the weights of each worker's work add up to, `[N]`: of what is computed."""
    return jnp.sum(jnp.where(work.samples > 0, work.weights, 0), axis=1)


def need(where: str, work: Any, N: int, problem: Problem) -> None:
    """Raises a ValueError where it is no work for N workers on this problem.

    Args:
        where: how the message begins.
        work: what may be anything.
        N: number of workers.
        problem: whose batches are cut, or not.
    """
    need_arrays(where, work, N)
    samples = _array(work.samples)
    most, cut = problem.batch_size or 1, problem.take is not None
    whole = f"{where} in samples, but {problem.name} cannot cut its batches (it has no take); need"
    sizes = np.full(N, most) if problem.batch_sizes is None else np.asarray(problem.batch_sizes)
    if isinstance(samples, Tracer):
        if samples.dtype != bool and most > 1 and not cut:
            raise ValueError(f"{whole} bool samples, for whole micro-batches")
    elif samples.dtype != bool:
        if samples.max() > most:
            raise ValueError(
                f"{where} of {samples.min()} to {samples.max()} samples in a micro-batch; need 0 "
                f"to {most} ({problem.name})"
            )
        if (over := samples.max(axis=1) > sizes).any():
            n = int(over.argmax())
            few = f"worker {n} has {sizes[n]} samples, fewer than a batch ({problem.name}), and draws without replacement"
            fix = "give it at most as many in each micro-batch, bool samples for whole micro-batches, or pass replacement=True to the problem"
            raise ValueError(
                f"{where} of {samples[n].max()} samples in a micro-batch of worker {n}; {few}: "
                f"{fix}"
            )
        if not cut and not np.isin(samples, (0, most)).all():
            raise ValueError(f"{whole} 0 or {most}")


def need_arrays(where: str, work: Any, N: int | None) -> None:
    """Raises a ValueError where it is work for no problem: its arrays are not those of N workers
    (None: of any number), or negative, or nobody computes anything."""
    if not isinstance(work, Work):
        raise ValueError(f"{where} as {checks.typed(work)}; need a dsgd.Work, of dsgd.work")
    for name, array in (("samples", work.samples), ("weights", work.weights)):
        kinds, words = (
            ((jnp.integer, np.bool_), "integers or bool")
            if name == "samples"
            else ((jnp.floating,), "floating-point numbers")
        )
        shape = getattr(array, "shape", ())
        fits = (
            len(shape) == 2
            and shape[0] == (shape[0] if N is None else N)
            and shape == work.samples.shape
            and all(shape)
        )
        if not fits or not any(jnp.issubdtype(array.dtype, kind) for kind in kinds):
            rows = "N" if N is None else N
            raise ValueError(
                f"{where} with {name} as {checks.typed(array)}; need {words} [{rows}, M], M >= 1, "
                "samples and weights alike"
            )
    samples, weights, draws = *map(_array, work[:2]), work.draws
    if draws is not None and (
        jnp.shape(draws) != samples.shape[:1]
        or not jnp.issubdtype(jnp.result_type(draws), jnp.integer)
    ):
        raise ValueError(
            f"{where} with draws as {checks.typed(draws)}; expected None, or int32 "
            f"[{samples.shape[0]}]"
        )
    if not isinstance(samples, Tracer):
        if samples.min() < 0:
            raise ValueError(
                f"{where} of {samples.min()} to {samples.max()} samples in a micro-batch; need at "
                "least 0"
            )
        _need_some(f"{where} with samples", samples)
    if not isinstance(weights, Tracer):
        _need_weights(f"{where} with weights", weights)


def _averaged(function: str, samples: Any, average: str, present: Any) -> Work:
    """Micro-batches of so many samples, `[N, M]`, of those who are there, with their weights."""
    if average not in AVERAGES:
        raise ValueError(
            f"{function}: average = {average!r}: need {' or '.join(map(repr, AVERAGES))}"
        )
    number = samples.shape[0]
    if present is not None:
        there = _array(present)
        if there.shape != samples.shape[:1] or there.dtype != bool:
            raise ValueError(f"{function}: present = {checks.typed(there)}: need bool [{number}]")
        samples, number = (
            _library(samples, there).where(there[:, None], samples, np.zeros((), samples.dtype)),
            there.sum(),
        )
    xp = _library(samples)
    total = xp.sum(samples, axis=1 if average == "workers" else None, keepdims=True, dtype=np.int32)
    kind = jnp.result_type(float)
    weights = samples.astype(kind) / xp.maximum(total, 1).astype(kind)
    return Work(samples, weights if average == "workers" else weights * xp.asarray(number, kind))


def _array(values: Any) -> Any:
    """As it is where it is traced, else a copy of numpy's: a caller may refill its arrays."""
    return values if isinstance(values, Tracer) else np.array(values)


def _library(*arrays: Any) -> Any:
    """What is known stays so: numpy's, of numpy's arrays."""
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


def _need_some(what: str, values: np.ndarray) -> None:
    if not values.any():
        raise ValueError(f"{what}: 0 for everybody; need somebody who computes something")


def _need_weights(what: str, weights: np.ndarray) -> None:
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(
            f"{what} {weights.min():g} to {weights.max():g}: need finite numbers, at least 0"
        )
