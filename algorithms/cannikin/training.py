"""Training in epochs on a simulated cluster, before each of which a system decides the local batch
of every node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dsgd
from algorithms.cannikin import epochs as own
from algorithms.cannikin import scalings
from algorithms.cannikin.epochs import Epoch, EpochMeasurements, Limits, Training
from algorithms.cannikin.policies import System
from algorithms.with_diagnostics import with_diagnostics
from algorithms.with_local_work import with_local_work
from dsgd import checks, work
from dsgd.base import Algorithm, Key, Problem, PyTree, State
from dsgd.clusters import Cluster
from dsgd.engine import protocol
from dsgd.engine.columns import RESERVED

# rounds between evaluations; the same number for all stages, because each number is compiled
# separately
_AT_THE_END = 1 << 30


@checks.arguments
def train(
    method: Algorithm,
    problem: Problem,
    system: System,
    *,
    cluster: Cluster,
    epochs: int,
    key: Key,
    micro_batches: int,
    samples: int | None = None,
    limits: Limits | None = None,
    scaling: scalings.Scaling = scalings.constant,
    initial_batch: int | None = None,
    smoothing: float = 0.3,
    present: Annotated[Callable[[int], np.ndarray], "(epoch)"] | None = None,
    until: Annotated[Callable[[list[Epoch]], bool], "(epochs)"] | None = None,
    mesh: int | None = 1,
) -> Training:
    """Trains in epochs whose local batches a system decides from the nodes' measurements in earlier
    epochs.

    The samples of all nodes have equal weight (equation 9). The step size is the optimizer's times
    the factor that `scaling` computes from the noise scale. All epochs are stages of one compiled
    run. Each epoch's `scalars` are the problem's after the epoch: "loss", and everything else that
    it evaluates.

    Args:
        method: any method that takes the mean over workers; its optimizer must be wrapped in
            `cannikin.scalable` if there is a `scaling`.
        problem: its N workers are the nodes; it must have a batch_size and be able to truncate its
            batches.
        system: `cannikin.cannikin(...)`, `equal_split`, `lb_bsp`, `adaptdl`, or a custom one.
        cluster: must have an overlap, and `single_batch` if there are several micro-batches.
        epochs: maximal number of epochs.
        key: JAX key from which all random numbers derive.
        micro_batches: M, number of pieces in which a local batch is simulated; a node may have at
            most M batch_size samples.
        samples: number of samples of an epoch, rounded up to full rounds, at least two, because the
            timings of a round are available in the next one; None: the number of samples of all
            workers.
        limits: number of samples for which each node has memory, `[N]`; None: M batch_size.
        scaling: `cannikin.adascale`, `square_root` or `constant`.
        initial_batch: B_0 of the scaling; None: the first epoch's total batch.
        smoothing: weight of the newest epoch in the averages of S and G, in (0, 1].
        present: epoch -> which nodes participate, bool `[N]`; None: all. What was learned about a
            node is lost when it leaves.
        until: (epochs so far) -> whether to stop.
        mesh: number of devices.

    Returns:
        The epochs, the last state of the method, and the final model.

    Raises:
        ValueError: if epochs, micro_batches, samples or initial_batch is less than 1, smoothing is
            not in (0, 1], the problem has no batch_size or cannot truncate its batches, the cluster
            has no overlap or computes micro-batches one by one, or limits are for another N. During
            training: if a system's batches are not valid, a factor is not 1 although the optimizer
            is not `scalable`, or no node participates.
    """
    decides = {
        "scaling": scaling,
        "initial_batch": initial_batch,
        "smoothing": smoothing,
        "present": present,
        "until": until,
    }
    lengths = {
        "epochs": epochs,
        "micro_batches": micro_batches,
        "samples": samples,
        "limits": limits,
    }
    plan = own.make_plan(
        "cannikin.train",
        problem,
        system,
        _require_overlap(cluster, micro_batches),
        **lengths,
        **decides,
    )
    running = size_method(method, problem.batch_size, micro_batches)
    state = protocol.Method(running, problem, problem.workers).init(
        problem.init(jax.random.split(key)[0])
    )
    params = None

    def run(sizes: np.ndarray, factor: float, rounds: int) -> EpochMeasurements:
        nonlocal state, params
        stage = {
            "steps": rounds,
            "evaluate_every": _AT_THE_END,
            "key": key,
            "cluster": cluster,
            "mesh": mesh,
        }
        result = dsgd.run(running, problem, start=with_batches(state, sizes, factor), **stage)
        state, params = result.state, result.params
        return _ran(result.history)

    found = own.run_epochs(plan, run)
    return Training(found, state._replace(server=state.server.method), params)


class Sized(NamedTuple):
    """Server state of a method of `size_method`.

    Args:
        method: the server state of the wrapped method.
        sizes: samples of each worker, int32 `[N]`.
    """

    method: PyTree
    sizes: jax.Array


@lru_cache(maxsize=32)
def size_method(method: Algorithm, batch_size: int, micro_batches: int) -> Algorithm:
    """Returns the method with local batches that are part of its state, initially 0, so that they
    can change between two stages of a run, and with the nodes' measurements in the history.

    Returns the same object for the same arguments, so that other systems and seeds reuse the
    compiled programs.

    Args:
        method: any method that `with_local_work` accepts.
        batch_size, micro_batches: see `work.local_batches`.
    """

    def local_batches(state: State, round: dsgd.Round) -> dsgd.LocalWork:
        return work.local_batches(
            state.server.sizes, batch_size=batch_size, micro_batches=micro_batches
        )

    def inner(state: State) -> State:
        return state._replace(server=state.server.method)

    def init(params, N):
        state = method.init(params, N)
        return state._replace(server=Sized(state.server, jnp.zeros(N, jnp.int32)))

    def query(state, round):
        return with_local_work(method, local_batches(state, round)).query(inner(state), round)

    def update(state, gradients, round):
        after = method.update(inner(state), gradients, round)
        return after._replace(server=Sized(after.server, state.server.sizes))

    members = {
        "init": init,
        "query": query,
        "update": update,
        "model": lambda state: method.model(inner(state)),
    }
    return with_diagnostics(method._replace(name=f"sized({method.name})", **members))


def with_batches(state: State, sizes: np.ndarray, factor: float) -> State:
    """Returns the state with other local batches, and another factor in every `Scale`.

    Args:
        state: of a method of `size_method`.
        sizes: samples of each worker, int `[N]`.
        factor: of the step size.

    Raises:
        ValueError: see `scalings.rescale`.
    """
    state = scalings.rescale("cannikin.train", state, factor)
    return state._replace(server=state.server._replace(sizes=jnp.asarray(sizes, jnp.int32)))


def _ran(history: dict[str, np.ndarray]) -> EpochMeasurements:
    """Extracts the measurements from a history. A record contains the timings of the round before;
    the first record has none.
    """
    compute, backward, first, up = (
        history[f"measured_{name}"][own.LEAST :] for name in ("compute", "backward", "first", "up")
    )
    names = history.keys() - {"global_sqnorm", *RESERVED}
    scalars = {name: float(history[name][-1]) for name in sorted(names) if history[name].ndim == 1}
    sqnorms = history["local_sqnorms"][1:], history["global_sqnorm"][1:]
    return EpochMeasurements(
        float(history["clock"][-1]), compute, backward, first, up, *sqnorms, scalars
    )


def _require_overlap(cluster: Cluster, micro_batches: int) -> float:
    if cluster.overlap is None:
        raise ValueError(
            f"cannikin.train: the cluster {cluster.name} has no overlap; expected one, for which "
            "nodes measure their timings"
        )
    if micro_batches > 1 and not cluster.single_batch:
        raise ValueError(
            f"cannikin.train: {micro_batches} micro-batches on a cluster that computes them one by "
            "one; expected a cluster with single_batch=True"
        )
    return cluster.overlap.last
