"""Results as files: arrays with the names of their leaves, and the settings as JSON."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import SequenceKey, keystr, tree_leaves_with_path

from dsgd import checks
from dsgd.base import PyTree, State
from dsgd.machines import arrays
from dsgd.records import replacing, user_path
from dsgd.runs.results import Result, Settings
from dsgd.runs.sweeps import Sweep

_HISTORY, _PARAMS, _GRID, _ABOUT = "history/", "params", "grid/", "about"


@checks.arguments
def save(result: Result | Sweep, path: str | Path) -> None:
    """Writes a result or a sweep to a file, as `Result.save`."""
    file = user_path("save: path", path)
    if file.is_dir():
        raise ValueError(f"save: path = {str(path)!r} is a folder; expected a file")
    kept = {f"{_HISTORY}{name}": values for name, values in result.history.items()}
    leaves: list[tuple[str, list[int | str], str]] = []
    for place, leaf in tree_leaves_with_path(result.params):
        array, name = arrays.fetch(leaf), f"{_PARAMS}{keystr(place)}"
        keys = [key.idx if isinstance(key, SequenceKey) else _text(key) for key in place]
        leaves.append((name, keys, array.dtype.name))
        kept[name] = array
    if isinstance(result, Sweep):
        kept |= {f"{_GRID}{name}": values for name, values in result.grid.items()}
    about = {"settings": result.settings, "params": leaves, "sweep": isinstance(result, Sweep)}
    with replacing(file) as temporary, temporary.open("wb") as out:
        np.savez_compressed(out, **{_ABOUT: np.array(json.dumps(about)), **kept})  # pyright: ignore[reportArgumentType]


@checks.arguments
def load_result(path: str | Path) -> Result | Sweep:
    """Reads a result or a sweep that `Result.save` or `Sweep.save` wrote.

    The file contains no Python objects. `params` are nested dictionaries, and lists for lists and
    tuples, of numpy arrays. The states of methods are not saved: `state` has only the number of
    rounds, and the run cannot be continued by `start=` (use `checkpoint=` of `dsgd.run`).

    Args:
        path: the file.

    Raises:
        ValueError: if there is no such file, or `save` did not write it.
    """
    file = user_path("load_result: path", path)
    try:
        with np.load(file, allow_pickle=False) as stored:
            kept = dict(stored)
        about = json.loads(str(kept.pop(_ABOUT)))
        params = _nest([(keys, _typed(kept[name], dtype)) for name, keys, dtype in about["params"]])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"load_result: path = {str(path)!r} is not the file of a result ({error}); expected "
            "one that result.save(path) wrote"
        ) from error
    history, grid = (
        {
            name.removeprefix(prefix): values
            for name, values in kept.items()
            if name.startswith(prefix)
        }
        for prefix in (_HISTORY, _GRID)
    )
    steps = np.full(history["loss"].shape[:-1], history["step"][-1], np.int32)
    state, settings = State(step=steps), Settings(about["settings"])
    if about["sweep"]:
        return Sweep(grid, history, state, params, settings=settings)
    return Result(state, history, params, settings=settings)


def _text(key: Any) -> str:
    return keystr((key,), simple=True)


def _typed(array: np.ndarray, dtype: str) -> np.ndarray:
    """Returns the array in its type; numpy stores those of JAX, such as bfloat16, as bytes."""
    return array.view(jnp.dtype(dtype)) if array.dtype.kind == "V" else array


def _nest(leaves: list[tuple[list[int | str], np.ndarray]]) -> PyTree:
    """Returns the tree with these leaves: lists for integer keys, dictionaries for others."""
    if leaves and not leaves[0][0]:
        return leaves[0][1]
    groups: dict[int | str, list[Any]] = {}
    for (first, *rest), leaf in leaves:
        groups.setdefault(first, []).append((rest, leaf))
    nested = {key: _nest(group) for key, group in groups.items()}
    return list(nested.values()) if any(isinstance(key, int) for key in nested) else nested
