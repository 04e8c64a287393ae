"""One worker's local batch on the real clock: micro-batch after micro-batch, until its time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.dropcompute.stopping import need_seconds
from dsgd import checks
from dsgd.base import Params, PyTree
from dsgd.engine import protocol


class Accumulated(NamedTuple):
    """What a worker has when its time is over.

    Args:
        total: the sum over the micro-batches that it has computed.
        computed: how many, at least 1.
        seconds: of each of the M, `[M]`; NaN of those that it has not computed.
    """

    total: PyTree
    computed: int
    seconds: np.ndarray


@checks.arguments
def accumulate(
    gradient: Callable[[Params, Any], PyTree],
    params: Params,
    batches: Sequence[Any],
    threshold: float,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Accumulated:
    r"""One worker's local batch, until $\tau$: it looks at its clock after each micro-batch, and goes on while $T^{(m)} \le \tau$.

    $$ G = \sum_{m=1}^{k} g^{(m)}(\theta), \qquad k = \min \{ m : T^{(m)} > \tau \text{ or } m = M \}, \qquad T^{(m)} = \sum_{j=1}^m t_j $$

    `stopping.stopped(..., "between")` says the same of times that are known. Each micro-batch is waited for, so that the clock tells what
    it took. $T^{(m)}$ is the sum of what was measured, in the order in which a plan adds it up: plan and worker agree to the last bit.

    Args:
        gradient: (params, batch) -> the micro-batch's gradient, a pytree of arrays, which may have its loss in it.
        params: theta.
        batches: the M micro-batches, or whatever `gradient` makes them of.
        threshold: tau, seconds; infinite: all are computed.
        clock: -> seconds, from any origin, that never go back.

    Raises:
        ValueError: no micro-batches; a threshold below 0, or NaN; a clock that gives no number.

    Source: Giladi et al., "DropCompute", Algorithm 1, whose part (2) is a look between two micro-batches, as in the paper's own code.
    """
    need_seconds("accumulate", "threshold", threshold, finite=False)
    if not len(batches):
        raise ValueError("accumulate: no micro-batches; need at least one")
    seconds, spent, total = np.full(len(batches), np.nan), 0.0, None
    before = _read(clock)
    for m, batch in enumerate(batches):
        if spent > threshold:
            return Accumulated(total, m, seconds)
        part = protocol.need_arrays("accumulate: gradient", gradient(params, batch))
        total = jax.block_until_ready(part if m == 0 else _add(total, part))
        now = _read(clock)
        seconds[m], before = now - before, now
        spent += seconds[m].item()
    return Accumulated(total, len(batches), seconds)


def _read(clock: Callable[[], float]) -> float:
    now = clock()
    if not checks.is_number(now):
        raise ValueError(f"accumulate: clock gives {checks.shown(now)}: need seconds")
    return now


_add = jax.jit(partial(jax.tree.map, jnp.add))
