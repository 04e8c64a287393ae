"""The effect on a round of workers that do not participate in it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from dsgd import workers
from dsgd.base import Round, State
from dsgd.engine.protocol import Method
from dsgd.engine.queries import AllAsked, Asked, map_each, mask_work, whole_batches


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

    def mask_query(query: Asked) -> Asked:
        if query.work is None:
            if isinstance(asked, Asked):  # its gradients are computed for all workers and not used
                return query
            query = query._replace(work=whole_batches(round.problem, round.workers), whole=True)
        if query.whole or query.samples is not None:
            active = present if query.active is None else query.active & present
            query = query._replace(active=active)
        return mask_work(query, present)

    return map_each(mask_query, asked)
