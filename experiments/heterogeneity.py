"""Decentralized SGD and its corrections with increasingly heterogeneous data: Dirichlet partitions,
alpha from 0.05 to 100.

    python -m experiments.heterogeneity --topology ring

Two settings: practical training, with random batches and each method's best step size; and exact
gradients with one step size, where the remaining f' is the effect of heterogeneity alone: zero for
the corrected methods, a constant for decentralized SGD. All families of methods on graphs are
compared in the second setting, at the smallest alpha; variance reduction is with random batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

import dsgd
import topologies
from algorithms import registry
from dsgd import problems
from experiments.shared import (
    commands,
    figures,
    graph_methods,
    statistics,
    studies,
    tables,
    tuning,
)
from experiments.shared.studies import Case, Tuned

METHODS = (
    "decentralized_sgd",
    "extra",
    "gradient_tracking",
    "exact_diffusion",
    "minibatch_sgd",
    "d2",
)
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
MEGABITS = "megabits sent and received per worker"
SLOPE = "|f'(mean x)|²"


@dataclass(frozen=True)
class Args(commands.Data, commands.Tuning):
    """Compares decentralized methods on heterogeneous data."""

    topology: Literal["ring", "chain", "star", "random-regular"] = "ring"
    """The graph, with Metropolis weights; if an eigenvalue is too small for D2, D2 uses 0.9 W + 0.1
    I.
    """
    workers: commands.Count = 16
    """Number of workers."""
    alphas: commands.Positives = (0.05, 0.1, 0.3, 1.0, 10.0, 100.0)
    """Concentrations of the Dirichlet partition: small is heterogeneous."""
    batch_size: commands.Count = 16
    """Number of samples that each worker draws in a round; the partition is drawn again until every
    worker has enough samples.
    """
    l2: commands.NotNegative = 1e-4
    """Weight of the squared norm with random batches."""
    exact_l2: commands.NotNegative = 1e-2
    """Weight of the squared norm with exact gradients; large enough for convergence by the end of
    the run.
    """
    exact_learning_rate: commands.Positive = 0.1
    """Step size with exact gradients."""
    steps: commands.Count = 1_000
    """Number of rounds with random batches."""
    exact_steps: commands.Count = 10_000
    """Number of rounds of the one run with exact gradients."""
    families: tuple[str, ...] = tuple(graph_methods.FAMILIES)
    """Families of methods on graphs. The methods are compared at the smallest alpha, and their
    properties are tabulated.
    """
    out: Path = Path("results/heterogeneity")
    """Folder for config.json, history.csv, exact.csv, two figures and tables."""


Outcomes = Mapping[tuple[str, str], Tuned]  # by method and alpha, or family and method


def main(args: Args) -> None:
    commands.require_known("--families", args.families, graph_methods.FAMILIES)
    graph, rate = GRAPHS[args.topology](args.workers), args.exact_learning_rate
    alphas = {f"{alpha:g}": alpha for alpha in sorted(args.alphas)}
    worst = next(iter(alphas))
    by_alpha, convex = (
        {label: make_problem(args, alpha, l2) for label, alpha in alphas.items()}
        for l2 in (args.l2, args.exact_l2)
    )

    @cache  # a method in the panel of a family may be the same case
    def make_case(name: str, label: str, rate: float, sampled: bool = False) -> Case:
        """Returns a run with one step size, with exact gradients or random batches."""
        build = make_builder(name, graph, convex[label])
        return Case(
            build if sampled else with_exact_gradients(build),
            convex[label],
            steps=args.exact_steps,
            seeds=1,
            grid={studies.RATE: (rate,)},
        )

    keys = [(name, label) for label in alphas for name in METHODS]
    shown = [family for family in args.families if family in SHOWN]
    exact = {(name, label): make_case(name, label, rate) for name, label in keys}
    for family in shown:
        smaller = momentum_rate(rate) if family == "momentum" else rate
        exact[family, REFERENCE] = make_case(REFERENCE, worst, rate, family in SAMPLED)
        for name in SHOWN[family]:
            exact[family, name] = make_case(name, worst, smaller, family in SAMPLED)
    cases = {
        (name, label): Case(make_builder(name, graph, by_alpha[label]), by_alpha[label])
        for name, label in keys
    }
    found_exact = studies.run(args, "exact gradients", exact, "exact.csv")
    found = studies.run(args, "random batches", cases)
    what = f"{args.data} on {graph.name}"
    sheet, tabulated = show_alphas(args, what, graph.name, found, found_exact, alphas)
    sheets = {"figure": sheet}
    if shown:
        families = show_families(args, f"{what}, alpha = {worst}", found_exact, shown)
        sheets["families"], tabulated["families"] = families
    if args.families:
        tabulated["methods"] = graph_methods.tabulate(args.families, args.progress)
    commands.finish(args, sheets, tabulated)


def momentum_rate(rate: float) -> float:
    """Returns the step size of methods with momentum, which multiplies it by 1 / (1 - beta)."""
    return rate * (1 - graph_methods.MOMENTUM)


def show_alphas(
    args: Args,
    what: str,
    graph: str,
    found: Outcomes,
    found_exact: Outcomes,
    alphas: dict[str, float],
) -> tuple[Figure, dict[str, Table]]:
    """Draws and tabulates what the methods reach at each alpha.

    Args:
        args: the command's.
        what: beginning of the titles of the tables.
        graph: name of the graph.
        found, found_exact: with random batches, and with exact gradients.
        alphas: by their labels, the smallest first.
    """
    worst, l2 = next(iter(alphas)), f"l2 = {args.exact_l2:g}"
    losses = {key: dsgd.history.tail_mean(one.history["loss"]) for key, one in found.items()}
    slopes = {key: one.history["grad_sqnorm"][:, -1] for key, one in found_exact.items()}
    tabulated = {
        "losses": tabulate(
            f"{what}:\nloss over the last tenth of {args.steps:,} rounds",
            f"random batches, best step size, l2 = {args.l2:g}, {statistics.runs(args.seeds)}",
            losses,
            alphas,
        ),
        "slopes": tabulate(
            f"{what}:\n|f'(mean x)|^2 after {args.exact_steps:,} rounds",
            f"exact gradients, step size {args.exact_learning_rate:g}, {l2}",
            slopes,
            alphas,
        ),
    }
    alpha = "Dirichlet alpha (left: heterogeneous)"
    course = {name: one for (name, label), one in found_exact.items() if label == worst}
    panels = [
        figures.curves(
            lines_by_alpha(losses, alphas),
            log="x",
            xlabel=alpha,
            ylabel="loss f(mean x)",
            title=f"random batches, l2 = {args.l2:g}\nlast tenth of {args.steps:,} rounds",
        ),
        figures.curves(
            lines_by_alpha(slopes, alphas),
            log="xy",
            xlabel=alpha,
            ylabel=SLOPE,
            title=f"exact gradients, {l2}\nafter {args.exact_steps:,} rounds",
        ),
        figures.curves(
            studies.lines(course, "rounds", "grad_sqnorm"),
            xlabel="rounds",
            ylabel=SLOPE,
            title=f"exact gradients, {l2}\nalpha = {worst}",
        ),
    ]
    heading = (
        f"{args.data}, {args.workers} workers, {graph}; "
        f"{statistics.errors('bands on the left', args.seeds)}, on one partition, which leaves "
        f"every worker {args.batch_size} samples"
    )
    return figures.sheet(panels, 3, heading, height=3.6, sharey=False), tabulated


def show_families(
    args: Args, what: str, found: Outcomes, families: list[str]
) -> tuple[Figure, Table]:
    """Draws and tabulates the methods of each family at the smallest alpha.

    Args:
        args: the command's.
        what: beginning of the titles.
        found: with exact gradients.
        families: of `SHOWN`.
    """
    rate = args.exact_learning_rate
    settings = (
        f"exact gradients, step size {rate:g} ({momentum_rate(rate):.3g} with momentum), "
        f"l2 = {args.exact_l2:g}"
    )
    sheet = figures.sheet(
        [partial(draw_family, found, family) for family in families],
        2,
        f"{what}; {settings}",
        height=2.9,
        legend_columns=None,
        sharey=True,
    )
    table = tables.table(
        f"{what}:\nafter {args.exact_steps:,} rounds",
        ("method", "|f'(mean x)|^2", "Mbit"),
        f"{settings}.\nMbit: sent and received per worker. variance reduction: random "
        f"batches of {args.batch_size} samples.",
    )
    for family in families:
        table.add_section()
        table.add_row(family, "", "")
        again = (REFERENCE,) if family == families[0] or family in SAMPLED else ()
        rows = {name: found.get((family, name)) for name in (*again, *SHOWN[family])}
        studies.fill(table, rows, cells)
    return sheet, table


def make_builder(name: str, W: dsgd.Topology, problem: dsgd.Problem) -> studies.Build:
    """Returns the function learning_rate -> method on a graph that fits it."""
    build, needs = graph_methods.builder(name), registry.METHODS[name.partition(",")[0]].needs
    if name == "gt_saga":
        build = graph_methods.builder(name, samples=problem.max_local_samples)
    else:
        build = graph_methods.METHODS.get(name, build)
    if "eigenvalues of W above -1/3" in needs:
        W = make_lazy(W)
    elif "tree" in needs:
        W = topologies.spanning_tree(W)
    return lambda learning_rate: build(learning_rate, W)


def with_exact_gradients(build: studies.Build) -> studies.Build:
    """Returns the function learning_rate -> the method with exact gradients."""

    def exact(learning_rate: float) -> dsgd.Algorithm:
        method = build(learning_rate)

        def query(state, round):
            return method.query(state, round)._replace(exact=True)

        return method._replace(query=query)

    return exact


def make_lazy(W: dsgd.Topology) -> dsgd.Topology:
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
            return tuning.logistic_regression(
                args, args.workers, "dirichlet", alpha=alpha, l2=l2, seed=seed
            )
    raise ValueError(
        f"alpha = {alpha}: none of 10,000 partitions gives each of {args.workers} workers "
        f"{args.batch_size} samples; expected fewer workers, smaller batches or a larger alpha"
    )


def tabulate(
    title: str,
    caption: str,
    values: Mapping[tuple[str, str], np.ndarray],
    alphas: Mapping[str, float],
) -> Table:
    """Tabulates one row per method, with one column per alpha."""
    table = tables.table(title, ("alpha", *alphas), caption)
    for name in METHODS:
        row = (values.get((name, label)) for label in alphas)
        table.add_row(name, *("-" if each is None else f"{each.mean():.3g}" for each in row))
    return table


def lines_by_alpha(
    values: Mapping[tuple[str, str], np.ndarray], alphas: Mapping[str, float]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the lines of the methods against alpha; diverged cases are left out."""
    nothing = np.full_like(next(iter(values.values())), np.nan)
    return {
        name: (
            np.array([*alphas.values()]),
            np.stack([values.get((name, label), nothing) for label in alphas], axis=1),
        )
        for name in METHODS
    }


def draw_family(found: Outcomes, family: str, axes: Axes) -> None:
    """Draws |f'(mean x)|^2 of the methods of a family against rounds or megabits."""
    x = MEGABITS if family in AGAINST_BITS else "rounds"
    names = [name for name in (REFERENCE, *SHOWN[family]) if (family, name) in found]
    lines = studies.lines({name: found[family, name] for name in names}, x, "grad_sqnorm")
    cost, slopes = lines.pop(REFERENCE)
    axes.plot(cost, slopes[0], color="0.6", linewidth=1.8, label=REFERENCE)
    title = family + ", random batches" * (family in SAMPLED)
    figures.curves(lines, legend="best", xlabel=x, ylabel=SLOPE, title=title)(axes)


def cells(one: Tuned) -> list[str]:
    """Returns |f'(mean x)|^2 at the end, and the megabits."""
    megabits = statistics.COSTS[MEGABITS](one.history)[-1]
    return [f"{one.history['grad_sqnorm'][0, -1]:.2g}", f"{megabits:,.0f}"]


if __name__ == "__main__":
    commands.run(main, Args)
