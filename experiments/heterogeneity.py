"""Decentralized SGD and its corrections with increasingly heterogeneous data: Dirichlet partitions,
alpha from 0.05 to 100.

    python -m experiments.heterogeneity --topology ring

Two settings: practical training, with random batches and each method's best step size; and exact
gradients with one step size, where the remaining f' is the effect of heterogeneity alone: zero for
the corrected methods, a constant for decentralized SGD. All families of methods on graphs are
compared in the second setting, at the smallest alpha; variance reduction is with random batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
import topologies
from dsgd import plots, problems, records
from experiments.shared import (
    commands,
    figures,
    graph_methods,
    resuming,
    statistics,
    tables,
    tuning,
)

Build = Callable[[Any, dsgd.Topology], dsgd.Algorithm]

METHODS: dict[str, Build] = {
    **graph_methods.builders(
        *("decentralized_sgd", "extra", "gradient_tracking", "exact_diffusion", "minibatch_sgd")
    ),
    "d2": lambda learning_rate, W: algorithms.d2(optax.sgd(learning_rate), for_d2(W)),
}
GRAPHS: dict[str, Callable[[int], dsgd.Topology]] = {
    "ring": topologies.ring,
    "chain": topologies.chain,
    "star": topologies.star,
    "random-regular": lambda N: topologies.random_regular(N, 4),
}
REFERENCE = "decentralized_sgd"  # in the panels of all families, in grey
SHOWN = {  # family -> methods in its panel
    "corrections": ("d2", "extra", "exact_diffusion", "nids"),
    "tracking": ("gradient_tracking", "atc_tracking", "aug_dgm"),
    "local steps": ("local_sgd", "k_gt", "local_exact_diffusion", "prox_skip"),
    "momentum": (
        "decentralized_sgd, momentum",
        "quasi_global_momentum",
        "decentlam",
        "momentum_tracking",
    ),
    "variance reduction": ("aug_dgm", "gt_svrg", "gt_sarah", "gt_saga"),
    "compressed": ("choco_sgd", "lead", "beer"),
    "edges, duals": ("dlm", "lt_admm", "relay_sgd"),
}
AGAINST_BITS = ("local steps", "compressed")
SAMPLED = ("variance reduction",)  # families with random batches


@dataclass(frozen=True)
class Args(commands.Data, commands.Common):
    """Compares decentralized methods on heterogeneous data."""

    topology: Literal["ring", "chain", "star", "random-regular"] = "ring"
    """The graph, with Metropolis weights; if an eigenvalue is too small for D2, D2 uses 0.9 W + 0.1
    I.
    """
    workers: commands.Count = 16
    """Number of workers."""
    alphas: tuple[commands.Positive, ...] = (0.05, 0.1, 0.3, 1.0, 10.0, 100.0)
    """Concentrations of the Dirichlet partition: small is heterogeneous."""
    batch_size: commands.Count = 16
    """Number of samples that each worker draws in a round; the partition is drawn again until every
    worker has enough samples.
    """
    l2: commands.NotNegative = 1e-4
    """Weight of the squared norm with random batches."""
    learning_rates: tuple[commands.Positive, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    """Candidate step sizes, on random batches."""
    exact_l2: commands.NotNegative = 1e-2
    """Weight of the squared norm with exact gradients; large enough for convergence by the end of
    the run.
    """
    exact_learning_rate: commands.Positive = 0.1
    """Step size with exact gradients."""
    steps: commands.Count = 1_000
    """Number of rounds with random batches."""
    exact_steps: commands.Count = 10_000
    """Number of rounds with exact gradients."""
    seeds: commands.Count = 3
    """Independent runs on random batches."""
    families: tuple[str, ...] = tuple(graph_methods.FAMILIES)
    """Families of methods on graphs. The methods are compared at the smallest alpha, and their
    properties are tabulated.
    """
    out: Path = Path("results/heterogeneity")
    """Folder for config.json, history.csv, exact.csv, panels.csv, two figures and tables."""


class Case(NamedTuple):
    """A method on data with this heterogeneity."""

    method: str
    alpha: float

    def __str__(self) -> str:
        return f"{self.method}, {self.alpha:g}"


class Panel(NamedTuple):
    """A method in the panel of a family."""

    family: str
    method: str

    def __str__(self) -> str:
        return f"{self.family}: {self.method}"


Histories = dict[Any, dict[str, np.ndarray]]


def main(args: Args) -> None:
    commands.require_known("--families", args.families, graph_methods.FAMILIES)
    graph = GRAPHS[args.topology](args.workers)
    cases = [Case(name, alpha) for alpha in sorted(args.alphas) for name in METHODS]
    by_alpha = {alpha: make_problem(args, alpha, args.l2) for alpha in args.alphas}
    convex = {alpha: make_problem(args, alpha, args.exact_l2) for alpha in args.alphas}
    commands.begin(args)
    path = args.out / "exact.csv"
    exact = commands.collect(
        args,
        "exact gradients",
        cases,
        lambda case: without_noise(
            args,
            convex[case.alpha],
            METHODS[case.method](args.exact_learning_rate, graph),
        ),
        write_histories,
        path,
    )
    tuned = tuning.compare(
        args,
        "random batches",
        cases,
        lambda case: tune(args, by_alpha[case.alpha], METHODS[case.method], graph),
    )
    nothing = np.full(args.seeds, np.nan)
    losses = {
        case: dsgd.tail_mean(tuned[case].history["loss"]) if case in tuned else nothing
        for case in cases
    }
    slopes = {case: history["grad_sqnorm"][:, -1] for case, history in exact.items()}
    what = f"{args.data} on {graph.name}"
    shown = {
        "losses": tabulate(
            args,
            losses,
            f"{what}:\nloss over the last tenth of {args.steps:,} rounds",
            f"random batches, best step size, l2 = {args.l2:g}, {statistics.runs(args.seeds)}",
        ),
        "slopes": tabulate(
            args,
            slopes,
            f"{what}:\n|f'(mean x)|^2 after {args.exact_steps:,} rounds",
            f"exact gradients, step size {args.exact_learning_rate:g}, l2 = {args.exact_l2:g}",
        ),
    }
    sheets = {"figure": draw(args, graph, losses, slopes, exact)}
    if panels := compare_families(args, convex[min(args.alphas)], graph, exact):
        sheets["families"] = draw_families(args, graph, panels)
        shown["families"] = tabulate_families(args, what, panels)
    if args.families:
        shown["methods"] = graph_methods.tabulate(args.families, args.progress)
    commands.finish(args, sheets, shown)


def write_histories(path: Path, found: Histories) -> None:
    """Writes the histories by the names of the cases."""
    records.write_histories(path, {str(case): history for case, history in found.items()})


def compare_families(
    args: Args, problem: dsgd.Problem, graph: dsgd.Topology, exact: Histories
) -> Histories:
    """Returns the histories of the methods in the panels of the families, by `Panel`; methods that
    are the same run as in `exact` are not run again.
    """
    cases = [
        Panel(family, name)
        for family in args.families
        if family in SHOWN
        for name in (REFERENCE, *SHOWN[family])
    ]
    alpha = min(args.alphas)
    same: Histories = {case.method: of for case, of in exact.items() if case.alpha == alpha}

    def run(case: Panel) -> dict[str, np.ndarray]:
        method = build_shown(args, case, graph, problem)
        if case.family in SAMPLED:
            return run_once(args, problem, method)
        if case.method not in same:
            same[case.method] = without_noise(args, problem, method)
        return same[case.method]

    if not cases:
        return {}
    return commands.collect(args, "families", cases, run, write_histories, args.out / "panels.csv")


def build_shown(
    args: Args, case: Panel, graph: dsgd.Topology, problem: dsgd.Problem
) -> dsgd.Algorithm:
    """Returns the method of a panel. Momentum multiplies the step by 1 / (1 - beta), so that the
    step size of methods with momentum is that of the others times 1 - beta.
    """
    rate = args.exact_learning_rate
    if case.family == "momentum" and case.method != REFERENCE:
        rate *= 1 - graph_methods.MOMENTUM
    if case.method == "gt_saga":
        assert problem.max_local_samples is not None
        return algorithms.gt_saga(optax.sgd(rate), graph, problem.max_local_samples)
    fitted = {"d2": for_d2, "local_exact_diffusion": for_d2, "relay_sgd": topologies.spanning_tree}
    W = fitted.get(case.method, lambda graph: graph)(graph)
    return graph_methods.METHODS[case.method](rate, W)


def for_d2(W: dsgd.Topology) -> dsgd.Topology:
    """Returns W, or 0.9 W + 0.1 I if W has an eigenvalue near or below -1/3, for which D2 has no
    guarantee.
    """
    if W.smallest_eigenvalue > -0.3:
        return W
    return topologies.from_matrix(0.9 * W.W + 0.1 * np.eye(W.n), f"0.9 {W.name}")


def make_problem(args: Args, alpha: float, l2: float) -> dsgd.Problem:
    """Returns the problem on the first partition that gives every worker enough samples for a
    batch.
    """
    labels = problems.load(args.data, args.data_dir).train_targets
    for seed in range(args.seed, args.seed + 10_000):
        try:
            parts = problems.split(labels, args.workers, "dirichlet", alpha=alpha, seed=seed)
        except ValueError:  # a worker has no samples
            continue
        if min(map(len, parts)) >= args.batch_size:
            shared = {"batch_size": args.batch_size, "seed": seed, "data_dir": args.data_dir}
            return problems.logistic_regression(
                args.data, args.workers, "dirichlet", alpha=alpha, l2=l2, **shared
            )
    raise ValueError(
        f"alpha = {alpha}: none of 10,000 partitions gives each of {args.workers} workers "
        f"{args.batch_size} samples; expected fewer workers, smaller batches or a larger alpha"
    )


def tune(
    args: Args, problem: dsgd.Problem, build: Build, graph: dsgd.Topology
) -> tuning.Tuned | None:
    """Returns the history on random batches at the best step size; None if every step size
    diverged.
    """
    return tuning.tune(args, lambda learning_rate: build(learning_rate, graph), problem)


def without_noise(
    args: Args, problem: dsgd.Problem, method: dsgd.Algorithm
) -> dict[str, np.ndarray]:
    """Returns the history with exact gradients, `[1, records]`."""

    def query(state, round):
        return method.query(state, round)._replace(exact=True)

    return run_once(args, problem, method._replace(query=query))


def run_once(args: Args, problem: dsgd.Problem, method: dsgd.Algorithm) -> dict[str, np.ndarray]:
    """Returns the history over the rounds of a run with exact gradients, `[1, records]`."""
    return resuming.run(
        method,
        problem,
        steps=args.exact_steps,
        key=jax.random.key(args.seed),
        seeds=1,
        record_every=max(1, args.exact_steps // 200),
        mesh=tuning.devices_for(args.workers),
    ).history


def tabulate(args: Args, values: dict[Case, np.ndarray], title: str, caption: str) -> Table:
    """Tabulates one row per alpha, with one column per method."""
    table = tables.table(
        title, ("alpha", *(name.replace("-", "\n") for name in METHODS)), caption, left=0
    )
    for alpha in sorted(args.alphas):
        table.add_row(
            f"{alpha:g}", *(f"{values[Case(name, alpha)].mean():.3g}" for name in METHODS)
        )
    return table


def draw(
    args: Args,
    graph: dsgd.Topology,
    losses: dict[Case, np.ndarray],
    slopes: dict[Case, np.ndarray],
    exact: dict[Case, dict[str, np.ndarray]],
) -> Figure:
    """Draws the final loss, and the remaining f' without noise, against alpha, and its course at
    the smallest alpha.
    """
    sheet, panels = plots.figure(3, width=14 / 3, height=4.6, sharey=False)
    alphas = np.array(sorted(args.alphas))
    for axes, values, scale in zip(panels, (losses, slopes), ("linear", "log"), strict=False):
        axes.set(xscale="log", yscale=scale, xlabel="Dirichlet alpha (left: heterogeneous)")
        lines = {
            name: (alphas, np.stack([values[Case(name, alpha)] for alpha in alphas], axis=1))
            for name in METHODS
        }
        plots.draw_lines(axes, lines)
    worst = {name: exact[Case(name, alphas[0])] for name in METHODS}
    lines = {
        name: (history["step"].astype(float), history["grad_sqnorm"])
        for name, history in worst.items()
    }
    plots.draw_lines(panels[2], lines)
    batches = f"random batches, best step size, l2 = {args.l2:g}"
    panels[0].set(ylabel="loss f(mean x)", title=f"{batches}\nlast tenth of {args.steps:,} rounds")
    step = f"exact gradients, step size {args.exact_learning_rate:g}, l2 = {args.exact_l2:g}"
    panels[1].set(ylabel="|f'(mean x)|²", title=f"{step}\nafter {args.exact_steps:,} rounds")
    panels[2].set(
        xlabel="rounds",
        ylabel="|f'(mean x)|²",
        yscale="log",
        title=f"{step}\nalpha = {alphas[0]:g}",
    )
    figures.legend(sheet, len(METHODS), panels[2])
    bands = f"{statistics.errors('bands on the left', args.seeds)}, on one partition"
    figures.title(
        sheet,
        f"{args.data}, {args.workers} workers, {graph.name}; {bands}, which leaves every worker "
        f"{args.batch_size} samples",
    )
    return sheet


def draw_families(args: Args, graph: dsgd.Topology, panels: Histories) -> Figure:
    """Draws what is left of f' against rounds or megabits, with one panel per family."""
    families = list(dict.fromkeys(case.family for case in panels))
    sheet, axes = plots.figure(
        2, -(-len(families) // 2), width=figures.WIDTH / 2, height=2.9, sharey=True
    )
    for panel, family in zip(axes, families, strict=False):
        x = "megabits sent and received per worker" if family in AGAINST_BITS else "rounds"
        lines = {
            name: (statistics.COSTS[x](panels[Panel(family, name)]), panels[Panel(family, name)])
            for name in (REFERENCE, *SHOWN[family])
        }
        cost, history = lines.pop(REFERENCE)
        panel.plot(cost, history["grad_sqnorm"][0], color="0.6", linewidth=1.8, label=REFERENCE)
        plots.draw_lines(
            panel, {name: (cost, of["grad_sqnorm"]) for name, (cost, of) in lines.items()}
        )
        batches = ", random batches" if family in SAMPLED else ""
        panel.set(yscale="log", xlabel=x, title=family + batches)
        panel.legend(frameon=False, fontsize=9)
    for panel in axes[len(families) :]:
        panel.set_axis_off()
    for panel in axes[::2]:
        panel.set_ylabel("|f'(mean x)|²")
    figures.title(
        sheet,
        f"{args.data} on {graph.name}, alpha = {min(args.alphas):g}; {settings(args)}",
    )
    return sheet


def settings(args: Args) -> str:
    """Describes the runs of the families."""
    step = args.exact_learning_rate
    return (
        f"exact gradients, step size {step:g} "
        f"({step * (1 - graph_methods.MOMENTUM):.3g} with momentum), l2 = {args.exact_l2:g}"
    )


def tabulate_families(args: Args, what: str, panels: Histories) -> Table:
    """Tabulates what is left of f' and the bits, one row per method."""
    table = tables.table(
        f"{what}, alpha = {min(args.alphas):g}:\nafter {args.exact_steps:,} rounds",
        ("method", "|f'(mean x)|^2", "Mbit"),
        f"{settings(args)}.\nMbit: sent and received per worker. variance reduction: random "
        f"batches of {args.batch_size} samples.",
    )
    first, *_ = families = list(dict.fromkeys(case.family for case in panels))
    for family in families:
        table.add_section()
        table.add_row(family, "", "")
        reference = (REFERENCE,) if family == first or family in SAMPLED else ()
        for name in (*reference, *SHOWN[family]):
            history = panels[Panel(family, name)]
            megabits = statistics.COSTS["megabits sent and received per worker"](history)
            table.add_row(name, f"{history['grad_sqnorm'][0, -1]:.2g}", f"{megabits[-1]:,.0f}")
    return table


if __name__ == "__main__":
    commands.run(main, Args)
