"""Decentralized SGD and its corrections with increasingly heterogeneous data: Dirichlet partitions,
alpha from 0.05 to 100.

    python -m experiments.heterogeneity --topology ring

Two settings: practical training, with random batches and each method's best step size; and exact
gradients with one step size, where the remaining f' is the effect of heterogeneity alone: zero for
the corrected methods, a constant for decentralized SGD.
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
from experiments.shared import commands, figures, resuming, statistics, tables, tuning

Build = Callable[[Any, dsgd.Topology], dsgd.Algorithm]

METHODS: dict[str, Build] = {
    "dsgd": lambda learning_rate, W: algorithms.decentralized_sgd(optax.sgd(learning_rate), W),
    "d2": lambda learning_rate, W: algorithms.d2(optax.sgd(learning_rate), for_d2(W)),
    "extra": lambda learning_rate, W: algorithms.extra(optax.sgd(learning_rate), W),
    "gradient-tracking": lambda learning_rate, W: algorithms.gradient_tracking(
        optax.sgd(learning_rate), W
    ),
    "exact-diffusion": lambda learning_rate, W: algorithms.exact_diffusion(
        optax.sgd(learning_rate), W
    ),
    "mb-sgd": lambda learning_rate, W: algorithms.minibatch_sgd(optax.sgd(learning_rate)),
}
GRAPHS: dict[str, Callable[[int], dsgd.Topology]] = {
    "ring": topologies.ring,
    "chain": topologies.chain,
    "star": topologies.star,
    "random-regular": lambda N: topologies.random_regular(N, 4),
}


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
    out: Path = Path("results/heterogeneity")
    """Folder for config.json, history.csv, exact.csv and figure.png."""


class Case(NamedTuple):
    """A method on data with this heterogeneity."""

    method: str
    alpha: float

    def __str__(self) -> str:
        return f"{self.method}, {self.alpha:g}"


def main(args: Args) -> None:
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
        lambda case: without_noise(args, convex[case.alpha], METHODS[case.method], graph),
        lambda path, found: records.write_histories(
            path, {str(case): history for case, history in found.items()}
        ),
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
    commands.finish(args, {"figure": draw(args, graph, losses, slopes, exact)}, shown)


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
    args: Args, problem: dsgd.Problem, build: Build, graph: dsgd.Topology
) -> dict[str, np.ndarray]:
    """Returns the history with exact gradients, `[1, records]`."""
    method = build(args.exact_learning_rate, graph)

    def query(state, round):
        return method.query(state, round)._replace(exact=True)

    return resuming.run(
        method._replace(query=query),
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


if __name__ == "__main__":
    commands.run(main, Args)
