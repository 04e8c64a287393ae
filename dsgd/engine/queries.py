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
from dsgd.work import to_samples


class Asked(NamedTuple):
    """Where the workers compute gradients, and how much local work they do.

    Args:
        params, workers, exact, samples, loss: as in `dsgd.Query`; samples are int32 `[N, b]`.
        axis: worker axis of `params`, as in `jax.vmap`: 0 if the models are stacked, None if there
            is one model for all workers.
        work: local work in samples, 0 for workers that are not active; None: one batch of every
            worker.
        whole: whether the work is one batch of each active worker, which counts as the
            `micro_batches` of a cluster.
        active: as in `dsgd.Query`, bool `[N]`.
        first_batch: number of each worker's first micro-batch of this round, int32 `[N]`; None:
            draws are not numbered.
    """

    params: PyTree
    axis: int | None = None
    workers: jax.Array | None = None
    exact: bool = False
    work: LocalWork | None = None
    whole: bool = False
    active: Any = None
    first_batch: jax.Array | None = None
    samples: Any = None
    loss: bool = False


AllAsked = Asked | tuple[Asked, ...]


def each(asked: AllAsked) -> tuple[Asked, ...]:
    """Returns the queries of a round."""
    return (asked,) if isinstance(asked, Asked) else tuple(asked)


def map_each(function: Callable[[Asked], Any], asked: AllAsked) -> Any:
    """Applies a function to each query of a round; returns its result for a single query, otherwise
    a tuple or named tuple of the results.
    """
    return jax.tree.map(function, asked, is_leaf=lambda node: isinstance(node, Asked))


def local_work(asked: AllAsked, problem: Problem, N: int) -> LocalWork | None:
    """Returns the local work of a round: that of its query, or the micro-batches of several queries
    one after the other.
    """
    if isinstance(asked, Asked):
        return asked.work
    works = [query.work or whole_batches(problem, N) for query in asked]
    samples, weights = zip(*((work.samples, work.weights) for work in works), strict=True)
    return LocalWork(jnp.concatenate(samples, axis=1), jnp.concatenate(weights, axis=1))


def whole_batches(problem: Problem, N: int, M: int = 1) -> LocalWork:
    """Returns the local work of M whole batches of every worker."""
    batches = LocalWork(np.ones((N, M), bool), np.full((N, M), 1 / M, jnp.result_type(float)))
    return to_samples(batches, problem.batch_size, problem.sampler.batch_sizes)


def each_samples(
    query: Asked, problem: Problem, N: int, present: jax.Array | None = None
) -> jax.Array:
    """Returns how many samples each worker that the query asks computes, int32 `[N]` or `[k]`; for
    problems without a batch size, how many draws. An exact gradient is that of all samples of a
    worker.

    Args:
        query, problem, N: query on a problem of N workers.
        present: participation, bool `[N]`; None: all workers participate.
    """
    work = query.work or whole_batches(problem, N)
    each = jnp.sum(work.samples, axis=1)
    if query.exact and problem.local_samples:
        each = jnp.where(each > 0, np.asarray(problem.local_samples, np.int32), 0)
    if present is not None:
        each = jnp.where(present, each, 0)
    return each if query.workers is None else each[query.workers]


def count_samples(asked: AllAsked, problem: Problem, N: int) -> jax.Array:
    """Returns how many samples each worker computes in a round, int32 `[N]`, as `each_samples`."""

    def count(query: Asked) -> jax.Array:
        computed = each_samples(query, problem, N)
        if query.workers is None:
            return computed
        return jnp.zeros(N, computed.dtype).at[query.workers].set(computed)

    return sum(map(count, each(asked)), jnp.zeros(N, jnp.int32))


def micro_batches(asked: AllAsked, default: int) -> int:
    """Returns the number of micro-batches of a round, in which a query without local work counts as
    `default`.
    """
    return sum(
        default if query.work is None or query.whole else query.work.samples.shape[1]
        for query in each(asked)
    )


def loss_type(params: PyTree) -> Any:
    """Returns the type of the losses that a query asks for."""
    return jnp.result_type(jnp.float32, *jax.tree.leaves(params))


def convert(query: Query, like: Params, problem: Problem, N: int) -> Asked:
    """Converts a method's query, whose work is in samples, to the engine's form.

    Args:
        query: query of a method.
        like: one model, or its shapes.
        problem: the problem, which sets the size of a batch.
        N: number of workers.
    """
    work, whole = query.work, False
    if query.samples is not None:
        b = query.samples.shape[1]
        work = LocalWork(jnp.full((N, 1), b, jnp.int32), jnp.ones((N, 1)))
    elif work is None and query.active is not None:
        work, whole = whole_batches(problem, N), True
    first_batch = None if work is None else work.first_batch
    axis = 0 if is_stacked(query.params, like) else None
    result = Asked(
        query.params,
        axis,
        query.workers,
        query.exact,
        work,
        whole,
        query.active,
        first_batch,
        query.samples,
        query.loss,
    )
    return result if query.active is None else mask_work(result, result.active)


def mask_work(query: Asked, active: jax.Array) -> Asked:
    """Returns the query with no work for workers that are not active, bool `[N]`."""
    assert query.work is not None
    samples = jnp.where(active[:, None], query.work.samples, 0)
    return query._replace(work=query.work._replace(samples=samples))


def is_stacked(params: PyTree, like: Params) -> bool:
    """Whether `params` are the models of a block, leaves `[n, ...]`, instead of one model like
    `like`. Only the number and the ranks of leaves are compared.
    """
    given, wanted = jax.tree.leaves(params), jax.tree.leaves(like)
    return len(given) == len(wanted) and all(
        jnp.ndim(leaf) == jnp.ndim(want) + 1 for leaf, want in zip(given, wanted, strict=True)
    )
