"""Training in epochs on a simulated cluster, before each of which a system decides how much every
node computes.
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
from algorithms.cannikin.epochs import Epoch, Limits, Ran, Training
from algorithms.cannikin.policies import System
from algorithms.observed import observed
from algorithms.unequal_work import unequal_work
from dsgd import checks, work
from dsgd.base import Algorithm, Key, Problem, PyTree, State
from dsgd.clusters import Cluster
from dsgd.engine import protocol
from dsgd.engine.oracle import RESERVED

# rounds between evaluations: one number for all stages, however long, since each other one is
# another program
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
    r"""Epochs whose local batches a system decides, from what nodes have measured in those before.

    The samples of all nodes count the same (equation 9); the step size is the optimiser's times
    what `scaling` says of the noise scale. All epochs are stages of one compiled run. Each epoch's
    `scalars` are the problem's, after it: "loss", and what else it evaluates.

    Args:
        method: any that takes the mean over workers, its optimiser made `cannikin.scalable` where
            there is a `scaling`.
        problem: whose N workers are the nodes, with a batch_size that is cut.
        system: `cannikin.cannikin(...)`, `equal_split`, `lb_bsp`, `adaptdl`, or one of your own.
        cluster: with an overlap, and `at_once` where there are several micro-batches.
        epochs: at most.
        key: of everything random.
        micro_batches: M, pieces in which a local batch is simulated; M batch_size samples are the
            most that any node may have.
        samples: of an epoch, which has whole rounds, and at least two: nodes know the times of one
            in the next; None: as many as all workers have.
        limits: samples for which each node has memory; None: M batch_size.
        scaling: `cannikin.adascale`, `square_root` or `constant`.
        initial_batch: B_0 of the scaling; None: the first epoch's.
        smoothing: of S and G, the weight of the newest epoch.
        present: epoch -> which nodes are there, bool `[N]`; None: all. Who leaves loses what was
            learned of it.
        until: of the epochs so far, whether that was the last one.
        mesh: devices.

    Raises:
        ValueError: epochs, micro_batches, samples or initial_batch < 1, a smoothing outside (0, 1],
            a problem that has no batch_size or cannot cut its batches, a cluster without an
            overlap, or that takes micro-batches for batches of their own; limits for another N.
            When it runs: a system's batches that do not fit, a scaling of steps that are not
            `scalable`, nobody present.
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
        _need_overlap(cluster, micro_batches),
        **lengths,
        **decides,
    )
    running = sized(method, problem.batch_size, micro_batches)
    state = protocol.Method(running, problem, problem.workers).init(
        problem.init(jax.random.split(key)[0])
    )
    params = None

    def run(sizes: np.ndarray, factor: float, rounds: int) -> Ran:
        nonlocal state, params
        stage = {
            "steps": rounds,
            "evaluate_every": _AT_THE_END,
            "key": key,
            "cluster": cluster,
            "mesh": mesh,
        }
        state, history, params = dsgd.run(
            running, problem, start=decided(state, sizes, factor), **stage
        )
        return _ran(history)

    found = own.follow(plan, run)
    return Training(found, state._replace(server=state.server.method), params)


class Sized(NamedTuple):
    """What is held once.

    Args:
        method: of the method.
        sizes: samples of each worker, int32 `[N]`.
    """

    method: PyTree
    sizes: jax.Array


@lru_cache(maxsize=32)
def sized(method: Algorithm, batch_size: int, micro_batches: int) -> Algorithm:
    """The method with local batches that are part of its state, 0 at the start, so that they may
    change between two stages of a run; and with what its nodes measure in the history.

    The same one for the same arguments: what other systems, or seeds, have run is not traced again.

    Args:
        method: any that `unequal_work` takes.
        batch_size, micro_batches: as of `work.local_batches`.
    """

    def given(state: State, round: dsgd.Round) -> dsgd.Work:
        return work.local_batches(
            state.server.sizes, batch_size=batch_size, micro_batches=micro_batches
        )

    def inner(state: State) -> State:
        return state._replace(server=state.server.method)

    def init(params, N):
        state = method.init(params, N)
        return state._replace(server=Sized(state.server, jnp.zeros(N, jnp.int32)))

    def query(state, round):
        return unequal_work(method, given(state, round)).query(inner(state), round)

    def update(state, gradients, round):
        after = method.update(inner(state), gradients, round)
        return after._replace(server=Sized(after.server, state.server.sizes))

    members = {
        "init": init,
        "query": query,
        "update": update,
        "model": lambda state: method.model(inner(state)),
    }
    return observed(method._replace(name=f"sized({method.name})", **members))


def decided(state: State, sizes: np.ndarray, factor: float) -> State:
    """With other local batches, and another factor wherever there is one.

    Args:
        state: of a `sized` method.
        sizes: samples of each worker, int `[N]`.
        factor: of the step size.

    Raises:
        ValueError: as of `scalings.rescaled`.
    """
    state = scalings.rescaled("cannikin.train", state, factor)
    return state._replace(server=state.server._replace(sizes=jnp.asarray(sizes, jnp.int32)))


def _ran(history: dict[str, np.ndarray]) -> Ran:
    """A record has the times of the round before; the first one has none."""
    compute, backward, first, up = (
        history[f"measured_{name}"][own.LEAST :] for name in ("compute", "backward", "first", "up")
    )
    names = history.keys() - {"global_sqnorm", *RESERVED}
    scalars = {name: float(history[name][-1]) for name in sorted(names) if history[name].ndim == 1}
    sqnorms = history["local_sqnorms"][1:], history["global_sqnorm"][1:]
    return Ran(float(history["clock"][-1]), compute, backward, first, up, *sqnorms, scalars)


def _need_overlap(cluster: Cluster, micro_batches: int) -> float:
    if cluster.overlap is None:
        raise ValueError(
            f"cannikin.train: a cluster without an overlap ({cluster.name}): need one, of which "
            "nodes measure their times"
        )
    if micro_batches > 1 and not cluster.at_once:
        raise ValueError(
            f"cannikin.train: {micro_batches} micro-batches as batches of their own: need a "
            "cluster with at_once=True"
        )
    return cluster.overlap.last
