"""Figures 5, 7 and 8 of Cannikin: total batches, qualities over epochs and seconds, and seconds to the target."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsgd import plots
from experiments.cannikin.cannikin_race import ACCURACY, ADAPTDL, CANNIKIN, DDP, SYSTEMS, Runs, Setting
from experiments.cannikin.cannikin_race_tables import seconds
from experiments.shared import common, figures, intervals

COLOURS: dict[str, str] = dict(zip(SYSTEMS, ("#E69F00", "#009E73", "#D55E00", "#0072B2"), strict=True))
STYLES: dict[str, str] = dict(zip(SYSTEMS, (":", "-.", "--", "-"), strict=True))


def draw(cluster: str, found: Mapping[str, tuple[Setting, Runs]]) -> Figure:
    """A row for each task.

    Args:
        cluster: its name.
        found: by task.
    """
    sheet, panels = plots.figure(4, len(found), width=4.0, height=3.3, sharey=False)
    for row, (setting, runs) in zip(panels.reshape(-1, 4), found.values(), strict=True):
        batches, by_epoch, by_second, bars = row
        draw_batches(batches, setting, runs)
        draw_qualities(by_epoch, setting, runs, over_seconds=False)
        draw_qualities(by_second, setting, runs, over_seconds=True)
        draw_bars(bars, runs)
        batches.set_title(f"{setting.task.words}, times of {setting.task.workload}", fontsize=10)
    sheet.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    seeds = len(next(iter(found.values()))[1][CANNIKIN])
    bars_are = "; bars: 95 % intervals" if seeds > 1 else ""
    figures.title(sheet, f"Cluster {cluster}: a line for each of {common.runs(seeds)}, a point where the target is reached{bars_are}")
    return sheet


def draw_batches(axes: Axes, setting: Setting, runs: Runs) -> None:
    """Figure 5 (a)."""
    for system in (ADAPTDL, CANNIKIN):
        for run in runs[system]:
            axes.step(
                np.arange(1, len(run.totals) + 1), run.totals, where="mid", color=COLOURS[system], linestyle=STYLES[system], alpha=0.7
            )
    axes.set(xlabel="epoch", ylabel="total batch, samples", yscale="log", xscale="log")
    ticks = np.unique(setting.totals[np.linspace(0, len(setting.totals) - 1, 4).round().astype(int)])
    axes.set_yticks(ticks, labels=[f"{total}" for total in ticks])
    axes.minorticks_off()
    plots.plain_log(axes.xaxis)


def draw_qualities(axes: Axes, setting: Setting, runs: Runs, *, over_seconds: bool) -> None:
    """Figures 5 (b) and 7, or 5 (c)."""
    factor = 100 if setting.task.quality == ACCURACY else 1
    axes.axhline(factor * setting.target, color="black", linewidth=0.8)
    for system, each in runs.items():
        for i, run in enumerate(each):
            x = run.seconds if over_seconds else np.arange(1, len(run.seconds) + 1)
            style = {"color": COLOURS[system], "label": system if not i else None}
            axes.plot(x, factor * run.qualities, linestyle=STYLES[system], linewidth=1.1, alpha=0.7, **style)
            if run.reached:
                axes.plot(x[-1], factor * run.qualities[-1], marker="o", markersize=5, color=COLOURS[system], linestyle="none")
    axes.set(xscale="log", xlabel="simulated seconds" if over_seconds else "epoch")
    axes.set_ylabel("test accuracy, %" if setting.task.quality == ACCURACY else "test bits per byte")
    plots.plain_log(axes.xaxis)
    qualities = factor * np.concatenate([run.qualities for each in runs.values() for run in each])
    low, high = np.quantile(qualities, (0.05, 1) if setting.task.quality == ACCURACY else (0, 0.95))
    axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def draw_bars(axes: Axes, runs: Runs) -> None:
    """Figure 8, of the seeds that have reached the target with both."""
    for i, (system, each) in enumerate(runs.items()):
        ratios = seconds(each) / seconds(runs[DDP])
        ratios = ratios[~np.isnan(ratios)]
        if not len(ratios):
            continue
        half = intervals.half_interval(ratios)
        axes.bar(i, ratios.mean(), color=COLOURS[system], yerr=half if np.isfinite(half) and half > 0 else None, capsize=4)
    axes.set_xticks(range(len(runs)), labels=list(runs))
    axes.set(ylabel="seconds to the target, of DDP's", ylim=(0, None))
    axes.grid(axis="x", visible=False)
