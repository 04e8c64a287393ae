"""Leaves of the parameters as matrices, and all-reduces of low-rank factors of their mean; shared
by the methods that send factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from dsgd import Algorithm, Communicator, Query, State, workers
from dsgd.extend import Params, PyTree, orthonormal, warm_start, wide

Matrices = list[jax.Array]
"""One array for each leaf that is a matrix: `[n, a, b]` of workers, or `[a, b]`. They are float64
for float64 leaves, else float32."""


class Factored(NamedTuple):
    """State that is the same in all workers.

    Args:
        params: x.
        optimizer: the optimizer's state.
        Q: the right factors, `[b, r]` for each matrix; 0 before the first round.
    """

    params: Any
    optimizer: Any
    Q: Matrices


def sides(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Returns rows and columns of the matrix that a leaf of this shape is, filled row by row; None
    for scalars and vectors.

    The axes are split in two at the place for which rows + columns is smallest. The rows of a
    kernel `[height, width, inputs, outputs]` of a convolution are then its outputs' weights,
    `[height * width * inputs, outputs]`, and those of a kernel `[width, heads, outputs]` of an
    attention layer are `[width, heads * outputs]`. A leaf with a single axis of more than one
    element is a vector.
    """
    cuts = [
        (math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in range(len(shape) - 1, 0, -1)
    ]
    rows, columns = min(cuts, key=sum, default=(1, 1))
    return (rows, columns) if min(rows, columns) > 1 else None


def split(tree: PyTree) -> tuple[Matrices, list[jax.Array]]:
    """Returns the matrices `[n, a, b]` of a tree with leaves `[n, ...]`, and its other leaves.

    A leaf's last axes are output features, as in flax. They are the rows of its matrix, as in the
    papers: a is the number of columns of `sides`, and b the number of rows.
    """
    matrices, others = [], []
    for leaf in jax.tree.leaves(tree):
        if (shape := sides(leaf.shape[1:])) is None:
            others.append(leaf)
        else:
            matrices.append(wide(leaf).reshape(-1, *shape).mT)
    return matrices, others


def join(matrices: Matrices, others: list[jax.Array], like: Params) -> Params:
    """Returns the tree that has the matrices `[a, b]` and the other leaves, in the order in which
    `split` returned them.

    Args:
        matrices, others: the leaves.
        like: a tree of the original shapes and types.
    """
    leaves, treedef = jax.tree.flatten(like)
    of_matrices, of_others = iter(matrices), iter(others)
    return treedef.unflatten(
        next(of_others)
        if sides(leaf.shape) is None
        else next(of_matrices).mT.reshape(leaf.shape).astype(leaf.dtype)
        for leaf in leaves
    )


def times(left: Matrices, right: Matrices) -> Matrices:
    """Returns the products of the matrices, with full precision on every platform."""
    return jax.tree.map(partial(jnp.matmul, precision="highest"), left, right)


def transpose(matrices: Matrices) -> Matrices:
    """Returns the transposes of the matrices."""
    return [matrix.mT for matrix in matrices]


def mean_factors(
    round: Communicator, D: Matrices, Q: Matrices, others: list[jax.Array]
) -> tuple[Matrices, Matrices, list[jax.Array]]:
    r"""Makes one step of power iteration on the mean of the workers' matrices, by two all-reduces.

    $$ P = \mathrm{orth}\Big(\frac1N \sum_n D_n Q\Big), \qquad R = \frac1N \sum_n D_n^\top P $$

    $P R^\top$ is the projection of the mean of the $D_n$ onto the columns of P. The first
    all-reduce also averages the leaves that are no matrices.

    Args:
        round: the current round.
        D: `[n, a, b]` for each matrix.
        Q: `[b, r]` for each matrix; if it is 0, it is drawn from a normal distribution, the same
            for all workers.
        others: leaves `[n, ...]`.

    Returns:
        P, `[a, r]`, and R, `[b, r]`, for each matrix; and the means of the other leaves.
    """
    if not D:
        return [], [], round.mean(others)
    keys = jax.random.split(round.next_key(), len(Q))
    Q = [warm_start(key, last) for key, last in zip(keys, Q, strict=True)]
    P, means = round.mean((times(D, Q), others))
    P = [orthonormal(each) for each in P]
    return P, round.mean(times(transpose(D), P)), means


def with_memory(
    name: str,
    optimizer: optax.GradientTransformation,
    rank: Callable[[int, int], int],
    update: Callable,
) -> Algorithm:
    """Returns a method in which the workers keep a memory of each leaf that is a matrix, from 0,
    and send its factors.

    Workers keep their memory if they do not participate or their messages are lost; their
    gradients are lost.

    Args:
        name: for tables and error messages.
        optimizer: the step along the direction that `update` returns.
        rank: (a, b) -> r, number of columns of the factors.
        update: (gradients `[n, a, b]`, memory `[n, a, b]`, Q, other gradients `[n, ...]`,
            Communicator) -> (direction `[a, b]`, memory, Q, mean of the other gradients).
    """
    optimizers.require_descent(optimizer)

    def init(params, N):
        memory, _ = split(workers.replicate(optax.tree.zeros_like(params), N))
        Q = [jnp.zeros((each.shape[2], rank(*each.shape[1:])), each.dtype) for each in memory]
        return State(Factored(*optimizers.init(optimizer, params), Q), memory)

    def step(state, gradients, round):
        x, memory = state.server, state.workers
        gradients, others = split(gradients)
        direction, memory, Q, others = update(gradients, memory, x.Q, others, round)
        model = optimizers.step(
            optimizer, optimizers.Model(x.params, x.optimizer), join(direction, others, x.params)
        )
        return State(
            workers.if_nonempty(Factored(*model, Q), x),
            workers.where_delivered(memory, state.workers),
        )

    return Algorithm(
        name,
        init,
        lambda state, round: Query(state.server.params),
        step,
        lambda state: state.server.params,
    )
