"""Workers' weights in methods in which every worker has its own optimizer."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
import optax

from dsgd import Round


def warn_if_cancelled(name: str, optimizer: optax.GradientTransformation, round: Round) -> None:
    """Warns if the problem's weights have no effect because the workers' optimizers are invariant
    to the scale of the gradient.

    Args:
        name: of the method.
        optimizer: each worker's optimizer, which receives the worker's own gradients.
        round: the current round.
    """
    if round.problem is not None and round.problem.weights is not None and _cancels(optimizer):
        warnings.warn(
            f"{name}: the problem has weights, but the steps of this optimizer do not depend on "
            "the size of a worker's gradient (as Adam's do not), so that the weights have no "
            "effect; pass optax.sgd, with momentum if wanted, or use "
            "algorithms.local_sgd(optimizer, 1) without a topology, whose average of models is "
            "weighted",
            stacklevel=3,
        )


def _cancels(optimizer: optax.GradientTransformation) -> bool:
    """Returns whether twice the gradient gives the same first step; False if a scalar gradient does
    not show it.
    """
    zero: Any = np.float32(0)

    def step(gradient: Any) -> float:
        change: Any = optimizer.update(gradient, optimizer.init(zero), zero)[0]
        return float(change)

    try:
        with jax.ensure_compile_time_eval():
            one, two = step(np.float32(1e-3)), step(np.float32(2e-3))
    except Exception:  # an optimizer that fails on a scalar may work on the model
        return False
    return one != 0 and abs(two - one) <= 1e-3 * abs(one)
