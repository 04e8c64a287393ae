"""Decides before a run whether a round has rows for all N workers, or for a cohort only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from dsgd.base import Algorithm, AllRows, PyTree, State
from dsgd.engine import queries, randomness
from dsgd.engine.cohorts import Clients, Layout
from dsgd.engine.plan import Plan
from dsgd.engine.probe import Probe, probe
from dsgd.graphs import sizes


def choose(
    plan: Plan,
    methods: Sequence[Algorithm],
    devices: Callable[[int], int],
    start: State | None = None,
    streamed: bool = False,
) -> Layout | str:
    """Returns the layout of a run, or the reason why the rows of all workers are computed.

    Args:
        plan: plan of the run without a layout, on a cluster where workers may not participate.
        methods: the methods of a run or a sweep.
        devices: m -> number of devices of a run with rows for m workers.
        start: the state from which the run continues, or None.
        streamed: whether the user supplies the batches.
    """
    cluster, N = plan.cluster, plan.N
    assert cluster is not None
    assert cluster.present is not None
    most, period = cluster.present.most_of(N), cluster.participation_period
    if most >= N:
        return f"{cluster.present.name} states no bound below N for the workers at once"
    if period > 1 and not cluster.present.time_invariant:
        return f"{cluster.present.name} depends on the clock within a participation period"
    if jax.process_count() > 1:
        return "each process has the data of its own workers"
    if streamed:
        return "the batches of all workers are streamed"
    D = devices(most)
    rows = -(-most // D) * D
    if rows >= N:
        return f"{rows} rows on {D} devices are not fewer than the {N} workers"
    first, *others = (_of_method(plan, method, rows, most, start) for method in methods)
    for other in others:
        if isinstance(first, Layout) and other != first:
            return other if isinstance(other, str) else "the methods synchronize at other rounds"
    return first


def place_store(
    plan: Plan, method: Algorithm, layout: Layout, size: int, folder: Path | None
) -> tuple[Layout, str]:
    """Returns the layout with the leaves that the host stores, and how many rows a round has and
    how much is stored for all workers.

    Args:
        plan: plan of the run.
        method: the method.
        layout: the layout of the run.
        size: number of independent runs.
        folder: folder for files of what workers keep; None: the memory of the devices if it fits,
            else that of the host.

    Raises:
        ValueError: if what the workers keep does not fit, or cannot be in files.
    """
    N, rows = plan.N, jax.tree.leaves(_state(plan, method).workers)
    each = [leaf.dtype.itemsize * math.prod(leaf.shape[1:]) for leaf in rows]
    kept = sum(width for width, keeps in zip(each, layout.kept, strict=True) if keeps)
    total, host = size * N * kept, sizes.machine_memory()
    device = plan.mesh.local_devices[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    memory = host if limit is None else limit * plan.mesh.size
    runs = f" in {size} runs" if size > 1 else ""
    beginning = f"{layout.rows} of {N:,} workers have rows; all of them keep {kept:,} bytes each"
    if folder is None and total <= memory:
        return layout, f"{beginning} on the device, {total / 1e6:,.1f} MB{runs}"
    needed = (
        f"{method.name}: what {N:,} workers keep while they do not participate, {kept:,} bytes "
        f"each{runs}, needs {total / 1e9:,.1f} GB"
    )
    smaller = (
        "fewer workers, a smaller model, or a method of workers that keep nothing, such as "
        "algorithms.fed_avg"
    )
    why = None
    if plan.runs > 1:
        why = "runs of a sweep are on the devices"
    elif not layout.common_models:
        why = "the history reads all of it"
    hosted = _hosted(plan, method, layout) if why is None else ()
    in_host = size * N * sum(each[i] for i in hosted)
    if total - in_host > memory:
        why = why or "workers begin with different rows"
        raise ValueError(
            f"{needed}; expected at most the memory of the devices, {memory / 1e9:,.1f} GB, since "
            f"{why}; pass {smaller}"
        )
    if why is not None:
        raise ValueError(f"run: store = {str(folder)!r}, but {why}; expected no store")
    if folder is None and in_host > host:
        raise ValueError(
            f"{needed}; expected at most the memory of this machine, {host / 1e9:,.1f} GB; pass "
            f"store=FOLDER, which keeps it in files, or {smaller}"
        )
    where = "the memory of the host" if folder is None else f"files in {folder}"
    return (
        layout._replace(hosted=hosted),
        f"{beginning} in {where}, {total / 1e6:,.1f} MB{runs}",
    )


def _of_method(
    plan: Plan, method: Algorithm, rows: int, most: int, start: State | None
) -> Layout | str:
    """Returns the layout for a method, or the reason why there is none."""
    cluster, found = plan.cluster, probe(plan, method)
    assert cluster is not None
    if found.asks_some:
        return f"{method.name} chooses the workers that compute"
    if any(sending.transport.topology for sending in found.sendings):
        return f"{method.name} sends messages on a graph"
    state = _state(plan, method)
    kept = _kept(method, state.workers)
    if kept is None:
        return f"the state of {method.name} for workers that do not participate is not common"
    if start is not None and not _is_common(start, state.workers, kept, plan.N):
        return "workers begin from different states, or from those of another run"
    period, common = cluster.participation_period, _has_common_models(method, state, kept, found)
    if all(kept):
        return Layout(rows, most, period, 1, kept, common)
    if cluster.delivered is not None:
        return f"messages of {method.name} may be lost, so that workers differ"
    if plan.problem.weights is not None and 0 in plan.problem.weights:
        return "some workers have the weight 0"
    periods = [sending.period for sending in found.sendings]
    if len(set(periods)) != 1 or not isinstance(periods[0], int) or periods[0] < 1:
        return f"{method.name} does not synchronize at fixed rounds"
    if period % (synchronized := periods[0]):
        return (
            f"participation_period = {period} is not a multiple of the {synchronized} rounds "
            f"between two synchronizations of {method.name}"
        )
    return Layout(rows, most, period, synchronized, kept, common)


def _init(plan: Plan, method: Algorithm) -> Callable[[jax.Array], State]:
    """Returns the function key -> the first state of all workers."""
    return lambda key: (
        plan._replace(build=lambda point: method).method({}).init(plan.problem.init(key))
    )


def _state(plan: Plan, method: Algorithm) -> State:
    """Returns the shapes of the first state of all workers."""
    return jax.eval_shape(_init(plan, method), jax.eval_shape(lambda: jax.random.key(0)))


def _kept(method: Algorithm, rows: PyTree) -> tuple[bool, ...] | None:
    """Returns for each leaf of the workers' state whether a worker keeps it while it does not
    participate, or adopts that of the others; None if it does neither.
    """
    count = len(jax.tree.leaves(rows))
    if method.absent is None:
        return (True,) * count
    if isinstance(method.absent, AllRows):
        return None
    jaxpr = jax.make_jaxpr(method.absent)(rows, rows).jaxpr
    keys = [
        randomness.is_state_key(node)
        for node in jax.tree.leaves(rows, is_leaf=randomness.is_state_key)
        for _ in jax.tree.leaves(node)
    ]
    kept = []
    for i, (result, key) in enumerate(zip(jaxpr.outvars, keys, strict=True)):
        if result is jaxpr.invars[i]:
            kept.append(True)
        elif result is jaxpr.invars[count + i]:
            kept.append(key)  # a worker's random keys are its own; without a step they stay equal
        else:
            return None
    return tuple(kept)


def _hosted(plan: Plan, method: Algorithm, layout: Layout) -> tuple[int, ...]:
    """Returns the leaves that workers keep and that are the same for all of them in the first
    state, so that the rows of all workers need never be in memory.
    """
    init = _init(plan, method)
    jaxpr = jax.make_jaxpr(lambda key: init(key).workers)(jax.random.key(0)).jaxpr
    kept = zip(layout.kept, jaxpr.outvars, strict=True)
    return tuple(i for i, (keeps, each) in enumerate(kept) if keeps and _is_one_row(jaxpr, each))


def _is_one_row(jaxpr: Any, result: Any) -> bool:
    """Whether a result of the traced function is one row that is broadcast along axis 0."""
    if isinstance(result, Literal) or jnp.issubdtype(result.aval.dtype, jax.dtypes.prng_key):
        return False
    for equation in jaxpr.eqns:
        if result not in equation.outvars:
            continue
        if inner := equation.params.get("jaxpr"):
            inner = getattr(inner, "jaxpr", inner)
            return _is_one_row(inner, inner.outvars[equation.outvars.index(result)])
        if equation.primitive.name != "broadcast_in_dim":
            return False
        (operand, *_), axes = equation.invars, equation.params["broadcast_dimensions"]
        return 0 not in axes or operand.aval.shape[axes.index(0)] == 1
    return False


def _is_common(start: State, like: PyTree, kept: tuple[bool, ...], N: int) -> bool:
    """Whether the leaves that workers adopt from each other are equal at all workers of a state,
    `[seeds?, N, ...]`, as they are after a synchronization.

    Args:
        start: the state.
        like: shapes of `State.workers` of the method.
        kept: as in `Layout`.
        N: number of workers.
    """
    given, axis = start.workers, np.ndim(start.step)
    rows = given.rows if isinstance(given, Clients) else given
    if jax.tree.structure(rows) != jax.tree.structure(like):
        return False
    one = given.common if isinstance(given, Clients) else [None] * len(kept)
    numbers = [given.present] if isinstance(given, Clients) else jax.tree.leaves(rows)
    if any(np.shape(leaf)[axis : axis + 1] != (N,) for leaf in numbers):
        return False
    for leaf, common, keeps in zip(jax.tree.leaves(rows), one, kept, strict=True):
        if not keeps:
            first = jnp.take(leaf, 0, axis) if common is None else common
            each = jnp.broadcast_to(jnp.expand_dims(first, axis), leaf.shape)
            if not jnp.array_equal(leaf, each, equal_nan=True):
                return False
    return True


def _has_common_models(
    method: Algorithm, state: State, kept: tuple[bool, ...], found: Probe
) -> bool:
    """Whether the models that the history measures depend on common leaves only."""
    reads = _read(method.model, state)
    asked = queries.each(found.asked)[0]
    if asked.axis == 0 and not any(reads):  # one model, and gradients at the workers' own models
        return False
    return not any(keeps and read for keeps, read in zip(kept, reads, strict=True))


def _read(model: Callable[[State], PyTree], state: State) -> list[bool]:
    """Returns for each leaf of `State.workers` whether the model depends on it."""
    jaxpr = jax.make_jaxpr(lambda workers, rest: model(rest._replace(workers=workers)))(
        state.workers, state._replace(workers=())
    ).jaxpr
    needed = {each for each in jaxpr.outvars if not isinstance(each, Literal)}
    for equation in reversed(jaxpr.eqns):
        if needed & set(equation.outvars):
            needed |= {each for each in equation.invars if not isinstance(each, Literal)}
    return [each in needed for each in jaxpr.invars[: len(jax.tree.leaves(state.workers))]]
