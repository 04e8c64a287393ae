"""Mini-batch SGD as a user writes it, to be spoilt in one place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import dsgd
from dsgd import workers
from dsgd.network import told


def method(mean=workers.mean, info=lambda gradients, round: told.all_reduced(gradients, round.workers), **members: Any) -> dsgd.Algorithm:
    """Mini-batch SGD, with another mean, another `Info`, or other members."""

    def update(key, state, gradients, round):
        x = state.server - 0.1 * jax.tree.map(mean, gradients)
        return dsgd.State(state.step + 1, x), info(gradients, round)

    right: dict[str, Any] = {
        "init": lambda params, workers: dsgd.State(jnp.int32(0), params),
        "query": lambda state, round: dsgd.Query(state.server),
        "update": update,
        "model": lambda state: state.server,
        "pattern": dsgd.network.ring_all_reduce,
        "name": "mine",
    }
    return dsgd.Algorithm(**{**right, **members})
