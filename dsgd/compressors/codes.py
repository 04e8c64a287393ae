"""Linear codes: short linear maps of a vector, which workers can add up without decoding, and the
compressors that send them with their seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dsgd import checks
from dsgd.base import Compressor, Encoded
from dsgd.compressors.seeds import draw_seed, from_seed
from dsgd.compressors.sizes import fixed_size, wide
from dsgd.compressors.sparsification import format_size, scatter, selected_count, share_or_count


class LinearCode(NamedTuple):
    """A random linear map from vectors to shorter arrays, and a map back. Workers that use equal
    keys can all-reduce the arrays: `Communicator.mean_of_codes`.

    Args:
        encode: (key, x: [d]) -> code, an array that is linear in x.
        decode: (key, code, d: int) -> decoded: [d].
        name: name in tables and error messages.
        omega: as in `dsgd.Compressor`, over the draws of the key; None: decoding is biased.
        delta: as in `dsgd.Compressor`; None: no contraction is stated.
    """

    encode: Callable
    decode: Callable
    name: str
    omega: Callable | None = None
    delta: Callable | None = None

    def __repr__(self) -> str:
        return f"LinearCode({self.name})"

    @property
    def layer_wise(self) -> bool:
        """Returns True: each leaf of a tree has its own code."""
        return True


class Seeded(NamedTuple):
    """A message that its receivers decode with random numbers from its seed.

    Args:
        seed: uint32 `[2]`.
        code: the arrays that are sent.
    """

    seed: jax.Array
    code: jax.Array


@checks.arguments
def with_seed(code: LinearCode) -> Compressor:
    """Returns the compressor that sends the code of the vector and the code's seed of 64
    bits, which is the same for all senders of an exchange.

    The errors of the workers then depend on each other: the mean of the decoded messages has the
    error of a single message of the mean vector, which is smaller only if the vectors differ.

    Args:
        code: the linear code.
    """

    def compress(key, x, common=None):
        seed = draw_seed(key if common is None else common.key)
        sent = code.encode(from_seed(seed), x)
        return Encoded(Seeded(seed, sent), code.decode(from_seed(seed), sent, x.shape[0]))

    def decompress(message, d):
        return code.decode(from_seed(message.seed), message.code, d)

    return fixed_size(
        compress, decompress, f"with_seed({code.name})", omega=code.omega, delta=code.delta
    )


@checks.arguments
def shared_random_k(fraction: float | None = None, *, k: int | None = None) -> Compressor:
    r"""Random-k sparsification at places that all workers know: the same k of the d elements in all
    messages of an exchange. No places are sent.

    $$ Q(x_n) = \frac dk \sum_{i \in S} x_{n,i} e_i, \quad |S| = k = \lceil \mathrm{fraction} \cdot
    d \rceil, \qquad E\Big|\frac1N \sum_n Q(x_n) - \bar x\Big|^2 = \Big(\frac dk - 1\Big) |\bar x|^2
    $$

    The workers' errors are fully dependent. The error of the mean does not decrease with N, as it
    does with `random_k`, but the differences between the workers' vectors do not contribute to it.
    Sums of messages have k elements, too. `contraction(shared_random_k(fraction))` sends the same
    elements unscaled. A message has k elements, of 32 bits each in float32, and 64 bits of the
    seed; `Communicator.mean_of_codes(random_places(fraction), ...)` all-reduces the k elements
    alone.

    Args:
        fraction, k: as in `top_k`.

    Raises:
        ValueError: as in `top_k`.

    Source: Vogels, Karimireddy and Jaggi, "PowerSGD", 2019, and its code (epfml/powersgd): its
    sparsifiers draw the same places on all workers. Departure: the places are those of
    `random_places`, one in each of k parts of a rotated vector.
    """
    size = share_or_count("shared_random_k", fraction, k)
    return with_seed(random_places(fraction, k=k))._replace(
        name=f"shared_random_k({format_size(size)})"
    )


@checks.arguments
def random_places(
    fraction: float | None = None, unbiased: bool = True, *, k: int | None = None
) -> LinearCode:
    r"""k of the d elements at random places: $E(x) = x_S$; decoded as $\frac dk \sum_{i \in S} x_i
    e_i$, with zeros elsewhere.

    $$ \omega = \frac dk - 1, \qquad k = \lceil \mathrm{fraction} \cdot d \rceil $$

    The elements are placed on a circle, which is rotated at random and cut into k parts of
    $\lfloor d/k \rfloor$ or $\lceil d/k \rceil$ elements; one random element of each part is sent.
    Each element is sent with probability k / d, so that the mean and the expected squared error are
    those of independent draws without replacement for every vector. Such draws would need d random
    numbers and a selection.

    Args:
        fraction, k: as in `top_k`.
        unbiased: whether decoded elements are scaled by d / k. If not, decoding is the projection
            onto the k elements, with $\delta = k / d$, as methods with error memory need it.

    Raises:
        ValueError: as in `top_k`.
    """

    size = share_or_count("random_places", fraction, k)

    def places(key, d):
        of_rotation, of_elements = jax.random.split(key)
        k = selected_count(size, d)
        part = jnp.arange(k)
        length = d // k + (part < d % k)
        start = part * (d // k) + jnp.minimum(part, d % k)
        drawn = start + jax.random.randint(of_elements, (k,), 0, length)
        return (drawn + jax.random.randint(of_rotation, (), 0, d)) % d

    def encode(key, x):
        return x[places(key, x.shape[0])]

    def decode(key, code, d):
        return scatter(places(key, d), wide(code), d)

    return _element_code("random_places", size, unbiased, encode, decode)


@checks.arguments
def random_block(
    fraction: float | None = None, unbiased: bool = True, *, k: int | None = None
) -> LinearCode:
    r"""k contiguous elements that start at a random one of the d elements and continue with the
    first after the last; decoded as those of `random_places`, with the same $\omega$ and $\delta$.

    Each element is sent with probability k / d, so that the mean and the expected squared error are
    those of `random_places` for every vector. Neighbouring elements are sent together, which is
    fast.

    Args:
        fraction, unbiased, k: as in `random_places`.

    Raises:
        ValueError: as in `top_k`.

    Source: the code of Vogels, Karimireddy and Jaggi, "PowerSGD", 2019 (epfml/powersgd), where
    blocks are not scaled.
    """

    size = share_or_count("random_block", fraction, k)

    def start(key, d):
        return jax.random.randint(key, (), 0, d)

    def encode(key, x):
        k = selected_count(size, x.shape[0])
        around = jnp.concatenate([x, x[: k - 1]])
        return jax.lax.dynamic_slice_in_dim(around, start(key, x.shape[0]), k)

    def decode(key, code, d):
        k = code.shape[0]
        line = jnp.zeros(d + k, wide(code).dtype)
        line = jax.lax.dynamic_update_slice_in_dim(line, wide(code), start(key, d), axis=0)
        return jnp.concatenate([line[:k] + line[d:], line[k:d]])

    return _element_code("random_block", size, unbiased, encode, decode)


@checks.arguments
def count_sketch(rows: int, columns: int) -> LinearCode:
    r"""Count sketch: r rows of c counters, to which the elements are added with random signs.

    $$ S_{jb} = \sum_{i : h_j(i) = b} s_j(i)\, x_i, \qquad \hat x_i = \mathrm{median}_j\, s_j(i)\,
    S_{j, h_j(i)}, \qquad E|\hat x_i - x_i|^2 \le \frac{|x|^2}{c} $$

    Signs are independent, and an element meets another one with a probability of at most 1 / c in a
    row. Elements of the same c consecutive ones do not meet at all, so that vectors of at most c
    elements are decoded exactly. Estimates are unbiased, because the error of each row is symmetric
    around 0, and so is the median of an odd number of rows; the median's squared error is at most
    that of one row. With m the number of elements of the last c (m = c if c divides d):

    $$ \omega = \frac{d - m}{c} $$

    which one row attains for vectors that are 0 outside of the last m elements. More rows make
    large errors of single elements rare: the median is wrong only if half of the rows are.

    A sketch has rc elements, of 32 bits in float32. Encoding and decoding rotate and add d r
    elements, and decoding selects medians of r: for r = 5 this takes longer than 20 copies of the
    vector.

    Args:
        rows: r, an odd number.
        columns: c.

    Raises:
        ValueError: if rows is not an odd number, at least 1, or columns < 1.

    Source: Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", 2002.
    Departure: $h_j$ rotates every c consecutive elements by a random number of places, instead of
    drawing a counter for each element, so that the sums are those of contiguous elements.
    """
    checks.positive_int("count_sketch: columns", columns)
    if checks.positive_int("count_sketch: rows", rows) % 2 == 0:
        raise ValueError(f"count_sketch: rows = {rows}; expected an odd number")

    def blocks(d):
        return -(-d // columns)

    def hashes(key, d):
        """Returns the rotation of each block, `[blocks, rows]`, and its signs, `[blocks, rows,
        columns]`.
        """
        of_rotation, of_signs = jax.random.split(key)
        shape = blocks(d), rows
        words = jax.random.bits(of_signs, (*shape, -(-columns // 32), 1), jnp.uint32)
        place = jax.lax.broadcasted_iota(jnp.uint32, (*words.shape[:-1], 32), 3)
        positive = ((words >> place) & 1 == 1).reshape(*shape, -1)[..., :columns]
        return jax.random.randint(of_rotation, shape, 0, columns), positive

    def encode(key, x):
        def add(sketch, block):
            elements, rotations, positive = block
            signed = jnp.where(positive, elements[None], -elements[None])
            return sketch + jax.vmap(_rotate)(signed, rotations), None

        d = x.shape[0]
        cut = jnp.pad(wide(x), (0, blocks(d) * columns - d)).reshape(blocks(d), columns)
        empty = jnp.zeros((rows, columns), cut.dtype)
        return jax.lax.scan(add, empty, (cut, *hashes(key, d)))[0]

    def decode(key, sketch, d):
        def estimate(block):
            rotations, positive = block
            back = jax.vmap(_rotate)(sketch, -rotations % columns)
            return _median(jnp.where(positive, back, -back))

        return jax.lax.map(estimate, hashes(key, d)).ravel()[:d]

    def omega(d):
        return float((d - ((d - 1) % columns + 1)) / columns)

    return LinearCode(encode, decode, f"count_sketch({rows}, {columns})", omega)


def _element_code(
    kind: str, size: float, unbiased: bool, encode: Callable, decode: Callable
) -> LinearCode:
    """Returns a code of k elements; each element is chosen with probability k/d."""

    def share(d):
        return selected_count(size, d) / d

    def decode_scaled(key, code, d):
        return decode(key, code, d) * (d / selected_count(size, d))

    return LinearCode(
        encode,
        decode_scaled if unbiased else decode,
        f"{kind}({format_size(size)}{'' if unbiased else ', unbiased=False'})",
        omega=(lambda d: d / selected_count(size, d) - 1) if unbiased else None,
        delta=None if unbiased else share,
    )


def _rotate(x: jax.Array, by: jax.Array) -> jax.Array:
    """Returns x rotated to the right by 0 <= `by` < its length."""
    around = jnp.concatenate([x, x])
    return jax.lax.dynamic_slice_in_dim(around, x.shape[0] - by, x.shape[0])


def _median(rows: jax.Array) -> jax.Array:
    """Returns the median over an odd number of rows, `[r, d]` to `[d]`; NaN if a row has NaN."""
    sorted_rows, r = list(rows), rows.shape[0]
    for turn in range(r):  # exchanges of neighbours, which are vectorised, unlike XLA's sort
        for i in range(turn % 2, r - 1, 2):
            low, high = sorted_rows[i], sorted_rows[i + 1]
            sorted_rows[i], sorted_rows[i + 1] = jnp.minimum(low, high), jnp.maximum(low, high)
    return sorted_rows[r // 2]
