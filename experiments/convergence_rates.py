"""Convergence rates of the survey's methods, and their speedup with N workers: measured and
predicted slopes on log-log axes.

    python -m experiments.convergence_rates

Measures the left side of the theorems, the average of |f'(x_t)|^2 over T steps at the step size
that they recommend for T. Each quadratic makes one term of a rate the largest. Lines are exact,
without sampling noise; points are runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from rich.table import Table

import dsgd
from dsgd import plots, records
from experiments.shared import commands, figures, tables
from experiments.survey.convergence_terms import Budget, Term, list_measures
from experiments.survey.theorems import MARKERS, METHODS

RESAMPLED = 2_000  # bootstrap samples of an interval


class Panel(NamedTuple):
    """Description of one panel and one part of the table.

    Args:
        slope: predicted.
        guide: label of the predicted slope's guide line.
        heading: in the table.
        title, label: of the panel and of its x axis.
    """

    slope: float
    guide: str
    heading: str
    title: str
    label: str


PANELS = {
    "inverse": Panel(-1, "-1", "1/T", "exact gradients: 1/T", "steps T"),
    "root": Panel(-1 / 2, "-1/2", "1/sqrt(T)", "gradient noise: 1/√T", "steps T"),
    "workers": Panel(-1 / 2, "-1/2", "1/sqrt(N)", "gradient noise, T = {T:,}: 1/√N", "workers N"),
    "two_thirds": Panel(
        -2 / 3,
        "-2/3",
        "1/T^(2/3)",
        "EC-SGD: compression errors,\nDSGD: heterogeneity; no noise: 1/T$^{{2/3}}$",
        "steps T",
    ),
    "staleness": Panel(
        1, "1", "tau + 1", "staleness, exact gradients,\nT = {T:,}: τ + 1", "staleness τ + 1"
    ),
}


@dataclass(frozen=True)
class Args(commands.Common):
    """Measures the slopes of convergence rates."""

    steps: Annotated[commands.Counts, commands.increasing(4)] = tuple(2**k for k in range(5, 15))
    """T, increasing; slopes are fitted to the second half."""
    longest_run: commands.Count = 2**12
    """Largest T of runs over seeds."""
    workers: Annotated[commands.Counts, commands.increasing(2)] = (1, 2, 4, 8)
    """N of the speedup, exact; slopes are fitted to all values."""
    run_workers: Annotated[commands.Counts, commands.increasing(2)] = (4, 16)
    """N of the speedup, for runs."""
    staleness: Annotated[tuple[commands.Natural, ...], commands.increasing(4)] = (0, 3, 15, 63, 255)
    """tau of asynchronous SGD; the slope is fitted to the second half."""
    fixed_steps: commands.Count = 2**12
    """T of the panels in which N or tau varies."""
    seeds: commands.Several = 32
    """Independent runs."""
    out: Path = Path("results/convergence_rates")
    """Folder for config.json, rates.csv, slopes.csv and figure.png."""


def main(args: Args) -> None:
    check(args)
    commands.begin(args)
    work = list_measures(Budget(**{name: getattr(args, name) for name in Budget._fields}))
    terms: list[Term] = []
    with commands.keep(write_terms, args.out / "rates.csv", terms):
        for measure in tables.bar(work, "convergence rates", args.progress):
            terms.append(measure())  # noqa: PERF401 - an interrupted run keeps finished terms
    slopes = [describe(term, args.seed) for term in terms]
    records.write_rows(
        args.out / "slopes.csv", list(slopes[0]), [list(row.values()) for row in slopes]
    )
    commands.finish(args, {"figure": draw(args, terms)}, {"fits": tabulate(args, slopes)})


def check(args: Args) -> None:
    """Raises a ValueError if the staleness is too large for the number of steps."""
    if args.fixed_steps <= 2 * max(args.staleness):
        raise ValueError(
            f"fixed-steps = {args.fixed_steps} with a staleness of {max(args.staleness)}: expected "
            "more than twice the staleness"
        )


def write_terms(path: Path, terms: Sequence[Term]) -> None:
    """Writes one row per point, of the exact averages or of runs."""
    found: list[list] = []
    for term in terms:
        if term.exact is not None:
            found += [
                [term.panel, term.method, *point, "", "", ""]
                for point in zip(term.x, term.exact, term.bounds, strict=True)
            ]
        points = zip(term.sampled_x, *dsgd.history.mean_and_error(term.sampled), strict=True)
        found += [[term.panel, term.method, "", "", "", *point] for point in points]
    records.write_rows(
        path, ["panel", "method", "x", "measured", "bound", "run x", "run mean", "run error"], found
    )


def fit(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the slope of log y over log x by least squares, for each of `[..., points]`."""
    logs = np.log(x) - np.log(x).mean()
    return np.log(y) @ logs / (logs @ logs)


def interval(x: np.ndarray, values: np.ndarray, seed: int) -> tuple[float, float, float]:
    """Returns the slope of the mean over seeds, `[seeds, points]`, and its 95 % bootstrap interval,
    which resamples whole runs.
    """
    chosen = np.random.default_rng(seed).integers(0, len(values), (RESAMPLED, len(values)))
    low, high = np.quantile(fit(x, values[chosen].mean(axis=1)), (0.025, 0.975))
    return float(fit(x, values.mean(axis=0))), float(low), float(high)


def describe(term: Term, seed: int) -> dict[str, float | str]:
    """Returns a row of slopes.csv. With one seed there is no interval."""
    first = 0 if term.panel == "workers" else len(term.x) // 2
    part = slice(first, None)
    row: dict[str, float | str] = {
        "panel": term.panel,
        "method": term.method,
        "predicted": PANELS[term.panel].slope,
    }
    row["bound"] = float(fit(term.x[part], term.bounds[part]))
    row["exact"] = "" if term.exact is None else float(fit(term.x[part], term.exact[part]))
    at = term.sampled_x >= term.x[first]
    several = len(term.sampled) > 1 and at.sum() > 1
    row |= dict(
        zip(
            ("runs", "low", "high"),
            interval(term.sampled_x[at], term.sampled[:, at], seed) if several else ("",) * 3,
            strict=True,
        )
    )
    worst = int(np.argmax(term.averages / term.bounds))
    error = dsgd.history.mean_and_error(term.sampled)[1][worst] if term.exact is None else 0.0
    return row | {
        "worst": float(term.averages[worst] / term.bounds[worst]),
        "error": float(error / term.bounds[worst]),
    }


def tabulate(args: Args, slopes: Sequence[dict[str, float | str]]) -> Table:
    """Tabulates one row per method and term."""
    caption = (
        "predicted: as T, N or tau increases. bound: slope of the theorem's right side.\nruns: "
        f"{args.seeds} seeds, with a 95 % interval, T up to {args.longest_run:,}; -: nothing is "
        "random,\nor only exact averages. worst: largest measured / bound (± standard error)."
    )
    table = tables.table(
        "slopes on log-log axes",
        ("method", "predicted", "bound", "exact", "runs", "worst"),
        caption,
    )
    panel = ""
    for row in slopes:
        if row["panel"] != panel:
            panel = str(row["panel"])
            table.add_section()
            table.add_row(PANELS[panel].heading, style="bold")
        runs = (
            "-" if row["runs"] == "" else f"{row['runs']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        )
        worst = f"{row['worst']:.2f}" + (f" ± {row['error']:.2f}" if row["error"] else "")
        exact = "-" if row["exact"] == "" else f"{row['exact']:.3f}"
        table.add_row(
            f"  {row['method']}",
            f"{row['predicted']:.3f}",
            f"{row['bound']:.3f}",
            exact,
            runs,
            worst,
        )
    return table


def draw(args: Args, terms: Sequence[Term]) -> Figure:
    """Draws one panel per term of the rates; the legend takes the place of a sixth panel."""
    sheet, panels = plots.figure(2, 3, width=figures.WIDTH / 2, height=3.7, sharey=False)
    for axes, (name, panel) in zip(panels, PANELS.items(), strict=False):
        shown = [term for term in terms if term.panel == name]
        y, title = "average of E|f'(x)|² over T steps", panel.title.format(T=args.fixed_steps)
        figures.describe(axes, panel.label, y, title, log="xy")
        for term in shown:
            draw_term(axes, term)
        draw_guide(axes, panel, shown)
        ticks = np.union1d(shown[0].x, shown[0].sampled_x)[:: 2 if panel.label == "steps T" else 1]
        axes.set_xticks(ticks, [f"{x:,g}" for x in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    draw_legend(panels[-1], args.seeds)
    return sheet


def draw_term(axes: Axes, term: Term) -> None:
    """Draws the measured values as a line, runs as points with errors, and the bound as a thin
    dashed line.
    """
    i = METHODS.index(term.method)
    look = {"color": plots.COLOURS[i], "marker": MARKERS[i], "markersize": 5}
    mean, error = dsgd.history.mean_and_error(term.sampled)
    axes.plot(term.x, term.averages, color=plots.COLOURS[i], linewidth=1.6)
    axes.plot(term.x, term.bounds, color=plots.COLOURS[i], linewidth=0.9, linestyle="--")
    if len(term.sampled_x):
        axes.errorbar(term.sampled_x, mean, 2 * error, linestyle="none", capsize=3, **look)
    else:
        axes.plot(term.x, term.averages, linestyle="none", **look)


def draw_guide(axes: Axes, panel: Panel, shown: Sequence[Term]) -> None:
    """Draws a grey line with the predicted slope, below all others."""
    x = np.union1d(shown[0].x, shown[0].sampled_x)
    lowest = min(
        float(np.min(fall))
        for fall in (
            (term.exact if term.exact is not None else term.sampled.mean(axis=0))
            / term.x**panel.slope
            for term in shown
        )
    )
    y = 0.5 * lowest * x**panel.slope
    axes.plot(x, y, color="0.55", linewidth=3, alpha=0.6, zorder=0)
    middle = len(x) // 2
    axes.annotate(
        f"slope {panel.guide}",
        (x[middle], y[middle]),
        (0, -14),
        textcoords="offset points",
        color="0.35",
        ha="center",
        va="top",
    )


def draw_legend(axes: Axes, seeds: int) -> None:
    """Draws the legend of all panels."""
    axes.set_axis_off()
    handles = [
        Line2D([], [], color=c, marker=m, label=name)
        for name, c, m in zip(METHODS, plots.COLOURS, MARKERS, strict=True)
    ]
    handles += [
        Line2D([], [], color="black", linewidth=1.6, label="measured, exact"),
        Line2D([], [], color="black", linewidth=0.9, linestyle="--", label="the theorem's bound"),
        Line2D([], [], color="0.55", linewidth=3, alpha=0.6, label="predicted slope"),
    ]
    axes.legend(handles=handles, loc="upper center", ncols=2, frameon=False, fontsize=11)
    note = (
        f"Bars: runs over {seeds} seeds, two standard errors.\nStep size: the theorem's, for "
        "each T.\n"
        "With exact gradients, GD, SGD and mb-SGD\nare one method. N = 16: runs only."
    )
    axes.text(0.5, 0.32, note, transform=axes.transAxes, ha="center", va="top", fontsize=11)


if __name__ == "__main__":
    commands.run(main, Args)
