"""Asynchronous servers compared with `tests/methods/server_events.py` on 200 random clusters, with
many ties: the order of events, their times, the models and the bits, to 1e-12 in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_server import Counted, LocalRuns, asynchronous_server
from tests.methods import given, steps
from tests.methods.events import BITS, Numbers
from tests.methods.given import Case, Given
from tests.methods.server_events import Local, Options, Order, Rule, go_on, server_case
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import N

CLUSTERS, EVENTS = 200, 40
LIMIT, AWAITED, SHRINK = 3, 4, 0.25
H, PULL, INNER = (2, 3, 1, 4, 2, 3), 0.3, 0.07
TIMEOUTS = (1.5, 4.0, 0.75, 2.5, 9.0, 3.0)
# worker 1 stops, worker 3 joins, workers 0 and 4 return, worker 5 is never there
SPELLS = [
    [(0.0, 4.0), (9.5, math.inf)],
    [(0.0, 12.0)],
    [(0.0, math.inf)],
    [(6.25, math.inf)],
    [(2.0, 7.0), (8.0, 11.5), (20.0, math.inf)],
    [],
]


def cluster(draws: Draws) -> Numbers:
    """Draws computation times of seven laps and bandwidths, of which many are equal."""
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    longest = draws.choice((2, 12, 40))
    up, down = (BITS * 2.0 ** rng.integers(draws.choice((-1, 3)), 5, size=N) for _ in range(2))
    return Numbers(rng.integers(1, longest + 1, size=(N, 7)) / 8.0, up, down)


# --- What the server does, as in `asynchronous_server` and in plain Python.


def counted_step(optimizer: Any, limit: int) -> Callable[..., Counted]:
    """A step if the delay is below the limit; another one if the gradient was cut."""

    def step(model, gradient, arrival, read):
        stepped = optimizers.step(
            optimizer, optimizers.Model(model.params, model.optimizer), gradient
        )
        after = Counted(*stepped, model.steps + 1)
        after = jax.tree.map(partial(jnp.where, arrival.delay < limit), after, model)
        shrunk = jax.tree.map(lambda x: (1 - SHRINK) * x, model.params)
        cut = model._replace(params=shrunk, steps=model.steps + 1)
        return jax.tree.map(partial(jnp.where, arrival.lost), cut, after)

    return step


def rule(known: Given, limit: int) -> Rule:
    step = known.step()

    def arrive(now):
        if now.g is None:
            return -SHRINK * now.x
        return step(now.g) if now.delay < limit else None

    return arrive


# --- Who begins then.


def stop(limit: int, model, arrival, jobs, key):
    """Jobs whose delay reaches the limit are stopped and begin again."""
    late = ~jobs.waiting & (jobs.delay >= limit)
    return jnp.where(late | (jnp.arange(N) == arrival.job), jobs.worker, -1)


def stopped(limit: int, known: Given) -> Order:
    def order(now, jobs):
        late = {j for j, job in enumerate(jobs) if not job.waiting and job.delay >= limit}
        return {j: jobs[j].worker for j in late | {now.job}}

    return order


def wait(model, arrival, jobs, key):
    """Workers begin when enough of them wait."""
    enough = jnp.sum(jobs.waiting) >= AWAITED
    return jnp.where(jobs.waiting & enough, jobs.worker, -1)


def waited(known: Given) -> Order:
    def order(now, jobs):
        waiting = {j: job.worker for j, job in enumerate(jobs) if job.waiting}
        return waiting if len(waiting) >= AWAITED else {}

    return order


def stop_and_wait(model, arrival, jobs, key):
    """Jobs that reach the limit are stopped; the others wait for one another."""
    late = ~jobs.waiting & (jobs.delay >= LIMIT)
    return jnp.where(late, jobs.worker, wait(model, arrival, jobs, key))


def stopped_and_waited(known: Given) -> Order:
    def order(now, jobs):
        late = {j for j, job in enumerate(jobs) if not job.waiting and job.delay >= LIMIT}
        return waited(known)(now, jobs) | {j: jobs[j].worker for j in late}

    return order


def assign(model, arrival, jobs, key):
    """A random worker begins, after its other jobs."""
    return jnp.where(jnp.arange(N) == arrival.job, jax.random.randint(key, (), 0, N, jnp.int32), -1)


def assigned(known: Given) -> Order:
    """The draws are those of the run."""
    worker = known.found.states.server.events.worker
    return lambda now, jobs: {now.job: int(worker[now.t + 1, now.job])}


# --- Cases.


@dataclass(frozen=True)
class Scenario:
    """A server: whether its jobs are local runs, when they are cut, when workers are there, its
    network, and its order as a method has it and in plain Python.
    """

    limit: int = 10**6
    local: bool = False
    timeouts: Sequence[float] | None = None
    spells: Any = None
    latency: float = 0.25
    convention: str = "blocking"
    order: Callable[..., jax.Array] | None = None
    ordered: Callable[[Given], Order] = lambda known: go_on

    @property
    def case(self) -> Case:
        """The case of 200 clusters."""

        def make(setting):
            inner = optax.sgd(INNER, momentum=0.9)
            return asynchronous_server(
                "mine",
                setting.optimizer,
                counted_step(setting.optimizer, self.limit),
                start=lambda model, N: Counted(model.params, model.optimizer, jnp.int32(0)),
                order=self.order,
                local=LocalRuns(inner, H, PULL) if self.local else None,
                timeouts=self.timeouts,
            )

        run = Local(lambda: steps.momentum(INNER), H, PULL)
        return server_case(
            make,
            lambda known: (rule(known, self.limit), self.ordered(known)),
            "momentum",
            local=(lambda known: run) if self.local else None,
            options=Options(
                timeouts=self.timeouts,
                spells=self.spells,
                latency=self.latency,
                convention=self.convention,
            ),
            more=cluster,
            length=EVENTS,
        )


PIPELINED = {"convention": "pipelined", "latency": 0.5}
SCENARIOS = {
    "stops": Scenario(LIMIT, order=partial(stop, LIMIT), ordered=partial(stopped, LIMIT)),
    "only current models": Scenario(order=partial(stop, 1), ordered=partial(stopped, 1)),
    "waiting": Scenario(order=wait, ordered=waited, **PIPELINED),
    "random assignment": Scenario(order=assign, ordered=assigned),
    "local runs": Scenario(local=True, **PIPELINED),
    "time-outs": Scenario(timeouts=TIMEOUTS, **PIPELINED),
    "lifetimes": Scenario(spells=SPELLS, latency=0.0),
    "everything": Scenario(
        limit=LIMIT,
        local=True,
        timeouts=TIMEOUTS,
        spells=SPELLS,
        order=stop_and_wait,
        ordered=stopped_and_waited,
    ),
    "assigned local runs": Scenario(
        local=True, timeouts=TIMEOUTS, order=assign, ordered=assigned, **PIPELINED
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_events_on_random_clusters(name):
    case = SCENARIOS[name].case
    for seed in range(CLUSTERS):
        given.compare(case, given.draws(seed), tolerance=1e-12)
