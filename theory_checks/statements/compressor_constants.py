r"""The constants of compressors: $E|Q(x) - x|^2 \le \omega |x|^2$ for unbiased ones, $E|C(x) - x|^2
\le (1 - \delta) |x|^2$ for contractions, and vectors on which they are attained.

The left side is exact if all draws agree, or if the compressor is unbiased and each decoded element
takes at most two values $l \le x_i \le h$: the mean $x_i$ fixes their probabilities, hence $E
(Q(x)_i - x_i)^2 = (x_i - l)(h - x_i)$. A value that is so rare that it was not drawn makes the left
side smaller. Otherwise the left side is the mean over the draws, with its standard error.
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
from dsgd.compressors.codebooks import dynamic_values
from dsgd.compressors.members import constant_at, encode
from theory_checks.machinery.statement import Draws, Outcome, Statement

LENGTHS = (1, 2, 7, 16)
_DRAWS = 512

Vector = Callable[[int], np.ndarray]  # d -> x


def ones(d: int) -> np.ndarray:
    """Returns equal elements, the worst vector of selections."""
    return np.ones(d)


def alone(d: int) -> np.ndarray:
    """Returns one element among zeros, the worst vector of the scaled sign."""
    return np.eye(d)[0]


def one_large(levels: int) -> Vector:
    r"""Returns one large element, which is sent exactly, among equal ones. With $p / s$ for the
    others they add $p(1 - p) / s^2$ to the variance and $p^2 / s^2$ to $|x|^2$; the quotient is
    largest at $p = (\sqrt{1 + m} - 1) / m$, $m = (d - 1) / s^2$.
    """
    return lambda d: np.r_[1.0, np.full(d - 1, 1 / (levels + math.sqrt(levels**2 + d - 1)))]


def halves(levels: int) -> Vector:
    r"""Returns odd numbers $o_i$ with $|x| \le 2s$, and equal to 2s if possible. If they are equal,
    $s |x_i| / |x| = o_i / 2$ lies between two levels, at the largest variance.
    """

    def odd_numbers(d: int) -> np.ndarray:
        left, found = 4 * levels**2, []
        for others in reversed(range(d)):
            root = math.isqrt(max(1, left - others))
            found.append(root - 1 + root % 2)
            left -= found[-1] ** 2
        return np.array(found, float)

    return odd_numbers


def extremes_and_zeros(d: int) -> np.ndarray:
    """Returns a largest and a smallest element, and zeros halfway between two knobs."""
    return np.r_[[1.0, -1.0][:d], np.zeros(max(0, d - 2))]


def four_thirds(d: int) -> np.ndarray:
    """Returns elements at which rounding to powers of two has its largest variance."""
    return np.full(d, np.float32(4 / 3))


def below_a_knob(bits: int) -> Vector:
    """Returns elements just below the second number with a mantissa of b bits."""
    return lambda d: np.full(d, np.nextafter(np.float32(1 + 2.0**-bits), np.float32(0)))


def three_quarters(d: int) -> np.ndarray:
    """Returns the largest element among elements halfway between two powers of two."""
    return np.r_[1.0, np.full(d - 1, 0.75)]


def opposite(d: int) -> np.ndarray:
    r"""Returns two large elements of both signs among small ones of both signs, $a < 0.75 \sigma$,
    which share the bin of `two_bit` around the mean 0.
    """
    small = 0.99 * math.sqrt(1.125 / (0.4375 * d + 1.125))
    return np.r_[1.0, -1.0, small * (-1.0) ** np.arange(2, d)][:d]


def orthogonal(d: int) -> np.ndarray:
    """Returns a matrix, as `low_rank` forms it, with equal singular values."""
    columns = math.isqrt(d - 1) + 1
    return np.eye(columns)[::-1].ravel()[:d]


def waves(chunk: int) -> Vector:
    """Returns the vector whose coefficients in the cosine transform of each chunk are equal."""

    def inverse(d: int) -> np.ndarray:
        c = next(c for c in range(min(d, chunk), 0, -1) if d % c == 0)
        m, j = np.mgrid[:c, :c]
        T = np.sqrt(np.where(m == 0, 1, 2) / c) * np.cos(np.pi * (2 * j + 1) * m / (2 * c))
        return np.tile(T.sum(axis=0), d // c)

    return inverse


def equal_blocks(block: int) -> Vector:
    """Returns blocks of equal norms."""
    return lambda d: np.r_[
        np.ones(d - d % block), np.full(d % block, math.sqrt(min(d, block) / (d % block or 1)))
    ]


def almost_equal(d: int) -> np.ndarray:
    """Returns different elements of almost equal magnitudes, so that no two have the same rank."""
    return 1 + 1e-6 * np.arange(d)


def first_elements(size: int, worst: Vector) -> Vector:
    """Returns a vector that is 0 outside of its first `size` elements."""
    return lambda d: np.r_[worst(min(d, size)), np.zeros(max(0, d - size))]


def beside(largest: float, others: Callable[[int], float]) -> Vector:
    """Returns a largest element among equal ones of a size that depends on d."""
    return lambda d: np.r_[largest, np.full(d - 1, others(d))]


def midpoints_of_eight_bit(d: int) -> np.ndarray:
    """Returns the largest element, negative so that it is not exact, among those at the midpoint of
    two values that has the largest error for this d.
    """
    values = np.r_[0.0, dynamic_values(), 1.0]
    middles, halves = (values[1:] + values[:-1]) / 2, (values[1:] - values[:-1]) / 2
    error = (1 - values[-2]) ** 2 + (d - 1) * halves**2
    worst = np.argmax(error / (1 + (d - 1) * middles**2))
    return np.r_[-1.0, np.full(d - 1, (1 - 1e-6) * middles[worst])]


def steps_of_dithering(d: int) -> np.ndarray:
    """Returns the largest element among equal ones: above 1/2 if there are few of them, else below
    the smallest of three levels, 1/4.
    """
    omega = constant_at(compressors.natural_dithering(3, "linf").omega, d)
    return beside(1.0, lambda d: (3 / 2 if omega < 1 / 8 else 1 / 4) / (2 * (1 + omega)))(d)


FP4 = compressors.cast("float4_e2m1fn", stochastic=True)


def last_row(columns: int) -> Vector:
    """Returns equal elements in the last row of so many columns, and zeros, the worst vector of a
    count sketch.
    """
    return lambda d: np.r_[np.zeros(d - (d - 1) % columns - 1), np.ones((d - 1) % columns + 1)]


def above_half(d: int) -> np.ndarray:
    """Returns one element just above half of a power of two, and zeros."""
    return np.r_[1 + 1e-6, np.zeros(d - 1)]


WORST: dict[Compressor, Vector] = {
    compressors.random_quantization(3): extremes_and_zeros,
    compressors.qsgd(1): ones,
    compressors.qsgd(2): halves(2),
    compressors.qsgd(2, "linf"): one_large(2),
    compressors.ternary: one_large(1),
    compressors.natural: four_thirds,
    compressors.natural_dithering(1): ones,
    compressors.natural_dithering(3, "linf"): steps_of_dithering,
    FP4: beside(6.0, lambda d: 5 / (1 + constant_at(FP4.omega, d))),
    compressors.cast("float8_e5m2", "power", stochastic=True): lambda d: np.full(d, 10 / 9),
    compressors.random_k(0.25): ones,
    compressors.random_sparsification(0.2): ones,
    compressors.shared_random_k(0.25): ones,
    compressors.with_seed(compressors.random_block(0.25, unbiased=False)): ones,
    compressors.with_seed(compressors.count_sketch(1, 5)): last_row(5),
    compressors.perm_k(3): ones,
    compressors.correlated_quantization(2): above_half,
    compressors.buckets(compressors.ternary, 5): first_elements(5, one_large(1)),
    compressors.sign: alone,
    compressors.clipping(3): below_a_knob(3),
    compressors.e3m0: three_quarters,
    compressors.cast("float8_e4m3fn"): beside(448.0, lambda d: 272.0),
    compressors.cast("float8_e5m2", "power"): lambda d: np.full(d, 9 / 8),
    compressors.cast("bfloat16"): lambda d: np.full(d, 1 + 2.0**-8),
    compressors.one_bit: alone,
    compressors.eight_bit: midpoints_of_eight_bit,
    compressors.two_bit: opposite,
    compressors.top_k(0.25): ones,
    compressors.chunked_top_k(2, 4): first_elements(4, ones),
    compressors.dct_top_k(2, 8): waves(8),
    compressors.low_rank(1): orthogonal,
    compressors.contraction(compressors.ternary): one_large(1),
    compressors.block_top_k(0.5, 4): equal_blocks(4),
    compressors.sampled_top_k(0.25, 0.5): almost_equal,
    compressors.variance_optimal(0.25): ones,
    compressors.rotated(compressors.random_k(0.25)): ones,
    compressors.drive(): first_elements(2, ones),
    compressors.eden(2): lambda d: np.r_[1.0, np.full(d - 1, 0.03)],
    compressors.induced(compressors.top_k(0.25), compressors.random_k(0.25)): ones,
    compressors.repeated(compressors.contraction(compressors.random_k(0.25)), 2): ones,
}
"""The compressors, each with its worst vectors. A new compressor needs a line here."""


@partial(jax.jit, static_argnames="compressor")
def _decode(compressor: Compressor, key: jax.Array, x: tuple[jax.Array, ...]):
    """Returns decoded vectors of every length, `[draws, d]`."""
    keys = jax.random.split(key, _DRAWS)
    return tuple(jax.vmap(lambda key, x=x: encode(compressor, key, x).decoded)(keys) for x in x)


def _mean_square(compressor: Compressor, x: np.ndarray, drawn: np.ndarray) -> tuple[float, float]:
    """Returns E|Q(x) - x|^2 and its standard error, which is 0 if it is exact.

    Args:
        compressor: Q.
        x: the vector, `[d]`.
        drawn: decoded vectors, `[draws, d]`.
    """
    low, high = drawn.min(axis=0), drawn.max(axis=0)
    two_values = ((drawn == low) | (drawn == high)).all()
    if (low == high).all() or (compressor.unbiased and two_values):
        return float(np.where(low == high, (x - low) ** 2, (x - low) * (high - x)).sum()), 0.0
    squares = ((drawn - x) ** 2).sum(axis=1)
    return float(squares.mean()), float(squares.std(ddof=1) / math.sqrt(_DRAWS))


def check(compressor: Compressor, vectors: list[np.ndarray], seed: int = 0) -> list[Outcome]:
    """Compares the error with the stated constant, for each of several vectors.

    Args:
        compressor: one that states omega or delta.
        vectors: one for each of `LENGTHS`; their elements are rounded to float32.
        seed: of the draws.
    """
    x = [vector.astype(np.float32).astype(np.float64) for vector in vectors]
    drawn = _decode(compressor, jax.random.key(seed), tuple(map(jnp.asarray, x)))
    outcomes = []
    for vector, some in zip(x, drawn, strict=True):
        d, size = len(vector), float(vector @ vector)
        omega, delta = (
            constant_at(compressor.omega, d),
            constant_at(compressor.delta, d),
        )
        constant = omega if compressor.unbiased else None if delta is None else 1 - delta
        if constant is not None:
            error = _mean_square(compressor, vector, np.asarray(some))
            name = "omega" if compressor.unbiased else "1 - delta"
            case = f"d = {d}, {name} = {constant:.4g}"
            outcomes.append(Outcome(error[0], constant * size, error[1], case, scale=size))
    return outcomes


def trial(compressor: Compressor, draws: Draws) -> list[Outcome]:
    """Checks one random vector of each length."""
    return check(compressor, [_vector(draws, d) for d in LENGTHS], draws.integer(0, 2**31 - 1))


def worst(compressor: Compressor) -> list[Outcome]:
    """Checks the worst vector of each length."""
    return check(compressor, [WORST[compressor](d) for d in LENGTHS])


def _vector(draws: Draws, d: int) -> np.ndarray:
    """Draws a vector with random signs: some elements equal to the largest and the others to a
    smaller number, or all of them random.
    """
    scale, small, many = draws.real(1.0, 2.0), draws.real(0.0, 1.0), draws.integer(1, d)
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    signs = rng.choice([-1.0, 1.0], d)
    sizes = draws.choice(
        (np.where(np.arange(d) < many, 1.0, small), rng.normal(size=d), rng.standard_t(1, d))
    )
    return scale * signs * sizes


def _statement(compressor: Compressor) -> Statement:
    what = "omega" if compressor.unbiased else "delta"
    hypotheses = "unbiased; any x" if compressor.unbiased else "any x"
    at_the_worst = partial(worst, compressor)
    name = f"{what} of {compressor.name}"
    return Statement(name, "its docstring", hypotheses, partial(trial, compressor), (at_the_worst,))


STATEMENTS = [_statement(compressor) for compressor in WORST]
