"""DropCompute in real time: one worker per process, which stops by its own clock between
micro-batches.
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
from algorithms.dropcompute.method import Correction, require_correction
from algorithms.dropcompute.speedups import threshold as best_threshold
from algorithms.dropcompute.stopping import require_seconds
from algorithms.dropcompute.thresholds import AutoThreshold
from algorithms.optimizers import Model
from algorithms.real_workers import RealWorker
from dsgd import checks
from dsgd.base import Key, Params, Problem, PyTree
from dsgd.engine import leaves, oracle
from dsgd.machines import nodes

Delay = Callable[[int, int], float]  # (step, micro-batch) -> seconds


class Trained(NamedTuple):
    """Result of `train_processes`, the same in all processes.

    Args:
        params: the final model.
        history: NumPy arrays by name; see `train_processes`.
    """

    params: Params
    history: dict[str, np.ndarray]


@checks.arguments
def train_processes(
    problem: Problem,
    optimizer: optax.GradientTransformation,
    threshold: float | AutoThreshold,
    micro_batches: int,
    *,
    steps: int,
    key: Key,
    correction: Correction | float = "none",
    delay: Delay | None = None,
) -> Trained:
    r"""Synchronous SGD with DropCompute in real time: each process is a worker, which computes
    micro-batches until $\tau$ by its own monotonic clock.

    $$ \theta_{i+1} = \theta_i - \frac{\eta}{M N} \sum_{n=1}^N \sum_{m=1}^{M_n} g_n^{(m)}(\theta_i),
    \qquad
       M_n = \min \{ m : T_n^{(m)} > \tau \text{ or } m = M \} $$

    Every process of an initialized `jax.distributed` makes this call with the same arguments,
    except for `delay`; `dsgd.run_local_processes` starts several processes on one machine. Without
    `jax.distributed` there is one worker. Programs are compiled, and called once, before the clock
    starts. Random draws are those of `dsgd.run`: if nothing is dropped, the iterates are those of
    `minibatch_sgd` with the same number of micro-batches, up to the order of sums.

    $T^c$, the time of a step without the slowest worker's micro-batches, is the minimum over
    workers of the seconds between the end of the worker's own micro-batches and the end of the
    step: all workers wait for the last one, which does not wait. So clocks of different processes
    are never compared. (If some workers learn of the end of the step later than others, the value
    is between the shortest such time and that of the last worker.)

    Args:
        problem: with as many workers as there are processes; process n has the data of worker n.
        optimizer: the step; `optax.sgd(eta)` gives the equation. All processes make the same steps.
        threshold: tau, seconds; infinity: nothing is dropped; or `dropcompute.auto_threshold(I)`:
            all workers measure for I steps, exchange the measurements, and choose the same
            threshold (section 4.4).
        micro_batches: M, each one batch of the problem.
        steps: number of steps.
        key: JAX key from which all random numbers derive.
        correction: the divisor of the sums. "none": M N, as in the equation; "stochastic": the
            total number of computed micro-batches; "local": each worker's own number of computed
            micro-batches, times N. A number c: "none" multiplied by c; the paper's constant is 1 -
            drop rate.
        delay: (step, micro-batch) -> seconds for which this process sleeps in it, included in its
            clock, to emulate stragglers; None: no delay.

    Returns:
        The model and the history: `step` `[steps]`, from 1; `loss`, the mean over the computed
        micro-batches; `seconds` from the start of the first micro-batch to the end of the step, on
        the process where this is longest; `communication`, T^c; `latencies` `[steps, N, M]`,
        seconds of each micro-batch, NaN if it was dropped; `dropped`, the share of dropped
        micro-batches; `threshold`.

    Raises:
        ValueError: if the number of workers differs from the number of processes, micro_batches or
            steps is less than 1, the threshold is negative or would be chosen after the last step,
            the correction is unknown, or a delay is negative, infinite or NaN.

    Source: Giladi et al., "DropCompute", Algorithm 1 and appendix B.2.2.
    """
    M, steps = (
        checks.positive_int("train_processes: micro_batches", micro_batches),
        checks.positive_int("train_processes: steps", steps),
    )
    measured = _require_threshold(threshold, steps)
    require_correction("train_processes", correction)
    worker = RealWorker("train_processes", problem, optimizer, key)
    tau = math.inf if isinstance(threshold, AutoThreshold) else float(threshold)
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
    """Runs the steps; those after the measured ones with the threshold that was chosen."""

    def compute(step: int | None) -> Accumulated:
        batches, limit = (range(2), math.inf) if step is None else (range(M), tau)
        wait = None if step is None else delay
        gradient = partial(_micro_batch, worker, M, wait, step or 0)
        return accumulate(gradient, worker.model.params, batches, limit)

    def finish(done: Accumulated) -> tuple[Model, list[float]]:
        model, loss = jax.block_until_ready(_finish(worker, correction, M, done))
        return model, [*done.seconds, float(loss)]

    rows = worker.run(measured or steps, compute, finish)
    thresholds = [tau] * len(rows)
    if measured is not None:
        known = _Times.from_rows(rows, M)
        tau = float(best_threshold(known.latencies, known.communication, stop="between"))
        # all processes computed the same value; the exchange makes them continue together
        tau = float(nodes.gather([[tau]]).max())
        thresholds += [tau] * (steps - measured)
        rows = np.concatenate([rows, worker.run(steps - measured, compute, finish)])
    times = _Times.from_rows(rows, M)
    history = {
        "step": np.arange(1, steps + 1),
        "loss": rows[:, 0, M],
        "seconds": times.seconds,
        "communication": times.communication,
        "latencies": times.latencies,
        "dropped": np.isnan(times.latencies).mean(axis=(1, 2)),
        "threshold": np.array(thresholds),
    }
    return Trained(worker.model.params, history)


class _Times(NamedTuple):
    """Measurements of all workers: latencies `[steps, N, M]`, T^c and seconds of full steps
    `[steps]`.
    """

    latencies: np.ndarray
    communication: np.ndarray
    seconds: np.ndarray

    @classmethod
    def from_rows(cls, rows: np.ndarray, M: int) -> _Times:
        """Constructs the times from rows `[steps, N, ...]`: first the seconds of each micro-batch,
        last those of the full step.
        """
        latencies, whole = rows[..., :M], rows[..., -1]
        after = whole - np.nansum(latencies, axis=-1)
        return cls(latencies, np.min(after, axis=1), np.max(whole, axis=1))


def _micro_batch(
    worker: RealWorker, M: int, delay: Delay | None, step: int, params: Params, m: int
) -> PyTree:
    """Returns the loss and the gradient of one micro-batch, leaves `[1, ...]`."""
    if delay is not None:
        time.sleep(checks.require_delay(f"train_processes: delay({step}, {m})", delay(step, m)))
    return _loss_and_gradient(
        worker.problem, M, worker.n, params, worker.data, worker.key, np.int32(step), np.int32(m)
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _loss_and_gradient(
    problem: Problem,
    M: int,
    n: int,
    params: Params,
    data: PyTree,
    key: jax.Array,
    step: jax.Array,
    m: jax.Array,
) -> tuple[jax.Array, Params]:
    batch = oracle.draw_batch(problem, key, step, n, data, M, m)
    return jax.tree.map(lambda leaf: leaf[None], oracle.value_and_grad(problem)(params, batch))


def _finish(
    worker: RealWorker, correction: Correction | float, M: int, done: Accumulated
) -> tuple[Model, jax.Array]:
    """Finishes a step with an all-reduce of the workers' sums and the optimizer's step; returns the
    model and the mean loss.
    """
    loss, slope = done.total
    weight = np.float32(weight_of(correction, M, worker.N, done.computed))
    sums = worker.sum((loss, _weight(slope, weight), np.full(1, done.computed, np.float32)))
    return _step(worker.optimizer, correction == "stochastic", worker.model, *sums)


def weight_of(correction: Correction | float, M: int, N: int, computed: int) -> float:
    """Returns the weight of a worker's sum of gradients in the mean. With "stochastic" it is 1, and
    the total is divided by the number of all computed micro-batches later.

    Args:
        correction: see `train_processes`.
        M, N: number of micro-batches and of workers.
        computed: number of micro-batches that the worker computed.
    """
    if correction == "stochastic":
        return 1.0
    if correction == "local":
        return 1 / (computed * N)
    return (1.0 if isinstance(correction, str) else correction) / (M * N)


@jax.jit
def _weight(slope: Params, weight: jax.Array) -> Params:
    return jax.tree.map(lambda leaf: leaf * weight.astype(leaf.dtype), slope)


@partial(jax.jit, static_argnums=(0, 1))
def _step(
    optimizer: optax.GradientTransformation,
    divide: bool,
    model: Model,
    loss: jax.Array,
    slope: Params,
    computed: jax.Array,
) -> tuple[Model, jax.Array]:
    """Makes the optimizer's step along the sum of the weighted gradients; with `divide` the sum is
    divided by the number of all computed micro-batches.
    """
    if divide:
        slope = jax.tree.map(lambda leaf: leaf / computed.astype(leaf.dtype), slope)
    return optimizers.step(optimizer, model, slope), loss / computed


def _require_threshold(threshold: float | AutoThreshold, steps: int) -> int | None:
    """Returns after how many steps the threshold is chosen; None: it is given."""
    if not isinstance(threshold, AutoThreshold):
        require_seconds("train_processes", "threshold", threshold, finite=False)
        return None
    if threshold.rounds >= steps:
        raise ValueError(
            f"train_processes: the threshold is chosen after {threshold.rounds} of {steps} steps; "
            "expected more steps than that"
        )
    return threshold.rounds


# --- A worker's local batch.


class Accumulated(NamedTuple):
    """What a worker computed until it stopped.

    Args:
        total: the sum over the computed micro-batches.
        computed: number of computed micro-batches, at least 1.
        seconds: seconds of each of the M micro-batches, `[M]`; NaN if it was not computed.
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
    r"""Computes one worker's local batch until $\tau$: the worker reads its clock after each
    micro-batch, and continues while $T^{(m)} \le \tau$.

    $$ G = \sum_{m=1}^{k} g^{(m)}(\theta), \qquad k = \min \{ m : T^{(m)} > \tau \text{ or } m = M
    \}, \qquad T^{(m)} = \sum_{j=1}^m t_j $$

    For known times, `stopping.stop_workers(..., "between")` gives the same result. The function
    waits for the end of each micro-batch, so that the clock measures its time. $T^{(m)}$ is the sum
    of the measured times in the same order as in planning, so that plan and worker agree exactly.

    Args:
        gradient: (params, batch) -> the micro-batch's gradient, a pytree of arrays, which may
            include its loss.
        params: theta.
        batches: the M micro-batches, or any values from which `gradient` makes them.
        threshold: tau, seconds; infinity: all are computed.
        clock: () -> seconds, from any origin, never decreasing.

    Raises:
        ValueError: if there are no micro-batches, the threshold is negative or NaN, or the clock
            returns something other than a number.

    Source: Giladi et al., "DropCompute", Algorithm 1, whose part (2) reads the clock between two
    micro-batches, as in the paper's own code.
    """
    require_seconds("accumulate", "threshold", threshold, finite=False)
    if not len(batches):
        raise ValueError("accumulate: batches = []; expected at least one micro-batch")
    seconds, spent, total = np.full(len(batches), np.nan), 0.0, None
    before = _read(clock)
    for m, batch in enumerate(batches):
        if spent > threshold:
            return Accumulated(total, m, seconds)
        part = leaves.require_arrays("accumulate: gradient", gradient(params, batch))
        total = jax.block_until_ready(part if m == 0 else _add(total, part))
        now = _read(clock)
        seconds[m], before = now - before, now
        spent += seconds[m].item()
    return Accumulated(total, len(batches), seconds)


def _read(clock: Callable[[], float]) -> float:
    now = clock()
    if not checks.is_number(now):
        raise ValueError(f"accumulate: clock returned {checks.show(now)}; expected seconds")
    return now


_add = jax.jit(partial(jax.tree.map, jnp.add))
