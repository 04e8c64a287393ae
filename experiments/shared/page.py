"""A self-contained HTML page of results, made from Markdown, with the tables and figures of each
experiment.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

from dsgd import records, reports
from experiments.shared import catalogue, tables

LAST_LINES = 15  # lines shown of the error output of a failed command


class Outcome(NamedTuple):
    """Outcome of one experiment.

    Args:
        name: name of the run.
        experiment: its module.
        command: the command line.
        folder: folder of its results.
        seconds: duration.
        cpu: CPU seconds.
        memory: peak memory, bytes.
        failure: error output and exit status; empty if it succeeded.
    """

    name: str
    experiment: str
    command: str
    folder: Path
    seconds: float
    cpu: float
    memory: float
    failure: str


def render(outcomes: Sequence[Outcome], quick: bool) -> str:
    """Returns the page as HTML.

    Args:
        outcomes: in the order in which they are shown.
        quick: whether budgets were small.
    """
    title = "dsgd: all experiments" + (", with small budgets" if quick else "")
    contents = (
        f"- [{each.name}](#{each.name}){' **failed**' * bool(each.failure)}: "
        f"{catalogue.line(each.experiment)}"
        for each in outcomes
    )
    parts = [
        f"# {title}",
        _about(outcomes, quick),
        "\n".join(contents),
        *(part for outcome in outcomes for part in _section(outcome)),
    ]
    body = re.sub("<h2>(.*?)</h2>", r'<h2 id="\1">\1</h2>', _html(parts))
    return reports.render_page(title, body, with_curves=False)


def write_report(folder: Path, name: str) -> Path:
    """Writes `report.html`, a self-contained page of a command's results, with the histories of all
    seeds as curves that can be zoomed. Returns its path.

    Args:
        folder: folder of the results.
        name: name of the experiment.
    """
    config = json.loads((folder / "config.json").read_text())
    run = config.pop("run")
    above = [f"# {name}", *map(escape, catalogue.paragraphs(name)), f"`{run.pop('command')}`"]
    body = [_html(above)]
    for path in sorted(folder.glob("*history*.csv")):
        lines = {
            method: {series: values for series, values in history.items() if "[" not in series}
            for method, history in records.read_histories(path).items()
        }
        body += [_html([f"## {path.stem}"]), reports.render_curves(lines)]
    settings = "\n".join(
        f"| {key} | {tables.escape(str(value))} |" for key, value in {**run, **config}.items()
    )
    below = [*_results(folder, name), "## Settings and versions", f"| | |\n|--|--|\n{settings}"]
    path = folder / "report.html"
    with records.replacing(path) as temporary:
        temporary.write_text(
            reports.render_page(name, "\n".join([*body, _html(below)])), encoding="utf-8"
        )
    return path


def _html(parts: Iterable[str]) -> str:
    """Returns paragraphs of Markdown as HTML."""
    return MarkdownIt("commonmark").enable("table").render("\n\n".join(parts))


def _about(outcomes: Sequence[Outcome], quick: bool) -> str:
    """Returns date, devices, versions and duration."""
    ran = [found for outcome in outcomes if (found := _describe_run(outcome))]
    tools = [
        f"{name} {ran[0][name]}" for name in ("dsgd", "jax", "python") if ran and name in ran[0]
    ]
    devices = list(dict.fromkeys(str(found["device"]) for found in ran if "device" in found))
    failed = sum(bool(outcome.failure) for outcome in outcomes)
    count = (
        f"{len(outcomes)} experiments in {_time(sum(outcome.seconds for outcome in outcomes))}"
        + f", {failed} failed" * bool(failed)
    )
    date = datetime.datetime.now(datetime.UTC).strftime("%d %B %Y, %H:%M UTC")
    sketch = (
        " Budgets are small, so results are rough; full runs are in docs/papers." if quick else ""
    )
    return (
        ". ".join([date, count, ", ".join([*devices, *tools]) or "no run started"]) + "." + sketch
    )


def _describe_run(outcome: Outcome) -> dict[str, str]:
    """Returns device and versions of a run from its config.json."""
    try:
        return json.loads((outcome.folder / "config.json").read_text())["run"]
    except (OSError, ValueError, KeyError):
        return {}


def _section(outcome: Outcome) -> Iterator[str]:
    """Yields text, figures and tables of a run."""
    yield f"## {outcome.name}"
    yield from map(escape, catalogue.paragraphs(outcome.experiment))
    yield f"`{outcome.command}`\n\n{_time(outcome.seconds)}"
    if outcome.failure:
        yield "\n".join(["~~~~~~", *outcome.failure.splitlines()[-LAST_LINES:], "~~~~~~"])
    yield from _results(outcome.folder, outcome.name)


def _results(folder: Path, name: str) -> Iterator[str]:
    """Yields the figures and the tables in a folder."""
    for path in sorted(folder.rglob("*.png")):
        image = base64.b64encode(path.read_bytes()).decode()
        yield f"![{name}: {path.stem}](data:image/png;base64,{image})"
    yield from map(tables.markdown, tables.find_written(folder))


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
