"""Random sparsification with probabilities that minimise the variance."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dsgd import checks, xla
from dsgd.base import Compressor, Encoded
from dsgd.compressors.places import selected_indices
from dsgd.compressors.scales import unit
from dsgd.compressors.sizes import wide
from dsgd.compressors.sparsification import capacity, require_countable, require_share
from dsgd.wire import codecs


class Drawn(NamedTuple):
    """A message of `variance_optimal`.

    Args:
        bits: number of bits that are used, a uint32 scalar.
        certain: number of elements that are always sent, a uint32 scalar.
        certain_places, values: their packed indices, and the elements.
        places, signs: packed indices and signs of the drawn elements.
        magnitude: that of the drawn elements, a scalar.
    """

    bits: jax.Array
    certain: jax.Array
    certain_places: tuple[jax.Array, ...]
    values: jax.Array
    places: tuple[jax.Array, ...]
    signs: tuple[jax.Array, ...]
    magnitude: jax.Array


@checks.arguments
def variance_optimal(fraction: float) -> Compressor:
    r"""Random sparsification with the probabilities of least variance: an element is kept with a
    probability proportional to its magnitude, at most 1; unbiased.

    $$ Q(x)_i = \frac{x_i}{p_i} \text{ with probability } p_i = \min(1, c |x_i|), \text{ else } 0,
    \qquad \sum_i p_i = k = \mathrm{fraction} \cdot d $$
    $$ E|Q(x) - x|^2 = \sum_i x_i^2 \Big(\frac1{p_i} - 1\Big) \le \Big(\frac dk - 1\Big) |x|^2 $$

    with equality for elements of equal magnitude: the probabilities k / d of
    `random_sparsification` are possible ones, and these p minimise the variance. If at most k
    elements are not 0, all are sent. c is found by the iteration $c = (k - |S|) / \sum_{i \notin S}
    |x_i|$, where S contains the elements that had $p_i = 1$ before, until S does not change: for a
    vector of very different magnitudes, up to k passes. Otherwise most of the time is that of one
    random number for each element.

    A drawn element with $p_i < 1$ has the magnitude 1 / c, so that only its index and sign are
    sent; elements with $p_i = 1$ are sent with value and index. A message also counts 96 bits for
    1 / c and the numbers of both. Its arrays have room for a number of elements that is exceeded
    with probability below 1e-12; further ones would be dropped.

    Args:
        fraction: expected share of kept elements, a float in (0, 1].

    Raises:
        ValueError: if fraction is an integer or outside (0, 1].

    Source: Wangni, Wang, Liu and Zhang, "Gradient sparsification for communication-efficient
    distributed optimization", 2018.
    """
    require_share("variance_optimal", "fraction", fraction)
    name = f"variance_optimal({fraction:g})"

    def rooms(d):
        """Returns the largest numbers of certain and of drawn elements."""
        return min(d, int(fraction * d) + 1), capacity(fraction, d)

    def costs(values, magnitude, d):
        """Returns the bits of the numbers, of a certain and of a drawn element."""
        index = codecs.index_bits(d)
        return 64 + 8 * magnitude.dtype.itemsize, 8 * values.dtype.itemsize + index, 1 + index

    def compress(key, x):
        d, (certain_room, drawn_room) = x.shape[0], rooms(x.shape[0])
        relative, largest = unit(wide(x))
        numbers, of_certain, of_drawn = costs(x, largest, d)
        require_countable(name, d, numbers + certain_room * of_certain + drawn_room * of_drawn)
        size = jnp.abs(relative)
        c = _factor(size, fraction * d)
        p = xla.materialize(c * size)
        certain = selected_indices(p >= 1, certain_room)
        # NaN is kept.
        kept = ~(jax.random.uniform(key, (d,), p.dtype) >= p) & ~(p >= 1)
        drawn = selected_indices(kept, drawn_room)
        values = jnp.where(certain < d, x.at[certain].get(mode="clip"), 0)
        signs = xla.materialize((x.at[drawn].get(mode="clip") < 0).astype(jnp.uint8))
        magnitude = largest / c
        number, drawn_number = (
            jnp.sum(places < d, dtype=jnp.uint32) for places in (certain, drawn)
        )
        message = Drawn(
            numbers + number * of_certain + drawn_number * of_drawn,
            number,
            _pack(certain, d),
            values,
            _pack(drawn, d),
            codecs.pack(signs, 1),
            magnitude,
        )
        return Encoded(message, decode(certain, values, drawn, signs, magnitude, d))

    def decompress(message, d):
        certain_room, drawn_room = rooms(d)
        index = codecs.index_bits(d)
        certain_places = codecs.unpack(message.certain_places, index, certain_room)
        places = codecs.unpack(message.places, index, drawn_room)
        signs = codecs.unpack(message.signs, 1, drawn_room)
        numbers, of_certain, of_drawn = costs(message.values, message.magnitude, d)
        drawn = (message.bits - numbers - message.certain * of_certain) // of_drawn
        return decode(
            jnp.where(jnp.arange(certain_room) < message.certain, certain_places, d),
            message.values,
            jnp.where(jnp.arange(drawn_room) < drawn, places, d),
            signs,
            message.magnitude,
            d,
        )

    def decode(certain, values, drawn, signs, magnitude, d):
        x = jnp.zeros(d, magnitude.dtype).at[certain].set(wide(values), mode="drop")
        return x.at[drawn].set(jnp.where(signs == 1, -magnitude, magnitude), mode="drop")

    return Compressor(
        compress,
        decompress,
        bits=lambda message: message.bits,
        name=name,
        omega=lambda d: 1 / fraction - 1,
        delta=lambda d: 2 - 1 / fraction if fraction > 0.5 else None,
    )


def _pack(places: jax.Array, d: int) -> tuple[jax.Array, ...]:
    return codecs.pack(jnp.where(places < d, places, 0), codecs.index_bits(d))


def _factor(size: jax.Array, k: float) -> jax.Array:
    r"""Returns c with $\sum_i \min(1, c\, size_i) = k$, or the largest number if at most k sizes
    are not 0.
    """

    def step(carry):
        c, number, _ = carry
        certain = c * size >= 1
        new = jnp.sum(certain, dtype=jnp.int32)
        rest = xla.sum_elements(jnp.where(certain, 0, size))
        larger = jnp.where(rest > 0, (k - new) / jnp.where(rest > 0, rest, 1), most)
        # In exact arithmetic c never decreases.
        return jnp.maximum(c, larger), new, number

    most = jnp.finfo(size.dtype).max
    # The first step starts from an empty S.
    start = jnp.zeros((), size.dtype), jnp.int32(-1), jnp.int32(-2)
    return lax.while_loop(lambda carry: carry[1] != carry[2], step, start)[0]
