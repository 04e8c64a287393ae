"""What a round makes of those who are away from it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from dsgd import workers
from dsgd.base import Algorithm, Query, Round, State


def state(algorithm: Algorithm, before: State, after: State, round: Round) -> State:
    """The state after a round: who was away has what the method says of it; where all were, the server has what it had."""
    if round.present is None:
        return after
    assert callable(algorithm.away)
    rows = workers.where_rows(round.present, after.workers, algorithm.away(before.workers, after.workers, round))
    server = jax.tree.map(partial(jnp.where, jnp.any(round.present)), after.server, before.server)
    return after._replace(server=server, workers=rows)


def query(asked: Query, round: Round) -> Query:
    """What is asked for, of which those who are away compute nothing."""
    if round.present is None or asked.work is None:
        return asked
    samples = jnp.where(round.present[:, None], asked.work.samples, 0)
    return asked._replace(work=asked.work._replace(samples=samples))


def mean(losses: jax.Array, present: jax.Array | None) -> jax.Array:
    """The mean over those that take part in the round, bool `[N]`; NaN where nobody does."""
    if present is None:
        return workers.mean(losses)
    counted = workers.where_rows(present, workers.widened(losses), jnp.zeros_like(losses))
    return workers.sum(counted) / jnp.sum(present)
