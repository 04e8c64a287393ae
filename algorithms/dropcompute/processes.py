"""DropCompute on the real clock: one worker a process, which stops by its own clock, micro-batch
after micro-batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import optimizers
from algorithms.dropcompute.method import Correction, need_correction
from algorithms.dropcompute.speedups import threshold as best_threshold
from algorithms.dropcompute.stopping import need_seconds
from algorithms.dropcompute.thresholds import ChosenAfter
from algorithms.optimizers import Model
from algorithms.real_workers import RealWorker
from dsgd import checks
from dsgd.base import Key, Params, Problem, PyTree
from dsgd.engine import leaves, loop, oracle
from dsgd.machines import nodes

Delay = Callable[[int, int], float]  # (step, micro-batch) -> seconds


class Trained(NamedTuple):
    """What `train_processes` gives back, the same in all processes.

    Args:
        params: the model to take home.
        history: numpy arrays by name; see `train_processes`.
    """

    params: Params
    history: dict[str, np.ndarray]


@checks.arguments
def train_processes(
    problem: Problem,
    optimizer: optax.GradientTransformation,
    threshold: float | ChosenAfter,
    micro_batches: int,
    *,
    steps: int,
    key: Key,
    correction: Correction | float = "none",
    delay: Delay | None = None,
) -> Trained:
    r"""Synchronous SGD in real time: each process is a worker, which computes micro-batches until
    $\tau$ by its own monotonic clock.

    $$ \theta_{i+1} = \theta_i - \frac{\eta}{M N} \sum_{n=1}^N \sum_{m=1}^{M_n} g_n^{(m)}(\theta_i),
    \qquad
       M_n = \min \{ m : T_n^{(m)} > \tau \text{ or } m = M \} $$

    Every process of an initialised `jax.distributed` calls it with the same arguments, but for
    `delay`; `dsgd.loopback` starts some on one machine. Without that, it is one worker. Programs
    are compiled, and called once, before the clock begins. Draws are those of `dsgd.run`: where
    nothing is dropped, the iterates are those of `minibatch_sgd` with as many micro-batches, up to
    the order of sums.

    $T^c$, what a step takes besides the slowest worker's micro-batches, is the least of the seconds
    that the workers spent from the end of their own to the end of the step: they all wait for the
    last one, which waits for nobody. So no clocks need to be compared. (Where a worker is told of
    the end later than another, it is between the shortest such tail and that of the last worker.)

    Args:
        problem: with as many workers as there are processes; process n has the data of worker n.
        optimizer: the step; `optax.sgd(eta)` is the equation. All processes make it alike.
        threshold: tau, seconds, infinite: nothing is dropped; or `dropcompute.chosen_after(I)`: all
            measure for I steps, tell each other, and find the same one (section 4.4).
        micro_batches: M, each one draw of the problem.
        steps: how many.
        key: of everything random.
        correction: what sums are divided by. "none": M N, as in the equation; "stochastic": all
            that was computed; "local": each worker's by what it computed itself, and N. Or a number
            c, by which "none" is multiplied: the paper's constant is 1 - drop rate.
        delay: (step, micro-batch) -> seconds that this process sleeps in it, which its clock
            counts: to try stragglers. None: none.

    Returns:
        The model, and the history: `step` `[steps]`, from 1; `loss`, the mean over the
            micro-batches that were computed; `seconds`, from
        the beginning of the first micro-batch to the end of the step, on the process where that is
        longest; `communication`, T^c; `latencies` `[steps, N, M]`, seconds of each micro-batch, NaN
        of those dropped; `dropped`, their share; `threshold`.

    Raises:
        ValueError: another number of workers than of processes; micro_batches or steps < 1; a
            threshold < 0, or one that would be chosen after the last step; another correction; a
            delay that is negative, infinite or NaN.

    Source: Giladi et al., "DropCompute", Algorithm 1 and appendix B.2.2.
    """
    M, steps = (
        checks.positive_int("train_processes: micro_batches", micro_batches),
        checks.positive_int("train_processes: steps", steps),
    )
    measured = _need_threshold(threshold, steps)
    need_correction("train_processes", correction)
    worker = RealWorker("train_processes", problem, optimizer, key)
    tau = math.inf if isinstance(threshold, ChosenAfter) else float(threshold)
    return _run(
        worker,
        correction if isinstance(correction, str) else float(correction),
        M,
        steps,
        tau,
        measured,
        delay,
    )


def _run(
    worker: RealWorker,
    correction: Correction | float,
    M: int,
    steps: int,
    tau: float,
    measured: int | None,
    delay: Delay | None,
) -> Trained:
    """The steps, and what became of them. Nothing is exchanged while the clock runs but what
    training needs.
    """
    rehearsal = accumulate(
        partial(_turn, worker, M, None, 0), worker.model.params, range(2), math.inf
    )
    # compiled now; what comes of it is forgotten
    jax.block_until_ready(_finished(worker, correction, M, rehearsal))
    rows, losses, taus = [], [], []
    for step in range(steps):
        if step == measured:
            seen = _Times.of(nodes.gathered(rows), M)
            tau = float(best_threshold(seen.latencies, seen.communication, stop="between"))
            # all found the same; and who found it sooner is not to begin sooner
            tau = float(nodes.gathered([[tau]]).max())
        taus.append(tau)
        began = time.monotonic()
        done = accumulate(
            partial(_turn, worker, M, delay, step), worker.model.params, range(M), tau
        )
        worker.model, loss = jax.block_until_ready(_finished(worker, correction, M, done))
        rows.append([*done.seconds, time.monotonic() - began])
        losses.append(loss)
    times = _Times.of(nodes.gathered(rows), M)
    history = {
        "step": np.arange(1, steps + 1),
        "loss": np.array([float(loss) for loss in losses]),
        "seconds": times.seconds,
        "communication": times.communication,
        "latencies": times.latencies,
        "dropped": np.isnan(times.latencies).mean(axis=(1, 2)),
        "threshold": np.array(taus),
    }
    return Trained(worker.model.params, history)


class _Times(NamedTuple):
    """What all workers measured: latencies `[steps, N, M]`, T^c and whole steps `[steps]`."""

    latencies: np.ndarray
    communication: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, M: int) -> _Times:
        """Of the rows `[steps, N, M + 1]`: each micro-batch's seconds, and the whole step's."""
        latencies, whole = rows[..., :M], rows[..., M]
        after = whole - np.nansum(latencies, axis=-1)
        return cls(latencies, np.min(after, axis=1), np.max(whole, axis=1))


def _turn(
    worker: RealWorker, M: int, delay: Delay | None, step: int, params: Params, m: int
) -> PyTree:
    """One micro-batch's loss and gradient, leaves `[1, ...]`."""
    if delay is not None:
        time.sleep(checks.need_delay(f"train_processes: delay({step}, {m})", delay(step, m)))
    return _computed(
        worker.problem, M, worker.n, params, worker.data, worker.key, np.int32(step), np.int32(m)
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _computed(
    problem: Problem,
    M: int,
    n: int,
    params: Params,
    data: PyTree,
    key: jax.Array,
    step: jax.Array,
    m: jax.Array,
) -> tuple[jax.Array, Params]:
    batch = loop.batch_of(problem, key, step, n, data, M, m)
    return jax.tree.map(lambda leaf: leaf[None], oracle.with_loss(problem)(params, batch))


def _finished(
    worker: RealWorker, correction: Correction | float, M: int, done: Accumulated
) -> tuple[Model, jax.Array]:
    """The end of a step: an all-reduce of what the workers have, and the optimizer's step; the
    model, and the mean loss.
    """
    loss, slope = done.total
    weight = np.float32(weight_of(correction, M, worker.N, done.computed))
    sums = worker.sum((loss, _weighted(slope, weight), np.full(1, done.computed, np.float32)))
    return _stepped(worker.optimizer, correction == "stochastic", worker.model, *sums)


def weight_of(correction: Correction | float, M: int, N: int, computed: int) -> float:
    """What a worker's sum of so many gradients counts in the mean; with "stochastic" what is added
    up is divided by all that was computed.

    Args:
        correction: as of `train_processes`.
        M, N: micro-batches, workers.
        computed: of its micro-batches.
    """
    if correction == "stochastic":
        return 1.0
    if correction == "local":
        return 1 / (computed * N)
    return (1.0 if isinstance(correction, str) else correction) / (M * N)


@jax.jit
def _weighted(slope: Params, weight: jax.Array) -> Params:
    return jax.tree.map(lambda leaf: leaf * weight.astype(leaf.dtype), slope)


@partial(jax.jit, static_argnums=(0, 1))
def _stepped(
    optimizer: optax.GradientTransformation,
    divide: bool,
    model: Model,
    loss: jax.Array,
    slope: Params,
    computed: jax.Array,
) -> tuple[Model, jax.Array]:
    """The optimizer's step along the sum of the weighted gradients, which may be divided by all
    that was computed.
    """
    if divide:
        slope = jax.tree.map(lambda leaf: leaf / computed.astype(leaf.dtype), slope)
    return optimizers.step(optimizer, model, slope), loss / computed


def _need_threshold(threshold: float | ChosenAfter, steps: int) -> int | None:
    """After how many steps it is chosen; None: it is given."""
    if not isinstance(threshold, ChosenAfter):
        need_seconds("train_processes", "threshold", threshold, finite=False)
        return None
    if threshold.rounds >= steps:
        raise ValueError(
            f"train_processes: a threshold chosen after {threshold.rounds} of {steps} steps: need "
            "more steps"
        )
    return threshold.rounds


# --- A worker's local batch.


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
    r"""One worker's local batch, until $\tau$: it looks at its clock after each micro-batch, and
    goes on while $T^{(m)} \le \tau$.

    $$ G = \sum_{m=1}^{k} g^{(m)}(\theta), \qquad k = \min \{ m : T^{(m)} > \tau \text{ or } m = M
    \}, \qquad T^{(m)} = \sum_{j=1}^m t_j $$

    `stopping.stopped(..., "between")` says the same of times that are known. Each micro-batch is
    waited for, so that the clock tells what it took. $T^{(m)}$ is the sum of what was measured, in
    the order in which a plan adds it up: plan and worker agree to the last bit.

    Args:
        gradient: (params, batch) -> the micro-batch's gradient, a pytree of arrays, which may have
            its loss in it.
        params: theta.
        batches: the M micro-batches, or whatever `gradient` makes them of.
        threshold: tau, seconds; infinite: all are computed.
        clock: -> seconds, from any origin, that never go back.

    Raises:
        ValueError: no micro-batches; a threshold below 0, or NaN; a clock that gives no number.

    Source: Giladi et al., "DropCompute", Algorithm 1, whose part (2) is a look between two
    micro-batches, as in the paper's own code.
    """
    need_seconds("accumulate", "threshold", threshold, finite=False)
    if not len(batches):
        raise ValueError("accumulate: no micro-batches; need at least one")
    seconds, spent, total = np.full(len(batches), np.nan), 0.0, None
    before = _read(clock)
    for m, batch in enumerate(batches):
        if spent > threshold:
            return Accumulated(total, m, seconds)
        part = leaves.need_arrays("accumulate: gradient", gradient(params, batch))
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
