"""Figures 1, 3, 4, 13 and 14 of DropCompute, and how its speedup grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from algorithms.dropcompute.stopping import Stop
from dsgd import plots
from experiments.dropcompute.noises import Noise
from experiments.dropcompute.simulated import Curves, Measured, Sampled, Setting, predicted, rates
from experiments.shared import figures, statistics

BASELINE, DROPPING, LINEAR, NORMAL, OTHER = "#D55E00", "#0072B2", "#000000", "#009E73", "#CC79A7"

STOPS: dict[Stop, str] = {"preempt": "preempting", "between": "checking between micro-batches"}


def with_bars(axes: Axes, x: Sequence[float], values: np.ndarray, **style) -> None:
    """Means of `[seeds, x]` with 95 % intervals; one seed has none."""
    half = [statistics.half_interval(column) for column in values.T]
    axes.errorbar(
        x,
        values.mean(axis=0),
        yerr=half if np.isfinite(half).all() else None,
        capsize=3,
        linestyle="none",
        **style,
    )


def with_band(axes: Axes, x: np.ndarray, values: np.ndarray, **style) -> None:
    """A line of means of `[seeds, x]` in a band of 95 % intervals."""
    middle = values.mean(axis=0)
    (line,) = axes.plot(x, middle, **style)
    half = np.array([statistics.half_interval(column) for column in values.T])
    if np.isfinite(half).all():
        axes.fill_between(
            x, middle - half, middle + half, color=line.get_color(), alpha=0.2, linewidth=0
        )


def scale(axes: Axes, setting: Setting, of: Sampled, most: int) -> None:
    """A scale graph: micro-batches a second over workers, simulated where they were and exact."""
    M, T_c = setting.micro_batches, setting.communication
    N = np.unique(np.linspace(1, most, 25).astype(int))
    best = [of.sums.best(n, T_c, setting.stop) for n in N]
    without = np.array([n * M / (each.without + T_c) for n, each in zip(N, best, strict=True)])
    axes.plot(
        N, N * M / (of.sums.mean + T_c), color=LINEAR, linestyle="--", linewidth=1.2, label="linear"
    )
    axes.plot(
        N, without * [each.speedup for each in best], color=DROPPING, label="DropCompute, exact"
    )
    axes.plot(N, without, color=BASELINE, linestyle="-.", label="synchronous, exact")
    shown = {n: each for n, each in of.found.items() if n <= most}
    baseline, dropping = rates(setting, shown)
    with_bars(
        axes,
        list(shown),
        dropping,
        color=DROPPING,
        marker="o",
        markersize=4,
        label="DropCompute, simulated",
    )
    with_bars(
        axes,
        list(shown),
        baseline,
        color=BASELINE,
        marker="s",
        markersize=4,
        label="synchronous, simulated",
    )
    axes.set(xlim=(0, 1.02 * most), ylim=(0, None))


def by_the_normal_model(axes: Axes, setting: Setting, noise: Noise, most: int) -> None:
    """The same by equations 4, 5 and 11 alone."""
    N = np.unique(np.linspace(2, most, 50).astype(int))
    found = predicted(setting, noise.mean, noise.std, N)
    without = N * setting.micro_batches / (found.without + setting.communication)
    axes.plot(
        N,
        without * found.speedup,
        color=NORMAL,
        linestyle=":",
        linewidth=2.2,
        label="DropCompute, eqs. 4, 5, 11",
    )
    axes.plot(
        N, without, color=OTHER, linestyle=(0, (5, 1)), linewidth=1.4, label="synchronous, eq. 4"
    )


def figure_1(setting: Setting, of: Sampled, most: int, counts: Sequence[int]) -> Figure:
    """To as many workers as were simulated, to `most` by theory, and the speedup over them;
    `counts` is where its lines have points.
    """
    sheet, (left, right, gains) = plots.figure(3, width=4.8, height=4.0, sharey=False)
    for axes, last in ((left, max(of.found)), (right, most)):
        scale(axes, setting, of, last)
        by_the_normal_model(axes, setting, of.noise, last)
        axes.set(xlabel="workers N", ylabel="micro-batches a second", title=f"to {last:,} workers")
    for stop, colour, style in zip(STOPS, (DROPPING, BASELINE), ("-", "--"), strict=True):
        exact = [of.sums.best(n, setting.communication, stop).speedup for n in counts]
        gains.plot(counts, exact, color=colour, linestyle=style, label=f"{STOPS[stop]}, exact")
    analytical = predicted(setting, of.noise.mean, of.noise.std, counts)
    gains.plot(
        counts,
        analytical.speedup,
        color=NORMAL,
        linestyle=":",
        linewidth=2.2,
        label=f"{STOPS[setting.stop]}, eqs. 4, 5, 11",
    )
    speedups = np.stack([each.speedup for each in of.found.values()], axis=-1)
    with_bars(
        gains,
        list(of.found),
        speedups,
        color=LINEAR,
        marker="o",
        markersize=4,
        label=f"{STOPS[setting.stop]}, simulated",
    )
    gains.set(
        xscale="log", xlabel="workers N", ylabel="effective speedup", title="at the best threshold"
    )
    plots.plain_log(gains.xaxis)
    gains.legend(frameon=False, fontsize=9)
    below(sheet, left, 4)
    figures.title(sheet, heading(setting, "B.1's delays (figure 1)"))
    return sheet


def figure_3(
    setting: Setting,
    simulated: Mapping[str, tuple[Curves, np.ndarray, np.ndarray]],
    best: Measured,
    workers: int,
) -> Figure:
    """Speedups over thresholds.

    Args:
        setting: of all.
        simulated: by panel, the curves, and beside them equation 11 with E T of equation 4, and
            given E T.
        best: what Algorithm 2 finds in the last panel's setting.
        workers: N.
    """
    sheet, axes = plots.figure(3, width=4.8, height=4.0, sharey=False)
    for panel, (name, (curves, analytical, given)) in zip(axes, simulated.items(), strict=False):
        with_band(panel, curves.thresholds, curves.speedup, color=DROPPING, label="simulation")
        panel.plot(
            curves.thresholds, analytical, color=BASELINE, linestyle="--", label="analytical"
        )
        panel.plot(
            curves.thresholds,
            given,
            color=NORMAL,
            linestyle=":",
            linewidth=2.2,
            label="analytical, given E[T]",
        )
        panel.set(xlabel="threshold τ, seconds", ylabel="effective speedup", title=name)
    curves, last = list(simulated.values())[-1][0], axes[-1]
    last.axhline(1, color=LINEAR, linewidth=0.8)
    with_band(last, curves.thresholds, curves.speedup, color=DROPPING, label="effective speedup")
    with_band(
        last,
        curves.thresholds,
        curves.completed,
        color=BASELINE,
        linestyle="--",
        label="micro-batches completed",
    )
    with_band(
        last,
        curves.thresholds,
        curves.faster,
        color=NORMAL,
        linestyle=":",
        linewidth=2.2,
        label="step speedup",
    )
    tau = best.threshold.mean()
    last.axvline(tau, color=OTHER, linewidth=1.2)
    last.plot(
        tau,
        best.speedup.mean(),
        color=OTHER,
        marker="*",
        markersize=13,
        linestyle="none",
        label=f"τ* = {tau:.2f} s",
    )
    last.set(
        xlabel="threshold τ, seconds",
        ylabel="share, or times as much",
        title="B.1's delays: what the speedup is made of",
    )
    for panel in axes:
        panel.legend(frameon=False, fontsize=9)
    figures.title(sheet, heading(setting, f"{workers} workers (figure 3)", "bands"))
    return sheet


def figure_4(
    setting: Setting, shares: np.ndarray, panels: Mapping[str, Mapping[str, np.ndarray]], title: str
) -> Figure:
    """Speedups over the drop rate, `[seeds, K]` by line, by panel."""
    sheet, axes = plots.figure(len(panels), width=4.8, height=4.0)
    for panel, (name, lines) in zip(axes, panels.items(), strict=True):
        panel.axhline(1, color=LINEAR, linewidth=0.8)
        for i, (label, values) in enumerate(lines.items()):
            with_band(
                panel,
                100 * shares,
                values,
                color=plots.COLOURS[i],
                linestyle=plots.STYLES[i],
                label=label,
            )
        panel.set(xlabel="drop rate, %", title=name)
        panel.legend(frameon=False, fontsize=9)
    axes[0].set_ylabel("effective speedup")
    figures.title(sheet, heading(setting, title, "bands"))
    return sheet


def scale_graphs(
    setting: Setting,
    panels: Mapping[str, Sampled],
    most: int,
    what: str,
    approximated: str | None = None,
) -> Figure:
    """Figures 13 and 14: a scale graph for each noise; where `approximated` is its title, one more
    by equations 4, 5 and 11.
    """
    sheet, axes = plots.figure(3, 2, width=4.6, height=3.4, sharey=False)
    for panel, (name, of) in zip(axes, panels.items(), strict=False):
        scale(panel, setting, of, most)
        panel.set_title(name, fontsize=10)
    if approximated is not None:
        first = next(iter(panels.values()))
        N = np.array([1, most])
        axes[-1].plot(
            N,
            N * setting.micro_batches / (first.sums.mean + setting.communication),
            color=LINEAR,
            linestyle="--",
            linewidth=1.2,
        )
        by_the_normal_model(axes[-1], setting, first.noise, most)
        axes[-1].set_title(approximated, fontsize=10)
        axes[-1].set(xlim=(0, 1.02 * most), ylim=(0, None))
        axes[-1].legend(frameon=False, fontsize=9)
    for panel in axes[3:]:
        panel.set_xlabel("workers N")
    for panel in axes[::3]:
        panel.set_ylabel("micro-batches a second")
    top = max(panel.get_ylim()[1] for panel in axes)
    for panel in axes:
        panel.set_ylim(0, top)
    below(sheet, axes[0], 5)
    figures.title(sheet, heading(setting, what))
    return sheet


def growth(
    setting: Setting,
    lines: Mapping[str, np.ndarray],
    limits: Mapping[str, float],
    counts: np.ndarray,
) -> Figure:
    """Speedups over very many workers, and what those with bounded noise do not pass."""
    sheet, (axes,) = plots.figure(1, width=9.0, height=4.4)
    for i, (name, values) in enumerate(lines.items()):
        style, words = {"color": plots.COLOURS[i], "linestyle": plots.STYLES[i]}, name
        if name in limits:
            words = f"{name}: never above {limits[name]:.2f}"
            axes.axhline(limits[name], linewidth=0.9, **style)
        axes.plot(counts, values, linewidth=1.8, label=words, **style)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="workers N",
        ylabel="effective speedup at the best threshold",
        xlim=(1, counts[-1]),
    )
    plots.plain_log(axes.yaxis)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    T_c = setting.communication
    figures.title(
        sheet,
        f"Bounded and unbounded latencies, exact: {setting.micro_batches} micro-batches, T^c = "
        f"{T_c:g} s, preempting",
    )
    return sheet


def below(sheet: Figure, axes: Axes, columns: int) -> None:
    """One panel's legend, below all."""
    sheet.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
    )


def heading(setting: Setting, what: str, intervals_are: str = "bars") -> str:
    """A title."""
    seeds = len(setting.seeds)
    sure = f"{intervals_are}: 95 % intervals over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{what}: T^c = {setting.communication:g} s, {STOPS[setting.stop]}; {sure}"
