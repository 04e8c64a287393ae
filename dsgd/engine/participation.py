"""What a round makes of workers that do not participate in it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from dsgd import workers
from dsgd.base import Round, State
from dsgd.engine.protocol import Method
from dsgd.engine.queries import Asked


def state(method: Method, before: State, after: State, round: Round) -> State:
    """The state after a round: workers that do not participate have what the method says of them;
    if none does, the server keeps its.
    """
    if round.present is None:
        return after
    rows = workers.where_rows(
        round.present, after.workers, method.absent(before.workers, after.workers)
    )
    server = jax.tree.map(partial(jnp.where, jnp.any(round.present)), after.server, before.server)
    return after._replace(server=server, workers=rows)


def query(asked: Asked, round: Round) -> Asked:
    """The query, of which workers that do not participate compute nothing."""
    if round.present is None or asked.work is None:
        return asked
    samples = jnp.where(round.present[:, None], asked.work.samples, 0)
    return asked._replace(work=asked.work._replace(samples=samples))
