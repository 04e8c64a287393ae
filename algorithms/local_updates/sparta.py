"""SPARTA: a few random elements of the models are averaged in every round."""

from __future__ import annotations

import jax
import numpy as np
import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, AllRows, checks, network
from dsgd.extend import require_share, selected_count


@method(
    sends="a random part of the models, by an all-reduce",
    paper="SPARTA: EXO Labs, 2025",
    settings={"fraction": 0.2},
    candidates={"language models": [{}]},
)
@checks.arguments
def sparta(
    optimizer: optax.GradientTransformation,
    fraction: float = 0.005,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""SPARTA, sparse parameter averaging: in every round the workers average a random part M of
    the elements of their models.

    $$ x^{(n)} \leftarrow x^{(n)} - \gamma g_n(x^{(n)}), \qquad
       x_i^{(n)} \leftarrow \frac1N \sum_m x_i^{(m)} \text{ for } i \in M_t $$

    A leaf of d elements is divided into $\lceil p d \rceil$ segments of nearly equal length. In
    each round one element of each segment is drawn, with a random key that all workers share, so
    that only the elements are sent, not their indices. With p = 1 the method is model averaging.
    The mean of the models does not change when elements are averaged. The limit is biased, as that
    of `local_sgd` with H of about 1/p. The mean is weighted by the problem's worker weights. A
    worker that does not participate adopts the averages when it returns.

    Args:
        optimizer: each worker's step; its state stays local.
        fraction: p, a float in (0, 1].
        via: as in `local_sgd`.

    Raises:
        ValueError: if p is an integer or not in (0, 1].

    Source: EXO Labs, "SPARTA", 2025, a report; `SparseCommunicator` of its package exo gym draws
    each element independently with probability p, so that the number of elements is random.
    """
    require_share("sparta", "fraction", fraction)

    def update(y: optimizers.Model, gradients, round):
        y = optimizers.local_step(optimizer, y, gradients, round)
        leaves, treedef = jax.tree.flatten(y.params)
        rows = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
        keys = jax.random.split(round.next_key(), len(rows))
        places = [_draw(key, fraction, leaf.shape[1]) for key, leaf in zip(keys, rows, strict=True)]
        parts = [leaf[:, drawn] for leaf, drawn in zip(rows, places, strict=True)]
        averaged = [
            row.at[:, drawn]
            .set(part, unique_indices=True, indices_are_sorted=True)
            .reshape(leaf.shape)
            for row, drawn, part, leaf in zip(
                rows, places, round.average(parts, via), leaves, strict=True
            )
        ]
        return y._replace(params=treedef.unflatten(averaged))

    return methods.local_models(
        f"sparta({fraction:g})", optimizer, update, absent=AllRows(methods.gets_average)
    )


def _draw(key: jax.Array, fraction: float, d: int) -> jax.Array:
    """Returns the indices of the drawn elements of a leaf with d elements, in increasing order. The
    cost is proportional to their number.
    """
    k = selected_count(fraction, d)
    ends = np.arange(k + 1) * d // k
    return jax.random.randint(key, (k,), ends[:-1], ends[1:])
