"""The effect on a round of workers that do not participate in it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from dsgd import workers
from dsgd.base import Round, State
from dsgd.engine.protocol import Method
from dsgd.engine.queries import Asked


def state(method: Method, before: State, after: State, round: Round) -> State:
    """Returns the state after a round. Workers that do not participate have the state that the
    method's `absent` gives; if no worker participates, the server's state does not change.
    """
    if round.present is None:
        return after
    rows = workers.where_rows(
        round.present, after.workers, method.absent(before.workers, after.workers)
    )
    server = jax.tree.map(partial(jnp.where, jnp.any(round.present)), after.server, before.server)
    return after._replace(server=server, workers=rows)


def query(asked: Asked, round: Round) -> Asked:
    """Returns the query with no local work for workers that do not participate."""
    if round.present is None or asked.work is None:
        return asked
    samples = jnp.where(round.present[:, None], asked.work.samples, 0)
    return asked._replace(work=asked.work._replace(samples=samples))
