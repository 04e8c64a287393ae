"""Compressors that round elements to floating-point numbers of few bits, or to powers of two."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks, xla
from dsgd.base import Compressor, Encoded
from dsgd.compressors.quantization import LARGEST, MANTISSA, Scaled
from dsgd.compressors.scales import unit
from dsgd.compressors.sizes import fixed_size, wide
from dsgd.wire import codecs

Dtype = Literal["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
DTYPES = get_args(Dtype)
BIAS = 127  # of the exponents of float32
NOT_A_NUMBER = 255  # a shared exponent that makes all elements NaN


class Format(NamedTuple):
    """A floating-point type.

    Args:
        bits, mantissa: number of bits of a number and of its mantissa.
        lowest: exponent of the smallest normal number, as a biased exponent of float32.
        top: code of the largest finite number.
        largest, smallest: the largest finite and the smallest positive number.
    """

    bits: int
    mantissa: int
    lowest: int
    top: int
    largest: float
    smallest: float


def _format(dtype: str) -> Format:
    limits: Any = jnp.finfo(dtype)
    top = int(np.asarray(limits.max).view(f"uint{8 * limits.max.itemsize}"))
    largest, smallest = float(limits.max), float(limits.smallest_subnormal)
    return Format(limits.bits, limits.nmant, BIAS + limits.minexp, top, largest, smallest)


@checks.arguments
def cast(
    dtype: Dtype,
    scale: Literal["none", "largest", "power"] | None = None,
    stochastic: bool = False,
) -> Compressor:
    r"""Casts elements to a floating-point type of 16, 8 or 4 bits, relative to a common scale.

    $$ C(x_i) = s\, \mathrm{round}(x_i / s), \qquad s = \frac{|x|_\infty}F \text{ or } s = 2^k
    \text{ with the smallest } k \text{ such that } |x|_\infty \le 2^k F $$

    F is the largest finite number of the type, $\alpha F$ the largest power of two in it, $\eta F$
    its smallest positive number, and $\epsilon = 2^{-m}$ for m bits of mantissa. A message has d
    codes, of as many bits as the type has, and the scale: $|x|_\infty$ for "largest", which is an
    element of x, or k in 8 bits for "power". The formats MXFP8 and MXFP4 are
    `buckets(cast(dtype, "power"), 32)`.

    Rounding to the nearest number, of two the one with an even code, is biased. Stochastic rounding
    to one of the two neighbours is unbiased. For "largest", the largest element is exact, and the
    largest errors have elements above $\alpha F$, or near $\frac12 \eta F$. With $p = (d - 1)
    \alpha^2$, $q = (d - 1) \eta^2$, exactly, if $|x|_\infty \ge 2^{-126} F$,

    $$ 1 - \delta = \max\Big(\frac{\epsilon^2 p}{4 + (2 + \epsilon)^2 p}, \frac q{4 + q}\Big),
    \qquad \omega = \max\Big(w, \frac{\sqrt{1 + q} - 1}2\Big), \quad w^2 + (1 + p + \epsilon p)\,
    w = \frac{\epsilon^2 p}4 $$

    For "power", with the largest relative errors of normal numbers, $\rho^2 = \epsilon^2 / (2 +
    \epsilon)^2$ and $\theta = \epsilon^2 / (4 + 4 \epsilon)$, under the same condition,

    $$ 1 - \delta = \frac{\rho^2 + q}{1 + q}, \qquad \omega = \frac{\theta - 1 + \sqrt{(1 +
    \theta)^2 + 4q}}2 $$

    Without a scale, elements beyond F are rounded to F, elements that are not finite to NaN, and
    all elements may be rounded to 0, so that there is no $\delta$. bfloat16 needs no scale, since
    it has the range of float32; its constants are those for "power" with q = 0, for normal numbers
    up to its largest one.
    float64 elements are coded as float32, relative to their scale for "largest".

    Args:
        dtype: the type.
        scale: "largest", "power" or "none"; None: "none" for bfloat16, "largest" for other types.
        stochastic: whether to round at random.

    Raises:
        ValueError: if the type or the scale is not one of these; if the scale is not "none" for
            bfloat16; if it is "none" for float4_e2m1fn, which has no NaN, or for stochastic
            rounding to another type than bfloat16.

    Source: Micikevicius et al., "FP8 formats for deep learning", 2022; Rouhani et al.,
    "Microscaling data formats for deep learning", 2023. Departure: the exponent of a block is the
    smallest one with which no element exceeds F; theirs, $\lfloor \log_2 |x|_\infty \rfloor$ minus
    the exponent of F, rounds elements of up to 4/3 F to F.
    """
    scale = _require_scale(dtype, scale, stochastic)
    full_range = dtype == "bfloat16"
    kind = _format(dtype)

    def compress(key, x):
        sent, relative = to_scale(x)
        word = jax.lax.bitcast_convert_type(relative, jnp.uint32)
        draws = jax.random.bits(key, x.shape, jnp.uint32) if stochastic else None
        codes = _round(kind, word, draws) | (word >> 31 << (kind.bits - 1))
        codes = xla.materialize(codes.astype(jnp.uint8 if kind.bits <= 8 else jnp.uint32))
        packed = codecs.pack(codes, kind.bits)
        message = packed if sent is None else Scaled(packed, sent)
        return Encoded(message, decode(codes, sent))

    def to_scale(x):
        """Returns the scale that is sent, and the elements as multiples of it."""
        if scale == "largest":
            relative, largest = unit(wide(x))
            return largest.astype(x.dtype), relative.astype(jnp.float32) * kind.largest
        if scale == "power":
            exponent = _power_above(jnp.max(jnp.abs(x)).astype(jnp.float32), kind.largest)
            down = _two_to(jnp.minimum(BIAS - (exponent.astype(jnp.int32) - BIAS), 2 * BIAS))
            return exponent, x.astype(jnp.float32) * down
        return None, x.astype(jnp.float32)

    def decompress(message, d):
        codes, sent = (message, None) if scale == "none" else message
        return decode(codecs.unpack(codes, kind.bits, d), sent)

    def decode(codes, sent):
        sign, size = codes >> (kind.bits - 1), _value(kind, codes & ((1 << (kind.bits - 1)) - 1))
        if scale == "largest":
            size = size.astype(wide(sent).dtype) / kind.largest * wide(sent)
        if scale == "power":
            size = jnp.minimum(size * _two_to(sent), LARGEST)
            size = jnp.where(sent == NOT_A_NUMBER, jnp.nan, size)
        return jnp.where(sign == 1, -size, size)

    omega, delta = _constants(kind, scale, full_range)
    named = "" if full_range or scale == "largest" else f", {scale}"
    contracts = full_range or scale != "none"
    return fixed_size(
        compress,
        decompress,
        f"cast({dtype}{named}{', stochastic' if stochastic else ''})",
        omega=omega if stochastic else None,
        delta=delta if contracts and not stochastic else None,
    )


def _require_scale(
    dtype: str, scale: Literal["none", "largest", "power"] | None, stochastic: bool
) -> Literal["none", "largest", "power"]:
    """Returns the scale of `cast`, after validation of its arguments."""
    if dtype not in DTYPES:
        raise ValueError(f"cast: dtype = {dtype!r}; expected one of {', '.join(DTYPES)}")
    full_range = dtype == "bfloat16"
    scale = scale or ("none" if full_range else "largest")
    if scale not in ("none", "largest", "power"):
        raise ValueError(f"cast: scale = {scale!r}; expected 'none', 'largest' or 'power'")
    if full_range and scale != "none":
        raise ValueError(
            f"cast: scale = {scale!r} for bfloat16; expected 'none', since it has float32's range"
        )
    if scale == "none" and not full_range and (stochastic or dtype == "float4_e2m1fn"):
        raise ValueError(
            f"cast: scale = 'none' for {'stochastic ' if stochastic else ''}{dtype}; expected "
            "'largest' or 'power', since elements may be out of range"
        )
    return scale


def _constants(kind: Format, scale: str, full_range: bool) -> tuple[Callable, Callable]:
    """Returns the functions from the number of elements to omega, of stochastic rounding, and to
    delta, of rounding to the nearest number.
    """
    gap = 2.0**-kind.mantissa
    smallest = 0 if full_range else kind.smallest / kind.largest
    power = 2.0 ** math.floor(math.log2(kind.largest)) / kind.largest

    def delta(d):
        p, q, rho = (d - 1) * power**2, (d - 1) * smallest**2, gap / (2 + gap)
        if scale == "largest":
            return 1 - max(gap**2 * p / (4 + (2 + gap) ** 2 * p), q / (4 + q))
        return 1 - (rho**2 + q) / (1 + q)

    def omega(d):
        if scale == "largest":
            return _omega_of_others(d - 1, smallest, power, gap)
        q, theta = (d - 1) * smallest**2, gap**2 / (4 + 4 * gap)
        return (theta - 1 + math.sqrt((1 + theta) ** 2 + 4 * q)) / 2

    return omega, delta


def _round(kind: Format, word: jax.Array, draws: jax.Array | None) -> jax.Array:
    """Returns the codes of the magnitudes of float32 numbers, given as their bits.

    The code of a number is its exponent, above that of the smallest normal number, times $2^m$,
    plus its significand as an integer. The significand is rounded by adding random bits, or half of
    its last bit, before the bits below it are cut off.
    """
    exponent, mantissa = word >> MANTISSA & 255, word & ((1 << MANTISSA) - 1)
    significand = mantissa | (exponent > 0).astype(jnp.uint32) << MANTISSA
    binade = jnp.maximum(exponent, 1)
    above = jnp.maximum(binade, kind.lowest)
    cut = MANTISSA - kind.mantissa + above - binade
    # A shift is by less than 32 bits; the bits lost here change a probability by less than 2^-31.
    significand = significand >> jnp.clip(cut, 31, 62) - 31
    cut = jnp.minimum(cut, 31)
    half = (1 << (cut - 1)) - 1 + (significand >> cut & 1)
    added = half if draws is None else ~draws >> (32 - cut)
    code = (above - kind.lowest << kind.mantissa) + (significand + added >> cut)
    return jnp.where(exponent < 255, jnp.minimum(code, kind.top), (1 << (kind.bits - 1)) - 1)


def _value(kind: Format, codes: jax.Array) -> jax.Array:
    """Returns the numbers of a type, float32, of codes without signs; NaN for those above its
    largest number.
    """
    codes = codes.astype(jnp.uint32)
    word = (codes << (MANTISSA - kind.mantissa)) + ((kind.lowest - 1) << MANTISSA)
    value = jax.lax.bitcast_convert_type(word, jnp.float32)
    if kind.lowest > 1:  # numbers below the smallest normal one are not denormal as float32
        below = codes.astype(jnp.float32) * kind.smallest
        value = jnp.where(codes >> kind.mantissa > 0, value, below)
    return jnp.where(codes > kind.top, jnp.nan, value)


def _power_above(largest: jax.Array, most: float) -> jax.Array:
    """Returns the smallest k with largest <= 2^k most, plus 127, as uint8: 1 to 253, or 255 if the
    largest magnitude is not finite.
    """
    word = jax.lax.bitcast_convert_type(largest, jnp.uint32)
    fraction, power = math.frexp(most)
    limit = int(np.float32(2 * fraction).view(np.uint32)) & ((1 << MANTISSA) - 1)
    exponent, mantissa = (word >> MANTISSA).astype(jnp.int32), word & ((1 << MANTISSA) - 1)
    k = jnp.clip(exponent - (power - 1) + (mantissa > limit), 1, 253)
    return jnp.where(exponent < 255, k, NOT_A_NUMBER).astype(jnp.uint8)


def _two_to(exponent: jax.Array) -> jax.Array:
    """Returns 2^(exponent - 127), float32, for exponents from 1 to 254."""
    return jax.lax.bitcast_convert_type(exponent.astype(jnp.uint32) << MANTISSA, jnp.float32)


def _omega_of_others(others: int, smallest: float, power: float, gap: float) -> float:
    """Returns the least omega of stochastic rounding relative to the largest element.

    The largest element is exact. The variance of another one, y, is y (smallest - y) below the
    smallest number, and (y - a)((1 + gap) a - y) above a power of two a. Their sum is at most
    omega |x|^2 if (d - 1) (variance - omega y^2) is at most omega for all y; other multiples of the
    smallest number, and smaller powers, need a smaller omega.

    Args:
        others: d - 1.
        smallest: the smallest positive number, relative to the largest one.
        power: the largest power of two, relative to the largest number.
        gap: between this power and the next number, relative to this power.
    """
    p, q = others * power**2, others * smallest**2
    linear, constant = 1 + (1 + gap) * p, gap**2 * p / 4
    root = 2 * constant / (linear + math.sqrt(linear**2 + 4 * constant))
    return max(root, (math.sqrt(1 + q) - 1) / 2)


@checks.arguments
def natural_dithering(levels: int, norm: Literal["l2", "linf"] = "l2") -> Compressor:
    r"""Natural dithering: unbiased randomised rounding of magnitudes to s powers of two, relative
    to a norm, or to 0.

    $$ Q(x_i) = \|x\|\, \mathrm{sign}(x_i)\, \xi_i, \qquad \xi_i \text{ one of the two neighbours
    of } \frac{|x_i|}{\|x\|} \text{ among } 0, 2^{1-s}, 2^{2-s}, \dots, \frac12, 1, \text{ with }
    E\, \xi_i = \frac{|x_i|}{\|x\|} $$

    A message has d codes for the 2s + 1 values, and the norm. With $u = 2^{1-s}$, the variance of a
    magnitude $y \|x\|$ is at most $\frac18 y^2 \|x\|^2$ if $y \ge u$, else $y (u - y) \|x\|^2$.
    Hence

    $$ \omega = \begin{cases} \sqrt d\, u - 1 & \text{if } s = 1 \text{ or } \sqrt d\, u \ge \frac94
    \\ \frac18 + \frac29 d u^2 & \text{otherwise} \end{cases} $$

    for the Euclidean norm. Equal elements have the first value. The second one is approached in
    high dimensions, by elements of 4u/9 and some of 2/3, 1/3, ..., times the norm. For the maximum
    norm, $\omega$ is the larger one of $\frac12 (\sqrt{1 + (d - 1) u^2} - 1)$ and, if s > 1, of
    $\frac14 (\sqrt{(d + 1)^2 + d - 1} - d - 1) < \frac18$, with equality for one large element
    among equal ones. For a single element it is 0.

    A norm outside the range of float32 is decoded as NaN. Elements relative to the norm are rounded
    to float32.

    Args:
        levels: s, 1 to 127, so that a code has at most 8 bits.
        norm: "l2", the Euclidean norm $|x|_2$, or "linf", the largest magnitude $|x|_\infty$.

    Raises:
        ValueError: if levels is outside 1..127, or the norm is not one of the two.

    Source: Horvath et al., "Natural compression", 2019, which has
    $\frac18 + \sqrt d\, u \min(1, \sqrt d\, u)$ for the Euclidean norm.
    """
    if not 1 <= levels <= 127:
        raise ValueError(f"natural_dithering: levels = {levels}; expected an integer from 1 to 127")
    if norm not in ("l2", "linf"):
        raise ValueError(f"natural_dithering: norm = {norm!r}; expected 'l2' or 'linf'")
    bits = codecs.index_bits(2 * levels + 1)
    lowest = BIAS - levels  # one less than the exponent of the lowest level as float32

    def compress(key, x):
        relative, scale = unit(wide(x))
        size = jnp.maximum(jnp.sqrt(jnp.sum(relative**2)), 1) if norm == "l2" else 1
        scale = scale * size if norm == "l2" else scale.astype(x.dtype)
        y = (jnp.abs(relative) / size).astype(jnp.float32)
        word = jax.lax.bitcast_convert_type(y, jnp.uint32)
        level = jnp.maximum((word >> MANTISSA).astype(jnp.int32) - lowest, 0)
        mantissa = (word & ((1 << MANTISSA) - 1)).astype(jnp.float32) * 2.0**-MANTISSA
        share = jnp.where(level > 0, mantissa, y * 2.0 ** (levels - 1))
        level = jnp.minimum(level + (jax.random.uniform(key, x.shape, jnp.float32) < share), levels)
        codes = jnp.where(relative < 0, levels - level, levels + level).astype(jnp.uint8)
        codes = xla.materialize(codes)
        return Encoded(Scaled(codecs.pack(codes, bits), scale), decode(codes, wide(scale)))

    def decompress(message, d):
        return decode(codecs.unpack(message.codes, bits, d), wide(message.scale))

    def decode(codes, scale):
        signed = codes.astype(jnp.int32) - levels
        level = jnp.abs(signed)
        # 0 * scale is NaN if an element is not finite.
        size = jnp.where(level > 0, _two_to(level + lowest), 0) * scale
        return jnp.where(signed < 0, -size, size)

    def omega(d):
        u = 2.0 ** (1 - levels)
        if norm == "linf":
            return _omega_of_others(d - 1, u, 1 / 2 if levels > 1 else 0.0, 1.0)
        if d == 1 or levels == 1 or math.sqrt(d) * u >= 9 / 4:
            return max(math.sqrt(d) * u - 1, 0.0)
        return 1 / 8 + 2 / 9 * d * u**2

    name = f"natural_dithering({levels}{'' if norm == 'l2' else ', linf'})"
    return fixed_size(compress, decompress, name, omega=omega)
