"""The gain from adapting to the bandwidth, as it varies more strongly and faster: Kimad against the
best fixed compressor.

    python -m experiments.kimad_variability --trace bandwidth.csv --interval 0.5

Uses the quadratics of `experiments.kimad_quadratic`, with one worker and its uplink, whose mean
bandwidth is constant; all methods start from the gradient. The choice is K of top-K and, for the
series over the range of the bandwidth, also the number of bits of a random quantization. Fixed
compressors have the best constant choice, and Kimad has the best round time of a grid, each at its
best step size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

import dsgd
from algorithms import kimad
from dsgd import clusters, compressors, plots, records
from experiments.kimad import quadratics
from experiments.kimad.quadratics import DIMENSION, ELEMENT, Best
from experiments.shared import commands, figures, tables

BITS = range(1, 9)
FAMILIES = {
    "K": quadratics.top_k("sent"),
    "bits": kimad.from_compressors(
        [compressors.contraction(compressors.random_quantization(bits)) for bits in BITS]
    ),
}
FIXED, KIMAD, ORACLE = METHODS = ("best fixed", "Kimad", "Kimad, oracle")
TRACE = "trace"


@dataclass(frozen=True)
class Args(quadratics.Flags):
    """Measures when adapting to the bandwidth pays."""

    ratios: tuple[commands.Factor, ...] = (1.0, 3.0, 10.0, 30.0)
    """Ratios of the largest and the smallest bandwidth, with --period; 1: it is constant."""
    periods: commands.Positives = (1.0, 5.0, 50.0, 300.0)
    """Periods of the bandwidth, seconds, at the largest of the ratios."""
    mean: commands.Positive = 5.0
    """Mean number of elements (32 bits; the vector has 30) that the link carries per second."""
    trace: Path | None = None
    """File of bandwidths, separated by commas or line breaks, which are scaled to the mean.
    Default: a random walk of 300 values.
    """
    interval: commands.Positive = 1.0
    """Seconds between two values of the trace."""
    out: Path = Path("results/kimad_variability")
    """Folder for config.json, speedups.csv and figure.png."""


class Case(NamedTuple):
    """The compressors to choose from, and the pattern of the bandwidth."""

    family: str
    pattern: str


Outcomes = dict[Case, dict[str, Best]]


def main(args: Args) -> None:
    quadratics.check_times(args.compute, args.round_times)
    links = {
        name: quadratics.make_cluster(args.compute, link) for name, link in patterns(args).items()
    }
    tasks = quadratics.quadratics(args.problems, args.condition, args.seed)
    ratios = [label(ratio, args.period) for ratio in args.ratios]
    cases = [*(Case("K", name) for name in links), *(Case("bits", name) for name in ratios)]
    commands.begin(args)
    outcomes = commands.collect(
        args,
        "kimad_variability",
        {case: case for case in cases},
        lambda case: race(args, case, tasks, links[case.pattern]),
        write,
        args.out / "speedups.csv",
    )
    commands.finish(args, {"figure": draw(args, outcomes)}, {"table": tabulate(args, outcomes)})


def label(ratio: float, period: float) -> str:
    """Returns the label of an oscillation: the ratio of its extremes and its period in seconds."""
    return f"{ratio:g} : 1, {period:g} s"


def patterns(args: Args) -> dict[str, clusters.Quantity]:
    """Returns bandwidths of the uplink in bits per second, with the same mean, by name."""
    mean = ELEMENT * args.mean

    def oscillation(ratio: float, period: float) -> clusters.Quantity:
        least = 2 * mean / (1 + ratio)
        return clusters.sinusoid((ratio - 1) * least, math.pi / period, least)

    pairs = [
        *((ratio, args.period) for ratio in args.ratios),
        *((max(args.ratios), period) for period in args.periods),
    ]
    recorded = recording(args)
    return {label(*pair): oscillation(*pair) for pair in pairs} | {
        TRACE: clusters.trace(mean * recorded / recorded.mean(), args.interval),
    }


def recording(args: Args) -> np.ndarray:
    """Returns the user's trace, or a random one whose logarithm reverts to its mean within about 20
    seconds.
    """
    if args.trace is not None:
        try:
            values = np.array(args.trace.read_text().replace(",", " ").split(), float)
        except ValueError as error:
            raise ValueError(f"--trace {args.trace}: {error}; expected numbers only") from None
        if not (values.size and np.isfinite(values).all() and values.min() > 0):
            raise ValueError(f"--trace {args.trace}: expected finite numbers > 0, at least one")
        return values
    rng, level, levels = np.random.default_rng(args.seed), 0.0, []
    for _ in range(300):
        level = 0.95 * level + math.sqrt(1 - 0.95**2) * rng.normal()
        levels.append(level)
    return np.exp(levels)


def race(
    args: Args, case: Case, tasks: list[dsgd.Problem], cluster: clusters.Cluster
) -> dict[str, Best] | None:
    """Returns the best run of every method; None if one of them diverged at every point."""
    choices = FAMILIES[case.family]
    still, moving = quadratics.races(args, choices, range(choices.number), 1, tasks, cluster)
    return quadratics.all_of(METHODS, (still.best(), *quadratics.adapting(moving)))


def ratios_of(best: dict[str, Best]) -> dict[str, np.ndarray]:
    """Returns speedups over the best fixed compressor, by method and problem."""
    return {name: quadratics.speedups(best[FIXED], best[name]) for name in (KIMAD, ORACLE)}


def write(path: Path, outcomes: Outcomes) -> None:
    """Writes the speedups of every problem."""
    heading = ("bandwidth", "chosen", "best_fixed", "method", "round_time", "problem", "speedup")
    rows = []
    for case, best in outcomes.items():
        fixed = best[FIXED].point["choice"] + 1
        for name, values in ratios_of(best).items():
            run = (case.pattern, case.family, fixed, name, best[name].point["round_time"])
            rows += [(*run, i, f"{value:.4g}") for i, value in enumerate(values)]
    records.write_rows(path, heading, rows)


def tabulate(args: Args, outcomes: Outcomes) -> Table:
    """Tabulates one row per bandwidth."""
    table = tables.table(
        f"speedup of Kimad over the best fixed compressor,\nmean bandwidth {args.mean:g} "
        f"elements/s, {args.problems} problem{'s' * (args.problems > 1)}",
        ("bandwidth", "fixed", "t", "Kimad", "oracle", "faster"),
        "bandwidth: ratio of largest and smallest, period. fixed: the best K, or bits.\nt: "
        "seconds of Kimad's rounds. Speedup: ratio of the seconds to the larger of the\ntwo final "
        "losses, geometric mean over problems, 95 % interval. faster: by more\nthan the interval, "
        "and by 5 %.",
    )
    top = [label(max(args.ratios), period) for period in sorted(args.periods)]
    sections = {
        "Top-K": [Case("K", label(ratio, args.period)) for ratio in sorted(args.ratios)],
        "its period": [Case("K", name) for name in top],
        "a recording": [Case("K", TRACE)],
        "quantization": [Case("bits", label(ratio, args.period)) for ratio in sorted(args.ratios)],
    }
    for words, cases in sections.items():
        table.add_section()
        table.add_row(words)
        for case in cases:
            if best := outcomes.get(case):
                found = ratios_of(best)
                fixed = f"{best[FIXED].point['choice'] + 1:g}"
                seconds = f"{best[KIMAD].point['round_time']:g}"
                faster = "yes" if quadratics.is_faster(found[KIMAD]) else "no"
                table.add_row(
                    case.pattern,
                    fixed,
                    seconds,
                    *map(quadratics.format_interval, found.values()),
                    faster,
                )
    return table


def draw(args: Args, outcomes: Outcomes) -> Figure:
    """Draws speedups against range and period of the bandwidth, and the messages over the recorded
    one.
    """
    sheet = Figure(figsize=(figures.WIDTH, 7.6), layout="constrained")
    above, below = sheet.subfigures(2, 1, height_ratios=(1.2, 1), squeeze=False)[:, 0]
    by_ratio, by_period = plots.panels(above, 2)
    (over_time,) = plots.panels(below, 1)
    ranges = {ratio: label(ratio, args.period) for ratio in sorted(args.ratios)}
    periods = {period: label(max(args.ratios), period) for period in sorted(args.periods)}
    draw_speedups(by_ratio, outcomes, "K", "K of Top-K", ranges)
    draw_speedups(by_ratio, outcomes, "bits", "bits of quantization", ranges)
    draw_speedups(by_period, outcomes, "K", "K of Top-K", periods)
    by_ratio.set(
        xlabel="largest / smallest bandwidth",
        ylabel="times as fast as the best fixed one",
        title=f"period {args.period:g} s",
    )
    by_period.set(xlabel="seconds of a period", title=f"largest / smallest {max(args.ratios):g}")
    if best := outcomes.get(Case("K", TRACE)):
        draw_trace(args, over_time, best)
    figures.legend(above, 4, by_ratio)
    figures.legend(below, 3, over_time)
    setting = f"½ Σ a x², d = {DIMENSION}, mean bandwidth {args.mean:g} elements/s"
    figures.title(
        sheet,
        f"{setting}; bars: 95 % intervals over {args.problems} problems"
        if args.problems > 1
        else setting,
    )
    return sheet


def draw_speedups(
    axes: Axes, outcomes: Outcomes, family: str, words: str, by_x: dict[float, str]
) -> None:
    """Draws the speedups of Kimad, and of Kimad with the true bandwidth, slightly shifted."""
    axes.axhline(1, color="black", linewidth=0.8)
    plots.log_scale(axes, "x")
    there = {
        x: ratios_of(outcomes[case])
        for x, name in by_x.items()
        if (case := Case(family, name)) in outcomes
    }
    for method, label, fill in ((KIMAD, words, None), (ORACLE, f"{words}, oracle", "white")):
        line = 2 * (family == "bits") + (method == ORACLE)
        found = np.array([quadratics.interval(ratios[method]) for ratios in there.values()])
        middle, low, high = found.reshape(-1, 3).T
        bars = np.stack([middle - low, high - middle]) if np.isfinite(found).all() else None
        look = {"marker": "os"[family == "bits"], "markerfacecolor": fill, "capsize": 3}
        x = 1.03 ** (line - 1.5) * np.array(list(there))
        axes.errorbar(x, middle, bars, label=label, **figures.look(line, **look))


def draw_trace(args: Args, axes: Axes, best: dict[str, Best]) -> None:
    """Draws the messages over the recorded bandwidth."""
    recorded = recording(args)
    seconds = np.linspace(0, args.seconds, 2000, endpoint=False)
    level = (
        ELEMENT
        * args.mean
        * (recorded / recorded.mean())[(seconds / args.interval).astype(int) % len(recorded)]
    )
    shown = {
        f"messages of {name}": (best[name], plots.COLOURS[line])
        for name, line in ((FIXED, 6), (KIMAD, 0))
    }
    quadratics.draw_messages(axes, seconds, level, shown)
    middle = quadratics.format_interval(ratios_of(best)[KIMAD])
    axes.set(
        title=f"a recording: {middle} times as fast",
        xlabel="seconds",
        ylabel="bits of a message, bits/s",
    )


if __name__ == "__main__":
    commands.run(main, Args)
