"""Weights of workers in methods in which every worker has an optimizer of its own."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
import optax

from dsgd.base import Round


def warn_if_cancelled(name: str, optimizer: optax.GradientTransformation, round: Round) -> None:
    """Warns if the workers' gradients have weights, which their optimizers divide out again.

    Args:
        name: of the method.
        optimizer: each worker's, on its own gradients.
        round: the present one.
    """
    if round.problem is not None and round.problem.weights is not None and _cancels(optimizer):
        warnings.warn(
            f"{name}: the workers have weights, but steps of this optimizer do not depend on the "
            "size of a worker's gradient (as Adam's),"
            " so that the weights have no effect; pass optax.sgd, with momentum if wanted, or use "
            "algorithms.local_sgd(optimizer, 1)"
            " without a topology, whose average of models has the weights",
            stacklevel=3,
        )


def _cancels(optimizer: optax.GradientTransformation) -> bool:
    """Whether twice the gradient gives the same first step; False if one number does not tell."""
    zero: Any = np.float32(0)

    def step(gradient: Any) -> float:
        change: Any = optimizer.update(gradient, optimizer.init(zero), zero)[0]
        return float(change)

    try:
        with jax.ensure_compile_time_eval():
            one, two = step(np.float32(1e-3)), step(np.float32(2e-3))
    except Exception:  # it is only a probe: what fails on a scalar may work on the model
        return False
    return one != 0 and abs(two - one) <= 1e-3 * abs(one)
