"""DropCompute on the real clock: one worker a process, which stops by its own clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms import optimizers
from algorithms.dropcompute.method import Correction, need_correction
from algorithms.dropcompute.speedups import threshold as best_threshold
from algorithms.dropcompute.stopping import need_seconds
from algorithms.dropcompute.stopwatch import accumulate
from algorithms.dropcompute.thresholds import ChosenAfter
from algorithms.optimizers import Model
from dsgd import checks, workers
from dsgd.base import Key, Params, Problem, PyTree
from dsgd.engine import leaves, loop, oracle
from dsgd.machines import arrays, nodes

Delay = Callable[[int, int], float]  # (step, micro-batch) -> seconds
Turn = Callable[[int, Delay | None, Params, int], PyTree]  # (step, delay, params, micro-batch) -> its loss and gradient, leaves [1, ...]
Finish = Callable[[Model, PyTree, int], tuple[Model, jax.Array]]  # (model, sums, of how many) -> the next model, the mean loss


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
    r"""Synchronous SGD in real time: each process is a worker, which computes micro-batches until $\tau$ by its own monotonic clock.

    $$ \theta_{i+1} = \theta_i - \frac{\eta}{M N} \sum_{n=1}^N \sum_{m=1}^{M_n} g_n^{(m)}(\theta_i), \qquad
       M_n = \min \{ m : T_n^{(m)} > \tau \text{ or } m = M \} $$

    Every process of an initialised `jax.distributed` calls it with the same arguments, but for `delay`; `dsgd.loopback` starts some
    on one machine. Without that, it is one worker. Programs are compiled, and called once, before the clock begins. Draws are those of
    `dsgd.run`: where nothing is dropped, the iterates are those of `minibatch_sgd` with as many micro-batches, up to the order of sums.

    $T^c$, what a step takes besides the slowest worker's micro-batches, is the least of the seconds that the workers spent from the end
    of their own to the end of the step: they all wait for the last one, which waits for nobody. So no clocks need to be compared. (Where
    a worker is told of the end later than another, it is between the shortest such tail and that of the last worker.)

    Args:
        problem: with as many workers as there are processes; process n has the data of worker n.
        optimizer: the step; `optax.sgd(eta)` is the equation. All processes make it alike.
        threshold: tau, seconds, infinite: nothing is dropped; or `dropcompute.chosen_after(I)`: all measure for I steps, tell each
            other, and find the same one (section 4.4).
        micro_batches: M, each one draw of the problem.
        steps: how many.
        key: of everything random.
        correction: what sums are divided by. "none": M N, as in the equation; "stochastic": all that was computed; "local": each worker's
            by what it computed itself, and N. Or a number c, by which "none" is multiplied: the paper's constant is 1 - drop rate.
        delay: (step, micro-batch) -> seconds that this process sleeps in it, which its clock counts: to try stragglers. None: none.

    Returns:
        The model, and the history: `step` `[steps]`, from 1; `loss`, the mean over the micro-batches that were computed; `seconds`, from
        the beginning of the first micro-batch to the end of the step, on the process where that is longest; `communication`, T^c;
        `latencies` `[steps, N, M]`, seconds of each micro-batch, NaN of those dropped; `dropped`, their share; `threshold`.

    Raises:
        ValueError: another number of workers than of processes; micro_batches or steps < 1; a threshold < 0, or one that would be chosen
            after the last step; another correction; a delay that is negative, infinite or NaN.

    Source: Giladi et al., "DropCompute", Algorithm 1 and appendix B.2.2.
    """
    M, steps = checks.positive_int("train_processes: micro_batches", micro_batches), checks.positive_int("train_processes: steps", steps)
    measured = _need_threshold(threshold, steps)
    need_correction("train_processes", correction)
    leaves.need_all("train_processes", problem)
    mesh = nodes.mesh("train_processes", problem.workers)
    turn = _turn(problem, loop.split(key)[1], M, mesh)
    finish = _finish(optimizer, correction if isinstance(correction, str) else float(correction), M, mesh)
    model = _first_model(problem, optimizer, loop.split(key)[0], mesh)
    tau = math.inf if isinstance(threshold, ChosenAfter) else float(threshold)
    return _run(turn, finish, model, M, steps, tau, measured, delay)


def _run(turn: Turn, finish: Finish, model: Model, M: int, steps: int, tau: float, measured: int | None, delay: Delay | None) -> Trained:
    """The steps, and what became of them. Nothing is exchanged while the clock runs but what training needs."""
    rehearsal = accumulate(partial(turn, 0, None), nodes.own(model.params), range(2), math.inf)
    jax.block_until_ready(finish(model, rehearsal.total, rehearsal.computed))  # compiled now; what comes of it is forgotten
    rows, losses, taus = [], [], []
    for step in range(steps):
        if step == measured:
            seen = _Times.of(nodes.gathered(rows), M)
            tau = float(best_threshold(seen.latencies, seen.communication, stop="between"))
            tau = float(nodes.gathered([[tau]]).max())  # all found the same; and who found it sooner is not to begin sooner
        taus.append(tau)
        began = time.monotonic()
        done = accumulate(partial(turn, step, delay), nodes.own(model.params), range(M), tau)
        model, loss = jax.block_until_ready(finish(model, done.total, done.computed))
        rows.append([*done.seconds, time.monotonic() - began])
        losses.append(loss)
    times = _Times.of(nodes.gathered(rows), M)
    history = {
        "step": np.arange(1, steps + 1),
        "loss": np.array([float(nodes.own(loss)) for loss in losses]),
        "seconds": times.seconds,
        "communication": times.communication,
        "latencies": times.latencies,
        "dropped": np.isnan(times.latencies).mean(axis=(1, 2)),
        "threshold": np.array(taus),
    }
    return Trained(nodes.own(model.params), history)


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


# Programs are found again where problem and optimiser are the same, in one process: their functions are static arguments.


def _first_model(problem: Problem, optimizer: optax.GradientTransformation, key: jax.Array, mesh: Mesh) -> Model:
    """The model before the first step, on every process."""
    return arrays.put(optimizers.drawn(problem.init, optimizer, key), NamedSharding(mesh, P()))


def _turn(problem: Problem, key: jax.Array, M: int, mesh: Mesh) -> Turn:
    """Micro-batches of the worker that this process is."""
    n, here = jax.process_index(), mesh.local_devices[0]
    data = jax.device_put(jax.tree.map(lambda leaf: arrays.row(leaf, n), problem.data), here)
    functions = oracle.of_worker(problem, n)

    def turn(step: int, delay: Delay | None, params: Params, m: int) -> PyTree:
        if delay is not None:
            time.sleep(checks.need_delay(f"train_processes: delay({step}, {m})", delay(step, m)))
        return _compute(functions, M, n, params, data, key, np.int32(step), np.int32(m))

    return turn


@partial(jax.jit, static_argnums=(0, 1, 2))
def _compute(
    problem: Problem, M: int, n: int, params: Params, data: PyTree, key: jax.Array, step: jax.Array, m: jax.Array
) -> tuple[jax.Array, Params]:
    batch = loop.batch_of(problem, key, step, n, data, M, m)
    return jax.tree.map(lambda leaf: leaf[None], oracle.with_loss(problem)(params, batch))


def _finish(optimizer: optax.GradientTransformation, correction: Correction | float, M: int, mesh: Mesh) -> Finish:
    """The end of a step."""

    def finish(model: Model, total: PyTree, count: int) -> tuple[Model, jax.Array]:
        return _combine(optimizer, correction, M, mesh, model, *nodes.rows((total, np.full(1, count, np.float32)), mesh))

    return finish


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _combine(
    optimizer: optax.GradientTransformation,
    correction: Correction | float,
    M: int,
    mesh: Mesh,
    model: Model,
    total: PyTree,
    count: jax.Array,
) -> tuple[Model, jax.Array]:
    """An all-reduce of what the workers have, leaves `[N, ...]` of which each has its own, and the optimiser's step, as one program."""

    def combined(model, total, count):
        loss, slope = jax.tree.map(lambda leaf: leaf[0], total)
        if correction == "local":
            slope = jax.tree.map(lambda leaf: leaf / count[0].astype(leaf.dtype), slope)
        flat, unravel = ravel_pytree((loss, slope, count[0]))  # one message
        loss, slope, computed = unravel(lax.psum(flat, workers.AXIS))
        if correction == "stochastic":
            factor = 1 / computed
        elif correction == "local":
            factor = 1 / mesh.size
        else:
            factor = (1.0 if isinstance(correction, str) else correction) / (M * mesh.size)
        slope = jax.tree.map(lambda leaf: leaf * jnp.asarray(factor, leaf.dtype), slope)
        return optimizers.step(optimizer, model, slope), loss / computed

    own = P(workers.AXIS)
    return jax.shard_map(combined, mesh=mesh, in_specs=(P(), own, own), out_specs=P())(model, total, count)


def _need_threshold(threshold: float | ChosenAfter, steps: int) -> int | None:
    """After how many steps it is chosen; None: it is given."""
    if not isinstance(threshold, ChosenAfter):
        need_seconds("train_processes", "threshold", threshold, finite=False)
        return None
    if threshold.rounds >= steps:
        raise ValueError(f"train_processes: a threshold chosen after {threshold.rounds} of {steps} steps: need more steps")
    return threshold.rounds
