"""Timelines of the switch as figures: when each worker computes, sends, receives and waits."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from dsgd import plots
from dsgd.network import Passage

LOOKS = {  # colour and hatch of each kind of block
    "compute": (plots.COLOURS[2], ""),
    "wait": ("white", "/////"),
    "send": (plots.COLOURS[0], ""),
    # yellow of Okabe and Ito, which is too pale for lines and therefore not in COLOURS
    "latency": ("#F0E442", "...."),
    "receive": (plots.COLOURS[1], ""),
}


class Panel(NamedTuple):
    """One timeline, drawn until `end`. An endpoint that is not a worker is the server."""

    figure: str
    title: str
    workers: int
    passages: Sequence[Passage]
    end: Fraction

    @property
    def begin(self) -> Fraction:
        return min(passage.computing for passage in self.passages)

    @property
    def names(self) -> list[str]:
        ends = {end for passage in self.passages for end in passage.message[:2]}
        return [f"worker {i + 1}" if i < self.workers else "server" for i in sorted(ends)]

    @property
    def lanes(self) -> list[str]:
        return ["compute"] * any(passage.message.compute for passage in self.passages) + [
            "send",
            "receive",
        ]


class Span(NamedTuple):
    """One block of a timeline; `other` is the receiver or the sender of its message."""

    worker: int
    lane: str
    kind: str
    begin: Fraction
    end: Fraction
    other: int | None = None


def spans(passages: Iterable[Passage]) -> list[Span]:
    """Returns the blocks of a timeline; blocks in the same lane do not overlap.

    A message leaves its sender during the first `transfer` of its duration, and arrives during the
    last. During the rest, latency occupies the port. If it does not ("pipelined"), it is drawn in
    the receiver's lane if that lane is otherwise empty.
    """
    # time at which a port finishes its last message
    found, free = [], dict[tuple[int, str], Fraction]()
    # intervals in which messages leave a port, and arrive at one
    in_order = sorted(passages, key=lambda p: p.start)
    for i, p in enumerate(in_order):
        sender, receiver, left, comes = (
            p.message.sender,
            p.message.receiver,
            p.start + p.transfer,
            p.arrived - p.transfer,
        )
        waiting = min(later.ready for later in in_order[i:] if later.message.sender == sender)
        found += [
            Span(sender, "compute", "compute", p.computing, p.ready),
            Span(
                sender, "send", "wait", max(waiting, free.get((sender, "send"), waiting)), p.start
            ),
            Span(sender, "send", "send", p.start, left, receiver),
            Span(sender, "send", "latency", left, p.sent),
            Span(
                receiver,
                "receive",
                "latency",
                max(p.start, free.get((receiver, "receive"), p.start)),
                comes,
            ),
            Span(receiver, "receive", "receive", comes, p.arrived, sender),
        ]
        free[sender, "send"], free[receiver, "receive"] = p.sent, p.arrived
    # two messages with the same gradient are one block
    return [span for span in dict.fromkeys(found) if span.begin < span.end]


def legend() -> list[Patch]:
    """Returns the legend of the blocks."""
    style = {"edgecolor": "black", "linewidth": 0.6}
    return [
        Patch(facecolor=colour, hatch=hatch, label=kind, **style)
        for kind, (colour, hatch) in LOOKS.items()
    ]


def chart(axes: Axes, panel: Panel, longest: float) -> None:
    """Draws one timeline, on an axis that fits the longest."""
    apart = len(panel.lanes) + 0.4
    place = {
        (i, lane): i * apart + j
        for i in range(len(panel.names))
        for j, lane in enumerate(panel.lanes)
    }
    begin, end = float(panel.begin), float(panel.end)
    for span in spans(panel.passages):
        left, width, y = (
            float(span.begin),
            float(min(span.end, panel.end) - span.begin),
            place[span.worker, span.lane],
        )
        if width <= 0:
            continue
        colour, hatch = LOOKS[span.kind]
        look = {"color": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.6}
        axes.barh(y, width, left=left, height=0.9, **look)
        if span.other is not None and width > 0.052 * longest:
            arrow = "▸" if span.kind == "send" else "◂"
            other = str(span.other + 1) if span.other < panel.workers else "S"
            look = {"color": "white", "fontsize": 8, "ha": "center", "va": "center_baseline"}
            axes.text(left + width / 2, y, arrow + other, **look)
    for x in {begin, end} - {0.0}:
        axes.axvline(x, color="black", linestyle="--", linewidth=1.2)
    units = f"{format_units(panel.end - panel.begin)} units"
    axes.text(
        end + 0.01 * longest,
        len(panel.names) * apart / 2 - 0.5,
        units,
        rotation=90,
        va="center",
        weight="bold",
    )
    title = textwrap.fill(f"{panel.figure}: {panel.title}", 44)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(
        xlabel="units of time",
        xlim=(begin - 0.01 * longest, begin + 1.06 * longest),
        ylim=(max(place.values()) + 0.7, -0.7),
    )
    axes.set_yticks(
        [i * apart + (len(panel.lanes) - 1) / 2 for i in range(len(panel.names))], panel.names
    )
    axes.set_yticks(list(place.values()), [lane for _, lane in place], minor=True, fontsize=8)
    axes.tick_params(axis="y", which="both", length=0)
    axes.tick_params(axis="y", which="major", pad=42)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)


def format_units(value: Fraction) -> str:
    """Formats a number of units with four digits."""
    return f"{float(value):.4g}"
