"""The terms of the rates, one problem for each that makes it the largest, and what they come to
there: measured, and as bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

import topologies
from dsgd import compressors, problems
from dsgd.base import Problem
from dsgd.graphs.topology import Topology
from experiments.survey import theorems
from experiments.survey.theorems import Method

# sigma, beside L = 1 and D = 1/2: the rates' 1 / sqrt(T) is the largest term from T = 32 on
LARGE_NOISE = 4.0
STALENESS = 4
WORKERS = 4
SPARSE = compressors.random_sparsification(0.5)


class Term(NamedTuple):
    """One method where one term of its rate is the largest.

    Args:
        panel: "inverse", "root", "workers", "two_thirds" or "staleness".
        method: its name.
        x: T, N or tau + 1.
        exact: averages of |f'|^2 at each x, without sampling noise; None where there are runs only.
        bounds: the theorem's right sides at each x.
        sampled_x: where there are runs.
        sampled: their averages `[seeds, len(sampled_x)]`.
    """

    panel: str
    method: str
    x: np.ndarray
    exact: np.ndarray | None
    bounds: np.ndarray
    sampled_x: np.ndarray
    sampled: np.ndarray

    @property
    def measured(self) -> np.ndarray:
        """At each x: exact, or the mean of runs where there are only runs."""
        return self.sampled.mean(axis=0) if self.exact is None else self.exact


class Budget(NamedTuple):
    """How much is measured: see `convergence_rates.Args`."""

    steps: tuple[int, ...]
    longest_run: int
    workers: tuple[int, ...]
    run_workers: tuple[int, ...]
    staleness: tuple[int, ...]
    fixed_steps: int
    seeds: int
    seed: int


def bowl(workers: int, noise: float) -> Problem:
    """All f_n = |x|^2 / 2 from |x| = 1: L = 1, D = 1/2. Most bounds are reached there."""
    d = max(4, workers)  # error compensation keeps N parts of at least one element
    return problems.quadratic(
        np.ones((workers, d, 1)) * np.eye(d),
        np.zeros((workers, d)),
        noise=noise,
        start=np.full(d, d**-0.5),
    )


def opposed(workers: int) -> Problem:
    """Neighbours with the Hessians I and I / 10 that pull in opposite directions: only if
    Hessians differ does the mean feel it.
    """
    d, sign = 4, np.where(np.arange(workers) % 2, -1.0, 1.0)
    A = np.where(sign > 0, 1.0, 0.1)[:, None, None] * np.eye(d)
    return problems.quadratic(A, 4 * sign[:, None] * np.full(d, d**-0.5), start=np.full(d, d**-0.5))


@cache
def well_connected(workers: int) -> Topology:
    """rho = 1/5 for every N: on a sparse graph rho grows with N, and consensus then takes part of
    the speedup.
    """
    return topologies.from_matrix(
        0.2 * np.eye(workers) + 0.8 / workers, f"well_connected({workers})"
    )


Measure = Callable[[], Term]


def everything(budget: Budget) -> list[Measure]:
    """What there is to measure, panel by panel."""
    stepwise = [("inverse", method) for method in _without_noise()] + [
        ("root", method) for method in _with_noise()
    ]
    stepwise += [
        ("two_thirds", theorems.error_compensated_sgd(bowl(WORKERS, 0.0), 1.0)),
        (
            "two_thirds",
            theorems.decentralized_sgd(opposed(2 * WORKERS), topologies.ring(2 * WORKERS)),
        ),
    ]
    measures: list[Measure] = [
        partial(along_steps, panel, method, budget) for panel, method in stepwise
    ]
    measures += [partial(along_workers, build, budget) for build in SPEEDUPS]
    return [*measures, partial(along_staleness, budget)]


def _without_noise() -> list[Method]:
    quiet = bowl(WORKERS, 0.0)
    return [
        theorems.gradient_descent(quiet),
        theorems.sgd(quiet),
        theorems.minibatch_sgd(quiet),
        theorems.sparsified_sgd(quiet, SPARSE),
        theorems.error_compensated_sgd(quiet, 0.0),
        theorems.asynchronous_sgd(quiet, STALENESS),
        theorems.decentralized_sgd(quiet, topologies.hypercube(2)),
        theorems.ef21(bowl(1, 0.0), compressors.top_k(0.25)),
    ]


SPEEDUPS: tuple[Callable[[Problem], Method], ...] = (
    theorems.minibatch_sgd,
    lambda problem: theorems.compressed_sgd(problem, 1.0, "ring"),
    lambda problem: theorems.error_compensated_sgd(problem, 0.1),
    lambda problem: theorems.decentralized_sgd(problem, well_connected(problem.workers)),
)


def _with_noise() -> list[Method]:
    noisy = bowl(WORKERS, LARGE_NOISE)
    shared = [build(noisy) for build in SPEEDUPS]
    return [theorems.sgd(noisy), *shared, theorems.asynchronous_sgd(noisy, STALENESS)]


def along_steps(panel: str, method: Method, budget: Budget) -> Term:
    """At gamma(T), T by T: exact, and, where noise is the matter, runs at some T of the second
    half.
    """
    steps = budget.steps
    if method.exact is None:
        within = (
            tuple(T for T in steps if budget.longest_run >= T or not method.random) or steps[:1]
        )
        sampled = method.sampled(within, budget.seeds, budget.seed)
        return _term(
            panel,
            method.name,
            within,
            None if method.random else sampled[0],
            method.bounds(within),
            within,
            sampled,
        )
    exact, bounds = method.averages(steps), method.bounds(steps)
    run_at = tuple(T for T in steps[len(steps) // 2 :] if budget.longest_run >= T)
    if panel == "inverse" or not run_at:
        return _term(panel, method.name, steps, exact, bounds)
    return _term(
        panel,
        method.name,
        steps,
        exact,
        bounds,
        run_at,
        method.sampled(run_at, budget.seeds, budget.seed),
    )


def along_workers(build: Callable[[Problem], Method], budget: Budget) -> Term:
    """At one T, for several N."""
    T = (budget.fixed_steps,)
    methods = [build(bowl(N, LARGE_NOISE)) for N in budget.workers]
    exact = [method.averages(T)[0] for method in methods]
    bounds = [method.bounds(T)[0] for method in methods]
    sampled = [
        build(bowl(N, LARGE_NOISE)).sampled(T, budget.seeds, budget.seed)[:, 0]
        for N in budget.run_workers
    ]
    return _term(
        "workers",
        methods[0].name,
        budget.workers,
        exact,
        bounds,
        budget.run_workers,
        np.transpose(sampled),
    )


def along_staleness(budget: Budget) -> Term:
    """At one T and without noise, for several tau: runs, which then are exact."""
    T = (budget.fixed_steps,)
    methods = [theorems.asynchronous_sgd(bowl(1, 0.0), tau) for tau in budget.staleness]
    sampled = np.stack([method.sampled(T, 1, budget.seed)[:, 0] for method in methods], axis=1)
    x = [tau + 1 for tau in budget.staleness]
    return _term(
        "staleness", "ASGD", x, sampled[0], [method.bounds(T)[0] for method in methods], x, sampled
    )


def _term(
    panel: str,
    name: str,
    x: Sequence[int],
    exact: Any,
    bounds: Any,
    run_at: Sequence[int] = (),
    sampled: Any = None,
) -> Term:
    values = np.zeros((1, 0)) if sampled is None else np.asarray(sampled)
    exact = None if exact is None else np.asarray(exact)
    return Term(
        panel,
        name,
        np.asarray(x, float),
        exact,
        np.asarray(bounds),
        np.asarray(run_at, float),
        values,
    )
