"""A run on disk: written atomically while it goes on, and taken up again where it stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dsgd.engine.loop import Carry

_SECONDS = 30.0  # between two checkpoints: what an interruption costs at most


class Checkpoint:
    """The newest state and history of one run, in a folder.

    Args:
        folder: made where it is not there; one run each.
        about: what the run is, by name; a folder that holds another run is refused. (An optimiser of equal state and first step, momentum
            0.5 for 0.9, is not told apart.)

    Raises:
        ValueError: the folder holds another run; it names the differences.
    """

    def __init__(self, folder: str | Path, about: dict[str, str]) -> None:
        import orbax.checkpoint as orbax  # noqa: PLC0415 (half a second, which only runs with a checkpoint pay)

        self._orbax = orbax
        self._manager = orbax.CheckpointManager(Path(folder).absolute(), options=orbax.CheckpointManagerOptions(max_to_keep=1))
        self._about = about
        self._written = time.monotonic()
        if self._manager.latest_step() is None:
            return
        there = self._restore(about=orbax.args.JsonRestore())["about"]
        other = [f"{name} = {there.get(name)} there, {value} here" for name, value in about.items() if there.get(name) != value]
        if other:
            raise ValueError(f"checkpoint {folder} holds another run ({'; '.join(other)}); need another folder")

    def restore(self, like: Carry) -> tuple[Carry, dict[str, np.ndarray]] | None:
        """The state, placed on devices like `like`, and the records; None where nothing is written yet."""
        if self._manager.latest_step() is None:
            return None
        args = self._orbax.args
        abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), like)
        try:
            found = self._restore(state=args.StandardRestore(abstract), records=args.StandardRestore())
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"the checkpoint's state has other leaves than this run's ({error}); need another folder") from error
        return found["state"], found["records"]

    def due(self) -> bool:
        """Whether the last one is long ago."""
        return time.monotonic() - self._written > _SECONDS

    def save(self, done: int, state: Carry, records: dict[str, np.ndarray]) -> None:
        """Writes what there is after round `done`, and removes the one before."""
        args = self._orbax.args
        saved = args.Composite(state=args.StandardSave(state), records=args.StandardSave(records), about=args.JsonSave(self._about))
        self._manager.save(done, args=saved)
        self._manager.wait_until_finished()  # the state is about to be donated
        self._written = time.monotonic()

    def close(self) -> None:
        """Frees what the writer holds."""
        self._manager.close()

    def _restore(self, **items: Any) -> Any:
        return self._manager.restore(self._manager.latest_step(), args=self._orbax.args.Composite(**items))
