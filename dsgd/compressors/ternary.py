"""Compressors that send a ternary digit for each element, with one scale."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp

from dsgd import checks, xla
from dsgd.base import Compressor, Encoded
from dsgd.compressors.quantization import Scaled
from dsgd.compressors.scales import clip_to_rms, round_randomly, unit
from dsgd.compressors.sizes import fixed_size, wide
from dsgd.wire import codecs


@checks.arguments
def clipped_ternary(limit: float = 2.5) -> Compressor:
    r"""TernGrad with clipping: limits magnitudes to a multiple of their root mean square, then
    sends them as `ternary` does; biased.

    $$ C(x_i) = s\, \mathrm{sign}(x_i) \text{ with probability } \frac{|y_i|}{s}, \text{ else } 0,
    \qquad y_i = \min(\max(x_i, -c \sigma), c \sigma), \qquad \sigma^2 = \frac1d \sum_i x_i^2,
    \qquad s = |y|_\infty $$
    $$ E|C(x) - x|^2 = |x - y|^2 + s |y|_1 - |y|^2 \le \beta |x|^2, \qquad \beta = \begin{cases}
    1 + c^2/8 & c \le 4 \\ c - 1 & c \ge 4 \end{cases} $$

    A message has d ternary digits, five in a byte, and s. Unlike for `ternary`, the bound does not
    depend on d. It is approached for large d: if $c \le 4$, by a few large elements, which have the
    share $1 - c^2/16$ of $|x|^2$, among equal small ones; if $c \ge 4$, by one element of
    $c \sigma$ among equal ones. The mean of C(x) is y. It is not a contraction.

    Args:
        limit: c, at least 1.

    Raises:
        ValueError: if the limit is below 1 or infinite.

    Source: Wen et al., "TernGrad", 2017, gradient clipping; the paper has c = 2.5. Departure:
    $\sigma$ is the root mean square instead of the standard deviation, which is 0 for vectors of
    equal elements.
    """
    checks.number("clipped_ternary: limit", limit, "[1, inf)")

    return _ternary(
        f"clipped_ternary({limit:g})", prepare=lambda x: clip_to_rms(wide(x), limit), omega=None
    )


def _ternary(name: str, prepare: Callable, omega: Callable | None) -> Compressor:
    """Returns the compressor that sends `prepare(x)` without bias."""

    def compress(key, x):
        y = prepare(x)
        relative, largest = unit(wide(y))
        sent = round_randomly(key, jnp.abs(relative))
        codes = xla.materialize(jnp.where(relative < 0, 1 - sent, 1 + sent).astype(jnp.uint8))
        message = Scaled(codecs.pack_trits(codes), largest.astype(y.dtype))
        return Encoded(message, decode(codes, largest))

    def decompress(message, d):
        return decode(codecs.unpack_trits(message.codes, d), wide(message.scale))

    def decode(codes, scale):
        return (codes.astype(scale.dtype) - 1) * scale

    return fixed_size(compress, decompress, name, omega=omega)


ternary: Compressor = _ternary("ternary", lambda x: x, omega=lambda d: (math.sqrt(d) - 1) / 2)
r"""TernGrad: unbiased randomised rounding of elements to their sign times the largest magnitude
or to 0.

$$ Q(x_i) = |x|_\infty\, \mathrm{sign}(x_i) \text{ with probability } \frac{|x_i|}{|x|_\infty},
\text{ else } 0 $$

A message has d ternary digits, five in a byte, and the largest magnitude. The variance is
$|x|_\infty |x|_1 - |x|^2 \le \frac{\sqrt d - 1}{2} |x|^2$, with equality for one large element
among equal ones.

Source: Wen et al., "TernGrad", 2017."""
