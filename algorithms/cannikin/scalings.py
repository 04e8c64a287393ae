"""What the step size is multiplied by when the total batch changes, and optimisers whose step size
can be.
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
    r"""What the step size of the initial batch is multiplied by: as much more as one step brings.

    $$ r = \frac{\operatorname{tr} \Sigma / B_0 + |G|^2}{\operatorname{tr} \Sigma / B + |G|^2} $$

    Args:
        noise: estimates of tr Sigma and |G|^2, of which what is negative counts as 0; where nothing
            was seen: 1.
        total_batch, initial_batch: B, B_0.

    Raises:
        ValueError: B or B_0 < 1.

    Source: Johnson et al., "AdaScale SGD: a user-friendly algorithm for distributed training",
    2020.
    """
    _need_batches("adascale", total_batch, initial_batch)
    if not noise.seen:
        return 1.0
    variance, sqnorm = max(float(noise.noise), 0.0), max(float(noise.sqnorm), 0.0)
    below = variance / total_batch + sqnorm
    return (variance / initial_batch + sqnorm) / below if below > 0 else 1.0


@checks.arguments
def square_root(noise: NoiseScale, total_batch: int, initial_batch: int) -> float:
    r"""$\sqrt{B / B_0}$, for optimisers that divide by the gradient's size.

    Args:
        noise: not used.
        total_batch, initial_batch: B, B_0.

    Raises:
        ValueError: B or B_0 < 1.
    """
    _need_batches("square_root", total_batch, initial_batch)
    return float(np.sqrt(total_batch / initial_batch))


@checks.arguments
def constant(noise: NoiseScale, total_batch: int, initial_batch: int) -> float:
    """1, whatever the batch. Arguments as of `square_root`."""
    _need_batches("constant", total_batch, initial_batch)
    return 1.0


class Scale(NamedTuple):
    """What the optimiser's steps are multiplied by.

    Args:
        factor: a scalar.
    """

    factor: jax.Array


@checks.arguments
def scalable(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same optimiser, whose step size `cannikin.train` may change between epochs, without
    compiling again.

    Args:
        optimizer: of optax.
    """

    def update(updates, state, params=None):
        return jax.tree.map(lambda u: (state.factor * u).astype(u.dtype), updates), state

    return optax.chain(
        optimizer,
        optax.GradientTransformation(lambda params: Scale(jnp.ones((), jnp.float32)), update),
    )


def rescaled(name: str, state: PyTree, factor: float) -> PyTree:
    """With another factor wherever there is one.

    Raises:
        ValueError: a factor that is no number above 0, or not 1 where no optimiser was made
            `scalable`.
    """

    def put(node):
        return Scale(jnp.full_like(node.factor, factor)) if isinstance(node, Scale) else node

    if not (checks.is_number(factor) and 0 < factor < np.inf):
        raise ValueError(
            f"{name}: scaling gives {checks.shown(factor)}: need a finite number above 0"
        )
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Scale))
    if factor != 1 and not any(isinstance(leaf, Scale) for leaf in leaves):
        raise ValueError(
            f"{name}: a step size times {factor:g}, but its optimiser's is fixed: need "
            "cannikin.scalable(optimizer)"
        )
    return jax.tree.map(put, state, is_leaf=lambda node: isinstance(node, Scale))


def _need_batches(name: str, total_batch: int, initial_batch: int) -> None:
    checks.positive_int(f"cannikin.{name}: total_batch", total_batch)
    checks.positive_int(f"cannikin.{name}: initial_batch", initial_batch)
