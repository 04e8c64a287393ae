"""The result of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from dsgd.base import PyTree, State
from dsgd.runs.history import History

if TYPE_CHECKING:
    import pandas as pd


class Settings(dict[str, Any]):
    """Settings of a run by name, as numbers, texts and lists: the names of the method and the
    problem, the arguments of `dsgd.run`, and the versions of dsgd, JAX and Python.

    It has no leaves for JAX, so `jax.tree.map` accepts results of runs with different settings; its
    result has no settings.
    """


def describe(history: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Returns the method, the numbers of seeds and records and the names of the columns, as in
    "minibatch_sgd, history [3, 101]: step, loss".
    """
    method = settings.get("method", "unknown method")
    shape = list(np.shape(history.get("loss", ())))
    return f"{method}, history {shape}: {', '.join(history)}"


jax.tree_util.register_pytree_node(Settings, lambda settings: ((), None), lambda *_: Settings())


class Result(NamedTuple):
    """Result of a run.

    Args:
        state: the last state. Leaves are `[seeds?, ...]`, those of `state.workers`
            `[seeds?, N, ...]`. If few of the workers participate at a time, `state.workers` is a
            `dsgd.Clients`, of which `dsgd.all_rows(state)` makes the rows of all.
        history: numpy arrays by name, `[seeds?, records]`, except `step`, `[records]`, and series
            with one number per worker, `[seeds?, records, N]`.
        params: the final model, with leaves `[seeds?, ...]`.
        tape: what `dsgd.replay` reads; None, unless the run was `taped`.
        settings: settings of the run and versions, by name.
    """

    state: State
    history: History
    params: PyTree
    tape: Any = None
    settings: Settings = Settings()

    def __repr__(self) -> str:
        return f"Result({describe(self.history, self.settings)})"

    def save(self, path: str | Path) -> None:
        """Writes the history, the final model and the settings to a file (.npz), which is
        replaced atomically; `dsgd.load_result` reads it. `state` and `tape` are not saved.

        Args:
            path: the file.
        """
        from dsgd.runs import saved  # noqa: PLC0415 (it imports this module)

        saved.save(self, path)

    def frame(self) -> pd.DataFrame:
        """Returns the history as a pandas frame, as `dsgd.frame` does."""
        from dsgd import frames  # noqa: PLC0415 (it imports this module)

        return frames.frame(self)

    def report(self, path: str | Path, *, title: str | None = None) -> None:
        """Writes a report as an HTML page, as `dsgd.report` does."""
        from dsgd import frames  # noqa: PLC0415 (it imports this module)

        frames.report(self, path, title=title)
