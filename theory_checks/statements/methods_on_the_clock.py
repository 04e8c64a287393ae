r"""The seconds of `theory_checks.statements.seconds` and `graph_seconds` against the clock.

Measured are the seconds of the project's clock until $\frac1K\sum_{k<K} E|f'(x_k)|^2 \le \epsilon$
for a method with the step size of its theorem, on quadratics with known constants. The moments are
exact, and times are multiples of 1/64, so that sums of seconds are exact as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import algorithms
import topologies
from dsgd.base import Problem
from theory_checks.machinery import clocked_runs, runs
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.statements import birch_sgd, graph_seconds, seconds

_WORKERS, LENGTH = 6, 768
_BATCH = 5  # of Rennala, Ringmaster and Malenia
_BACKUPS = 2
GRAPH = topologies.chain(_WORKERS)
_PIVOT = 2  # the centre, which the methods choose
_NUMBER = np.arange(1.0, _WORKERS + 1)
PROFILES: dict[str, np.ndarray] = {
    "equal": np.full(_WORKERS, 1.75),
    "i": _NUMBER,
    "sqrt(i)": np.round(64 * np.sqrt(_NUMBER)) / 64,
    "one slow": np.array([1.25, 1.3125, 1.375, 1.4375, 1.5, 7.25]),
}
"""Seconds of a gradient, by worker."""

LATENCIES = (0.125, 1.5, 5.0)
"""Seconds of a message on a link of `GRAPH`."""

Numbers = Mapping[str, Any]  # gap, smoothness, noise, epsilon, times


class OnClock(NamedTuple):
    """A method with a theorem about seconds.

    Args:
        factory: learning_rate -> method.
        step: numbers -> gamma of the theorem.
        bound: numbers -> seconds of the theorem.
        ratio: smallest and largest sigma^2 / epsilon of its instances.
        cost: the largest L D / epsilon of its instances.
        different: whether workers may have different data.
        synchronous: whether a round queries all workers.
        graph: whether it runs on `GRAPH`.
        oldest: largest staleness of gradients that are not ignored, if the method logs no steps.
        source: of the theorem, whose constants are derived here.
    """

    factory: Callable[..., Any]
    step: Callable[[Numbers], float]
    bound: Callable[..., float]
    ratio: tuple[float, float] = (_BATCH - 1 + 1e-9, _BATCH)
    cost: float = 3.0
    different: bool = False
    synchronous: bool = False
    graph: bool = False
    oldest: int | None = None
    source: str = "Tyurin and Richtarik, 2023"


def _half(of: Numbers) -> float:
    return 1 / (2 * of["smoothness"])


def _birch_step(distance: Callable[[Numbers], int], of: Numbers) -> float:
    names = ("smoothness", "noise", "epsilon")
    return birch_sgd.step_size(**{name: of[name] for name in names}, tree_distance=distance(of))


def _synchronous_step(counted: int, of: Numbers) -> float:
    variance = of["noise"] ** 2 / counted
    return seconds.sgd_step(smoothness=of["smoothness"], variance=variance, epsilon=of["epsilon"])


def _ringleader_step(of: Numbers) -> float:
    return seconds.ringleader_step(**{name: of[name] for name in of if name != "gap"})


METHODS = {
    "Rennala": OnClock(
        runs.with_step(algorithms.rennala_sgd, _BATCH), _half, seconds.rennala_seconds
    ),
    "Ringmaster": OnClock(
        runs.with_step(algorithms.ringmaster_sgd, _BATCH),
        partial(_birch_step, lambda of: _BATCH - 1),
        seconds.ringmaster_seconds,
        source="Maranjyan, Tyurin and Richtarik, 2025",
    ),
    "Asynchronous SGD": OnClock(
        runs.with_step(algorithms.asynchronous_sgd),
        partial(_birch_step, lambda of: seconds.largest_delay(times=of["times"])),
        seconds.asynchronous_seconds,
        ratio=(0.0, 9.0),
        source="Tyurin and Sivtsov, 2025, Theorem 2.4",
    ),
    "Delay-adaptive SGD": OnClock(
        runs.with_step(algorithms.delay_adaptive_sgd, 0.0),
        partial(_birch_step, lambda of: 2 * _WORKERS),
        seconds.delay_adaptive_seconds,
        ratio=(0.0, 9.0),
        oldest=2 * _WORKERS,
        source="Koloskova et al., 2022; Tyurin and Sivtsov, 2025, Theorem 2.4",
    ),
    "Mini-batch SGD": OnClock(
        runs.with_step(algorithms.minibatch_sgd),
        partial(_synchronous_step, _WORKERS),
        seconds.minibatch_seconds,
        ratio=(0.0, 9.0),
        synchronous=True,
        source="Theorem 1.2.1",
    ),
    "Backup workers": OnClock(
        runs.with_step(algorithms.backup_workers_sgd, _BACKUPS),
        partial(_synchronous_step, _WORKERS - _BACKUPS),
        partial(seconds.backup_workers_seconds, backups=_BACKUPS),
        ratio=(0.0, 9.0),
        synchronous=True,
        source="Theorem 1.2.1",
    ),
    "Malenia": OnClock(
        runs.with_step(algorithms.malenia_sgd, _BATCH),
        _half,
        seconds.malenia_seconds,
        different=True,
    ),
    "Ringleader": OnClock(
        runs.with_step(algorithms.ringleader_sgd),
        _ringleader_step,
        seconds.ringleader_seconds,
        ratio=(0.0, 30.0),
        cost=1.0,
        different=True,
        source="Maranjyan and Richtarik, 2025",
    ),
    "Fragile": OnClock(
        runs.with_step(algorithms.fragile_sgd, GRAPH, _BATCH),
        _half,
        partial(graph_seconds.fragile_seconds, pivot=_PIVOT),
        graph=True,
        source="Tyurin and Richtarik, 2024",
    ),
    "Amelie": OnClock(
        runs.with_step(algorithms.amelie_sgd, GRAPH, _BATCH),
        _half,
        partial(graph_seconds.amelie_seconds, pivot=_PIVOT),
        cost=1.0,
        different=True,
        graph=True,
        source="Tyurin and Richtarik, 2024",
    ),
}


class Case(NamedTuple):
    """A quadratic, a cluster and an accuracy.

    Args:
        problem: from `clocked_runs.quadratic`.
        numbers: gap, smoothness, noise, epsilon, times; for graphs also travel.
        latency: seconds of a message on a link.
        words: description.
    """

    problem: Problem
    numbers: dict[str, Any]
    latency: float
    words: str


def case(
    times: Sequence[float] | np.ndarray,
    *,
    smoothness: float,
    cost: float,
    ratio: float,
    epsilon: float = 0.75,
    eigenvalue: float = 1.0,
    share: float = 0.5,
    seed: int | None = None,
    latency: float | None = None,
    words: str = "",
) -> Case:
    r"""Returns a quadratic in two directions.

    Args:
        times: h_i, seconds by worker.
        smoothness: L.
        cost: LD / epsilon.
        ratio: sigma^2 / epsilon.
        epsilon: the accuracy.
        eigenvalue: the smaller eigenvalue of f'', divided by the larger one.
        share: share of D in the direction of the larger one.
        seed: seed of the differences between the workers' data; None: they have equal data.
        latency: seconds of a message on a link of `GRAPH`; None: messages take no time.
        words: name of the cluster.
    """
    N, gap, noise = len(times), cost * epsilon / smoothness, np.sqrt(ratio * epsilon)
    A, b = np.tile(smoothness * np.array([1.0, eigenvalue]), (N, 1)), np.zeros((N, 2))
    if seed is not None:
        rng = np.random.default_rng(seed)
        factors, b = rng.uniform(0.2, 1.0, (N, 2)), rng.normal(size=(N, 2))
        A, b = A * factors / factors.max(axis=0), b - b.mean(axis=0)
    start = np.sqrt(2 * gap * np.array([share, 1 - share]) / A.mean(axis=0))
    problem = clocked_runs.quadratic(A, b, noise=noise, start=start, length=LENGTH)
    numbers = {
        "gap": gap,
        "smoothness": smoothness,
        "noise": float(noise),
        "epsilon": epsilon,
        "times": [float(h) for h in times],
    }
    if latency is not None:
        n = np.arange(N)
        numbers["travel"] = (latency * np.abs(n[:, None] - n)).tolist()
        words = f"{words}, {latency:g} s a message"
    words = f"{words}, L D / eps = {cost:.3g}, sigma^2 / eps = {ratio:.3g}"
    return Case(problem, numbers, latency or 0.0, words)


def measure(method: str, of: Case) -> clocked_runs.Clocked:
    """Returns the run of a method with the step size of its theorem; `slope` is E|f'|^2."""
    how, N = METHODS[method], len(of.numbers["times"])
    found = clocked_runs.run(
        how.factory,
        of.problem,
        how.step(of.numbers),
        of.numbers["times"],
        length=LENGTH // N if how.synchronous else LENGTH,
        latency=of.latency,
        batch=clocked_runs.column_each if how.synchronous else clocked_runs.one_column,
    )
    if how.oldest is None:
        return found
    return found._replace(steps=np.cumsum(found.events["staleness"] <= how.oldest))


def check(method: str, of: Case) -> Outcome:
    """Checks the seconds of a method of `METHODS`."""
    measured = measure(method, of).seconds_to(of.numbers["epsilon"])
    return Outcome(measured, METHODS[method].bound(**of.numbers), case=of.words)


def trial(method: str, draws: Draws) -> list[Outcome]:
    """Checks a random quadratic on a random cluster."""
    how, profile = METHODS[method], draws.choice((*PROFILES, "random"))
    seed = draws.integer(0, 2**32 - 1)
    rng = np.random.default_rng(seed)
    times = (
        np.ceil(64 * 10 ** rng.uniform(0, 0.7, _WORKERS)) / 64
        if profile == "random"
        else PROFILES[profile]
    )
    of = case(
        times,
        smoothness=draws.real(0.2, 5.0),
        cost=draws.real(0.5, how.cost),
        ratio=draws.real(*how.ratio),
        epsilon=draws.real(0.1, 3.0),
        eigenvalue=10 ** draws.real(-2.0, 0.0),
        share=draws.choice((0.0, 0.5, 1.0)),
        seed=seed if how.different else None,
        latency=draws.choice(LATENCIES) if how.graph else None,
        words=profile,
    )
    return [check(method, of)]


def bowls(method: str) -> list[Outcome]:
    """Checks quadratics with one eigenvalue, little or much noise, on all clusters."""
    how = METHODS[method]
    return [
        check(
            method,
            case(times, smoothness=2.0, cost=how.cost, ratio=r, latency=latency, words=profile),
        )
        for profile, times in PROFILES.items()
        for r in how.ratio
        for latency in (LATENCIES if how.graph else (None,))
    ]


STATEMENTS = [
    Statement(
        f"{name}, seconds, exact",
        f"{how.source}; constants derived",
        f"{'different' if how.different else 'equal'} data; gamma of the theorem",
        partial(trial, name),
        (partial(bowls, name),),
    )
    for name, how in METHODS.items()
]
