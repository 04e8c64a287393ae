"""Conversion of histories to single runs, to pandas frames and to reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from dsgd import checks, records
from dsgd.runs.history import History
from dsgd.runs.results import Result
from dsgd.runs.sweeps import Sweep

if TYPE_CHECKING:
    import pandas as pd

_NEEDED = "a dsgd.Result, a dsgd.Sweep, a history, or a dictionary of these by method name"
Runs = Annotated[Result | Sweep | Mapping[str, Any], _NEEDED]


@checks.arguments
def frame(runs: Runs) -> pd.DataFrame:
    """Converts histories to a pandas frame in long form, with one row for each run and record.

    Args:
        runs: a result, a sweep, the history of a result or of an exception, or a dictionary of
            these by method.

    Returns:
        A frame with the columns `method` (for a dictionary), the sweep's hyperparameters by name,
        `seed` (0 ... R - 1; 0 for a single run), `step`, and the series of the history: `loss`,
        `bits`, and so on. A series with one number per worker, `[..., records, N]`, becomes N
        columns `samples[0]`, `samples[1]`, and so on. Series that a method does not have are NaN.

    Raises:
        ImportError: if pandas is not installed.
        ValueError: if `runs` is empty or contains something else, or a swept hyperparameter has the
            name of another column.
    """
    try:
        import pandas as pd  # noqa: PLC0415 (an optional package)
    except ImportError as error:
        raise ImportError(
            "frame needs pandas, which the extra 'notebooks' includes; pip install pandas"
        ) from error
    frames = [
        pd.DataFrame(_columns(labels, history)) for labels, history in single_points("frame", runs)
    ]
    return pd.concat(frames, ignore_index=True)


@checks.arguments
def report(runs: Runs, path: str | Path, *, title: str | None = None) -> None:
    """Writes a report of runs as an HTML page: curves that can be zoomed and whose axes can be
    chosen, a table of the last records, the settings and the versions. The file needs no network.

    Args:
        runs: as in `frame`. Each method and each point of a sweep is one curve.
        path: the file, which is replaced atomically.
        title: heading of the page; None: the names of the problem and of the methods.

    Raises:
        ImportError: if bokeh is not installed.
        ValueError: if `runs` is not as in `frame`, or `path` is a folder.
    """
    from dsgd import reports  # noqa: PLC0415 (it imports matplotlib)

    file = records.user_path("report: path", path)
    if file.is_dir():
        raise ValueError(f"report: path = {str(path)!r} is a folder; expected a file")
    reports.write_report(runs, file, title)


def _columns(labels: dict[str, Any], history: History) -> dict[str, Any]:
    columns = dict(records.worker_columns(history))
    step = columns.pop("step")
    if taken := {"seed", "step", *columns} & labels.keys():
        raise ValueError(
            f"frame: the sweep's {', '.join(sorted(taken))} is also a column of the history; "
            "expected distinct names; rename the argument of the factory"
        )
    seeds = history["loss"].shape[0]
    values = {name: values.ravel() for name, values in columns.items()}
    return {
        **labels,
        "seed": np.repeat(np.arange(seeds), len(step)),
        "step": np.tile(step, seeds),
        **values,
    }


def single_points(where: str, runs: Runs) -> Iterator[tuple[dict[str, Any], History]]:
    """Yields the history of each method and grid point, with the labels that identify it.

    Args:
        where: name of the caller, for error messages.
        runs: as in `frame`.

    Yields:
        (labels, history), where arrays of the history are `[seeds, records]`, also for a single
        run.

    Raises:
        ValueError: if `runs` is empty or contains something else.
    """
    if isinstance(runs, Mapping) and not _is_history(runs):
        if not runs:
            raise ValueError(f"{where}: runs = {{}}; expected {_NEEDED}")
        for method, one in runs.items():
            for labels, history in _points(where, f"runs[{method!r}]", one):
                yield {"method": str(method), **labels}, history
    else:
        yield from _points(where, "runs", runs)


def _points(where: str, what: str, one: Any) -> Iterator[tuple[dict[str, Any], History]]:
    if isinstance(one, Sweep):
        for index in product(*map(range, map(len, one.grid.values()))):
            yield one.point(index), one.at(index)
        return
    history = one.history if isinstance(one, Result) else one
    if not _is_history(history):
        raise ValueError(f"{where}: {what} = {checks.show(one)}; expected {_NEEDED}")
    if history["loss"].ndim > 2:
        raise ValueError(
            f"{where}: {what} has a loss of shape {list(history['loss'].shape)}; expected at most "
            "[seeds, records]; pass the dsgd.Sweep, which includes the grid"
        )
    alone = history["loss"].ndim == 1
    yield (
        {},
        {
            name: values[None] if alone and name != "step" else values
            for name, values in history.items()
        },
    )


def _is_history(value: Any) -> bool:
    if not isinstance(value, Mapping) or not {"step", "loss"} <= value.keys():
        return False
    return all(isinstance(array, np.ndarray) and array.ndim for array in value.values())
