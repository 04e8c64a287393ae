"""Algorithm 1's stop: what a worker has computed when its time is over."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

Stop = Literal["preempt", "between"]


class Stopped(NamedTuple):
    """A worker that has stopped.

    Args:
        done: which of its micro-batches it has computed, bool `[..., M]`.
        seconds: for which it has computed, `[...]`.
    """

    done: Any
    seconds: Any


def stopped(latencies: Any, threshold: Any, stop: Stop, spent: Any = 0.0) -> Stopped:
    r"""What a worker does until $\tau$, where its micro-batches end at
    $T^{(m)} = s + \sum_{j \le m} t_j$.

    With "preempt" it stops at $\tau$, whatever it is doing: it has the micro-batches with
    $T^{(m)} < \tau$, after $\min(\tau, T^{(M)}) - s$ seconds. With "between" it looks at its clock
    after each micro-batch, and goes on while $T^{(m)} \le \tau$: that in which $\tau$ passes is
    computed to its end, and counts.

    Args:
        latencies: t, seconds of each micro-batch, `[..., M]`, numpy's or traced.
        threshold: tau, seconds, a scalar.
        stop: "preempt" or "between".
        spent: s, seconds that have passed when the first one begins, a scalar or `[...]`.
    """
    xp = jnp if any(isinstance(each, jax.Array) for each in (latencies, threshold, spent)) else np
    begun = xp.broadcast_to(xp.asarray(spent, latencies.dtype), latencies.shape[:-1])
    # seconds are of these: what is left of ends - begun, in float32, may be less
    taken = completions(latencies)
    ends = begun[..., None] + taken
    if stop == "preempt":
        done = ends < threshold
        return Stopped(
            done, xp.where(done[..., -1], taken[..., -1], xp.maximum(threshold - begun, 0))
        )
    starts = xp.concatenate([begun[..., None], ends[..., :-1]], axis=-1)
    done = starts <= threshold
    return Stopped(done, xp.max(xp.where(done, taken, 0), axis=-1))


def completions(latencies: Any) -> Any:
    """When each micro-batch ends, of those that begin at 0, `[..., M]`: sums in one order, whatever
    the shape, so that times that are equal stay so."""
    if not isinstance(latencies, jax.Array):
        return np.cumsum(latencies, axis=-1)
    return jnp.stack(list(accumulate(jnp.unstack(latencies, axis=-1))), axis=-1)


def need_stop(where: str, stop: Any) -> None:
    """Raises a ValueError where it is no way to stop."""
    if stop not in get_args(Stop):
        raise ValueError(f"{where}: stop = {stop!r}: need {' or '.join(map(repr, get_args(Stop)))}")


def need_one_by_one(where: str, cluster: Any) -> None:
    """Raises a ValueError where a cluster's workers compute all their micro-batches at once, so
    that there is no last one to drop.
    """
    if cluster.at_once:
        raise ValueError(
            f"{where}: a cluster whose workers compute their micro-batches at once: need one by "
            "one, at_once=False"
        )


def need_seconds(
    where: str, what: str, seconds: Any, *, positive: bool = False, finite: bool = True
) -> None:
    """Raises a ValueError where known numbers, one or an array, are NaN, negative, or else not what
    is needed.
    """
    if isinstance(seconds, Tracer):
        return
    numbers = np.asarray(seconds, float)
    wrong = numbers[
        ~((numbers > 0 if positive else numbers >= 0) & (np.isfinite(numbers) | (not finite)))
    ]
    if wrong.size:
        needed = f"{'finite ' if finite else ''}seconds, {'above' if positive else 'at least'} 0"
        raise ValueError(
            f"{where}: {what}{' with the entry' if numbers.ndim else ' ='} {wrong[0]:g}: need "
            f"{needed}"
        )
