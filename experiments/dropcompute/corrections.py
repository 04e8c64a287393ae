"""Figures 10 and 11 of DropCompute: accuracy against drop rates with each correction of the step,
if whole batches are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
from dsgd import clusters, plots
from experiments.dropcompute.training import (
    Histories,
    Setting,
    falling,
    final,
    format_difference,
    options,
    select_columns,
)
from experiments.shared import figures, resuming, statistics, tables

CORRECTIONS = ("none", "constant", "stochastic")
_LATE = clusters.Quantity(
    lambda key, clock, worker: jax.random.uniform(jax.random.fold_in(key, worker)),
    "uniform",
    False,
    time_invariant=True,
)
# the only micro-batch of a worker takes longer than 1 - P with probability P
UNIFORM = clusters.Cluster(_LATE)


def name_history(optimizer: str, correction: str, rate: float) -> str:
    """Returns the name of the history."""
    return f"{optimizer}, {correction} correction, {100 * rate:g}% of batches dropped"


def runs(setting: Setting, rates: Sequence[float]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Runs each optimizer with each correction at each rate."""
    for optimizer, learning_rate in setting.learning_rates.items():
        for correction, history in across_rates(setting, optimizer, rates):
            for i, rate in enumerate(rates):
                yield (
                    name_history(optimizer, correction, rate),
                    select_columns(history(i), setting, learning_rate),
                )


def across_rates(
    setting: Setting, optimizer: str, rates: Sequence[float]
) -> Iterator[tuple[str, Callable[[int], dict[str, np.ndarray]]]]:
    """Returns, for each correction, the histories by the index of the rate; all rates share one
    program.
    """

    def method(rate, correction) -> dsgd.Algorithm:
        steps = falling(optimizer, setting.learning_rates[optimizer], setting.steps)
        return algorithms.drop_compute(
            algorithms.minibatch_sgd(steps), 1 - rate, 1, correction=correction
        )

    def weigh_by_number(rate, constant) -> dsgd.Algorithm:
        return method(rate, jnp.where(constant, 1 - rate, 1.0))

    def weigh_by_count(rate) -> dsgd.Algorithm:
        return method(rate, "stochastic")

    choices = {"cluster": UNIFORM, "rate": rates, **options(setting, setting.steps)}
    numbers = resuming.sweep(weigh_by_number, setting.problem, **choices, constant=[0, 1])
    yield CORRECTIONS[0], lambda i: numbers.at((i, 0))
    yield CORRECTIONS[1], lambda i: numbers.at((i, 1))
    counts = resuming.sweep(weigh_by_count, setting.problem, **choices)
    yield CORRECTIONS[2], lambda i: counts.at((i,))


def table(setting: Setting, histories: Histories, rates: Sequence[float]) -> Table:
    """Tabulates one row per rate and one column per correction: differences to the same correction
    without drops.
    """
    shown = tables.table(
        f"{setting.name}, {setting.workers} workers,\n{setting.steps} steps, "
        f"{statistics.runs(setting.seeds)}: {setting.quality.words}",
        ("", "dropped", *CORRECTIONS),
        "0%: absolute value. Others: difference to 0%, ± half-width\nof the paired 95 % interval "
        "over seeds. Whole batches are dropped.",
    )
    digits = setting.quality.digits - 1
    for optimizer in setting.learning_rates:
        shown.add_section()
        for rate in rates:
            cells = []
            for correction in CORRECTIONS:
                values, base = (
                    final(setting, histories[name_history(optimizer, correction, each)])
                    for each in (rate, 0.0)
                )
                cells.append(
                    format_difference(values - base, digits)
                    if rate
                    else statistics.format_with_interval(base, digits)
                )
            shown.add_row("" if rate else optimizer, f"{100 * rate:g}%", *cells)
    return shown


def draw(setting: Setting, histories: Histories, rates: Sequence[float]) -> Figure:
    """Draws a panel for each optimizer."""
    optimizers = list(setting.learning_rates)
    sheet, panels = plots.figure(len(optimizers), width=figures.WIDTH / len(optimizers), height=4.0)
    for axes, optimizer in zip(panels, optimizers, strict=True):
        lines = {}
        for correction in CORRECTIONS:
            each = [
                final(setting, histories[name_history(optimizer, correction, rate)])
                for rate in rates
            ]
            lines[correction] = (100 * np.array(rates), np.stack(each, axis=1))
        plots.draw_lines(axes, lines)
        baseline = float(
            final(setting, histories[name_history(optimizer, CORRECTIONS[0], 0.0)]).mean()
        )
        axes.axhline(baseline, color="0.4", linewidth=0.8, linestyle="--")
        axes.set(xlabel="batches dropped, %", title=optimizer)
    panels[0].set_ylabel(setting.quality.words)
    panels[0].legend(title="correction", frameon=False, fontsize=9)
    what = f"{setting.name}, {setting.workers} workers, {setting.steps} steps"
    figures.title(
        sheet,
        f"Figures 10 and 11: {what}\ndashed: without drops; "
        f"{statistics.errors('bands', setting.seeds)}",
    )
    return sheet
