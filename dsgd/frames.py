"""Conversion of histories to single runs, to pandas frames and to reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from dsgd import checks, records
from dsgd.runs.history import History, evaluated_records, mean_and_error
from dsgd.runs.results import Result
from dsgd.runs.sweeps import Sweep

if TYPE_CHECKING:
    import pandas as pd

_NEEDED = "a dsgd.Result, a dsgd.Sweep, a history, or a dictionary of these by method name"
_FORMATS = {"text": "simple", "markdown": "pipe", "latex": "latex_booktabs"}  # tabulate's names
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


@checks.arguments
def table(
    runs: Runs,
    columns: str | Sequence[str] | None = None,
    *,
    format: Literal["text", "markdown", "latex"] = "text",
) -> str:
    """Returns the last evaluated records of runs as a table, with one row for each method.

    Numbers are means over seeds, with standard errors if there are several. A sweep is shown at its
    best point (`Sweep.best`), with the hyperparameters; `sweep.result(index)` is another one.

    Args:
        runs: as in `frame`.
        columns: a name in the history, or several; None: "objective", or "loss" without a
            regularizer, and "bits".
        format: "latex" needs LaTeX's package booktabs.

    Raises:
        ValueError: if `runs` is empty or contains something else, all points of a sweep diverged,
            a column is not in any history or has one number per worker, or `format` is unknown.
    """
    from tabulate import tabulate  # noqa: PLC0415 (imported only for tables)

    if format not in _FORMATS:
        raise ValueError(f"table: format = {format!r}; expected one of {', '.join(_FORMATS)}")
    given = runs if isinstance(runs, Mapping) and not _is_history(runs) else {"": runs}
    rows = [_last_record(method, one) for method, one in given.items()]
    if not rows:
        raise ValueError(f"table: runs = {{}}; expected {_NEEDED}")
    known = list(dict.fromkeys(name for _, record in rows for name in record))
    chosen = [columns] if isinstance(columns, str) else columns
    defaults = ["objective" if "objective" in known else "loss", "bits"]
    names = chosen or [name for name in defaults if name in known]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"table: columns = {unknown}; expected some of {', '.join(known)}")
    labels = list(dict.fromkeys(name for label, _ in rows for name in label))
    cells = [
        [label.get(name, "") for name in labels] + [record.get(name, "-") for name in names]
        for label, record in rows
    ]
    if format == "markdown":
        cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    return tabulate(
        cells,
        [*labels, *names],
        _FORMATS[format],
        disable_numparse=True,
        colalign=["left"] * len(labels) + ["right"] * len(names),
    )


def _last_record(method: str, one: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the labels of a run, or of the best point of a sweep, and its last evaluated record,
    as text.
    """
    labels = {"method": str(method)} if method else {}
    if isinstance(one, Sweep):
        index = one.best()
        labels |= {name: f"{value:.4g}" for name, value in one.point(index).items()}
        one = one.at(index)
    ((_, history),) = _points("table", "runs", one)
    record = {}
    for name, values in evaluated_records(history).items():
        if name != "step" and values.ndim == 2:
            middle, error = mean_and_error(values[:, -1].astype(float))
            record[name] = f"{middle:.4g}" + f" ± {error:.1g}" * bool(error > 1e-6 * abs(middle))
    return labels, record


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
