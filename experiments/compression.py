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
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.table import Table

import algorithms
import dsgd
from dsgd import compressors, plots, problems, records
from dsgd.base import Compressor
from dsgd.compressors.members import constant_at
from experiments.shared import commands, figures, statistics, studies, tables, tuning
from experiments.shared.studies import Case, Tuned
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
class Args(commands.Data, commands.Tuning):
    """Compares compressors, with and without error memory."""

    models: tuple[Literal["logistic", "mlp"], ...] = ("logistic", "mlp")
    """What is trained."""
    partitions: tuple[str, ...] = ("iid", "by-label")
    """Which worker gets which samples: iid, blocks, by-label or dirichlet."""
    compressors: tuple[str, ...] = tuple(COMPRESSORS)
    """Which compressors, by name."""
    workers: commands.Several = 8
    """Number of workers, each also the server of one part."""
    steps: commands.Count = 400
    """Number of rounds."""
    sizes: commands.Counts = (2**16, 2**20)
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


Key = tuple[str, ...]  # model, partition, compressor, memory
Outcomes = dict[Key, Tuned]
Pays = dict[tuple[str, int], float]  # bits per second, by compressor and elements of the model


def main(args: Args) -> None:
    commands.require_known("--compressors", args.compressors, COMPRESSORS)
    commands.require_known("--frontier", args.frontier, compression_frontier.COMPRESSORS)
    tasks = {
        task: make_problem(args, *task) for task in itertools.product(args.models, args.partitions)
    }
    models = {model: tuning.elements(problem) for (model, _), problem in tasks.items()}
    parts = {model: -(-d // args.workers) for model, d in models.items()}
    cases: dict[Key, Case] = {
        (*task, name, memory): Case(
            make_builder(COMPRESSORS[name], memory, parts[task[0]]), problem
        )
        for task, problem in tasks.items()
        for name in args.compressors
        for memory in MEMORIES
    }
    hardest = make_problem(args, "logistic", "by-label")
    frontier = compression_frontier.make_cases(args, hardest)
    found = studies.run(args, "training", {**cases, **frontier})
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
    sheets = {"figure": draw_losses(args, found, list(tasks), parts)}
    shown: dict[str, Table] = {}
    for task, problem in tasks.items():
        sheets["-".join(task)] = draw_curves(args, found, task)
        shown[f"losses-{'-'.join(task)}"] = tabulate(args, found, task, problem, pays)
    by_memory = compression_frontier.rows(found, frontier)
    words = f"{hardest.name}, {args.workers} workers; {statistics.runs(args.seeds)}"
    sheets["frontier"] = compression_frontier.draw(args, by_memory, words)
    shown["frontier"] = compression_frontier.tabulate(args, by_memory, tuning.elements(hardest))
    shown["pays"] = break_even.tabulate(sizes, pays, args.workers)
    commands.finish(args, sheets, shown)


def make_problem(args: Args, model: str, partition: str) -> dsgd.Problem:
    """Returns the model on the partitioned data."""
    make = problems.logistic_regression if model == "logistic" else problems.neural_network
    shared = {"batch_size": args.batch_size, "seed": args.seed, "data_dir": args.data_dir}
    return make(data=args.data, workers=args.workers, partition=partition, **shared)


def make_builder(compressor: Compressor, memory: str, part: int) -> studies.Build:
    """Returns the function learning_rate -> compressed_sgd or error_compensated_sgd, for servers
    with this number of elements.
    """
    if memory == WITHOUT:
        whole = compressors.whole_model(compressor)
        return studies.with_sgd(algorithms.compressed_sgd, whole, allow_biased=True)
    if must_scale(compressor, part):
        compressor = compressors.contraction(compressor)
    whole = compressors.whole_model(compressor)
    return studies.with_sgd(algorithms.error_compensated_sgd, whole, whole)


def must_scale(compressor: Compressor, part: int) -> bool:
    """Returns whether the compressor must be scaled down to be a contraction of this number of
    elements.
    """
    return constant_at(compressor.delta, part) is None


def tabulate(
    args: Args, found: Outcomes, task: tuple[str, str], problem: dsgd.Problem, pays: Pays
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
        losses = []
        for memory in MEMORIES:
            mark = "†" * (memory == WITH and must_scale(COMPRESSORS[name], part))
            one = found.get((*task, name, memory))
            losses.append(f"{one.loss:.3f}{mark}{one.edge()}" if one else "-")
        pay = break_even.megabits(pays[name, d])
        table.add_row(name, f"{bits:.3g}", f"{32 / bits:.1f}", *losses, pay)
    return table


def draw_losses(
    args: Args, outcomes: Outcomes, tasks: list[tuple[str, str]], parts: dict[str, int]
) -> Figure:
    """Draws what the survey claims: unbiased compressors work without memory, biased ones need it.

    Args:
        args, outcomes: arguments and results.
        tasks: model and partition of each problem.
        parts: number of elements of a server's shard, by model.
    """
    losses = [one.loss for key, one in outcomes.items() if key[:2] in tasks]
    sheet, panels = plots.figure(
        len(tasks),
        width=max(2.2, figures.WIDTH / len(tasks)),
        height=2.2 + 0.3 * len(args.compressors),
    )
    for axes, task in zip(panels, tasks, strict=True):
        limits = (min(losses) / 1.5, max(losses) * 1.5)
        figures.describe(axes, "loss f(x), last tenth", title=", ".join(task), log="x", xlim=limits)
        for row, name in enumerate(args.compressors):
            compressor = COMPRESSORS[name]
            colour = UNBIASED if compressor.unbiased else BIASED
            for memory, place, fill in ((WITHOUT, row - 0.15, "white"), (WITH, row + 0.15, colour)):
                if outcome := outcomes.get((*task, name, memory)):
                    middle, error = dsgd.history.mean_and_error(
                        dsgd.history.tail_mean(outcome.history["loss"])
                    )
                    marker = (
                        "D" if memory == WITH and must_scale(compressor, parts[task[0]]) else "o"
                    )
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
    sheet.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figures.title(
        sheet,
        "The survey: unbiased compressors work without memory, biased ones need it (sections 3.2, "
        f"3.3)\n{args.data}, {args.workers} workers, {args.steps} rounds; "
        f"{statistics.errors('bars', args.seeds)}",
    )
    return sheet


def draw_curves(args: Args, found: Outcomes, task: tuple[str, str]) -> Figure:
    """Draws loss against rounds and against bits, without memory above, with memory below."""
    panels = []
    for memory, x in itertools.product(MEMORIES, list(statistics.COSTS)[:2]):
        shown = {name: found.get((*task, name, memory)) for name in args.compressors}
        panels.append(
            figures.curves(
                studies.lines(shown, x),
                log="y" if x == "rounds" else "xy",
                title=memory,
                xlabel=x,
                ylabel="loss f(x)",
            )
        )
    bands = statistics.errors("bands", args.seeds)
    return figures.sheet(
        panels,
        2,
        f"{', '.join(task)}: {args.workers} workers; {bands}",
        height=3.6,
        sharey=True,
    )


if __name__ == "__main__":
    commands.run(main, Args)
