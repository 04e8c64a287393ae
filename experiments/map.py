"""The map: which method needs the fewest seconds to a target on which network.

    python -m experiments.map

The iterates of these methods do not depend on the clock. Each method is trained once, with all step
sizes and settings, and `dsgd.replay` gives its seconds on each of the networks from the recorded
bits. On every network a method has its best settings; others that are not significantly slower with
these seeds are in map.csv. Panels differ in how the data are
distributed, in whether workers are delayed at random, and in the share of workers that participate.

With `--participations 1 0.25`, the methods are also trained with a quarter of the workers, which
are drawn in each round, or once for all local steps between two exchanges. Methods that require all
workers are left out of these panels.

Methods whose iterates depend on the clock, such as asynchronous ones, are not in the map by
default: they run on each of the networks, with all step sizes and settings. With

    python -m experiments.map --methods ringmaster_sgd rennala_sgd --points 5

these are 25 networks for each distribution of the data and each delay; the command prints the
number of runs and the seconds that they took. A round is one gradient of each worker on average:
they have the same budget of gradients, `--steps` times the number of workers.

The trained model is small. Bits are scaled as if it had `--size` elements: a network of that
bandwidth divided by the ratio of the sizes is replayed. The number of rounds is that of the small
model.
"""

from __future__ import annotations

import itertools
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.table import Table

import dsgd
from algorithms import CANDIDATES, SYNCHRONOUS, registry
from dsgd import Candidate, clusters, plots, records
from dsgd.planning import estimates
from experiments.planning import map_page, plane
from experiments.planning.plane import Best, Chosen, OnEach, Ran, Runs
from experiments.shared import commands, figures, statistics, tables, tuning

BASELINE = SYNCHRONOUS[0].name
METHODS = tuple(dict.fromkeys(candidate.name for candidate in SYNCHRONOUS))
KNOWN = tuple(dict.fromkeys(candidate.name for candidate in CANDIDATES))
MODEL = "logistic regression on {}"
SPEEDUPS = (1.1, 1.5, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Args(commands.Data, commands.Tuning):
    """Maps the fastest method against bandwidth and latency."""

    methods: tuple[str, ...] = METHODS
    """Which methods besides mini-batch SGD, by name. By default those that are replayed; others,
    such as asynchronous_sgd or ringmaster_sgd, run on each of --points x --points networks.
    """
    partitions: tuple[str, ...] = ("iid", "by-label")
    """Which worker gets which samples: iid, blocks, by-label or dirichlet; a row of panels each."""
    delays: tuple[commands.NotNegative, ...] = (0.0, 1.0)
    """Means of exponentially distributed random delays of each batch, in units of --compute; a
    column of panels each.
    """
    participations: tuple[commands.Share, ...] = (1.0,)
    """Shares of workers that participate; a column of panels each, for each of the delays."""
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
    """Target loss; by default the one that mini-batch SGD reaches in a third of the rounds with the
    first of --participations, or, where it never reaches this, with the panel's.
    """
    learning_rates: commands.Positives = (0.1, 0.3, 1.0, 3.0, 10.0)
    """Candidate step sizes."""
    steps: commands.Count = 480
    """Number of rounds; one gradient of each worker each, on average."""
    every: commands.Count = 4
    """Number of rounds between two evaluations of the loss."""
    html: bool = False
    """Also write map.html, the map as a page with sliders, and report.html: the figure, the tables
    and the settings.
    """
    page_workers: tuple[commands.Several, ...] = ()
    """Other numbers of workers for the page of --html, with runs of their own."""
    out: Path = Path("results/map")
    """Folder for config.json, map.csv, figure.png and map.html."""


class Panel(NamedTuple):
    """One distribution of the data, one delay and one participation.

    Args:
        partition, delay, participation: as in the arguments.
        target: the loss.
        chosen: settings of all methods.
        best: the best settings of each method on each network, `[methods, latency, bandwidth]`.
        costs: of the methods that ran on each network.
        left_out: names of the methods that require all workers.
    """

    partition: str
    delay: float
    participation: float
    target: float
    chosen: list[Chosen | Ran]
    best: Best
    costs: list[str]
    left_out: list[str]


def main(args: Args) -> None:
    given = [registry.full_name(name.lower()) for name in args.methods]
    commands.require_known("--methods", given, KNOWN)
    methods = [name for name in KNOWN if name == BASELINE or name in given]
    tasks = {
        partition: tuning.logistic_regression(args, args.workers, partition)
        for partition in args.partitions
    }
    commands.begin(args)
    pages: list[dict[str, Any]] = []
    panels = [
        panel
        for partition, problem in tasks.items()
        for panel in panels_of(args, partition, problem, methods, pages)
    ]
    write(args, panels, methods)
    if args.html:
        write_page(args, tasks[args.partitions[0]], pages, methods)
    shown = {name(panel): tabulate(args, panel, methods) for panel in panels}
    commands.finish(args, {"figure": draw(args, panels, methods)}, shown)


def panels_of(
    args: Args,
    partition: str,
    problem: dsgd.Problem,
    methods: list[str],
    pages: list[dict[str, Any]],
) -> Iterator[Panel]:
    """Yields the panels of a partition, for each delay those of all participations; if there is a
    page, its recorded rounds are added to `pages`.
    """
    trained, target = [], args.target
    for share in args.participations:
        runs = train(args, partition, problem, methods, share)
        chosen, reached = choose(args, partition, runs, target)
        target = target or reached
        if args.html:
            pages.append(page_of(args, partition, share, runs, reached))
            for workers in sorted({*args.page_workers} - {args.workers}):
                other = replace(args, workers=workers)
                fewer = tuning.logistic_regression(args, workers, partition)
                others = train(other, partition, fewer, methods, share)
                pages.append(page_of(other, partition, share, others, reached))
        on_each = [each for some in runs.values() for each in some if isinstance(each, OnEach)]
        trained.append((share, reached, chosen, on_each, left_out(runs)))
    for delay in args.delays:
        for share, reached, chosen, on_each, others in trained:
            every, best = locate(args, problem, delay, methods, chosen, on_each, reached)
            costs = [each.cost(args.points**2) for each in on_each]
            yield Panel(partition, delay, share, reached, every, best, costs, others)


def train(
    args: Args, partition: str, problem: dsgd.Problem, methods: list[str], share: float
) -> dict[Candidate, list[Runs | OnEach]]:
    """Returns the runs of all candidates with a share of the workers."""
    candidates = [each for each in CANDIDATES if each.name in methods]
    words = f"training, {partition}" + f", {share:g} of the workers" * (share < 1)
    words += f", {args.workers} workers" * bool(args.page_workers)
    each = partial(plane.train, args, problem, participants=participants(args, share))
    found = dict(commands.run_each(args, words, each, candidates))
    return {candidate: found[i] for i, candidate in enumerate(candidates)}


def page_of(
    args: Args,
    partition: str,
    share: float,
    runs: dict[Candidate, list[Runs | OnEach]],
    target: float,
) -> dict[str, Any]:
    """Returns the recorded rounds of these runs for the page."""
    some = participants(args, share) or args.workers
    return map_page.panel(runs, target, args.workers, share, some, partition)


def write_page(
    args: Args, problem: dsgd.Problem, pages: list[dict[str, Any]], methods: list[str]
) -> None:
    """Writes map.html."""
    map_page.write(
        args.out / "map.html",
        pages,
        problem=MODEL.format(args.data),
        elements=tuning.elements(problem),
        bandwidths=args.bandwidths,
        latencies=args.latencies,
        size=args.size,
        compute=args.compute,
        seeds=args.seeds,
        quantile=estimates.quantile(args.seeds - 1) if args.seeds > 1 else 0.0,
        baseline=BASELINE,
        methods=[{"name": each, "colour": colour(each)} for each in methods],
    )


def left_out(runs: dict[Candidate, list[Runs | OnEach]]) -> list[str]:
    """Returns the names of the methods without runs, or of their settings if others have runs."""
    methods = {candidate.name for candidate, trained in runs.items() if trained}
    return list(
        dict.fromkeys(
            f"{candidate.name} ({candidate.settings})"
            if candidate.name in methods
            else candidate.name
            for candidate, trained in runs.items()
            if not trained
        )
    )


def participants(args: Args, share: float) -> int | None:
    """Returns the number of workers that participate in a round, at least 1; None: all."""
    number = max(1, round(share * args.workers))
    return number if number < args.workers else None


def choose(
    args: Args, partition: str, runs: dict[Candidate, list[Runs | OnEach]], target: float | None
) -> tuple[list[Chosen], float]:
    """Returns the settings of all methods at their best step sizes, and the target: the given one,
    or the default if there is none or mini-batch SGD does not reach it.
    """
    (baseline,) = plane.replayed(runs[SYNCHRONOUS[0]])
    if target is not None and not plane.choose(baseline, target):
        if args.target is not None:
            raise ValueError(
                f"--target {target:g}: {BASELINE} does not reach it in --steps {args.steps} rounds "
                f"({partition}); expected a larger target, more steps or other --learning-rates"
            )
        target = None
    reached = plane.default_target(baseline.trained.history) if target is None else target
    every = plane.replayed(itertools.chain.from_iterable(runs.values()))
    return [each for trained in every for each in plane.choose(trained, reached)], reached


def locate(
    args: Args,
    problem: dsgd.Problem,
    delay: float,
    methods: list[str],
    chosen: list[Chosen],
    on_each: list[OnEach],
    target: float,
) -> tuple[list[Chosen | Ran], Best]:
    """Replays all settings on all networks, and runs the methods that depend on the network.

    Returns:
        All settings, and the best ones of each method.
    """
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
    every: list[Chosen | Ran] = [*chosen]
    if on_each:
        words, began = f"on each of {args.points**2} networks, delay {delay:g}", time.perf_counter()
        tables.notes(f"{words}: {each.cost(args.points**2)}" for each in on_each)
        run = partial(plane.run_on_each, target=target, cluster=cluster, grids=grids)
        done = dict(commands.run_each(args, words, run, on_each))
        tables.notes([f"{words}: {time.perf_counter() - began:.0f} s"])
        pairs = [pair for i in range(len(on_each)) for pair in done[i]]
        every += [each for each, _ in pairs]
        found += [seconds for _, seconds in pairs]
    return every, plane.best_of_each(methods, every, found)


def axis(args: Args, ends: tuple[float, float]) -> np.ndarray:
    """Returns the points of an axis of the plane."""
    return np.geomspace(*ends, args.points)


def winners(best: Best) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns, on each network, the index of the method with the fewest seconds, how many times as
    fast as mini-batch SGD it is, and whether it differs from the second by less than two standard
    errors of the difference.
    """
    first, second = np.argsort(best.mean, axis=0)[:2]

    def take(values, method):
        return np.take_along_axis(values, method[None], axis=0)[0]

    gap = take(best.mean, second) - take(best.mean, first)
    error = np.hypot(take(best.error, first), take(best.error, second))
    return first, best.mean[0] / take(best.mean, first), gap < 2 * error


def write(args: Args, panels: list[Panel], methods: list[str]) -> None:
    """Writes the winner, its settings and the speedup on each network."""
    columns = [
        "partition",
        "delay",
        "participation",
        "latency",
        "bandwidth",
        "method",
        "settings",
        "seconds",
        "speedup",
        "undecided",
        "tied_settings",
    ]
    rows = []
    for panel in panels:
        first, speedup, undecided = winners(panel.best)
        for i, latency in enumerate(axis(args, args.latencies)):
            for j, bandwidth in enumerate(axis(args, args.bandwidths)):
                at = (first[i, j], i, j)
                rows.append(
                    (
                        *(panel.partition, panel.delay, panel.participation),
                        *(latency, bandwidth, methods[at[0]]),
                        settings(panel.chosen[int(panel.best.choice[at])]),
                        *(panel.best.mean[at], speedup[i, j], bool(undecided[i, j])),
                        "; ".join(map(settings, plane.tied(panel.best, panel.chosen, at))),
                    )
                )
    records.write_rows(args.out / "map.csv", columns, rows)


def settings(chosen: Chosen | Ran) -> str:
    """Describes the settings besides the step size."""
    return plane.describe(chosen.candidate.settings, chosen.settings)


def tabulate(args: Args, panel: Panel, methods: list[str]) -> Table:
    """Tabulates the fastest method and its settings on nine networks."""
    names = f"Left out, because they require all workers: {', '.join(panel.left_out)}."
    costs = f"On each of {args.points**2} networks ran {'; '.join(panel.costs)}."
    table = tables.table(
        f"{describe(args, panel)}: fastest method to loss {panel.target:g}",
        ("latency\nms", "bandwidth\nMbit/s", "method", "settings", "seconds", "speedup"),
        f"Speedup over {BASELINE}. *: the difference from the second method\nis less than two "
        "standard errors. =: other settings of the method are not\nsignificantly slower."
        + f"\n{textwrap.fill(costs)}" * bool(panel.costs)
        + f"\n{textwrap.fill(names)}" * bool(panel.left_out),
        left=0,
    )
    first, speedup, undecided = winners(panel.best)
    places = [0, args.points // 2, args.points - 1]
    for i, j in itertools.product(places, places):
        at = (first[i, j], i, j)
        others = plane.tied(panel.best, panel.chosen, at)
        table.add_row(
            tables.plain(axis(args, args.latencies)[i] * 1e3),
            tables.plain(axis(args, args.bandwidths)[j] / 1e6),
            tables.wrap(methods[at[0]]) + "*" * bool(undecided[i, j]),
            settings(panel.chosen[int(panel.best.choice[at])]) + "=" * bool(others),
            tables.plain(panel.best.mean[at]),
            tables.plain(speedup[i, j]),
            end_section=j == places[-1],
        )
    return table


def name(panel: Panel) -> str:
    """Returns the name of a panel's table."""
    share = f"-{panel.participation:g}" if panel.participation < 1 else ""
    return f"{panel.partition}-{panel.delay:g}{share}"


def describe(args: Args, panel: Panel) -> str:
    """Describes the data, the delays and the participation."""
    delays = f"random delays, mean {panel.delay:g} gradient" if panel.delay else "equal workers"
    some = participants(args, panel.participation)
    share = "" if some is None else f", {some} of {args.workers} participate"
    return f"{panel.partition}, {delays}{share}"


def draw(args: Args, panels: list[Panel], methods: list[str]) -> Figure:
    """Draws the winners as colours, the speedups as contours, and undecided networks hatched."""
    won = np.stack([winners(panel.best)[0] for panel in panels])
    count = np.sum(won[..., None] == np.arange(len(methods)), axis=0)
    shown = [i for i in np.argsort(-count.sum(axis=(0, 1))) if count[..., i].any()]
    rows, columns = len(args.partitions), len(args.delays) * len(args.participations)
    width = figures.WIDTH / columns
    sheet, every = plots.figure(columns, rows, width=width, height=3.2)
    for i, (axes, panel) in enumerate(zip(every, panels, strict=True)):
        title = f"{describe(args, panel)}; loss\u00a0{panel.target:g}"
        axes.set_title(textwrap.fill(title, round(13 * (width - 0.25))), fontsize=10)
        # The scales determine where the labels interrupt the contours, so they are set first.
        figures.describe(
            axes,
            "bandwidth, Mbit/s" if i >= (rows - 1) * columns else None,
            "latency, ms" if i % columns == 0 else None,
            log="xy",
        )
        draw_panel(args, axes, panel, [colour(name) for name in methods])
    handles = [Patch(color=colour(methods[i]), label=methods[i]) for i in shown]
    if any(winners(panel.best)[2].any() for panel in panels):
        handles.append(Patch(facecolor="white", hatch="////", edgecolor="0.4", label="undecided"))
    sheet.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figures.title(
        sheet,
        f"Fastest method to the target loss; contours: times as fast as {BASELINE}\n"
        f"{args.workers} workers, {args.size:,.0f} elements, {args.compute * 1e3:g} ms per "
        f"gradient; rounds of {MODEL.format(args.data)}, {statistics.runs(args.seeds)}",
    )
    return sheet


# Colours of KNOWN, light so that contours can be read on them: plots.COLOURS and further ones.
COLOURS = (
    *("#D9D9D9", "#C4B08B", "#8C8C8C", "#66AAD7", "#B86BE8", "#A8D08D", "#F4A6A6", "#9AD2F2"),
    *("#E0AFCA", "#66C5AB", "#B5A1D8", "#F2CB70", "#EBA06B"),
    *("#C9A0DC", "#F7E08A", "#9FA8DA", "#7FB7BE", "#B8E0C8", "#C98F8F"),
)


def colour(method: str) -> str:
    """Returns the colour of a method, the same in all figures."""
    return COLOURS[KNOWN.index(method) % len(COLOURS)]


def draw_panel(args: Args, axes: Axes, panel: Panel, colours: list[str]) -> None:
    """Draws a panel; the colours are those of the methods."""
    first, speedup, undecided = winners(panel.best)
    x, y = axis(args, args.bandwidths) / 1e6, axis(args, args.latencies) * 1e3
    axes.pcolormesh(x, y, first, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5)
    axes.grid(visible=False)
    if undecided.any():
        with rc_context({"hatch.linewidth": 0.5, "hatch.color": "0.35"}):
            axes.contourf(
                x, y, undecided.astype(float), levels=[0.5, 1.5], colors="none", hatches=["////"]
            )
    lines = axes.contour(x, y, speedup, levels=SPEEDUPS, colors="black", linewidths=0.7)
    axes.clabel(lines, fmt=lambda value: f"{value:g}x", fontsize=7)


if __name__ == "__main__":
    commands.run(main, Args)
