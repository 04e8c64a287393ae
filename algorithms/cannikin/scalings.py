"""What the step size is multiplied by when the total batch changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from algorithms.cannikin.noise_scale import NoiseScale
from dsgd import checks

Scaling = Callable[[NoiseScale, int, int], float]


@checks.arguments
def adascale(noise: NoiseScale, total_batch: int, initial_batch: int) -> float:
    r"""What the step size of the initial batch is multiplied by: as much more as one step brings.

    $$ r = \frac{\operatorname{tr} \Sigma / B_0 + |G|^2}{\operatorname{tr} \Sigma / B + |G|^2} $$

    Args:
        noise: estimates of tr Sigma and |G|^2, of which what is negative counts as 0; where nothing was seen: 1.
        total_batch, initial_batch: B, B_0.

    Raises:
        ValueError: B or B_0 < 1.

    Source: Johnson et al., "AdaScale SGD: a user-friendly algorithm for distributed training", 2020.
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


def _need_batches(name: str, total_batch: int, initial_batch: int) -> None:
    checks.positive_int(f"cannikin.{name}: total_batch", total_batch)
    checks.positive_int(f"cannikin.{name}: initial_batch", initial_batch)
