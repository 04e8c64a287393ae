"""Results of a run in real processes, and the cluster that was measured in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from dsgd import checks, clusters, workers
from dsgd.base import Params, Problem, PyTree
from dsgd.engine import leaves, oracle, run_keys
from dsgd.engine.plan import drop_arrays
from dsgd.runs.history import Diverged

_MOST = 4096  # number of quantiles kept of each worker's seconds
_FREE = 1e30  # bits per second of a port that is never the bottleneck


class Trained(NamedTuple):
    """Result of a run in real processes.

    Args:
        params: the final model.
        history: as that of `dsgd.run`, NumPy arrays `[records]`; `clock` is in real seconds.
        updates: series over all applied gradients, NumPy arrays `[gradients]`, or with P servers
            `[gradients, P]`, in each server's own order: `worker`; `draw`, the number of its batch
            in the worker's stream (of a local run, the last one); `staleness`, and `delay`, the
            same in steps of the server; `server_steps`; `clock`, real seconds; `computed`, seconds
            of the gradient (of a local run, their mean); `round_trip`, seconds of the worker's
            messages before it, without the time spent waiting for other workers (NaN before the
            first); `busy`, seconds of the update. With several servers also `read`
            `[gradients, P, P]`: the number of updates of each shard when the worker read it. For
            gossip also `partner`; it has no `delay` and no `server_steps`.
        workers: N.
        bits: size of one message, a model or a gradient.
    """

    params: Params
    history: dict[str, np.ndarray]
    updates: dict[str, np.ndarray]
    workers: int
    bits: int


@checks.arguments
def measured_cluster(trained: Trained, bits: int | None = None) -> clusters.Cluster:
    """Returns a model of the cluster on which a real run was made, for simulations of the same
    method or others.

    Each worker's gradients take the measured seconds (drawn from the worker's own measurements,
    `clusters.measured`). The latency is half of the median round trip without the update; the
    server's port is busy for the time of the median update. In gossip an exchange occupies both
    workers for the median round trip.

    Args:
        trained: a real run in which every worker computed at least one gradient.
        bits: size of the model that will be simulated, whose messages shall take the same time;
            None: that of the run.

    Raises:
        ValueError: if bits is less than 1, or no gradient of some worker was applied.
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
                f"measured_cluster: no gradient of worker {worker} was applied; expected at "
                "least one from each worker: pass a longer run"
            )
        tables.append(mine)
    most = min(_MOST, max(map(len, tables)))
    levels = (np.arange(most) + 0.5) / most
    compute = clusters.measured(np.stack([np.quantile(mine, levels) for mine in tables]))
    round_trip = (
        float(np.nanmedian(last["round_trip"])) if np.isfinite(last["round_trip"]).any() else 0.0
    )
    if "partner" in updates:
        return clusters.Cluster(compute, latency=max(round_trip, 0.0))
    busy = float(np.median(last["busy"])) * (
        updates["busy"].shape[1] if updates["busy"].ndim > 1 else 1
    )
    port = clusters.constant(bits / max(busy, 1e-9))
    return clusters.Cluster(
        compute,
        up=port,
        down=clusters.constant(_FREE),
        latency=max(round_trip, 0.0) / 2,
        convention="pipelined",
    )


def select_records(
    step: np.ndarray, last: np.ndarray, columns: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the history's series of each record's last update, `[records]`; the initial record
    has clock 0, and NaN otherwise.

    Args:
        step: number of updates before each record.
        last: index of its last update.
        columns: series over the updates, by name.
    """
    return {
        name: np.where(step > 0, series[last].astype(float), 0.0 if name == "clock" else np.nan)
        for name, series in columns.items()
    }


def evaluate(
    name: str, problem: Problem, models: Sequence[Params], history: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the history with the problem's own scalars at these models, `[records]`.

    Args:
        name: of the method.
        problem: with all data.
        models: one for each record.
        history: without the problem's scalars.

    Raises:
        Diverged: if the loss became infinite or NaN.
    """
    measure = jax.jit(partial(_measure, drop_arrays(problem)))
    rows = [measure(model, problem.data, problem.evaluation.replicated) for model in models]
    scalars = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    finite = np.isfinite(scalars["loss"])
    whole = {"step": history["step"], "bits": history["bits"], **scalars, **history}
    if not finite.all():
        at = int(np.flatnonzero(~finite)[0])
        diverged = f"{name}: the loss is {scalars['loss'][at]} after update {history['step'][at]}"
        raise Diverged(
            f"{diverged}; pass a smaller step size (the error's .history has the records before)",
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
    """Returns the initial model of `dsgd.run` with this key, with NumPy leaves."""
    leaves.require_all("on_ray", problem)
    return jax.tree.map(np.asarray, problem.init(run_keys.split(key)[0]))
