"""Factors of the step size when the total batch changes, and optimizers whose step size can be
scaled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms.cannikin.noise_scale import NoiseScale
from dsgd import checks
from dsgd.base import PyTree

Scaling = Callable[[NoiseScale, int, int], float]


@checks.arguments
def adascale(noise: NoiseScale, total_batch: int, initial_batch: int) -> float:
    r"""Returns AdaScale's factor of the step size: the progress of a step with batch B relative to
    B_0.

    $$ r = \frac{\operatorname{tr} \Sigma / B_0 + |G|^2}{\operatorname{tr} \Sigma / B + |G|^2} $$

    Args:
        noise: estimates of tr Sigma and |G|^2; negative ones count as 0, and without any estimate
            the factor is 1.
        total_batch, initial_batch: B, B_0.

    Raises:
        ValueError: if B or B_0 is less than 1.

    Source: Johnson et al., "AdaScale SGD: a user-friendly algorithm for distributed training",
    2020.
    """
    _require_batches("adascale", total_batch, initial_batch)
    if not noise.seen:
        return 1.0
    variance, sqnorm = max(float(noise.noise), 0.0), max(float(noise.sqnorm), 0.0)
    below = variance / total_batch + sqnorm
    return (variance / initial_batch + sqnorm) / below if below > 0 else 1.0


@checks.arguments
def square_root(noise: NoiseScale, total_batch: int, initial_batch: int) -> float:
    r"""Returns the factor $\sqrt{B / B_0}$, for optimizers that normalize the gradient, such as
    Adam.

    Args:
        noise: not used.
        total_batch, initial_batch: B, B_0.

    Raises:
        ValueError: if B or B_0 is less than 1.
    """
    _require_batches("square_root", total_batch, initial_batch)
    return float(np.sqrt(total_batch / initial_batch))


@checks.arguments
def constant(noise: NoiseScale, total_batch: int, initial_batch: int) -> float:
    """Returns the factor 1 for every batch. The arguments are those of `square_root`."""
    _require_batches("constant", total_batch, initial_batch)
    return 1.0


class Scale(NamedTuple):
    """Factor of an optimizer's steps.

    Args:
        factor: a scalar.
    """

    factor: jax.Array


@checks.arguments
def scalable(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns the optimizer with a step size that `cannikin.train` can change between epochs
    without recompilation.

    Args:
        optimizer: an optax optimizer.
    """

    def update(updates, state, params=None):
        return jax.tree.map(lambda u: (state.factor * u).astype(u.dtype), updates), state

    return optax.chain(
        optimizer,
        optax.GradientTransformation(lambda params: Scale(jnp.ones((), jnp.float32)), update),
    )


def rescale(name: str, state: PyTree, factor: float) -> PyTree:
    """Returns the state with another factor in every `Scale`.

    Raises:
        ValueError: if the factor is not a finite number above 0, or is not 1 although no optimizer
            is `scalable`.
    """

    def put(node):
        return Scale(jnp.full_like(node.factor, factor)) if isinstance(node, Scale) else node

    if not (checks.is_number(factor) and 0 < factor < np.inf):
        raise ValueError(
            f"{name}: scaling returned {checks.show(factor)}; expected a finite number > 0"
        )
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Scale))
    if factor != 1 and not any(isinstance(leaf, Scale) for leaf in leaves):
        raise ValueError(
            f"{name}: scaling returned {factor:g}, but the optimizer's step size is fixed; "
            "expected an optimizer wrapped in cannikin.scalable(optimizer)"
        )
    return jax.tree.map(put, state, is_leaf=lambda node: isinstance(node, Scale))


def _require_batches(name: str, total_batch: int, initial_batch: int) -> None:
    checks.positive_int(f"cannikin.{name}: total_batch", total_batch)
    checks.positive_int(f"cannikin.{name}: initial_batch", initial_batch)
