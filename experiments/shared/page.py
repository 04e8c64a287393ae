"""A self-contained HTML page of results, made from Markdown, with the tables and figures of each
experiment.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple

from markdown_it import MarkdownIt

from experiments.shared import catalogue, tables

PAGE = Template("""\
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
th, td { border-bottom: 1px solid #eee; padding: .2rem .6rem; white-space: nowrap; }
th { border-bottom: 2px solid #1b1b1b; vertical-align: bottom; }
</style>
</head>
<body>
$body
</body>
</html>
""")
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
    body = MarkdownIt("commonmark").enable("table").render("\n\n".join(parts))
    return PAGE.substitute(title=title, body=re.sub("<h2>(.*?)</h2>", r'<h2 id="\1">\1</h2>', body))


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
    for path in sorted(outcome.folder.rglob("*.png")):
        image = base64.b64encode(path.read_bytes()).decode()
        yield f"![{outcome.name}: {path.stem}](data:image/png;base64,{image})"
    yield from map(tables.markdown, tables.find_written(outcome.folder))


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
