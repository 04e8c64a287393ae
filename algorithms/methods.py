"""Methods of two common kinds: whose state is one model that all workers have, and whose workers
have a model each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from algorithms import optimizers, weights
from dsgd.base import Algorithm, PyTree, Query, State
from dsgd.graphs.topology import Topology


def one_model(
    name: str,
    optimizer: optax.GradientTransformation,
    update: Callable,
    ask: Callable | None = None,
) -> Algorithm:
    """A method that holds one model, the same for all workers.

    Args:
        name: for tables and error messages.
        optimizer: its step.
        update: (Model, gradients `[n, ...]`, Communicator) -> Model.
        ask: (Model, Round) -> Query; None: all workers are asked at the model.
    """
    optimizers.require_descent(optimizer)

    def init(params, N):
        return State(optimizers.start(optimizer, params))

    def query(state, round):
        return Query(state.server.params) if ask is None else ask(state.server, round)

    def step(state, gradients, round):
        return State(update(state.server, gradients, round))

    return Algorithm(name, init, query, step, lambda state: state.server.params)


def local_models(
    name: str,
    optimizer: optax.GradientTransformation,
    update: Callable,
    *,
    start: Callable | None = None,
    topology: Topology | None = None,
    tracked: bool = False,
    absent: Callable | None = None,
) -> Algorithm:
    """A method whose workers have a model each, at which they compute gradients; the mean of the
    models is taken home.

    Args:
        name: for tables and error messages.
        optimizer: each worker's step.
        update: (what the workers have, gradients, Communicator) -> the same; leaves `[n, ...]`, the
            models are its `params`.
        start: `optimizers.Model` of equal models, leaves `[N, ...]` -> what the workers have; None:
            nothing else.
        topology: for as many workers as the problem has; None: the method has none.
        tracked: whether optimizers get estimates of the mean gradient instead of the workers' own
            gradients.
        absent: as in `dsgd.Algorithm`.
    """

    def of_workers(server, models, gradients, round):
        return server, update(models, gradients, round)

    method = with_server(
        name,
        optimizer,
        of_workers,
        server=lambda params: (),
        start=start or (lambda models: models),
        absent=absent,
    )
    if topology is None:
        return method

    def init(params, N):
        topology.require_workers(name, N)
        return method.init(params, N)

    def query(state, round):
        if not tracked:
            weights.warn_if_cancelled(name, optimizer, round)
        return method.query(state, round)

    return method._replace(init=init, query=query)


def with_server(
    name: str,
    optimizer: optax.GradientTransformation,
    update: Callable,
    *,
    server: Callable,
    start: Callable,
    absent: Callable | None = None,
) -> Algorithm:
    """As `local_models`, of workers that also have something in common, which a server would hold.

    Args:
        update: (what all have in common, what the workers have, gradients, Communicator) -> both.
        server: parameters -> what all have in common.
        others: as of `local_models`.
    """
    optimizers.require_descent(optimizer)

    def init(params, N):
        return State(server(params), start(optimizers.start_local(optimizer, params, N)))

    def step(state, gradients, round):
        return State(*update(state.server, state.workers, gradients, round))

    return Algorithm(
        name,
        init,
        lambda state, round: Query(state.workers.params),
        step,
        lambda state: state.workers.params,
        absent,
    )


def gets_average(before: Any, after: Any) -> Any:
    """A worker that did not participate keeps what it had, except for its model: it gets the
    average when it comes back.
    """
    return before._replace(params=after.params)


def first(tree: PyTree) -> PyTree:
    """The first row of leaves `[k, ...]`."""
    return jax.tree.map(lambda leaf: leaf[0], tree)
