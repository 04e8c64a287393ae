"""Figures 1, 3, 4, 13 and 14 of DropCompute, the growth of its speedup with N, and the numbers
stated in the paper, next to ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from algorithms.dropcompute import Effect
from algorithms.dropcompute.stopping import Stop
from dsgd import plots
from experiments.dropcompute.exact import Common
from experiments.dropcompute.noises import ACCUMULATION, MEAN, Noise
from experiments.dropcompute.simulated import Sampled, Setting, predict, rates
from experiments.shared import figures, statistics, tables

FIGURE_5, CLUSTER = 64, 196  # workers of the paper's figure 5, and of A.2
STOPS: dict[Stop, str] = {"preempt": "preempting", "between": "checking between micro-batches"}
BASELINE: dict[str, Any] = {"color": "#D55E00", "linestyle": "-."}
DROPPING: dict[str, Any] = {"color": "#0072B2"}
LINEAR = {"color": "#000000", "linestyle": "--", "linewidth": 1.2}
NORMAL = {"color": "#009E73", "linestyle": ":", "linewidth": 2.2}
OTHER = {"color": "#CC79A7", "linestyle": (0, (5, 1)), "linewidth": 1.4}


def draw_points(
    axes: Axes, x: Sequence[float], values: np.ndarray, look: Mapping[str, Any], **others: Any
) -> None:
    """Draws means of `[seeds, x]` as points in the colour of a line, with 95 % intervals."""
    figures.points(axes, x, list(values.T), color=look["color"], markersize=4, **others)


def draw_band(axes: Axes, x: np.ndarray, values: np.ndarray, **look: Any) -> None:
    """Draws a line of means of `[seeds, x]` in a band of 95 % intervals."""
    middle = values.mean(axis=0)
    (line,) = axes.plot(x, middle, **look)
    half = np.array([statistics.half_interval(column) for column in values.T])
    if np.isfinite(half).all():
        band = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0}
        axes.fill_between(x, middle - half, middle + half, **band)


def linear(axes: Axes, setting: Setting, of: Sampled, N: np.ndarray, label: str | None) -> None:
    """Draws the micro-batches per second of workers that do not wait for each other."""
    each = setting.micro_batches / (of.sums.mean + setting.communication)
    axes.plot(N, N * each, label=label, **LINEAR)
    axes.set(xlim=(0, 1.02 * N[-1]), ylim=(0, None))


def scale(axes: Axes, setting: Setting, of: Sampled, most: int) -> None:
    """Draws a scale graph: micro-batches per second against workers, simulated where available, and
    exact.
    """
    M, T_c = setting.micro_batches, setting.communication
    N = np.unique(np.linspace(1, most, 25).astype(int))
    best = [of.sums.best(n, T_c, setting.stop) for n in N]
    without = np.array([n * M / (each.without + T_c) for n, each in zip(N, best, strict=True)])
    linear(axes, setting, of, N, "linear")
    speedups = [each.speedup for each in best]
    axes.plot(N, without * speedups, label="DropCompute, exact", **DROPPING)
    axes.plot(N, without, label="synchronous, exact", **BASELINE)
    shown = {n: each for n, each in of.found.items() if n <= most}
    baseline, dropping = rates(setting, shown)
    draw_points(axes, list(shown), dropping, DROPPING, label="DropCompute, simulated")
    draw_points(axes, list(shown), baseline, BASELINE, marker="s", label="synchronous, simulated")


def draw_normal_model(axes: Axes, setting: Setting, noise: Noise, most: int) -> None:
    """Draws a scale graph, micro-batches per second against workers, from equations 4, 5 and 11
    only.
    """
    N = np.unique(np.linspace(2, most, 50).astype(int))
    found = predict(setting, noise.mean, noise.std, N)
    without = N * setting.micro_batches / (found.without + setting.communication)
    axes.plot(N, without * found.speedup, label="DropCompute, eqs. 4, 5, 11", **NORMAL)
    axes.plot(N, without, label="synchronous, eq. 4", **OTHER)


def figure_1(setting: Setting, of: Sampled, most: int, counts: Sequence[int]) -> Figure:
    """Draws two scale graphs, micro-batches per second against workers: one for the simulated
    numbers of workers, one extrapolated by theory up to `most`. A third panel draws the speedup
    against workers; `counts` are the points of its lines.
    """
    sheet, panels = plots.figure(2, 2, width=figures.WIDTH / 2, height=3.6, sharey=False)
    left, right, gains, free = panels
    for axes, last in ((left, max(of.found)), (right, most)):
        scale(axes, setting, of, last)
        draw_normal_model(axes, setting, of.noise, last)
        axes.set(xlabel="workers N", ylabel="micro-batches a second", title=f"to {last:,} workers")
    for (stop, words), look in zip(STOPS.items(), (DROPPING, BASELINE), strict=True):
        exact = [of.sums.best(n, setting.communication, stop).speedup for n in counts]
        gains.plot(counts, exact, label=f"{words}, exact", **look)
    analytical, stop = predict(setting, of.noise.mean, of.noise.std, counts), STOPS[setting.stop]
    gains.plot(counts, analytical.speedup, label=f"{stop}, eqs. 4, 5, 11", **NORMAL)
    speedups = np.stack([each.speedup for each in of.found.values()], axis=-1)
    draw_points(gains, list(of.found), speedups, LINEAR, label=f"{stop}, simulated")
    figures.describe(
        gains, "workers N", "effective speedup", "at the best threshold", log="x", legend=True
    )
    free.set_axis_off()
    free.legend(*left.get_legend_handles_labels(), loc="center", frameon=False)
    figures.title(sheet, heading(setting, "B.1's delays (figure 1)"))
    return sheet


def figure_3(
    setting: Setting,
    simulated: Mapping[str, tuple[Effect, np.ndarray, np.ndarray]],
    best: Effect,
    workers: int,
) -> Figure:
    """Draws speedups against thresholds.

    Args:
        setting: the settings.
        simulated: by panel, the effects `[seeds, K]`, and equation 11 with E T of equation 4 and
            with the simulated E T.
        best: the result of Algorithm 2 in the last panel's setting.
        workers: N.
    """
    sheet = Figure(figsize=(figures.WIDTH, 7), layout="constrained")
    above, below = sheet.subfigures(2, 1, squeeze=False)[:, 0]
    axes, (last,) = plots.panels(above, 2, sharey=False), plots.panels(below, 1)
    dashed, x = {**BASELINE, "linestyle": "--"}, "threshold τ, seconds"
    for panel, (name, (effect, analytical, given)) in zip(axes, simulated.items(), strict=True):
        thresholds = effect.threshold[0]
        draw_band(panel, thresholds, effect.speedup, label="simulation", **DROPPING)
        panel.plot(thresholds, analytical, label="analytical", **dashed)
        panel.plot(thresholds, given, label="analytical, given E[T]", **NORMAL)
        figures.describe(panel, x, "effective speedup", name, legend=True)
    effect, T_c = list(simulated.values())[-1][0], setting.communication
    last.axhline(1, color="black", linewidth=0.8)
    for values, label, look in (
        (effect.speedup, "effective speedup", DROPPING),
        (1 - effect.drop_rate, "micro-batches completed", dashed),
        ((effect.without + T_c) / (effect.step_time + T_c), "step speedup", NORMAL),
    ):
        draw_band(last, effect.threshold[0], values, label=label, **look)
    tau, colour = best.threshold.mean(), OTHER["color"]
    last.axvline(tau, color=colour, linewidth=1.2)
    label = f"τ* = {tau:.2f} s"
    last.plot(tau, best.speedup.mean(), "*", color=colour, markersize=13, label=label)
    title = "B.1's delays: what the speedup is made of"
    figures.describe(last, x, "share, or ratio", title, legend=True)
    figures.title(sheet, heading(setting, f"{workers} workers (figure 3)", "bands"))
    return sheet


def figure_4(
    setting: Setting, shares: np.ndarray, panels: Mapping[str, Mapping[str, np.ndarray]], title: str
) -> Figure:
    """Draws speedups, `[seeds, K]`, against the drop rate: a panel for each entry of `panels`, with
    a line for each of the panel's entries.
    """
    sheet, axes = plots.figure(len(panels), width=figures.WIDTH / len(panels), height=4.0)
    for panel, (name, lines) in zip(axes, panels.items(), strict=True):
        panel.axhline(1, color="black", linewidth=0.8)
        for i, (label, values) in enumerate(lines.items()):
            draw_band(panel, 100 * shares, values, **figures.look(i, label=label))
        figures.describe(panel, "drop rate, %", title=name)
        panel.legend(frameon=False, fontsize=9, loc="lower left")
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
    """Draws figures 13 and 14: a scale graph for each noise and, if `approximated` is a title,
    another one by equations 4, 5 and 11.
    """
    sheet, axes = plots.figure(2, 3, width=figures.WIDTH / 2, height=2.9, sharey=False)
    for panel, (name, of) in zip(axes, panels.items(), strict=False):
        scale(panel, setting, of, most)
        panel.set_title(name, fontsize=10)
    if approximated is not None:
        first, last = next(iter(panels.values())), axes[-1]
        linear(last, setting, first, np.array([1, most]), None)
        draw_normal_model(last, setting, first.noise, most)
        last.set_title(approximated, fontsize=10)
        last.legend(frameon=False, fontsize=9)
    for panel in axes[-2:]:
        panel.set_xlabel("workers N")
    for panel in axes[::2]:
        panel.set_ylabel("micro-batches a second")
    top = max(panel.get_ylim()[1] for panel in axes)
    for panel in axes:
        panel.set_ylim(0, top)
    figures.legend(sheet, 3, axes[0])
    figures.title(sheet, heading(setting, what))
    return sheet


def growth(
    setting: Setting,
    lines: Mapping[str, np.ndarray],
    limits: Mapping[str, float],
    counts: np.ndarray,
) -> Figure:
    """Draws speedups for very many workers, and the bounds for bounded noises."""
    sheet, (axes,) = plots.figure(1, width=figures.WIDTH, height=4.4)
    for i, (name, values) in enumerate(lines.items()):
        words = name
        if name in limits:
            words = f"{name}: bound {limits[name]:.2f}"
            axes.axhline(limits[name], **figures.look(i, linewidth=0.9))
        axes.plot(counts, values, **figures.look(i, linewidth=1.8, label=words))
    y = "effective speedup at the best threshold"
    figures.describe(axes, "workers N", y, log="xy", xlim=(1, counts[-1]))
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figures.title(
        sheet,
        f"Bounded and unbounded latencies, exact: {setting.micro_batches} micro-batches, T$^c$ = "
        f"{setting.communication:g}\u00a0s, preempting",
    )
    return sheet


def heading(setting: Setting, what: str, intervals_are: str = "bars") -> str:
    """Returns a title with the settings."""
    seeds = len(setting.seeds)
    sure = f"{intervals_are}: 95 % intervals over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{what}: T$^c$ = {setting.communication:g}\u00a0s, {STOPS[setting.stop]}; {sure}"


def summary(
    setting: Setting, of: Sampled, worst: Sampled, one_N: Common, natural: np.ndarray
) -> Table:
    """Tabulates the numbers that the paper states, and some that it does not.

    Args:
        setting: the settings.
        of: B.1's delays.
        worst: the noise with the largest variance.
        one_N: the N of C.3.
        natural: speedups of `CLUSTER` workers without added noise, `[seeds]`.
    """
    T_c = setting.communication
    table = tables.table(
        "DropCompute's speedup: the paper's figures, and ours",
        ("", "paper", "ours"),
        f"{setting.micro_batches} micro-batches, T^c = {T_c:g} s, {setting.stop}, unless stated "
        "otherwise.\nFigure 5: 3 % more steps in 13 % less time, so that a step is shorter\nby 1 "
        f"- 0.87 / 1.03. *: exact.\nOthers: {sureness(setting)}",
    )

    def rows(section: str, *lines: tuple[str, str, str]) -> None:
        table.add_section()
        table.add_row(section)
        for line in lines:
            table.add_row(f"  {line[0]}", *line[1:])

    def less(stop: Stop) -> str:
        return f"{100 * (1 - 1 / of.sums.best(FIGURE_5, T_c, stop).speedup):.1f} % *"

    gains = ", ".join(
        f"{of.sums.best(FIGURE_5, seconds, setting.stop).speedup:.2f}" for seconds in (0, 1, 2)
    )
    rows(
        "B.1's delays",
        ("seconds of a micro-batch / 0.45, mean", "1.5", f"{of.noise.mean / ACCUMULATION:.3f} *"),
        ("most", "6", f"{of.noise.longest / ACCUMULATION:.1f} *"),
    )
    rows(
        f"B.1's delays, {FIGURE_5} workers",
        ("time saved for the same samples, preempting", "13 %", less("preempt")),
        ("the same, clock read between micro-batches", "13 %", less("between")),
        (
            "steps shorter by, with 3 % dropped",
            "15.5 %",
            f"{100 * of.sums.shorter(0.03, FIGURE_5, T_c):.1f} % *",
        ),
        ("effective speedup with T^c = 0, 1, 2 s", "-", f"{gains} *"),
    )
    both = (
        f"{worst.sums.best(one_N.workers, T_c, stop).speedup:.2f} *"
        for stop in ("preempt", "between")
    )
    rows(
        "C.3",
        ("N of E[T] / E[T_i]", "-", f"{one_N.workers} (within {100 * one_N.off:.1f} %)"),
        ("effective speedup in 14f, preempting", "-", next(both)),
        ("the same, clock read between micro-batches", "-", next(both)),
    )
    rows(
        f"no added noise, {CLUSTER} workers",
        ("effective speedup (A.2)", "1.05", statistics.format_with_interval(natural, 3)),
    )
    return table


def compare_runs(
    setting: Setting, clock: Effect, planned: Effect, exact: Effect, workers: int
) -> Table:
    """Tabulates the measurements of runs, next to the plan."""
    table = tables.table(
        f"{workers} workers with B.1's delays, {setting.stop}, τ = {clock.threshold[0]:.3f} s",
        ("", "runs", "planned", "exact"),
        f"runs: their clock and history, {setting.iterations} rounds. planned: from other draws.\n"
        f"exact: with the best threshold, {exact.threshold:.3f} s.\n{sureness(setting)}",
    )
    for what, name, digits in (
        ("seconds of a step", "step_time", 2),
        ("without DropCompute", "without", 2),
        ("share of micro-batches dropped", "drop_rate", 3),
        ("effective speedup", "speedup", 3),
    ):
        found, expected, exactly = (getattr(each, name) for each in (clock, planned, exact))
        table.add_row(
            what,
            statistics.format_with_interval(found, digits),
            statistics.format_with_interval(expected, digits),
            f"{exactly:.{digits}f}",
        )
    return table


def scaling(setting: Setting, of: Sampled, further: Sequence[int]) -> Table:
    """Tabulates the numbers of figure 1."""
    table = tables.table(
        f"B.1's delays, {setting.stop}: seconds of a step, and the best speedup",
        (
            "N",
            "T\nsimulated",
            "T\nexact",
            "T\neq. 4",
            "S_eff\nsimulated",
            "S_eff\nexact",
            "S_eff\neq. 11",
            "drop",
        ),
        f"drop: dropped micro-batches of the exact optimum, %.\nSimulated: {sureness(setting)}",
        left=0,
    )
    for N in (*of.found, *further):
        exact = of.sums.best(N, setting.communication, setting.stop)
        normal = predict(setting, of.noise.mean, of.noise.std, [N])
        found = of.found.get(N)
        T, S = (
            (
                statistics.format_with_interval(found.without),
                statistics.format_with_interval(found.speedup, 3),
            )
            if found
            else ("-", "-")
        )
        whole, gain = normal.without[0], normal.speedup[0]
        both = (T, f"{exact.without:.2f}", f"{whole:.2f}", S, f"{exact.speedup:.3f}", f"{gain:.3f}")
        table.add_row(f"{N:,}", *both, f"{100 * exact.drop_rate:.1f}")
    return table


def ratios(noises: Mapping[str, tuple[Sampled, float, float]], one_N: Common) -> Table:
    """Tabulates both tables of C.3.

    Args:
        noises: by the paper's panel, the results, the printed ratio, and the N that alone would
            give this ratio.
        one_N: the common N.
    """
    N = one_N.workers
    table = tables.table(
        f"C.3: E[T] / E[T_i], for an N that the paper does not state:\nwith N = {N} all agree "
        f"within {100 * one_N.off:.1f} %",
        ("fig.", "ε", "paper", "exact", "off", "simulated", "alone", "gain"),
        f"ε has the mean {MEAN:g} s. exact: for {N} workers. off: deviation from the paper, %.\n"
        "alone: the N that gives this printed ratio exactly. gain: S_eff, simulated.",
        left=2,
    )
    for panel, (of, paper, alone) in noises.items():
        if panel == "14b":
            table.add_section()
        exact, found = of.sums.ratio(N), of.found[N]
        off = f"{100 * (exact / paper - 1):+.1f}"
        measured, gain = (
            statistics.format_with_interval(found.without / of.sums.mean, 3),
            f"{found.speedup.mean():.2f}",
        )
        table.add_row(
            panel,
            of.noise.name,
            f"{paper:.3f}",
            f"{exact:.3f}",
            off,
            measured,
            f"{alone:.0f}",
            gain,
        )
    return table


def sureness(setting: Setting) -> str:
    """Describes the numbers of several seeds."""
    seeds = len(setting.seeds)
    if seeds == 1:
        return "one seed."
    return f"mean ± half-width of the 95 % interval over {seeds} seeds."
