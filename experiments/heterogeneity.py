"""Decentralized SGD and its corrections with increasingly heterogeneous data: Dirichlet partitions,
alpha from 0.05 to 100.

    python -m experiments.heterogeneity --topology ring

Two settings: practical training, with random batches and each method's best step size; and exact
gradients with one step size, where the remaining f' is the effect of heterogeneity alone: zero for
the corrected methods, a constant for decentralized SGD.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
class Args:
    """Compares decentralized methods on heterogeneous data."""

    topology: Literal["ring", "chain", "star", "random-regular"] = "ring"
    """The graph, with Metropolis weights; if an eigenvalue is too small for D2, D2 uses 0.9 W + 0.1
    I.
    """
    workers: commands.Count = 16
    """Number of workers."""
    alphas: tuple[commands.Positive, ...] = (0.05, 0.1, 0.3, 1.0, 10.0, 100.0)
    """Concentrations of the Dirichlet partition; smaller values are more heterogeneous."""
    data: str = "digits"
    """Data for logistic regression: digits, breast-cancer, or images or a LIBSVM file in --data-dir
    (mnist, a9a; see `problems.load`).
    """
    data_dir: commands.DataDir = None
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
    """Number of independent runs with random batches."""
    seed: commands.Seed = 0
    """Seed of all random numbers."""
    out: Path = field(default=Path("results/heterogeneity"))
    """Folder for config.json, history.csv, exact.csv and figure.png."""
    progress: bool = True
    """Show progress bars."""
    cache: commands.Cache = None


def main(args: Args) -> None:
    graph = GRAPHS[args.topology](args.workers)
    work = [(alpha, name) for alpha in sorted(args.alphas) for name in METHODS]
    by_alpha = {alpha: make_problem(args, alpha, args.l2) for alpha in args.alphas}
    convex = {alpha: make_problem(args, alpha, args.exact_l2) for alpha in args.alphas}
    commands.begin(args)
    tuned: dict[tuple[float, str], tuning.Tuned | None] = {}
    exact: dict[tuple[float, str], dict[str, np.ndarray]] = {}
    with (
        commands.kept(write_tuned, args.out / "history.csv", tuned),
        commands.kept(write_exact, args.out / "exact.csv", exact),
    ):
        for alpha, name in tables.bar(work, "heterogeneity", args.progress):
            tuned[alpha, name] = tune(args, by_alpha[alpha], METHODS[name], graph)
            exact[alpha, name] = without_noise(args, convex[alpha], METHODS[name], graph)
    losses = {
        key: dsgd.tail_mean(value.history["loss"]) if value else np.full(args.seeds, np.nan)
        for key, value in tuned.items()
    }
    slopes = {key: history["grad_sqnorm"][:, -1] for key, history in exact.items()}
    what = f"{args.data} on {graph.name}"
    random = f"random batches, best step size, l2 = {args.l2:g}, {statistics.runs(args.seeds)}"
    settled = f"exact gradients, step size {args.exact_learning_rate:g}, l2 = {args.exact_l2:g}"
    shown = {
        "losses": tabulate(
            args, losses, f"{what}:\nloss over the last tenth of {args.steps:,} rounds", random
        ),
        "slopes": tabulate(
            args, slopes, f"{what}:\n|f'(mean x)|^2 after {args.exact_steps:,} rounds", settled
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
        except ValueError:  # a worker has nothing
            continue
        if min(map(len, parts)) >= args.batch_size:
            shared = {"batch_size": args.batch_size, "seed": seed, "data_dir": args.data_dir}
            return problems.logistic_regression(
                args.data, args.workers, "dirichlet", alpha=alpha, l2=l2, **shared
            )
    raise ValueError(
        f"alpha = {alpha}: none of 10,000 partitions gives {args.workers} workers "
        f"{args.batch_size} samples each; need fewer"
    )


def tune(
    args: Args, problem: dsgd.Problem, build: Build, graph: dsgd.Topology
) -> tuning.Tuned | None:
    """Returns the history on random batches at the best step size; None if every step size
    diverged.
    """
    return tuning.tune(args, lambda learning_rate: build(learning_rate, graph), problem)


def write_tuned(path: Path, tuned: dict[tuple[float, str], tuning.Tuned | None]) -> None:
    """Writes the histories with a column of the chosen step size."""
    records.write_histories(
        path,
        {f"{name}, {alpha:g}": one.with_step_size for (alpha, name), one in tuned.items() if one},
    )


def write_exact(path: Path, exact: dict[tuple[float, str], dict[str, np.ndarray]]) -> None:
    """Writes the histories with exact gradients."""
    records.write_histories(
        path, {f"{name}, {alpha:g}": history for (alpha, name), history in exact.items()}
    )


def without_noise(
    args: Args, problem: dsgd.Problem, build: Build, graph: dsgd.Topology
) -> dict[str, np.ndarray]:
    """Returns the history with exact gradients, `[1, records]`."""
    method = build(args.exact_learning_rate, graph)

    def query(state, round):
        return method.query(state, round)._replace(exact=True)

    record_every = max(1, args.exact_steps // 200)
    mesh = tuning.devices_for(args.workers)
    return resuming.run(
        method._replace(query=query),
        problem,
        steps=args.exact_steps,
        key=jax.random.key(args.seed),
        seeds=1,
        record_every=record_every,
        mesh=mesh,
    ).history


def tabulate(
    args: Args, values: dict[tuple[float, str], np.ndarray], title: str, caption: str
) -> Table:
    """Tabulates one row per alpha, with one column per method."""
    table = tables.table(
        title, ("alpha", *(name.replace("-", "\n") for name in METHODS)), caption, left=0
    )
    for alpha in sorted(args.alphas):
        table.add_row(f"{alpha:g}", *(f"{values[alpha, name].mean():.3g}" for name in METHODS))
    return table


def draw(
    args: Args,
    graph: dsgd.Topology,
    losses: dict[tuple[float, str], np.ndarray],
    slopes: dict[tuple[float, str], np.ndarray],
    exact: dict[tuple[float, str], dict[str, np.ndarray]],
) -> Figure:
    """Draws the final loss, and the remaining f' without noise, against alpha, and its course at
    the smallest alpha.
    """
    sheet = Figure(figsize=(14, 4.6), layout="constrained")
    panels = plots.panels(sheet, 3, sharey=False)
    alphas = np.array(sorted(args.alphas))
    for axes, values, scale in zip(panels, (losses, slopes), ("linear", "log"), strict=False):
        axes.set(xscale="log", yscale=scale, xlabel="Dirichlet alpha (left: heterogeneous)")
        plots.draw_lines(
            axes,
            {
                name: (alphas, np.stack([values[alpha, name] for alpha in alphas], axis=1))
                for name in METHODS
            },
        )
    worst = alphas[0]
    shown = {name: exact[worst, name] for name in METHODS}
    plots.draw_lines(
        panels[2],
        {
            name: (history["step"].astype(float), history["grad_sqnorm"])
            for name, history in shown.items()
        },
    )
    panels[0].set(
        ylabel="loss f(mean x)",
        title=(
            f"random batches, best step size, l2 = {args.l2:g}\nlast tenth of {args.steps:,} rounds"
        ),
    )
    step = f"exact gradients, step size {args.exact_learning_rate:g}, l2 = {args.exact_l2:g}"
    panels[1].set(ylabel="|f'(mean x)|²", title=f"{step}\nafter {args.exact_steps:,} rounds")
    panels[2].set(
        xlabel="rounds", ylabel="|f'(mean x)|²", yscale="log", title=f"{step}\nalpha = {worst:g}"
    )
    figures.legend(sheet, panels[2], columns=len(METHODS))
    bands = f"{statistics.errors('bands on the left', args.seeds)}, on one partition"
    figures.title(
        sheet,
        f"{args.data}, {args.workers} workers, {graph.name}; {bands}, which leaves every worker "
        f"{args.batch_size} samples",
    )
    return sheet


if __name__ == "__main__":
    commands.run(main, Args)
