"""Figures 7 to 9 of Kimad, and its table 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dsgd
from dsgd import plots
from experiments.kimad.kimad_tables import STEPS, times_of
from experiments.kimad.kimad_training import COMPUTATION, EF21, KIMAD, PLUS, TOLD, WHOLE, Case, Histories, Setting, pattern, step_time
from experiments.shared import common, figures

PERIODS = 3  # of the bandwidth, in the panels over time
LINES = (plots.STYLES[0], plots.STYLES[4])  # in turn, so that those beneath others are seen
LEAST = 1e-5  # of the largest compression error: what is less, nobody sees; sent as it is, all is 0


def draw(setting: Setting, histories: Histories, seconds: float, period: float, noise: float) -> Figure:
    """Messages, losses and compression errors over time, and seconds of a step."""
    N = setting.problem.workers
    times = times_of(setting, histories)
    sheet, (sizes, losses, errors, steps) = plots.figure(2, 2, width=5.6, height=4.0, sharey=False)
    of = {method: histories[Case(method, N, seconds)] for method in (EF21, KIMAD, PLUS, WHOLE)}

    by_time = {f"T_comm = {time:g} s": histories[Case(KIMAD, N, time)] for time in times}
    over_time(sizes, setting, by_time, "message", 100 / setting.bits, period)
    sizes.axhline(100, color="0.4", linewidth=0.8)
    sizes.set(ylabel="message, % of the model's bits", ylim=(0, 115))
    sizes.set_title("Kimad's messages of one worker (figure 7)")

    evaluated = {name: dsgd.evaluated(of[name]) for name in (EF21, KIMAD, PLUS)}
    plots.draw_lines(losses, {name: (history["clock"].mean(axis=0), history["loss"]) for name, history in evaluated.items()})
    losses.set(yscale="log", xlabel="simulated seconds", ylabel="loss f(x)", title=f"T_comm = {seconds:g} s (figure 8)")
    plots.plain_log(losses.yaxis)
    losses.legend(frameon=False, fontsize=9)

    over_time(errors, setting, of, "error", 1, period)
    most = max(history["error"][0, setting.warm_up + 1 :].max() for history in of.values()) or 1.0
    errors.set(yscale="log", ylim=(LEAST * most, 2 * most))
    errors.set(ylabel="compression error |seen - sent|²", title=f"One worker, T_comm = {seconds:g} s (figure 9)")

    draw_steps(steps, setting, histories, times)
    what = f"{setting.problem.name}, {N} workers, one period in {period:g} s, noise {noise:g}"
    figures.title(sheet, f"{what}; {common.errors('bands and bars', setting.seeds)}")
    return sheet


def over_time(
    axes: Axes, setting: Setting, histories: Mapping[str, dict[str, np.ndarray]], name: str, factor: float, period: float
) -> None:
    """The first seed's series after the warm-up, a line for each history; dashed, the bandwidth without noise."""
    began, last = next(iter(histories.values()))["clock"][0, setting.warm_up], 0.0
    for i, (label, history) in enumerate(histories.items()):
        begins = history["clock"][0, :-1] - began
        rounds = np.flatnonzero((begins >= 0) & (begins <= PERIODS * period))
        values = factor * history[name][0, rounds + 1]
        line: dict[str, Any] = {"color": plots.COLOURS[i], "linestyle": LINES[i % 2], "linewidth": 1.4}
        axes.plot(begins[rounds], np.where(values > 0, values, np.nan), label=label, **line)
        last = max(last, begins[rounds[-1]])
    x = np.linspace(0, last, 500)
    axes.set_xlabel("simulated seconds after the warm-up")
    beside = axes.twinx()
    beside.plot(x, pattern(period, began + x) / 1e6, color="0.55", linestyle="--", linewidth=1.0, label="bandwidth")
    beside.set(ylabel="bandwidth to a ResNet-18, Mbit/s", ylim=(0, 380))
    beside.spines["top"].set_visible(False)
    lines = [*axes.get_lines(), *beside.get_lines()]
    axes.legend(handles=lines, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False, fontsize=9)


def draw_steps(axes: Axes, setting: Setting, histories: Histories, times: Sequence[float]) -> None:
    """Table 1: seconds of a step, ours and the paper's."""
    N = setting.problem.workers
    for i, method in enumerate((EF21, KIMAD, TOLD)):
        middle, error = zip(*(dsgd.mean_and_error(step_time(setting, histories[Case(method, N, time)])) for time in times), strict=True)
        label = f"{method} the bandwidths" if method == TOLD else method
        colour = plots.COLOURS[i if method != TOLD else 4]
        axes.errorbar(times, middle, error, color=colour, linestyle=plots.STYLES[i], marker="o", markersize=4, label=label)
    theirs = [time for time in times if time in STEPS]
    for i, method in enumerate((EF21, KIMAD)):
        marks = [STEPS[time][i] for time in theirs]
        axes.plot(theirs, marks, linestyle="", marker="s", markersize=7, fillstyle="none", color=plots.COLOURS[i], label=f"{method}, paper")
    axes.axhline(COMPUTATION, color="0.4", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="T_comm, seconds", ylabel="seconds of a step", title="Table 1; grey: T_comp")
    plots.plain_log(axes.yaxis)
    plots.plain_log(axes.xaxis)
    axes.legend(frameon=False, fontsize=9)
