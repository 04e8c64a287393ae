"""The effect on a round of workers that do not participate in it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from dsgd import workers
from dsgd.base import Round, State
from dsgd.engine.protocol import Method
from dsgd.engine.queries import AllAsked, Asked, mapped


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


def query(asked: AllAsked, round: Round) -> AllAsked:
    """Returns the queries with no local work for workers that do not participate."""
    present = round.present
    if present is None:
        return asked
    # The gradients of a single query for one batch are computed for all workers and not used.
    plain = isinstance(asked, Asked) and asked.samples is None

    def of_present(query: Asked) -> Asked:
        if query.work is not None:
            samples = jnp.where(present[:, None], query.work.samples, 0)
            query = query._replace(work=query.work._replace(samples=samples))
        elif query.active is not None or not plain:
            active = present if query.active is None else query.active & present
            query = query._replace(active=active)
        return query

    return mapped(of_present, asked)
