"""Helpers of decentralized methods: validation of topologies and consensus steps, and copies of the
workers' vectors that compressed differences update.
"""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import Compressor, Topology, checks, communication
from dsgd.extend import Params

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
    _require_period(method, topology, fixed)
    if symmetric and not topology.symmetric:
        raise ValueError(
            f"{method}: W of {topology.name} is not symmetric; expected an undirected graph with "
            "symmetric weights"
        )
    if topology.role != "gossip" and not topology.doubly_stochastic:
        raise ValueError(
            f"{method}: {topology.name} is a topology for {topology.role!r}, which only "
            "algorithms.push_pull, ab and r_fast use; expected one for 'gossip': pass other "
            "weights than topologies.pull and topologies.push"
        )
    if doubly_stochastic and not topology.doubly_stochastic:
        raise ValueError(
            f"{method}: the rows of W of {topology.name} do not sum to 1; expected a doubly "
            "stochastic W (algorithms.stochastic_gradient_push and algorithms.push_diging take any "
            "W with columns that sum to 1)"
        )


def require_pull_and_push(
    name: str, pull: Topology, push: Topology, *, fixed: bool = False
) -> None:
    """Raises a ValueError unless a method can average models by the matrix of `pull` and sum
    trackers by that of `push`. `fixed`: whether neither may be a schedule.
    """
    for topology in (pull, push):
        topology.require_one_exchange(name)
        _require_period(name, topology, fixed)
    if not pull.row_stochastic:
        raise ValueError(
            f"{name}: pull: the rows of W of {pull.name} do not sum to 1; expected a topology with "
            "weights=topologies.pull, or a doubly stochastic one"
        )
    if not push.column_stochastic:
        raise ValueError(
            f"{name}: push: the columns of W of {push.name} do not sum to 1; expected a topology "
            "with weights=topologies.push or topologies.uniform, or a doubly stochastic one"
        )
    if pull.n != push.n or pull.names != push.names:
        raise ValueError(
            f"{name}: pull = {pull.name} has {_workers(pull)}, push = {push.name} has "
            f"{_workers(push)}; expected the same workers in the same order"
        )
    if not np.intersect1d(pull.roots, push.roots).size:
        raise ValueError(
            f"{name}: the workers that reach all others on {pull.name} are {_roots(pull)}, those "
            f"that all others reach on {push.name} are {_roots(push)}; expected one in common"
        )


def require_step(method: str, value: Any) -> None:
    """Raises a ValueError if the consensus step is not in (0, 1]. A traced value, as in a sweep, is
    not checked.
    """
    checks.number(f"{method}: consensus_step", value, "(0, 1]")


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
    vectors = communication.flatten(params, compressor.layer_wise)
    if not (unbiased and compressor.unbiased):
        communication.require_contraction(method, compressor, vectors)
    return communication.last_messages(compressor, vectors)


def _require_period(method: str, topology: Topology, fixed: bool) -> None:
    if fixed and topology.period > 1:
        raise ValueError(
            f"{method}: {topology.name} is a schedule of {topology.period} rounds; expected a "
            "topology with one mixing matrix for all rounds"
        )


def _workers(topology: Topology) -> str:
    return (
        f"{topology.n} workers"
        if topology.names is None
        else f"the workers {checks.show(topology.names)}"
    )


def _roots(topology: Topology) -> str:
    """Returns the topology's roots as text."""
    names = topology.names or range(topology.n)
    return checks.show([names[root] for root in topology.roots])
