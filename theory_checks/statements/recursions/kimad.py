"""Compares Kimad with its recursion. A table by second, worker and direction gives the bandwidths,
and the method's monitors report them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import algorithms
from algorithms.kimad import allocate, oracle, top_k, uniform
from dsgd import clusters
from dsgd.base import Algorithm
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Symbols
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import LAYERS, D, N, Trajectory
from theory_checks.recursions import kimad
from theory_checks.recursions.kimad import Round, Rule
from theory_checks.recursions.shared import at_one
from theory_checks.statements.recursions.shared import DOUBLE

UP, DOWN = (0.1, 0.3, 0.6, 1.0), (0.2, 0.5)
WEIGHTS = np.array([0.5, 0.25, 0.125, 0.125, 0.0, 1.0])
# All numbers are exact in float32. Workers that compute for 0.375 s have 0.25 s for their message
# to the server; the others compute for 0.5625 s and have 0.125 s. A round lasts a second.
ROUND, WARM_UP = 0.75, 2
COMPUTATION, CONGESTION = np.array([0.375, 0.5625] * 3), 0.5
UP_SECONDS, DOWN_SECONDS = np.array([0.25, 0.125] * 3), 0.0625


class Bandwidths(NamedTuple):
    """Bits per second in each second, `[seconds, N]`, repeated periodically."""

    up: Any
    down: Any


def bandwidths(draws: Draws) -> Bandwidths:
    """Draws integers, from less than the smallest messages need to more than the largest ones
    need.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    return Bandwidths(
        *(
            np.rint(DOUBLE * D * 2 ** rng.uniform(low, high, (5, N)))
            for low, high in ((0, 5), (2, 7))
        )
    )


def placed(of: Instance) -> clusters.Cluster:
    """Returns the cluster with these bandwidths. No transmission window extends over two
    seconds.
    """

    def port(table):
        def now(key, clock, worker):
            return table[jnp.floor(clock).astype(jnp.int32) % table.shape[0], worker]

        return clusters.Quantity(
            now,
            "table",
            True,
            integral=lambda key, clock, seconds, worker: seconds * now(key, clock, worker),
        )

    table: Any = of.more
    return clusters.Cluster(clusters.constant(0.0), port(table.up), port(table.down))


def _make(rule: Callable, optimizer: Any, of: Instance) -> Algorithm:
    return algorithms.kimad_sgd(
        optimizer,
        top_k(UP),
        ROUND,
        computation=COMPUTATION,
        congestion=CONGESTION,
        rule=rule,
        monitor=oracle,
        down=top_k(DOWN),
        weights=WEIGHTS,
        warm_up=WARM_UP,
    )


def _rounds(rule: Rule, inputs: Inputs) -> Iterator[Symbols]:
    table: Any = inputs.more

    def budgets(rounds: Sequence[Round]) -> tuple[np.ndarray, float]:
        up, down = (np.asarray(port)[len(rounds) % len(port)] for port in table)
        return up * UP_SECONDS, down.min() * DOWN_SECONDS

    select_up, select_down = (
        kimad.selecting(LAYERS, kimad.top_k(ratios, DOUBLE), rule, DOUBLE, WARM_UP)
        for ratios in (UP, DOWN)
    )
    rounds = kimad.kimad(
        inputs.x,
        lambda k, x: at_one(inputs.G, k, x, N),
        inputs.step,
        select_up,
        select_down,
        budgets,
        WEIGHTS,
    )
    for symbols in rounds:
        sent = {"bits up": symbols["message_up"], "bits down": np.full(N, symbols["message_down"])}
        yield {
            symbol: symbols[symbol] for symbol in ("x", "x_hat", "u_hat", "sum of w u_hat")
        } | sent


def _seen(found: Trajectory, papers: Symbols) -> Symbols:
    server = found.states.server
    return {
        "x": trajectories.rows(server.model.params, 1),
        "x_hat": trajectories.rows(server.estimate, 1),
        "u_hat": trajectories.rows(found.states.workers.estimate),
        "sum of w u_hat": trajectories.rows(server.updates, 1),
    }


def _case(name: str, rule: Callable, papers: Rule, optimizer: str) -> Case:
    hypotheses = f"compressors by bandwidths; {rule.__name__}"
    make, rounds = partial(_make, rule), partial(_rounds, papers)
    return Case(
        name, "Kimad, algorithm 1", make, rounds, _seen, hypotheses, optimizer, bandwidths, placed
    )


CASES = (
    _case("Kimad", uniform, kimad.uniform, "momentum"),
    _case("Kimad+", allocate, kimad.allocate, "plain"),
)
