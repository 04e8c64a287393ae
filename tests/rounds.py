"""One round of a method, with results that the loop of `dsgd.run` does not return, inside
`shard_map`.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import PartitionSpec as P

import dsgd
from dsgd.communication import Bits, Statistics
from dsgd.engine import queries
from dsgd.engine.oracle import Oracle
from dsgd.engine.protocol import Method

STATE: Any = dsgd.State(P(), P("workers"), P(), P())
"""Layout of the state of one round on the devices."""


def statistics_over(*axes: None) -> Any:
    """Returns the layout of the statistics of rounds, with these axes in front of those of one
    round.
    """
    rows = P(*axes, "workers")
    return Statistics(Bits(rows, rows, rows, rows), P(), P(), P(), P(), P(), rows)  # type: ignore[arg-type]


def states_over(*axes: None) -> Any:
    """Returns the layout of the states of rounds in the same way."""
    return STATE._replace(workers=P(*axes, "workers"))


def one(
    algorithm: dsgd.Algorithm,
    problem: dsgd.Problem,
    state: dsgd.State,
    round: dsgd.Round,
    data: Any,
    draw: jax.Array,
    key: jax.Array,
) -> tuple[dsgd.State, dsgd.Gradients, Statistics]:
    """Returns the state after a round, the gradients from which it was computed, and the statistics
    of its messages.

    Args:
        algorithm, problem: with their arrays or without.
        state, round: as in the loop.
        data: data of the problem, a block.
        draw: key of the batches.
        key: key of the messages.
    """
    N = round.workers
    method = Method(algorithm, problem, N)
    asked = method.query(state, round)
    answer = queries.map_each(lambda query: Oracle(problem, N, data).gradients(query, draw), asked)
    work = queries.local_work(asked, problem, N)
    after, record = method.update(state, answer, round._replace(work=work), key)
    return after, answer, record.statistics(N)
