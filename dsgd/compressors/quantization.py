"""Compressors that send every element with fewer bits.

The numbers sent in addition to the codes are not rounded further. Extreme values are elements of
the vector and have its type. Norms and means are computed in float64 for float64 models, else in
float32, since rounding them to half precision would bias the unbiased compressors.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks, xla
from dsgd.base import Compressor, Encoded
from dsgd.compressors.combinators import buckets
from dsgd.compressors.scales import round_randomly, unit
from dsgd.compressors.sizes import fixed_size, wide
from dsgd.wire import codecs

MANTISSA, EXPONENT = 23, 8  # bits of float32 in addition to the sign
LARGEST = np.float32(np.finfo(np.float32).max)


class Quantized(NamedTuple):
    """A message of `random_quantization`.

    Args:
        codes: packed codes of `codecs.pack`.
        low, high: minimum and maximum, scalars of the vector's type.
    """

    codes: tuple[jax.Array, ...]
    low: jax.Array
    high: jax.Array


class Scaled(NamedTuple):
    """A message of packed codes and one scale.

    Args:
        codes: packed codes of `codecs.pack` or `pack_trits`.
        scale: a scalar.
    """

    codes: tuple[jax.Array, ...] | jax.Array
    scale: jax.Array


@checks.arguments
def random_quantization(bits: int, bucket: int | None = None) -> Compressor:
    r"""Unbiased randomised rounding to $2^b$ equidistant knobs $c_i$ between min(x) and max(x).

    $$ Q(x_i) = c_{k+1} \text{ with probability } \frac{x_i - c_k}{c_{k+1} - c_k}, \text{ else }
    c_k, \qquad c_k \le x_i \le c_{k+1} \tag{3.3} $$

    A message has d codes of b bits and the minimum and maximum, which are elements of x. Vectors of
    one or two elements are sent exactly. The variance is $\sum_i (x_i - c_k)(c_{k+1} - x_i)$, at
    most $(d-2) |x|^2 / (2 (2^b - 1)^2)$ for d >= 2: the two extreme elements are knobs, and $(\max
    - \min)^2 \le 2|x|^2$.

    Args:
        bits: b, 1 to 8.
        bucket: number of elements that share a range, see `buckets`; None: all.

    Raises:
        ValueError: if bits is outside 1..8, or bucket < 1.

    Source: Liu and Zhang, section 3.1.1. Departure: knob 0 is the minimum and knob $2^b - 1$ the
    maximum; the printed code for a constant vector divides by zero, here it is sent exactly.
    """
    require_bits("random_quantization", bits)
    if bucket is not None:
        checks.positive_int("random_quantization: bucket", bucket)
    steps = 2**bits - 1

    def compress(key, x):
        if x.shape[0] <= 2:  # the minimum and maximum are all elements
            return x
        low, high = jnp.min(x), jnp.max(x)
        x, least, most = wide(x), wide(low), wide(high)
        # An eighth of the range is used, since neither it nor its reciprocal, by which XLA
        # multiplies, leaves the range of float32.
        eighth = most / 8 - least / 8
        place = steps * jnp.where(
            eighth > 0, (x / 8 - least / 8) / jnp.where(eighth > 0, eighth, 1), 0
        )
        codes = jnp.clip(round_randomly(key, place), 0, steps)
        # The maximum must be a knob even if `place` was rounded down.
        codes = jnp.where(x == most, steps, codes)
        codes = xla.materialize(codes.astype(jnp.uint8))
        return Encoded(Quantized(codecs.pack(codes, bits), low, high), decode(codes, least, most))

    def decompress(message, d):
        return (
            wide(message)
            if d <= 2
            else decode(
                codecs.unpack(message.codes, bits, d), wide(message.low), wide(message.high)
            )
        )

    def decode(codes, low, high):
        share = codes.astype(low.dtype) / steps
        # XLA divides by multiplying with a rounded reciprocal, so the last share may not be 1.
        return jnp.where(codes == steps, high, low * (1 - share) + high * share)

    quantization = fixed_size(
        compress,
        decompress,
        f"random_quantization({bits})",
        omega=lambda d: max(d - 2, 0) / (2 * steps**2),
    )
    return quantization if bucket is None else buckets(quantization, bucket)


@checks.arguments
def qsgd(levels: int, norm: Literal["l2", "linf"] = "l2") -> Compressor:
    r"""QSGD: unbiased randomised rounding of magnitudes to s levels of a norm.

    $$ Q(x_i) = \|x\|\, \mathrm{sign}(x_i)\, \frac{\xi_i}{s}, \qquad \xi_i = l + 1 \text{ with
    probability } \frac{s|x_i|}{\|x\|} - l, \text{ else } l = \Big\lfloor \frac{s|x_i|}{\|x\|}
    \Big\rfloor $$

    A message has d codes for the 2s + 1 values -s to s, and the norm. With $p_i$ the probability of
    l + 1, the variance is $\|x\|^2 \sum_i p_i(1 - p_i) / s^2$. For the Euclidean norm it is at most
    $d |x|^2 / 4s^2$, since $p(1-p)$ is at most 1/4, and for $d \ge 4s^2$ at most $(\sqrt d / s -
    1) |x|^2$, with equality for equal elements: with $y = s / \sqrt d$ and $u = s |x_i| / |x|$,
    $p(1 - p)$ is at most $\frac y2 + \frac{1 - 2y}{2y} u^2$.
    For the maximum norm it is at most $\frac12 (\sqrt{1 + (d - 1) / s^2} - 1) |x|^2$, with equality
    for one large element among equal ones: the large element is sent exactly, and the others add at
    most $p(1-p)/s^2$ to the variance and $p^2/s^2$ to $|x|^2$. For a single element it is 0.

    A norm outside the range of float32 is decoded as NaN.

    Args:
        levels: s, 1 to 127, so that a code has at most 8 bits.
        norm: "l2", the Euclidean norm $|x|_2$, or "linf", the largest magnitude $|x|_\infty$.

    Raises:
        ValueError: if levels is outside 1..127, or the norm is not one of the two.

    Source: Alistarh et al., "QSGD", 2017, section 3.1 (there $\min(d/s^2, \sqrt d/s)$). Departure:
    codes of equal length, not Elias codes. LEAD (Liu et al., 2021) uses the maximum norm with
    $s = 2^{b-1}$ in blocks of 512 elements: for its b = 2, a code has 3 bits here, for five values.
    """
    if not 1 <= levels <= 127:
        raise ValueError(f"qsgd: levels = {levels}; expected an integer from 1 to 127")
    if norm not in ("l2", "linf"):
        raise ValueError(f"qsgd: norm = {norm!r}; expected 'l2' or 'linf'")
    bits = codecs.index_bits(2 * levels + 1)

    def compress(key, x):
        relative, scale = unit(wide(x))  # squares neither overflow nor vanish
        size = jnp.maximum(jnp.sqrt(jnp.sum(relative**2)), 1) if norm == "l2" else 1
        scale = scale * size if norm == "l2" else scale.astype(x.dtype)
        level = jnp.minimum(round_randomly(key, levels * jnp.abs(relative) / size), levels)
        codes = xla.materialize(
            jnp.where(relative < 0, levels - level, levels + level).astype(jnp.uint8)
        )
        return Encoded(Scaled(codecs.pack(codes, bits), scale), decode(codes, wide(scale)))

    def decompress(message, d):
        return decode(codecs.unpack(message.codes, bits, d), wide(message.scale))

    def decode(codes, scale):
        return (codes.astype(scale.dtype) - levels) / levels * scale

    def omega(d):
        if norm == "linf":
            return (math.sqrt(1 + (d - 1) / levels**2) - 1) / 2
        if d == 1:
            return 0.0
        return d / (4 * levels**2) if d <= 4 * levels**2 else math.sqrt(d) / levels - 1

    name = f"qsgd({levels})" if norm == "l2" else f"qsgd({levels}, linf)"
    return fixed_size(compress, decompress, name, omega=omega)


def _natural() -> Compressor:
    ones, not_finite = (1 << EXPONENT) - 1, 1 << EXPONENT  # the code of -0, which is sent as 0

    def compress(key, x):
        word = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
        exponent, mantissa = (word >> MANTISSA) & ones, word & ((1 << MANTISSA) - 1)
        up = (jax.random.bits(key, x.shape, jnp.uint32) >> (32 - MANTISSA)) < mantissa
        power = exponent + up
        codes = jnp.where(power > 0, power | (word >> (MANTISSA + EXPONENT) << EXPONENT), 0)
        codes = xla.materialize(jnp.where(exponent < ones, codes, not_finite))
        return Encoded(codecs.pack(codes, 1 + EXPONENT), decode(codes))

    def decompress(message, d):
        return decode(codecs.unpack(message, 1 + EXPONENT, d))

    def decode(codes):
        word = (codes >> EXPONENT << (MANTISSA + EXPONENT)) | ((codes & ones) << MANTISSA)
        value = jax.lax.bitcast_convert_type(word, jnp.float32)
        # The power of two above the largest number is infinite.
        return jnp.where(codes == not_finite, jnp.nan, jnp.clip(value, -LARGEST, LARGEST))

    return fixed_size(compress, decompress, "natural", omega=lambda d: 1 / 8)


natural: Compressor = _natural()
r"""Natural compression: unbiased randomised rounding to a neighbouring power of two. Sign and
exponent are sent; the mantissa is the probability of the larger power.

$$ Q(x_i) = \mathrm{sign}(x_i)\, 2^{e+1} \text{ with probability } \frac{|x_i|}{2^e} - 1, \text{
else } \mathrm{sign}(x_i)\, 2^e,
   \qquad 2^e \le |x_i| < 2^{e+1} $$

A message has d codes of 9 bits. The variance is
$\sum_i (|x_i| - 2^e)(2^{e+1} - |x_i|) \le \frac18 |x|^2$ for normal numbers, with equality at
$|x_i| = \frac43 2^e$. Elements below the smallest normal float32 are rounded to it or to 0, those
above the largest power of two to it or to the largest float32. Elements that are not finite as
float32 are decoded as NaN.

Source: Horvath et al., "Natural compression", 2019."""


def _e3m0() -> Compressor:
    largest_code = 7
    # The magnitudes of codes 1 to 7 are 2^-6, ..., 2^0. The boundaries between codes are the
    # midpoints of neighbouring magnitudes, with 0 for code 0.
    boundaries = [2.0**-7, *(1.5 * 2.0**power for power in range(-6, 0))]

    def compress(key, x):
        relative, largest = unit(wide(x))
        magnitude = jnp.abs(relative)
        code = sum((magnitude > boundary).astype(jnp.uint8) for boundary in boundaries)
        codes = xla.materialize(code | ((relative < 0).astype(jnp.uint8) << 3))
        message = Scaled(codecs.pack(codes, 4), largest.astype(x.dtype))
        return Encoded(message, decode(codes, largest))

    def decompress(message, d):
        return decode(codecs.unpack(message.codes, 4, d), wide(message.scale))

    def decode(codes, scale):
        exponent = (codes & largest_code).astype(jnp.int32) - largest_code
        # 0 * scale is NaN if an element is not finite.
        size = jnp.where(exponent > -largest_code, jnp.ldexp(scale, exponent), 0 * scale)
        return jnp.where(codes > largest_code, -size, size)

    def delta(d):
        # An element below the midpoint 0.75 * 2^-6 has an error of at most 2^-7, and of at most
        # itself; an element above it, of at most a third of itself; the largest element, of 0.
        # Hence the worst others are all 2^-7 or all 3/4.
        small, thirds = (d - 1) * 2.0**-14, (d - 1) / 16
        return 1 - max(thirds / (1 + 9 * thirds), small / (1 + small))

    return fixed_size(compress, decompress, "e3m0", delta=delta)


e3m0: Compressor = _e3m0()
r"""Rounding to 4-bit floats with a sign, 3 bits of exponent and no mantissa, relative to the
largest magnitude; biased.

$$ C(x_i) = \mathrm{sign}(x_i)\, |x|_\infty\, c_i, \qquad c_i \in \{0, 2^{-6}, 2^{-5}, \dots, 1\}
\text{ nearest to } \frac{|x_i|}{|x|_\infty} $$

A message has d codes of 4 bits, and the largest magnitude. With $s = (d - 1) 2^{-14}$ and $t = (d -
1) / 16$ it is a contraction with $\delta = 1 - \max(t / (1 + 9t), s / (1 + s))$, which one element
of 1 among elements of 3/4, or of $2^{-7}$, attains.

Source: Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, for the type
E3M0. That code 0 is the number 0, and the scale, are choices of this implementation."""


def _sign() -> Compressor:
    def compress(key, x):
        x = wide(x)
        # Elements are divided before they are summed, since their sum may be out of range. The
        # minimum covers the rounding of the mean, half of which is finite if all elements are.
        half = xla.sum_elements(jnp.abs(x / (2 * x.shape[0])))
        mean = jnp.where(jnp.isfinite(half), jnp.minimum(2 * half, jnp.finfo(x.dtype).max), half)
        return Encoded(
            Scaled(codecs.pack((x < 0).astype(jnp.uint8), 1), mean), jnp.where(x < 0, -mean, mean)
        )

    def decompress(message, d):
        return jnp.where(codecs.unpack(message.codes, 1, d) == 1, -message.scale, message.scale)

    return fixed_size(compress, decompress, "sign", delta=lambda d: 1 / d)


sign: Compressor = _sign()
r"""Scaled sign: signs times the mean magnitude, one bit per element; biased.

$$ C(x) = \frac{|x|_1}{d}\, \mathrm{sign}(x), \qquad |C(x) - x|^2 = |x|^2 - \frac{|x|_1^2}{d} \le
\Big(1 - \frac1d\Big) |x|^2 $$

It is a contraction, unlike the survey's version, which scales by a norm (section 3.2, "1-bit
quantization"). 0 counts as positive.

Source: Bernstein et al., "signSGD", 2018; Karimireddy et al., "Error feedback fixes signSGD", 2019,
for the scale."""


@checks.arguments
def clipping(bits: int) -> Compressor:
    r"""Clipping: keeps sign, exponent and the b leading bits of the mantissa; biased towards 0.

    $$ |C(x) - x|^2 \le \frac{1}{(2^b + 1)^2} |x|^2 $$

    A message has d codes of 9 + b bits; `clipping(7)` is truncation to bfloat16. The bound is
    approached just below $2^e(1 + 2^{-b})$, and holds for elements of at least the smallest normal
    float32. float64 elements are coded as float32.

    Args:
        bits: b, 1 to 8.

    Raises:
        ValueError: if bits is outside 1..8.

    Source: Liu and Zhang, section 3.2, "Clipping".
    """
    require_bits("clipping", bits)
    cut = MANTISSA - bits

    def compress(key, x):
        x = jnp.where(jnp.isnan(x), jnp.nan, x)  # the leading bit of its mantissa is set
        word = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
        return Encoded(codecs.pack(word >> cut, 32 - cut), decode(word >> cut))

    def decompress(message, d):
        return decode(codecs.unpack(message, 32 - cut, d))

    def decode(codes):
        return jax.lax.bitcast_convert_type(codes << cut, jnp.float32)

    return fixed_size(
        compress, decompress, f"clipping({bits})", delta=lambda d: 1 - 1 / (2**bits + 1) ** 2
    )


def require_bits(name: str, bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"{name}: bits = {bits}; expected an integer from 1 to 8")
