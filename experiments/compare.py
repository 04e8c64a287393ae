"""Methods of all families on the same model, data and workers: rounds, bits and seconds to a target
loss, each method at its tuned step size.

    python -m experiments.compare --partition by-label --latency 1e-3 --bandwidth 1e8

Each method's step size is the one of the grid with the smallest loss over the second half of the
run, averaged over the seeds. The duration of a round is the time that the workers compute their
samples, plus the time of the messages on the survey's switch ("blocking" costs); a round of an
asynchronous method is one gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import algorithms
import dsgd
from algorithms import registry
from dsgd import plots
from experiments.shared import commands, figures, statistics, studies, tables, tuning

# some methods of each folder of `algorithms`
METHODS = (
    "minibatch_sgd",
    "local_sgd",
    "asynchronous_sgd",
    "compressed_sgd",
    "error_compensated_sgd",
    "decentralized_sgd",
    "exact_diffusion",
    "choco_sgd",
)
FAMILIES = {  # folders of `algorithms`, and the line style of each
    "synchronous": "-",
    "local_updates": (0, (8, 2)),
    "asynchronous": ":",
    "compressed": "--",
    "decentralized": "-.",
}


@dataclass(frozen=True)
class Args(commands.Model, commands.Workers, commands.Tuning):
    """Compares distributed methods on one problem."""

    methods: tuple[str, ...] = METHODS
    """Methods to compare, as `python -m algorithms` lists them."""
    learning_rates: commands.Positives = (0.1, 0.3, 1.0, 3.0, 10.0)
    """Candidate step sizes."""
    steps: commands.Count = 600
    """Number of rounds."""
    target: commands.Positive | None = None
    """Target loss; by default the highest final loss of a method that fewer than half of the
    methods reach immediately.
    """
    out: Path = Path("results/compare")
    """Folder for config.json, history.csv and figure.png."""


def main(args: Args) -> None:
    args = replace(args, methods=tuple(map(registry.full_name, args.methods)))
    problem, cluster = tuning.make_problem(args), tuning.make_cluster(args)
    text = args.model == "language-model"
    cases = {
        name: studies.Case(
            partial(make, name, args.workers), problem, cluster, records=20 if text else 200
        )
        for name in args.methods
    }
    found = studies.run(args, "methods", cases)
    target = args.target if args.target is not None else default_target(found)
    quality = "bits per byte" if text else "test accuracy"
    table = tables.table(
        f"{problem.name}: cost to reach loss {target:.2g}, {args.workers} workers,\n"
        f"{tuning.describe_network(args)}, {statistics.runs(args.seeds)}",
        ("method", "step size", "rounds", "Mbit", "seconds", quality),
        "*: step size at an edge of the grid. Mbit: sent and received per worker.\nFor sgd and "
        "asynchronous_sgd one round is one gradient. -: not reached."
        + f"\n{quality.capitalize()}: mean ± standard error over seeds."
        * (args.seeds > 1),
    )
    studies.fill(
        table,
        {name: found.get(name) for name in args.methods},
        lambda one: [
            one.cell(),
            *statistics.cost_to(one.history, target),
            held_out_quality(one.history),
        ],
    )
    sheet = draw({name: one.history for name, one in found.items()}, target)
    figures.title(
        sheet,
        f"{problem.name}, {args.workers} workers, {statistics.runs(args.seeds)}\n"
        f"{tuning.describe_network(args)}; grey line: target {target:.2g}",
    )
    commands.finish(args, {"figure": sheet}, {"costs": table})
    tables.console().print(
        "\n".join(f"{name}: {cases[name].build(1.0).name}" for name in found), highlight=False
    )


def make(name: str, workers: int, learning_rate: float) -> dsgd.Algorithm:
    """Returns a method with its default arguments."""
    return algorithms.make(name, optax.sgd(learning_rate), workers)


def default_target(found: Mapping[str, studies.Tuned]) -> float:
    """Returns the default target of the loss. Candidates are the mean losses over the last tenth of
    each run. The target is the highest candidate that fewer than half of the methods reach by their
    first record, or the lowest candidate if all are reached earlier.

    Rounded up to two digits.
    """
    at_first = [one.history["loss"].mean(axis=0)[:2].min() for one in found.values()]
    ends = sorted((statistics.round_up(one.loss) for one in found.values()), reverse=True)
    return next(
        (end for end in ends if 2 * sum(loss <= end for loss in at_first) < len(ends)), ends[-1]
    )


def held_out_quality(history: studies.History) -> str:
    """Returns the test accuracy, or the bits per byte, of the last record."""
    if "test_bits_per_byte" in history:
        return statistics.format_with_error(history["test_bits_per_byte"][:, -1], digits=2)
    return f"{statistics.format_with_error(100 * history['test_accuracy'][:, -1])} %"


def draw(histories: Mapping[str, studies.History], target: float) -> Figure:
    """Draws loss against rounds, bits and seconds: each method in its own colour, in the line style
    of its folder.
    """
    sheet, panels = plots.figure(3, width=figures.WIDTH / 3, height=4.4)
    families = {name: registry.find(name).family for name in histories}
    for axes, (label, cost) in zip(panels, statistics.COSTS.items(), strict=True):
        plots.log_scale(axes)
        axes.set_xlabel(label.replace(" sent and received", ""))
        axes.axhline(target, color="0.4", linewidth=0.8)
        for i, (name, history) in enumerate(histories.items()):
            x, best = cost(history)[1:], np.minimum.accumulate(history["loss"].mean(axis=0))[1:]
            if x.any():  # a quantity that is always 0 is omitted from a logarithmic axis
                axes.plot(
                    x,
                    best,
                    linewidth=1.8,
                    label=name,
                    color=plots.COLOURS[i % len(plots.COLOURS)],
                    linestyle=FAMILIES[families[name]],
                    marker=plots.MARKERS[i // len(plots.COLOURS)],
                    markevery=0.2,
                )
    silent = [name for name, history in histories.items() if not history["bits"].any()]
    if silent:
        panels[1].set_title(f"{', '.join(silent)} sends nothing", fontsize=9, color="0.4")
    panels[0].set_ylabel("loss f(x), best so far")
    name_families(sheet, panels[0], families)
    return sheet


def name_families(sheet: Figure, panel: Axes, families: Mapping[str, str]) -> None:
    """Adds a legend below the panels with a column for each family, headed by its name.

    Args:
        sheet: the figure.
        panel: a panel with a line for each method.
        families: family of each method.
    """
    handles: list[Line2D] = []
    lines = {str(line.get_label()): line for line in panel.lines}
    groups = {
        family: [lines[name] for name in families if families[name] == family]
        for family in FAMILIES
        if family in families.values()
    }
    longest = max(map(len, groups.values()))
    for family, group in groups.items():
        heading, *gaps = (
            Line2D([], [], linestyle="", label=label)
            for label in (family.replace("_", " "), *[" "] * (longest - len(group)))
        )
        handles += [heading, *group, *gaps]
    legend = sheet.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(groups),
        handlelength=2.5,
        columnspacing=1.2,
        frameon=False,
    )
    for text in legend.get_texts()[:: longest + 1]:
        text.set_fontweight("bold")


if __name__ == "__main__":
    commands.run(main, Args)
