r"""What makes up for dropped samples (section 4.5): $R = M / \tilde M - 1 = p / (1 - p)$ times as much again, of steps or of batches. What
draws them again is `drop_compute(..., redraw=True)`."""

from __future__ import annotations

import math

from dsgd import checks


@checks.arguments
def extra_steps(steps: int, drop_rate: float) -> int:
    r"""$\lceil R\, I_{base} \rceil$ steps more.

    Args:
        steps: those without drops.
        drop_rate: p, the share of samples that is dropped, in [0, 1).

    Raises:
        ValueError: steps < 1, or another drop rate.
    """
    return _more("extra_steps", "steps", steps, drop_rate)


@checks.arguments
def larger_batch(size: int, drop_rate: float) -> int:
    r"""$\lceil (1 + R) B \rceil$ for B: of it, so many samples as before are computed on average.

    Args:
        size: B, samples of a micro-batch, or micro-batches: then workers need a threshold that is larger, too, for the same drop rate.
        drop_rate: p, the share that is dropped, in [0, 1).

    Raises:
        ValueError: size < 1, or another drop rate.
    """
    return size + _more("larger_batch", "size", size, drop_rate)


def _more(function: str, what: str, base: int, drop_rate: float) -> int:
    checks.positive_int(f"dropcompute.{function}: {what}", base)
    if not 0 <= drop_rate < 1:
        raise ValueError(f"dropcompute.{function}: drop_rate = {drop_rate}: need a share in [0, 1)")
    return math.ceil(base * drop_rate / (1 - drop_rate) - 1e-9)  # whole numbers stay so: p / (1 - p) rounds
