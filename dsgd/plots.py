"""Figures of runs in a common style. Import with `from dsgd import plots`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator, NullFormatter

from dsgd import checks, records
from dsgd.base import Problem
from dsgd.frames import Runs, single_points
from dsgd.problems.fairness import ClientMetrics
from dsgd.problems.partition import count_classes
from dsgd.runs.history import History, evaluated_records, mean_and_error, require_column
from dsgd.runs.results import Result

__all__ = [
    "COLOURS",
    "MARKERS",
    "STYLES",
    "class_colours",
    "clients",
    "curves",
    "draw_lines",
    "figure",
    "log_scale",
    "panels",
    "partition",
    "save",
    "timeline",
]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Colours of Okabe and Ito, which people with any common colour blindness can distinguish."""
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))
"""Line styles, used together with the colours."""
MARKERS = ("", "o", "s", "D", "^", "v", "P", "X", "<", ">", "p", "h", "*", "d", "8")
"""Markers of the first eight lines, which have none, of the next eight, and so on."""
_MARKS = MARKERS[1:]  # of all lines, if they have markers

_AXES = {  # name in the history: (unit of the axis in units of the history, label of the axis)
    "step": (1, "rounds"),
    "communications": (1, "communications"),
    "gradients": (1, "sample gradients per worker"),
    "epochs": (1, "epochs"),
    "bits": (1e6, "megabits sent and received per worker"),
    "bits_up": (1e6, "megabits sent per worker"),
    "bits_down": (1e6, "megabits received per worker"),
    "clock": (1, "simulated seconds"),
    "loss": (1, "loss f(x)"),
    "gap": (1, "gap to the minimum"),
    "distance": (1, "|x - x*|²"),
    "grad_sqnorm": (1, "|f'(x)|²"),
    "objective": (1, "objective f(x) + r(x)"),
    "prox_grad_sqnorm": (1, "|x - prox(x - f'(x))|²"),
    "consensus": (1, "consensus distance"),
    "train_loss": (1, "loss of the batches"),
    "staleness": (1, "staleness, updates"),
    "period": (1, "local steps between averages"),
    "threshold": (1, "threshold, seconds"),
    "idle": (1, "idle rounds"),
    "missing": (1, "bits above the budget"),
}
_LOCAL_STEPS = "rounds (local steps)"
_Columns = Annotated[str | Sequence[str], "a name in the history, or a list of such names"]
Band = Literal["error", "quartiles"]
_Bands = Annotated[Band, "'error' or 'quartiles'"]


@checks.arguments
def curves(
    runs: Runs,
    x: _Columns = "step",
    y: _Columns = "loss",
    *,
    logx: bool = False,
    logy: bool = False,
    band: _Bands = "error",
    markers: int = 0,
    floor: float | None = None,
    labels: Mapping[str, str] | None = None,
    save: str | Path | Sequence[str | Path] | None = None,
) -> Figure:
    """Plots runs as lines: the mean over seeds, in a band of one standard error.

    Args:
        runs: a result, a sweep, a history, or a dictionary of these by method, as in `dsgd.frame`.
            Each method and each point of a sweep is one line. Only evaluated records are plotted.
        x: a name in the history, for example "step", "bits" or "clock", or a list of names, each of
            which becomes a column of panels. If x differs between seeds, its mean is used. If a
            method communicates in some rounds only, the label of "step" is "rounds (local steps)".
        y: a name in the history, or a list of names, each of which becomes a row of panels.
        logx, logy: whether the axes of all panels are logarithmic. Numbers that are not positive
            are omitted on these, except with `floor`.
        band: "error", or "quartiles": the median over seeds, in a band from the first to the third
            quartile.
        markers: number of records from one marker of a line to the next, of which each line has its
            own kind; 0: without markers, up to eight lines.
        floor: least number on logarithmic y axes: smaller ones, also zeros, are drawn there. None:
            there is none.
        labels: labels of axes by name in the history, with units, such as those of a problem's own
            metrics: {"test_rmse": "test error, °C"}; None: the name in words.
        save: file, or files, such as a PDF and a PNG, to which the figure is written, as by `save`;
            None: none.

    Returns:
        The figure. Its `axes` are the panels, row by row.

    Raises:
        ValueError: if a name is not in a history or has one number per worker, there are no names,
            `labels` has a name that is not on an axis, `band` is unknown, `markers` is negative,
            `floor` is not positive, `runs` is not as in `dsgd.frame`, or the suffix of `save` is
            none of those of `save`.
    """
    xs, ys = ([name] if isinstance(name, str) else list(name) for name in (x, y))
    for what, names in (("x", xs), ("y", ys)):
        if not names:
            raise ValueError(f"curves: {what} = []; expected a name in the history, or several")
    if unused := [name for name in labels or {} if name not in (*xs, *ys)]:
        raise ValueError(
            f"curves: labels of {', '.join(unused)}; expected names of x or y: "
            f"{', '.join((*xs, *ys))}"
        )
    _require_marks("curves", markers, floor)
    given = () if save is None else (save,) if isinstance(save, str | Path) else save
    paths = [_figure_path("curves: save", path) for path in given]
    histories = {line_label(labels): history for labels, history in single_points("curves", runs)}
    across = [
        {
            label: series(label, history, "x", name).mean(axis=0)
            for label, history in histories.items()
        }
        for name in xs
    ]
    up = [
        {label: series(label, history, "y", name) for label, history in histories.items()}
        for name in ys
    ]
    sheet, axes = figure(len(xs), len(ys), sharey="row")
    for panel, (rows, columns) in zip(axes, itertools.product(up, across), strict=True):
        log_scale(panel, "x" * logx + "y" * logy)
        lines = {label: (columns[label], rows[label]) for label in histories}
        draw_lines(panel, lines, band, markers=markers, floor=floor)
    words = axis_labels(histories.values()) | dict(labels or {})
    for panel, name in zip(axes[-len(xs) :], xs, strict=True):
        panel.set_xlabel(words[name])
    for panel, name in zip(axes[:: len(xs)], ys, strict=True):
        panel.set_ylabel(words[name])
    _legend(sheet, axes[0], max(len(history["loss"]) for history in histories.values()), band)
    for path in paths:
        _write(sheet, path)
    return sheet


def _require_marks(where: str, markers: int, floor: float | None) -> None:
    checks.natural(f"{where}: markers", markers)
    if floor is not None and not 0 < floor < np.inf:
        raise ValueError(f"{where}: floor = {floor}; expected a positive, finite number")


def axis_labels(histories: Iterable[History]) -> dict[str, str]:
    """Returns the label of an axis, with the unit, for each series of some histories."""
    found = list(histories)
    words = {
        name: _AXES[name][1] if name in _AXES else name.replace("_", " ")
        for history in found
        for name in history
    }
    if any(map(_has_local_steps, found)):
        words["step"] = _LOCAL_STEPS
    return words


def _has_local_steps(history: History) -> bool:
    """Whether a method communicates in some rounds only."""
    if "communications" not in history:
        return False
    exchanges = history["communications"][:, -1] - history["communications"][:, 0]
    return bool((exchanges < history["step"][-1] - history["step"][0]).any())


def line_label(labels: dict[str, Any]) -> str:
    """Returns the name of a line: the method and the point of a sweep."""
    method, point = (
        labels.get("method"),
        [f"{name} = {value:.4g}" for name, value in labels.items() if name != "method"],
    )
    return ", ".join(([] if method is None else [method]) + point)


def series(label: str, history: History, what: str, name: str) -> np.ndarray:
    """Returns a series `[seeds, records]` in the unit of the axis, with NaN in place of non-finite
    numbers.
    """
    require_column(f"curves: {f'{label}, ' if label else ''}{what}", name, history)
    values = np.asarray(evaluated_records(history)[name], float) / _AXES.get(name, (1, ""))[0]
    if values.ndim > 2:
        raise ValueError(
            f"curves: {what} = {name!r} has one number per worker; expected one number per record, "
            "such as the loss"
        )
    return np.atleast_2d(np.where(np.isfinite(values), values, np.nan))


def _legend(sheet: Figure, panel: Axes, seeds: int, band: Band) -> None:
    """Adds a legend with the names of the lines and the meaning of the bands.

    It is below the panels, or to their right if there are many lines. The size of the panels stays
    the same.
    """
    handles, labels = panel.get_legend_handles_labels()  # omits lines without a label
    middle, around = ("mean", "standard error") if band == "error" else ("median", "quartiles")
    bands = f"bands: {around} over {seeds} seeds" if seeds > 1 else None
    if not labels and not bands:
        return
    if not labels:
        handles, labels = panel.lines, [f"{middle} of {seeds} seeds"]
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
def draw_lines(
    axes: Axes,
    lines: Mapping[str, tuple[np.ndarray, np.ndarray]],
    band: _Bands = "error",
    *,
    markers: int = 0,
    floor: float | None = None,
) -> None:
    """Draws one line per method, with a band over seeds.

    Args:
        axes: the axes to draw on.
        lines: (x `[records]`, y `[seeds, records]`) by method. The n-th method always has the n-th
            colour and style, and from the ninth on a marker. Numbers that are not positive are
            omitted on logarithmic axes.
        band: "error": the mean and one standard error; "quartiles": the median and the quartiles.
        markers, floor: as in `curves`.

    Raises:
        ValueError: if a line has other shapes, `band` is unknown, or as for `curves`.
    """
    _require_marks("draw_lines", markers, floor)
    if band not in ("error", "quartiles"):
        raise ValueError(f"draw_lines: band = {band!r}; expected 'error' or 'quartiles'")
    least = [0 if scale == "log" else -np.inf for scale in (axes.get_xscale(), axes.get_yscale())]
    for i, (label, (cost, y)) in enumerate(lines.items()):
        if np.ndim(y) != 2 or np.shape(cost) != np.shape(y)[1:]:
            raise ValueError(
                f"draw_lines: lines[{label!r}] has x {list(np.shape(cost))} and y "
                f"{list(np.shape(y))}; expected [records] and [seeds, records]"
            )
        on_axis = cost > least[0]
        if not on_axis.any():
            continue
        x, shown = cost[on_axis], y[:, on_axis]
        if floor is not None and axes.get_yscale() == "log":
            shown = np.maximum(shown, floor)
        if band == "error":
            middle, error = mean_and_error(shown)
            low, high = middle - error, middle + error
        else:
            low, middle, high = np.quantile(shown, (0.25, 0.5, 0.75), axis=0)
        middle = np.where(middle > least[1], middle, np.nan)
        colour, style = COLOURS[i % len(COLOURS)], STYLES[(i + i // len(COLOURS)) % len(STYLES)]
        (line,) = axes.plot(x, middle, color=colour, linestyle=style, linewidth=1.8, label=label)
        if markers:
            # The first markers of the lines are apart, so that markers of equal lines are visible.
            first = i * max(1, markers // len(lines)) % markers
            line.set(marker=_MARKS[i % len(_MARKS)], markevery=(first, markers), markersize=5)
        elif i >= len(COLOURS):
            line.set(marker=MARKERS[i // len(COLOURS) % len(MARKERS)], markevery=0.2)
        axes.fill_between(
            x, low, high, where=np.isfinite(middle), color=colour, alpha=0.2, linewidth=0
        )


@checks.arguments
def figure(
    columns: int,
    rows: int = 1,
    *,
    width: float = 4.2,
    height: float = 3.6,
    sharey: bool | Literal["row"] = True,
) -> tuple[Figure, np.ndarray]:
    """Returns a new figure with panels in the common style.

    Args:
        columns, rows: numbers of columns and rows of panels.
        width, height: size of each panel in inches.
        sharey: whether all panels share the y axis; "row": the panels of each row share it.

    Returns:
        The figure and its panels, `[rows * columns]`, row by row.

    Raises:
        ValueError: if there are no panels, or their size is not positive and finite.
    """
    for name, size in (("width", width), ("height", height)):
        if not 0 < size < np.inf:
            raise ValueError(f"figure: {name} = {size}; expected finite inches > 0")
    columns, rows = (
        checks.positive_int("figure: columns", columns),
        checks.positive_int("figure: rows", rows),
    )
    sheet = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return sheet, panels(sheet, columns, rows, sharey=sharey)


@checks.arguments
def panels(
    sheet: Figure | SubFigure, columns: int, rows: int = 1, *, sharey: bool | Literal["row"] = True
) -> np.ndarray:
    """Adds panels in the common style to a figure, or to a part of one.

    Args:
        sheet: the figure or subfigure.
        columns, rows, sharey: as in `figure`.

    Returns:
        The panels, `[rows * columns]`, row by row.

    Raises:
        ValueError: if there are no panels, or `sharey` is unknown.
    """
    if not isinstance(sharey, bool | np.bool_) and sharey != "row":
        raise ValueError(f"panels: sharey = {sharey!r}; expected True, False or 'row'")
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
        "axes.formatter.limits": (-3, 5),
        "axes.formatter.use_mathtext": True,
    }
    with mpl.rc_context(style):
        axes = sheet.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()
    # Labels such as 0.0125 are 38 points wide. Labels of the y axis need about 60 points.
    room = 72 * sheet.bbox.width / sheet.dpi / columns - 60
    for panel in axes:
        panel.xaxis.set_major_locator(
            MaxNLocator(int(np.clip(room / 46, 2, 8)), steps=(1, 2, 2.5, 5, 10))
        )
    return axes


@checks.arguments
def log_scale(axes: Axes, names: str = "xy") -> None:
    """Makes axes logarithmic, with plain numbers (0.1, 0.3, 1, ...) or powers of ten as labels, as
    many as have room.

    Args:
        axes: the panel.
        names: the axes: "x", "y", "xy", or "" for none.

    Raises:
        ValueError: if `names` has another letter.
    """
    if set(names) - {"x", "y"}:
        raise ValueError(f"log_scale: names = {names!r}; expected 'x', 'y', 'xy' or ''")
    axes.set(**{f"{name}scale": "log" for name in names})
    for axis in (getattr(axes, f"{name}axis") for name in names):
        axis.set_major_locator(_LogTicks())
        axis.set_major_formatter(_LogLabels())
        axis.set_minor_formatter(NullFormatter())


def _is_plain(low: float, high: float) -> bool:
    """Whether the numbers of an axis are short without exponents."""
    return bool(1e-4 <= low < high < 2e5 and high / low < 2e5)


class _LogTicks(LogLocator):
    """Ticks at 1 and 3 times powers of ten if their labels have room, at 1, 2 and 5 times if there
    are few, else at powers of ten.
    """

    def tick_values(self, vmin: float, vmax: float) -> Any:
        axis, (low, high) = self.axis, sorted((vmin, vmax))
        if low <= 0 or not isinstance(axis, Axis):
            return super().tick_values(vmin, vmax)
        powers = np.arange(math.floor(np.log10(low)), math.ceil(np.log10(high)) + 1)
        # Room of a label and length of the axis, in font sizes: matplotlib reserves three of them
        # for the width of a label, two for its height.
        room, length = 1.6, 2 * axis.get_tick_space()
        if isinstance(axis, XAxis):
            widest = max(len(f"{10.0**power:g}") for power in powers[[0, -1]])
            room, length = 0.64 * (widest if _is_plain(low, high) else 4) + 0.6, 1.5 * length
        decade = length / np.log10(high / low)
        for factors, gap in (((1, 3), 0.477), ((1, 2, 5), 0.301)):
            ticks = np.outer(10.0**powers, factors).ravel()
            inside = ((low <= ticks) & (ticks <= high)).sum()
            if gap * decade < room:
                break
            if inside > 2:
                return ticks
        else:
            if inside < 2:
                return MaxNLocator(4, steps=(1, 2, 2.5, 5, 10)).tick_values(low, high)
            return ticks
        return 10.0 ** powers[powers % math.ceil(room / decade) == 0]


class _LogLabels(LogFormatterSciNotation):
    """Plain numbers if all of them are short, else powers of ten."""

    def __init__(self) -> None:
        super().__init__(minor_thresholds=(np.inf, np.inf))

    def __call__(self, x: float, pos: int | None = None) -> str:
        assert self.axis is not None
        low, high = sorted(self.axis.get_view_interval())
        return f"{x:g}" if _is_plain(low, high) else super().__call__(x, pos)


@checks.arguments
def save(sheet: Figure, path: str | Path) -> None:
    """Writes a figure, atomically.

    Args:
        sheet: the figure.
        path: the file. Its suffix is the format: .pdf, .png or .svg.

    Raises:
        ValueError: if it has another suffix.
    """
    _write(sheet, _figure_path("save: path", path))


def _write(sheet: Figure, path: Path) -> None:
    with records.replacing(path) as temporary:
        sheet.savefig(temporary, dpi=150)


def _figure_path(where: str, path: str | Path) -> Path:
    found = records.user_path(where, path)
    if found.suffix.lower() not in (".pdf", ".png", ".svg"):
        raise ValueError(f"{where} = {str(path)!r}; expected a file .pdf, .png or .svg")
    return found


_BARS = 100  # workers that can be distinguished in a figure
_UNFINISHED = "computes, end not recorded"
_SPANS = {  # what a worker does, by colour
    "computes": COLOURS[0],
    _UNFINISHED: "#A6CBE3",
    "computation stopped or lost": COLOURS[1],
    "sends to the server": COLOURS[4],
    "receives the model": COLOURS[2],
    "messages": COLOURS[4],
    "waits": "#E3E3E3",
}
_Spans = dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]  # (worker, from, to) by kind


@checks.arguments
def timeline(run: Result | Mapping[str, Any], *, until: float = 5.0) -> Figure:
    """Draws what each worker does in the first seconds of a run on a cluster: one row for each
    worker, vertical lines where the server makes a step.

    In a row of an asynchronous method, a computation is stopped if the worker has received a model
    and later begins with another one, and lost if it takes too long (`timeouts`) or its worker
    leaves. A worker waits if the server sends it no model. While a port is busy, its messages are
    drawn from when they are ready.

    In a row of a method with rounds, each round begins at once for all workers, and its messages
    are drawn at its end, as in exchanges that wait for all workers.

    Args:
        run: a result, or its history; of several seeds the first. The method is asynchronous with a
            server and recorded in every round, or has rounds and is recorded in every round with
            `algorithms.with_diagnostics`.
        until: last second to draw; the run may end before.

    Returns:
        The figure. Of more than 100 workers it shows 100, evenly spaced.

    Raises:
        ValueError: if `run` is something else, has no clock, is not recorded in every round, or
            without the columns that say when workers compute; or if `until` is not positive.
    """
    until = checks.number("timeline: until", until, "(0, inf)")
    points = [] if isinstance(run, Mapping) and not run else list(single_points("timeline", run))
    if len(points) != 1:
        raise ValueError(
            f"timeline: run has {len(points)} histories; expected one run, such as result or "
            "sweep.at(index)"
        )
    ((_, history),) = points
    if "clock" not in history:
        raise ValueError(
            "timeline: run has no clock; expected a run on a cluster: dsgd.run(..., cluster=...)"
        )
    if len(history["step"]) < 2 or np.any(np.diff(history["step"]) != 1):
        raise ValueError(
            "timeline: run is not recorded in every round; pass record_every=1 to dsgd.run, and "
            "evaluate_every to evaluate it less often"
        )
    one = {name: values[0] for name, values in history.items() if name != "step"}
    clock = one["clock"].astype(float)
    if "resumed" in one:
        spans, seen = _event_spans(one)
        # Each message is a step, unless the server counts its steps, from 0.
        steps = one["bits_up"].astype(float)
        steps[1:] = one.get("server_steps", steps)[1:]
        marks, what = clock[1:][np.diff(steps) > 0], "step of the server"
    elif "measured_compute" in one:
        spans, marks, what = _round_spans(one), clock[1:-1], "end of a round"
        seen = one["measured_compute"].shape[-1]
    else:
        raise ValueError(
            "timeline: run does not record when workers compute; expected an asynchronous method "
            "with a server, or algorithms.with_diagnostics(method)"
        )
    N = max(seen, run.settings.get("workers", 0)) if isinstance(run, Result) else seen
    some = [row for parts in spans.values() for row, *_ in parts]
    absent = np.setdiff1d(np.arange(N), np.concatenate(some))
    spans[_UNFINISHED].append((absent, np.zeros(len(absent)), np.full(len(absent), clock[-1])))
    return _draw_timeline(spans, {what: marks}, N, min(until, float(clock[-1])))


def _event_spans(one: History) -> tuple[_Spans, int]:
    """Returns what workers do, from the records of an asynchronous server, and the number of
    workers of which it has any.
    """
    columns = {name: one[name][1:].astype(float) for name in ("began", "ended", "resumed", "clock")}
    began, ended, resumed, clock = columns.values()
    worker = one["worker"][1:].astype(int)
    lost = one["lost"][1:].astype(bool) if "lost" in one else np.zeros(len(worker), bool)
    last, sends = clock[-1], np.diff(one["bits_up"].astype(float)) > 0
    order = np.lexsort((np.arange(len(worker)), worker))  # by worker, then in time
    follows = np.full(len(worker), np.inf)  # when the worker begins its next computation
    same = worker[order[1:]] == worker[order[:-1]]
    first = order[np.append(True, ~same)]  # computation that each worker ended first
    follows[order[:-1][same]] = began[order[1:][same]]
    # The clock is in float32.
    close = 1e-5 * last
    goes_on = np.abs(follows - resumed) <= close
    # Computations that follow another one of their worker only later, or after a stop: if one of
    # them begins when a job goes on, its worker was given the job.
    free = np.ones(len(worker), bool)
    free[order[1:][same]] = ~goes_on[order[:-1][same]]
    starts = np.append(np.sort(began[free]), np.inf)
    at = np.where(np.isnan(resumed), np.inf, resumed)
    given_away = starts[np.searchsorted(starts, at - close)] <= at + close
    receives = goes_on | (np.isfinite(resumed) & ~given_away)
    idle = np.where(receives, np.minimum(resumed, follows), np.minimum(follows, last))
    stopped = receives & ~goes_on & np.isfinite(follows)
    ends = receives & ~np.isfinite(follows)
    spans: _Spans = {
        "waits": [
            (worker[~receives], clock[~receives], idle[~receives]),
            (worker[lost], ended[lost], clock[lost]),
        ],
        "computes": [(worker[~lost], began[~lost], ended[~lost])],
        "computation stopped or lost": [
            (worker[lost], began[lost], ended[lost]),
            (worker[stopped], resumed[stopped], follows[stopped]),
            (worker[first], np.zeros(len(first)), began[first]),
        ],
        _UNFINISHED: [(worker[ends], resumed[ends], np.full(ends.sum(), last))],
        "sends to the server": [(worker[sends], ended[sends], clock[sends])],
        "receives the model": [(worker[receives], clock[receives], idle[receives])],
    }
    return spans, int(worker.max()) + 1


def _round_spans(one: History) -> _Spans:
    """Returns what workers do, from the records of a method with rounds and diagnostics, which are
    those of the round before.
    """
    clock = one["clock"].astype(float)
    compute = one["measured_compute"][2:].astype(float)
    ports = np.maximum(one["measured_up"], one["measured_down"])[2:]
    R, N = compute.shape
    start, end = (np.repeat(times, N) for times in (clock[:-2], clock[1:-1]))
    ready = np.minimum(start + compute.ravel(), end)
    sends = np.maximum(ready, end - ports.ravel())
    worker = np.tile(np.arange(N), R)
    return {
        "waits": [(worker, ready, sends)],
        "computes": [(worker, start, ready)],
        _UNFINISHED: [],
        "messages": [(worker, sends, end)],
    }


def _draw_timeline(spans: _Spans, lines: Mapping[str, np.ndarray], N: int, until: float) -> Figure:
    """Draws rows of workers, and vertical lines by their label."""
    drawn = min(N, _BARS)
    shown = np.linspace(0, N - 1, drawn).round().astype(int)
    row = np.full(N, -1)
    row[shown] = np.arange(drawn)
    sheet, (axes,) = figure(1, width=9.0, height=min(9.0, 1.5 + 0.24 * drawn))
    for kind in (kind for kind in _SPANS if kind in spans):
        worker, left, right = (np.concatenate(each) for each in zip(*spans[kind], strict=True))
        # The clock is in float32.
        visible = (row[worker] >= 0) & (left < until) & (right - left > 1e-6 * until)
        if not visible.any():
            continue
        at, left, right = row[worker[visible]], left[visible], np.minimum(right[visible], until)
        low, high = at - 0.4, at + 0.4
        corners = np.stack([left, low, left, high, right, high, right, low], -1)
        bars = PolyCollection(
            list(corners.reshape(-1, 4, 2)), facecolors=_SPANS[kind], linewidths=0, label=kind
        )
        axes.add_collection(bars, autolim=False)
    for label, marks in lines.items():
        seen = marks[marks <= until]
        if seen.size:
            thin = min(0.8, 80 / len(seen))
            axes.vlines(seen, -0.5, drawn - 0.5, "k", linewidth=thin, label=label)
    axes.grid(visible=False)
    axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set(xlim=(0, until), ylim=(drawn - 0.5, -0.5), xlabel="simulated seconds", ylabel="worker")
    if drawn < N:
        ticks = np.linspace(0, drawn - 1, 10).round().astype(int)
        axes.set_yticks(ticks, [str(shown[tick]) for tick in ticks])
        axes.set_ylabel(f"worker ({drawn} of {N:,} are drawn)")
    handles, labels = axes.get_legend_handles_labels()
    sheet.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return sheet


@checks.arguments
def partition(data: Problem | Sequence[Any]) -> Figure:
    """Draws how the samples of each class are distributed over the workers: one row for each class,
    in which the area above a worker is proportional to its number of samples.

    Of more than 100 workers, 100 are drawn in the order of their numbers of samples, evenly spaced
    in this order from the smallest to the largest. The title is about all of them: it has the mean
    total variation distance of `dsgd.problems.class_counts`.

    Args:
        data: as in `dsgd.problems.class_counts`.

    Returns:
        The figure.

    Raises:
        ValueError: as for `dsgd.problems.class_counts`.
    """
    counted = count_classes("partition", data)
    counts, xlabel = counted.counts, "worker"
    N, classes = counts.shape
    drawn = min(N, _BARS)
    if drawn < N:
        ordered = np.argsort(counted.samples, kind="stable")
        counts = counts[ordered[np.linspace(0, N - 1, drawn).round().astype(int)]]
        xlabel = f"worker in the order of numbers of samples ({drawn} of {N:,} are drawn)"
    width = (N - 1) / (drawn - 1) if drawn > 1 else 1.0
    sheet, (axes,) = figure(1, width=7.0, height=1.2 + 0.25 * min(classes, 20))
    edges = width * (np.arange(drawn)[:, None] + [-0.42, 0.42]).ravel()
    tops = np.zeros((2 * drawn - 1, classes))  # every second one is the gap between two workers
    tops[::2] = 0.9 * counts / counts.max()
    for row, colour in enumerate(class_colours(classes)):
        base = row - 0.45
        axes.stairs(base + tops[:, row], edges, baseline=base, fill=True, fc=colour, lw=0)
    axes.grid(visible=False)
    shown = range(0, classes, math.ceil(classes / 20))
    axes.set_yticks(shown, [str(counted.classes[row]) for row in shown])
    axes.set(
        xlabel=xlabel,
        ylabel="class",
        xlim=(-0.5 * width, N - 1 + 0.5 * width),
        ylim=(-0.55, classes - 0.45),
    )
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    few, most = counted.samples.min(), counted.samples.max()
    axes.set_title(
        f"{few if few == most else f'{few} to {most}'} samples per worker; "
        f"mean total variation distance {counted.distances.mean():.2f}",
        fontsize=10,
    )
    return sheet


@checks.arguments
def clients(
    measured: ClientMetrics | Mapping[str, ClientMetrics], metric: str = "accuracy"
) -> Figure:
    """Draws how a metric is distributed over the clients: a histogram, and the value that a share
    of the clients does not exceed, in which a dot is the mean of the lowest tenth.

    Clients of weight 0 are not counted.

    Args:
        measured: from `dsgd.problems.client_metrics`, or a dictionary of these by label, such as
            the method.
        metric: a name in `ClientMetrics.values`.

    Returns:
        The figure.

    Raises:
        ValueError: if a value does not have the metric, no client's value is finite, or the
            dictionary is empty.
    """
    by_label = {"": measured} if isinstance(measured, ClientMetrics) else dict(measured)
    if not by_label:
        raise ValueError("clients: measured = {}; expected results of problems.client_metrics")
    found = {}
    for label, one in by_label.items():
        where = f"clients: {f'{label}, ' if label else ''}metric"
        if metric not in one.values:
            raise ValueError(f"{where} = {metric!r}; expected one of {', '.join(one.values)}")
        values = one.values[metric][one.weights > 0]
        found[label] = values[np.isfinite(values)]
        if not found[label].size:
            raise ValueError(f"{where} = {metric!r} is not finite for any client")
    sheet, (histogram, shares) = figure(2, sharey=False)
    edges = np.histogram_bin_edges(np.concatenate(list(found.values())), 20)
    for i, (label, values) in enumerate(found.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "ls": STYLES[i % len(STYLES)], "lw": 1.8}
        histogram.stairs(np.histogram(values, edges)[0], edges, label=label or None, **style)
        count = np.arange(1, len(values) + 1)
        shares.plot(count / len(values), np.sort(values), **style)
        lowest = by_label[label].statistics[metric]["lowest_decile"]
        shares.plot(0.1, lowest, "o", color=style["color"])
    shares.plot([], [], "o", color="0.4", label="mean of the lowest tenth")
    shares.legend(frameon=False, loc="lower right")
    words = metric.replace("_", " ")
    histogram.set(xlabel=words, ylabel="clients")
    shares.set(xlabel="share of the clients", ylabel=words, xlim=(0, 1))
    if any(found):
        histogram.legend(frameon=False)
    return sheet


@checks.arguments
def class_colours(classes: int) -> list[Any]:
    """Returns one colour for each class, which people with any common colour blindness can
    distinguish: `COLOURS` if these suffice, else from dark to light.

    Args:
        classes: number of classes.
    """
    count = checks.positive_int("class_colours: classes", classes)
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return list(mpl.colormaps["viridis"](np.linspace(0, 1, count)))
