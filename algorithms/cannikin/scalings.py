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

    Source: Johnson et al., "AdaScale SGD: a user-friendly algorithm for distributed training", 2020.
    """
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
    """
    return float(np.sqrt(total_batch / initial_batch))


@checks.arguments
def constant(noise: NoiseScale, total_batch: int, initial_batch: int) -> float:
    """1, whatever the batch."""
    return 1.0
