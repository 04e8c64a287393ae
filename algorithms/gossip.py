"""What decentralized methods share: which topologies and step sizes they take, and compressed
models at their start.
"""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dsgd import checks, communication
from dsgd.base import Compressor, Params
from dsgd.graphs.topology import Topology

Step = Annotated[float | jax.Array, "a number in (0, 1]"]


def need(
    method: str,
    topology: Topology,
    *,
    doubly_stochastic: bool = True,
    symmetric: bool = False,
    fixed: bool = False,
) -> None:
    """Refuses a topology that the method cannot use.

    Args:
        method: for the error message.
        topology: what was given.
        doubly_stochastic: rows of W must sum to 1, too.
        symmetric: W must be symmetric.
        fixed: one W for all rounds, no schedule.

    Raises:
        ValueError: not one of that kind.
    """
    if fixed and topology.period > 1:
        raise ValueError(
            f"{method} on {topology.name}, a schedule of {topology.period} rounds: need one "
            "mixing matrix for all rounds"
        )
    if symmetric and not topology.symmetric:
        raise ValueError(
            f"{method} on {topology.name}, whose W is not symmetric: need an undirected graph "
            "with symmetric weights"
        )
    if doubly_stochastic and not topology.doubly_stochastic:
        raise ValueError(
            f"{method} on {topology.name}, where rows of W do not sum to 1: need a doubly "
            "stochastic W"
            " (algorithms.stochastic_gradient_push takes any that keeps the mean)"
        )


def need_step(method: str, value: Any) -> None:
    """Raises a ValueError where the step of the consensus is not in (0, 1]. Traced ones, of a
    sweep, are not known yet.
    """
    if isinstance(value, Tracer):
        return
    if np.ndim(value) or not 0 < value <= 1:
        raise ValueError(
            f"{method}: consensus_step = {checks.shown(value)}: need a number in (0, 1]"
        )


def midpoint(one: Any, other: Any) -> Any:
    """The mean of two arrays of one type, of numpy or JAX; of half precision it is computed in
    float32.
    """
    wide = jnp.promote_types(one.dtype, jnp.float32)
    return ((one.astype(wide) + other.astype(wide)) / 2).astype(one.dtype)


def start_compressed(method: str, compressor: Compressor, params: Params) -> Any:
    """What stands for the messages before the first one, of models `[N, ...]`.

    Raises:
        ValueError: a compressor that states no contraction for them.
    """
    vectors = communication.flat(params, compressor.layer_wise)
    communication.need_contraction(method, compressor, vectors)
    return communication.last_messages(compressor, vectors)
