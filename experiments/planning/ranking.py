"""The table, the sentences and the figures of `experiments.plan`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

import dsgd
from dsgd import plots, records
from dsgd.planning import finals
from experiments.planning import plane
from experiments.shared import figures, statistics, tables

LINES = 6  # methods in a panel at most
UNITS = {"bandwidth": (1e6, "Mbit/s"), "latency": (1e-3, "ms")}


class Shown(NamedTuple):
    """A plan, with what its numbers mean.

    Args:
        plan: the plan.
        args: the command's arguments.
        scale: bits of the trained model, relative to those of the model to plan for.
        workers: N.
        gradient: seconds of a gradient, without random delays.
        trained: the model that the rounds and the metric are those of.
    """

    plan: dsgd.Plan
    args: Any
    scale: float
    workers: int
    gradient: float
    trained: str

    @property
    def reaches(self) -> bool:
        """Whether the plan has a target."""
        return self.plan.goal.target is not None

    @property
    def metric(self) -> str:
        """The metric, in words."""
        return self.plan.goal.metric.replace("_", " ")

    @property
    def what(self) -> str:
        """Describes the goal."""
        goal, metric = self.plan.goal, self.metric
        if goal.target is not None:
            return f"seconds to {metric} {goal.target:g}"
        budget = (
            f"{goal.seconds:g} s" if goal.seconds is not None else f"{self.args.megabits:g} Mbit"
        )
        return f"{metric} within {budget}"


def tabulate(shown: Shown) -> Table:
    """Tabulates the finalists, the best first."""
    metric, rows = shown.metric, shown.plan.rows
    table = tables.table(
        f"Best methods by {shown.what}\nof {shown.trained}",
        (
            *("", "method", "step\nsize", "seconds" if shown.reaches else metric),
            *("95 %\ninterval", "rounds", "Mbit"),
        ),
        f"Interval over {statistics.runs(finals.FRESH * shown.args.seeds)} that did not choose the "
        "settings.\nRounds, and megabits sent and received by a worker, until then.\n"
        "*: at an edge of a grid.\n"
        "Rows with the same rank do not differ significantly from the first of them."
        + "\n!: runs fail; the seconds contain those of failed runs."
        * any(map(fails, rows)),
    )
    for row in rows:
        value, low, high = row.seconds if shown.reaches else row.metric
        interval = f"{tables.plain(low)}-{tables.plain(high)}"
        if not math.isfinite(value):
            interval = f"{metric} {tables.plain(row.metric.value)}"
        table.add_row(
            f"{row.rank}{'!' * fails(row)}",
            "\n".join(filter(None, [row.method, settings(row)])),
            f"{'*' * bool(row.at_edge)}{row.values['learning_rate']:g}",
            tables.plain(value) if math.isfinite(value) else "-",
            interval,
            f"{row.rounds:,.0f}",
            tables.plain(row.bits / 1e6 / shown.scale),
        )
    return table


def settings(row: Any) -> str:
    """Describes the settings of a planned method or of a change, besides the step size."""
    return plane.describe(row.settings, row.values)


def name_row(row: Any) -> str:
    """Returns the method with its settings."""
    return f"{row.method} ({settings(row)})" if settings(row) else row.method


def notes(shown: Shown) -> list[str]:
    """Returns the sentences below the table: the settings to copy, what would change the answer,
    and the candidates that were left out.
    """
    plan = shown.plan
    lines = [f"To copy: {plan.rows[0].expression}"]
    if alike := [name_row(row) for row in plan.rows[1:] if row.rank == 1]:
        lines.append(f"Not significantly worse: {', '.join(alike)}.")
    lines += [describe_failures(row) for row in plan.rows if fails(row)]
    lines += [f"At an edge: {name_row(row)}, {row.at_edge}." for row in plan.rows if row.at_edge]
    lines += plan.remarks
    if ended := [name_row(row) for row in plan.rows if ends_early(shown, row)]:
        lines.append(
            f"Ended after --steps {shown.args.steps} rounds, before the budget was used: "
            f"{', '.join(ended)}."
        )
    if len(plan.networks) > 1:
        lines += elsewhere(shown)
    by_rounds: dict[int, list[str]] = {}
    for each in plan.eliminated:
        by_rounds.setdefault(each.rounds, []).append(row_label(each))
    lines += [f"Left out after {n} rounds: {', '.join(names)}." for n, names in by_rounds.items()]
    return lines + [f"Left out: {name} ({reason})." for name, reason in plan.refused.items()]


def fails(row: Any) -> bool:
    """Returns whether some runs reach the target, or do not diverge, and others fail."""
    return 0 < row.reached.value < 1


def describe_failures(row: Any) -> str:
    """Returns the sentence on the share of the runs that fail."""
    share, low, high = (1 - each for each in row.reached)
    return (
        f"At its settings, {share:.1%} of the runs of {name_row(row)} fail (95 % interval "
        f"{high:.1%} to {low:.1%})."
    )


def ends_early(shown: Shown, row: Any) -> bool:
    """Returns whether a method's rounds ended before the budget was used: there was no time for
    another exchange.
    """
    return not shown.reaches and row.rounds + row.values.get("H", 1) > shown.args.steps


def elsewhere(shown: Shown) -> list[str]:
    """Returns the sentences on other bandwidths and latencies."""
    replayed = [row for row in shown.plan.rows if is_replayed(row)]
    lines = []
    if others := dict.fromkeys(row.method for row in shown.plan.rows if not is_replayed(row)):
        lines.append(
            f"Known on this cluster only, because the iterates depend on the clock: "
            f"{', '.join(others)}; plan for another cluster to compare them there."
        )
    if replayed and not shown.plan.changes:
        lines.append(
            "On networks with a hundredth to a hundred times the "
            f"{' or '.join(list_varied(shown))}, "
            f"{'none of the others' if others else 'no method'} is significantly better than "
            f"{name_row(replayed[0])}."
        )
    return lines + [describe_change(shown, change, replayed[0]) for change in shown.plan.changes]


def list_varied(shown: Shown) -> list[str]:
    """Returns what differs between the networks: bandwidth, latency or both."""
    return [name for name in UNITS if (getattr(shown.plan.networks, name) != 1).any()]


def is_replayed(row: Any) -> bool:
    """Returns whether the results of a planned method on other networks are known."""
    return not np.isnan(row.elsewhere).any()


def describe_change(shown: Shown, change: Any, best: Any) -> str:
    """Describes a change from the best method that is replayed."""
    unit, name = UNITS[change.axis]
    number = change.factor * getattr(shown.args, change.axis) / unit
    side = "below" if change.factor < 1 else "above"
    if shown.reaches:
        before = f"{tables.plain(change.before)} s" if math.isfinite(change.before) else "never"
        effect = f"{tables.plain(change.result)} s there, {name_row(best)} {before}"
    else:
        effect = f"{change.result:.3g} there, {name_row(best)} {change.before:.3g}"
    words = f"{side} {tables.plain(number)} {name} {change.axis}"
    return f"{words[0].upper()}{words[1:]}: {name_row(change)} ({effect})."


def write(shown: Shown) -> None:
    """Writes the ranking and the changes as CSV files."""
    heading = ("method", "settings", "expression", "seconds", "low", "high", "rounds", "bits")
    rows = [
        (
            *(row.method, settings(row), row.expression, *row.seconds, row.rounds),
            *(row.bits / shown.scale, *row.metric, row.reached.value),
            *(row.reached.low, row.reached.high, row.rank, row.at_edge),
        )
        for row in shown.plan.rows
    ]
    metric = shown.plan.goal.metric
    columns = (*heading, metric, f"{metric}_low", f"{metric}_high", "reached", "reached_low")
    columns += ("reached_high", "rank", "at_edge")
    records.write_rows(shown.args.out / "plan.csv", columns, rows)
    changes = [
        (
            *(each.axis, each.factor * getattr(shown.args, each.axis)),
            *(each.method, settings(each), each.values["learning_rate"]),
            *(each.result, each.before),
        )
        for each in shown.plan.changes
    ]
    heading = ("axis", "from", "method", "settings", "learning_rate", "result", "before")
    records.write_rows(shown.args.out / "changes.csv", heading, changes)


def draw(shown: Shown) -> Mapping[str, Figure]:
    """Draws the ranking, and the finalists on other networks if the plan has some."""
    sheets = {"methods": draw_methods(shown)}
    if len(shown.plan.networks) > 1 and any(map(is_replayed, shown.plan.rows)):
        sheets["networks"] = draw_networks(shown)
    return sheets


def draw_methods(shown: Shown) -> Figure:
    """Draws the finalists with their intervals, the best at the top."""
    rows = [
        row
        for row in shown.plan.rows
        if math.isfinite((row.seconds if shown.reaches else row.metric).value)
    ]
    sheet, (axes,) = plots.figure(1, width=figures.WIDTH, height=1.4 + 0.3 * len(rows))
    for i, row in enumerate(rows):
        value, low, high = row.seconds if shown.reaches else row.metric
        axes.plot([low, high], [i, i], color=plots.COLOURS[0], linewidth=2)
        axes.plot(value, i, "o", color=plots.COLOURS[0])
    axes.set_yticks(range(len(rows)), [name_row(row) for row in rows])
    axes.invert_yaxis()
    figures.describe(axes, shown.what)
    seeds = statistics.runs(finals.FRESH * shown.args.seeds)
    words = f"{heading(shown)}; 95 % intervals over {seeds}"
    figures.title(sheet, f"{words}\nrounds of {shown.trained}")
    return sheet


def heading(shown: Shown) -> str:
    """Describes the cluster."""
    args = shown.args
    return (
        f"{shown.workers} workers, {args.bandwidth / 1e6:g} Mbit/s, latency {args.latency * 1e3:g} "
        f"ms, {tables.plain(shown.gradient * 1e3)} ms per gradient"
    )


def draw_networks(shown: Shown) -> Figure:
    """Draws the best methods against bandwidth and against latency."""
    names = list_varied(shown)
    sheet, every = plots.figure(len(names), width=figures.WIDTH / len(names), height=4.0)
    rows = best_somewhere(shown)
    for axes, name in zip(every, names, strict=True):
        draw_network(shown, axes, name, rows)
    every[0].set_ylabel(shown.what)
    figures.legend(sheet, 2, every[0])
    figures.title(sheet, f"{heading(shown)} (dotted)\nrounds of {shown.trained}")
    return sheet


def best_somewhere(shown: Shown) -> list[Any]:
    """Returns the methods that are drawn: those that are the best on a network, then others by
    their rank.
    """
    rows, sign = shown.plan.rows, 1 if shown.reaches else shown.plan.goal.sign
    found = np.stack([sign * row.elsewhere for row in rows])
    first = np.where(np.isnan(found), np.inf, found).argmin(axis=0)
    order = list(dict.fromkeys([*first.tolist(), *range(len(rows))]))[:LINES]
    return [rows[i] for i in sorted(order)]


def draw_network(shown: Shown, axes: Axes, name: str, rows: list[Any]) -> None:
    """Draws a panel: all networks in which only the bandwidth or only the latency differs."""
    networks = shown.plan.networks
    other = networks.latency if name == "bandwidth" else networks.bandwidth
    factors = getattr(networks, name)
    chosen = np.flatnonzero(other == 1)
    chosen = chosen[np.argsort(factors[chosen])]
    unit, words = UNITS[name]
    here = getattr(shown.args, name) / unit
    for i, row in enumerate(rows):
        y = np.where(np.isfinite(row.elsewhere), row.elsewhere, np.nan)
        if is_replayed(row):
            axes.plot(here * factors[chosen], y[chosen], label=row_label(row), **figures.look(i))
        else:  # a method that reads the clock
            axes.plot(here, y[0], "o", label=row_label(row), color=plots.COLOURS[i])
    axes.axvline(here, color="0.4", linestyle=":", linewidth=1)
    figures.describe(axes, f"{name}, {words}", log="xy" if shown.reaches else "x")


def row_label(row: Any) -> str:
    """Returns the method and its fixed settings; the others are chosen for each network."""
    return f"{row.method} ({row.settings})" if row.settings else row.method
