"""Models of push-sum, which are divided by its weights."""

from __future__ import annotations

from typing import Any

import jax

from dsgd import State, workers
from dsgd.extend import Params


def models(pushed: Any) -> Params:
    """Returns the models divided by the push-sum weights, leaves `[n, ...]`.

    Args:
        pushed: state with fields `params` and `weight`.
    """
    w = pushed.weight
    return jax.tree.map(
        lambda x: x / w.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1)), pushed.params
    )


def mean_model(state: State) -> Params:
    """Returns the sum of the workers' models divided by the sum of their push-sum weights."""
    x, w = workers.sum(workers.widen((state.workers.params, state.workers.weight)))
    return workers.narrow(jax.tree.map(lambda x: x / w.astype(x.dtype), x), state.workers.params)
