"""The first-order oracle: gradients where a method asks for them, and the whole objective for the history."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dsgd import workers
from dsgd.base import Gradients, Params, Problem, PyTree, Query
from dsgd.engine import accumulate, protocol

RESERVED = {"step", "clock", "bits", "grad_sqnorm", "consensus", "train_loss", "evaluated", "present"}  # the history's own names


def gradients(problem: Problem, query: Query, key: jax.Array, data: PyTree, N: int, batches: PyTree = None) -> Gradients:
    """One gradient for each worker that the query names, at the models that it names.

    Args:
        problem: whose oracle it is.
        query: see `Query`.
        key: of this round; worker i draws with `fold_in(key, i)`.
        data: the block's data, leaves `[n, ...]`.
        N: number of workers.
        batches: the block's batches where they come from outside, leaves `[n, ...]`; None: drawn from the data.

    Returns:
        Leaves `[n, ...]`; or `[k, ...]`, the same on every device, where the query names k workers.

    Raises:
        ValueError: exact gradients, but the data come from outside.
    """
    return _asked(_gradient(problem), problem, query, key, data, N, batches)


def losses_and_gradients(
    problem: Problem, query: Query, key: jax.Array, data: PyTree, N: int, batches: PyTree = None
) -> tuple[jax.Array, Gradients]:
    """As `gradients`, and before them the losses on the same batches, `[n]` or `[k]`: the gradients' own forward pass, where the problem
    has no gradient function of its own."""

    def both(params, batch):
        loss = protocol.loss(problem)
        if problem.gradient is None:
            return jax.value_and_grad(loss)(params, batch)
        return loss(params, batch), _gradient(problem)(params, batch)

    return _asked(both, problem, query, key, data, N, batches)


def _asked(function: Callable, problem: Problem, query: Query, key: jax.Array, data: PyTree, N: int, batches: PyTree) -> PyTree:
    """`function` of each worker's model and batch."""
    if query.exact and batches is not None:
        raise ValueError("a method that asks for exact gradients, with batches from outside: need a method on batches")

    def draw(ids, data, batches):
        if query.exact:
            return data
        if batches is not None:
            return batches
        return jax.vmap(problem.sample)(jax.vmap(lambda i: jax.random.fold_in(key, i))(ids), data)

    if query.workers is None:
        return jax.vmap(function, (query.axis, 0))(query.params, draw(workers.ids(N), data, batches))
    here, rows = workers.find(query.workers, N)
    data, batches = jax.tree.map(lambda leaf: leaf[rows], (data, batches))
    params = query.params if query.axis is None else jax.tree.map(lambda leaf: leaf[rows], query.params)
    computed = jax.vmap(function, (query.axis, 0))(params, draw(query.workers, data, batches))
    return workers.select(here, computed)


def _gradient(problem: Problem) -> Callable:
    """(params, batch) -> a tree like the parameters: the problem's own, or that of its loss."""

    def its_own(params, batch):
        assert problem.gradient is not None
        with protocol.noted(f"gradient of {problem.name}"):
            slope = problem.gradient(params, batch)
        protocol.same(f"{problem.name}: gradient gives a tree", slope, params)
        return slope

    return its_own if problem.gradient else jax.grad(protocol.loss(problem))


def mean_loss(loss: Callable, params: Params, data: PyTree) -> tuple[jax.Array, Params]:
    """f(params), f'(params) with f = (1/N) sum_n loss(., data[n]), the same on every device: of as many workers at a time as fit."""

    def block(params, data, counted):
        losses = jax.vmap(loss, (None, 0))(params, data)
        return jnp.sum(jnp.where(counted, losses, 0)) / n

    n = jax.tree.leaves(data)[0].shape[0]
    both = jax.jit(jax.value_and_grad(block), inline=True)  # traced once where all fit
    return workers.mean_over_devices(accumulate.total(both, params, data, accumulate.fitting(both, params, data)))


def evaluate(problem: Problem, params: Params, data: PyTree, shared: PyTree) -> tuple[dict[str, jax.Array], Params | None]:
    """Scalars by name, with "loss" = f(params), and f'(params) or None, the same on every device."""
    if problem.evaluate is not None:
        scalars, slope = problem.evaluate(params, data, shared)
        if "loss" not in scalars or RESERVED & set(scalars):
            raise ValueError(f"{problem.name}: evaluate gives {sorted(scalars)}; need 'loss', and none of {sorted(RESERVED)}")
        for name, value in scalars.items():
            protocol.need_scalar(f"{problem.name}: evaluate gives {name!r}", value)
        if slope is not None:
            protocol.same(f"{problem.name}: evaluate gives a slope", slope, params)
        return scalars, slope
    value, slope = mean_loss(problem.loss, params, data)
    return {"loss": value}, slope
