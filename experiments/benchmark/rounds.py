"""Rounds a second of ring DSGD with metrics on: the framework, a hand-written JAX scan, and a numpy loop, in one run.

    python -m experiments.benchmark rounds

All three do the same mathematics on a heterogeneous quadratic with diagonal Hessians and exact gradients, and record f, |f'|^2 and
the consensus distance in every round. The limit beside them is the least that a round must move (read X, A and b, write X: 16 bytes
an element) over the rate at which numpy copies as many bytes.

The scan is what one writes: two rolls. The framework gathers rows, of which XLA makes faster loops on CPUs.

The three take turns, on fresh arrays for each problem, and medians are reported: where an array happens to lie in memory changes the
speed of a small round by tens of per cent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.table import Table

import algorithms
import dsgd
import topologies
from dsgd import problems, records
from experiments import common

LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Args:
    """Times a ring DSGD round against hand-written versions."""

    workers: tuple[int, ...] = (16, 64, 256, 64)
    """Numbers of workers N."""
    dimensions: tuple[int, ...] = (100, 100, 100, 10_000)
    """Dimensions d, one for each N."""
    seconds: float = 0.4
    """Length of one timing, about."""
    repeats: int = 3
    """Timings of each version on each problem."""
    problems: int = 5
    """Random problems, each with its own arrays."""
    out: Path = field(default=Path("results/benchmark/rounds"))
    """Folder for config.json and rounds.csv."""


def main(args: Args) -> None:
    if len(args.workers) != len(args.dimensions):
        raise ValueError(f"{len(args.workers)} workers for {len(args.dimensions)} dimensions: need as many")
    args.out.mkdir(parents=True, exist_ok=True)  # fails now, not after the work
    caption = "ratio: framework / JAX scan, the median over pairs of timings"
    table = Table(title="ring DSGD with metrics, rounds/s (medians)", caption=caption)
    for heading in ("N x d", "framework", "JAX scan", "numpy", "copy limit", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows, speeds = [], {}
    for N, d in zip(args.workers, args.dimensions, strict=True):
        speeds, ratio = compare(args, N, d)
        rows.append((N, d, *speeds.values(), ratio))
        table.add_row(f"{N} x {d:,}", *(f"{speed:,.0f}" for speed in speeds.values()), f"{ratio:.2f}")
    records.write_config(args.out / "config.json", args)
    records.write_rows(args.out / "rounds.csv", ("workers", "dimension", *speeds, "ratio"), rows)
    common.console().print(table)


def compare(args: Args, N: int, d: int) -> tuple[dict[str, float], float]:
    """Median rounds a second of each version, and the median ratio of the framework to the scan."""
    method = algorithms.decentralized_sgd(optax.sgd(LEARNING_RATE), topologies.ring(N))
    taken: dict[str, list[float]] = {"framework": [], "scan": [], "numpy": [], "limit": []}
    rounds = dict.fromkeys(taken, 0)
    for seed in range(args.problems):
        problem = problems.random_quadratic(N, d, diagonal=True, seed=seed)
        versions = {"framework": framework(method, problem), "scan": scan(problem), "numpy": loop(problem), "limit": copies(N, d)}
        for name, version in versions.items():
            rounds[name] = rounds[name] or calibrate(version, args.seconds)
            version(rounds[name])  # compiled for this length
        for _ in range(args.repeats):
            for name, version in versions.items():
                taken[name].append(clock(version, rounds[name]) / rounds[name])
    ratio = float(np.median(np.array(taken["scan"]) / np.array(taken["framework"])))
    return {name: 1 / float(np.median(times)) for name, times in taken.items()}, ratio


def calibrate(version: Callable[[int], object], seconds: float) -> int:
    """Rounds that last about that long."""
    rounds = 16
    while True:
        version(rounds)
        once = min(clock(version, rounds) for _ in range(3))  # one may be held up by the machine
        if once >= seconds / 4:
            return max(1, round(rounds * seconds / once))
        rounds *= 4


def clock(version: Callable[[int], object], rounds: int) -> float:
    began = time.perf_counter()
    version(rounds)
    return time.perf_counter() - began


def framework(method: dsgd.Algorithm, problem: dsgd.Problem) -> Callable[[int], object]:
    """`dsgd.run`, all of it: checks, start, chunks, history."""
    key, mesh = jax.random.key(0), dsgd.workers.mesh(1)
    return lambda rounds: jax.block_until_ready(dsgd.run(method, problem, steps=rounds, key=key, mesh=mesh))


def scan(problem: dsgd.Problem) -> Callable[[int], object]:
    """What one would write by hand for this one method and problem."""

    def step(x, A, b, mean):
        half = x - LEARNING_RATE * (A * x - b)
        x = (half + jnp.roll(half, 1, axis=0) + jnp.roll(half, -1, axis=0)) / 3
        middle = x.mean(axis=0)
        away = middle - mean.minimizer
        slope = mean.A * away
        return x, (mean.minimum + away @ slope / 2, slope @ slope, jnp.sum((x - middle[None]) ** 2) / len(x))

    @jax.jit(static_argnames="rounds")
    def run(x, A, b, mean, rounds):
        return jax.lax.scan(lambda x, _: step(x, A, b, mean), x, None, length=rounds)

    data, start = problem.data, jnp.zeros_like(problem.data.b)
    return lambda rounds: jax.block_until_ready(run(start, data.A, data.b, problem.shared, rounds))


def loop(problem: dsgd.Problem) -> Callable[[int], object]:
    """The same in numpy."""
    A, b = np.asarray(problem.data.A), np.asarray(problem.data.b)
    mean = jax.tree.map(np.asarray, problem.shared)

    def run(rounds):
        x, history = np.zeros_like(b), []
        for _ in range(rounds):
            half = x - np.float32(LEARNING_RATE) * (A * x - b)
            x = (half + np.roll(half, 1, axis=0) + np.roll(half, -1, axis=0)) / np.float32(3)
            middle = x.mean(axis=0)
            away = middle - mean.minimizer
            slope = mean.A * away
            history.append((mean.minimum + away @ slope / 2, slope @ slope, np.sum((x - middle) ** 2) / len(x)))
        return x, history

    return run


def copies(N: int, d: int) -> Callable[[int], object]:
    """Copies of 8 N d bytes to 8 N d others: as many bytes moved as a round must move."""
    source, target = np.ones(2 * N * d, np.float32), np.empty(2 * N * d, np.float32)

    def run(rounds):
        for _ in range(rounds):
            np.copyto(target, source)

    return run
