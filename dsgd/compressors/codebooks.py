"""Compressors that send codes for the values of a table."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import xla
from dsgd.base import Compressor, Encoded
from dsgd.compressors.chunks import Tabled
from dsgd.compressors.quantization import Scaled
from dsgd.compressors.scales import unit
from dsgd.compressors.sizes import fixed_size, wide
from dsgd.wire import codecs

DECADES = 7


def _one_bit() -> Compressor:
    def compress(key, x):
        relative, largest = unit(wide(x))
        codes = (x < 0).astype(jnp.uint8)
        below = jnp.sum(codes, dtype=jnp.int32)
        # A sum of equal elements may be rounded up.
        least, most = (
            jnp.minimum(xla.sum_elements(jnp.maximum(part, 0)) / jnp.maximum(number, 1), 1)
            for part, number in ((-relative, below), (relative, x.shape[0] - below))
        )
        table = jnp.stack([most, -least]) * largest
        return Encoded(Tabled(codecs.pack(codes, 1), table), decode(codes, table))

    def decompress(message, d):
        return decode(codecs.unpack(message.codes, 1, d), message.table)

    def decode(codes, table):
        return jnp.where(codes == 1, table[1], table[0])

    return fixed_size(compress, decompress, "one_bit", delta=lambda d: 1 / d)


one_bit: Compressor = _one_bit()
r"""The compressor of 1-bit SGD: signs, and the means of the elements of either sign; biased.

$$ C(x_i) = \frac1{|P|} \sum_{j \in P} x_j \text{ for } i \in P = \{j : x_j \ge 0\}, \text{ else }
\frac1{d - |P|} \sum_{j \notin P} x_j, \qquad
|C(x) - x|^2 = |x|^2 - |C(x)|^2 \le |x|^2 - \frac{|x|_1^2}d \le \Big(1 - \frac1d\Big) |x|^2 $$

A message has d bits and the two means; the mean of no elements is 0. C(x) is the orthogonal
projection of x to the vectors with one value on P and one elsewhere, so that no error is larger
than that of `sign`. It attains $\delta$ for one positive element among zeros.
`buckets(one_bit, n)` has two means for each row of a matrix with n columns.

Source: Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent", 2014, with two means for
each column of a matrix of weights."""


def dynamic_values() -> np.ndarray:
    """Returns the values of `eight_bit` between 0 and 1 in increasing order, `[127]`."""
    return np.concatenate(
        [
            10.0 ** (i + 1 - DECADES) * (0.1 + 0.9 * (np.arange(2**i) + 0.5) / 2**i)
            for i in range(DECADES)
        ]
    )


def _eight_bit() -> Compressor:
    values = np.concatenate([[0.0], dynamic_values(), [1.0]])
    middles, halves = (values[1:] + values[:-1]) / 2, (values[1:] - values[:-1]) / 2
    one = values.size - 1
    signed = np.concatenate([values, -values[1:one]])  # -0 and -1 have no code

    def compress(key, x):
        relative, largest = unit(wide(x))
        y = jnp.abs(relative).astype(jnp.float32)
        code = jnp.where((y > middles[-1]) & (relative > 0), one, _nearest(y, middles))
        codes = jnp.where((relative < 0) & (code > 0), one + code, code)
        codes = xla.materialize(codes.astype(jnp.uint8))
        message = Scaled(codecs.pack(codes, 8), largest.astype(x.dtype))
        return Encoded(message, decode(codes, largest))

    def decompress(message, d):
        return decode(codecs.unpack(message.codes, 8, d), wide(message.scale))

    def decode(codes, scale):
        return jnp.asarray(signed, scale.dtype)[codes] * scale

    def delta(d):
        # The largest element is -1, and all others are in the middle between the same two values.
        error = (1 - values[-2]) ** 2 + (d - 1) * halves**2
        return 1 - float(np.max(error / (1 + (d - 1) * middles**2)))

    return fixed_size(compress, decompress, "eight_bit", delta=delta)


def _nearest(y: jax.Array, middles: np.ndarray) -> jax.Array:
    """Returns the number, 0 to 127, of the value below 1 that is nearest to y in [0, 1].

    Args:
        y: float32.
        middles: of neighbouring values.
    """
    number = jnp.zeros(y.shape, jnp.float32)
    for i in range(DECADES):  # the values of a decade have the numbers from 2^i on
        part = y * np.float32(2**i / 0.9 * 10.0 ** (DECADES - 1 - i)) - np.float32(2**i / 9)
        inside = 2.0**i + jnp.clip(jnp.floor(part), 0, 2**i - 1)
        number = jnp.where(y > np.float32(middles[2**i - 1]), inside, number)
    return number


eight_bit: Compressor = _eight_bit()
r"""Dynamic codes of 8 bits: rounding to the nearest of 256 values that are dense near the largest
magnitude and cover seven decades; biased.

$$ C(x_i) = |x|_\infty\, c_i, \qquad c_i \in \{0, 1\} \cup \Big\{\pm 10^{j-6} \Big(0.1 + 0.9\,
\frac{k + 1/2}{2^j}\Big) : 0 \le k < 2^j,\ 0 \le j \le 6\Big\} \text{ nearest to }
\frac{x_i}{|x|_\infty} $$

A message has d codes of 8 bits, and the largest magnitude. With the midpoints $m_l$ of neighbouring
values of one sign, their half distances $h_l$, and $e = 1 - c$ for the largest value c below 1, it
is a contraction with

$$ 1 - \delta = \max_l \frac{e^2 + (d-1) h_l^2}{1 + (d-1) m_l^2}, $$

which one element -1 and d - 1 elements $m_l$ attain. `buckets(eight_bit, 2048)` has one scale for
each 2048 elements. Codes of 8 bits for equidistant values with stochastic rounding are
`qsgd(127, "linf")`.

Source: Dettmers, Lewis, Shleifer and Zettlemoyer, "8-bit optimizers via block-wise quantization",
2022, for the values."""
