"""A method's queries in the engine's form, including what follows from their shapes.

What a method asks for in a round is one `Asked`, or a tuple or named tuple of them (`AllAsked`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd.base import LocalWork, Params, Problem, PyTree, Query
from dsgd.work import in_samples


class Asked(NamedTuple):
    """Where the workers compute gradients, and how much local work they do.

    Args:
        params, workers, exact, work, loss: as in `dsgd.Query`.
        axis: worker axis of `params`, as in `jax.vmap`: 0 if the models are stacked, None if there
            is one model for all workers.
        first_batch: number of each worker's first micro-batch of this round, int32 `[N]`; None:
            draws are not numbered.
        active: as in `dsgd.Query`, bool `[N]`.
        samples: as in `dsgd.Query`, int32 `[N, b]`.
    """

    params: PyTree
    axis: int | None = None
    workers: jax.Array | None = None
    exact: bool = False
    work: LocalWork | None = None
    first_batch: jax.Array | None = None
    active: Any = None
    samples: Any = None
    loss: bool = False


AllAsked = Asked | tuple[Asked, ...]


def each(asked: AllAsked) -> tuple[Asked, ...]:
    """Returns the queries of a round."""
    return (asked,) if isinstance(asked, Asked) else tuple(asked)


def mapped(function: Callable[[Asked], Any], asked: AllAsked) -> Any:
    """Applies a function to each query of a round; returns its result for a single query, otherwise
    a tuple or named tuple of the results.
    """
    return jax.tree.map(function, asked, is_leaf=lambda node: isinstance(node, Asked))


def local_work(query: Asked, problem: Problem, N: int, M: int = 1) -> LocalWork | None:
    """Returns the local work of a query, with no samples for workers that are not active; None: one
    batch of every worker.

    Args:
        query: one query.
        problem: the problem, which sets the size of a batch.
        N: number of workers.
        M: number of micro-batches that a query without local work counts as.
    """
    if query.work is None and query.active is None and query.samples is None:
        return None
    given = query.work or _whole(query, problem, N, M)
    if query.active is None:
        return given
    return given._replace(samples=jnp.where(query.active[:, None], given.samples, 0))


def of_round(asked: AllAsked, problem: Problem, N: int) -> LocalWork | None:
    """Returns the local work of a round: that of its query, or the micro-batches of several queries
    one after the other.
    """
    if isinstance(asked, Asked):
        return local_work(asked, problem, N)
    works = [some_work(query, problem, N) for query in asked]
    samples, weights = zip(*((work.samples, work.weights) for work in works), strict=True)
    return LocalWork(jnp.concatenate(samples, axis=1), jnp.concatenate(weights, axis=1))


def some_work(query: Asked, problem: Problem, N: int) -> LocalWork:
    """Returns the local work of a query, which is one batch of every worker if it has none."""
    return local_work(query, problem, N) or _whole(query, problem, N, 1)


def micro_batches(asked: AllAsked, default: int) -> int:
    """Returns the number of micro-batches of a round, in which a query without local work counts as
    `default`, and one that chooses its samples as 1.
    """
    return sum(
        query.work.samples.shape[1] if query.work else default if query.samples is None else 1
        for query in each(asked)
    )


def loss_type(params: PyTree) -> Any:
    """Returns the type of the losses that a query asks for."""
    return jnp.result_type(jnp.float32, *jax.tree.leaves(params))


def _whole(query: Asked, problem: Problem, N: int, M: int) -> LocalWork:
    """Returns M whole batches of every worker, or the samples that the query chooses."""
    if query.samples is not None:
        b = query.samples.shape[1]
        return LocalWork(jnp.full((N, 1), b, jnp.int32), jnp.ones((N, 1)))
    batches = LocalWork(np.ones((N, M), bool), np.full((N, M), 1 / M, jnp.result_type(float)))
    return in_samples(batches, problem.batch_size, problem.batch_sizes)


def asked(query: Query, like: Params) -> Asked:
    """Converts a method's query, whose work is in samples, to the engine's form.

    Args:
        query: query of a method.
        like: one model, or its shapes.
    """
    first_batch = None if query.work is None else query.work.first_batch
    return Asked(
        query.params,
        0 if is_stacked(query.params, like) else None,
        query.workers,
        query.exact,
        query.work,
        first_batch,
        query.active,
        query.samples,
        query.loss,
    )


def is_stacked(params: PyTree, like: Params) -> bool:
    """Whether `params` are the models of a block, leaves `[n, ...]`, instead of one model like
    `like`. Only the number and the ranks of leaves are compared.
    """
    given, wanted = jax.tree.leaves(params), jax.tree.leaves(like)
    return len(given) == len(wanted) and all(
        jnp.ndim(leaf) == jnp.ndim(want) + 1 for leaf, want in zip(given, wanted, strict=True)
    )
