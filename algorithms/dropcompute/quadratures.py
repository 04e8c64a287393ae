r"""The seconds of the slowest of N workers whose micro-batches take normal times, by adaptive quadrature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

FAR = 12.0  # standard deviations: what is beyond has a probability below 1e-32
FURTHEST = 40.0  # not even the largest of as many as float64 has numbers for is beyond
ACCURACY = 1e-12  # of an integral in standard deviations
NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)


def capped(cap: Any, N: np.ndarray) -> Any:
    r"""$\mathbb E \min(z, \max_n Z_n)$ of N independent standard normal Z, $z - \int_{-\infty}^z \Phi(x)^N dx$.

    Args:
        cap: z, any shape; where it is infinite, the mean of the largest of N.
        N: of the same shape.
    """
    from scipy.special import log_ndtr  # noqa: PLC0415 (training is spared its import)

    top = np.clip(cap, -FAR, FURTHEST)
    below = _integral(lambda share: np.exp(N * log_ndtr(share * (top + FAR) - FAR)), top + FAR)
    return top - below + np.minimum(cap + FAR, 0)


def overshoot(tau: np.ndarray, mean: float, std: float, micro_batches: int, N: np.ndarray) -> Any:
    r"""What a check between micro-batches adds to $\mathbb E \min(\tau, T)$, $\int_\tau^\infty 1 - P(S \le x)^N dx$, in seconds.

    A worker is beyond $x > \tau$ if one of its M micro-batches begins at u, at tau at the latest, and ends beyond x:

    $$ P(S > x) = \bar\Phi\Big(\frac{x - \mu}{\sigma}\Big) + \int_{-\infty}^\tau \sum_{m=1}^{M-1} p_m(u)\,
       \bar\Phi\Big(\frac{x - u - \mu}{\sigma}\Big) du $$

    with $p_m$ the density of $T^{(m)}$: both factors change over $\sigma$ or more, so that the rule is Gauss's on pieces of that length.

    Args:
        tau: seconds, any shape; infinity: nothing is added.
        mean, std: of a micro-batch, seconds.
        micro_batches: M.
        N: workers, of tau's shape.
    """
    from scipy.special import ndtr  # noqa: PLC0415 (likewise)

    longest = mean + FAR * std
    pieces = int(np.ceil(longest / std))
    width = longest / pieces
    before = ((np.arange(pieces)[:, None] + (NODES + 1) / 2) * width).ravel()  # tau - u: who begins earlier is not beyond it
    started = np.zeros((*tau.shape, before.size))
    for m in range(1, micro_batches):
        scale = np.sqrt(m) * std
        with np.errstate(over="ignore"):  # far beyond all of them
            started += np.exp(-(((tau[..., None] - before - m * mean) / scale) ** 2) / 2) / (scale * np.sqrt(2 * np.pi))
    started *= np.tile(WEIGHTS / 2 * width, pieces)

    def some_beyond(share: float) -> Any:
        x = share * longest
        beyond = ndtr((mean - tau - x) / std) + started @ ndtr((mean - before - x) / std)
        with np.errstate(divide="ignore"):  # where each is certain to be
            return -np.expm1(N * np.log1p(-np.minimum(beyond, 1)))

    return _integral(some_beyond, np.full(tau.shape, longest / std)) * std


def _integral(function: Callable[[float], Any], length: Any) -> Any:
    """Of a function of the share of a way of that length, an array of them at once."""
    from scipy.integrate import quad_vec  # noqa: PLC0415 (a sixth of a second that training is spared)

    if not np.size(length):
        return length
    return quad_vec(lambda share: length * function(share), 0, 1, epsabs=ACCURACY, epsrel=0, norm="max")[0]
