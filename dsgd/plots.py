"""Figures of runs, in the house style: `from dsgd import plots`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import LogLocator, NullFormatter

from dsgd import checks
from dsgd.frames import Runs, single_points
from dsgd.runs.history import History, evaluated
from dsgd.runs.sweeps import mean_and_error

__all__ = ["COLOURS", "STYLES", "curves", "draw_lines", "figure", "panels", "plain_log"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's colours, told apart by all common kinds of colour blindness; line styles differ
too.
"""
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))

_AXES = {  # unit in history / unit on the axis, and the axis' label
    "step": (1, "rounds"),
    "bits": (1e6, "megabits sent and received per worker"),
    "clock": (1, "simulated seconds"),
    "loss": (1, "loss f(x)"),
    "grad_sqnorm": (1, "|f'(x)|²"),
    "consensus": (1, "consensus distance"),
    "train_loss": (1, "loss of the batches"),
    "test_error": (1, "test error"),
}
_Columns = Annotated[str | Sequence[str], "a name in the history, or a list of such names"]
_Scale = Literal["linear", "log"]


@checks.arguments
def curves(
    runs: Runs,
    x: _Columns = "step",
    y: _Columns = "loss",
    *,
    xscale: _Scale = "linear",
    yscale: _Scale = "linear",
) -> Figure:
    """Runs as lines, each the mean over its seeds in a band of one standard error.

    Args:
        runs: a result, a sweep, a history, or a dictionary of these by method, as in `dsgd.frame`:
            a line for each method and each point of a sweep. Only records that were evaluated are
            drawn.
        x: a name in the history, "step", "bits" or "clock", say, or several: a column of panels for
            each. Of runs whose x differs from seed to seed, the mean.
        y: likewise, a row of panels for each.
        xscale, yscale: "linear" or "log", of all panels.

    Returns:
        The figure, whose `axes` are the panels row by row.

    Raises:
        ValueError: a name that a history does not have, or that has one number a worker; no names;
            another scale; runs as in `dsgd.frame`.
    """
    xs, ys = ([name] if isinstance(name, str) else list(name) for name in (x, y))
    for what, names in (("x", xs), ("y", ys)):
        if not names:
            raise ValueError(f"curves: {what} = []: need a name in the history, or several")
    for what, scale in (("xscale", xscale), ("yscale", yscale)):
        if scale not in ("linear", "log"):
            raise ValueError(f"curves: {what} = {scale!r}: need 'linear' or 'log'")
    histories = {_named(labels): history for labels, history in single_points("curves", runs)}
    across = [
        {
            label: _series(label, history, "x", name).mean(axis=0)
            for label, history in histories.items()
        }
        for name in xs
    ]
    up = [
        {label: _series(label, history, "y", name) for label, history in histories.items()}
        for name in ys
    ]
    sheet, axes = figure(len(xs), len(ys), sharey="row")
    for panel, (rows, columns) in zip(axes, itertools.product(up, across), strict=True):
        panel.set(xscale=xscale, yscale=yscale)
        draw_lines(panel, {label: (columns[label], rows[label]) for label in histories})
    for panel, name in zip(axes[-len(xs) :], xs, strict=True):
        panel.set_xlabel(_label(name))
    for panel, name in zip(axes[:: len(xs)], ys, strict=True):
        panel.set_ylabel(_label(name))
    _legend(sheet, axes[0], max(len(history["loss"]) for history in histories.values()))
    return sheet


def _named(labels: dict[str, Any]) -> str:
    method, point = (
        labels.get("method"),
        [f"{name} = {value:.4g}" for name, value in labels.items() if name != "method"],
    )
    return ", ".join(([] if method is None else [method]) + point)


def _series(label: str, history: History, what: str, name: str) -> np.ndarray:
    """`[seeds, records]` in the axis' unit; NaN where it is not finite."""
    if name not in history:
        of = f" of {label}" if label else ""
        raise ValueError(
            f"curves: {what} = {name!r}: the history{of} has {', '.join(history)}; need one of "
            "these"
        )
    values = np.asarray(evaluated(history)[name], float) / _AXES.get(name, (1, ""))[0]
    if values.ndim > 2:
        raise ValueError(
            f"curves: {what} = {name!r} has one number a worker; need one number a record, as the "
            "loss has"
        )
    return np.atleast_2d(np.where(np.isfinite(values), values, np.nan))


def _label(name: str) -> str:
    return _AXES[name][1] if name in _AXES else name.replace("_", " ")


def _legend(sheet: Figure, panel: Axes, seeds: int) -> None:
    """The lines' names, and what the bands are: below all panels, or beside them where there are
    many; panels keep their size.
    """
    handles, labels = panel.get_legend_handles_labels()  # without those that have no name
    bands = f"bands: standard error over {seeds} seeds" if seeds > 1 else None
    if not labels and not bands:
        return
    if not labels:
        handles, labels = panel.lines, [f"mean of {seeds} seeds"]
    width, height = sheet.get_size_inches()
    widest = max(map(len, labels))
    columns = max(1, min(len(labels), int(12 * width / (widest + 7))))
    rows = math.ceil(len(labels) / columns)
    if rows > 2:
        sheet.set_size_inches(width + 0.8 + 0.08 * max(widest, len(bands or "") - 5), height)
        sheet.legend(handles, labels, loc="outside right upper", frameon=False, title=bands)
    else:
        sheet.set_size_inches(width, height + 0.25 * rows + 0.3 * (seeds > 1))
        sheet.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False, title=bands
        )


@checks.arguments
def draw_lines(axes: Axes, lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """One line a method, with a band of one standard error over seeds.

    Args:
        axes: where to.
        lines: (x `[records]`, y `[seeds, records]`) by method; the n-th method always has the n-th
            colour and style. Where the x axis is logarithmic, what cost nothing has no place on it.

    Raises:
        ValueError: a line of other shapes.
    """
    for i, (label, (cost, y)) in enumerate(lines.items()):
        if np.ndim(y) != 2 or np.shape(cost) != np.shape(y)[1:]:
            raise ValueError(
                f"draw_lines: lines[{label!r}] has x {list(np.shape(cost))} and y "
                f"{list(np.shape(y))}: need [records], [seeds, records]"
            )
        on_axis = cost > (0 if axes.get_xscale() == "log" else -np.inf)
        if not on_axis.any():
            continue
        x, (middle, error) = cost[on_axis], mean_and_error(y[:, on_axis])
        colour, style = COLOURS[i % len(COLOURS)], STYLES[(i + i // len(COLOURS)) % len(STYLES)]
        axes.plot(x, middle, color=colour, linestyle=style, linewidth=1.8, label=label)
        axes.fill_between(x, middle - error, middle + error, color=colour, alpha=0.2, linewidth=0)


@checks.arguments
def figure(
    columns: int,
    rows: int = 1,
    *,
    width: float = 4.2,
    height: float = 3.6,
    sharey: bool | Literal["row"] = True,
) -> tuple[Figure, np.ndarray]:
    """Panels in the house style, with one y axis unless each has its own, row by row.

    Args:
        columns, rows: of panels.
        width, height: of each, in inches.
        sharey: one y axis for all, for each row ("row"), or each its own.

    Returns:
        The figure and its panels, `[rows * columns]`.

    Raises:
        ValueError: no panels, or such without a size.
    """
    for name, size in (("width", width), ("height", height)):
        if not 0 < size < np.inf:
            raise ValueError(f"figure: {name} = {size}: need inches, more than 0")
    columns, rows = (
        checks.positive_int("figure: columns", columns),
        checks.positive_int("figure: rows", rows),
    )
    sheet = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return sheet, panels(sheet, columns, rows, sharey=sharey)


@checks.arguments
def panels(
    sheet: FigureBase, columns: int, rows: int = 1, *, sharey: bool | Literal["row"] = True
) -> np.ndarray:
    """Panels in the house style on a figure or a part of one, row by row.

    Args:
        sheet: the figure.
        columns, rows, sharey: as in `figure`.

    Raises:
        ValueError: no panels.
    """
    if not isinstance(sharey, bool | np.bool_) and sharey != "row":
        raise ValueError(f"panels: sharey = {sharey!r}: need True, False or 'row'")
    columns, rows = (
        checks.positive_int("panels: columns", columns),
        checks.positive_int("panels: rows", rows),
    )
    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(style):
        return sheet.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()


@checks.arguments
def plain_log(axis: Axis) -> None:
    """A logarithmic axis with a few plain numbers: 0.1, 0.3, 1, ...

    Args:
        axis: `axes.xaxis` or `axes.yaxis`.
    """
    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
