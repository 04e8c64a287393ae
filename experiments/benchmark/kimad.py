"""What it takes to adapt compression to the bandwidth: milliseconds of deciding which compressor each layer gets.

    python -m experiments.benchmark kimad

A decision is Kimad+'s allocation of a budget (`algorithms.kimad.allocation`), compiled, for one worker, and for all in one program, each
with errors and a budget of its own; beside it the same dynamic program in numpy, one slice for each choice. Errors and sizes are those of
sparsification of layers whose numbers of elements differ by up to a thousand.

Rounds a second are those of `dsgd.run` with records, on a cluster whose bandwidths change, of models on noise: of EF21 with top-K of a
tenth over N servers, and of Kimad with fifty ratios.

All versions take turns; medians are reported. One core does all: `taskset -c 0`, say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from rich.table import Table

import algorithms
from algorithms import kimad
from algorithms.kimad import allocation
from dsgd import clusters, compressors
from experiments.benchmark import rounds, work
from experiments.shared import commands, common
from theory_checks.recursions.allocation import knapsack

SAMPLES = 8  # that each worker has, and draws in a round


@dataclass(frozen=True)
class Args:
    """Times Kimad+'s decisions, and rounds of Kimad beside EF21's."""

    layers: tuple[int, ...] = (10, 60, 60, 60, 200)
    """Numbers of layers."""
    choices: tuple[int, ...] = (50, 10, 50, 50, 50)
    """Compressors to choose from, a number for each of the layers."""
    resolutions: tuple[int, ...] = (1_000, 1_000, 1_000, 10_000, 1_000)
    """Units of the budget, a number for each of the layers."""
    workers: int = 16
    """Number of workers N: that decide in one program, and that train."""
    models: tuple[str, ...] = ("logistic", "mlp", "cnn")
    """What is trained: logistic regression, the MLP, the CNN."""
    seconds: float = 0.2
    """Length of one timing, about; a decision at least."""
    repeats: int = 7
    """Timings of each version."""
    out: Path = field(default=Path("results/benchmark/kimad"))
    """Folder for config.json, deciding.csv and training.csv."""


class Decision(NamedTuple):
    """Median seconds of one size: of one worker, of all of them, and of one in numpy."""

    layers: int
    choices: int
    resolution: int
    alone: float
    together: float
    numpy: float


class Training(NamedTuple):
    """Median rounds a second of each method on a model of so many layers and elements."""

    model: str
    layers: int
    elements: int
    ef21: float
    kimad: float
    kimad_plus: float
    whole_model: float


class Instance(NamedTuple):
    """What workers decide on: errors `[N, layers, choices]`, sizes `[layers, choices]` in bits, budgets uint32 `[N]`."""

    errors: np.ndarray
    sizes: np.ndarray
    budgets: np.ndarray


def main(args: Args) -> None:
    check(args)
    commands.begin(args)
    rows: list[Decision] = []
    with commands.kept_rows(args.out / "deciding.csv", Decision._fields, rows):
        rows.extend(decide(args, *size) for size in zip(args.layers, args.choices, args.resolutions, strict=True))
    common.console().print(tabulate(args, rows))
    trained: list[Training] = []
    with commands.kept_rows(args.out / "training.csv", Training._fields, trained):
        trained.extend(train(args, name) for name in args.models)
    common.console().print(tabulate_training(args, trained))


def check(args: Args) -> None:
    """Raises a ValueError where the arguments do not fit."""
    numbers = [len(sizes) for sizes in (args.layers, args.choices, args.resolutions)]
    if len(set(numbers)) > 1:
        raise ValueError(f"--layers, --choices, --resolutions: {numbers} numbers: need as many of each")
    work.need_models(args.models)


def decide(args: Args, layers: int, choices: int, resolution: int) -> Decision:
    """Times all versions in turn."""
    return Decision(layers, choices, resolution, *timed(args, versions(instance(args.workers, layers, choices), resolution)))


def train(args: Args, name: str) -> Training:
    """Times all methods in turn."""
    problem = work.make(name, args.workers, SAMPLES, batch_size=SAMPLES)
    sizes = [leaf.size for leaf in jax.tree.leaves(jax.eval_shape(problem.init, jax.random.key(0)))]
    bandwidth = 32.0 * sum(sizes)  # all of the model in a second
    cluster = clusters.Cluster(clusters.constant(0.1), up=clusters.sinusoid(0.9 * bandwidth, 0.1, 0.1 * bandwidth))
    tenth, ratios = compressors.top_k(0.1), kimad.top_k(np.arange(0.01, 1, 0.02))
    step, time = optax.sgd(1e-3), 0.5
    methods = (
        algorithms.ef21(step, tenth, tenth),
        algorithms.kimad_sgd(step, ratios, time),
        algorithms.kimad_sgd(step, ratios, time, rule=kimad.allocate),
        algorithms.kimad_sgd(step, kimad.whole_model(ratios), time),
    )
    times = timed(args, {method.name: rounds.framework(method, problem, cluster) for method in methods})
    return Training(name, len(sizes), sum(sizes), *(1 / seconds for seconds in times))


def timed(args: Args, versions: dict[str, Callable[[int], object]]) -> list[float]:
    """Median seconds of one go of each, which take turns."""
    return [float(np.median(times)) for times in rounds.in_turn(versions, args.seconds, args.repeats).values()]


def instance(workers: int, layers: int, choices: int) -> Instance:
    """Of a random model. Budgets are between 5 and 40 per cent of what sends everything."""
    rng = np.random.default_rng(0)
    elements = np.floor(10 ** rng.uniform(2, 5, layers))[:, None]
    share = np.arange(1, choices + 1) / choices
    sizes = (64 * np.ceil(share * elements)).astype(np.uint32)  # indices and values
    scale = elements * rng.lognormal(size=(workers, layers, 1))
    errors = scale * (1 - share) ** rng.uniform(1, 3, (workers, layers, 1))
    return Instance(errors.astype(np.float32), sizes, (sizes[:, -1].sum() * rng.uniform(0.05, 0.4, workers)).astype(np.uint32))


def versions(given: Instance, resolution: int) -> dict[str, Callable[[int], object]]:
    """By name, functions that decide so many times, one after the other."""

    def one(errors: jax.Array, budget: jax.Array) -> jax.Array:
        return allocation.allocate(errors, given.sizes, budget, resolution)

    first = given.errors[0], given.budgets[0]
    runs = {
        "alone": common.program(one, *first),
        "together": common.program(jax.vmap(one), given.errors, given.budgets),
        "numpy": lambda: knapsack(first[0], given.sizes, int(first[1]), resolution),
    }
    return {name: lambda count, run=run: [run() for _ in range(count)] for name, run in runs.items()}


def tabulate(args: Args, rows: list[Decision]) -> Table:
    """One row a size."""
    caption = f"ms. all: {args.workers} workers in one program; all/N: of each; numpy: of one."
    table = Table(title="Kimad+ decides (medians)", caption=caption)
    for heading in ("layers", "choices", "units", "one", "all", "all/N", "numpy", "numpy/one"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        size = (f"{number:,}" for number in (row.layers, row.choices, row.resolution))
        times = (f"{seconds * 1e3:.3g}" for seconds in (row.alone, row.together, row.together / args.workers, row.numpy))
        table.add_row(*size, *times, f"{row.numpy / row.alone:.0f}")
    return table


def tabulate_training(args: Args, rows: list[Training]) -> Table:
    """One row a model."""
    caption = "d: elements. Kimad+ (+): allocation by dynamic program;\nwhole: the model as one vector. /EF21: over EF21's rounds/s."
    table = Table(title=f"rounds/s of {args.workers} workers (medians)", caption=caption)
    table.add_column("model", no_wrap=True)
    for heading in ("layers", "d", "EF21", "Kimad", "Kimad+", "whole", "K/EF21", "+/EF21"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        speeds = (f"{speed:,.0f}" for speed in (row.ef21, row.kimad, row.kimad_plus, row.whole_model))
        ratios = (f"{speed / row.ef21:.2f}" for speed in (row.kimad, row.kimad_plus))
        table.add_row(row.model, f"{row.layers}", f"{row.elements:,}", *speeds, *ratios)
    return table
