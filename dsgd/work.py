"""Local work: how much each worker computes in a round, in batches of unequal sizes or in
micro-batches.

    algorithms.with_local_work(
        algorithms.minibatch_sgd(optax.sgd(0.1)),
        work.local_batches([32, 16, 16, 8], batch_size=8, micro_batches=4),
    )

Sizes and masks may be traced values that change during training; the number M of micro-batches is
static. Traced values cannot be validated: numbers of samples are clipped to the valid range, and if
no worker computes anything, gradients are 0.
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
from dsgd.base import LocalWork, Problem

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
) -> LocalWork:
    r"""Returns local work in which worker n computes $b_n$ samples, in micro-batches of B
    samples.

    The last micro-batch of a worker may be smaller. With the default weights, the mean of the
    workers' gradients is

    $$ \frac1N \sum_n g_n = \sum_n r_n \bar g_n, \qquad r_n = \frac{b_n}{\sum_k b_k} \quad
    \text{(eq. 9 of Cannikin)} $$

    where $\bar g_n$ is the mean over worker n's samples. In the simulation a partial micro-batch
    costs as much computation as a full one.

    Args:
        sizes: b, integers `[N]`, from 0 to M B.
        batch_size: B, the batch size of the problem.
        micro_batches: M, the number of micro-batches.
        average: "samples": all samples have equal weight, as in the equation; "workers": all
            $\bar g_n$ have equal weight, $r_n = 1 / N$ (0 for a worker without samples).
        present: participation, bool `[N]` (`Round.present`): sums, and N, include only the workers
            that participate, as does the mean that methods take; None: all workers participate.

    Returns:
        The `dsgd.LocalWork`, with int32 samples `[N, M]`.

    Raises:
        ValueError: if `sizes` are not integers `[N]` from 0 to M B, or all of them are 0;
            `batch_size` or `micro_batches` is less than 1, or M B >= 2^31; `average` is unknown; or
            `present` is not bool `[N]`.

    Source: Nie et al., "Cannikin", section 4.3; the weights are those of LB-BSP.
    """
    B = checks.positive_int("local_batches: batch_size", batch_size, most=None)
    M = checks.positive_int("local_batches: micro_batches", micro_batches, most=None)
    if np.iinfo(np.int32).max < M * B:
        numbers = f"{checks.show(M)[:30]} micro-batches of {checks.show(B)[:30]}"
        raise ValueError(
            f"local_batches: {numbers}; expected fewer than 2^31 samples, which are counted in "
            "int32"
        )
    each = _array(sizes)
    if each.ndim != 1 or not jnp.issubdtype(each.dtype, jnp.integer):
        raise ValueError(f"local_batches: sizes = {checks.kind(each)}; expected integers [N]")
    if isinstance(each, np.ndarray):
        if not each.size or each.min() < 0 or each.max() > M * B:
            most = f"0 to {M * B}, the capacity ({M} micro-batches of {B})"
            raise ValueError(
                f"local_batches: sizes = {checks.show(each.tolist())}; expected integers [N] from "
                f"{most}"
            )
        _require_some("local_batches: sizes", each)
    xp, each = _library(each), each.astype(np.int32)
    filled = xp.clip(each[:, None] - B * np.arange(M, dtype=np.int32)[None], 0, B).astype(np.int32)
    return _weigh("local_batches", filled, average, present)


@checks.arguments
def micro_batches(
    counted: ArrayLike | jax.Array,
    *,
    average: str = "samples",
    present: ArrayLike | jax.Array | None = None,
) -> LocalWork:
    r"""Returns local work in which worker n computes some of M micro-batches, each a full batch.

    With the default weights, the mean of the workers' gradients is

    $$ \frac1N \sum_n g_n = \frac{\sum_{nm} c_{nm} \bar g_{nm}}{\sum_{nm} c_{nm}} $$

    Args:
        counted: c, bool `[N, M]`: which micro-batches are computed.
        average: "samples": all computed micro-batches have equal weight, as in the equation;
            "workers": all workers have equal weight, independently of their numbers of
            micro-batches (0 for a worker without any).
        present: as in `local_batches`.

    Returns:
        The `dsgd.LocalWork`, with bool samples `[N, M]`.

    Raises:
        ValueError: if `counted` is not bool `[N, M]` or entirely False, `average` is unknown, or
            `present` is not bool `[N]`.
    """
    each = _array(counted)
    if each.ndim != 2 or each.dtype != bool or not each.size:
        raise ValueError(f"micro_batches: counted = {checks.kind(each)}; expected bool [N, M]")
    if isinstance(each, np.ndarray):
        _require_some("micro_batches: counted", each)
    return _weigh("micro_batches", each, average, present)


@checks.arguments
def weighted(weights: ArrayLike | jax.Array) -> LocalWork:
    r"""Returns local work of full micro-batches with given weights,
    $g_n = \sum_m w_{nm} \bar g_{nm}$.

    Micro-batches of weight 0 are not computed.

    Args:
        weights: w, floating-point numbers `[N, M]`, at least 0.

    Returns:
        The `dsgd.LocalWork`, with bool samples `[N, M]`.

    Raises:
        ValueError: if `weights` are not floating-point numbers `[N, M]`, one of them is negative,
            infinite or NaN, or all are 0.
    """
    each = _array(weights)
    if each.ndim != 2 or not jnp.issubdtype(each.dtype, jnp.floating) or not each.size:
        raise ValueError(
            f"weighted: weights = {checks.kind(each)}; expected floating-point numbers [N, M]"
        )
    if isinstance(each, np.ndarray):
        _require_weights("weighted: weights", each)
        array_likes.narrow("weighted: weights", each)
        _require_some("weighted: weights", each)
    return LocalWork(each != 0, each)


def to_samples(
    work: LocalWork, batch_size: int | None = None, batch_sizes: Sequence[int] | None = None
) -> LocalWork:
    """Returns the same work with `samples` as int32, clipped to the available samples.

    For problems without a batch size, `samples` counts full draws.

    Args:
        work: local work of N workers.
        batch_size, batch_sizes: those of the problem.
    """
    most = (batch_size or 1) if batch_sizes is None else np.asarray(batch_sizes, np.int32)[:, None]
    if work.samples.dtype == bool:
        return work._replace(samples=jnp.where(work.samples, most, 0).astype(jnp.int32))
    samples = jnp.asarray(work.samples)
    if samples.dtype.itemsize < 4:  # the batch size, the upper limit below, may not fit int8
        samples = samples.astype(jnp.int32)
    return work._replace(samples=jnp.clip(samples, 0, most).astype(jnp.int32))


def weight_sums(work: LocalWork) -> jax.Array:
    """Returns the sum of the weights of each worker's computed micro-batches, `[N]`."""
    return jnp.sum(jnp.where(work.samples > 0, work.weights, 0), axis=1)


def require_work(where: str, work: Any, N: int, problem: Problem) -> None:
    """Raises ValueError if `work` is not valid for N workers on this problem.

    Args:
        where: beginning of the message.
        work: any object.
        N: number of workers.
        problem: the problem, which may or may not be able to truncate its batches.
    """
    require_arrays(where, work, N)
    samples = _array(work.samples)
    most, cut = problem.batch_size or 1, problem.sampler.truncate is not None
    whole = (
        f"{where} in samples, but {problem.name} cannot truncate its batches (it has no "
        "`truncate`); expected"
    )
    sizes = (
        np.full(N, most)
        if problem.sampler.batch_sizes is None
        else np.asarray(problem.sampler.batch_sizes)
    )
    if isinstance(samples, Tracer):
        if samples.dtype != bool and most > 1 and not cut:
            raise ValueError(f"{whole} bool samples, for whole micro-batches")
    elif samples.dtype != bool:
        if samples.max() > most:
            raise ValueError(
                f"{where} of {samples.min()} to {samples.max()} samples in a micro-batch; expected "
                f"0 to {most} ({problem.name})"
            )
        if (over := samples.max(axis=1) > sizes).any():
            n = int(over.argmax())
            raise ValueError(
                f"{where} of {samples[n].max()} samples in a micro-batch of worker {n}, which has "
                f"only {sizes[n]} samples ({problem.name}) and draws without replacement; expected "
                f"at most {sizes[n]}; reduce the samples, pass bool samples for whole "
                "micro-batches, or pass replacement=True to the problem"
            )
        if not cut and not np.isin(samples, (0, most)).all():
            raise ValueError(f"{whole} 0 or {most}")


def require_arrays(where: str, work: Any, N: int | None) -> None:
    """Raises ValueError if `work` is not valid for any problem.

    Its arrays must have the types and shapes for N workers (None: any number), and must not be
    negative, and at least one worker must compute something.
    """
    if not isinstance(work, LocalWork):
        raise ValueError(
            f"{where} as {checks.kind(work)}; expected a dsgd.LocalWork; construct it with "
            "dsgd.work"
        )
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
                f"{where} with {name} as {checks.kind(array)}; expected {words} [{rows}, M], "
                "M >= 1, with equal shapes of samples and weights"
            )
    samples, weights, draws = *map(_array, work[:2]), work.first_batch
    if draws is not None and (
        jnp.shape(draws) != samples.shape[:1]
        or not jnp.issubdtype(jnp.result_type(draws), jnp.integer)
    ):
        raise ValueError(
            f"{where} with draws as {checks.kind(draws)}; expected None, or int32 "
            f"[{samples.shape[0]}]"
        )
    if not isinstance(samples, Tracer):
        if samples.min() < 0:
            raise ValueError(
                f"{where} of {samples.min()} to {samples.max()} samples in a micro-batch; expected "
                "at least 0"
            )
        _require_some(f"{where} with samples", samples)
    if not isinstance(weights, Tracer):
        _require_weights(f"{where} with weights", weights)


def _weigh(function: str, samples: Any, average: str, present: Any) -> LocalWork:
    """Returns the work of the workers that participate, with the weights that `average` asks for.

    Args:
        function: name of the calling function, for messages.
        samples: samples of each micro-batch, `[N, M]`.
        average, present: as in `local_batches`.
    """
    if average not in AVERAGES:
        raise ValueError(
            f"{function}: average = {average!r}; expected {' or '.join(map(repr, AVERAGES))}"
        )
    number = samples.shape[0]
    if present is not None:
        mask = _array(present)
        if mask.shape != samples.shape[:1] or mask.dtype != bool:
            raise ValueError(f"{function}: present = {checks.kind(mask)}; expected bool [{number}]")
        samples, number = (
            _library(samples, mask).where(mask[:, None], samples, np.zeros((), samples.dtype)),
            mask.sum(),
        )
    xp = _library(samples)
    total = xp.sum(samples, axis=1 if average == "workers" else None, keepdims=True, dtype=np.int32)
    kind = jnp.result_type(float)
    weights = samples.astype(kind) / xp.maximum(total, 1).astype(kind)
    return LocalWork(
        samples, weights if average == "workers" else weights * xp.asarray(number, kind)
    )


def _array(values: Any) -> Any:
    """Returns a tracer unchanged, and anything else as a numpy copy, because its owner may modify
    it.
    """
    return values if isinstance(values, Tracer) else np.array(values)


def _library(*arrays: Any) -> Any:
    """Returns numpy if all arrays are numpy arrays, so that known values stay known, otherwise
    jax.numpy.
    """
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


def _require_some(what: str, values: np.ndarray) -> None:
    if not values.any():
        raise ValueError(
            f"{what}: all values are 0; expected at least one worker that computes something"
        )


def _require_weights(what: str, weights: np.ndarray) -> None:
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(
            f"{what} {weights.min():g} to {weights.max():g}; expected finite numbers, at least 0"
        )
