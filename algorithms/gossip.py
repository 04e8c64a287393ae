"""Helpers of decentralized methods: validation of topologies and consensus steps, and copies of the
workers' vectors that compressed differences update.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dsgd import Communicator, checks, communication
from dsgd.base import Compressor, Params
from dsgd.graphs.topology import Topology

Step = Annotated[float | jax.Array, "a number in (0, 1]"]

SUMMED = (
    "each worker keeps the sum of its neighbours' messages, which would be wrong after a lost "
    "message"
)


def require_topology(
    method: str,
    topology: Topology,
    *,
    doubly_stochastic: bool = True,
    symmetric: bool = False,
    fixed: bool = False,
) -> None:
    """Validates that a method can use the topology. A topology for "pull" or "push" is not accepted
    unless W is doubly stochastic.

    Args:
        method: name for the error message.
        topology: the topology to validate.
        doubly_stochastic: whether the rows of W must sum to 1.
        symmetric: whether W must be symmetric.
        fixed: whether W must be the same in all rounds (no schedule).

    Raises:
        ValueError: if the topology does not have these properties.
    """
    if fixed and topology.period > 1:
        raise ValueError(
            f"{method}: {topology.name} is a schedule of {topology.period} rounds; expected a "
            "topology with one mixing matrix for all rounds"
        )
    if symmetric and not topology.symmetric:
        raise ValueError(
            f"{method}: W of {topology.name} is not symmetric; expected an undirected graph with "
            "symmetric weights"
        )
    if topology.role != "gossip" and not topology.doubly_stochastic:
        raise ValueError(
            f"{method}: {topology.name} is a topology for {topology.role!r}, which only "
            "algorithms.push_pull and algorithms.ab use; expected one for 'gossip': pass other "
            "weights than topologies.pull and topologies.push"
        )
    if doubly_stochastic and not topology.doubly_stochastic:
        raise ValueError(
            f"{method}: the rows of W of {topology.name} do not sum to 1; expected a doubly "
            "stochastic W (algorithms.stochastic_gradient_push and algorithms.push_diging take any "
            "W with columns that sum to 1)"
        )


def require_step(method: str, value: Any) -> None:
    """Raises a ValueError if the consensus step is not in (0, 1]. A traced value, as in a sweep, is
    not checked.
    """
    checks.within(f"{method}: consensus_step", value, "(0, 1]")


def midpoint(one: Any, other: Any) -> Any:
    """Returns the mean of two NumPy or JAX arrays of the same type; half precision is computed in
    float32.
    """
    wide = jnp.promote_types(one.dtype, jnp.float32)
    return ((one.astype(wide) + other.astype(wide)) / 2).astype(one.dtype)


def require_unbiased(method: str, compressor: Compressor) -> None:
    """Raises a ValueError if the compressor of a method on a graph is biased."""
    if not compressor.unbiased:
        raise ValueError(
            f"{method}: the compressor {compressor.name} is biased; expected an unbiased one, such "
            "as compressors.qsgd or compressors.random_quantization (algorithms.beer, choco_sgd "
            "and deepsqueeze take biased contractions)"
        )


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
    return _pulled(estimates, weights), Copies(own, others, sent.messages)


def _pulled(estimates: tuple[Params, Params], weights: jax.Array) -> Params:
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


def start_compressed(
    method: str, compressor: Compressor, params: Params, *, unbiased: bool = False
) -> Any:
    """Returns the initial value of a compressor's last messages, for models `[N, ...]`.

    Args:
        method: name for the error message.
        compressor: the compressor.
        params: leaves `[N, ...]`.
        unbiased: whether unbiased compressors are accepted in addition to contractions.

    Raises:
        ValueError: if the compressor declares no contraction for the models, and is not an accepted
            unbiased one.
    """
    vectors = communication.flat(params, compressor.layer_wise)
    if not (unbiased and compressor.unbiased):
        communication.require_contraction(method, compressor, vectors)
    return communication.last_messages(compressor, vectors)
