"""What was measured beside what the switch says, as panels."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dsgd import plots
from experiments.shared import figures
from experiments.survey import link_fits
from experiments.survey.calibration_tables import seconds_of, short
from experiments.survey.real_rounds import METHODS, Calibration


def draw(result: Calibration, where: str) -> Figure:
    """Collectives and rounds: lines are what the switch says, points what was measured."""
    sheet = Figure(figsize=(12, 5), layout="constrained")
    left, right = plots.panels(sheet, 2, sharey=False)
    for i, (name, by_size) in enumerate(result.found.collectives.items()):
        sizes = list(by_size)
        said = [result.explained(name, size) for size in sizes]
        draw_one(left, i, name, (sizes, said), list(by_size.values()))
    left.set(title="collectives", xlabel="bytes of the vector", ylabel="seconds")
    for i, name in enumerate(METHODS):
        sizes, said, _ = seconds_of(result, name)
        draw_one(right, i, name, (sizes, said), [parts.seconds for (method, _), parts in result.found.rounds.items() if method == name])
    right.set(title="rounds", xlabel="bytes of the model", ylabel="seconds a round")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log")
        axes.legend(frameon=False, fontsize=9)
    latency, bandwidth = result.switch.alpha.times(1e6), result.switch.beta.inverse(link_fits.BITS / 1e6)
    switch = f"latency {short(latency.value)} µs, {short(bandwidth.value)} Mbit/s"
    figures.title(sheet, f"{where}\nlines: one switch, {switch}; points: measured medians, 95 % intervals over repeats")
    return sheet


def draw_one(axes: Axes, i: int, name: str, said: tuple[list[float], list[float]], measured: list[np.ndarray]) -> None:
    """A line, and points with intervals, a little beside those of others."""
    sizes = np.array(said[0]) * 1.04 ** (i - 2)
    found = np.array([link_fits.median(seconds) for seconds in measured])
    bars = np.maximum(0, np.stack([found[:, 0] - found[:, 1], found[:, 2] - found[:, 0]]))
    axes.plot(*said, color=plots.COLOURS[i], linestyle=plots.STYLES[i], linewidth=1.5)
    axes.errorbar(
        sizes, found[:, 0], bars, color=plots.COLOURS[i], linestyle="none", marker="osD^v"[i], markersize=5, capsize=2, label=name
    )
