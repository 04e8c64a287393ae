"""Results of `calibrate`: measurements and the switch's predictions, as tables and as a figure."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dsgd import plots
from experiments.shared import figures, tables
from experiments.survey.calibrate_measuring import COLLECTIVES, ELEMENT, METHODS
from experiments.survey.calibrate_switch import (
    BITS,
    Calibration,
    Estimate,
    Fit,
    Line,
    crossovers,
    median,
    predict_round,
)

PLAIN = "minibatch_sgd"  # the method to which others are compared


def tabulate_collectives(result: Calibration, where: str) -> Table:
    """Tabulates the fitted latency and bandwidth of each collective alone, and of all collectives
    together, at each level.
    """
    formulas = "\n".join(f"{name}: {COLLECTIVES[name].formula}" for name in COLLECTIVES)
    levels = (
        "\nWithin machines: on all of them at the same time. Between machines: of one worker of "
        "each,\nfor all workers at the same time, which share their machine's network card."
        if result.between
        else ""
    )
    table = tables.table(
        f"{where}:\nlatency and bandwidth of the switch fitted to each collective",
        ("collective", "l, µs", "Mbit/s", "x"),
        f"{formulas}\nl: latency of a message, r: transfer of the vector on a port.\n[95 % "
        "interval]. x: measured / fitted, smallest to largest over sizes: for each collective\n"
        f"with its own switch, in the last row with the common switch.{levels}",
    )
    for level, fit in result.levels.items():
        if result.between:
            table.add_row(level, "", "", "", end_section=True)
        for name, line in fit.lines.items():
            table.add_row(name, *_format_line(line), _format_ratios(fit, line, [name]))
        table.add_section()
        ratios = _format_ratios(fit, fit.switch, list(fit.lines))
        table.add_row("all collectives", *_format_line(fit.switch), ratios, end_section=True)
    return table


def tabulate_machines(result: Calibration) -> Table:
    """Tabulates what a worker of each machine needs and has."""
    table = tables.table(
        "a worker of each machine",
        ("machine", "ms of a\ngradient", "GB/s of\nmemory"),
        "gradient: logistic regression on digits, while all workers compute.",
    )
    for device in result.found.devices:
        table.add_row(
            device.host, short(1e3 * device.seconds), short(device.memory_bandwidth / 1e9)
        )
    return table


def _format_line(line: Line) -> tuple[str, str]:
    """Formats the latency in microseconds and the bandwidth in Mbit/s, with their intervals."""
    return _format_estimate(line.alpha.times(1e6)), _format_estimate(line.beta.inverse(BITS / 1e6))


def _format_estimate(estimate: Estimate) -> str:
    value, low, high = (short(number) for number in estimate)
    return f"{value} [{low}, {high}]"


def short(number: float) -> str:
    """Formats a number with three digits, without an exponent; 0 below 1e-3, ∞ from 1e9 on."""
    return "0" if number < 1e-3 else tables.plain(number) if number < 1e9 else "∞"


def _format_ratios(fit: Fit, line: Line, names: list[str]) -> str:
    """Returns the smallest and largest ratio of measured medians to the values of the line."""
    predict = fit._replace(switch=line).predict
    ratios = [
        float(np.median(seconds)) / predict(name, size)
        for name in names
        for size, seconds in fit.times[name].items()
    ]
    return f"{short(float(f'{min(ratios):.2g}'))}-{short(float(f'{max(ratios):.2g}'))}"


def format_bytes(number: float) -> str:
    """Formats a number of bytes."""
    unit = min(2, int(np.log10(number) // 3)) if number >= 1 else 0
    return f"{number / 1000**unit:.3g} {('B', 'KB', 'MB')[unit]}"


def list_seconds(result: Calibration, name: str) -> tuple[list[float], list[float], list[float]]:
    """Returns a method's model sizes in bytes, predicted seconds, and measured seconds."""
    mine = [parts for (method, _), parts in result.found.rounds.items() if method == name]
    expected = [predict_round(name, parts, result.whole.N, result.whole.switch) for parts in mine]
    return (
        [float(ELEMENT * parts.elements) for parts in mine],
        expected,
        [parts.median for parts in mine],
    )


def tabulate_rounds(result: Calibration, where: str) -> Table:
    """Tabulates predicted and measured milliseconds of a round, by model size."""
    table = tables.table(
        f"{where}: ms of a round",
        ("model", "method", "predicted", "measured"),
        "predicted: measured gradient and codec, messages on the common switch,\nwith a latency "
        "for each array of a message. measured: medians.\n*: the fastest.",
        left=2,
    )
    by_method = {name: list_seconds(result, name) for name in METHODS}
    for i, size in enumerate(by_method[PLAIN][0]):
        fastest = [min(found[column][i] for found in by_method.values()) for column in (1, 2)]
        for name, (_, *times) in by_method.items():
            cells = (
                short(1e3 * seconds[i]) + ("*" if seconds[i] == least else "")
                for seconds, least in zip(times, fastest, strict=True)
            )
            first = format_bytes(size) if name == PLAIN else ""
            table.add_row(first, name, *cells, end_section=name == list(METHODS)[-1])
    return table


def tabulate_crossovers(result: Calibration) -> Table:
    """Tabulates the model size above which a method is faster than mini-batch SGD, predicted and
    measured.
    """
    title = f"model size at which a method becomes faster than {PLAIN}, or slower again"
    table = tables.table(title, ("method", "predicted", "measured"), "-: not within these sizes.")
    _, *plain = list_seconds(result, PLAIN)
    for name in METHODS:
        if name != PLAIN:
            sizes, *mine = list_seconds(result, name)
            cells = (
                crossovers(sizes, first, second) for first, second in zip(plain, mine, strict=True)
            )
            table.add_row(
                name,
                *(
                    ", ".join(map(format_bytes, found)) or f"- ({_always(a, b)})"
                    for found, a, b in zip(cells, plain, mine, strict=True)
                ),
            )
    return table


def _always(plain: list[float], mine: list[float]) -> str:
    """Describes a method whose seconds do not cross those of mini-batch SGD."""
    return "always faster" if mine[0] < plain[0] else "never faster"


def draw(result: Calibration, where: str) -> Figure:
    """Draws collectives and rounds: the switch's times as lines, measured times as points."""
    sheet, (left, right) = plots.figure(2, width=figures.WIDTH / 2, height=4.4, sharey=False)
    for i, (name, by_size) in enumerate(result.found.collectives.items()):
        expected = [result.whole.predict(name, size) for size in by_size]
        draw_one(left, i, name, list(by_size), expected, list(by_size.values()))
    left.set(title="collectives", xlabel="bytes of the vector", ylabel="seconds")
    for i, name in enumerate(METHODS):
        sizes, expected, _ = list_seconds(result, name)
        rounds = result.found.rounds.items()
        measured = [parts.seconds for (method, _), parts in rounds if method == name]
        draw_one(right, i, name, sizes, expected, measured)
    right.set(title="rounds", xlabel="bytes of the model", ylabel="seconds a round")
    for axes in (left, right):
        figures.describe(axes, log="xy", legend=True)
    line = result.whole.switch
    latency, bandwidth = line.alpha.times(1e6), line.beta.inverse(BITS / 1e6)
    switch = f"latency {short(latency.value)} µs, {short(bandwidth.value)} Mbit/s"
    figures.title(
        sheet,
        f"{where}\nlines: one switch, {switch}; points: measured medians, 95 % intervals over "
        "repeats",
    )
    return sheet


def draw_one(
    axes: Axes,
    i: int,
    name: str,
    sizes: list[float],
    expected: list[float],
    measured: list[np.ndarray],
) -> None:
    """Draws a line, and points with intervals, shifted slightly so that they do not overlap."""
    middle, low, high = np.array([median(seconds) for seconds in measured]).T
    axes.plot(sizes, expected, **figures.look(i, linewidth=1.5))
    axes.errorbar(
        np.array(sizes) * 1.04 ** (i - 2),
        middle,
        np.maximum(0, [middle - low, high - middle]),
        color=plots.COLOURS[i],
        linestyle="none",
        marker="osD^v"[i],
        markersize=5,
        capsize=2,
        label=name,
    )
