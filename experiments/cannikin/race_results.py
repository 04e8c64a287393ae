"""Figures 5, 7 and 8 of Cannikin, figure 8 also as a table with the paper's numbers, and the
reasons for the differences.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dsgd import plots
from experiments.cannikin.devices import WORKLOADS
from experiments.cannikin.race import (
    ACCURACY,
    ADAPTDL,
    CANNIKIN,
    DDP,
    LB_BSP,
    SYSTEMS,
    Run,
    Runs,
    Setting,
)
from experiments.shared import figures, statistics, tables

# Section 5.2: seconds saved by Cannikin, in %, at most over all five tasks; for AdaptDL, on
# CIFAR-10 with a ResNet-18.
AT_MOST = {DDP: 85, LB_BSP: 82, ADAPTDL: 52}
LEARNING = 2  # epochs before there is a model
COLOURS: dict[str, str] = dict(
    zip(SYSTEMS, ("#E69F00", "#009E73", "#D55E00", "#0072B2"), strict=True)
)
STYLES: dict[str, str] = dict(zip(SYSTEMS, (":", "-.", "--", "-"), strict=True))
MARKS: dict[str, str] = dict(zip(SYSTEMS, "^vso", strict=True))


def seconds(runs: list[Run]) -> np.ndarray:
    """Returns the seconds to the target of each seed; NaN if it was not reached."""
    return np.array([run.seconds[-1] if run.reached else np.nan for run in runs])


def saved_share(runs: Runs, system: str) -> np.ndarray:
    """Returns the share of a system's seconds that Cannikin saves, in %, for the seeds that reach
    the target with both.
    """
    share = 100 * (1 - seconds(runs[CANNIKIN]) / seconds(runs[system]))
    return share[~np.isnan(share)]


def format_interval(values: np.ndarray, digits: int) -> str:
    """Formats the mean over seeds, with the half-width of its 95 % interval if there are
    several.
    """
    return statistics.format_with_interval(values, digits) if len(values) else "-"


def tabulate(setting: Setting, cluster: str, runs: Runs) -> Table:
    """Tabulates one row per system."""
    task, seeds = setting.task, len(runs[CANNIKIN])
    good = (
        f"{100 * setting.target:g} % right"
        if task.quality == ACCURACY
        else f"{setting.target:g} bits per byte"
    )
    table = tables.table(
        f"seconds to {good}: {task.words}\ncluster {cluster}, times of {task.workload}, "
        f"{statistics.runs(seeds)}",
        (
            "system",
            "reached",
            "seconds",
            "epochs",
            "batch",
            "of\nDDP",
            "saved\nours",
            "saved\npaper",
        ),
        "reached: number of seeds that reached the target. batch: mean over epochs. of DDP:\n"
        "seconds relative to DDP's, paired over seeds. saved: % of the system's seconds that\n"
        "Cannikin saves; ≤: maximum over the paper's tasks. ±: half-width of the 95 % interval.",
    )
    for system, each in runs.items():
        found = seconds(each)
        reached = ~np.isnan(found)
        half = np.nan_to_num(statistics.half_interval(found[reached]), posinf=0)
        small = max(np.nanmax(found, initial=0), half) < 100
        ratios = found / seconds(runs[DDP])
        paper = (
            "52"
            if system == ADAPTDL and task.workload == "ResNet-18"
            else f"≤ {AT_MOST.get(system)}"
        )
        table.add_row(
            system,
            f"{reached.sum()}",
            format_interval(found[reached], 1 if small else 0),
            f"{np.mean([len(run.seconds) for run in each]):.1f}",
            f"{np.mean([run.totals.mean() for run in each]):.0f}",
            f"{np.nanmean(ratios):.2f}" if not np.isnan(ratios).all() else "-",
            "" if system == CANNIKIN else format_interval(saved_share(runs, system), 0),
            "" if system == CANNIKIN else paper,
        )
    return table


def notes(setting: Setting, runs: Runs) -> list[str]:
    """Explains the differences between our results and the paper's."""
    task, totals, model = setting.task, setting.totals, setting.model
    gains = 100 * (1 - relative_optperf(setting, totals))
    first, N = totals[0], model.nodes
    ours, theirs = (
        np.array([run.seconds[:LEARNING][-1] for run in runs[system]])
        for system in (CANNIKIN, ADAPTDL)
    )
    parts = np.array(
        [
            np.sum(np.diff(run.seconds, prepend=0) * relative_optperf(setting, run.totals))
            / run.seconds[-1]
            for run in runs[ADAPTDL]
        ]
    )
    longer = 100 * np.mean((ours - theirs) / [run.seconds[-1] for run in runs[ADAPTDL]])
    epochs = np.mean([len(run.seconds) for run in runs[CANNIKIN]]) - np.mean(
        [len(run.seconds) for run in runs[ADAPTDL]]
    )
    most, messages = int(np.argmax(gains)), 1e3 * (model.t_overlap + model.t_last)
    return [
        f"{task.words}. Unequal parts save {gains[0]:.0f} % of an equal split's time at a total "
        f"batch of {first}, at most {gains[most]:.0f} %, at {totals[most]}: messages take "
        f"{messages:.0f} ms with any split. The paper saves more of AdaptDL's seconds, which must "
        "be due to other total batches.",
        f"At AdaptDL's total batches unequal parts would save {100 * (1 - parts.mean()):.0f} %. "
        f"Cannikin saves {format_interval(saved_share(runs, ADAPTDL), 0)} %. Its first two epochs, "
        f"in which it learns the nodes' speeds at a total batch of {first}, take {longer:.0f} % of "
        "AdaptDL's seconds longer than AdaptDL's; with its own total batches it needs "
        f"{epochs:+.1f} epochs.",
        f"DDP and LB-BSP keep {first}, {first / N:.3g} samples per node (LB-BSP moves 5 at once), "
        "for which the split hardly matters: they differ by chance. This batch corresponds to "
        f"{setting.stands_for * first:.0f} samples of {task.workload}; the paper starts with "
        f"{WORKLOADS[task.workload].first_batch}.",
    ]


def relative_optperf(setting: Setting, totals: np.ndarray) -> np.ndarray:
    """Returns OptPerf of total batches, relative to the time of an equal split."""
    model = setting.model
    return model.optperf(totals).seconds / model.batch_time(
        np.repeat(totals[:, None] / model.nodes, model.nodes, axis=1)
    )


def draw(cluster: str, found: Mapping[str, tuple[Setting, Runs]]) -> Figure:
    """Draws a column of panels for each task: total batches, qualities against epochs and against
    seconds, and seconds to the target.

    Args:
        cluster: its name.
        found: results by task.
    """
    columns = len(found)
    sheet, panels = plots.figure(
        columns, 4, width=max(figures.WIDTH / columns, 3.0), height=2.7, sharey=False
    )
    panels = panels.reshape(4, columns)
    for column, (setting, runs) in zip(panels.T, found.values(), strict=True):
        batches, by_epoch, by_second, bars = column
        draw_batches(batches, setting, runs)
        draw_qualities(by_epoch, setting, runs, over_seconds=False)
        draw_qualities(by_second, setting, runs, over_seconds=True)
        draw_bars(bars, runs)
        task = setting.task
        batches.set_title(f"{task.words},\ntimes of {task.workload}", fontsize=10)
    figures.legend(sheet, 4, panels[1, 0])
    seeds = len(next(iter(found.values()))[1][CANNIKIN])
    figures.title(
        sheet,
        f"Cluster {cluster}, {statistics.runs(seeds)}; lines of quality: mean epoch or second at "
        "which it is first reached, points: each seed at the target; bars: 95 % intervals",
    )
    return sheet


def draw_batches(axes: Axes, setting: Setting, runs: Runs) -> None:
    """Draws figure 5 (a)."""
    for system in (ADAPTDL, CANNIKIN):
        look = {"color": COLOURS[system], "linestyle": STYLES[system], "alpha": 0.7}
        for run in runs[system]:
            axes.step(np.arange(1, len(run.totals) + 1), run.totals, where="mid", **look)
    figures.describe(axes, "epoch", "total batch, samples", log="xy")
    ticks = np.unique(
        setting.totals[np.linspace(0, len(setting.totals) - 1, 4).round().astype(int)]
    )
    axes.set_yticks(ticks, labels=[f"{total}" for total in ticks])
    axes.minorticks_off()


def draw_qualities(axes: Axes, setting: Setting, runs: Runs, *, over_seconds: bool) -> None:
    """Draws figures 5 (b) and 7, or 5 (c): for each quality, the mean over seeds of the epoch, or
    of the second, at which it is first reached, and a point for each seed that reaches the target.
    """
    accuracy = setting.task.quality == ACCURACY
    factor, sign = (100, -1) if accuracy else (1, 1)
    axes.axhline(factor * setting.target, color="black", linewidth=0.8)
    for system, each in runs.items():
        xs = [run.seconds if over_seconds else np.arange(1.0, len(run.seconds) + 1) for run in each]
        first = np.mean([run.qualities[0] for run in each])
        levels = np.linspace(first, setting.target, 100)
        reached = [
            [
                statistics.crossing(x[None], sign * run.qualities[None], sign * level)[0]
                for level in levels
            ]
            for x, run in zip(xs, each, strict=True)
        ]
        look = {"color": COLOURS[system], "linestyle": STYLES[system], "linewidth": 1.8}
        axes.plot(np.mean(reached, axis=0), factor * levels, label=system, **look)
        for x, run in zip(xs, each, strict=True):
            if run.reached:
                last = factor * run.qualities[-1]
                axes.plot(x[-1], last, MARKS[system], markersize=5, color=COLOURS[system])
    y = "test accuracy, %" if accuracy else "test bits per byte"
    figures.describe(axes, "simulated seconds" if over_seconds else "epoch", y, log="x")


def draw_bars(axes: Axes, runs: Runs) -> None:
    """Draws figure 8, for the seeds that reach the target with both systems."""
    for i, (system, each) in enumerate(runs.items()):
        ratios = seconds(each) / seconds(runs[DDP])
        ratios = ratios[~np.isnan(ratios)]
        if not len(ratios):
            continue
        half = statistics.half_interval(ratios)
        bar = half if np.isfinite(half) and half > 0 else None
        axes.bar(i, ratios.mean(), color=COLOURS[system], yerr=bar, capsize=4)
    axes.set_xticks(range(len(runs)), labels=list(runs), fontsize=8)
    axes.set(ylabel="seconds / DDP's", ylim=(0, None))
    axes.grid(axis="x", visible=False)
