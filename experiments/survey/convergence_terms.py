"""The terms of the convergence rates: for each a problem that makes it the largest, with measured
averages and the theorem's bounds.
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

# sigma, with L = 1 and D = 1/2: 1 / sqrt(T) is the largest term of the rates from T = 32 on
LARGE_NOISE = 4.0
STALENESS = 4
WORKERS = 4
SPARSE = compressors.random_sparsification(0.5)


class Term(NamedTuple):
    """A method on a problem in which one term of its rate is the largest.

    Args:
        panel: "inverse", "root", "workers", "two_thirds" or "staleness".
        method: its name.
        x: values of T, N or tau + 1.
        exact: averages of |f'|^2 at each x, without sampling noise; None if there are only runs.
        bounds: the theorem's right sides at each x.
        sampled_x: the values of x with runs.
        sampled: averages of these runs, `[seeds, len(sampled_x)]`.
    """

    panel: str
    method: str
    x: np.ndarray
    exact: np.ndarray | None
    bounds: np.ndarray
    sampled_x: np.ndarray
    sampled: np.ndarray

    @property
    def averages(self) -> np.ndarray:
        """Returns the exact averages at each x; means of runs if there are only runs."""
        return self.sampled.mean(axis=0) if self.exact is None else self.exact


class Budget(NamedTuple):
    """Budget of the measurements, as in `convergence_rates.Args`."""

    steps: tuple[int, ...]
    longest_run: int
    workers: tuple[int, ...]
    run_workers: tuple[int, ...]
    staleness: tuple[int, ...]
    fixed_steps: int
    seeds: int
    seed: int


def make_bowl(workers: int, noise: float) -> Problem:
    """Returns the problem in which all f_n are |x|^2 / 2, started from |x| = 1: L = 1, D = 1/2. It
    attains most of the bounds.
    """
    d = max(4, workers)  # error compensation needs N parts of at least one element
    return problems.quadratic(
        np.ones((workers, d, 1)) * np.eye(d),
        np.zeros((workers, d)),
        noise=noise,
        start=np.full(d, d**-0.5),
    )


def make_opposed(workers: int) -> Problem:
    """Returns a problem whose neighbours have the Hessians I and I / 10 and pull in opposite
    directions: heterogeneity affects the mean only if Hessians differ.
    """
    d, sign = 4, np.where(np.arange(workers) % 2, -1.0, 1.0)
    A = np.where(sign > 0, 1.0, 0.1)[:, None, None] * np.eye(d)
    return problems.quadratic(A, 4 * sign[:, None] * np.full(d, d**-0.5), start=np.full(d, d**-0.5))


@cache
def make_well_connected(workers: int) -> Topology:
    """Returns a graph with rho = 1/5 for every N: on a sparse graph rho increases with N, and
    consensus then reduces the speedup.
    """
    return topologies.from_matrix(
        0.2 * np.eye(workers) + 0.8 / workers, f"well_connected({workers})"
    )


Measure = Callable[[], Term]


def list_measures(budget: Budget) -> list[Measure]:
    """Yields all measurements, panel by panel."""
    stepwise = [("inverse", method) for method in _list_quiet()] + [
        ("root", method) for method in _list_noisy()
    ]
    stepwise += [
        ("two_thirds", theorems.error_compensated_sgd(make_bowl(WORKERS, 0.0), 1.0)),
        (
            "two_thirds",
            theorems.decentralized_sgd(make_opposed(2 * WORKERS), topologies.ring(2 * WORKERS)),
        ),
    ]
    measures: list[Measure] = [
        partial(measure_steps, panel, method, budget) for panel, method in stepwise
    ]
    measures += [partial(measure_workers, build, budget) for build in SPEEDUPS]
    return [*measures, partial(measure_staleness, budget)]


def _list_quiet() -> list[Method]:
    """Returns all methods on a problem without gradient noise."""
    quiet = make_bowl(WORKERS, 0.0)
    return [
        theorems.gradient_descent(quiet),
        theorems.sgd(quiet),
        theorems.minibatch_sgd(quiet),
        theorems.sparsified_sgd(quiet, SPARSE),
        theorems.error_compensated_sgd(quiet, 0.0),
        theorems.asynchronous_sgd(quiet, STALENESS),
        theorems.decentralized_sgd(quiet, topologies.hypercube(2)),
        theorems.ef21(make_bowl(1, 0.0), compressors.top_k(0.25)),
    ]


SPEEDUPS: tuple[Callable[[Problem], Method], ...] = (
    theorems.minibatch_sgd,
    lambda problem: theorems.compressed_sgd(problem, 1.0, "ring"),
    lambda problem: theorems.error_compensated_sgd(problem, 0.1),
    lambda problem: theorems.decentralized_sgd(problem, make_well_connected(problem.workers)),
)


def _list_noisy() -> list[Method]:
    """Returns the methods whose rate has the term 1 / sqrt(T), with large gradient noise."""
    noisy = make_bowl(WORKERS, LARGE_NOISE)
    shared = [build(noisy) for build in SPEEDUPS]
    return [theorems.sgd(noisy), *shared, theorems.asynchronous_sgd(noisy, STALENESS)]


def measure_steps(panel: str, method: Method, budget: Budget) -> Term:
    """Measures at gamma(T) for each T: exactly and, if the panel is about gradient noise, by runs
    at some T of the second half.
    """
    steps = budget.steps
    if method.exact is None:
        run_at = (
            tuple(T for T in steps if budget.longest_run >= T or not method.random) or steps[:1]
        )
        sampled = method.sample_averages(run_at, budget.seeds, budget.seed)
        exact = None if method.random else sampled[0]
        return _term(panel, method.name, run_at, exact, method.bounds(run_at), run_at, sampled)
    run_at = tuple(T for T in steps[len(steps) // 2 :] if budget.longest_run >= T)
    term = _term(panel, method.name, steps, method.averages(steps), method.bounds(steps))
    if panel == "inverse" or not run_at:
        return term
    sampled = method.sample_averages(run_at, budget.seeds, budget.seed)
    return term._replace(sampled_x=np.asarray(run_at, float), sampled=sampled)


def measure_workers(build: Callable[[Problem], Method], budget: Budget) -> Term:
    """Measures at one T for several N."""
    T = (budget.fixed_steps,)
    methods = [build(make_bowl(N, LARGE_NOISE)) for N in budget.workers]
    exact = [method.averages(T)[0] for method in methods]
    bounds = [method.bounds(T)[0] for method in methods]
    sampled = [
        build(make_bowl(N, LARGE_NOISE)).sample_averages(T, budget.seeds, budget.seed)[:, 0]
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


def measure_staleness(budget: Budget) -> Term:
    """Measures at one T and without noise for several tau by runs, which are exact because nothing
    is random.
    """
    T = (budget.fixed_steps,)
    methods = [theorems.asynchronous_sgd(make_bowl(1, 0.0), tau) for tau in budget.staleness]
    sampled = np.stack(
        [method.sample_averages(T, 1, budget.seed)[:, 0] for method in methods], axis=1
    )
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
