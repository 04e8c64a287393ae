"""The stop of Algorithm 1: which micro-batches a worker has computed when its time is over."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

Stop = Literal["preempt", "between"]


class Stopped(NamedTuple):
    """What a worker computed before it stopped.

    Args:
        done: which of its micro-batches it computed, bool `[..., M]`.
        seconds: how long it computed, `[...]`.
    """

    done: Any
    seconds: Any


def stop_workers(latencies: Any, threshold: Any, stop: Stop, spent: Any = 0.0) -> Stopped:
    r"""Returns what a worker computes until $\tau$, if its micro-batches end at
    $T^{(m)} = s + \sum_{j \le m} t_j$.

    With "preempt" it stops at $\tau$, within a micro-batch if necessary: it has computed the
    micro-batches with $T^{(m)} < \tau$, in $\min(\tau, T^{(M)}) - s$ seconds. With "between" it
    reads its clock after each micro-batch, and continues while $T^{(m)} \le \tau$: the micro-batch
    in which $\tau$ passes is completed, and counts.

    Args:
        latencies: t, seconds of each micro-batch, `[..., M]`, a NumPy array or traced.
        threshold: tau, seconds, a scalar.
        stop: "preempt" or "between".
        spent: s, seconds that have passed before the first micro-batch, a scalar or `[...]`.
    """
    xp = jnp if any(isinstance(each, jax.Array) for each in (latencies, threshold, spent)) else np
    begun = xp.broadcast_to(xp.asarray(spent, latencies.dtype), latencies.shape[:-1])
    # used for `seconds`, because ends - begun is rounded in float32 and may be smaller
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
    """Returns when each micro-batch ends if the first one starts at 0, `[..., M]`. The sums have
    the same order for every shape, so that equal times stay equal.
    """
    if not isinstance(latencies, jax.Array):
        return np.cumsum(latencies, axis=-1)
    return jnp.stack(list(accumulate(jnp.unstack(latencies, axis=-1))), axis=-1)


def require_stop(where: str, stop: Any) -> None:
    """Raises a ValueError if `stop` is unknown."""
    if stop not in get_args(Stop):
        raise ValueError(
            f"{where}: stop = {stop!r}; expected {' or '.join(map(repr, get_args(Stop)))}"
        )


def require_one_by_one(where: str, cluster: Any) -> None:
    """Raises a ValueError if the cluster's workers compute all their micro-batches as one batch, so
    that the last ones cannot be dropped.
    """
    if cluster.single_batch:
        raise ValueError(
            f"{where}: the cluster's workers compute their micro-batches as one batch; expected a "
            "cluster with single_batch=False"
        )


def require_seconds(
    where: str, what: str, seconds: Any, *, positive: bool = False, finite: bool = True
) -> None:
    """Raises a ValueError if concrete numbers, a scalar or an array, are NaN, negative, or violate
    `positive` or `finite`.
    """
    if isinstance(seconds, Tracer):
        return
    numbers = np.asarray(seconds, float)
    wrong = numbers[
        ~((numbers > 0 if positive else numbers >= 0) & (np.isfinite(numbers) | (not finite)))
    ]
    if wrong.size:
        needed = f"{'finite ' if finite else ''}seconds {'>' if positive else '>='} 0"
        raise ValueError(
            f"{where}: {what} {'contain' if numbers.ndim else '='} {wrong[0]:g}; expected {needed}"
        )
