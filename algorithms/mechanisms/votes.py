"""Votes through one server: short codes up, and the exact result of the vote down.

The compressors of this file send codes without a scale, and only the values in their docstrings are
sent without error.
"""

from __future__ import annotations

import jax.numpy as jnp

from dsgd import Communicator, Compressor, Encoded, network, xla
from dsgd.compressors import fixed_size
from dsgd.extend import PyTree, round_randomly
from dsgd.wire import codecs


def count_votes(up: Compressor, down: Compressor, vectors: PyTree, round: Communicator) -> PyTree:
    r"""Returns $C_{down}(\frac1N \sum_n C_{up}(x_n))$, leaves `[...]`.

    The mean is over the messages that arrive; it is 0 if there are none.

    Args:
        up, down: the voters' and the server's compressors.
        vectors: leaves `[n, ...]`, float32 or float64, so that the mean of N votes is exact.
        round: the current round.
    """
    votes = round.to_server(up, vectors, via=network.parameter_server)
    return round.from_server(votes.received, down).received


def _signs() -> Compressor:
    def compress(key, x):
        negative = x < 0
        return Encoded(codecs.pack(negative.astype(jnp.uint8), 1), jnp.where(negative, -1.0, 1.0))

    def decompress(message, d):
        return jnp.where(codecs.unpack(message, 1, d) == 1, -1.0, 1.0)

    return fixed_size(compress, decompress, "signs")


signs: Compressor = _signs()
"""Signs, -1 or 1, one bit per element. 0 and NaN count as positive: a vote has no scale."""


def _digits() -> Compressor:
    def compress(key, x):
        digits = jnp.where(x < 0, -1, 1) * round_randomly(key, jnp.abs(x))
        digits = xla.materialize(digits)
        return Encoded(codecs.pack_trits((1 + digits).astype(jnp.uint8)), digits)

    def decompress(message, d):
        return codecs.unpack_trits(message, d).astype(float) - 1

    return fixed_size(compress, decompress, "digits")


digits: Compressor = _digits()
"""Unbiased randomised rounding of numbers in [-1, 1] to -1, 0 or 1, five in a byte."""


def fractions(parts: int) -> Compressor:
    """Returns the compressor of the numbers -1, -1 + 2 / parts, ..., 1, which it sends exactly."""
    bits = codecs.index_bits(parts + 1)
    kind = jnp.uint8 if bits <= codecs.BYTE else jnp.uint32

    def compress(key, x):
        codes = xla.materialize(jnp.round((x + 1) * (parts / 2)).astype(kind))
        return Encoded(codecs.pack(codes, bits), decode(codes))

    def decompress(message, d):
        return decode(codecs.unpack(message, bits, d))

    def decode(codes):
        return (2 * codes.astype(float) - parts) / parts

    return fixed_size(compress, decompress, f"fractions({parts})")
