"""Where a run begins that goes on from another."""

from __future__ import annotations

import jax
import numpy as np

from dsgd import checks
from dsgd.base import State
from dsgd.engine import loop
from dsgd.engine.clock import Clock
from dsgd.machines import arrays

FROM_MODEL = "to go on from its model alone, pass problem._replace(init=dsgd.Parameters(lambda key: result.params, problem.trainable)) and no start"


def rounds_of(state: State) -> int:
    """How many rounds it has behind it, of all its runs.

    Raises:
        ValueError: its runs differ, or it is no number of rounds.
    """
    steps = np.unique(np.asarray(state.step))
    if len(steps) != 1 or not np.issubdtype(steps.dtype, np.integer) or steps[0] < 0:
        raise ValueError(
            f"start: state.step = {state.step}: need one number of rounds, at least 0, for all runs"
        )
    return int(steps[0])


def _need_workers(state: State, like: State) -> None:
    """Raises a ValueError where the state has rows of another number of workers."""
    # of other runs, which `checks.require_same` refuses
    if np.shape(state.step) != np.shape(like.step):
        return
    axis = like.step.ndim
    there, here = (
        {np.shape(leaf)[axis] for leaf in jax.tree.leaves(each.workers) if np.ndim(leaf) > axis}
        for each in (state, like)
    )
    if len(there) == len(here) == 1 and there != here:
        raise ValueError(
            f"start: a state of {there.pop()} workers, but the problem has {here.pop()}; "
            f"{FROM_MODEL}"
        )


def placed(state: State, like: loop.Carry, drawn: int = 0) -> loop.Carry:
    """A copy on the devices, which will be donated, with a clock at 0 and nothing measured.

    Args:
        state: of the other run.
        like: what this run carries (`loop.shapes`).
        drawn: batches that each worker is taken to have drawn before, if draws are numbered.

    Raises:
        ValueError: a state of another number of workers; a leaf that one of them has not, or of
            another shape or type; it is named.
    """
    _need_workers(state, like.state)
    checks.require_same("start: state", state, like.state, types=True)
    copies = jax.tree.map(lambda there, here: arrays.put(there, here.sharding), state, like.state)

    def filled(value, part):
        return jax.tree.map(
            lambda leaf: arrays.put(np.full(leaf.shape, value, leaf.dtype), leaf.sharding), part
        )

    drawn = filled(drawn, like.drawn)
    if not isinstance(like.clock, Clock):
        return loop.Carry(copies, (), drawn)
    measured = filled(np.nan, like.clock.measured)
    return loop.Carry(
        copies, filled(0, like.clock._replace(measured=()))._replace(measured=measured), drawn
    )
