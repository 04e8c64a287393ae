"""The survey's summary of its results (Table 1.1), reproduced: predicted and measured iterations to
reach epsilon, and communication.

    python -m experiments.complexity_table

Predicted: the smallest T at which the theorem's rate is at most epsilon. Measured: the smallest T
at which the average of |f'(x_t)|^2 over T steps is at most epsilon, at the step size recommended
for T, without sampling noise. All methods use the same quadratic, whose workers have equal
Hessians, so that sigma and varsigma are constant, as the theorems require. (There, heterogeneity
does not affect the mean of DSGD's models, but it affects its step size.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from rich.table import Table

import topologies
from dsgd import plots, problems, records
from experiments.shared import commands, figures, tables
from experiments.survey import complexity_communication as communication
from experiments.survey import theorems
from experiments.survey.theorems import Method

Decreasing = Annotated[
    tuple[float, ...],
    commands.Bound(
        "at least 2 decreasing positive numbers",
        lambda numbers: (
            len(numbers) > 1
            and all(a > b for a, b in itertools.pairwise((math.inf, *numbers, 0.0)))
        ),
        together=True,
    ),
]


@dataclass(frozen=True)
class Args(commands.Switch, commands.Tasks):
    """Reproduces the survey's iterations and communication."""

    epsilons: Decreasing = (0.3, 0.1, 0.03, 0.01)
    """Target averages of |f'(x_t)|^2, decreasing; |f'(x_1)|^2 = 1."""
    dimension: commands.Count = 2**16
    """Number of elements of the model whose messages are counted."""
    latency: commands.NotNegative = 50e-6
    """Latency of a message, seconds."""
    bandwidth: commands.Positive = 1e9
    """Bits per second of a port."""
    out: Path = Path("results/complexity_table")
    """Folder for config.json, iterations.csv, communication.csv and figure.png."""
    progress: bool = True
    """Show a progress bar."""
    cache: commands.Cache = None


WORKERS = 4
NOISE = 0.2  # sigma, of each worker's gradient
HETEROGENEITY = 1.0
COMPRESSION = 0.5  # sigma'
TOLERANCE = 1 / 500  # relative error of a measured number of iterations


class Entry(NamedTuple):
    """A row of the survey's column of iterations.

    Args:
        order: corrected.
        misprint: the last term as printed; empty if the row is correct.
    """

    order: str
    misprint: str = ""


Steps = dict[str, list[int]]  # iterations by method, one number for each epsilon
SURVEY = {
    "GD": Entry("1/ε"),
    "SGD": Entry("1/ε + σ²/ε²"),
    "mb-SGD": Entry("1/ε + σ²/(Nε²)"),
    "CSGD": Entry("1/ε + σ²/(Nε²) + σ'²/ε²"),
    "EC-SGD": Entry("1/ε + σ²/(Nε²) + σ'/ε^(3/2)", "σ'/ε^(2/3)"),
    "ASGD": Entry("N/ε + σ²/ε²", "σ²/(Nε²)"),
    "DSGD": Entry("1/ε + σ²/(Nε²)\n    + ρς/((1-ρ)ε^(3/2))", "…/ε^(2/3)"),
}


def main(args: Args) -> None:
    commands.begin(args)
    methods = make_methods()
    predicted = {
        method.name: [method.rate.iterations(epsilon) for epsilon in args.epsilons]
        for method in methods
    }
    by_name = {method.name: method for method in methods}
    columns = ("method", "epsilon", "predicted", "measured", "ratio")
    measured = commands.collect(
        args,
        "iterations",
        by_name,
        lambda method: least_steps(method, args.epsilons),
        lambda path, found: records.write_rows(
            path, columns, rows(args.epsilons, predicted, found)
        ),
        args.out / "iterations.csv",
    )
    link = communication.Link(args.latency, args.bandwidth)
    registered = list(communication.REGISTERED)
    costs = {
        name: communication.cost(name, WORKERS, args.dimension, link)
        for name in tables.bar(registered, "messages", args.progress)
    }
    records.write_rows(
        args.out / "communication.csv",
        ["method", *communication.Cost._fields],
        [[name, *cost] for name, cost in costs.items()],
    )
    shown = {
        "orders": orders(args.epsilons, predicted, measured),
        "steps": iterations(args.epsilons, predicted, measured),
        "messages": communication.tabulate(costs, WORKERS, args.dimension, link),
    }
    commands.finish(args, {"figure": draw(args.epsilons, predicted, measured)}, shown)


def make_methods() -> list[Method]:
    """Returns the seven methods on one problem; L = 1, D = 1/2."""
    direction, sign = np.full(WORKERS, WORKERS**-0.5), (-1.0) ** np.arange(WORKERS)
    A = np.broadcast_to(np.eye(WORKERS), (WORKERS,) * 3)
    problem = problems.quadratic(
        A, HETEROGENEITY * sign[:, None] * direction, noise=NOISE, start=direction
    )
    return [
        theorems.gradient_descent(problem),
        theorems.sgd(problem),
        theorems.minibatch_sgd(problem),
        theorems.compressed_sgd(problem, COMPRESSION),
        theorems.error_compensated_sgd(problem, COMPRESSION),
        theorems.asynchronous_sgd(problem, WORKERS - 1),
        theorems.decentralized_sgd(problem, topologies.ring(WORKERS)),
    ]


def least_steps(method: Method, epsilons: Sequence[float]) -> list[int]:
    """Returns the smallest T at which the average is at most epsilon, to one part in 500, for each
    epsilon.
    """

    @cache
    def average(T: int) -> float:
        # few lengths, so that few programs are compiled
        return float(method.averages([T], longest=8 ** max(3, math.ceil(math.log(T, 8))))[0])

    return [_least(average, epsilon, method.rate.iterations(epsilon)) for epsilon in epsilons]


def _least(average: Callable[[int], float], epsilon: float, enough: int) -> int:
    """Returns the smallest T, found by doubling up to the number that the theorem guarantees, then
    by bisection.
    """
    high, low = 1, 0
    while high < enough and average(high) > epsilon:
        high, low = min(2 * high, enough), high
    while high - low > max(1, low * TOLERANCE):
        middle = (low + high) // 2
        low, high = (low, middle) if average(middle) <= epsilon else (middle, high)
    return high


def rows(epsilons: Sequence[float], predicted: Steps, measured: Steps) -> list[list]:
    """Returns one row per method and epsilon."""
    return [
        [name, epsilon, most, least, most / least]
        for name in measured
        for epsilon, most, least in zip(epsilons, predicted[name], measured[name], strict=True)
    ]


def order(epsilons: Sequence[float], steps: Sequence[int]) -> float:
    """Returns the power of 1 / epsilon between the last two values."""
    return math.log(steps[-1] / steps[-2]) / math.log(epsilons[-2] / epsilons[-1])


def orders(epsilons: Sequence[float], predicted: Steps, measured: Steps) -> Table:
    """Tabulates the survey's iterations, corrected, next to the measured powers of 1 / epsilon."""
    table = tables.table(
        "iterations to reach ε, up to constants",
        ("method", "order", "misprint", "predicted", "measured"),
        "misprint: the last term as printed in the survey.\npredicted, measured: power of 1/ε "
        f"from ε = {epsilons[-2]:g} to {epsilons[-1]:g}.",
        left=3,
    )
    for name, entry in SURVEY.items():
        powers = (f"{order(epsilons, steps[name]):.2f}" for steps in (predicted, measured))
        table.add_row(name, entry.order, entry.misprint, *powers)
    return table


def iterations(epsilons: Sequence[float], predicted: Steps, measured: Steps) -> Table:
    """Tabulates predicted and measured iterations, and their ratio."""
    caption = (
        f"N = {WORKERS}, L = 1, D = 1/2, σ = {NOISE:g}, ς = {HETEROGENEITY:g}, σ' = "
        f"{COMPRESSION:g}, τ = {WORKERS - 1}.\nDSGD: on a ring. SGD and ASGD use the gradient of\n"
        "one worker at a time: their variance is σ² + ς²."
    )
    table = tables.table(
        "iterations to reach ε",
        ("method", "ε", "predicted", "measured", "predicted / measured"),
        caption,
    )
    for name, group in itertools.groupby(
        rows(epsilons, predicted, measured), key=lambda row: row[0]
    ):
        table.add_section()
        for _, epsilon, most, least, ratio in group:
            table.add_row(name, f"{epsilon:g}", f"{most:,}", f"{least:,}", f"{ratio:.2f}")
    return table


def draw(epsilons: Sequence[float], predicted: Steps, measured: Steps) -> Figure:
    """Draws iterations against 1 / epsilon: measured solid, predicted dashed."""
    sheet, (axes,) = plots.figure(1, width=figures.WIDTH, height=5.4)
    x = 1 / np.array(epsilons)
    figures.describe(axes, "1/ε", "iterations T", log="xy")
    for name, colour, marker in zip(measured, plots.COLOURS, theorems.MARKERS, strict=False):
        look = {"color": colour, "marker": marker, "markersize": 6, "linewidth": 1.8}
        axes.plot(x, measured[name], label=name, **look)
        axes.plot(x, predicted[name], color=colour, linewidth=1.2, linestyle="--")
    ends = x[-1] * np.array([1.15, 2.3])
    middle = float(np.median([steps[-1] for steps in measured.values()]))
    for power, label in ((1, "1/ε"), (3 / 2, r"1/ε$^{3/2}$"), (2, "1/ε²")):
        y = middle * (ends / ends[0]) ** power
        axes.plot(ends, y, color="0.55", linewidth=3, alpha=0.6)
        axes.text(1.05 * ends[-1], y[-1], label, va="center", color="0.35")
    axes.set_xticks(x, [f"{value:.3g}" for value in x])
    axes.xaxis.set_minor_locator(NullLocator())
    handles, _ = axes.get_legend_handles_labels()
    handles += [
        Line2D([], [], color="black", label="measured"),
        Line2D([], [], color="black", linestyle="--", label="predicted"),
    ]
    sheet.legend(handles=handles, loc="outside right upper", frameon=False)
    figures.title(
        sheet, f"iterations to reach an average of E|f'(x)|² of ε, {WORKERS} workers, one quadratic"
    )
    return sheet


if __name__ == "__main__":
    commands.run(main, Args)
