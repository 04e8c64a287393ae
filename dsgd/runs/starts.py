"""The initial state of a run that continues an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from dsgd import checks, parameter_files, workers
from dsgd.base import State
from dsgd.engine import cohorts
from dsgd.engine.clock import Clock
from dsgd.engine.cohorts import Clients
from dsgd.engine.plan import Carry, Plan
from dsgd.machines import arrays
from dsgd.runs import hosting

FROM_MODEL = (
    "to continue from its model only, pass problem._replace(init=dsgd.Parameters("
    "lambda key: result.params, problem.parameters.trainable)) and no start"
)


def state_of(start: State | dict[str, Any] | None) -> State | None:
    """Returns the state from which a run continues; None: the method's initial state.

    Args:
        start: a state, also with dictionaries in place of named tuples.

    Raises:
        ValueError: if it is a dictionary without the fields of a state.
    """
    if not isinstance(start, dict):
        return start
    if set(start) != set(State._fields):
        raise ValueError(
            f"start is a dictionary with {', '.join(map(repr, start))}; expected one with "
            f"{', '.join(map(repr, State._fields))}, as orbax restores a state without a target"
        )
    return State(**start)


def rounds_of(state: State) -> int:
    """Returns the number of completed rounds of a state, which all of its runs must share.

    Raises:
        ValueError: if the runs differ, or the value is not a number of rounds.
    """
    steps = np.unique(np.asarray(state.step))
    if len(steps) != 1 or not np.issubdtype(steps.dtype, np.integer) or steps[0] < 0:
        raise ValueError(
            f"start: state.step = {state.step}; expected one number of rounds, at least 0, for all "
            "runs"
        )
    return int(steps[0])


def _require_workers(state: State, like: State) -> None:
    """Raises ValueError if the state has rows of another number of workers."""
    # Another number of runs is reported by `checks.require_same`.
    if np.shape(state.step) != np.shape(like.step):
        return
    axis = like.step.ndim
    given, expected = (
        {np.shape(leaf)[axis] for leaf in jax.tree.leaves(each.workers) if np.ndim(leaf) > axis}
        for each in (state, like)
    )
    if len(given) == len(expected) == 1 and given != expected:
        raise ValueError(
            f"start has a state of {given.pop()} workers; expected {expected.pop()}, as the "
            f"problem has; {FROM_MODEL}"
        )


def _with_structure(state: State, like: State) -> State:
    """Returns the state with dictionaries and lists replaced by the named tuples of `like`, if the
    names of all leaves are equal. Orbax restores a state with dictionaries and lists.
    """
    structure = jax.tree.structure(like)
    if jax.tree.structure(state) == structure:
        return state
    given, needed = (parameter_files.leaves_by_name("start: state", each) for each in (state, like))
    if given.keys() != needed.keys():
        return state
    return jax.tree.unflatten(structure, [given[name] for name in needed])


def with_rows(state: State, plan: Plan) -> State:
    """Returns the state with the rows that the plan's rounds have: those of a cohort, with what all
    workers keep, or those of all workers.
    """
    given, layout, D = state.workers, plan.cohort, plan.mesh.size
    if layout is None:
        return all_rows(state)
    if isinstance(given, Clients) and has_stores(state) == bool(layout.hosted):
        stored, rows = jax.tree.leaves(given.store), given.ids.shape[-1]
        sizes = {leaf.shape[np.ndim(state.step)] for leaf in stored}
        if rows == layout.rows and sizes <= {plan.N + -plan.N % D}:
            if not layout.hosted:
                return state
            none = np.zeros(np.shape(state.step), np.int32)
            return state._replace(workers=given._replace(host=none))
    convert = partial(cohorts.first, layout=layout, N=plan.N, devices=D)
    return _map_workers(convert, all_rows(state))


@checks.arguments
def all_rows(state: State) -> State:
    """Returns the state with the rows of all N workers, leaves `[seeds?, N, ...]`.

    The state of a run in which few workers participate has rows for these only, and separately what
    all workers keep (`State.workers` is then a `dsgd.Clients`). Other states are returned
    unchanged.

    Args:
        state: the state of a result.
    """
    if not isinstance(state.workers, Clients):
        return state
    return _map_workers(cohorts.all_rows, hosting.on_device(state) if has_stores(state) else state)


def has_stores(state: State) -> bool:
    """Whether the host stores what workers keep."""
    return isinstance(state.workers, Clients) and bool(state.workers.host)


def _map_workers(convert: Callable[[Any], Any], state: State) -> State:
    """Applies a function to `State.workers` of each run."""
    for _ in range(np.ndim(state.step)):
        convert = jax.vmap(convert)
    with workers.on_each_device():
        return state._replace(workers=jax.jit(convert)(state.workers))


def restore(state: State, like: Carry, drawn: int = 0) -> Carry:
    """Copies a state to the devices, with the clock at 0 and no measurements. The copy will be
    donated.

    Args:
        state: final state of the earlier run.
        like: shapes of what this run carries (`loop.shapes`).
        drawn: number of batches that each worker is assumed to have drawn before, if draws are
            numbered.

    Raises:
        ValueError: if the state has another number of workers, or a leaf is missing, unexpected, or
            of another shape or type. The message names it.
    """
    if not jax.tree.leaves((state.server, state.workers)):
        raise ValueError(
            "start: the state has no arrays, as that of a result from dsgd.load_result; expected "
            f"the result of a run; {FROM_MODEL}"
        )
    _require_workers(state, like.state)
    state = _with_structure(state, like.state)
    checks.require_same("start: state", state, like.state, types=True)
    copies = jax.tree.map(lambda leaf, shape: arrays.put(leaf, shape.sharding), state, like.state)

    def fill(value, part):
        return jax.tree.map(
            lambda leaf: arrays.put(np.full(leaf.shape, value, leaf.dtype), leaf.sharding), part
        )

    drawn = fill(drawn, like.drawn)
    if not isinstance(like.clock, Clock):
        return Carry(copies, (), drawn)
    measured = fill(np.nan, like.clock.timings)
    return Carry(copies, fill(0, like.clock._replace(timings=()))._replace(timings=measured), drawn)
