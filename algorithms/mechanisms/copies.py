"""Copies and estimates of the workers' vectors, which compressed differences update equally on all
workers that keep them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.gossip import start_compressed
from dsgd import Communicator, Compressor, Topology
from dsgd.extend import Params


class Estimates(NamedTuple):
    """Local models and their estimates, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        x_hat: the estimate that the neighbours keep of the worker's model.
        laplacian: the weighted sum of the differences between the neighbours' estimates and x_hat.
        last: the last messages, from which a warm-started compressor starts.
    """

    params: Any
    optimizer: Any
    x_hat: Any
    laplacian: Any
    last: Any


class Copies(NamedTuple):
    """The copies of the workers' vectors that each worker keeps.

    A worker keeps the copies of its neighbours one by one instead of their weighted sum: a sum that
    is updated for many rounds differs from that of the copies by rounding errors, which a method
    that accumulates differences of copies would add up in every round.

    Args:
        own: H, the copy of the worker's own vector, leaves `[n, ...]`.
        others: the neighbours' copies, leaves `[n, K, ...]`, where K is the degree of the graph.
        last: the last messages, from which a warm-started compressor starts.
    """

    own: Any
    others: Any
    last: Any


def start_copies(
    method: str,
    compressor: Compressor,
    value: Params,
    topology: Topology,
    *,
    unbiased: bool = False,
) -> Copies:
    """Returns copies that are equal on all workers, so that no message is necessary.

    Args:
        method: name for the error message.
        compressor: compressor of the differences.
        value: the first copy, with the same row for all workers, leaves `[N, ...]`.
        topology: the graph.
        unbiased: see `start_compressed`.
    """
    last = start_compressed(method, compressor, value, unbiased=unbiased)
    others = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], topology.degree, axis=1), value)
    return Copies(value, others, last)


def update_copies(
    round: Communicator,
    compressor: Compressor,
    vectors: Params,
    copies: Copies,
    topology: Topology,
    share: Any = 1,
) -> tuple[Params, Copies]:
    r"""Sends the compressed differences $Q_t = C(X_t - H_t)$ of vectors and copies to the
    neighbours.

    $$ \hat X_t = H_t + Q_t, \qquad H_{t+1} = H_t + \alpha Q_t $$

    Args:
        round: the current round.
        compressor: C.
        vectors: X, leaves `[n, ...]`.
        copies: H.
        topology: W, the same in all rounds.
        share: alpha.

    Returns:
        $\hat X_t (W - I)$, leaves `[n, ...]`, and the new copies.

    Raises:
        ValueError: if workers may not participate, or messages may be lost.
    """
    round.require_all("a worker that misses a message no longer has its neighbour's copy")
    difference = optax.tree.sub(vectors, copies.own)
    sent = round.to_neighbours(compressor, difference, topology, copies.last, one_by_one=True)
    received, weights = sent.received
    estimates = optax.tree.add((copies.own, copies.others), (sent.decoded, received))
    own, others = jax.tree.map(
        lambda h, q: h + jnp.asarray(share, h.dtype) * q,
        (copies.own, copies.others),
        (sent.decoded, received),
    )
    return _pull(estimates, weights), Copies(own, others, sent.messages)


def _pull(estimates: tuple[Params, Params], weights: jax.Array) -> Params:
    r"""Returns $\sum_m W_{nm} (x_m - x_n)$ from each worker's own vectors `[n, ...]` and those of
    its neighbours `[n, K, ...]`; half precision is summed in float32.
    """
    own, others = estimates

    def pull(x, rows):
        wide = jnp.promote_types(x.dtype, jnp.float32)
        differences = rows.astype(wide) - x.astype(wide)[:, None]
        shares = weights.astype(wide).reshape(*weights.shape, *[1] * (x.ndim - 1))
        return jnp.sum(shares * differences, axis=1).astype(x.dtype)

    return jax.tree.map(pull, own, others)
