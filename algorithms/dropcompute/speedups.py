r"""DropCompute's gain on measured times: Algorithm 2, by exact search.

    # tau in seconds, from latencies [I, N, M] and communication [I], both in seconds
    dropcompute.threshold(latencies, communication)
    # equation 6, drop rate and seconds at each of the thresholds
    dropcompute.measured_effect(latencies, thresholds, communication)

Concrete numbers are computed with NumPy in float64; if any argument is traced, everything is
computed with jax.numpy in the latencies' own precision.

To make up for dropped samples (section 4.5), $R = M / \tilde M - 1 = p / (1 - p)$ times as many
additional steps, or samples per batch, are needed. `drop_compute(..., resample_dropped=True)`
computes the dropped samples in the next round.
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

from algorithms.dropcompute.stopping import Stop, completions, require_seconds, require_stop
from dsgd import checks

# relative distance between a threshold and its event, larger than the rounding error of a sum that
# is computed again in another order
SLACK = 1 + 1e-6
PARTS = 32  # into which the search divides an interval that may contain the best candidate

Latencies = Annotated[ArrayLike | jax.Array, "seconds [iterations, workers, micro-batches]"]
Communication = Annotated[ArrayLike | jax.Array, "seconds [iterations]"]
Thresholds = Annotated[ArrayLike | jax.Array, "seconds, at least 0"]


class Effect(NamedTuple):
    """The effect of thresholds, measured, simulated or expected; each with the shape of the
    thresholds.

    Args:
        threshold: tau, seconds.
        speedup: effective speedup, micro-batches per second relative to training without
            DropCompute.
        drop_rate: share of dropped micro-batches.
        step_time: seconds for which the slowest worker computes, without communication.
        without: the same without a threshold.
    """

    threshold: Any
    speedup: Any
    drop_rate: Any
    step_time: Any
    without: Any


@checks.arguments
def measured_effect(
    latencies: Latencies,
    thresholds: Thresholds,
    communication: Communication = 0.0,
    stop: Stop = "preempt",
) -> Effect:
    r"""Returns the effect of thresholds on measured times, averaged over iterations.

    $$ S_{\mathrm{eff}}(\tau) = \frac{1}{I} \sum_i \frac{\tilde M_i(\tau)}{M} \cdot \frac{T_i +
    T_i^c}{R_i(\tau) + T_i^c} \quad (6) $$

    where $\tilde M_i$ is the mean number of micro-batches that a worker computes, $T_i$ the seconds
    of the slowest worker without a threshold, and $R_i$ the same with a threshold:
    $\min(\tau, T_i)$ with "preempt", and the time at which the last worker stops with "between".
    The time ratio of a step that takes no time is 1. The drop rate is $1 - \tilde M(\tau) / M$.

    Args:
        latencies: t, seconds of each micro-batch, `[I, N, M]`, finite, at least 0.
        thresholds: tau, seconds, any shape; infinity drops nothing, and its speedup is 1.
        communication: T^c, seconds of each iteration, `[I]`, or one number for all.
        stop: "preempt" or "between", see `stopping.stop_workers`.

    Raises:
        ValueError: if latencies are not `[I, N, M]` with at least one of each, I differs from that
            of communication, latencies or communication are negative or not finite, thresholds are
            negative or NaN, or `stop` is unknown.

    Source: Giladi et al., "DropCompute: simple and more robust distributed synchronous training via
    compute variance reduction", section 4.4 and algorithm 2.
    """
    where = "measured_effect"
    measured = _sort_events(where, latencies, communication, stop, thresholds)
    require_seconds(f"dropcompute.{where}", "thresholds", thresholds, finite=False)
    tau = measured.xp.asarray(thresholds, measured.whole.dtype)
    gain, rate, step = _mean(lambda one: (speedup(one), 1 - one.share, one.step), measured, tau)
    whole = measured.xp.broadcast_to(measured.whole.mean(), tau.shape)
    return Effect(tau, gain, rate, step, whole)


@checks.arguments
def threshold(latencies: Latencies, communication: Communication, stop: Stop = "preempt") -> Any:
    r"""Returns the threshold with the largest effective speedup, by a search over all its
    discontinuities.

    $$ \tau^* = \operatorname{argmax}_\tau S_{\mathrm{eff}}(\tau) $$

    $S_{\mathrm{eff}}$ is largest just after one of the times v at which it jumps. The search
    evaluates it at $\tau = (1 + 10^{-6}) v$, so that times that differ only by rounding count as
    equal. Among thresholds that are equally good up to $10^{-6}$ it returns the largest, which is
    infinity if dropping does not help. No threshold is better by more than $2 \cdot 10^{-6}$,
    except that with "between" the first of two v that are this close is not evaluated.

    Args:
        latencies: t, see `measured_effect`.
        communication: T^c, see `measured_effect`.
        stop: "preempt" or "between", see `stopping.stop_workers`.

    Returns:
        tau, seconds: a float, or a traced scalar. With "preempt" it is never 0, even if all
        micro-batches of a step take no time.

    Raises:
        ValueError: see `measured_effect`.

    Source: Giladi et al., "DropCompute", algorithm 2, which evaluates only given thresholds.
    """
    measured = _sort_events("threshold", latencies, communication, stop)
    if measured.xp is np:
        return _search(measured)
    candidates = jnp.append(measured.events.ravel() * SLACK, jnp.inf)
    speedups = _mean(speedup, measured, candidates)
    return jnp.max(jnp.where(speedups * SLACK >= jnp.max(speedups), candidates, 0))


@checks.arguments
def extra_steps(steps: int, drop_rate: float) -> int:
    r"""Returns the number of additional steps that make up for dropped samples,
    $\lceil R\, I_{base} \rceil$.

    Args:
        steps: $I_{base}$, number of steps without drops.
        drop_rate: p, the share of dropped samples, in [0, 1).

    Raises:
        ValueError: if steps is less than 1 or the drop rate is not in [0, 1).
    """
    return _more("extra_steps", "steps", steps, drop_rate)


@checks.arguments
def larger_batch(size: int, drop_rate: float) -> int:
    r"""Returns the batch size $\lceil (1 + R) B \rceil$, of which B are computed on average.

    Args:
        size: B, samples of a micro-batch, or number of micro-batches; the latter needs a larger
            threshold for the same drop rate.
        drop_rate: p, the share that is dropped, in [0, 1).

    Raises:
        ValueError: if size is less than 1 or the drop rate is not in [0, 1).
    """
    return size + _more("larger_batch", "size", size, drop_rate)


def _more(function: str, what: str, base: int, drop_rate: float) -> int:
    checks.positive_int(f"dropcompute.{function}: {what}", base)
    if not 0 <= drop_rate < 1:
        raise ValueError(
            f"dropcompute.{function}: drop_rate = {drop_rate}; expected a share in [0, 1)"
        )
    # the subtraction keeps integers, because p / (1 - p) is rounded
    return math.ceil(base * drop_rate / (1 - drop_rate) - 1e-9)


class _Measured(NamedTuple):
    """Measurements as functions of tau. The number of computed micro-batches jumps at the events, N
    M in each iteration.

    Args:
        events: sorted times `[I, N M]`: with "preempt" the ends of micro-batches, each counted for
            tau after it; with "between" their starts, each counted for tau at or after it.
        until: with "between", when the last worker stops if tau is at or after this event and
            before the next, `[I, N M]`.
        whole: T, `[I]`.
        communication: T^c, `[I]`.
        stop: "preempt" or "between".
        xp: numpy or jax.numpy.
    """

    events: Any
    until: Any
    whole: Any
    communication: Any
    stop: Stop
    xp: Any


class Iteration(NamedTuple):
    """One iteration at each threshold.

    Args:
        share: share of micro-batches that are computed.
        step: seconds of the slowest worker.
        whole: T, the same without a threshold.
        communication: T^c.
    """

    share: Any
    step: Any
    whole: Any
    communication: Any


def speedup(iteration: Iteration) -> Any:
    r"""Returns $S_\text{eff}$ of an iteration: micro-batches per second with the threshold relative
    to those without; the share of computed micro-batches if the step takes no time.
    """
    xp = jnp if isinstance(iteration.step, jax.Array) else np
    seconds = iteration.step + iteration.communication
    some = xp.where(seconds > 0, seconds, 1)
    return iteration.share * xp.where(
        seconds > 0, (iteration.whole + iteration.communication) / some, 1
    )


def _iteration(measured: _Measured, i: Any, thresholds: Any) -> Iteration:
    """Evaluates an iteration at the thresholds, with at most two binary searches for each
    threshold.

    With "between", worker n has started the micro-batches whose starts are at most tau, and stops
    at the end of the last of them, which is the largest of their ends. So the last worker stops at
    the largest end of all workers' micro-batches that start at tau or before: the running maximum
    of the ends, in the order of starts, at the last start that is at most tau. It always exists,
    because each worker starts at 0.
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
    """Returns the means over iterations of arrays, evaluated one after the other so that the
    memory is that of one iteration.
    """
    first, others = value(_iteration(measured, 0, thresholds)), range(1, len(measured.events))

    def add(i: Any, total: Any) -> Any:
        new = value(_iteration(measured, i, thresholds))
        return jax.tree.map(lambda a, b: a + b, total, new)

    if measured.xp is np:
        total = first
        for i in others:
            total = add(i, total)
    else:
        total = lax.fori_loop(others.start, others.stop, add, first)
    return jax.tree.map(lambda leaf: leaf / len(measured.events), total)


def _search(measured: _Measured) -> float:
    r"""Returns the largest of the best candidates, without evaluating most of them.

    Candidates lie just after the events: with "between", count and step are constant from one
    event, inclusive, to the next, exclusive. With "preempt", the count is constant after one event
    up to and including the next, while the step grows with tau, so that S does not increase in
    between. At $(1 + \delta) v$ the count is at least that just after v, and the step at most
    $1 + \delta$ times as long.

    Branch and bound: count and step do not decrease in tau, so between two candidates $a < b$ no
    speedup is above $\frac{1}{I} \sum_i \frac{\tilde M_i(b)}{M} \frac{T_i + T_i^c}{R_i(a) +
    T_i^c}$. Rounding is monotone, too.
    """
    events = np.sort(measured.events, axis=None)
    candidates = np.append(
        events[np.searchsorted(events, 0, side="right") if measured.stop == "preempt" else 0 :]
        * SLACK,
        np.inf,
    )
    # First and last index of the intervals that may contain the best candidate.
    spans = np.array([[0, candidates.size - 1]])
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


def _sort_events(
    where: str, latencies: Any, communication: Any, stop: Stop, *others: Any
) -> _Measured:
    """Validates the arguments and sorts the events, with NumPy unless an argument is traced."""
    where = f"dropcompute.{where}"
    require_stop(where, stop)
    xp: Any = (
        jnp if any(isinstance(each, Tracer) for each in (latencies, communication, *others)) else np
    )
    shape = np.shape(latencies)
    if len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"{where}: latencies {list(shape)}; expected [iterations, workers, micro-batches], "
            "with at least one of each"
        )
    if np.shape(communication) not in ((), shape[:1]):
        raise ValueError(
            f"{where}: communication {list(np.shape(communication))} for latencies {list(shape)}; "
            "expected communication [iterations] for latencies [iterations, workers, "
            "micro-batches]"
        )
    require_seconds(where, "latencies", latencies)
    require_seconds(where, "communication", communication)
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
