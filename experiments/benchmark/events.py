"""Events per minute of an asynchronous server with many workers, on one core, compared with event
loops in Python.

    python -m experiments.benchmark events

All versions are Ringmaster SGD on a quadratic with diagonal Hessians and noise: the next of the
workers has computed its gradient, the server makes a step with it unless it is too old, and the
worker begins again at the current model. `heap` is a loop with a heap of events and numpy vectors,
as the simulator of Ringmaster LMO's authors (vectozavr/ringmaster-lmo) is written; `simpy`, if it
is installed, has one process for each worker. Versions take turns, and medians are reported.
"""

from __future__ import annotations

import heapq
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from rich.table import Table

import algorithms
import dsgd
from dsgd import clusters, problems
from experiments.benchmark.rounds import time_versions
from experiments.shared import commands, tables

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Args:
    """Times the events of an asynchronous server."""

    workers: commands.Count = 1000
    """Number of workers N."""
    dimension: commands.Count = 100
    """Elements d of a model."""
    threshold: commands.Count = 100
    """R, number of steps after which the server ignores a gradient."""
    seconds: commands.Positive = 1.0
    """Approximate seconds of one timing."""
    repeats: commands.Count = 5
    """Number of timings of each version."""
    out: Path = Path("results/benchmark/events")
    """Folder for config.json, events.csv and table.csv."""


class Row(NamedTuple):
    """Medians of one version.

    Args:
        microseconds: of an event.
        per_minute: events per minute.
        ratio: of its seconds to dsgd's, over pairs of timings.
    """

    version: str
    microseconds: float
    per_minute: float
    ratio: float


class Setting(NamedTuple):
    """What all versions simulate.

    Args:
        problem: a quadratic with diagonal Hessians.
        sigma: of its gradients.
        seconds: of a gradient of each worker, `[N]`.
        threshold: R.
    """

    problem: dsgd.Problem
    sigma: float
    seconds: np.ndarray
    threshold: int


def main(args: Args) -> None:
    rows: list[Row] = []
    with one_core():
        commands.begin(args)
        with commands.keep_rows(args.out / "events.csv", Row._fields, rows):
            programs = versions(make_setting(args.workers, args.dimension, args.threshold))
            taken = time_versions(programs, args.seconds, args.repeats)
            for name, times in taken.items():
                each = float(np.median(times))
                ratio = float(np.median(times / taken["dsgd"]))
                rows.append(Row(name, 1e6 * each, 60 / each, ratio))
    commands.finish(args, {}, {"table": tabulate(args, rows)})


@contextmanager
def one_core() -> Iterator[None]:
    """Context in which this thread, and those that it starts, have one core, if the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def make_setting(N: int, d: int, threshold: int, sigma: float = 0.1) -> Setting:
    """Returns a problem, and workers of which the i-th needs about the square root of i seconds."""
    problem = problems.random_quadratic(
        N, d, strong_convexity=0.1, heterogeneity=0.0, noise=sigma, diagonal=True, seed=0
    )
    return Setting(problem, sigma, np.sqrt(np.arange(1, N + 1) + 0.3), threshold)


def versions(setting: Setting) -> dict[str, Callable[[int], Any]]:
    """Returns, by name, functions that simulate a given number of events and return the model."""
    found = {"dsgd": framework(setting), "heap": heap(setting)}
    if importlib.util.find_spec("simpy"):
        found["simpy"] = processes(setting)
    return found


def framework(setting: Setting) -> Callable[[int], Any]:
    """Returns `dsgd.run` as a whole: checks, start, chunks, history, with records of the ends."""
    method = algorithms.ringmaster_sgd(optax.sgd(LEARNING_RATE), setting.threshold)
    cluster = clusters.Cluster(clusters.constant(setting.seconds.tolist()))
    options: dict[str, Any] = {"key": jax.random.key(0), "cluster": cluster, "mesh": 1}
    return lambda events: jax.block_until_ready(
        dsgd.run(method, setting.problem, steps=events, record_every=events, **options).params
    )


class Server:
    """Ringmaster in numpy.

    Args:
        setting: what is simulated.
    """

    def __init__(self, setting: Setting) -> None:
        data = setting.problem.data
        self.A, self.b = np.asarray(data.A, float), np.asarray(data.b, float)
        self.scale = setting.sigma / self.b.shape[1] ** 0.5
        self.threshold = setting.threshold
        self.rng = np.random.default_rng(0)
        self.x, self.steps = np.zeros(self.b.shape[1]), 0

    def begin(self, n: int) -> tuple[np.ndarray, int]:
        """Returns the gradient that worker n computes now, and the number of steps before it."""
        noise = self.scale * self.rng.standard_normal(len(self.x))
        return self.A[n] * self.x - self.b[n] + noise, self.steps

    def receive(self, gradient: np.ndarray, before: int) -> None:
        """Makes a step, unless the gradient is too old."""
        if self.steps - before < self.threshold:
            self.x = self.x - LEARNING_RATE * gradient
            self.steps += 1


def heap(setting: Setting) -> Callable[[int], np.ndarray]:
    """Returns the loop with a heap of events."""
    seconds = setting.seconds.tolist()

    def run(events: int) -> np.ndarray:
        server = Server(setting)
        pending = [server.begin(n) for n in range(len(seconds))]
        queue = [(late, n) for n, late in enumerate(seconds)]
        heapq.heapify(queue)
        for _ in range(events):
            now, n = heapq.heappop(queue)
            server.receive(*pending[n])
            pending[n] = server.begin(n)
            heapq.heappush(queue, (now + seconds[n], n))
        return server.x

    return run


def processes(setting: Setting) -> Callable[[int], np.ndarray]:
    """Returns the simulation with simpy."""
    simpy: Any = importlib.import_module("simpy")  # an optional package

    def run(events: int) -> np.ndarray:
        server, environment, arrived = Server(setting), simpy.Environment(), 0
        finished = environment.event()

        def work(n, late):
            nonlocal arrived
            while True:
                gradient = server.begin(n)
                yield environment.timeout(late)
                if arrived == events:
                    return
                server.receive(*gradient)
                arrived += 1
                if arrived == events:
                    finished.succeed()

        for n, late in enumerate(setting.seconds.tolist()):
            environment.process(work(n, late))
        environment.run(finished)
        return server.x

    return run


def tabulate(args: Args, rows: list[Row]) -> Table:
    """Tabulates one row for each version."""
    table = tables.table(
        f"events of Ringmaster, {args.workers:,} workers, d = {args.dimension:,} (medians)",
        ("version", "µs", "million a minute", "ratio"),
        "µs: of an event. ratio: of its seconds to dsgd's.",
    )
    for row in rows:
        cells = (f"{row.microseconds:.1f}", f"{row.per_minute / 1e6:.2f}", f"{row.ratio:.2f}")
        table.add_row(row.version, *cells)
    return table
