r"""What the compressors promise: that they are unbiased, their variance in closed form, and the bounds by which theorems know them.

With $c \le x_i \le c^+$ the knobs around an element, $p$ a probability, $k$ elements kept of d:

- random_quantization (3.3): $\sum_i (x_i - c)(c^+ - x_i) \le \frac{d - 2}{2(2^b - 1)^2} |x|^2$, since the two ends are knobs, each
  product is at most $\Delta^2 / 4$, $\Delta = (\max - \min)/(2^b - 1)$, and $(\max - \min)^2 \le 2|x|^2$. No absolute $\sigma'$ bounds it.
- random_sparsification: keeping with probability p, $(\frac1p - 1) |x|^2$. random_k: $(\frac dk - 1) |x|^2$.
- qsgd: $|x|^2 \sum_i p_i (1 - p_i) / s^2$. ternary: $|x|_\infty |x|_1 - |x|^2$. natural: $\sum_i (|x_i| - 2^e)(2^{e+1} - |x_i|)$.
- top_k: what it drops, at most $(1 - \frac kd)|x|^2$, reached by equal elements. sign: $|x|^2 - |x|_1^2 / d$.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import compressors
from dsgd.base import Compressor
from theory_checks.machinery.statement import ROUNDING, Draws, Outcome, Statement

_d = 12
_MESSAGES = 1024
_FLOAT32 = 4e-6  # rounding of what is sent, relative to |x|^2


def _quantized(bits: int) -> Callable[[np.ndarray], float]:
    def variance(x: np.ndarray) -> float:
        step = (x.max() - x.min()) / (2**bits - 1)
        place = (x - x.min()) / (step or 1)
        share = place - np.floor(place)
        return float(step**2 * np.sum(share * (1 - share)))

    return variance


def _qsgd(levels: int) -> Callable[[np.ndarray], float]:
    def variance(x: np.ndarray) -> float:
        norm = np.linalg.norm(x)
        place = levels * np.abs(x) / (norm or 1)
        share = place - np.floor(place)
        return float((norm / levels) ** 2 * np.sum(share * (1 - share)))

    return variance


def _natural(x: np.ndarray) -> float:
    size = np.abs(x[x != 0])
    below = 2.0 ** np.floor(np.log2(size))
    return float(np.sum((size - below) * (2 * below - size)))


VARIANCES: tuple[tuple[Compressor, Callable[[np.ndarray], float]], ...] = (
    (compressors.random_quantization(1), _quantized(1)),
    (compressors.random_quantization(3), _quantized(3)),
    (compressors.qsgd(2), _qsgd(2)),
    (compressors.ternary, lambda x: float(np.abs(x).max() * np.abs(x).sum() - (x**2).sum())),
    (compressors.natural, _natural),
    (compressors.random_k(0.25), lambda x: (_d / 3 - 1) * float((x**2).sum())),
    (compressors.random_sparsification(0.5), lambda x: float((x**2).sum())),
)
"""Unbiased compressors, and the mean square of their errors on vectors of 12 elements."""

CONTRACTIONS = (
    compressors.top_k(0.25),
    compressors.sign,
    compressors.clipping(1),
    compressors.low_rank(1),
    compressors.contraction(compressors.random_k(0.25)),
    compressors.contraction(compressors.ternary),
)


@partial(jax.jit, static_argnames=("compress", "decompress"))
def _seen(compress, decompress, key, x):
    """What the receiver makes of one vector in many messages, `[messages, d]`."""
    return jax.vmap(lambda key: decompress(compress(key, x), _d))(jax.random.split(key, _MESSAGES))


def seen(compressor: Compressor, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """A random vector of one of several shapes, `[d]`, and what arrives of it, `[messages, d]`; float64 numbers of float32."""
    kind = draws.choice(("normal", "heavy", "sparse", "equal", "one large"))
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    x = {
        "normal": rng.normal(size=_d),
        "heavy": rng.standard_t(1.5, size=_d),
        "sparse": rng.normal(size=_d) * (rng.random(_d) < 0.3),
        "equal": np.full(_d, rng.normal()),
        "one large": np.r_[10.0, np.full(_d - 1, 0.3)],
    }[kind].astype(np.float32)
    arrived = _seen(compressor.compress, compressor.decompress, jax.random.key(draws.integer(0, 2**31 - 1)), jnp.asarray(x))
    return x.astype(float), np.asarray(arrived, np.float64)


def _scale(x: np.ndarray) -> float:
    return _FLOAT32 / ROUNDING * float((x**2).sum())


def _of_errors(x: np.ndarray, arrived: np.ndarray) -> tuple[float, float]:
    """Mean square of the error, and its standard error."""
    squares = np.sum((arrived - x) ** 2, axis=1)
    return float(squares.mean()), float(squares.std(ddof=1) / math.sqrt(len(squares)))


def unbiased(draws: Draws) -> list[Outcome]:
    """Along a random direction, the mean of what arrives is what was sent."""
    compressor = draws.choice([compressor for compressor, _ in VARIANCES])
    x, arrived = seen(compressor, draws)
    away = (arrived - x) @ np.random.default_rng(draws.integer(0, 2**32 - 1)).normal(size=_d)
    error = float(away.std(ddof=1) / math.sqrt(len(away)))
    scale = _FLOAT32 / ROUNDING * float(np.abs(x).sum())
    return [Outcome(float(away.mean()), 0.0, error, compressor.name, equality=True, scale=scale)]


def variance(draws: Draws) -> list[Outcome]:
    """The closed form."""
    compressor, right = draws.choice(VARIANCES)
    x, arrived = seen(compressor, draws)
    measured, error = _of_errors(x, arrived)
    return [Outcome(measured, right(x), error, compressor.name, equality=True, scale=_scale(x))]


def relative(draws: Draws) -> list[Outcome]:
    """omega |x|^2."""
    compressor, _ = draws.choice(VARIANCES)
    x, arrived = seen(compressor, draws)
    measured, error = _of_errors(x, arrived)
    return [Outcome(measured, compressor.omega(_d) * float((x**2).sum()), error, compressor.name, scale=_scale(x))]


def contracts(draws: Draws) -> list[Outcome]:
    """(1 - delta) |x|^2."""
    compressor = draws.choice(CONTRACTIONS)
    x, arrived = seen(compressor, draws)
    measured, error = _of_errors(x, arrived)
    return [Outcome(measured, (1 - compressor.delta(_d)) * float((x**2).sum()), error, compressor.name, scale=_scale(x))]


STATEMENTS = [
    Statement("E Q(x) = x", "Assumption 3", "Q unbiased", unbiased),
    Statement("E|Q(x) - x|^2, closed forms", "section 3.1.1", "Q unbiased", variance),
    Statement("E|Q(x) - x|^2 <= omega |x|^2", "section 3.1.1", "Q unbiased", relative),
    Statement("E|C(x) - x|^2 <= (1-delta)|x|^2", "Kimad, section 3", "C a contraction", contracts),
]
