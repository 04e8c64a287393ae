"""Reports of runs: HTML pages with curves, tables and settings, in one file that needs no
network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import count, product
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from dsgd import optional, plots, records
from dsgd.frames import Runs, single_points
from dsgd.runs.history import History, evaluated_records, mean_and_error
from dsgd.runs.results import Result
from dsgd.runs.sweeps import Sweep

_POINTS = 2_000  # records of a curve; of longer histories, as many are drawn at equal distances
_LOG_RATIO = 30  # of the largest to the smallest value, from which on an axis is logarithmic
_SCALES = ("linear", "log")
_numbers = count()  # of the curves in this process, so that their elements have different names

_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; color: #1b1b1b;
  background: #fff; font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue",
  Arial, "DejaVu Sans", sans-serif; }
h1 { overflow-wrap: anywhere; }
h2 { border-top: 1px solid #d8d8d8; margin-top: 2.5rem; padding-top: 1.25rem;
  overflow-wrap: anywhere; }
p { max-width: 46rem; }
a { color: #0b57a4; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: .8rem; overflow-wrap: anywhere; }
pre { border-left: 3px solid #a4260b; padding: .25rem .75rem; white-space: pre-wrap; }
ul { columns: 22rem; list-style: none; padding: 0; }
li { break-inside: avoid; }
img { display: block; height: auto; max-width: 100%; }
table { border-collapse: collapse; display: block; font-size: .85rem;
  font-variant-numeric: tabular-nums; overflow-x: auto; }
th, td { border-bottom: 1px solid #eee; padding: .2rem .6rem; text-align: left;
  vertical-align: top; white-space: nowrap; }
thead th { border-bottom: 2px solid #1b1b1b; vertical-align: bottom; }
tbody th { font-weight: normal; }
.numbers td, .numbers thead th + th { text-align: right; }
.numbers th, .settings th, .settings td { white-space: normal; }
.numbers thead th { max-width: 8rem; }
table + table { margin-top: 1.5rem; }
.curves form { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; margin-bottom: .5rem; }
.curves select { font: inherit; max-width: 100%; }
.curves svg { vertical-align: middle; }
</style>
$head
</head>
<body>
$body
</body>
</html>
""")
# Bokeh labels powers of ten only, or equal distances, of which most are at the upper end.
_LOG_TICKS = """
const [first, last] = [cb_data.start, cb_data.end].map(Math.log10);
const every = Math.max(1, Math.ceil((last - first) / 8));
const mantissas = last - first > 4 ? [1] : last - first > 2 ? [1, 3] : [1, 2, 5];
const ticks = [];
for (let k = Math.ceil(first / every) * every - every; k <= last; k += every)
  ticks.push(...mantissas.map((mantissa) => mantissa * 10 ** k));
return ticks.filter((tick) => cb_data.start <= tick && tick <= cb_data.end);
"""
_CURVES = Template("""\
<div class="curves" id="curves$number">
<form>
<label>x <select name="x">$xs</select></label>
<label>y <select name="y">$ys</select></label>
<label><input type="checkbox" name="logx" $logx> log x</label>
<label><input type="checkbox" name="logy" $logy> log y</label>
</form>
$figures
<form>$legend</form>
<p>$note</p>
</div>
$script
<script>
document.getElementById("curves$number").addEventListener("change", ({currentTarget}) => {
  const {x, y, logx, logy} = Object.fromEntries(["x", "y", "logx", "logy"].map(
    (name) => [name, currentTarget.querySelector("[name=" + name + "]")]));
  const shown = [...currentTarget.querySelectorAll("[name=line]")].map((box) => box.checked);
  const scales = [logx, logy].map((box) => box.checked ? "log" : "linear").join(" ");
  for (const [name, id] of Object.entries($ids)) {
    const figure = Bokeh.documents.map((one) => one.get_model_by_id(id)).find((one) => one);
    figure.below[0].axis_label = x.selectedOptions[0].text;
    figure.left[0].axis_label = y.selectedOptions[0].text;
    shown.forEach((visible, i) => {
      const [band, line] = figure.renderers.slice(2 * i, 2 * i + 2);
      band.glyph.x = line.glyph.x = {field: x.value};
      line.glyph.y = {field: y.value};
      band.glyph.y1 = {field: y.value + " low"};
      band.glyph.y2 = {field: y.value + " high"};
      band.visible = line.visible = visible;
    });
    figure.visible = name == scales;
    figure.reset.emit();
  }
});
</script>
""")


def write_report(runs: Runs, path: Path, title: str | None) -> None:
    """Writes the report of `dsgd.report`."""
    lines = {plots.line_label(labels): one for labels, one in single_points("report", runs)}
    settings = _settings(runs)
    names = [
        ", ".join(dict.fromkeys(str(each[name]) for each in settings.values() if name in each))
        for name in ("problem", "method")
    ]
    heading = title or ", ".join(filter(None, names)) or "Runs"
    body = [f"<h1>{escape(heading)}</h1>", render_curves(lines), "<h2>Last records</h2>"]
    body += [_last_records(lines), *_settings_tables(settings)]
    text = render_page(heading, "\n".join(body))
    with records.replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def render_page(title: str, body: str, *, with_curves: bool = True) -> str:
    """Returns a page that needs no network, as HTML.

    Args:
        title: title of the page, as text.
        body: HTML.
        with_curves: whether the body contains `render_curves`.
    """
    head = ""
    if with_curves:
        head = _bokeh("resources").Resources(mode="inline", components=["bokeh"]).render()
    return _PAGE.substitute(title=escape(title), head=head, body=body)


def render_curves(lines: Mapping[str, History]) -> str:
    """Returns curves as HTML, with controls of their axes and of the lines that are shown.

    Args:
        lines: histories `[seeds, records]` by the name of the line.

    Raises:
        ImportError: if bokeh is not installed.
    """
    embed, models, plotting = map(_bokeh, ("embed", "models", "plotting"))
    names, words = _scalars(lines), plots.axis_labels(lines.values())
    sources = [models.ColumnDataSource(_columns(line, names)) for line in lines.values()]
    y = "objective" if "objective" in names else "loss"
    chosen = ("linear", "log" if _is_log([source.data[y] for source in sources]) else "linear")
    figures = {}
    for scales in product(_SCALES, _SCALES):
        figure = plotting.figure(
            x_axis_type=scales[0],
            y_axis_type=scales[1],
            x_axis_label=words["step"],
            y_axis_label=words[y],
            visible=scales == chosen,
            height=440,
            sizing_mode="stretch_width",
            tools="pan,box_zoom,wheel_zoom,reset,save",
            active_drag="box_zoom",
        )
        figure.toolbar.logo = None
        figure.axis.axis_label_text_font_style = "normal"
        for axis, scale in zip((figure.xaxis, figure.yaxis), scales, strict=True):
            if scale == "log":
                axis.ticker = models.CustomJSTicker(major_code=_LOG_TICKS)
                axis.formatter = models.CustomJSTickFormatter(code="return +tick.toPrecision(1)")
        drawn = []
        for i, (label, source) in enumerate(zip(lines, sources, strict=True)):
            colour, dash = _look(i)
            figure.varea("step", f"{y} low", f"{y} high", source=source, color=colour, alpha=0.2)
            drawn.append(
                figure.line(
                    "step", y, source=source, color=colour, line_width=2, line_dash=dash, name=label
                )
            )
        tips = [("", "$name"), ("x", "$snap_x"), ("y", "$snap_y")]
        figure.add_tools(models.HoverTool(renderers=drawn, tooltips=tips))
        figures[" ".join(scales)] = figure
    script, parts = embed.components(figures)
    seeds = max(len(line["loss"]) for line in lines.values())
    notes = [
        "Drag to zoom, and use the buttons to move, to reset and to save the figure.",
        "Numbers that are not positive are omitted on logarithmic axes.",
        f"Bands: standard error over {seeds} seeds." * (seeds > 1),
        f"Of each run, {_POINTS:,} records are drawn."
        * any(len(line["step"]) > _POINTS for line in lines.values()),
    ]
    return _CURVES.substitute(
        number=next(_numbers),
        xs=_options(names, words, "step"),
        ys=_options(names, words, y),
        logx="",
        logy="checked" * (chosen[1] == "log"),
        figures="\n".join(parts.values()),
        legend="\n".join(_legend_entry(i, label) for i, label in enumerate(lines)),
        note=" ".join(filter(None, notes)),
        script=script,
        ids=json.dumps({name: figure.id for name, figure in figures.items()}),
    )


def _bokeh(module: str) -> Any:
    return optional.load("report", f"bokeh.{module}", "report")


def _scalars(lines: Mapping[str, History]) -> list[str]:
    """Returns the names of the series with one number per record."""
    found = (
        name
        for history in lines.values()
        for name, values in history.items()
        if name == "step" or (values.ndim == 2 and name != "evaluated")
    )
    return list(dict.fromkeys(found))


def _columns(history: History, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns means over the seeds, `<name>`, and one standard error below and above them,
    `<name> low` and `<name> high`, in the units of the axes. Series that are missing are NaN.
    """
    length = len(evaluated_records(history)["step"])
    kept = np.unique(np.linspace(0, length - 1, min(length, _POINTS)).astype(int))
    found = {}
    for name in names:
        values = (
            plots.series("", history, "y", name)
            if name in history
            else np.full((1, length), np.nan)
        )
        middle, error = mean_and_error(values[:, kept])
        for column, value in zip(
            (name, f"{name} low", f"{name} high"),
            (middle, middle - error, middle + error),
            strict=True,
        ):
            with np.errstate(over="ignore"):
                found[column] = np.asarray(value, np.float32)
    return found


def _is_log(series: Iterable[np.ndarray]) -> bool:
    values = np.concatenate([each[np.isfinite(each)] for each in series])
    return bool(values.size and values.min() > 0 and values.max() > _LOG_RATIO * values.min())


def _look(i: int) -> tuple[str, list[int]]:
    """Returns the colour and the dashes of a line, as in `plots.draw_lines`."""
    size = len(plots.COLOURS)
    style = plots.STYLES[(i + i // size) % len(plots.STYLES)]
    dashes = {"-": [], "--": [7, 3], "-.": [8, 3, 2, 3], ":": [2, 3]}
    dash = dashes[style] if isinstance(style, str) else [2 * part for part in style[1]]
    return plots.COLOURS[i % size], dash


def _legend_entry(i: int, label: str) -> str:
    colour, dash = _look(i)
    stroke = f'stroke="{colour}" stroke-width="3" stroke-dasharray="{" ".join(map(str, dash))}"'
    return (
        f'<label><input type="checkbox" name="line" checked> <svg width="36" height="8">'
        f'<path d="M0 4H36" {stroke}/></svg> {escape(label or "mean")}</label>'
    )


def _options(names: Sequence[str], words: Mapping[str, str], chosen: str) -> str:
    return "".join(
        f'<option value="{escape(name)}"{" selected" * (name == chosen)}>'
        f"{escape(words[name])}</option>"
        for name in names
    )


def _last_records(lines: Mapping[str, History]) -> str:
    """Returns a table of the last evaluated records, as means with standard errors over seeds."""
    names, words = _scalars(lines), plots.axis_labels(lines.values())
    rows = []
    for label, history in lines.items():
        cells = [label or "-"]
        for name in names:
            if name not in history:
                cells.append("-")
                continue
            middle, error = mean_and_error(plots.series("", history, "y", name)[:, -1])
            varies = error > 1e-6 * abs(middle)
            cells.append(_number(middle) + f" ± {error:.1g}" * bool(varies))
        rows.append(cells)
    return _table(["run", *(words[name] for name in names)], rows, "numbers")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.4g}"


def _settings(runs: Runs) -> dict[str, Mapping[str, Any]]:
    """Returns the settings of runs by their names; histories have none."""
    given = runs if isinstance(runs, Mapping) else {"": runs}
    return {
        str(name): one.settings for name, one in given.items() if isinstance(one, Result | Sweep)
    }


def _settings_tables(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the settings that all runs share, and those that differ."""
    if not settings:
        return []
    first, *others = settings.values()
    shared = [
        name
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    ]
    names = dict.fromkeys(name for each in settings.values() for name in each)
    differing = [name for name in names if name not in shared]
    rows = [
        [label, *(_text(each.get(name)) for name in differing)] for label, each in settings.items()
    ]
    return [
        "<h2>Settings and versions</h2>",
        _table(["run", *differing], rows, "settings") if differing else "",
        _table(["setting", "value"], [[name, _text(first[name])] for name in shared], "settings"),
    ]


def _text(value: Any) -> str:
    return (
        "-"
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value, default=str)
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], kind: str) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "\n".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in rows
    )
    return (
        f'<table class="{kind}"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>'
    )
