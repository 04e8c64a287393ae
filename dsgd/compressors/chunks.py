"""Compressors by chunks of consecutive elements: the largest elements of each chunk, and codes of
two bits for them, as in SparseLoCo; the largest of all chunks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dsgd import checks, xla
from dsgd.base import Compressor, Encoded
from dsgd.compressors.combinators import identity
from dsgd.compressors.members import constant_at, encode
from dsgd.compressors.scales import unit
from dsgd.compressors.sizes import array_bits, fixed_size, wide
from dsgd.compressors.sparsification import (
    Sparse,
    format_size,
    scatter,
    selected_count,
    share_or_count,
)
from dsgd.wire import codecs


class Tabled(NamedTuple):
    """A message of packed codes and a table of their values.

    Args:
        codes: packed codes of `codecs.pack`.
        table: the decoded value of each code, `[4]`.
    """

    codes: tuple[jax.Array, ...]
    table: jax.Array


@checks.arguments
def chunked_top_k(k: int, chunk: int = 4096, values: Compressor = identity) -> Compressor:
    r"""Top-k in each chunk: keeps the k elements of largest magnitude of every `chunk` consecutive
    elements; biased. An index needs $\lceil \log_2 \mathrm{chunk} \rceil$ bits only.

    $$ |C(x) - x|^2 \le \Big(1 - \frac{k}{\mathrm{chunk}}\Big) |x|^2 $$

    The last chunk has the remaining elements; if it has no more than k, all are kept.

    Args:
        k: number of elements that are kept of each chunk.
        chunk: number of elements of a chunk.
        values: compressor of the kept elements of all chunks together. If its contraction constant
            is a, that of `chunked_top_k` is a k / chunk.

    Raises:
        ValueError: if k is less than 1 or more than chunk.

    Source: Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", 2025. There a
    chunk of a matrix is a block of 64 x 64 elements; here it is a contiguous part of the vector.
    """
    checks.positive_int("chunked_top_k: k", k)
    if checks.positive_int("chunked_top_k: chunk", chunk) < k:
        raise ValueError(f"chunked_top_k: k = {k}, chunk = {chunk}; expected k <= chunk")
    name = f"chunked_top_k({k}, {chunk}{'' if values is identity else f', {values.name}'})"

    def largest_of(rows):
        return jax.vmap(lambda row: xla.largest(row, k))(rows)

    def compress(key, x, common=None):
        d, whole = x.shape[0], x.shape[0] // chunk * chunk
        magnitude = wide(x)
        codes = largest_of(magnitude[:whole].reshape(-1, chunk)).ravel()
        if whole < d:
            rest = magnitude[whole:]
            last = xla.largest(rest, k) if k < d - whole else jnp.arange(d - whole)
            codes = jnp.concatenate([codes, last])
        codes = codes.astype(jnp.uint32)
        sent = encode(values, key, x[places(codes, d)], common=common)
        return Encoded(
            Sparse(codecs.pack(codes, codecs.index_bits(chunk)), sent.message),
            decode(codes, sent.decoded, d),
        )

    def decompress(message, d):
        number = number_kept(d)
        codes = codecs.unpack(message.places, codecs.index_bits(chunk), number)
        return decode(codes, values.decompress(message.values, number), d)

    def decode(codes, elements, d):
        return scatter(places(codes, d), wide(elements), d)

    def places(codes, d):
        return codes + jnp.arange(number_kept(d), dtype=jnp.uint32) // k * chunk

    def number_kept(d):
        return d // chunk * k + min(k, d % chunk)

    def delta(d):
        inner = constant_at(values.delta, number_kept(d))
        sizes = {size for size in (min(d, chunk), d % chunk) if size}
        return None if inner is None else inner * min(min(k, size) / size for size in sizes)

    sparse = fixed_size(compress, decompress, name, delta=delta)
    return sparse._replace(
        bits=lambda message: array_bits(message.places) + values.bits(message.values)
    )


@checks.arguments
def block_top_k(
    fraction: float | None = None, block: int | None = None, *, k: int | None = None
) -> Compressor:
    r"""Top-k of blocks: keeps the k of n blocks of consecutive elements that have the largest
    Euclidean norms; biased. A block has only one index.

    $$ |C(x) - x|^2 \le \Big(1 - \frac kn\Big) |x|^2, \qquad n = \lceil d / b \rceil, \quad
    k = \lceil \mathrm{fraction} \cdot n \rceil $$

    with equality for blocks of equal norms. The last block is filled up with zeros, which are sent
    with it. A vector with fewer elements than a block is one block, without filling.

    Args:
        fraction: k / n, a float in (0, 1].
        block: b, number of elements of a block; required.
        k: the number of blocks, in place of their share.

    Raises:
        ValueError: if not exactly one of fraction and k is given, fraction is an integer or outside
            (0, 1], or block or k < 1.

    Source: Zheng, Huang and Kwok, "Communication-efficient distributed blockwise momentum SGD with
    error-feedback", 2019, for compression by blocks.
    """
    share = share_or_count("block_top_k", fraction, k, "blocks")
    b = checks.positive_int("block_top_k: block", block)

    def layout(d):
        """Returns the numbers of blocks, of kept ones, and of elements of a block."""
        n = -(-d // b)
        return n, selected_count(share, n), min(b, d)

    def compress(key, x):
        d = x.shape[0]
        n, k, size = layout(d)
        rows = jnp.pad(x, (0, n * size - d)).reshape(n, size)
        relative = unit(wide(rows))[0]  # squares neither overflow nor vanish
        places = xla.largest(jnp.sum(relative**2, axis=1), k).astype(jnp.uint32)
        values = rows[places]
        return Encoded(
            Sparse(codecs.pack(places, codecs.index_bits(n)), values), decode(places, values, d)
        )

    def decompress(message, d):
        n, k, _ = layout(d)
        return decode(codecs.unpack(message.places, codecs.index_bits(n), k), message.values, d)

    def decode(places, values, d):
        n, _, size = layout(d)
        rows = jnp.zeros((n, size), wide(values).dtype)
        return rows.at[places].set(wide(values), unique_indices=True).ravel()[:d]

    def delta(d):
        n, k, _ = layout(d)
        return k / n

    return fixed_size(compress, decompress, f"block_top_k({format_size(share)}, {b})", delta=delta)


def _two_bit() -> Compressor:
    def compress(key, x):
        relative, largest = unit(wide(x))
        centred = relative - xla.sum_elements(relative) / x.shape[0]
        step = 1.5 * jnp.sqrt(xla.sum_elements(centred**2) / x.shape[0])
        codes = jnp.clip(jnp.round(centred / jnp.where(step > 0, step, 1) + 2), 0, 3)
        codes = xla.materialize(codes.astype(jnp.uint8))
        table = largest * jnp.stack([mean_where(codes == code, relative) for code in range(4)])
        return Encoded(Tabled(codecs.pack(codes, 2), table), table[codes])

    def mean_where(members, x):
        number = jnp.sum(members, dtype=jnp.int32)
        return xla.sum_elements(jnp.where(members, x, 0)) / jnp.maximum(1, number)

    def decompress(message, d):
        return message.table[codecs.unpack(message.codes, 2, d)]

    return fixed_size(compress, decompress, "two_bit", delta=lambda d: 0.75 * math.sqrt(0.4375 / d))


two_bit: Compressor = _two_bit()
r"""Codes of two bits for four bins around the mean; a code stands for the mean of the elements in
its bin. Biased.

$$ c_i = \mathrm{clip}\Big(\mathrm{round}\Big(\frac{x_i - \bar x}{1.5\, \sigma}\Big) + 2, 0, 3\Big),
\qquad \sigma^2 = \frac1d \sum_i (x_i - \bar x)^2, \qquad
|C(x) - x|^2 \le \Big(1 - \frac{0.75 \sqrt{0.4375}}{\sqrt d}\Big) |x|^2 $$

A message has d codes of 2 bits and the four means. The bound: elements with $|x_i - \bar x| \ge
0.75\, \sigma$ hold at least 0.4375 of the variance; a bin with n of them and a sum of squares q has
a mean m with $n m^2 \ge \max(0.5625\, n \sigma^2, q / n)$.

Source: the quantizer of Templar's implementation of Sarfi et al., "Communication efficient LLM
pre-training with SparseLoCo", 2025, which divides by d - 1 in the variance; with d it is a
contraction for every d."""
