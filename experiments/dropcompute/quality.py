"""Table 1 of DropCompute: final quality of a model against drop rates, with compensations for the
drops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from algorithms import dropcompute
from dsgd import plots
from experiments.dropcompute.convergence import whole
from experiments.dropcompute.training import (
    COMPENSATED,
    LAMB,
    SGD,
    Histories,
    Point,
    Setting,
    delayed_cluster,
    dropping,
    final,
    format_difference,
    latencies,
    together,
)
from experiments.shared import figures, statistics, tables

EXTRA, LARGER, AGAIN = "extra steps", "larger batch", "drawn again"
# F1 on SQuAD, table 1 (a): 2.5-3 %, 5.5-6 %, 10-11 %
PAPER = {0.0: 91.32, 0.03: 91.34, 0.06: 91.44, 0.1: 91.19}
PAPER_COMPENSATED = {EXTRA: 91.40, LARGER: 91.38, AGAIN: 91.19}  # (b)


def name_history(rate: float) -> str:
    """Returns the name of the history of this drop rate."""
    return f"{100 * rate:g}% dropped"


def runs(setting: Setting, rates: Sequence[float]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Runs both halves of the table, and the run without drops at a constant step size; otherwise
    step sizes decrease to 0 by the end of the run.
    """
    N, M = setting.workers, setting.micro_batches
    times = latencies(delayed_cluster(N), N, M, setting.seed)
    tau = dropping(times, COMPENSATED)
    points = [Point(name_history(rate), dropping(times, rate), setting.steps) for rate in rates]
    yield from together(setting, LAMB, [*points, Point(EXTRA, tau, setting.rounds), whole(LAMB)])
    if SGD in setting.learning_rates:
        yield from together(setting, SGD, [whole(SGD)])
    more = dropcompute.larger_batch(M, COMPENSATED)
    as_many = dropping(latencies(delayed_cluster(N), N, more, setting.seed), 1 - M / more)
    yield from together(setting, LAMB, [Point(LARGER, as_many, setting.steps)], micro_batches=more)
    yield from together(setting, LAMB, [Point(AGAIN, tau, setting.steps)], resample_dropped=True)


def difference(setting: Setting, histories: Histories, name: str) -> np.ndarray:
    """Returns the difference to the run without drops, paired by seed."""
    return final(setting, histories[name]) - final(setting, histories[name_history(0.0)])


def table(setting: Setting, histories: Histories, rates: Sequence[float]) -> Table:
    """Tabulates our results and the paper's."""
    M, more = setting.micro_batches, dropcompute.larger_batch(setting.micro_batches, COMPENSATED)
    shown = tables.table(
        f"{setting.name}, {setting.steps} steps of {LAMB}, "
        f"{statistics.runs(setting.seeds)}:\n{setting.quality.words}",
        ("", "drop", "step", "ours", "diff.", "F1", "diff."),
        "drop: dropped micro-batches, %. step: seconds relative to those at 0%.\nF1: the paper's "
        f"measure, on SQuAD. diff.: difference to 0%.\nlarger batch: {more} micro-batches, of "
        f"which {M} on average are computed.\n±: half-width of the 95 % interval, of differences "
        "paired over seeds.",
    )

    def add(label: str, name: str, paper: float | None, steps: int = setting.steps) -> None:
        history = histories[name]
        step = (
            history["clock"][:, steps].mean()
            / histories[name_history(0.0)]["clock"][:, steps].mean()
        )
        digits, change = setting.quality.digits, ""
        theirs = ["-", "-"] if paper is None else [f"{paper:.2f}", f"{paper - PAPER[0.0]:+.2f}"]
        if name == name_history(0.0):
            theirs[1] = ""
        else:
            change = format_difference(difference(setting, histories, name), digits)
        shown.add_row(
            label,
            f"{100 * abs(history['dropped'][:, 1 : steps + 1].mean()):.1f}",  # avoids -0.0
            f"{step:.2f}",
            statistics.format_with_interval(final(setting, history), digits),
            change,
            *theirs,
        )

    for rate in rates:
        add(f"{100 * rate:g}%", name_history(rate), PAPER.get(rate))
    shown.add_section()
    add(f"+{setting.rounds - setting.steps} steps", EXTRA, PAPER_COMPENSATED[EXTRA], setting.rounds)
    add(LARGER, LARGER, PAPER_COMPENSATED[LARGER])
    add(AGAIN, AGAIN, PAPER_COMPENSATED[AGAIN])
    return shown


def significant(setting: Setting, histories: Histories, names: Sequence[str]) -> list[str]:
    """Returns the names of the runs whose difference to 0 % is significant, each with the
    difference.
    """
    found = {name: difference(setting, histories, name) for name in names}
    sure = {
        name: each
        for name, each in found.items()
        if abs(each.mean()) > statistics.half_interval(each)
    }
    return [
        f"{name} ({format_difference(each, setting.quality.digits)})" for name, each in sure.items()
    ]


def draw(axes: Axes, setting: Setting, histories: Histories, rates: Sequence[float]) -> None:
    """Draws the differences to the run without drops, with their intervals, and the paper's."""
    dropped = [rate for rate in rates if rate]
    names = [*map(name_history, dropped), EXTRA, LARGER, AGAIN]
    labels = [
        *(f"{100 * rate:g}%" for rate in dropped),
        "more\nsteps",
        "larger\nbatch",
        "drawn\nagain",
    ]
    theirs = [*map(PAPER.get, dropped), *PAPER_COMPENSATED.values()]
    places = np.arange(len(names))
    ours = [difference(setting, histories, name) for name in names]
    figures.points(axes, places, ours, color=plots.COLOURS[0], label="ours")
    if setting.quality.factor == 100:
        known = [(i + 0.2, theirs[i] - PAPER[0.0]) for i in places if theirs[i] is not None]
        look: dict[str, Any] = {
            "fillstyle": "none",
            "color": plots.COLOURS[1],
            "label": "paper (F1, %)",
        }
        axes.plot(*zip(*known, strict=True), "s", **look)
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.axvline(len(names) - 3.5, color="0.4", linewidth=0.8, linestyle=":")
    axes.set_xticks(places, labels, fontsize=9)
    axes.set(
        ylabel=f"{setting.quality.words}, minus that at 0%",
        xlabel=f"dropped | at {100 * COMPENSATED:g}%, with compensation",
    )
    axes.set_title("Table 1; bars: 95% intervals")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.15 * (high - low))
    axes.legend(loc="upper center", ncols=2, frameon=False, fontsize=9)
