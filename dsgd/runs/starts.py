"""Where a run begins that goes on from another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd.base import State
from dsgd.engine import loop


def rounds_of(state: State) -> int:
    """How many rounds it has behind it, of all its runs.

    Raises:
        ValueError: its runs differ, or it is no number of rounds.
    """
    steps = np.unique(np.asarray(state.step))
    if len(steps) != 1 or not np.issubdtype(steps.dtype, np.integer) or steps[0] < 0:
        raise ValueError(f"start: state.step = {state.step}: need one number of rounds, at least 0, for all runs")
    return int(steps[0])


def placed(state: State, like: loop.Carry) -> loop.Carry:
    """A copy on the devices, which will be donated, with a clock at 0.

    Args:
        state: of the other run.
        like: what this run carries (`loop.shapes`).

    Raises:
        ValueError: a leaf that one of them has not, or of another shape or type; it is named.
    """
    there, here = _by_name(state), _by_name(like.state)
    if there.keys() != here.keys():
        more, fewer = sorted(there.keys() - here.keys()), sorted(here.keys() - there.keys())
        extra, missing = ", ".join(more) or "nothing", ", ".join(fewer) or "nothing"
        raise ValueError(f"start has {extra} that this run has not, and lacks {missing}; {_NEED}")
    for name, leaf in here.items():
        if there[name].shape != leaf.shape or there[name].dtype != leaf.dtype:
            shown = [f"{array.dtype}{list(array.shape)}" for array in (there[name], leaf)]
            raise ValueError(f"start: {name} is {shown[0]}, this run's {shown[1]}; {_NEED}")
    copies = [jax.device_put(there[name], leaf.sharding, may_alias=False) for name, leaf in here.items()]
    zeros = jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), like.clock)
    return loop.Carry(jax.tree.unflatten(jax.tree.structure(like.state), copies), zeros)


_NEED = "need a state of equal shapes: the same kind of method, N, model and seeds"


def _by_name(state: State) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {f"state{jax.tree_util.keystr(path)}": leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for path, leaf in leaves}
