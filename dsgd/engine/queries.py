"""A method's query in the engine's form, including what follows from its shapes."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dsgd.base import LocalWork, Params, PyTree, Query


class Asked(NamedTuple):
    """Where the workers compute gradients, and how much local work they do.

    Args:
        params, workers, exact, work: as in `dsgd.Query`.
        axis: worker axis of `params`, as in `jax.vmap`: 0 if the models are stacked, None if there
            is one model for all workers.
        first_batch: number of each worker's first micro-batch of this round, int32 `[N]`; None:
            draws are not numbered.
    """

    params: PyTree
    axis: int | None = None
    workers: jax.Array | None = None
    exact: bool = False
    work: LocalWork | None = None
    first_batch: jax.Array | None = None


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
    )


def is_stacked(params: PyTree, like: Params) -> bool:
    """Whether `params` are the models of a block, leaves `[n, ...]`, instead of one model like
    `like`. Only the number and the ranks of leaves are compared.
    """
    given, wanted = jax.tree.leaves(params), jax.tree.leaves(like)
    return len(given) == len(wanted) and all(
        jnp.ndim(leaf) == jnp.ndim(want) + 1 for leaf, want in zip(given, wanted, strict=True)
    )
