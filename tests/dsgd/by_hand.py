"""Mini-batch SGD as a user writes it, with a mistake in one place if a test requests it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

import dsgd


def method(
    mean: Callable = lambda gradient, round: round.mean(gradient), **members: Any
) -> dsgd.Algorithm:
    """Returns mini-batch SGD.

    Args:
        mean: (one leaf of the gradients `[n, ...]`, Communicator) -> the mean of all workers
            `[...]`.
        members: members of `dsgd.Algorithm` that replace its own.
    """

    def update(state, gradients, round):
        return dsgd.State(
            state.server - 0.1 * jax.tree.map(lambda leaf: mean(leaf, round), gradients)
        )

    right: dict[str, Any] = {
        "name": "mine",
        "init": lambda params, workers: dsgd.State(params),
        "query": lambda state, round: dsgd.Query(state.server),
        "update": update,
        "model": lambda state: state.server,
    }
    return dsgd.Algorithm(**{**right, **members})


KEY = jax.random.key(0)


def run(method: dsgd.Algorithm, problem: dsgd.Problem, steps: int, **options: Any) -> dsgd.Result:
    """Calls `dsgd.run` on one device with key 0, unless the options differ."""
    return dsgd.run(method, problem, steps=steps, **({"key": KEY, "mesh": 1} | options))
