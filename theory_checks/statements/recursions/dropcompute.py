"""DropCompute compared with its recursion: the durations of micro-batches are given by a table, and
many micro-batches end exactly at the threshold.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import optax

import algorithms
from dsgd.base import Algorithm
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Symbols
from theory_checks.machinery.rounds import Instance, Timetable
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import ROUNDS, N, Trajectory
from theory_checks.recursions import dropcompute
from theory_checks.recursions.dropcompute import Rule

M, H = 4, 3


class Numbers(NamedTuple):
    """Duration of each micro-batch in seconds, `[T, N, M]`, and tau of one round."""

    seconds: Any
    threshold: Any


def numbers(draws: Draws) -> Numbers:
    """Draws multiples of an eighth of a second, which float32 adds exactly; their sums are of the
    order of the threshold.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    return Numbers(rng.integers(1, 9, (ROUNDS, N, M)) / 8, np.float32(draws.integer(6, 24) / 8))


def _make(rule: dict[str, Any], optimizer: optax.GradientTransformation, of: Instance) -> Algorithm:
    period, table = rule.get("period", 1), of.more
    method = (
        algorithms.local_sgd(optimizer, period)
        if period > 1
        else algorithms.minibatch_sgd(optimizer)
    )
    return algorithms.drop_compute(method, period * table.threshold, M, **rule)


def _rounds(rule: dict[str, Any], inputs: Inputs) -> Iterator[Symbols]:
    table, noise = inputs.more, inputs.found.noise

    def G(n: int, t: int, m: int, x: np.ndarray) -> np.ndarray:
        return inputs.exact(t, np.tile(x, (N, 1)))[n] + noise[t, n, m]

    settings = Rule(rule.get("period", 1) * float(table.threshold), M, **rule)
    if settings.period > 1:
        return dropcompute.local(
            inputs.X, G, [inputs.steps() for _ in range(N)], settings, table.seconds
        )
    return dropcompute.minibatch(inputs.x, G, N, inputs.step, settings, table.seconds)


def _seen(found: Trajectory, papers: Symbols) -> Symbols:
    server = found.states.server
    models = (
        {"x": trajectories.rows(server.method.params, 1)}
        if "x" in papers
        else {"params": trajectories.rows(found.states.workers.params)}
    )
    carried = {
        symbol: np.asarray(getattr(server, symbol))
        for symbol in ("spent", "drawn")
        if symbol in papers
    }
    return {**models, **carried, "seconds": found.compute, "dropped": found.metrics["dropped"]}


def _case(name: str, optimizer: str, **rule: Any) -> Case:
    hypotheses = "; ".join(f"{word}: {value}" for word, value in rule.items())
    make, rounds = partial(_make, rule), partial(_rounds, rule)
    place = lambda of: Timetable(of.more.seconds)  # noqa: E731
    return Case(
        f"DropCompute{name}",
        "Algorithm 1",
        make,
        rounds,
        _seen,
        hypotheses,
        optimizer,
        numbers,
        place,
    )


CASES = (
    _case("", "momentum", stop="preempt"),
    _case(", stochastic", "adam", stop="between", correction="stochastic"),
    _case(", local SGD", "momentum", stop="between", correction="local", period=H),
    _case(
        ", local SGD, redrawn",
        "plain",
        stop="preempt",
        correction=1.25,
        period=H,
        resample_dropped=True,
    ),
)
