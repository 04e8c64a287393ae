"""Asynchronous methods, with given delays or on a cluster, compared with their recursions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

import algorithms
from algorithms import delays
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Symbols
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import N, Trajectory
from theory_checks.recursions import asynchronous
from theory_checks.statements.recursions.shared import BITS, asked, cluster, graph, placed

OLDEST = 5
LATENCY = 0.25
LONG = 30  # number of updates: five per worker


def _table(draws: Draws) -> np.ndarray:
    """Draws a staleness table of seven updates, which are repeated, and three parts, `[7, 3]`."""
    return (
        np.random.default_rng(draws.integer(0, 2**32 - 1))
        .integers(0, OLDEST + 1, (7, 3))
        .astype(np.int32)
    )


def _of_the_table(of: Instance) -> delays.Delays:
    def staleness(key, t, parts, moved):
        return jnp.minimum(jnp.asarray(of.more)[t % 7], t).astype(jnp.int32)

    return delays.Delays(OLDEST, staleness, "table")


def _bits_of(*workers: int) -> Symbols:
    """Returns the bits of a round in which each of these workers sends and receives one model."""
    each = np.where(np.isin(np.arange(N), workers), float(BITS), 0.0)
    return {"bits up": each, "bits down": each}


def _given(inputs: Inputs, aware: bool) -> Iterator[Symbols]:
    staleness = np.minimum(np.asarray(inputs.more)[np.arange(LONG) % 7], np.arange(LONG)[:, None])
    x = asynchronous.stale_steps(
        inputs.x, inputs.G, N, inputs.step, asked(inputs.found), staleness, aware=aware
    )
    for t in range(LONG):
        worker = asked(inputs.found)[t]
        yield {"x": x[t + 1], "worker": worker, "staleness": staleness[t].max(), **_bits_of(worker)}


def _emergent(
    inputs: Inputs, servers: int, convention: str, bound: float, aware: bool
) -> Iterator[Symbols]:
    schedule = asynchronous.server_schedule(
        inputs.more,
        latency=LATENCY,
        convention=convention,
        servers=servers,
        updates=LONG,
        bits=BITS,
        bound=bound,
    )
    x = asynchronous.stale_steps(
        inputs.x, inputs.G, N, inputs.step, schedule.worker, schedule.staleness, aware=aware
    )
    for t, (worker, now, old) in enumerate(
        zip(schedule.worker, schedule.clock, schedule.staleness, strict=True)
    ):
        yield {
            "x": x[t + 1],
            "worker": np.int64(worker),
            "asked": np.int64(worker),
            "clock": np.float64(now),
            "staleness": old.max(),
            **_bits_of(worker),
        }


def _with_events(found: Trajectory, papers: Symbols) -> Symbols:
    metrics = found.metrics
    return {
        "x": trajectories.rows(found.states.server.model.params, 1),
        "worker": metrics["worker"],
        "asked": asked(found),
        "staleness": metrics["staleness"],
        "clock": found.clock,
    }


def _stale(name: str, aware: bool, optimizer: str = "plain") -> Case:
    return Case(
        name,
        "(4.2)",
        lambda optimizer, of: algorithms.asynchronous_sgd(
            optimizer, _of_the_table(of), servers=3, staleness_aware=aware
        ),
        lambda inputs: _given(inputs, aware),
        _with_events,
        "given delays, three servers",
        optimizer,
        _table,
        length=LONG,
    )


def _served(
    name: str,
    servers: int,
    convention: Any,
    bound: int | None = None,
    *,
    aware: bool = False,
    optimizer: str = "plain",
) -> Case:
    return Case(
        name,
        "section 4.1",
        lambda optimizer, of: algorithms.asynchronous_sgd(
            optimizer, servers=servers, bound=bound, staleness_aware=aware
        ),
        lambda inputs: _emergent(
            inputs, servers, convention, np.inf if bound is None else bound, aware
        ),
        _with_events,
        f"event by event; {servers} servers, {convention}",
        optimizer,
        cluster,
        partial(placed, latency=LATENCY, convention=convention),
        length=LONG,
    )


def partners(found: Trajectory) -> np.ndarray:
    """Returns the partner of each update of AD-PSGD, the other worker that sends, `[T]`; -1 if
    there is not exactly one.
    """
    found_ = []
    for worker, sent in zip(found.metrics["worker"], found.sent, strict=True):
        others = [n for n in np.flatnonzero(sent) if n != worker]
        found_.append(others[0] if len(others) == 1 and sent[worker] else -1)
    return np.array(found_)


def _pairs(inputs: Inputs) -> Iterator[Symbols]:
    numbers, found = inputs.more, inputs.found
    worker, partner = found.metrics["worker"], partners(found)
    schedule = asynchronous.gossip_schedule(
        numbers, LATENCY, [partner[worker == n].tolist() for n in range(N)], LONG, BITS
    )
    steps = [inputs.steps() for _ in range(N)]
    X = asynchronous.pairwise_steps(inputs.X, inputs.G, steps, schedule.worker, schedule.partner)
    for t, (i, now) in enumerate(zip(schedule.worker, schedule.clock, strict=True)):
        before = [s + 1 for s in range(t) if schedule.worker[s] == i]
        yield {
            "params": X[t + 1],
            "worker": np.int64(i),
            "asked": np.int64(i),
            "clock": np.float64(now),
            "staleness": np.int64(t - max(before, default=0)),
            **_bits_of(i, schedule.partner[t]),
        }


def _with_exchanges(found: Trajectory, papers: Symbols) -> Symbols:
    metrics = found.metrics
    return {
        "params": trajectories.rows(found.states.workers.params),
        "worker": metrics["worker"],
        "asked": asked(found),
        "staleness": metrics["staleness"],
        "clock": found.clock,
    }


CASES = (
    _stale("ASGD, given delays", aware=False, optimizer="momentum"),
    _stale("ASGD, given delays, staleness-aware", aware=True),
    _served("ASGD on a cluster", 2, "blocking"),
    _served("ASGD on a cluster, bounded", 1, "pipelined", N - 1, aware=True, optimizer="momentum"),
    Case(
        "AD-PSGD",
        "Lian et al. 2018, algorithm 1",
        lambda optimizer, of: algorithms.asynchronous_gossip_sgd(optimizer, graph("irregular")),
        _pairs,
        _with_exchanges,
        "event by event; with these partners",
        "momentum",
        cluster,
        partial(placed, latency=LATENCY),
        length=LONG,
    ),
)
