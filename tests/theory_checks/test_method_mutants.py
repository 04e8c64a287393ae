"""Methods with a mistake, one at a time: the rows on which every round is the paper's, and what holds in every round, find each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
from algorithms import optimizers
from dsgd import workers
from dsgd.base import Algorithm, Info, Query
from theory_checks.machinery import registry
from theory_checks.machinery.statement import Statement
from theory_checks.statements import bits, events, loop, recursions, staleness_aware

Method = Callable[..., Algorithm]
ROWS = {statement.name: statement for module in (recursions, events, bits, loop, staleness_aware) for statement in module.STATEMENTS}


@cache
def row(name: str) -> Statement:
    """As it is registered, or the same without its built instances, where those are of other methods."""
    return ROWS[name]


def spoilt(name: str, mutant: Method) -> Statement:
    """The row with another method in the project's place."""
    statement = ROWS[name]
    return statement._replace(trial=partial(statement.trial, method=mutant), extremes=[])


def edited(method: Method, edit: Callable) -> Method:
    """Whose state is edited after each round: (before, after, round) -> after."""

    def build(*arguments, **options):
        inner = method(*arguments, **options)

        def update(key, state, gradients, round):
            after, info = inner.update(key, state, gradients, round)
            return edit(state, after, round), info

        return inner._replace(update=update)

    return build


def in_workers(**edits: Callable) -> Callable:
    """Edits of parts of the workers' state: name -> (before, after) -> after."""

    def edit(before, after, round):
        parts = {name: one(getattr(before.workers, name), getattr(after.workers, name)) for name, one in edits.items()}
        return after._replace(workers=after.workers._replace(**parts))

    return edit


def stays(before, after):
    return before


def forgotten(before, after):
    return jax.tree.map(jnp.zeros_like, after)


def averaged(before, after):
    """By all, as if it were sent with the models."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.mean(leaf, axis=0), leaf.shape), after)


def asking(method: Method, query: Callable) -> Method:
    """That asks elsewhere: (state, round, its query) -> query."""

    def build(*arguments, **options):
        inner = method(*arguments, **options)
        return inner._replace(query=lambda state, round: query(state, round, inner.query(state, round)))

    return build


def on_gradients(method: Method, change: Callable) -> Method:
    """That takes others for its gradients: (gradients, state, round) -> gradients."""

    def build(*arguments, **options):
        inner = method(*arguments, **options)

        def update(key, state, gradients, round):
            return inner.update(key, state, change(gradients, state, round), round)

        return inner._replace(update=update)

    return build


def at_round(method: Method, turn: Callable) -> Method:
    """That takes every round for another one: step -> step."""

    def build(*arguments, **options):
        inner = method(*arguments, **options)

        def update(key, state, gradients, round):
            return inner.update(key, state, gradients, round._replace(step=turn(round.step)))

        return inner._replace(update=update)

    return build


def on_graph(method: Method, change: Callable) -> Method:
    """On another graph than it is given."""
    return lambda optimizer, topology, *arguments: method(optimizer, change(topology), *arguments)


@cache
def turned(topology):
    """Its messages go the other way."""
    return topology._replace(matrices=tuple(W.T.tocsr() for W in topology.matrices)) if hasattr(topology, "_replace") else None
