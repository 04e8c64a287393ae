"""Section 4.1 of Kimad, a quadratic with 30 elements and a link with oscillating bandwidth:
gradient descent, the best EF21, and Kimad.

    python -m experiments.kimad_quadratic

There is one worker, and messages to it take no time. EF21 is run with every K from 1 to 30 and
Kimad with every round time of a grid, each at every step size. The best run is the one with the
smallest final loss, after the same number of simulated seconds. If a message is not shorter than
the uncompressed vector, EF21 sends the vector: for K >= 26 it is gradient descent, if indices are
sent.

The paper does not state how methods start, so there are two variants. They start from 0: then
Kimad, which has no bandwidth estimate yet, sends its first message uncompressed, which is an
advantage (not with the oracle). Or all start from the gradient (`warm_up` of 1), so that they
differ only by the adaptation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from rich.table import Table

import dsgd
from dsgd import clusters, plots, records
from experiments.kimad import quadratics
from experiments.kimad.quadratics import DIMENSION, ELEMENT, Best
from experiments.shared import commands, figures, statistics, tables

GD, EF21, KIMAD, ORACLE = METHODS = ("GD", "best EF21", "Kimad", "Kimad, oracle")
REGIMES = {  # and the paper's claim about Kimad
    "extremely small": "faster",
    "small": "faster",
    "oscillating": "faster",
    "high": "no gain",
}
STARTS = ("from 0", "from f'(x_0)")


@dataclass(frozen=True)
class Args(quadratics.Flags):
    """Compares Kimad with EF21 on a quadratic."""

    extremely_small: tuple[float, float] = (0.1, 3.0)
    """Smallest and largest number of elements (32 bits; the vector has 30) that the link carries
    per second in figure 3: B_max << d.
    """
    small: tuple[float, float] = (1.0, 20.0)
    """The same in figure 4: B_max < d."""
    oscillating: tuple[float, float] = (1.0, 300.0)
    """The same in figure 5: between small and high."""
    high: tuple[float, float] = (270.0, 330.0)
    """The same in figure 6: high, with small oscillations."""
    noise: commands.NotNegative = 0.1
    """Standard deviation of the bandwidth's logarithm, drawn in every round."""
    warm_ups: tuple[Literal[0, 1], ...] = (0, 1)
    """Number of uncompressed messages of all methods at the start: 0, methods start from 0; 1, from
    the gradient.
    """
    places: Literal["sent", "free"] = "sent"
    """Whether the indices of sent elements count as bits; otherwise only the values count, as if
    both sides knew the indices.
    """
    out: Path = Path("results/kimad_quadratic")
    """Folder for config.json, curves.csv, messages.csv and figure.png."""


class Case(NamedTuple):
    """A regime of the bandwidth, and the initialization of the methods."""

    warm_up: int
    regime: str


Outcomes = dict[Case, dict[str, Best]]


def main(args: Args) -> None:
    check(args)
    tasks = quadratics.quadratics(args.problems, args.condition, args.seed)
    cases = [Case(warm_up, regime) for warm_up in args.warm_ups for regime in REGIMES]
    by_regime = {
        regime: quadratics.make_cluster(args.compute, bandwidth(args, regime)) for regime in REGIMES
    }
    commands.begin(args)
    outcomes = commands.collect(
        args,
        "kimad_quadratic",
        {case: case for case in cases},
        lambda case: race(args, case, tasks, by_regime[case.regime]),
        partial(write, args),
        args.out,
    )
    commands.finish(
        args,
        {"figure": draw(args, outcomes)},
        {"losses": losses(args, outcomes), "gains": gains(args, outcomes)},
    )


def check(args: Args) -> None:
    """Raises a ValueError if flags do not fit together."""
    quadratics.check_times(args.compute, args.round_times)
    for regime in REGIMES:
        least, most = ends(args, regime)
        if not 0 < least <= most < math.inf:
            raise ValueError(
                f"--{regime.replace(' ', '-')} {least:g} {most:g}: expected 0 < least <= most"
            )


def ends(args: Args, regime: str) -> tuple[float, float]:
    """Returns the smallest and largest number of elements per second."""
    return getattr(args, regime.replace(" ", "_"))


def bandwidth(args: Args, regime: str) -> clusters.Quantity:
    """Returns the bandwidth of the uplink, bits per second."""
    least, most = (ELEMENT * end for end in ends(args, regime))
    return clusters.sinusoid(most - least, math.pi / args.period, least, args.noise)


def race(
    args: Args, case: Case, tasks: list[dsgd.Problem], cluster: clusters.Cluster
) -> dict[str, Best] | None:
    """Returns the best run of every method; None if one of them diverged at every point."""
    still, moving = quadratics.races(
        args, quadratics.top_k(args.places), range(DIMENSION), case.warm_up, tasks, cluster
    )
    found = (still.best(choice=DIMENSION - 1), still.best(), *quadratics.adapting(moving))
    return quadratics.all_of(METHODS, found)


def write(args: Args, out: Path, outcomes: Outcomes) -> None:
    """Writes the losses of all problems at common times, and the first problem's messages."""
    seconds = quadratics.times(args.seconds)
    curves, messages = [], []
    for (warm_up, regime), methods in outcomes.items():
        for name, best in methods.items():
            case = (regime, warm_up, name)
            for i, row in enumerate(best.losses):
                curves += [
                    (*case, i, f"{second:g}", f"{loss:.5g}")
                    for second, loss in zip(seconds, row, strict=True)
                ]
            columns = (best.history[each][1:] for each in ("clock", "message_up", "bandwidth_up"))
            messages += [
                (*case, *(f"{value:.7g}" for value in row)) for row in zip(*columns, strict=True)
            ]
    case = ("regime", "warm_up", "method")
    records.write_rows(out / "curves.csv", (*case, "problem", "seconds", "log10_loss"), curves)
    records.write_rows(
        out / "messages.csv", (*case, "seconds", "bits", "bits_per_second"), messages
    )


def losses(args: Args, outcomes: Outcomes) -> Table:
    """Tabulates each method's final loss, and where it is best."""
    table = tables.table(
        f"½ Σ a x², d = {DIMENSION}: f(x) / f(x_0) after {args.seconds:g} s, {many(args)}",
        ("bandwidth", "GD", "EF21", "K", "Kimad", "t", "oracle", "t"),
        "Geometric means over problems and the last tenth of the seconds.\nt: seconds of a round. "
        "*: at an edge of the grid.",
    )
    for warm_up in args.warm_ups:
        table.add_section()
        table.add_row(STARTS[warm_up])
        for regime in REGIMES:
            if best := outcomes.get(Case(warm_up, regime)):
                gd, ef21, kimad, oracle = (f"{10 ** each.end.mean():.1e}" for each in best.values())
                K = f"{best[EF21].point['choice'] + 1:g}"
                rounds = [time_of(args, best[name]) for name in (KIMAD, ORACLE)]
                table.add_row(regime, gd, ef21, K, kimad, rounds[0], oracle, rounds[1])
    return table


def time_of(args: Args, best: Best) -> str:
    """Formats the round time of the best run."""
    seconds = best.point["round_time"]
    return f"{statistics.edge(seconds, args.round_times)}{seconds:g}"


def gains(args: Args, outcomes: Outcomes) -> Table:
    """Tabulates how much faster Kimad is than the best EF21, and the paper's numbers."""
    table = tables.table(
        f"speedup of Kimad over the best EF21, {many(args)}",
        ("bandwidth", "Kimad", "oracle", "paper", "holds"),
        "Ratio of the seconds to the larger of the two final losses: geometric mean\nover "
        "problems, 95 % interval. faster: by more than the interval, and by 5 %.",
    )
    for warm_up in args.warm_ups:
        table.add_section()
        table.add_row(STARTS[warm_up])
        for regime, claim in REGIMES.items():
            if best := outcomes.get(Case(warm_up, regime)):
                ratios = {
                    name: quadratics.speedups(best[EF21], best[name]) for name in (KIMAD, ORACLE)
                }
                holds = quadratics.is_faster(ratios[KIMAD]) == (claim == "faster")
                table.add_row(
                    regime,
                    *map(quadratics.format_interval, ratios.values()),
                    claim,
                    "yes" if holds else "no",
                )
    return table


def many(args: Args) -> str:
    """Describes the number of problems and the counting of indices, for titles."""
    places = "" if args.places == "sent" else ", indices not counted"
    return f"{args.problems} problem{'s' * (args.problems > 1)}{places}"


def draw(args: Args, outcomes: Outcomes) -> Figure:
    """Draws a row for each regime: losses for each start, and next to them the messages."""
    columns = len(args.warm_ups) + 1
    width = figures.WIDTH / columns
    sheet, panels = plots.figure(columns, len(REGIMES), width=width, height=2.5, sharey=False)
    panels = panels.reshape(len(REGIMES), columns).T
    seconds = quadratics.times(args.seconds)
    for warm_up, column in zip(args.warm_ups, panels, strict=False):
        column[0].set_title(f"{STARTS[warm_up]}: f(x) / f(x_0)", fontsize=10)
        column[-1].set_xlabel("seconds")
        for regime, axes in zip(REGIMES, column, strict=True):
            best = outcomes.get(Case(warm_up, regime), {})
            plots.draw_lines(axes, {name: (seconds, each.losses) for name, each in best.items()})
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda power, _: f"$10^{{{power:.0f}}}$"))
    for regime, axes in zip(REGIMES, panels[-1], strict=True):
        draw_messages(args, axes, regime, outcomes.get(Case(args.warm_ups[-1], regime), {}))
    panels[-1, 0].set_title("bits of a message, bits/s", fontsize=10)
    panels[-1, -1].set_xlabel("seconds")
    for regime, axes in zip(REGIMES, panels[0], strict=True):
        least, most = ends(args, regime)
        axes.set_ylabel(f"{regime} bandwidth:\n{least:g} to {most:g} elements/s")
    figures.legend(sheet, 4, panels[0, 0], panels[-1, 0])
    figures.title(
        sheet,
        f"½ Σ a x², d = {DIMENSION}, one worker, {args.compute:g} s for a gradient, each method at "
        f"its best; {statistics.errors('bands', args.problems).replace('seeds', 'problems')}; "
        "messages of the first problem",
    )
    return sheet


def draw_messages(args: Args, axes: Axes, regime: str, best: dict[str, Best]) -> None:
    """Draws the messages of Kimad and of the best EF21, and the bandwidth without its noise."""
    least, most = ends(args, regime)
    seconds = np.linspace(0, args.seconds, 1000)
    level = ELEMENT * (least + (most - least) * np.sin(np.pi * seconds / args.period) ** 2)
    shown = {
        f"messages of {name}": (best[name], plots.COLOURS[METHODS.index(name)])
        for name in (EF21, KIMAD)
        if best
    }
    quadratics.draw_messages(axes, seconds, level, shown)


if __name__ == "__main__":
    commands.run(main, Args)
