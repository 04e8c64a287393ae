"""Exact worst cases of decentralized methods on a ring, against the step size and against rounds.

    python -m experiments.worst_case

Left: the largest squared distance to the minimizer after T rounds, over all strongly convex
functions with L = 1 and a start at distance 1, against the step size; with the best step and the
largest step of a theorem. Right: the largest average of |f'|^2 of decentralized SGD over functions
that are not convex, at the step that Theorem 5.2.11 recommends for each number of rounds, next to
its bound. Needs the extra 'theory'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import optax
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from rich.table import Table

import algorithms
import topologies
from dsgd import Algorithm, Topology, plots, records
from experiments.shared import commands, figures, tables
from theory_checks import Smooth, best_step, bounds, worst_case
from theory_checks.statements import decentralized_sgd, gradient_tracking
from theory_checks.worst_cases.analysis import Analysis

Convexity = Annotated[
    float, commands.Bound("numbers above 0, below 1", lambda number: 0 < number < 1)
]


@dataclass(frozen=True)
class Args(commands.Common, commands.Tasks):
    """Computes exact worst cases against step sizes and rounds."""

    workers: Annotated[
        int, commands.Bound("whole numbers, at least 3", lambda number: number >= 3)
    ] = 8
    """N, on a ring."""
    steps: commands.Count = 10
    """T of the left panel."""
    strong_convexity: Convexity = 0.1
    """mu; L = 1."""
    heterogeneity: commands.NotNegative = 1.0
    """varsigma: at the minimizer (left), on average along the path (right)."""
    rates: Annotated[commands.Positives, commands.increasing(2)] = tuple(
        np.geomspace(0.02, 1.8, 12).round(4).tolist()
    )
    """Step sizes of the left panel; the best one is searched between the first and the last."""
    rounds: commands.Counts = (1, 2, 4, 8)
    """T of the right panel."""
    out: Path = Path("results/worst_case")
    """Folder for config.json, steps.csv, rounds.csv, best.csv and figure.png."""


class Method(NamedTuple):
    """A method and its theorem.

    Args:
        make: (optimizer, topology) -> method.
        largest: (mu, topology) -> the largest step size of a theorem with L = 1, or None.
    """

    make: Callable[..., Algorithm]
    largest: Callable[[float, Topology], float | None]


METHODS = {
    "DSGD": Method(algorithms.decentralized_sgd, lambda mu, ring: None),
    "gradient tracking": Method(
        algorithms.gradient_tracking,
        lambda mu, ring: gradient_tracking.largest_step(
            smoothness=1.0, strong_convexity=mu, topology=ring
        ),
    ),
    "EXTRA": Method(algorithms.extra, lambda mu, ring: 1 + float(np.linalg.eigvalsh(ring.W).min())),
    "exact diffusion": Method(algorithms.exact_diffusion, lambda mu, ring: 2.0),
}


class Curve(NamedTuple):
    """Worst cases of a method.

    Args:
        values: at each step size; NaN if the solver failed because the method diverges.
        best, least: the best step size, and its worst case.
        theorem, worst_at_theorem: the theorem's largest step size, and the worst case at it; None
            if there is no theorem.
    """

    values: list[float]
    best: float
    least: float
    theorem: float | None
    worst_at_theorem: float | None


def main(args: Args) -> None:
    commands.begin(args)
    curves = commands.collect(
        args,
        "methods",
        METHODS,
        partial(curve, args),
        lambda path, found: records.write_rows(
            path,
            ("method", "step", "worst"),
            [
                (name, *point)
                for name, one in found.items()
                for point in zip(args.rates, one.values, strict=True)
            ],
        ),
        args.out / "steps.csv",
    )
    by_rounds = commands.collect(
        args,
        "rounds",
        {steps: steps for steps in args.rounds},
        lambda steps: compare_with_bound(args.workers, args.heterogeneity, steps),
        lambda path, found: records.write_rows(
            path, ("rounds", "worst", "bound"), [(T, *pair) for T, pair in found.items()]
        ),
        args.out / "rounds.csv",
    )
    commands.finish(
        args, {"figure": draw(args, curves, by_rounds)}, {"best": tabulate(args, curves)}
    )


def curve(args: Args, method: Method) -> Curve:
    """Computes the worst cases of a method against the step size."""
    ring, mu = topologies.ring(args.workers), args.strong_convexity
    functions = Smooth(L=1.0, mu=mu, distance=1.0, heterogeneity=args.heterogeneity)

    def build(rate):
        return method.make(optax.sgd(rate), ring)

    measured: dict[str, Any] = {
        "steps": args.steps,
        "measure": "distance",
        "over": "last",
        "workers": args.workers,
        "delta": None,
        "key": None,
    }
    # One program serves all step sizes.
    analysis = Analysis.from_method(build, functions, {"rate": args.rates[0]}, **measured)

    def worst(rate: float) -> float:
        try:
            return analysis.solve({"rate": rate}).solution.value
        except ValueError:
            return float("nan")

    best = best_step(build, functions, **measured, rate=(args.rates[0], args.rates[-1]))
    theorem = method.largest(mu, ring)
    return Curve(
        [worst(rate) for rate in args.rates],
        best.hyperparameters["rate"],
        best.worst.value,
        theorem,
        None if theorem is None else worst(theorem),
    )


def compare_with_bound(workers: int, heterogeneity: float, steps: int) -> tuple[float, float]:
    """Returns the worst case of decentralized SGD at the step size that Theorem 5.2.11 recommends,
    and the theorem's bound.
    """
    ring = topologies.ring(workers)
    given = {
        "gap": 1.0,
        "smoothness": 1.0,
        "noise": 0.0,
        "heterogeneity": heterogeneity,
        "steps": steps,
        "workers": workers,
        "rho": ring.rho,
    }
    gamma = decentralized_sgd.step_size(**given)
    worst = worst_case(
        algorithms.decentralized_sgd(optax.sgd(gamma), ring),
        Smooth(L=1.0, mu=-1.0, gap=1.0, heterogeneity=heterogeneity, where="average"),
        steps=steps,
        measure="gradient",
        over="mean",
        workers=workers,
    )
    return worst.value, bounds.decentralized_sgd(learning_rate=gamma, **given)


def tabulate(args: Args, curves: dict[str, Curve]) -> Table:
    """Tabulates the best step sizes and those of the theorems."""
    table = tables.table(
        f"worst |x - x*|² after {args.steps} rounds",
        ("method", "best γL", "worst case", "theorem's γL", "worst case\nthere"),
        f"ring({args.workers}), μ = {args.strong_convexity:g} L, |x_0 - x*| = 1, ς = "
        f"{args.heterogeneity:g}.\ntheorem's: the largest step size of its theorem.",
    )
    for name, one in curves.items():
        theorem = (
            ("", "")
            if one.theorem is None
            else (f"{one.theorem:.4f}", f"{one.worst_at_theorem:.4f}")
        )
        table.add_row(name, f"{one.best:.4f}", f"{one.least:.4f}", *theorem)
    return table


def draw(args: Args, curves: dict[str, Curve], by_rounds: dict[int, tuple[float, float]]) -> Figure:
    """Draws worst cases against step sizes and rounds."""
    sheet, (left, right) = plots.figure(2, width=figures.WIDTH / 2, height=3.7, sharey=False)
    for (name, one), colour in zip(curves.items(), plots.COLOURS, strict=False):
        left.plot(args.rates, one.values, color=colour, label=name)
        left.plot(one.best, one.least, "*", color=colour, markersize=12)
        if one.theorem is not None and one.theorem <= args.rates[-1]:
            left.axvline(one.theorem, color=colour, linestyle=":")
    y = f"worst |x - x*|², T = {args.steps}"
    figures.describe(left, "γL", y, log="xy", legend=True, ylim=(None, 10))
    T, (worst, bound) = list(by_rounds), zip(*by_rounds.values(), strict=True)
    right.plot(T, worst, label="worst case", **figures.look(0, marker="o"))
    right.plot(T, bound, label="Theorem 5.2.11", **figures.look(1, marker="o"))
    y = "worst average of |f'(x)|², DSGD"
    figures.describe(right, "rounds T", y, log="xy", legend=True)
    right.set_xticks(T, map(str, T))
    right.xaxis.set_minor_locator(NullLocator())
    figures.title(
        sheet,
        f"exact worst cases on ring({args.workers}); stars: best steps; dotted: theorems' largest",
    )
    return sheet


if __name__ == "__main__":
    commands.run(main, Args)
