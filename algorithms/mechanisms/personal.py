"""Local steps of sampled clients on two parts: one that a server averages, and one that stays with
the client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from algorithms import optimizers
from algorithms.mechanisms.outer import Inner, Outer, mean_change, repeat_rows, restart
from algorithms.optimizers import Model
from dsgd import Algorithm, Communicator, Query, Round, State, checks, network, workers
from dsgd.extend import Params, Period, PyTree, leaf_flags


class Parts(NamedTuple):
    """What a client trains.

    Args:
        shared: the part that the server averages.
        local: the part that stays with the client, also while it does not participate.
    """

    shared: PyTree
    local: PyTree


def each(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns the optimizer of `Parts` that steps on each part with a state of its own."""

    def init(params: Any) -> Parts:
        return Parts(*map(optimizer.init, params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        shared = optimizer.update(updates.shared, state.shared, params.shared)
        local = optimizer.update(updates.local, state.local, params.local)
        return Parts(shared[0], local[0]), Parts(shared[1], local[1])

    return optax.GradientTransformation(init, update)


def joined(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns the optimizer of `Parts` that steps on the whole model."""

    def init(params: Any) -> PyTree:
        return optimizer.init(join(params))

    def update(updates: Any, state: PyTree, params: Any = None) -> tuple[Any, PyTree]:
        whole, state = optimizer.update(join(updates), state, join(params))
        return split_like(whole, params), state

    return optax.GradientTransformation(init, update)


def split(name: str, local: Any, params: Params) -> Parts:
    """Splits a model by leaves, with None in place of those of the other part.

    Args:
        name: name of the method, for error messages.
        local: which leaves stay with the client, as `Parameters.trainable`.
        params: the model.

    Raises:
        ValueError: if `local` does not give bools for a prefix of the parameters.
    """
    chosen = leaf_flags(f"{name}: local", params, local)
    values, structure = jax.tree.flatten(params)
    pairs = list(zip(values, chosen, strict=True))
    return Parts(
        structure.unflatten([None if stays else leaf for leaf, stays in pairs]),
        structure.unflatten([leaf if stays else None for leaf, stays in pairs]),
    )


def split_like(tree: Params, parts: Parts) -> Parts:
    """Splits models or gradients with any leading axes as the model of the parts."""

    def of(part: PyTree) -> PyTree:
        return jax.tree.map(
            lambda leaf, like: None if like is None else leaf, tree, part, is_leaf=_is_none
        )

    return Parts(of(parts.shared), of(parts.local))


def join(parts: Parts) -> Params:
    """Returns the whole model."""
    return jax.tree.map(
        lambda shared, local: local if shared is None else shared, *parts, is_leaf=_is_none
    )


def personal_updates(
    name: str,
    optimizer: optax.GradientTransformation,
    inner: optax.GradientTransformation,
    period: Period,
    via: network.AllReduce,
    *,
    start: Callable[[Params], Parts],
    points: Callable[[Parts], tuple[Params, ...]],
    gradients: Callable[[Params, Parts, tuple[Any, ...]], Parts],
    personal: Callable[[Parts], Params],
    model: Callable[[Parts], Params],
) -> Algorithm:
    r"""Returns the method with local steps on both parts, and an average of the shared one.

    $$ (y^{(n)}, z^{(n)}) \leftarrow (y^{(n)}, z^{(n)}) - \gamma d_n(y^{(n)}, z^{(n)}) \quad H
       \text{ times from } (x_t, z^{(n)}), \qquad
       x_{t+1} = \frac{\sum_{n \in S_t} p_n y^{(n)}}{\sum_{n \in S_t} p_n} $$

    The clients' optimizers start again in each period. Between its periods a client keeps its
    local part z, in `Inner.memory`.

    Args:
        name: for tables and error messages.
        optimizer: the user's.
        inner: the optimizer of `Parts` that is made of it.
        period: H.
        via: communication pattern of the average.
        start: parameters -> the parts of each client.
        points: parts of all clients, leaves `[n, ...]` -> the models at which they query gradients.
        gradients: (x, parts, their gradients at the points) -> d.
        personal: parts -> the clients' personal models, leaves `[n, ...]`.
        model: parts -> local models, leaves `[n, ...]`; the final model is their mean.
    """
    optimizers.require_descent(optimizer)
    period = checks.period(f"{name}: period", period)
    average = optax.sgd(1.0)  # a step along the mean change leads to the mean

    def init(params: Params, N: int) -> State:
        parts = start(params)
        rows = workers.replicate(optimizers.init(inner, parts), N)
        y = Inner(rows.params.shared, rows.optimizer, rows.params.local)
        return State(Outer(*optimizers.init(average, parts.shared)), y)

    def query(state: State, round: Round) -> Any:
        first, *others = map(Query, points(_parts(state.workers)))
        return (first, *others) if others else first

    def update(state: State, answer: Any, round: Communicator) -> State:
        x, y = state.server, state.workers
        parts = _parts(y)
        answers = answer if len(points(parts)) > 1 else (answer,)
        directions = gradients(x.params, parts, answers)
        rows = optimizers.local_step(inner, Model(parts, y.optimizer), directions, round)

        def synchronize(x: Outer, y: Inner) -> tuple[Outer, Inner]:
            if jax.tree.leaves(x.params):
                delta, *_ = mean_change(x, y, round, via)
                step = optimizers.server_step(average, Model(x.params, x.optimizer), delta)
                x = x._replace(params=step.params, optimizer=step.optimizer)
            parts = Parts(repeat_rows(x.params, y.params), y.memory)
            first = optimizers.init_each(inner, parts).optimizer
            return x, Inner(parts.shared, restart(first, y.optimizer), parts.local)

        y = Inner(rows.params.shared, rows.optimizer, rows.params.local)
        return State(*round.every(period, synchronize, x, y))

    def absent(before: Inner, after: Inner) -> Inner:
        return before._replace(params=after.params, optimizer=after.optimizer)

    return Algorithm(
        f"{name}({period})",
        init,
        query,
        update,
        lambda state: model(_parts(state.workers)),
        absent,
        lambda state: personal(_parts(state.workers)),
    )


def _parts(y: Inner) -> Parts:
    return Parts(y.params, y.memory)


def _is_none(node: Any) -> bool:
    return node is None
