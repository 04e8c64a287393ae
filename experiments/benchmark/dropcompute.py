"""What DropCompute costs: choosing the threshold, simulating rounds, and a round of training.

    python -m experiments.benchmark dropcompute

The threshold of latencies that were drawn as in appendix B.1, for both ways to stop: `dropcompute.threshold` of numpy's arrays, which
looks at few of the places where the speedup jumps; the same compiled, as training calls it, which looks at all of them (one call); and, to
compare, speedups on a grid in numpy, and the loops of Algorithm 2 as they are printed, in Python, for one threshold.

Rounds of many workers are simulated by `dropcompute.simulated`, at the best threshold of ten of them, and without one.

A round of training is one of `dsgd.run` with records, but without evaluations, of models on noise: mini-batch SGD with DropCompute, of
which nothing is dropped and a tenth, beside as many plain rounds of a micro-batch each, and one of as many samples in one piece; all on
the same cluster.

Versions take turns; medians are reported, of ratios over pairs of timings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.table import Table

import algorithms
import dsgd
from algorithms import dropcompute
from algorithms.dropcompute.stopping import Stop
from dsgd import clusters, records
from experiments.benchmark import rounds, work
from experiments.dropcompute import dropcompute_noises, dropcompute_training
from experiments.shared import commands, common

STOPS: tuple[Stop, ...] = ("preempt", "between")
GRID = 100  # thresholds
MEASURED = 10  # rounds, of which the simulation's threshold is the best
RATE = 0.1  # that is dropped in training
MILLION = 10**6


@dataclass(frozen=True)
class Args:
    """Times DropCompute's planner, its simulation and its rounds."""

    iterations: tuple[int, ...] = (20, 100)
    """Sizes of what is planned with: iterations I,"""
    workers: tuple[int, ...] = (200, 200)
    """workers N,"""
    micro_batches: tuple[int, ...] = (12, 32)
    """and micro-batches M; as many numbers of each."""
    communication: float = 0.5
    """Seconds of communication in a round, that is planned with."""
    simulated_workers: int = 2048
    """Workers of the simulation."""
    rounds: int = 10_000
    """Rounds of the simulation; a million take as many times as long."""
    accumulations: int = 12
    """Micro-batches of each worker, in the simulation and in training."""
    models: tuple[str, ...] = tuple(work.MODELS)
    """What is trained: logistic regression, the MLP, the CNN."""
    batch_size: int | None = None
    """Samples of a micro-batch in training; by default 32, and 8 of the CNN."""
    trained_workers: int = 16
    """Workers in training."""
    seconds: float = 0.5
    """Length of one timing, about; a call or a round at least."""
    repeats: int = 7
    """Timings of each version."""
    out: Path = field(default=Path("results/benchmark/dropcompute"))
    """Folder for config.json, planning.csv, simulation.csv and training.csv."""


class Planning(NamedTuple):
    """Seconds of a threshold: searched, and compiled; of a grid of speedups; of one of the paper's loops. All but the compiled one's are
    medians."""

    iterations: int
    workers: int
    micro_batches: int
    stop: Stop
    searched: float
    compiled: float
    grid: float
    loops: float


class Simulation(NamedTuple):
    """What was simulated: at a threshold, and without one.

    Args:
        rate: rounds a second.
    """

    rounds: int
    workers: int
    micro_batches: int
    threshold: float
    rate: float
    step: float
    step_error: float
    whole_step: float
    whole_step_error: float
    computed: float
    computed_error: float
    speedup: float
    speedup_error: float


class Training(NamedTuple):
    """Medians: seconds of a round of each version, and ratios of seconds over pairs of timings.

    Args:
        plain: of as many rounds of mini-batch SGD as there are micro-batches.
        whole: of a round of as many samples in one piece.
        all_over_plain, dropped_over_plain: with DropCompute, nothing dropped and a tenth.
        all_over_whole: nothing dropped.
    """

    model: str
    plain: float
    whole: float
    all: float
    dropped: float
    all_over_plain: float
    dropped_over_plain: float
    all_over_whole: float


def main(args: Args) -> None:
    check(args)
    commands.begin(args)
    screen = common.console()
    planned: list[Planning] = []
    with commands.kept_rows(args.out / "planning.csv", Planning._fields, planned):
        planned.extend(
            plan(args, *size, stop) for size in zip(args.iterations, args.workers, args.micro_batches, strict=True) for stop in STOPS
        )
    screen.print(tabulate(planned))
    simulated = simulate(args)
    records.write_rows(args.out / "simulation.csv", Simulation._fields, [simulated])
    screen.print(tabulate_simulation(simulated))
    trained: list[Training] = []
    with commands.kept_rows(args.out / "training.csv", Training._fields, trained):
        trained.extend(train(args, name, args.batch_size or work.MODELS[name]) for name in args.models)
    screen.print(tabulate_training(args, trained))


def check(args: Args) -> None:
    """Raises a ValueError where the arguments do not fit."""
    numbers = [len(sizes) for sizes in (args.iterations, args.workers, args.micro_batches)]
    if len(set(numbers)) > 1:
        raise ValueError(f"--iterations, --workers, --micro-batches: {numbers} numbers: need as many of each")
    work.need_models(args.models)


def plan(args: Args, iterations: int, workers: int, micro_batches: int, stop: Stop) -> Planning:
    """Times all that runs on numpy's arrays, or on none, in turn, and one call of the compiled search."""
    latencies = dropcompute_noises.drawing(dropcompute_noises.delays().seconds, iterations, workers, micro_batches)(0)
    runs = planners(latencies, args.communication, stop)
    once = common.seconds(compiled(latencies, args.communication, stop))
    versions: dict[str, Callable[[int], object]] = {
        name: lambda count, run=run: [run() for _ in range(count)] for name, run in runs.items()
    }
    taken = rounds.in_turn(versions, args.seconds, args.repeats)
    searched, grid, loops = (float(np.median(times)) for times in taken.values())
    return Planning(iterations, workers, micro_batches, stop, searched, once, grid, loops)


def compiled(latencies: np.ndarray, communication: float, stop: Stop) -> Callable[[], jax.Array]:
    """The search as training runs it, in float32."""
    return common.program(lambda latencies: dropcompute.threshold(latencies, communication, stop), latencies.astype(np.float32))


def planners(latencies: np.ndarray, communication: float, stop: Stop) -> dict[str, Callable[[], float]]:
    """By name: the best threshold, the best of a grid, and the speedup at that by loops."""
    ends = latencies.cumsum(axis=2)
    starts, whole = ends - latencies, ends[:, :, -1].max(axis=1)
    thresholds = np.linspace(0, whole.max(), GRID + 1)[1:]

    def speedup(tau: float) -> float:
        done = ends < tau if stop == "preempt" else starts <= tau
        step = np.minimum(tau, whole) if stop == "preempt" else np.max(ends, axis=(1, 2), where=done, initial=0)
        return float(np.mean(done.mean(axis=(1, 2)) * (whole + communication) / (step + communication)))

    return {
        "searched": lambda: dropcompute.threshold(latencies, communication, stop),
        "grid": lambda: max(thresholds, key=speedup),
        "loops": lambda: loops(latencies, communication, float(np.median(whole)), stop),
    }


def loops(latencies: np.ndarray, communication: float, threshold: float, stop: Stop) -> float:
    """Equation 6 at one threshold, one micro-batch after the other."""
    total = 0.0
    for iteration in latencies.tolist():
        computed, longest, step = 0, 0.0, 0.0
        for worker in iteration:
            clock = stopped = 0.0
            for seconds in worker:
                begun, clock = clock, clock + seconds
                if clock < threshold if stop == "preempt" else begun <= threshold:
                    computed, stopped = computed + 1, clock
            longest = max(longest, clock)
            step = max(step, stopped if stop == "between" else min(threshold, clock))
        total += computed / latencies[0].size * (longest + communication) / (step + communication)
    return total / len(latencies)


def simulate(args: Args) -> Simulation:
    """Of B.1's delays. The program is compiled before the clock begins."""
    N, M, cluster = args.simulated_workers, args.accumulations, clusters.Cluster(dropcompute_noises.delays().seconds)
    measured = dropcompute.latencies(cluster, N, M, iterations=MEASURED, key=jax.random.key(1))
    tau = dropcompute.threshold(measured, args.communication)
    options = {"communication": args.communication, "key": jax.random.key(0), "chunk": min(256, args.rounds)}
    run = partial(dropcompute.simulated, cluster, N, M, [tau, math.inf], **options)
    run(rounds=max(2, options["chunk"]))
    began = time.perf_counter()
    found = run(rounds=args.rounds)
    rate = args.rounds / (time.perf_counter() - began)
    (step, whole_step), (step_error, whole_step_error) = found.step_time
    (computed, _), (computed_error, _) = found.micro_batches
    (speedup, _), (speedup_error, _) = found.speedup
    means = (step, step_error, whole_step, whole_step_error, computed, computed_error, speedup, speedup_error)
    return Simulation(args.rounds, N, M, tau, rate, *map(float, means))


def train(args: Args, name: str, batch_size: int) -> Training:
    """Times all versions in turn."""
    N, M = args.trained_workers, args.accumulations
    cluster, plain = clusters.Cluster(dropcompute_noises.delays().seconds), algorithms.minibatch_sgd(optax.sgd(1e-3))
    times = dropcompute.latencies(cluster, N, M, iterations=100, key=jax.random.key(1))
    make = partial(work.make, name, N, M * batch_size)
    small, large = make(batch_size), make(M * batch_size)
    one, whole, computed, dropped = rounds.in_turn(
        {
            "plain": program(plain, small, cluster),
            "whole": program(plain, large, cluster),
            "all": program(algorithms.drop_compute(plain, math.inf, M), small, cluster),
            "dropped": program(algorithms.drop_compute(plain, dropcompute_training.dropping(times, RATE), M), small, cluster),
        },
        args.seconds,
        args.repeats,
    ).values()
    several = M * one
    seconds = (float(np.median(times)) for times in (several, whole, computed, dropped))
    ratios = (float(np.median(ratio)) for ratio in (computed / several, dropped / several, computed / whole))
    return Training(name, *seconds, *ratios)


def program(method: dsgd.Algorithm, problem: dsgd.Problem, cluster: clusters.Cluster) -> Callable[[int], object]:
    """A function that runs so many rounds."""
    blind = problem._replace(evaluate=lambda params, data, shared: ({"loss": jnp.float32(0)}, None))
    return rounds.framework(method, blind, cluster)


def tabulate(rows: list[Planning]) -> Table:
    """One row a size and stop."""
    caption = f"ms. search: in numpy; compiled: all jumps, one call; grid: {GRID} thresholds;\nloops: one threshold, in Python."
    table = Table(title="the best threshold (medians)", caption=caption)
    for heading in ("I", "N", "M", "stop", "search", "compiled", "grid", "loops"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        sizes = (f"{number:,}" for number in (row.iterations, row.workers, row.micro_batches))
        seconds = (row.searched, row.compiled, row.grid, row.loops)
        table.add_row(*sizes, row.stop, *(f"{each * 1e3:,.3g}" if each < 1 else f"{each * 1e3:,.0f}" for each in seconds))
    return table


def tabulate_simulation(found: Simulation) -> Table:
    """One row a quantity."""
    size = f"{found.workers:,} workers, {found.micro_batches} micro-batches"
    table = Table(title=f"{found.rounds:,} simulated rounds, {size}", caption="± standard errors")
    table.add_column("what", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for what, value in (
        ("rounds a second", f"{found.rate:,.0f}"),
        ("a million take, minutes", f"{MILLION / found.rate / 60:,.1f}"),
        ("threshold, s", f"{found.threshold:.3f}"),
        ("step with it, s", f"{found.step:.4f} ± {found.step_error:.4f}"),
        ("step without, s", f"{found.whole_step:.4f} ± {found.whole_step_error:.4f}"),
        ("micro-batches computed", f"{found.computed:.4f} ± {found.computed_error:.4f}"),
        ("effective speedup", f"{found.speedup:.4f} ± {found.speedup_error:.4f}"),
    ):
        table.add_row(what, value)
    return table


def tabulate_training(args: Args, rows: list[Training]) -> Table:
    """One row a model."""
    M = args.accumulations
    first = f"ms. plain (p): {M} rounds of one micro-batch; whole (w): as many samples"
    caption = f"{first}\nin one round, in one piece; all (a), dropped (d): DropCompute."
    table = Table(title=f"a round of {args.trained_workers} workers, {M} micro-batches (medians)", caption=caption)
    table.add_column("model", no_wrap=True)
    for heading in ("plain", "whole", "all", f"{RATE:.0%} dropped", "a/p", "d/p", "a/w"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        times = (f"{seconds * 1e3:.3g}" for seconds in (row.plain, row.whole, row.all, row.dropped))
        ratios = (f"{ratio:.2f}" for ratio in (row.all_over_plain, row.dropped_over_plain, row.all_over_whole))
        table.add_row(row.model, *times, *ratios)
    return table
