"""Constructors for two common kinds of methods: one model shared by all workers, or one model per
worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from algorithms import optimizers, weights
from dsgd import Algorithm, Query, State, Topology
from dsgd.extend import PyTree


def one_model(
    name: str,
    optimizer: optax.GradientTransformation,
    update: Callable,
    ask: Callable | None = None,
) -> Algorithm:
    """Returns a method whose state is one model, the same for all workers.

    Args:
        name: for tables and error messages.
        optimizer: its step.
        update: (Model, gradients `[n, ...]`, Communicator) -> Model.
        ask: (Model, Round) -> Query; None: all workers compute gradients at the model.
    """
    optimizers.require_descent(optimizer)

    def init(params, N):
        return State(optimizers.init(optimizer, params))

    def query(state, round):
        return Query(state.server.params) if ask is None else ask(state.server, round)

    def step(state, gradients, round):
        return State(update(state.server, gradients, round))

    return Algorithm(name, init, query, step, lambda state: state.server.params)


def by_worker(where: str, given: Any, N: int) -> np.ndarray:
    """Returns one number for each worker, `[N]`.

    Args:
        where: of the argument, for the error message.
        given: one number, or one for each worker.
        N: number of workers.

    Raises:
        ValueError: if there are other than N.
    """
    if np.ndim(given) and np.shape(given) != (N,):
        raise ValueError(
            f"{where}: {np.size(given)} numbers for {N} workers; expected one, or one for each"
        )
    return np.broadcast_to(given, N)


def local_models(
    name: str,
    optimizer: optax.GradientTransformation,
    update: Callable,
    *,
    start: Callable | None = None,
    topology: Topology | None = None,
    tracked: bool = False,
    common_start: bool = False,
    absent: Callable | None = None,
) -> Algorithm:
    """Returns a method in which each worker has its own model and computes gradients at it; the
    final model is the workers' mean.

    Args:
        name: for tables and error messages.
        optimizer: each worker's step.
        update: (worker states, gradients, Communicator) -> worker states. Leaves are `[n, ...]`;
            the models are the field `params`.
        start: `optimizers.Model` of equal models, leaves `[N, ...]` -> worker states; None: the
            worker states are the models alone.
        topology: a topology with as many nodes as the problem has workers; None: the method uses
            none.
        tracked: whether the optimizers receive estimates of the mean gradient instead of each
            worker's own gradient.
        common_start: whether all workers must start from the same model (see `with_starts`), for
            example because they keep copies of each other's models.
        absent: see `dsgd.Algorithm`.
    """

    def update_workers(server, models, gradients, round):
        return server, update(models, gradients, round)

    method = with_server(
        name,
        optimizer,
        update_workers,
        server=lambda params: (),
        start=start or (lambda models: models),
        topology=topology,
        common_start=common_start,
        absent=absent,
    )
    if topology is None:
        return method

    def query(state, round):
        if not tracked:
            weights.warn_if_cancelled(name, optimizer, round)
        return method.query(state, round)

    return method._replace(query=query)


def with_server(
    name: str,
    optimizer: optax.GradientTransformation,
    update: Callable,
    *,
    server: Callable,
    start: Callable,
    topology: Topology | None = None,
    common_start: bool = True,
    absent: Callable | None = None,
) -> Algorithm:
    """Returns a method as `local_models` does, with an additional state shared by all workers,
    which a server would hold.

    Args:
        name, optimizer, topology, common_start, absent: see `local_models`.
        update: (shared state, worker states, gradients, Communicator) -> (shared state, worker
            states).
        server: parameters -> shared state.
        start: see `local_models`; required.
    """
    optimizers.require_descent(optimizer)

    def init_from(params, N, models=None):
        if topology is not None:
            topology.require_workers(name, N)
        x = optimizers.init_local(optimizer, params, N, models)
        return State(server(params), start(x))

    def init(params, N):
        return init_from(params, N)

    def step(state, gradients, round):
        return State(*update(state.server, state.workers, gradients, round))

    return Algorithm(
        name,
        init if common_start else init_from,
        lambda state, round: Query(state.workers.params),
        step,
        lambda state: state.workers.params,
        absent,
    )


def gets_average(before: Any, after: Any) -> Any:
    """Returns the state of a worker that did not participate: it keeps its state, except that it
    adopts the averaged model when it returns.
    """
    return before._replace(params=after.params)


def first(tree: PyTree) -> PyTree:
    """Returns the first row of leaves `[k, ...]`."""
    return jax.tree.map(lambda leaf: leaf[0], tree)
