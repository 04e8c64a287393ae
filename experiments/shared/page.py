"""One page of results that stands alone as a file: what each experiment printed, and its figures."""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple

from experiments.shared import catalogue, printout

PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light; --line: #d8d8d8; --grey: #5f6368; --blue: #0b57a4; --red: #a4260b; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; background: #fff; color: #1b1b1b;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; }
h2 { font-size: 1.3rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; max-width: 46rem; }
a { color: var(--blue); }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .8rem; }
code { overflow-wrap: anywhere; }
.about, .cost { color: var(--grey); font-size: .9rem; }
nav ul { columns: 22rem; list-style: none; margin: 1rem 0; padding: 0; }
nav li { break-inside: avoid; padding: .2rem 0; }
nav span { color: var(--grey); display: block; font-size: .85rem; }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: 1.25rem; }
figure { margin: 1.25rem 0; }
img { display: block; height: auto; max-width: 100%; }
figcaption { color: var(--grey); font-size: .85rem; }
.command { max-width: none; overflow-x: auto; white-space: nowrap; }
.scroll { overflow-x: auto; margin: 1.25rem 0; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; vertical-align: bottom; white-space: pre; }
th { border-bottom: 2px solid #1b1b1b; }
td { border-bottom: 1px solid #eee; vertical-align: top; }
.left { text-align: left; }
th:first-child, td:first-child { padding-left: 0; }
tbody + tbody tr:first-child td { border-top: 1px solid #1b1b1b; }
h3 { font-size: 1rem; margin: 1.75rem 0 -.5rem; max-width: 46rem; }
.scroll + .cost { margin-top: -.75rem; }
pre.text { max-width: 60rem; white-space: pre-wrap; }
.failed { color: var(--red); }
@media (max-width: 45rem) { figure { overflow-x: auto; } img { max-width: 44rem; } figcaption { position: sticky; left: 0; } }
pre.failed { border-left: 3px solid var(--red); overflow-x: auto; padding: .25rem .75rem; white-space: pre-wrap; }
</style>
</head>
<body>
<h1>$title</h1>
<p class="about">$about</p>
<nav aria-label="Experiments"><ul>
$contents
</ul></nav>
$sections
</body>
</html>
""")
ENTRY = Template('<li><a href="#$name">$name</a>$mark<span>$line</span></li>')
SECTION = Template("""\
<section id="$name">
<h2>$name</h2>
$paragraphs
<p class="cost command"><code>$command</code></p>
<p class="cost">$cost</p>
$failure
$figures
$printed
</section>""")
PARAGRAPH = Template("<p>$text</p>")
FIGURE = Template(
    '<figure><img src="data:image/png;base64,$data" alt="$alt" width="$width" loading="lazy"><figcaption>$alt</figcaption></figure>'
)
FAILURE = Template('<pre class="failed">$text</pre>')
LAST_LINES = 15  # of what a failed one said
_CODE = re.compile(r"`([^`]+)`")
_SHOWN = 100 / 150  # of a figure's pixels, where there is room: they are 150 an inch


class Outcome(NamedTuple):
    """Of one experiment.

    Args:
        name: of the run.
        experiment: its module.
        command: that ran it.
        folder: of its results.
        seconds: that it took.
        printed: on the console.
        failure: what it said, and how it ended; empty where that was well.
    """

    name: str
    experiment: str
    command: str
    folder: Path
    seconds: float
    printed: str
    failure: str

    @property
    def ended_well(self) -> bool:
        return not self.failure


def render(outcomes: Sequence[Outcome], quick: bool) -> str:
    """The page, as HTML.

    Args:
        outcomes: in the order in which they are shown.
        quick: whether budgets were small.
    """
    return PAGE.substitute(
        title="dsgd: all experiments" + (", with small budgets" if quick else ""),
        about=_about(outcomes, quick),
        contents="\n".join(map(_entry, outcomes)),
        sections="\n".join(map(_section, outcomes)),
    )


def _about(outcomes: Sequence[Outcome], quick: bool) -> str:
    """When, on what, with which versions, how long."""
    ran = [found for outcome in outcomes if (found := _of_run(outcome))]
    tools = [f"{name} {ran[0][name]}" for name in ("dsgd", "jax", "python") if ran and name in ran[0]]
    devices = list(dict.fromkeys(str(found["device"]) for found in ran if "device" in found))
    failed = sum(not outcome.ended_well for outcome in outcomes)
    count = f"{len(outcomes)} experiments in {_time(sum(outcome.seconds for outcome in outcomes))}" + (
        f", {failed} failed" if failed else ""
    )
    date = datetime.datetime.now(datetime.UTC).strftime("%d %B %Y, %H:%M UTC")
    sketch = " Budgets are small: these are sketches, docs/results.md has the runs." if quick else ""
    return escape(". ".join([date, count, ", ".join([*devices, *tools]) or "no run got to its configuration"]) + "." + sketch)


def _of_run(outcome: Outcome) -> dict[str, str]:
    """What its config.json says of device and versions."""
    try:
        return json.loads((outcome.folder / "config.json").read_text())["run"]
    except (OSError, ValueError, KeyError):
        return {}


def _entry(outcome: Outcome) -> str:
    mark = "" if outcome.ended_well else ' <b class="failed">failed</b>'
    return ENTRY.substitute(name=escape(outcome.name), mark=mark, line=escape(catalogue.line(outcome.experiment)))


def _section(outcome: Outcome) -> str:
    said = outcome.failure.splitlines()[-LAST_LINES:]
    return SECTION.substitute(
        name=escape(outcome.name),
        paragraphs="\n".join(map(_paragraph, catalogue.paragraphs(outcome.experiment))),
        command=escape(outcome.command),
        cost=_time(outcome.seconds),
        failure="" if outcome.ended_well else FAILURE.substitute(text=escape("\n".join(said))),
        figures="\n".join(_figure(outcome.name, path) for path in sorted(outcome.folder.rglob("*.png"))),
        printed=printout.to_html(outcome.printed),
    )


def _paragraph(text: str) -> str:
    return PARAGRAPH.substitute(text=_CODE.sub(r"<code>\1</code>", escape(text)))


def _figure(name: str, path: Path) -> str:
    data = path.read_bytes()
    width = round(int.from_bytes(data[16:20], "big") * _SHOWN)  # of a PNG's header
    return FIGURE.substitute(data=base64.b64encode(data).decode(), alt=escape(f"{name}: {path.stem}"), width=width)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
