r"""What DropCompute gains on measured times: Algorithm 2, by exact search.

    dropcompute.threshold(latencies, communication)                        # tau, seconds, from [I,
    N, M] and [I] seconds dropcompute.effective_speedup(latencies, communication, thresholds)    #
    equation 6 at each of them

Known numbers are computed with numpy in float64; where anything is traced, all is jax.numpy's, in
the latencies' own precision.

What makes up for dropped samples (section 4.5) is $R = M / \tilde M - 1 = p / (1 - p)$ times as
much again, of steps or of batches. What draws them again is `drop_compute(..., redraw=True)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from numpy.typing import ArrayLike

from algorithms.dropcompute.stopping import Stop, completions, need_seconds, need_stop
from dsgd import checks

# a time that is computed once more, in another order, is still on the same side of one that is
# longer by that
SLACK = 1 + 1e-6
PARTS = 32  # into which the search cuts what may hold the best

Latencies = Annotated[ArrayLike | jax.Array, "seconds [iterations, workers, micro-batches]"]
Communication = Annotated[ArrayLike | jax.Array, "seconds [iterations]"]
Thresholds = Annotated[ArrayLike | jax.Array, "seconds, at least 0"]


@checks.arguments
def effective_speedup(
    latencies: Latencies,
    communication: Communication,
    thresholds: Thresholds,
    stop: Stop = "preempt",
) -> Any:
    r"""How many times as many micro-batches a second as without DropCompute, the mean over
    iterations.

    $$ S_{\mathrm{eff}}(\tau) = \frac{1}{I} \sum_i \frac{\tilde M_i(\tau)}{M} \cdot \frac{T_i +
    T_i^c}{R_i(\tau) + T_i^c} \quad (6) $$

    with $\tilde M_i$ micro-batches computed by a worker on average, $T_i$ the seconds of the
    slowest worker without a threshold, and $R_i$ those with it: $\min(\tau, T_i)$ with "preempt",
    when the last worker stops with "between". A step that takes no time gains nothing.

    Args:
        latencies: t, seconds of each micro-batch, `[I, N, M]`, at least 0, finite.
        communication: T^c, seconds of each iteration, `[I]`, or one number for all.
        thresholds: tau, seconds, any shape; infinity drops nothing: 1.
        stop: "preempt" or "between", see `stopping.stopped`.

    Returns:
        The speedup at each threshold, of their shape.

    Raises:
        ValueError: latencies that are not `[I, N, M]`, without an iteration, worker or micro-batch,
            or of another I than communication; latencies or seconds of communication that are
            negative or not finite; thresholds that are negative or NaN; an unknown stop.

    Source: Giladi et al., "DropCompute: simple and more robust distributed synchronous training via
    compute variance reduction", section
        4.4 and algorithm 2.
    """
    return _at("effective_speedup", speedup, latencies, communication, thresholds, stop)


@checks.arguments
def threshold(latencies: Latencies, communication: Communication, stop: Stop = "preempt") -> Any:
    r"""The threshold of the largest effective speedup, by search over all places where that jumps.

    $$ \tau^* = \operatorname{argmax}_\tau S_{\mathrm{eff}}(\tau) $$

    $S_{\mathrm{eff}}$ is largest just after one of the times v at which it jumps: at
    $\tau = (1 + 10^{-6}) v$ here, so that times that are equal but for rounding count as one. Of
    those that are as good, up to $10^{-6}$, it is the largest: infinity where dropping gains
    nothing. So no threshold is better by more than $2 \cdot 10^{-6}$; with "between", where two v
    are that close, the first is not looked at.

    Args:
        latencies: t, as of `effective_speedup`.
        communication: T^c, as of `effective_speedup`.
        stop: "preempt" or "between", see `stopping.stopped`.

    Returns:
        tau, seconds: a float, or a traced scalar. With "preempt" it is never 0: a step of
            micro-batches that all take no time is no answer.

    Raises:
        ValueError: as of `effective_speedup`.

    Source: Giladi et al., "DropCompute", algorithm 2, which looks at given thresholds only.
    """
    measured = _measured("threshold", latencies, communication, stop)
    if measured.xp is np:
        return _search(measured)
    candidates = jnp.append(measured.events.ravel() * SLACK, jnp.inf)
    speedups = _mean(speedup, measured, candidates)
    return jnp.max(jnp.where(speedups * SLACK >= jnp.max(speedups), candidates, 0))


@checks.arguments
def drop_rate(latencies: Latencies, thresholds: Thresholds, stop: Stop = "preempt") -> Any:
    r"""The share of micro-batches that are dropped, $1 - \tilde M(\tau) / M$, the mean over
    iterations.

    Args:
        latencies: t, as of `effective_speedup`.
        thresholds: tau, as of `effective_speedup`.
        stop: "preempt" or "between", see `stopping.stopped`.

    Returns:
        The share in [0, 1] at each threshold, of their shape.

    Raises:
        ValueError: as of `effective_speedup`.
    """
    return _at("drop_rate", lambda iteration: 1 - iteration.share, latencies, 0.0, thresholds, stop)


@checks.arguments
def step_time(latencies: Latencies, thresholds: Thresholds, stop: Stop = "preempt") -> Any:
    r"""How long the slowest worker computes, $\min(\tau, T)$ with "preempt", the mean over
    iterations.

    Args:
        latencies: t, as of `effective_speedup`.
        thresholds: tau, as of `effective_speedup`.
        stop: "preempt" or "between", see `stopping.stopped`.

    Returns:
        Seconds at each threshold, of their shape, without communication.

    Raises:
        ValueError: as of `effective_speedup`.
    """
    return _at("step_time", lambda iteration: iteration.step, latencies, 0.0, thresholds, stop)


@checks.arguments
def extra_steps(steps: int, drop_rate: float) -> int:
    r"""$\lceil R\, I_{base} \rceil$ steps more.

    Args:
        steps: those without drops.
        drop_rate: p, the share of samples that is dropped, in [0, 1).

    Raises:
        ValueError: steps < 1, or another drop rate.
    """
    return _more("extra_steps", "steps", steps, drop_rate)


@checks.arguments
def larger_batch(size: int, drop_rate: float) -> int:
    r"""$\lceil (1 + R) B \rceil$ for B: of it, so many samples as before are computed on average.

    Args:
        size: B, samples of a micro-batch, or micro-batches: then workers need a threshold that is
            larger, too, for the same drop rate.
        drop_rate: p, the share that is dropped, in [0, 1).

    Raises:
        ValueError: size < 1, or another drop rate.
    """
    return size + _more("larger_batch", "size", size, drop_rate)


def _more(function: str, what: str, base: int, drop_rate: float) -> int:
    checks.positive_int(f"dropcompute.{function}: {what}", base)
    if not 0 <= drop_rate < 1:
        raise ValueError(f"dropcompute.{function}: drop_rate = {drop_rate}: need a share in [0, 1)")
    # whole numbers stay so: p / (1 - p) rounds
    return math.ceil(base * drop_rate / (1 - drop_rate) - 1e-9)


class _Measured(NamedTuple):
    """What was measured, as functions of tau: how much is computed jumps at the events, of which
    there are N M in an iteration.

    Args:
        events: with "preempt" the ends of micro-batches, each counted after it; with "between"
            their starts, each counted from it on. In order, `[I, N M]`.
        until: with "between" when the last worker stops if tau is at or after this event and before
            the next, `[I, N M]`.
        whole: T, `[I]`.
        communication: T^c, `[I]`.
        stop: "preempt" or "between".
        xp: numpy, or jax.numpy.
    """

    events: Any
    until: Any
    whole: Any
    communication: Any
    stop: Stop
    xp: Any


class Iteration(NamedTuple):
    """What becomes of one at each threshold: the share of micro-batches that are computed, and the
    slowest worker's seconds; and what T and T^c are."""

    share: Any
    step: Any
    whole: Any
    communication: Any


def speedup(iteration: Iteration) -> Any:
    r"""$S_\text{eff}$: micro-batches a second with the threshold over those without; the share
    itself where no time passes.
    """
    xp = jnp if isinstance(iteration.step, jax.Array) else np
    seconds = iteration.step + iteration.communication
    some = xp.where(seconds > 0, seconds, 1)
    return iteration.share * xp.where(
        seconds > 0, (iteration.whole + iteration.communication) / some, 1
    )


def _iteration(measured: _Measured, i: Any, thresholds: Any) -> Iteration:
    r"""By two binary searches a threshold, at most.

    With "between" worker n has begun the micro-batches whose starts are at most tau, and stops at
    the end of the last of them, which is the largest of their ends. So the last worker stops at the
    largest end of all micro-batches, whoever's, that start at tau at the latest: the running
    maximum of the ends, in the order of starts, at the last start that is at most tau. There is
    one: each worker starts at 0.
    """
    xp, events = measured.xp, measured.events[i]
    count = xp.searchsorted(
        events, thresholds, side="left" if measured.stop == "preempt" else "right"
    )
    whole = measured.whole[i]
    step = (
        xp.minimum(thresholds, whole)
        if measured.stop == "preempt"
        else measured.until[i][count - 1]
    )
    return Iteration(
        count.astype(events.dtype) / events.size, step, whole, measured.communication[i]
    )


def _mean(value: Callable[[Iteration], Any], measured: _Measured, thresholds: Any) -> Any:
    """Over iterations, one after the other: memory is that of one iteration's thresholds."""
    iterations = len(measured.events)
    if measured.xp is np:
        return (
            sum(value(_iteration(measured, i, thresholds)) for i in range(iterations)) / iterations
        )
    total = lax.fori_loop(
        0,
        iterations,
        lambda i, total: total + value(_iteration(measured, i, thresholds)),
        jnp.zeros_like(thresholds),
    )
    return total / iterations


def _search(measured: _Measured) -> float:
    r"""The largest of the best candidates, without a look at most of them.

    Why just after an event: with "between" both count and step are constant from one event to the
    next, the first included. With "preempt" the count is constant after one event up to the next,
    that included, while the step grows with tau: there S does not increase. At $(1 + \delta) v$ the
    count is at least that just after v, and the step at most $1 + \delta$ times as long.

    Branch and bound: count and step do not decrease in tau, so between two candidates $a < b$ no
    speedup is above
    $\frac{1}{I} \sum_i \frac{\tilde M_i(b)}{M} \frac{T_i + T_i^c}{R_i(a) + T_i^c}$. Roundings are
    monotone, too.
    """
    events = np.sort(measured.events, axis=None)
    candidates = np.append(
        events[np.searchsorted(events, 0, side="right") if measured.stop == "preempt" else 0 :]
        * SLACK,
        np.inf,
    )
    spans = np.array([[0, candidates.size - 1]])  # first and last index of what may hold the best
    seen, best = [], 0.0
    while spans.size:
        cuts = np.linspace(spans[:, 0], spans[:, 1], PARTS + 1, axis=1).astype(int)
        thresholds = candidates[cuts]
        speedups, bounds = np.zeros(cuts.shape), np.zeros((len(cuts), PARTS))
        for i in range(len(measured.events)):
            at = _iteration(measured, i, thresholds)
            speedups += speedup(at)
            bounds += speedup(at._replace(share=at.share[:, 1:], step=at.step[:, :-1]))
        seen.append((speedups, thresholds))
        best = max(best, speedups.max())
        unlike = (np.diff(cuts) > 1) & (thresholds[:, 1:] > thresholds[:, :-1])
        inside = unlike & (bounds * SLACK >= best)
        spans = np.stack([cuts[:, :-1][inside], cuts[:, 1:][inside]], axis=-1)
    return float(
        max(thresholds[speedups * SLACK >= best].max(initial=0) for speedups, thresholds in seen)
    )


def _measured(
    where: str, latencies: Any, communication: Any, stop: Stop, *others: Any
) -> _Measured:
    """Of arguments that have been looked at. Numpy's, unless something is traced."""
    where = f"dropcompute.{where}"
    need_stop(where, stop)
    xp: Any = (
        jnp if any(isinstance(each, Tracer) for each in (latencies, communication, *others)) else np
    )
    shape = np.shape(latencies)
    if len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"{where}: latencies {list(shape)}: need [iterations, workers, micro-batches], at "
            "least one of each"
        )
    if np.shape(communication) not in ((), shape[:1]):
        raise ValueError(
            f"{where}: communication {list(np.shape(communication))} for latencies {list(shape)}: "
            "need [iterations] for "
            "[iterations, workers, micro-batches]"
        )
    need_seconds(where, "latencies", latencies)
    need_seconds(where, "communication", communication)
    dtype = np.float64 if xp is np else jnp.result_type(latencies, jnp.float32)
    ends = completions(xp.asarray(latencies, dtype))
    starts = xp.concatenate([xp.zeros_like(ends[..., :1]), ends[..., :-1]], axis=-1).reshape(
        shape[0], -1
    )
    ends = ends.reshape(shape[0], -1)
    whole, communication = (
        xp.max(ends, axis=1),
        xp.broadcast_to(xp.asarray(communication, dtype), shape[:1]),
    )
    if stop == "preempt":
        return _Measured(xp.sort(ends, axis=1), None, whole, communication, stop, xp)
    order = xp.argsort(starts, axis=1)
    events, ends = (xp.take_along_axis(times, order, axis=1) for times in (starts, ends))
    until = np.maximum.accumulate(ends, axis=1) if xp is np else lax.cummax(ends, axis=1)
    return _Measured(events, until, whole, communication, stop, xp)


def _at(
    name: str,
    value: Callable[[Iteration], Any],
    latencies: Any,
    communication: Any,
    thresholds: Any,
    stop: Stop,
) -> Any:
    """A mean over iterations at each threshold; the latter in the precision of the times."""
    measured = _measured(name, latencies, communication, stop, thresholds)
    need_seconds(f"dropcompute.{name}", "thresholds", thresholds, finite=False)
    return _mean(value, measured, measured.xp.asarray(thresholds, measured.whole.dtype))
