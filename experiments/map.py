"""The map: which method needs the fewest seconds to a target on which network.

    python -m experiments.map

The iterates of these methods do not depend on the clock. Each method is trained once, with all step
sizes and settings, and `dsgd.replay` gives its seconds on each of the networks from the recorded
bits. On every network a method has its best settings. Panels differ in how the data are distributed
and in whether workers are delayed at random.

The trained model is small. Bits are scaled as if it had `--size` elements: a network of that
bandwidth divided by the ratio of the sizes is replayed. The number of rounds is that of the small
model.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.table import Table

import dsgd
from dsgd import clusters, plots, records
from experiments.planning import plane
from experiments.planning.candidates import CANDIDATES
from experiments.planning.plane import Best, Chosen
from experiments.shared import commands, figures, statistics, tables, tuning

BASELINE = CANDIDATES[0].method
METHODS = tuple(dict.fromkeys(candidate.method for candidate in CANDIDATES))
SPEEDUPS = (1.1, 1.5, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Args(commands.Data, commands.Common):
    """Maps the fastest method against bandwidth and latency."""

    methods: tuple[str, ...] = METHODS
    """Which methods besides mini-batch SGD, by name."""
    partitions: tuple[str, ...] = ("iid", "by-label")
    """Which worker gets which samples: iid, blocks, by-label or dirichlet; a row of panels each."""
    delays: tuple[commands.NotNegative, ...] = (0.0, 1.0)
    """Means of exponentially distributed random delays of each batch, in units of --compute; a
    column of panels each.
    """
    workers: commands.Several = 16
    """Number of workers."""
    size: commands.Positive = 1e6
    """Number of elements of the model, to which all bits are scaled."""
    compute: commands.Positive = 0.02
    """Seconds that a worker computes for one batch."""
    bandwidths: tuple[commands.Positive, commands.Positive] = (1e6, 1e10)
    """Smallest and largest bandwidth of a worker's port, bits per second."""
    latencies: tuple[commands.Positive, commands.Positive] = (1e-5, 1e-1)
    """Smallest and largest latency of a message, seconds."""
    points: commands.Several = 33
    """Number of points of each axis of the plane."""
    target: commands.Positive | None = None
    """Target loss; by default the one that mini-batch SGD reaches in a third of the rounds."""
    learning_rates: tuple[commands.Positive, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    """Candidate step sizes."""
    steps: commands.Count = 480
    """Number of rounds; one gradient each."""
    every: commands.Count = 4
    """Number of rounds between two evaluations of the loss."""
    seeds: commands.Count = 3
    """Independent runs of each."""
    out: Path = Path("results/map")
    """Folder for config.json, map.csv and figure.png."""


class Panel(NamedTuple):
    """One distribution of the data and one delay.

    Args:
        partition, delay: as in the arguments.
        target: the loss.
        chosen: settings of all methods.
        best: the best settings of each method on each network, `[methods, latency, bandwidth]`.
    """

    partition: str
    delay: float
    target: float
    chosen: list[Chosen]
    best: Best


def main(args: Args) -> None:
    commands.require_known("--methods", args.methods, METHODS)
    methods = [name for name in METHODS if name == BASELINE or name in args.methods]
    tasks = {
        partition: tuning.logistic_regression(args, args.workers, partition)
        for partition in args.partitions
    }
    commands.begin(args)
    panels = []
    for partition, problem in tasks.items():
        chosen, target = train(args, partition, problem, methods)
        panels += [
            Panel(partition, delay, target, chosen, locate(args, problem, delay, methods, chosen))
            for delay in args.delays
        ]
    write(args, panels, methods)
    shown = {
        f"{panel.partition}-{panel.delay:g}": tabulate(args, panel, methods) for panel in panels
    }
    commands.finish(args, {"figure": draw(args, panels, methods)}, shown)


def train(
    args: Args, partition: str, problem: dsgd.Problem, methods: list[str]
) -> tuple[list[Chosen], float]:
    """Returns the settings of all methods at their best step sizes, and the target."""
    candidates = [each for each in CANDIDATES if each.method in methods]
    sweeps = {
        candidate: plane.train(args, problem, candidate)
        for candidate in tables.bar(candidates, f"training, {partition}", args.progress)
    }
    target = default_target(sweeps[CANDIDATES[0]]) if args.target is None else args.target
    chosen = [
        each
        for candidate, sweep in sweeps.items()
        for each in plane.choose(candidate, sweep, target)
    ]
    if not any(each.candidate.method == BASELINE for each in chosen):
        raise ValueError(
            f"--target {target:g}: {BASELINE} does not reach it in --steps {args.steps} rounds "
            f"({partition}); expected a larger target, more steps or other --learning-rates"
        )
    return chosen, target


def default_target(sweep: dsgd.Sweep) -> float:
    """Returns the smallest mean loss that a step size reaches in a third of the rounds, rounded up
    to two digits.
    """
    history = dsgd.evaluated(sweep.history)
    third = history["loss"][..., : 1 + len(history["step"]) // 3].mean(axis=-2)
    return statistics.rounded_up(np.nanmin(third[..., -1]))


def locate(
    args: Args, problem: dsgd.Problem, delay: float, methods: list[str], chosen: list[Chosen]
) -> Best:
    """Replays all settings on all networks."""
    scale = tuning.elements(problem) / args.size
    compute = clusters.constant(args.compute)
    if delay:
        compute += clusters.exponential(delay * args.compute)

    def cluster(latency, bandwidth):
        return clusters.Cluster(compute, up=clusters.constant(bandwidth), latency=latency)

    grids = {
        "latency": axis(args, args.latencies),
        "bandwidth": scale * axis(args, args.bandwidths),
    }
    words = f"replaying, delay {delay:g}"
    found = [
        plane.seconds(each, cluster, **grids) for each in tables.bar(chosen, words, args.progress)
    ]
    return plane.best_of_each(methods, chosen, found)


def axis(args: Args, ends: tuple[float, float]) -> np.ndarray:
    """Returns the points of an axis of the plane."""
    return np.geomspace(*ends, args.points)


def winners(best: Best) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns, on each network, the index of the method with the fewest seconds, how many times as
    fast as mini-batch SGD it is, and whether it differs from the second by less than two standard
    errors of the difference.
    """
    first, second = np.argsort(best.mean, axis=0)[:2]

    def of(values, method):
        return np.take_along_axis(values, method[None], axis=0)[0]

    gap = of(best.mean, second) - of(best.mean, first)
    error = np.hypot(of(best.error, first), of(best.error, second))
    return first, best.mean[0] / of(best.mean, first), gap < 2 * error


def write(args: Args, panels: list[Panel], methods: list[str]) -> None:
    """Writes the winner, its settings and the speedup on each network."""
    columns = [
        "partition",
        "delay",
        "latency",
        "bandwidth",
        "method",
        "settings",
        "seconds",
        "speedup",
        "undecided",
    ]
    rows = []
    for panel in panels:
        first, speedup, undecided = winners(panel.best)
        for i, latency in enumerate(axis(args, args.latencies)):
            for j, bandwidth in enumerate(axis(args, args.bandwidths)):
                at = (first[i, j], i, j)
                rows.append(
                    (
                        *(panel.partition, panel.delay, latency, bandwidth, methods[at[0]]),
                        settings(panel.chosen[int(panel.best.choice[at])]),
                        *(panel.best.mean[at], speedup[i, j], bool(undecided[i, j])),
                    )
                )
    records.write_rows(args.out / "map.csv", columns, rows)


def settings(chosen: Chosen) -> str:
    """Describes the settings besides the step size."""
    swept = [f"{name} = {value:g}" for name, value in chosen.settings.items()]
    return ", ".join([*filter(None, [chosen.candidate.settings]), *swept[1:]])


def tabulate(args: Args, panel: Panel, methods: list[str]) -> Table:
    """Tabulates the fastest method and its settings on nine networks."""
    table = tables.table(
        f"{describe(panel)}: fastest method to loss {panel.target:g}",
        ("latency\nms", "bandwidth\nMbit/s", "method", "settings", "seconds", "speedup"),
        f"Speedup over {BASELINE}. *: the difference from the second method\nis less than two "
        "standard errors.",
        left=0,
    )
    first, speedup, undecided = winners(panel.best)
    places = [0, args.points // 2, args.points - 1]
    for i, j in itertools.product(places, places):
        at = (first[i, j], i, j)
        table.add_row(
            plain(axis(args, args.latencies)[i] * 1e3),
            plain(axis(args, args.bandwidths)[j] / 1e6),
            methods[at[0]] + "*" * bool(undecided[i, j]),
            settings(panel.chosen[int(panel.best.choice[at])]),
            plain(panel.best.mean[at]),
            plain(speedup[i, j]),
            end_section=j == places[-1],
        )
    return table


def plain(number: float) -> str:
    """Returns three digits of a number, without an exponent."""
    return f"{float(f'{number:.3g}'):,g}"


def describe(panel: Panel) -> str:
    """Describes the data and the delays."""
    delays = f"random delays, mean {panel.delay:g} gradient" if panel.delay else "equal workers"
    return f"{panel.partition}, {delays}"


def draw(args: Args, panels: list[Panel], methods: list[str]) -> Figure:
    """Draws the winners as colours, the speedups as contours, and undecided networks hatched."""
    won = np.stack([winners(panel.best)[0] for panel in panels])
    count = np.sum(won[..., None] == np.arange(len(methods)), axis=0)
    shown = [i for i in np.argsort(-count.sum(axis=(0, 1))) if count[..., i].any()]
    rows, columns = len(args.partitions), len(args.delays)
    sheet, every = plots.figure(columns, rows, width=figures.WIDTH / columns, height=3.2)
    for axes, panel in zip(every, panels, strict=True):
        draw_panel(args, axes, panel, shown)
    for i, axes in enumerate(every):
        figures.describe(
            axes,
            "bandwidth, Mbit/s" if i >= (rows - 1) * columns else None,
            "latency, ms" if i % columns == 0 else None,
            log="xy",
        )
    handles = [
        Patch(color=COLOURS[k % len(COLOURS)], label=methods[i]) for k, i in enumerate(shown)
    ]
    handles.append(Patch(facecolor="white", hatch="////", edgecolor="0.4", label="undecided"))
    sheet.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figures.title(
        sheet,
        f"Fastest method to the target loss; contours: times as fast as {BASELINE}\n"
        f"{args.workers} workers, {args.size:,.0f} elements, {args.compute * 1e3:g} ms per "
        f"gradient, {args.data}; {statistics.runs(args.seeds)}",
    )
    return sheet


# plots.COLOURS, lightened so that contours can be read on them, and further ones
COLOURS = (
    *("#66AAD7", "#EBA06B", "#66C5AB", "#E0AFCA", "#F2CB70", "#9AD2F2", "#8C8C8C", "#D9D9D9"),
    *("#B5A1D8", "#C4B08B", "#A8D08D", "#F4A6A6"),
)


def draw_panel(args: Args, axes: Axes, panel: Panel, shown: list[int]) -> None:
    first, speedup, undecided = winners(panel.best)
    x, y = axis(args, args.bandwidths) / 1e6, axis(args, args.latencies) * 1e3
    place = {method: k for k, method in enumerate(shown)}
    colours = np.vectorize(place.__getitem__)(first)
    axes.pcolormesh(
        x, y, colours, cmap=ListedColormap(COLOURS[: len(shown)]), vmin=-0.5, vmax=len(shown) - 0.5
    )
    axes.grid(visible=False)
    if undecided.any():
        with rc_context({"hatch.linewidth": 0.5, "hatch.color": "0.35"}):
            axes.contourf(
                x, y, undecided.astype(float), levels=[0.5, 1.5], colors="none", hatches=["////"]
            )
    lines = axes.contour(x, y, speedup, levels=SPEEDUPS, colors="black", linewidths=0.7)
    axes.clabel(lines, fmt=lambda value: f"{value:g}x", fontsize=7)
    axes.set_title(f"{describe(panel)}; loss {panel.target:g}", fontsize=10)


if __name__ == "__main__":
    commands.run(main, Args)
