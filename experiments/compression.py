"""Every compressor with and without error memory: loss against rounds and bits, and the bandwidth
at which it pays off.

    python -m experiments.compression

Without memory the method is compressed SGD (3.4), with memory error-compensated SGD (3.10 to 3.14),
both through servers, with the same compressor in both directions, applied to the model as one
vector. A compressor that declares no contraction for a server's shard is scaled down to one before
it is used with a memory, which would otherwise grow. Each run has the step size with the smallest
loss over the second half of the run.

The frontier then compares pairs of many more compressors and memories at equal bits, on logistic
regression with the most heterogeneous data: heat map, best memory of each compressor, and the pairs
that diverge.
"""

from __future__ import annotations

# The script was run by its path. Then JAX would find this file as Python 3.14's module
# `compression`.
if __name__ == "compression":
    raise ImportError(
        "experiments/compression.py is not a module of Python; run commands as python -m "
        "experiments.<name>"
    )

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import optax
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.table import Table

import algorithms
import dsgd
from dsgd import compressors, plots, problems, records
from dsgd.base import Compressor
from dsgd.compressors.members import constant_at
from experiments.shared import commands, figures, statistics, tables, tuning
from experiments.survey import break_even, compression_frontier

QUANTIZED = compressors.random_quantization(4)
COMPRESSORS: dict[str, Compressor] = {
    compressor.name: compressor
    for compressor in (
        compressors.identity,
        compressors.random_quantization(2),
        QUANTIZED,
        compressors.qsgd(7),
        compressors.ternary,
        compressors.natural,
        compressors.random_sparsification(0.1),
        compressors.random_k(0.1),
        compressors.top_k(0.1),
        compressors.top_k(0.1, compressors.contraction(QUANTIZED))._replace(
            name="top_k(0.1) in 4 bits"
        ),
        compressors.sign,
        compressors.clipping(1),
        compressors.low_rank(1),
    )
}
WITHOUT, WITH = MEMORIES = ("without memory", "with memory")
UNBIASED, BIASED = plots.COLOURS[:2]


@dataclass(frozen=True)
class Args(commands.Data, commands.Common):
    """Compares compressors, with and without error memory."""

    models: tuple[Literal["logistic", "mlp"], ...] = ("logistic", "mlp")
    """What is trained."""
    partitions: tuple[str, ...] = ("iid", "by-label")
    """Which worker gets which samples: iid, blocks, by-label or dirichlet."""
    compressors: tuple[str, ...] = tuple(COMPRESSORS)
    """Which compressors, by name."""
    workers: commands.Several = 8
    """Number of workers, each also the server of one part."""
    learning_rates: tuple[commands.Positive, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    """Candidate step sizes."""
    steps: commands.Count = 400
    """Number of rounds."""
    seeds: commands.Count = 3
    """Independent runs of each."""
    sizes: tuple[commands.Count, ...] = (2**16, 2**20)
    """Numbers of elements of larger models for which the break-even bandwidth is computed."""
    frontier: tuple[str, ...] = tuple(compression_frontier.COMPRESSORS)
    """Which compressors of the frontier, by name; those of `compressors` are not included."""
    megabits: commands.Positive = 1.0
    """Megabits that each worker sends in each run of the frontier."""
    most_rounds: commands.Count = 2_000
    """Largest number of rounds in a run of the frontier."""
    out: Path = Path("results/compression")
    """Folder for config.json, history.csv, break_even.csv, figure.png, frontier.png and a figure
    for each problem.
    """


class Case(NamedTuple):
    """A compressor with or without memory on one problem."""

    model: str
    partition: str
    compressor: str
    memory: str

    def __str__(self) -> str:
        return ", ".join(self)


Outcomes = dict[Case, tuning.Tuned]
Pays = dict[tuple[str, int], float]  # bits per second, by compressor and elements of the model


def main(args: Args) -> None:
    commands.require_known("--compressors", args.compressors, COMPRESSORS)
    commands.require_known("--frontier", args.frontier, compression_frontier.COMPRESSORS)
    tasks = {
        (model, partition): make_problem(args, model, partition)
        for model in args.models
        for partition in args.partitions
    }
    hardest = make_problem(args, "logistic", "by-label")
    size = tuning.elements(hardest)
    pairs = [
        pair
        for pair in itertools.starmap(
            compression_frontier.Pair,
            itertools.product(args.frontier, compression_frontier.MEMORIES),
        )
        if compression_frontier.accepted(pair, size)
    ]
    commands.begin(args)
    cases = [
        Case(*task, name, memory)
        for task in tasks
        for name in args.compressors
        for memory in MEMORIES
    ]

    def train(case: Case | compression_frontier.Pair) -> tuning.Tuned | None:
        if isinstance(case, Case):
            return tune(args, tasks[case.model, case.partition], case)
        return compression_frontier.run(args, hardest, case)

    found = tuning.compare(args, "training", [*cases, *pairs], train)
    outcomes = {case: outcome for case, outcome in found.items() if isinstance(case, Case)}
    by_memory = compression_frontier.rows(found, args.frontier, size)
    models = {model: tuning.elements(problem) for (model, _), problem in tasks.items()}
    sizes = {f"{model}\n{d:,}": d for model, d in models.items()}
    sizes |= {f"d =\n{d:,}": d for d in args.sizes}
    pays = {
        (name, d): break_even.bandwidth(COMPRESSORS[name], args.workers, d)
        for name in tables.bar(args.compressors, "timing", args.progress)
        for d in sizes.values()
    }
    rows = [(*case, bandwidth) for case, bandwidth in pays.items()]
    records.write_rows(
        args.out / "break_even.csv", ("compressor", "dimension", "bits_per_second"), rows
    )
    parts = {model: -(-d // args.workers) for model, d in models.items()}
    sheets = {"figure": draw_losses(args, outcomes, list(tasks), parts)}
    sheets |= {"-".join(task): draw_curves(args, outcomes, task) for task in tasks}
    shown = {
        f"losses-{'-'.join(task)}": tabulate(args, outcomes, task, problem, pays)
        for task, problem in tasks.items()
    }
    words = f"{hardest.name}, {args.workers} workers; {statistics.runs(args.seeds)}"
    sheets["frontier"] = compression_frontier.draw(args, by_memory, words)
    shown["frontier"] = compression_frontier.tabulate(args, by_memory, size)
    commands.finish(args, sheets, {**shown, "pays": break_even.tabulate(sizes, pays, args.workers)})


def make_problem(args: Args, model: str, partition: str) -> dsgd.Problem:
    """Returns the model on the partitioned data."""
    make = problems.logistic_regression if model == "logistic" else problems.neural_network
    shared = {"batch_size": args.batch_size, "seed": args.seed, "data_dir": args.data_dir}
    return make(data=args.data, workers=args.workers, partition=partition, **shared)


def tune(args: Args, problem: dsgd.Problem, case: Case) -> tuning.Tuned | None:
    """Runs the case at its best step size; None if it diverged at every one."""
    part = -(-tuning.elements(problem) // args.workers)

    def build(learning_rate):
        return method(COMPRESSORS[case.compressor], case.memory, optax.sgd(learning_rate), part)

    return tuning.tune(args, build, problem)


def method(
    compressor: Compressor, memory: str, optimizer: optax.GradientTransformation, part: int
) -> dsgd.Algorithm:
    """Returns CSGD or EC-SGD, for servers with this number of elements."""
    if memory == WITHOUT:
        return algorithms.compressed_sgd(
            optimizer, compressors.whole_model(compressor), allow_biased=True
        )
    fit = compressors.contraction(compressor) if scaled(compressor, part) else compressor
    return algorithms.error_compensated_sgd(
        optimizer, compressors.whole_model(fit), compressors.whole_model(fit)
    )


def scaled(compressor: Compressor, part: int) -> bool:
    """Returns whether the compressor must be scaled down to be a contraction of this number of
    elements.
    """
    return constant_at(compressor.delta, part) is None


def final_loss(outcome: tuning.Tuned) -> tuple[float, float]:
    """Returns the loss over the last tenth of the run: mean over seeds, and its standard error."""
    middle, error = dsgd.history.mean_and_error(dsgd.history.tail_mean(outcome.history["loss"]))
    return float(middle), float(error)


def tabulate(
    args: Args, outcomes: Outcomes, task: tuple[str, str], problem: dsgd.Problem, pays: Pays
) -> Table:
    """Tabulates one row per compressor."""
    d = tuning.elements(problem)
    part = -(-d // args.workers)
    table = tables.table(
        f"{problem.name}, d = {d:,}, {args.workers} workers:\nloss over the last tenth of "
        f"{args.steps} rounds, {statistics.runs(args.seeds)}",
        (
            "compressor",
            "bits/\nelement",
            "ratio",
            "without\nmemory",
            "with\nmemory",
            "pays <\nMbit/s",
        ),
        "ratio: bits of an uncompressed round / bits. pays <: the bandwidth below which it is\n"
        "faster, without memory. †: scaled by 1/(1 + omega). *: step size at an edge of the "
        "grid.\n-: diverged.",
    )
    for name in args.compressors:
        bits = compressors.mean_bits(COMPRESSORS[name], part) / part
        marks = {WITHOUT: "", WITH: "†" * scaled(COMPRESSORS[name], part)}
        losses = (
            cell(args, outcomes.get(Case(*task, name, memory)), marks[memory])
            for memory in MEMORIES
        )
        table.add_row(
            name, f"{bits:.3g}", f"{32 / bits:.1f}", *losses, break_even.megabits(pays[name, d])
        )
    return table


def cell(args: Args, outcome: tuning.Tuned | None, mark: str) -> str:
    """Formats the final loss with its marks."""
    if outcome is None:
        return "-"
    edge = statistics.edge(outcome.learning_rate, args.learning_rates)
    return f"{final_loss(outcome)[0]:.3f}{mark}{edge}"


def draw_losses(
    args: Args, outcomes: Outcomes, tasks: list[tuple[str, str]], parts: dict[str, int]
) -> Figure:
    """Draws what the survey claims: unbiased compressors work without memory, biased ones need it.

    Args:
        args, outcomes: arguments and results.
        tasks: model and partition of each problem.
        parts: number of elements of a server's shard, by model.
    """
    losses = [final_loss(outcome)[0] for outcome in outcomes.values()]
    sheet, panels = plots.figure(
        len(tasks), width=max(3.2, 9.6 / len(tasks)), height=2.2 + 0.3 * len(args.compressors)
    )
    for axes, task in zip(panels, tasks, strict=True):
        limits = (min(losses) / 1.5, max(losses) * 1.5)
        figures.describe(axes, "loss f(x), last tenth", title=", ".join(task), log="x", xlim=limits)
        for row, name in enumerate(args.compressors):
            compressor = COMPRESSORS[name]
            colour = UNBIASED if compressor.unbiased else BIASED
            for memory, place, fill in ((WITHOUT, row - 0.15, "white"), (WITH, row + 0.15, colour)):
                if outcome := outcomes.get(Case(*task, name, memory)):
                    middle, error = final_loss(outcome)
                    marker = "D" if memory == WITH and scaled(compressor, parts[task[0]]) else "o"
                    look = {"color": colour, "markerfacecolor": fill, "markersize": 6, "capsize": 2}
                    axes.errorbar(middle, place, xerr=error, fmt=marker, **look)
                else:
                    at = axes.get_yaxis_transform()
                    style = {"ha": "right", "va": "center", "fontsize": 8}
                    axes.text(0.98, place, "diverged", transform=at, color=colour, **style)
    panels[0].set_yticks(range(len(args.compressors)), args.compressors)
    panels[0].invert_yaxis()
    kinds = (
        (UNBIASED, "white", "o", "unbiased, without memory"),
        (UNBIASED, UNBIASED, "o", "with memory"),
        (UNBIASED, UNBIASED, "D", "with memory, scaled by 1/(1 + ω)"),
        (BIASED, "white", "o", "biased, without memory"),
        (BIASED, BIASED, "o", "with memory"),
    )
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=colour, markerfacecolor=fill, label=label)
        for colour, fill, marker, label in kinds
    ]
    columns = len(kinds) if len(tasks) > 3 else 3
    sheet.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    figures.title(
        sheet,
        "The survey: unbiased compressors work without memory, biased ones need it (sections 3.2, "
        f"3.3)\n{args.data}, {args.workers} workers, {args.steps} rounds; "
        f"{statistics.errors('bars', args.seeds)}",
    )
    return sheet


def draw_curves(args: Args, outcomes: Outcomes, task: tuple[str, str]) -> Figure:
    """Draws loss against rounds and against bits, without memory above, with memory below."""
    sheet, panels = plots.figure(2, 2)
    xs = (("rounds", "linear"), ("megabits sent and received per worker", "log"))
    for axes, (memory, (xlabel, scale)) in zip(
        panels, itertools.product(MEMORIES, xs), strict=True
    ):
        lines = {
            name: curve(outcomes.get(Case(*task, name, memory)), xlabel)
            for name in args.compressors
        }
        figures.losses(axes, lines, title=memory, xlabel=xlabel, xscale=scale)
    for axes in panels[::2]:
        axes.set_ylabel("loss f(x)")
    figures.legend(sheet, 4, panels[0])
    words = f"{', '.join(task)}: {args.workers} workers"
    figures.title(sheet, f"{words}; {statistics.errors('bands', args.seeds)}")
    return sheet


def curve(outcome: tuning.Tuned | None, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns rounds or megabits, and losses. For a run that diverged they are NaN, so that no line
    is visible, but its colour is not given to another run.
    """
    if outcome is None:
        return np.array([1.0]), np.array([[np.nan]])
    return statistics.COSTS[what](outcome.history), outcome.history["loss"]


if __name__ == "__main__":
    commands.run(main, Args)
