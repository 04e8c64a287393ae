"""What a real run gives back: the model, the history that `dsgd.run` would give, and every update;
and the cluster that was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from dsgd import checks, clusters, workers
from dsgd.base import Params, Problem, PyTree
from dsgd.engine import leaves, loop, oracle
from dsgd.runs.history import Diverged

_MOST = 4096  # seconds that are kept of each worker, by their quantiles
_FREE = 1e30  # bits per second of a port that is never the slower one


class Trained(NamedTuple):
    """What a real run gives back.

    Args:
        params: the model to take home.
        history: as of `dsgd.run`, numpy arrays `[records]`; `clock` is in real seconds.
        updates: of every gradient that was taken, in their order, numpy arrays `[gradients]`, or,
            of P servers, `[gradients, P]`, each in its own order: `worker`; `draw`, the number of
            its batch in the worker's stream; `staleness`; `clock`, real seconds; `computed`,
            seconds of the gradient; `trip`, those of the worker's messages before it, without the
            seconds that others were waited for (NaN before the first); `busy`, those of the update
            itself. Of several servers also `read` `[gradients, P, P]`: how many updates each part
            had when the gradient's worker read it; of gossip `partner`.
        workers: N.
        bits: of one message, a model's or a gradient's.
    """

    params: Params
    history: dict[str, np.ndarray]
    updates: dict[str, np.ndarray]
    workers: int
    bits: int


@checks.arguments
def measured_cluster(trained: Trained, bits: int | None = None) -> clusters.Cluster:
    """The cluster that a real run was on, as far as it tells: to simulate the same method on, or
    others.

    Each worker's gradients take the seconds that were measured (drawn anew from its own,
    `clusters.measured`). Half of the median trip, less the update, is the latency; the server's
    port is taken for as long as the median update is. In gossip an exchange holds both for the
    median trip.

    Args:
        trained: a real run in which every worker has computed.
        bits: of the model that is to be simulated, whose messages are to take as long; None: it is
            the run's.

    Raises:
        ValueError: bits < 1; there is a worker of which no gradient was taken.
    """
    updates, N = trained.updates, trained.workers
    bits = (
        trained.bits
        if bits is None
        else checks.positive_int("measured_cluster: bits", bits, most=2**63 - 1)
    )
    last = {name: values if values.ndim == 1 else values[:, 0] for name, values in updates.items()}
    tables = []
    for worker in range(N):
        mine = last["computed"][last["worker"] == worker]
        if not mine.size:
            raise ValueError(
                f"measured_cluster: no gradient of worker {worker} was taken: need a longer run"
            )
        tables.append(mine)
    most = min(_MOST, max(map(len, tables)))
    levels = (np.arange(most) + 0.5) / most
    compute = clusters.measured(np.stack([np.quantile(mine, levels) for mine in tables]))
    trip = float(np.nanmedian(last["trip"])) if np.isfinite(last["trip"]).any() else 0.0
    if "partner" in updates:
        return clusters.Cluster(compute, latency=max(trip, 0.0))
    busy = float(np.median(last["busy"])) * (
        updates["busy"].shape[1] if updates["busy"].ndim > 1 else 1
    )
    port = clusters.constant(bits / max(busy, 1e-9))
    return clusters.Cluster(
        compute,
        up=port,
        down=clusters.constant(_FREE),
        latency=max(trip, 0.0) / 2,
        convention="pipelined",
    )


def of_records(
    step: np.ndarray, last: np.ndarray, clock: np.ndarray, staleness: np.ndarray, worker: np.ndarray
) -> dict[str, np.ndarray]:
    """What the history has of each record's last update, `[records]`; of the start, 0 seconds, and
    NaN.

    Args:
        step: updates before each record.
        last: the number of its last update.
        clock, staleness, worker: of the updates.
    """
    values = {"clock": (clock, 0.0), "staleness": (staleness, np.nan), "worker": (worker, np.nan)}
    return {
        name: np.where(step > 0, column[last].astype(float), start)
        for name, (column, start) in values.items()
    }


def evaluated(
    name: str, problem: Problem, models: Sequence[Params], history: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The history with the problem's own scalars at these models, `[records]`.

    Args:
        name: of the method.
        problem: with all data.
        models: of the records.
        history: without these.

    Raises:
        Diverged: the loss became infinite or NaN.
    """
    measure = jax.jit(partial(_measure, loop.without_arrays(problem)))
    rows = [measure(model, problem.data, problem.shared) for model in models]
    scalars = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    finite = np.isfinite(scalars["loss"])
    whole = {"step": history["step"], "bits": history["bits"], **scalars, **history}
    if not finite.all():
        at = int(np.flatnonzero(~finite)[0])
        told = f"{name}: the loss is {scalars['loss'][at]} after update {history['step'][at]}"
        raise Diverged(
            f"{told}; need a smaller step size (the error's .history has what went before)",
            {name: values[: at + 1] for name, values in whole.items()},
        )
    return whole


def _measure(
    problem: Problem, params: Params, data: PyTree, shared: PyTree
) -> dict[str, jax.Array]:
    def block(params, data, shared):
        scalars, slope = oracle.evaluate(problem, params, data, shared)
        norm = (
            jnp.nan if slope is None else sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(slope))
        )
        return {**scalars, "grad_sqnorm": jnp.asarray(norm)}

    spread = jax.shard_map(
        block,
        mesh=workers.mesh(1),
        in_specs=(P(), P(workers.AXIS), P()),
        out_specs=P(),
        check_vma=False,
    )
    return spread(params, data, shared)


def first_params(problem: Problem, key: jax.Array) -> Params:
    """The model before the first update, that of `dsgd.run` with this key; leaves of numpy's."""
    leaves.need_all("on_ray", problem)
    return jax.tree.map(np.asarray, problem.init(loop.split(key)[0]))
