r"""What the compressors promise: that they are unbiased, their variance in closed form, and the bounds by which theorems know them.

With $c \le x_i \le c^+$ the knobs around an element, $p$ a probability, $k$ elements kept of d:

- random_quantization (3.3): $\sum_i (x_i - c)(c^+ - x_i) \le \frac{d - 2}{2(2^b - 1)^2} |x|^2$, since the two ends are knobs, each
  product is at most $\Delta^2 / 4$, $\Delta = (\max - \min)/(2^b - 1)$, and $(\max - \min)^2 \le 2|x|^2$. No absolute $\sigma'$ bounds it.
- random_sparsification: keeping with probability p, $(\frac1p - 1) |x|^2$. random_k: $(\frac dk - 1) |x|^2$.
- qsgd: $|x|^2 \sum_i p_i (1 - p_i) / s^2$. ternary: $|x|_\infty |x|_1 - |x|^2$. natural: $\sum_i (|x_i| - 2^e)(2^{e+1} - |x_i|)$.
- top_k: what it drops, at most $(1 - \frac kd)|x|^2$, reached by equal elements. sign: $|x|^2 - |x|_1^2 / d$, at most $(1 - \frac1d)|x|^2$,
  reached by one element alone. low_rank: $|M|^2 - |P^\top M|^2$, where P is one of the columns' span: $\frac r{columns}|M|^2$ less, if
  M has orthonormal columns.

Where every constant is reached is in `WORST`: there many errors are of one size, whatever is drawn, and the two sides are equal without
sampling noise. Where they are not, and for means, 65,536 messages are drawn, so that a probability that is wrong by 1 % is 8 standard
errors off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import compressors
from dsgd.base import Compressor
from dsgd.compressors.members import encode, stated
from theory_checks.machinery.statement import ROUNDING, Draws, Outcome, Statement

_d = 12
_MESSAGES, _OFTEN = 1024, 64  # messages of a trial; trials of what was built
QUICKLY = {"xla_backend_optimization_level": 0}  # what is compiled runs for milliseconds
COARSE = 1e-6 / ROUNDING  # so many times as coarse is float32, as which some code elements, and are uniform draws


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


def _with(*first: float, rest: float, d: int = _d) -> np.ndarray:
    """These elements, and all others alike."""
    return np.r_[first, np.full(d - len(first), rest)]


SIGNS = np.where(np.arange(_d) % 2, -1.0, 1.0)


class Built(NamedTuple):
    """Vectors for an unbiased compressor.

    Args:
        halfway: elements are as likely to become the one as the other.
        exact: elements are what they can become: they arrive as they are.
    """

    compressor: Compressor
    halfway: np.ndarray
    exact: np.ndarray


BUILT = (
    *(
        Built(
            compressors.random_quantization(bits),
            np.r_[0, steps, np.arange(10) % steps + 0.5],
            np.r_[0, steps, np.arange(10) % (steps + 1)],
        )
        for bits, steps in ((1, 1), (3, 7))
    ),
    Built(compressors.qsgd(2), SIGNS * np.r_[np.ones(8), 2, 2, 0, 0], SIGNS * _with(2, 2, 2, 2, rest=0)),
    Built(compressors.ternary, SIGNS * _with(1, rest=0.5), SIGNS * _with(1, 1, 1, rest=0)),
    Built(compressors.natural, 1.5 * SIGNS, SIGNS * 2.0 ** np.arange(-6, 6)),
    Built(compressors.random_k(0.25), SIGNS, np.zeros(_d)),
    Built(compressors.random_sparsification(0.5), SIGNS, np.zeros(_d)),
)


class Worst(NamedTuple):
    """A vector on which a compressor's error is as large as its constant says: omega, or 1 - delta where it has none."""

    compressor: Compressor
    x: np.ndarray

    @property
    def stated(self) -> float:
        """Of |x|^2."""
        return bound(self.compressor, len(self.x))


def bound(compressor: Compressor, d: int) -> float:
    """The mean square error is at most this times |x|^2: omega, or 1 - delta of a biased compressor."""
    if compressor.omega is not None:
        return compressor.omega(d)
    delta = stated(compressor.delta, d)
    assert delta is not None, compressor.name
    return 1 - delta


_TERNARY = _with(1, rest=1 / (1 + math.sqrt(_d)))
WORST = (
    *(Worst(compressors.random_quantization(bits), _with(-1, 1, rest=0)) for bits in (1, 3)),
    Worst(compressors.buckets(compressors.random_quantization(1), 4), np.tile([-1.0, 1.0, 0.0, 0.0], 3)),
    Worst(compressors.qsgd(2), np.ones(16)),
    Worst(compressors.ternary, _TERNARY),
    Worst(compressors.natural, SIGNS * float(np.float32(4 / 3))),
    Worst(compressors.random_k(0.25), SIGNS),
    Worst(compressors.random_k(0.5, compressors.natural), np.full(_d, float(np.float32(4 / 3)))),
    Worst(compressors.random_sparsification(0.5), SIGNS),
    Worst(compressors.top_k(0.25), SIGNS),
    Worst(compressors.sign, _with(0, 1, rest=0)),
    Worst(compressors.clipping(1), SIGNS * float(np.nextafter(np.float32(1.5), np.float32(0)))),
    Worst(compressors.low_rank(1, 3), np.eye(4, 3).ravel()),
    Worst(compressors.contraction(compressors.random_k(0.25)), SIGNS),
    Worst(compressors.contraction(compressors.ternary), _TERNARY),
)


@partial(jax.jit, static_argnames="compressor", compiler_options=QUICKLY)
def _decoded(compressor, key, x):
    """What the receiver decodes from many messages of one vector, `[messages, d]`."""
    keys = jax.random.split(key, _MESSAGES)
    return jax.vmap(lambda key: compressor.decompress(encode(compressor, key, x).message, x.shape[0]))(keys)


def seen(compressor: Compressor, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """A random vector of one of several shapes, `[d]`, and what arrives of it, `[messages, d]`."""
    x = vector(draws)
    return x, _sent(compressor, x, draws)


def _sent(compressor: Compressor, x: np.ndarray, draws: Draws) -> np.ndarray:
    """What arrives of x in many messages, `[messages, d]`."""
    key = jax.random.key(draws.integer(0, 2**31 - 1))
    return np.asarray(_decoded(compressor, key, jnp.asarray(x)))


def vector(draws: Draws) -> np.ndarray:
    """Of numbers that are float32's, too."""
    kind = draws.choice(("normal", "heavy", "sparse", "equal", "one large"))
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    x = {
        "normal": rng.normal(size=_d),
        "heavy": rng.standard_t(1.5, size=_d),
        "sparse": rng.normal(size=_d) * (rng.random(_d) < 0.3),
        "equal": np.full(_d, rng.normal()),
        "one large": np.r_[10.0, np.full(_d - 1, 0.3)],
    }[kind]
    return x.astype(np.float32).astype(float)


def often(compressor: Compressor, x: np.ndarray) -> np.ndarray:
    """What arrives of a vector that was built, `[messages, d]`: once for all statements."""
    return _often(compressor, tuple(x.tolist()))


@cache
def _often(compressor: Compressor, x: tuple[float, ...]) -> np.ndarray:
    keys = jax.random.split(jax.random.key(0), _OFTEN)
    return np.concatenate([_decoded(compressor, key, jnp.asarray(x)) for key in keys])


def _scale(x: np.ndarray) -> float:
    return COARSE * float((x**2).sum())


def _mean(values: np.ndarray) -> tuple[float, float]:
    """And its standard error: 0, not its rounding, of values that are all equal."""
    spread = float(values.std(ddof=1))
    return float(values.mean()), spread / math.sqrt(len(values)) if spread > ROUNDING * float(np.abs(values).max()) else 0.0


def _of_errors(x: np.ndarray, arrived: np.ndarray) -> tuple[float, float]:
    """Mean square of the error, and its standard error."""
    return _mean(np.sum((arrived - x) ** 2, axis=1))


def unbiased(draws: Draws) -> list[Outcome]:
    """Along a random direction, the mean of what arrives is what was sent."""
    compressor = draws.choice([compressor for compressor, _ in VARIANCES])
    x, arrived = seen(compressor, draws)
    away, error = _mean((arrived - x) @ np.random.default_rng(draws.integer(0, 2**32 - 1)).normal(size=_d))
    scale = COARSE * float(np.abs(x).sum())
    return [Outcome(away, 0.0, error, compressor.name, equality=True, scale=scale)]


def halfway(compressor: Compressor, x: np.ndarray) -> list[Outcome]:
    """Where chance is largest: the mean of all elements, up to their signs, and the worst element's."""
    off = often(compressor, x) - x
    means = [_mean(off @ np.where(x < 0, -1.0, 1.0)), *map(_mean, off.T)]
    outcomes = [Outcome(mean, 0.0, error, f"{compressor.name}, halfway", equality=True, scale=1.0) for mean, error in means]
    return [outcomes[0], max(outcomes[1:], key=lambda outcome: outcome.badness)]


def exact(compressor: Compressor, x: np.ndarray) -> list[Outcome]:
    """What can be sent arrives in every message."""
    off = float(np.abs(often(compressor, x) - x).max())
    return [Outcome(off, 0.0, case=f"{compressor.name}, as it can be sent", equality=True, scale=float(np.abs(x).max()))]


def variance(draws: Draws) -> list[Outcome]:
    """The closed form."""
    compressor, right = draws.choice(VARIANCES)
    x, arrived = seen(compressor, draws)
    measured, error = _of_errors(x, arrived)
    return [Outcome(measured, right(x), error, compressor.name, equality=True, scale=_scale(x))]


def variance_halfway(compressor: Compressor, x: np.ndarray, right: Callable[[np.ndarray], float]) -> list[Outcome]:
    """Likewise, of what was built."""
    measured, error = _of_errors(x, often(compressor, x))
    return [Outcome(measured, right(x), error, f"{compressor.name}, halfway", equality=True, scale=_scale(x))]


def relative(draws: Draws) -> list[Outcome]:
    """omega |x|^2."""
    compressor, _ = draws.choice(VARIANCES)
    x, arrived = seen(compressor, draws)
    measured, error = _of_errors(x, arrived)
    return [Outcome(measured, bound(compressor, _d) * float((x**2).sum()), error, compressor.name, scale=_scale(x))]


def contracts(draws: Draws) -> list[Outcome]:
    """(1 - delta) |x|^2."""
    compressor = draws.choice(CONTRACTIONS)
    x, arrived = seen(compressor, draws)
    measured, error = _of_errors(x, arrived)
    return [Outcome(measured, bound(compressor, _d) * float((x**2).sum()), error, compressor.name, scale=_scale(x))]


def worst(of: Worst, *, equality: bool) -> list[Outcome]:
    """The constant, where it is reached: as a bound, or as what it is there."""
    measured, error = _of_errors(of.x, often(of.compressor, of.x))
    return [
        Outcome(measured, of.stated * float((of.x**2).sum()), error, f"{of.compressor.name}, worst", equality=equality, scale=_scale(of.x))
    ]


def reached(draws: Draws) -> list[Outcome]:
    """The same of any length of the vector: powers of two, which natural leaves as hard."""
    of = draws.choice(WORST)
    x = of.x * 2.0 ** draws.integer(-8, 8)
    measured, error = _of_errors(x, _sent(of.compressor, x, draws))
    return [Outcome(measured, of.stated * float((x**2).sum()), error, of.compressor.name, equality=True, scale=_scale(x))]


_BUILT_VARIANCES = [(built.compressor, built.halfway, right) for built, (_, right) in zip(BUILT, VARIANCES, strict=True)]
STATEMENTS = [
    Statement(
        "E Q(x) = x",
        "Assumption 3",
        "Q unbiased",
        unbiased,
        [partial(check, built.compressor, x) for built in BUILT for check, x in ((halfway, built.halfway), (exact, built.exact))],
    ),
    Statement(
        "E|Q(x) - x|^2, closed forms",
        "section 3.1.1",
        "Q unbiased",
        variance,
        [partial(variance_halfway, *built) for built in _BUILT_VARIANCES],
    ),
    Statement(
        "E|Q(x) - x|^2 <= omega |x|^2",
        "section 3.1.1",
        "Q unbiased",
        relative,
        [partial(worst, of, equality=False) for of in WORST if of.compressor.unbiased],
    ),
    Statement(
        "E|C(x) - x|^2 <= (1-delta)|x|^2",
        "Kimad, section 3",
        "C a contraction",
        contracts,
        [partial(worst, of, equality=False) for of in WORST if not of.compressor.unbiased],
    ),
    Statement(
        "omega and delta are reached",
        "sections 3.1.1, 3.2",
        "worst vectors",
        reached,
        [partial(worst, of, equality=True) for of in WORST],
    ),
]
