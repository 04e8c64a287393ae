"""What a reproduction returns: rows with published values next to ours, and the panels of its
figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dsgd import plots
from experiments.shared import figures, gallery, tables

Values = float | Sequence[float] | np.ndarray
Source = Literal[
    "authors' code",
    "authors' outputs",
    "others' outputs",
    "paper's text",
    "paper's figure",
    "theorem",
    "from memory",
]
HEADINGS = ("what", "published", "ours", "ratio", "source", "verdict")


@dataclass(frozen=True)
class Number:
    """A published number and ours.

    Args:
        what: what it measures, with its unit.
        published: the published number.
        ours: our numbers, one for each seed, or a single one; infinite if it was not reached.
        source: where the published number was read; the module's docstring names the file or page.
            "from memory": it is known, but could not be looked up.
        over: smallest and largest published number over seeds; None: only one was published.
        tolerance: relative difference of the ranges that still counts as reproduced, such as that
            of the published number's rounding.
    """

    what: str
    published: float
    ours: Values
    source: Source
    over: tuple[float, float] | None = None
    tolerance: float = 0.0

    @property
    def verdict(self) -> str:
        """Whether the ranges over seeds overlap, up to the tolerance."""
        low, high = self.over or (self.published, self.published)
        slack = 1 + self.tolerance
        if np.min(self.ours) <= high * slack and low <= np.max(self.ours) * slack:
            return gallery.REPRODUCED
        apart = f"more than {self.tolerance:.0%} apart" if self.tolerance else "apart"
        return f"not {gallery.REPRODUCED}: ranges {apart}"

    @property
    def ratio(self) -> str:
        """Our median divided by the published number."""
        return f"{np.median(self.ours) / self.published:.3g}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its row."""
        published = _range(self.published, *(self.over or ()))
        return (self.what, published, _measured(self.ours), self.ratio, self.source, self.verdict)


@dataclass(frozen=True)
class Claim:
    """A published order of curves, rate or failure, and the number that decides it.

    Args:
        what: the number that decides, with its unit.
        claim: what was published, in a few words.
        ours: our numbers, one for each seed, or a single one.
        source: as for `Number`.
        at_least, at_most: bounds of our numbers under which the claim holds; None: no bound.
    """

    what: str
    claim: str
    ours: Values
    source: Source
    at_least: float | None = None
    at_most: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the numbers of all seeds are within the bounds."""
        low, high = np.min(self.ours), np.max(self.ours)
        if self.at_least is not None and not low >= self.at_least:
            return f"not {gallery.REPRODUCED}: {low:.3g} is below {self.at_least:g}"
        if self.at_most is not None and not high <= self.at_most:
            return f"not {gallery.REPRODUCED}: {high:.3g} is above {self.at_most:g}"
        return gallery.REPRODUCED

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its row."""
        ends = {"≥": self.at_least, "≤": self.at_most}
        bounds = " and ".join(f"{sign} {end:g}" for sign, end in ends.items() if end is not None)
        claim = f"{self.claim} ({bounds})"
        return (self.what, claim, _measured(self.ours), "", self.source, self.verdict)


@dataclass(frozen=True)
class Panel:
    """A panel of the figure, with the axes of the paper.

    Args:
        x, y: labels of the axes, with units.
        lines: x `[records]` and y `[seeds, records]` by label, drawn as the median in a band from
            the first to the third quartile over seeds.
        published: published x and y by the label of a line, drawn as circles of its colour.
        log: axes with a logarithmic scale: "", "x", "y" or "xy".
        title: above the panel.
    """

    x: str
    y: str
    lines: Mapping[str, tuple[Any, Any]]
    published: Mapping[str, tuple[Any, Any]] | None = None
    log: str = "y"
    title: str = ""

    def draw(self, axes: Axes) -> None:
        """Draws the panel."""
        figures.describe(axes, self.x, self.y, self.title, log=self.log)
        axes.title.set_fontsize(10)
        lines = {name: (np.asarray(x), np.atleast_2d(y)) for name, (x, y) in self.lines.items()}
        plots.draw_lines(axes, lines, "quartiles")
        colours = {str(line.get_label()): line.get_color() for line in axes.get_lines()}
        for label, (x, y) in (self.published or {}).items():
            axes.plot(x, y, "o", color=colours[label], markerfacecolor="none", markersize=8)


@dataclass(frozen=True)
class Outcome:
    """The result of a reproduction.

    Args:
        rows: published values next to ours.
        panels: panels of the figure, in rows of two, or three panels in one row. All have the lines
            of the first.
        differences: a sentence on where and why ours differ, and what was tried.
    """

    rows: Sequence[Number | Claim]
    panels: Sequence[Panel]
    differences: str

    def table(self, title: str, minutes: float) -> Table:
        """Returns the table, whose caption has the differences and the CPU minutes."""
        caption = f"{self.differences}\n{minutes:.2g} {gallery.COST}."
        made = tables.table(title, HEADINGS, caption)
        for column in made.columns:
            column.no_wrap = False
        for row in self.rows:
            made.add_row(*row.cells)
        return made

    def figure(self, title: str) -> Figure:
        """Returns the figure."""
        circles = "; circles: published" * any(panel.published for panel in self.panels)
        heading = f"{title}\nmedians and quartiles over seeds{circles}"
        draw = [panel.draw for panel in self.panels]
        columns = 3 if len(draw) == 3 else min(2, len(draw))
        return figures.sheet(draw, columns, heading, height=3.2, sharey=False)


def _range(middle: float, *ends: float) -> str:
    spread = f" [{ends[0]:.4g}, {ends[-1]:.4g}]" if ends and ends[0] < ends[-1] else ""
    return f"{middle:.4g}{spread}"


def _measured(values: Values) -> str:
    return _range(float(np.median(values)), float(np.min(values)), float(np.max(values)))
