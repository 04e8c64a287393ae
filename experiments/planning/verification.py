"""Predicted and measured seconds to a target loss: real processes over emulated links train with
the methods, settings and numbers of rounds that a simulation chose.

At each point of the plane of bandwidth and latency, the processes measure:

1. JAX's collectives, from which latency and bandwidth are fitted as in `calibrate`: for each of
   them, and one for all;
2. what a method computes: in each process its run of all N workers, divided by N, while all
   processes do the same;
3. the run of the method over the links, with the random numbers of the simulation.

The prediction is `dsgd.replay` of the simulated run on a cluster with the latency and the bandwidth
of the collectives that the method uses, and with a latency for each array of a message, because
each is a collective of its own. Nothing is fitted to measured runs. A run of one round is
subtracted from them, with the evaluations of the loss at the start and at the end. The share of the
first round in the seconds to the target is that of the prediction.

Other processes measure the same links before, and write a cluster file, as `calibrate` does. The
plan's prediction is `dsgd.replay` on the cluster of this file: a latency for each array, latency
and bandwidth of each kind of collective, and the computations of mini-batch SGD for all methods.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from matplotlib.figure import Figure
from rich.table import Table
from scipy import stats

import algorithms
import dsgd
from algorithms import registry
from dsgd import (
    Candidate,
    cache,
    clusters,
    network,
    plots,
    problems,
    records,
    workers,
)
from dsgd.machines import links, nodes
from dsgd.wire import traffic
from experiments.planning import plane
from experiments.planning.plane import Chosen
from experiments.shared import commands, figures, statistics, tables
from experiments.survey import calibrate_measuring as measuring
from experiments.survey import calibrate_switch as switch
from experiments.survey.calibrate_switch import Line

METHODS = (
    "minibatch_sgd",
    "local_sgd",
    "diloco",
    "compressed_sgd",
    "error_compensated_sgd",
    "ef21",
    "qsparse_local_sgd",
    "decentralized_sgd",
    "choco_sgd",
    "lead",
)
TOLERANCE = 0.01  # by which rounding may change the loss at the target, relative to it
REPEATS = 3  # of each measurement, except for long runs
MOST = 64  # factor by which short runs are longer than to the target, at most
FASTEST = 1e-12  # seconds of a byte, if the fitted ones are 0
IN_TURN = 4  # collectives in one program, as in the compiled loop of a run
# Factor by which collectives may take longer than `--longest`: without the largest size, the line
# of a slow link would be that of messages which fit into the buckets and buffers on their way.
ENOUGH = 8


@dataclass(frozen=True)
class Args(commands.Common):
    """Verifies predicted seconds with real processes over emulated links."""

    processes: commands.Several = 4
    """N, one worker each."""
    rates: commands.Positives = (4e6, 20e6, 100e6)
    """Rates of every process's link in both directions, bits per second."""
    latencies: tuple[commands.NotNegative, ...] = (0.0, 0.01)
    """Latencies of the links, seconds, in addition to those of this machine."""
    methods: tuple[str, ...] = METHODS
    """Which methods besides mini-batch SGD, by name; the first settings of each are used."""
    period: commands.Count = 8
    """H, number of local steps of the methods that have them."""
    width: commands.Count = 256
    """Width of the hidden layer of the trained network; 75 float32 per unit."""
    batch_size: commands.Count = 16
    """Number of samples that each worker draws in a round."""
    rounds: commands.Several = 40
    """The target is the loss that mini-batch SGD reaches in this number of rounds."""
    steps: commands.Several = 160
    """Maximal number of rounds; methods that reach the target in none of them are left out."""
    learning_rates: commands.Positives = (0.03, 0.1, 0.3, 1.0)
    """Candidate step sizes."""
    sizes: Annotated[commands.Counts, commands.increasing(2)] = (1024, 8192, 65536)
    """Sizes of the vectors of the measured collectives in bytes, increasing, at least two."""
    longest: commands.Positive = 2.0
    """Seconds of a measured run: shorter ones go on after the target. Runs of less than three times
    as long are repeated.
    """
    out: Path = Path("results/verification")
    """Folder for config.json, verification.csv, figure.png and a file of each point, which is not
    measured again if it exists.
    """

    @property
    def every(self) -> int:
        """Rounds between two evaluations: models are averaged in each of these rounds."""
        return self.period

    @property
    def seeds(self) -> int:
        """Number of simulated runs: the one that is repeated with real processes."""
        return 1


class Point(NamedTuple):
    """Links: their rate, bits per second, and latency, seconds."""

    rate: float
    latency: float

    def __str__(self) -> str:
        return f"{self.rate / 1e6:g} Mbit/s, {self.latency * 1e3:g} ms"


class Run(NamedTuple):
    """A run to repeat with real processes.

    Args:
        candidate: the method.
        settings: its step size and other hyperparameters, by name.
        rounds: number of rounds to the target.
    """

    candidate: Candidate
    settings: Mapping[str, float]
    rounds: int

    @property
    def description(self) -> str:
        """The settings besides the step size."""
        return plane.describe(self.candidate.settings, self.settings)

    def build(self, workers: int) -> dsgd.Algorithm:
        """Returns the method."""
        others = {name: int(value) for name, value in self.settings.items()}
        del others["learning_rate"]
        optimizer = optax.sgd(self.settings["learning_rate"])
        return self.candidate.build(optimizer, workers, **others)


def run_of(chosen: Chosen) -> Run:
    """Returns the run that real processes repeat."""
    return Run(chosen.candidate, dict(chosen.settings), int(chosen.rounds[0]))


class Round(NamedTuple):
    """A round of a method.

    Args:
        compute: mean seconds of one worker's computations, without communication.
        collectives: number of arrays that its messages send, by collective.
    """

    compute: float
    collectives: Mapping[str, float]


class Measured(NamedTuple):
    """A measured run of a method.

    Args:
        seconds: those of the run, without its first round.
        times: its number of rounds, relative to that to the target.
        loss: after the rounds to the target.
    """

    seconds: float
    times: int
    loss: float

    def to_target(self, first: float) -> float:
        """Returns the seconds to the target, if the first round takes this share of them."""
        return self.seconds / (self.times - first)


class Row(NamedTuple):
    """One method at one point, in seconds to the target.

    Args:
        rate, latency: of the links.
        method, settings, learning_rate: what was trained.
        rounds: number of rounds to the target.
        simulated_loss, loss: at the end of the simulated run and of the real one.
        compute: measured seconds of one worker's computations.
        arrays: arrays of a message.
        predicted: with the latency and bandwidth of the collectives that the method uses.
        planned: as `experiments.plan` predicts with a cluster file, measured before by other
            processes: a latency for each array, and the computations of mini-batch SGD.
        switched: with the same file, but one switch for all collectives, and one latency for each
            exchange.
        measured: of the real run.
    """

    rate: float
    latency: float
    method: str
    settings: str
    learning_rate: float
    rounds: int
    simulated_loss: float
    loss: float
    compute: float
    arrays: float
    predicted: float
    planned: float
    switched: float
    measured: float


def main(args: Args) -> None:
    methods = (registry.full_name(name.lower()) for name in args.methods)
    args = dataclasses.replace(args, methods=tuple(methods))
    commands.require_known("--methods", args.methods, METHODS)
    points = [Point(*each) for each in itertools.product(args.rates, args.latencies)]
    links.require_allowed(max(args.latencies))
    commands.begin(args)
    problem = problems.neural_network(
        problems.MLP(measuring.CLASSES, (args.width,)),
        workers=args.processes,
        batch_size=args.batch_size,
        seed=args.seed,
    )
    target, chosen = train(args, problem)
    with commands.waiting(args, "measuring computations"):
        rounds = measure_rounds(args, problem, [run_of(each) for each in chosen])
    rows: list[Row] = []
    for point in tables.bar(points, "measuring", args.progress):
        rows += measure_rows(args, point, problem, target, chosen, rounds)
        records.write_rows(args.out / "verification.csv", Row._fields, rows)
    shown = {
        "points": tabulate(args, rows),
        "ratios": tabulate_methods(
            rows,
            "predicted / measured seconds",
            lambda row: f"{row.predicted / row.measured:.2f}",
        ),
        "planned": tabulate_methods(
            rows,
            "predicted from a cluster file / measured seconds",
            lambda row: f"{row.planned / row.measured:.2f}",
        ),
        "seconds": tabulate_methods(
            rows,
            f"measured seconds to loss {target:g}",
            lambda row: f"{row.measured:.3g}",
        ),
    }
    commands.finish(args, {"figure": draw(args, target, rows)}, shown)


def candidates(args: Args) -> Iterator[Candidate]:
    """Yields the first settings of each method, mini-batch SGD first, with `--period`."""
    for name in METHODS:
        if name in (METHODS[0], *args.methods):
            candidate = next(each for each in algorithms.SYNCHRONOUS if each.name == name)
            yield dataclasses.replace(
                candidate, grids=dict.fromkeys(candidate.swept, (args.period,))
            )


def train(args: Args, problem: dsgd.Problem) -> tuple[float, list[Chosen]]:
    """Returns the target, and the simulated runs that reach it, each at its best step size."""
    trained = [
        each
        for candidate in tables.bar(list(candidates(args)), "training", args.progress)
        for each in plane.replayed(plane.train(args, problem, candidate))
    ]
    baseline = trained[0].trained.history
    reached = baseline["loss"][..., baseline["step"] <= args.rounds]
    target = statistics.round_up(np.nanmin(reached))
    chosen = [each for some in trained for each in plane.choose(some, target) if each.rounds[0] > 1]
    return target, chosen


def measure_rounds(args: Args, problem: dsgd.Problem, runs: Sequence[Run]) -> list[Round]:
    """Returns the rounds of all runs, from their file if it exists."""
    path = args.out / "rounds.json"
    if not path.exists():
        function = partial(compute, args, problem, runs)
        found = dsgd.run_local_processes(args.processes, function, timeout=math.inf)[0]
        records.write_json(path, [list(each) for each in found])
    return [Round(*each) for each in json.loads(path.read_text())]


def compute(args: Args, problem: dsgd.Problem, runs: Sequence[Run]) -> list[Round]:
    """Measures the computations of all runs; called in every process."""
    cache.enable(args.cache)
    everywhere = nodes.mesh("verify", args.processes)
    here = workers.mesh([jax.local_devices()[0]])
    found = []
    for each in runs:
        method = each.build(args.processes)
        together = _time_runs(args, method, problem, here, each.rounds).to_target(1 / each.rounds)
        one_worker = max(0.0, together) / args.processes / each.rounds
        program = dsgd.compile_round(method, problem, everywhere)
        found.append(Round(one_worker, traffic.arrays(program)))
    return found


def measure_rows(
    args: Args,
    point: Point,
    problem: dsgd.Problem,
    target: float,
    chosen: list[Chosen],
    rounds: list[Round],
) -> list[Row]:
    """Returns the rows of a point.

    Raises:
        ValueError: if a real run does not reach the target.
    """
    hardware = calibrate(args, point, rounds[0].compute)
    times, found = measure_point(args, point, problem, [run_of(each) for each in chosen])
    lines = switch.fit_switch(times, args.processes).lines
    rows = [
        predict(args, point, problem, lines, hardware, *each)
        for each in zip(chosen, rounds, found, strict=True)
    ]
    for row in rows:
        if not row.loss <= (1 + TOLERANCE) * target:
            raise ValueError(
                f"{row.method} at {point}: the loss after {row.rounds} rounds is {row.loss:g} with "
                f"real processes, and {row.simulated_loss:g} in the simulation; expected at most "
                f"the target, {target:g}"
            )
    return rows


def calibrate(args: Args, point: Point, gradient: float) -> clusters.Hardware:
    """Returns the cluster file of a point, which is measured if it does not exist.

    Args:
        args: the command's arguments.
        point: the links.
        gradient: seconds of one worker's computations in a round of mini-batch SGD.
    """
    path = args.out / f"{point.rate / 1e6:g}mbit-{point.latency * 1e3:g}ms-cluster.json"
    if not path.exists():
        times = run_over_links(args, point, partial(measure_links, args))
        found = switch.fit_switch(times, args.processes)
        numbers = found.latency, found.bandwidth, gradient
        hardware = clusters.Hardware(*numbers, bucket=0.0, collectives=found.collectives)
        clusters.save(path, hardware, {"what": f"{args.processes} processes, links of {point}"})
    return clusters.load(path)


def run_over_links(args: Args, point: Point, function: Callable[[], Any]) -> Any:
    """Returns what the function returns in the first process."""
    rate = links.Rate((point.rate,))
    return links.shaped(args.processes, function, rate, latency=point.latency, timeout=math.inf)[0]


def measure_links(args: Args) -> measuring.Times:
    """Measures the collectives; called in every process."""
    return measuring.measure_collectives(args.sizes, 3 * REPEATS, ENOUGH * args.longest, IN_TURN)


def measure_point(
    args: Args, point: Point, problem: dsgd.Problem, runs: Sequence[Run]
) -> tuple[measuring.Times, list[Measured]]:
    """Returns the measurements of a point, from its file if it exists."""
    path = args.out / f"{point.rate / 1e6:g}mbit-{point.latency * 1e3:g}ms.json"
    if not path.exists():
        times, found = run_over_links(args, point, partial(measure, args, problem, runs))
        written = {
            name: {str(size): list(each) for size, each in by_size.items()}
            for name, by_size in times.items()
        }
        records.write_json(path, {"collectives": written, "runs": [list(each) for each in found]})
    there = json.loads(path.read_text())
    times = {
        name: {float(size): np.array(each) for size, each in by_size.items()}
        for name, by_size in there["collectives"].items()
    }
    return times, [Measured(*each) for each in there["runs"]]


def measure(
    args: Args, problem: dsgd.Problem, runs: Sequence[Run]
) -> tuple[measuring.Times, list[Measured]]:
    """Measures the collectives and all runs; called in every process, which is one worker."""
    cache.enable(args.cache)
    everywhere = nodes.mesh("verify", args.processes)
    return measure_links(args), [
        _time_runs(args, each.build(args.processes), problem, everywhere, each.rounds)
        for each in runs
    ]


def _time_runs(
    args: Args, method: dsgd.Algorithm, problem: dsgd.Problem, mesh: Mesh, rounds: int
) -> Measured:
    """Measures a run of `rounds` rounds, or of a multiple of them if that is short. The seconds of
    a run of one round are subtracted: a start, and two evaluations of the model.
    """
    key = jax.random.split(jax.random.key(args.seed), args.seeds)[0]

    def run(steps):
        # All rounds are in one record, and only the first and the last model are evaluated.
        every = MOST * rounds
        return dsgd.run(method, problem, steps=steps, key=key, record_every=every, mesh=mesh)

    def repeat(steps, count):
        seconds, loss = [], math.nan
        for _ in range(count):
            nodes.gather([[0.0]])  # all processes begin together
            began = perf_counter()
            loss = float(run(steps).history["loss"][-1])
            seconds.append(perf_counter() - began)
        return float(np.median(nodes.gather([seconds]).mean(axis=(0, 1)))), loss

    run(1)  # compiles the program, which does not depend on the number of rounds
    one, _ = repeat(1, REPEATS)
    seconds, loss = repeat(rounds, 1)
    times = int(np.clip(args.longest / max(seconds - one, 1e-3), 1, MOST))
    # The start of a run, which is subtracted, varies by tenths of seconds.
    if seconds - one < REPEATS * args.longest:
        seconds, _ = repeat(times * rounds, REPEATS)
    return Measured(seconds - one, times, loss)


def predict(
    args: Args,
    point: Point,
    problem: dsgd.Problem,
    lines: Mapping[str, Line],
    hardware: clusters.Hardware,
    chosen: Chosen,
    one_round: Round,
    measured: Measured,
) -> Row:
    """Predicts the seconds of a run.

    Args:
        args: the command's arguments.
        point: the links.
        problem: the problem.
        lines: latency and seconds per byte of each collective.
        hardware: the cluster file.
        chosen: the simulated run.
        one_round: measured computations and the collectives of a round.
        measured: the real run.
    """
    N, run = args.processes, run_of(chosen)
    _, units = _seconds(chosen, clusters.Cluster(clusters.constant(1.0)))
    used = [
        (count, measuring.COLLECTIVES[name].cost(N), lines[name])
        for name, count in one_round.collectives.items()
    ]
    latencies = sum(count * cost.latencies for count, cost, _ in used)
    vectors = sum(count * cost.vectors for count, cost, _ in used)
    # Those of the method's collectives, as often as it uses each.
    alpha = sum(count * cost.latencies * line.alpha.value for count, cost, line in used) / latencies
    beta = sum(count * cost.vectors * line.beta.value for count, cost, line in used) / vectors
    exchanges = dsgd.exchanges(run.build(N), problem)
    arrays = latencies / sum(network.cost(each.pattern, N, 1.0, 0.0) for each in exchanges)

    def predict_on_switch(compute: float, alpha: float, beta: float) -> tuple[float, float]:
        each = clusters.constant(compute * run.rounds / units)
        bandwidth = clusters.constant(switch.BITS / max(beta, FASTEST))
        return _seconds(chosen, clusters.Cluster(each, bandwidth, latency=alpha))

    first, predicted = predict_on_switch(one_round.compute, arrays * alpha, beta)
    planned, switched = (
        _seconds(chosen, dataclasses.replace(hardware, **changes).cluster)[1]
        for changes in ({}, {"bucket": None, "collectives": None})
    )
    history = dsgd.history.evaluated_records(chosen.result.history)
    return Row(
        *point,
        chosen.candidate.name,
        run.description,
        chosen.settings["learning_rate"],
        run.rounds,
        float(history["loss"][0, history["step"] == run.rounds].item()),
        measured.loss,
        one_round.compute * run.rounds,
        arrays,
        predicted,
        planned,
        switched,
        measured.to_target(first / predicted),
    )


def _seconds(chosen: Chosen, cluster: clusters.Cluster) -> tuple[float, float]:
    """Returns the simulated seconds of the first round, and to the target."""
    clock = dsgd.replay(chosen.result, cluster)[0]
    return float(clock[1]), float(clock[int(chosen.rounds[0])])


class Accuracy(NamedTuple):
    """How predicted seconds agree with measured ones.

    Args:
        rank: Spearman's rank correlation.
        error: median of |predicted / measured - 1|.
    """

    rank: float
    error: float


def accuracy(predicted: Sequence[float], measured: Sequence[float]) -> Accuracy:
    """Compares predicted with measured seconds of at least two runs."""
    ratios = np.asarray(predicted) / np.asarray(measured)
    rank: Any = stats.spearmanr(predicted, measured)
    return Accuracy(float(rank.statistic), float(np.median(np.abs(ratios - 1))))


def group_by_point(rows: Sequence[Row]) -> dict[Point, list[Row]]:
    """Groups the rows, which are sorted by point."""
    return {
        point: list(group)
        for point, group in itertools.groupby(rows, lambda row: Point(row.rate, row.latency))
    }


def tabulate(args: Args, rows: Sequence[Row]) -> Table:
    """Tabulates rank correlation, error and fastest method of each point, and of all points."""
    table = tables.table(
        f"predicted and measured seconds to the target, {args.processes} processes of one machine",
        (
            *("Mbit/s", "ms", "rank", "error", "plan's\nrank", "plan's\nerror"),
            *("switch's\nerror", "fastest"),
        ),
        "rank: Spearman's correlation of predicted and measured seconds.\n"
        "error: median |predicted / measured - 1|.\n"
        "plan's: as experiments.plan predicts with a cluster file.\n"
        "switch's: with its latency and bandwidth alone.\n"
        "fastest: measured; *: another method is predicted to be.",
        left=0,
    )

    def compare_cells(group):
        measured = [row.measured for row in group]
        for name in ("predicted", "planned", "switched"):
            found = accuracy([getattr(row, name) for row in group], measured)
            if name != "switched":
                yield f"{found.rank:.2f}"
            yield f"{found.error:.0%}"

    def fastest(group, name):
        return min(group, key=lambda row: getattr(row, name)).method

    for point, group in group_by_point(rows).items():
        first = fastest(group, "measured")
        table.add_row(
            *_headings(point),
            *compare_cells(group),
            tables.wrap(first + "*" * (first != fastest(group, "predicted"))),
        )
    table.add_section()
    table.add_row("all", "", *compare_cells(rows), "")
    return table


def tabulate_methods(rows: Sequence[Row], title: str, shown: Callable[[Row], str]) -> Table:
    """Tabulates a number of each method at each point."""
    points = group_by_point(rows)
    table = tables.table(
        title,
        ("Mbit/s\nms", *("\n".join(_headings(point)) for point in points)),
    )
    for method in dict.fromkeys(row.method for row in rows):
        of = [row for row in rows if row.method == method]
        table.add_row(tables.wrap(method), *map(shown, of))
    return table


def _headings(point: Point) -> tuple[str, str]:
    """Returns the rate in Mbit/s, and the latency in ms."""
    return f"{point.rate / 1e6:g}", f"{point.latency * 1e3:g}"


def draw(args: Args, target: float, rows: Sequence[Row]) -> Figure:
    """Draws predicted against measured seconds, with a colour for each method, or a colour with a
    white face, and a marker for each point.
    """
    sheet, (axes,) = plots.figure(1, 1, width=figures.WIDTH, height=5.0)
    methods = list(dict.fromkeys(row.method for row in rows))

    def look(i):
        colour, filled = plots.COLOURS[i % len(plots.COLOURS)], i < len(plots.COLOURS)
        return {"color": colour, "markerfacecolor": colour if filled else "white"}

    for marker, (point, group) in zip(itertools.cycle("os^Dv*PX"), group_by_point(rows).items()):
        for row in group:
            style = look(methods.index(row.method))
            axes.plot(row.measured, row.predicted, marker, markersize=6, **style)
        axes.plot([], [], marker, color="0.4", label=str(point))
    for i, method in enumerate(methods):
        axes.plot([], [], "o", label=method, **look(i))
    ends = [f([row.measured for row in rows]) for f in (min, max)]
    axes.plot(ends, ends, color="0.6", linewidth=1)
    figures.describe(axes, "measured seconds", "predicted seconds", log="xy")
    axes.legend(fontsize=7, frameon=False)
    figures.title(
        sheet,
        f"Seconds to loss {target:g}, {args.processes} processes, network of width {args.width}",
    )
    return sheet
