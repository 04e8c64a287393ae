"""Estimates of the mean gradient that the server and all workers know."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from dsgd import Round
from dsgd.extend import Params, PyTree, Real


class Estimated(NamedTuple):
    """State of the server, which all workers know.

    Args:
        params, optimizer: the model.
        estimate: the estimate of the gradient, g.
        last: the model of the previous round, if the method needs it, else ().
    """

    params: Params
    optimizer: PyTree
    estimate: Any
    last: Any = ()


def coin(round: Round, probability: Real) -> jax.Array:
    """Returns the coin of a round: whether whole gradients are sent, as in the first round."""
    return jax.random.bernoulli(round.key, probability) | (round.step == 0)
