"""Compressors that send few elements with their indices. Elements are sent in the vector's own
type: 64 bits each for float64 models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dsgd import checks, xla
from dsgd.base import Compressor, Encoded, PyTree
from dsgd.compressors.combinators import identity
from dsgd.compressors.members import constant_at, encode
from dsgd.compressors.sizes import FLOAT_BITS, array_bits, fixed_size, wide
from dsgd.wire import codecs

RARE = 1e-12  # probability that a random number of elements exceeds its capacity


class Sparse(NamedTuple):
    """A message of some elements.

    Args:
        places: packed indices of the elements.
        values: a message of the elements.
    """

    places: tuple[jax.Array, ...]
    values: PyTree


class Counted(NamedTuple):
    """A message of a random number of elements.

    Args:
        bits: number of bits that are used, a uint32 scalar.
        places: packed indices of the elements; the unused ones are 0.
        values: the elements; the unused ones are 0.
    """

    bits: jax.Array
    places: tuple[jax.Array, ...]
    values: jax.Array


@checks.arguments
def top_k(
    fraction: float | None = None, values: Compressor = identity, *, k: int | None = None
) -> Compressor:
    r"""Top-k sparsification: keeps the k elements of largest magnitude; biased.

    $$ |C(x) - x|^2 \le \Big(1 - \frac kd\Big) |x|^2, \qquad k = \lceil \mathrm{fraction} \cdot d
    \rceil $$

    The k elements are found by counting, and their indices are sorted: for k = d/10 on a CPU, the
    sort takes longer than 20 copies of the vector.

    Args:
        fraction: k / d, a float in (0, 1]; 1.0 keeps all elements.
        values: compressor of the kept elements. If its contraction constant is a, that of the whole
            is a k/d, since its error is orthogonal to the dropped elements.
        k: the number of elements, in place of their share; shorter vectors are sent whole.

    Raises:
        ValueError: if not exactly one of fraction and k is given, fraction is an integer or outside
            (0, 1], or k < 1.

    Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", 2018; Liu and Zhang, section
    3.1.1, caveat 3.
    """
    size = share_or_count("top_k", fraction, k)

    def score(key, x):
        return wide(x)

    def delta(d):
        k = selected_count(size, d)
        inner = constant_at(values.delta, k)
        return None if inner is None else inner * k / d

    return _sparse("top_k", size, values, score, lambda d: 1.0, delta=delta)


@checks.arguments
def random_k(
    fraction: float | None = None, values: Compressor = identity, *, k: int | None = None
) -> Compressor:
    r"""Random-k sparsification: k elements drawn without replacement, scaled up to be unbiased.

    $$ Q(x) = \frac dk \sum_{i \in S} x_i e_i, \quad |S| = k = \lceil \mathrm{fraction} \cdot d
    \rceil, \qquad E|Q(x) - x|^2 = \Big(\frac dk - 1\Big) |x|^2 $$

    It is a contraction only if k > d/2. `contraction(random_k(...))` is always one; it sends the k
    elements unscaled. The k elements are those with the largest of d random numbers. Drawing and
    selecting them may take longer than 20 copies of the vector on a CPU; `shared_random_k` takes
    less.

    Args:
        fraction: k / d, a float in (0, 1]; 1.0 keeps all elements.
        values: compressor of the drawn elements. If it is unbiased with constant w, the whole is
            unbiased with $\frac dk (1 + w) - 1$.
        k: as in `top_k`.

    Raises:
        ValueError: as in `top_k`.

    Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", 2018.
    """
    size = share_or_count("random_k", fraction, k)

    def score(key, x):
        # The scores are 30 random bits each, converted to positive normal floats in the same order.
        drawn = (jax.random.bits(key, x.shape, jnp.uint32) >> 2) + jnp.uint32(1 << 23)
        return xla.materialize(jax.lax.bitcast_convert_type(drawn, jnp.float32))

    def omega(d):
        k = selected_count(size, d)
        inner = constant_at(values.omega, k)
        return None if inner is None else d / k * (1 + inner) - 1

    return _sparse(
        "random_k",
        size,
        values,
        score,
        lambda d: d / selected_count(size, d),
        omega=omega if values.unbiased else None,
    )


def selected_count(size: float, d: int) -> int:
    """Returns k, the number of elements that are sent: `size`, at most d, if it is an int, else
    size * d, rounded up. A product that exceeds an integer by a rounding error only is rounded
    down.
    """
    if isinstance(size, int):
        return min(size, d)
    return max(1, math.ceil(size * d - 1e-9 * d))


def _sparse(
    kind: str,
    size: float,
    values: Compressor,
    score: Callable,
    scale: Callable,
    omega: Callable | None = None,
    delta: Callable | None = None,
) -> Compressor:
    """Returns a compressor that sends the k elements whose `score(key, x)` has the largest
    magnitude, times scale(d).
    """
    name = f"{kind}({format_size(size)}{'' if values is identity else f', {values.name}'})"

    def compress(key, x, common=None):
        d = x.shape[0]
        score_key, values_key = jax.random.split(key)
        k = selected_count(size, d)
        scores = score(score_key, x)
        places = xla.largest(scores, k) if k < d else jnp.arange(d)
        codes = places.astype(jnp.uint32)
        sent = encode(values, values_key, x[places], common=common)
        if values is identity and 1 < k < d:  # does not need the indices, which are slow to compute
            decoded = jnp.where(xla.among_largest(scores, k), wide(x) * scale(d), 0)
        else:
            decoded = decode(codes, sent.decoded, d)
        return Encoded(Sparse(codecs.pack(codes, codecs.index_bits(d)), sent.message), decoded)

    def decompress(message, d):
        k = selected_count(size, d)
        return decode(
            codecs.unpack(message.places, codecs.index_bits(d), k),
            values.decompress(message.values, k),
            d,
        )

    def decode(places, elements, d):
        elements = wide(elements) * scale(d)
        # If all elements are sent, they are in order.
        return scatter(places, elements, d) if places.shape[0] < d else elements

    sparse = fixed_size(compress, decompress, name, omega=omega, delta=delta)
    return sparse._replace(
        bits=lambda message: array_bits(message.places) + values.bits(message.values)
    )


@checks.arguments
def random_sparsification(probability: float) -> Compressor:
    r"""Random sparsification: keeps each element with probability p and scales it up; unbiased.

    $$ Q(x_i) = \frac{x_i}{p} \text{ with probability } p, \text{ else } 0, \qquad E|Q(x) - x|^2 =
    \Big(\frac1p - 1\Big) |x|^2 $$

    The number of kept elements is random. The arrays of a message have room for a number that is
    exceeded with probability below 1e-12 (Bernstein's inequality); further elements would be
    dropped. The bits of a message are those of the elements that it contains, and 32 bits for their
    number. The gaps between kept elements, which are geometric, are drawn, so that the cost of the
    randomness is proportional to the number of kept elements and not to d.

    Args:
        probability: p, a float in (0, 1].

    Raises:
        ValueError: if probability is an integer or outside (0, 1].

    Source: Wangni et al., 2018; Liu and Zhang, section 3.2, which prints "set z to 0 with
    probability p" for 1 - p.
    """
    require_share("random_sparsification", "probability", probability)
    p, name = probability, f"random_sparsification({probability:g})"

    def compress(key, x):
        d, room = x.shape[0], capacity(p, x.shape[0])
        each = 8 * x.dtype.itemsize + codecs.index_bits(d)
        require_countable(name, d, room * each)
        places = _bernoulli_places(key, p, d, room)
        used = places < d
        values = jnp.where(used, x[jnp.minimum(places, d - 1)], 0)
        codes = jnp.where(used, places, 0)
        bits = FLOAT_BITS + jnp.uint32(each) * jnp.sum(used, dtype=jnp.uint32)
        return Encoded(
            Counted(bits, codecs.pack(codes, codecs.index_bits(d)), values),
            decode(codes, values, d),
        )

    def decompress(message, d):
        return decode(
            codecs.unpack(message.places, codecs.index_bits(d), message.values.shape[0]),
            message.values,
            d,
        )

    def decode(places, values, d):
        return scatter(places, wide(values) / p, d, padded=True)

    return Compressor(
        compress=compress,
        decompress=decompress,
        bits=lambda message: message.bits,
        name=name,
        omega=lambda d: 1 / p - 1,
        delta=lambda d: 2 - 1 / p if p > 0.5 else None,
    )


def require_countable(name: str, d: int, most: int) -> None:
    """Raises ValueError if `most` bits of a message for d elements exceed uint32."""
    if most >= 1 << 32:
        raise ValueError(
            f"{name} of {d} elements: a message may exceed 2^32 bits; expected fewer elements: use "
            "compressors.buckets"
        )


def capacity(probability: float, d: int) -> int:
    """Returns the number of elements that a message has room for: d p plus a term from Bernstein's
    inequality, such that more are kept with probability at most `RARE`.
    """
    log = math.log(1 / RARE)
    variance = d * probability * (1 - probability)
    return min(d, math.ceil(d * probability + log / 3 + math.sqrt(log**2 / 9 + 2 * log * variance)))


def _bernoulli_places(key: jax.Array, p: float, d: int, size: int) -> jax.Array:
    r"""Returns the indices of elements that are kept with probability p each, uint32 in increasing
    order: the first `size` of them, with d in place of missing ones.

    Let E be exponential. Then $\lfloor E / -\ln(1-p) \rfloor$ elements are dropped before the next
    kept one. E is computed as $-\ln(1 - v)$ from a 32-bit random v in (0, 1). For v above 1/2, $1 -
    v$ is computed from the inverted bits, so that the relative precision of E is that of float32 at
    both ends.
    """
    bits = jax.random.bits(key, (size,), jnp.uint32)
    small = bits < jnp.uint32(1 << 31)
    v = (jnp.where(small, bits, ~bits).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32)
    exponential = jnp.where(small, -jnp.log1p(-v), -jnp.log(v))
    dropped = jnp.floor(exponential / -math.log1p(-p)) if p < 1 else jnp.zeros(size, jnp.float32)
    # All sums are capped here, so that none overflows. It is an integer, since float32 may round d
    # down.
    end = jnp.uint32(d + 1)
    gaps = jnp.where(dropped < d, dropped.astype(jnp.uint32) + 1, end)
    return jax.lax.associative_scan(lambda a, b: jnp.minimum(a + b, end), gaps) - 1


def scatter(places: jax.Array, values: jax.Array, d: int, padded: bool = False) -> jax.Array:
    """Returns the vector `[d]` with these elements at these indices, and zeros elsewhere. Padding
    adds 0 to the first element. Without padding the elements are set, not added, since a sum would
    flush denormal numbers to zero.
    """
    if places.shape[0] == 1:  # XLA fuses a comparison with its use, but not a scatter
        return jnp.where(jnp.arange(d, dtype=places.dtype) == places, values, 0)
    at = jnp.zeros(d, values.dtype).at[places]
    return at.add(values) if padded else at.set(values, unique_indices=True)


def share_or_count(name: str, fraction: float | None, k: int | None, of: str = "elements") -> float:
    """Returns the share as a float, or the number as an int, of what is kept.

    Raises:
        ValueError: if not exactly one of the two is given, or it is not valid.
    """
    if k is not None and fraction is None:
        return checks.positive_int(f"{name}: k", k)
    if k is not None or fraction is None:
        raise ValueError(
            f"{name}: fraction = {fraction!r}, k = {k!r}; expected one of both: the share of the "
            f"{of}, such as {name}(0.1), or their number, such as {name}(k=10)"
        )
    return require_share(
        name, "fraction", fraction, f", or the number of {of}: {name}(k={fraction})"
    )


def require_share(name: str, what: str, value: float, or_count: str = "") -> float:
    """Returns a share. An integer is refused, since 1 may stand for one element or for all.

    Args:
        name, what: where the value comes from, for the message.
        value: the share.
        or_count: end of the message: how to pass a number instead.
    """
    if checks.is_integer(value):
        raise ValueError(
            f"{name}: {what} = {value}, an integer; expected a share, a float in (0, 1], where 1.0 "
            f"is all{or_count}"
        )
    return checks.number(f"{name}: {what}", value, "(0, 1]")


def format_size(size: float) -> str:
    """Returns a share, or a number of elements, as in the name of a compressor."""
    return f"k={size}" if isinstance(size, int) else "1.0" if size == 1 else f"{size:g}"
