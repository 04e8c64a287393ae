r"""Random rotations before quantization: any compressor in a rotated basis, DRIVE and EDEN.

The rotation is a randomised Hadamard transform, $R = \frac{1}{\sqrt p} H D$ with the Hadamard
matrix H and a diagonal matrix D of random signs. It exists for powers of two. Other vectors are cut
into consecutive pieces of decreasing powers of two (11 = 8 + 2 + 1), which are rotated separately.
Thus nothing is padded, and R is orthogonal for every d. To apply it, the vector is read and written
about $\frac12 \log_2 d$ times, which is most of the time of encoding and of decoding.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import accumulate
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks, xla
from dsgd.base import Compressor, Encoded, PyTree
from dsgd.compressors.members import encode, require_cold
from dsgd.compressors.scales import unit
from dsgd.compressors.seeds import draw_seed, from_seed
from dsgd.compressors.sizes import fixed_size, wide
from dsgd.compressors.sparsification import selected_count
from dsgd.wire import codecs

SEED_BITS = 64
_WORD = 32  # random bits in a word
# Bounds of E(y - c)^2 for 1, ..., 4 bits, where y is any sum of fixed numbers with random signs and
# E y^2 = 1, and c is the nearest centroid.
_LARGEST_ERRORS = 0.5083, 0.324, 0.109, 0.0397


class Rotated(NamedTuple):
    """A message in a rotated basis.

    Args:
        seed: of the rotation, uint32 `[2]`; None: it is not sent.
        message: the message of the rotated vector.
    """

    seed: jax.Array | None
    message: PyTree


class Centroids(NamedTuple):
    """A message of `eden`.

    Args:
        seed: of the rotation, uint32 `[2]`.
        codes: packed codes of the elements with more bits, if any, and of the others.
        scales: one for each piece, `[pieces]`.
    """

    seed: jax.Array
    codes: tuple[tuple[jax.Array, ...], ...]
    scales: jax.Array


@checks.arguments
def rotated(compressor: Compressor, rounds: int = 1, seed: int | None = None) -> Compressor:
    r"""Compresses a vector in a randomly rotated basis.

    $$ Q_R(x) = R^{-1} Q(R x), \qquad R = R_r \cdots R_1, \quad R_i = \frac{1}{\sqrt p} H D_i $$

    A rotation preserves norms, so that $\omega$ and $\delta$ are those of Q. It helps quantizers
    with a range or a scale: the elements of Rx have similar magnitudes, $|R x|_\infty \le
    \sqrt{2 \log(2 p / \epsilon) / p}\, |x|$ with probability at least $1 - \epsilon$. With two
    rounds they are close to normal also if only few elements of x are not 0.

    A message is that of Q, and 64 bits for the seed of the rotation. Elements are sent in float64
    for float64 vectors, else in float32. A piece of the vector that has one element is not rotated.
    If the norm of x exceeds the range of float32, elements of Rx may not be finite.

    Args:
        compressor: Q.
        rounds: r, number of Hadamard transforms with independent signs.
        seed: seed of a rotation that all workers know and use in every round; it is not sent. None:
            each message has its own; if Q draws the same for all senders of an exchange, such as
            `perm_k`, their messages have the same one.

    Raises:
        ValueError: if rounds < 1, or the compressor has a warm start.

    Source: Suresh, Yu, Kumar and McMahan, "Distributed mean estimation with limited communication",
    2017. Departure: pieces instead of padding to a power of two.
    """
    fixed = [] if seed is None else [f"seed={seed}"]
    name = f"rotated({', '.join([compressor.name, *_options('', rounds), *fixed])})"
    checks.positive_int(f"{name}: rounds", rounds)
    require_cold(name, compressor)

    def rotation(drawn):
        return from_seed(drawn) if seed is None else jax.random.key(seed)

    def compress(key, x, common=None):
        seed_key, inner_key = jax.random.split(key)
        if common is not None and compressor.shares:
            seed_key, common = common.fold_in(0).key, common.fold_in(1)
        drawn = draw_seed(seed_key) if seed is None else None
        y = rotate(rotation(drawn), wide(x), rounds)
        message, decoded = encode(compressor, inner_key, y, common=common)
        return Encoded(Rotated(drawn, message), rotate_back(rotation(drawn), decoded, rounds))

    def decompress(message, d):
        y = compressor.decompress(message.message, d)
        return rotate_back(rotation(message.seed), y, rounds)

    def bits(message):
        return compressor.bits(message.message) + (SEED_BITS if seed is None else 0)

    return compressor._replace(compress=compress, decompress=decompress, bits=bits, name=name)


@checks.arguments
def drive(scale: Literal["least error", "unbiased"] = "least error", rounds: int = 1) -> Compressor:
    r"""DRIVE: the signs of a rotated vector, one bit per element, and a scale; biased.

    $$ C(x) = S\, R^{-1} \mathrm{sign}(R x), \qquad S = \frac{|R x|_1}{d} \text{ ("least error")},
    \quad S = \frac{|x|^2}{|R x|_1} \text{ ("unbiased")} $$

    It is `eden` with one bit. With the scale of least error $|C(x) - x|^2 = |x|^2 - |R x|_1^2 / d$,
    and $\delta = 1/2$ for d >= 2, with equality for two equal elements in a piece: an element of Rx
    is a sum of the elements of x with random signs, so that $E|(R x)_i| \ge |x| / \sqrt{2 d}$
    (Khintchine's inequality with Szarek's constant). For vectors of many elements of similar
    magnitude, the errors of the two scales are close to those of normal elements, $1 - 2 / \pi =
    0.363$ and $\pi / 2 - 1 = 0.571$ times $|x|^2$.

    Args:
        scale, rounds: see `eden`.

    Raises:
        ValueError: see `eden`.

    Source: Vargaftik et al., "DRIVE: one-bit distributed mean estimation", 2021.
    """
    of_one_bit = eden(1, scale, rounds)
    return of_one_bit._replace(name=f"drive({', '.join(_options(scale, rounds))})")


@checks.arguments
def eden(
    bits: float, scale: Literal["least error", "unbiased"] = "least error", rounds: int = 1
) -> Compressor:
    r"""EDEN: the elements of a rotated vector, rounded to the centroids of the optimal quantizer of
    normal numbers, and a scale; biased.

    $$ C(x) = S\, R^{-1} c, \qquad c_i \text{ nearest to } \frac{\sqrt d}{|x|} (R x)_i, \qquad
    S = \frac{\langle c, R x \rangle}{|c|^2} \text{ ("least error")}, \quad
    S = \frac{|x|^2}{\langle c, R x \rangle} \text{ ("unbiased")} $$

    The centroids are those of Lloyd and Max: each is the mean of a standard normal number that is
    nearest to it. With b + f bits, a share f of the rotated elements has b + 1 bits and the others
    have b. A message has these codes, a seed of 64 bits for the rotation, and 32 bits for the scale
    of each piece; the number of elements of a piece is a power of two.

    The compressor would be unbiased with the second scale if the rotation were uniformly random.
    With the Hadamard transform, $\langle C(x), x \rangle = |x|^2$ always, but the mean of the
    error, which is orthogonal to x, is only close to 0. If x has two elements a > b > 0 in a piece
    and zeros, one bit always loses the second, since the sign of $\pm a \pm b$ is that of
    $\pm a$: $C(x) = (a + b^2 / a, 0)$. For a = 4 and b = 3 this bias is 0.75 |x|; with two rounds
    it is below 0.02 |x| for 1,024 elements. Hence no omega is stated, and no delta with this scale.

    With the scale of least error, $E|C(x) - x|^2 \le \epsilon\, |x|^2$ with $\epsilon = 0.5, 0.324,
    0.109, 0.0397$ for 1 to 4 bits, and between them by linear interpolation, with 0.5083 for one
    bit. This follows from $E y_i^2 = 1$, $E y_i^4 \le 3$ and $E|y_i| \ge 1 / \sqrt 2$ of the
    normalised elements $y_i = \sqrt d (R x)_i / |x|$, for any x. If they are normal, the error is
    that of the centroids, D = 0.363, 0.117, 0.035, 0.0095, and $D / (1 - D)$ with the other scale.

    Args:
        bits: bits of an element, 1 to 4, not necessarily an integer. For fewer bits, compress the
            elements of `random_k`: `random_k(0.5, eden(1))`.
        scale: "least error", for methods with error memory; or "unbiased".
        rounds: number of Hadamard transforms with independent signs.

    Raises:
        ValueError: if bits is outside [1, 4], scale is not one of the two, or rounds < 1.

    Source: Vargaftik et al., "EDEN: communication-efficient and robust distributed mean estimation
    for federated learning", 2022. Departure: which elements have more bits is not drawn, since all
    elements of Rx have the same distribution.
    """
    checks.number("eden: bits", bits, "[1, 4]")
    checks.positive_int("eden: rounds", rounds)
    few, share = math.floor(bits), bits % 1
    widths = (few + 1, few) if share else (few,)

    def parts(d):
        """Returns the slices of the elements with the first width, and with the second."""
        starts = [0, *accumulate(pieces(d))]
        middles = [
            start + selected_count(share, p) for start, p in zip(starts, pieces(d), strict=False)
        ]
        if not share:
            return [[slice(0, d)]]
        return [list(map(slice, starts, middles)), list(map(slice, middles, starts[1:]))]

    def values(codes, dtype, d):
        """Returns the centroids of the codes, `[d]`."""
        found = [
            jnp.asarray(centroids(width), dtype)[code]
            for width, code in zip(widths, codes, strict=True)
        ]
        if not share:
            return found[0]
        more, fewer = (
            jnp.split(part, np.cumsum([s.stop - s.start for s in slices])[:-1])
            for part, slices in zip(found, parts(d), strict=True)
        )
        return jnp.concatenate([each for pair in zip(more, fewer, strict=True) for each in pair])

    def compress(key, x):
        d, seed = x.shape[0], draw_seed(key)
        relative, largest = unit(wide(x))
        y = rotate(from_seed(seed), relative, rounds)
        norm = jnp.sqrt(_sums(y * y))
        roots = jnp.asarray(np.sqrt(pieces(d)), y.dtype)
        normal = y * _spread(roots / jnp.where(norm > 0, norm, 1), d)
        codes = [
            _nearest(jnp.concatenate([normal[part] for part in slices]), width)
            for width, slices in zip(widths, parts(d), strict=True)
        ]
        c = values(codes, y.dtype, d)
        along = _sums(c * y)
        if scale == "least error":
            scales = along / _sums(c * c)
        else:
            scales = norm * norm / jnp.where(along == 0, 1, along)
        scales = largest * scales
        packed = tuple(map(codecs.pack, codes, widths))
        return Encoded(Centroids(seed, packed, scales), decode(seed, codes, scales, d))

    def decompress(message, d):
        numbers = [sum(part.stop - part.start for part in slices) for slices in parts(d)]
        codes = list(map(codecs.unpack, message.codes, widths, numbers))
        return decode(message.seed, codes, message.scales, d)

    def decode(seed, codes, scales, d):
        return rotate_back(
            from_seed(seed), values(codes, scales.dtype, d) * _spread(scales, d), rounds
        )

    def delta(d):
        if d == 1:
            return 1.0
        errors = _LARGEST_ERRORS if share else (1 / 2, *_LARGEST_ERRORS[1:])
        return 1 - (1 - share) * errors[few - 1] - (share * errors[few] if share else 0)

    options = [f"{bits:g}", *_options(scale, rounds)]
    return fixed_size(
        compress,
        decompress,
        f"eden({', '.join(options)})",
        delta=delta if scale == "least error" else None,
    )


def _options(scale: str, rounds: int) -> list[str]:
    return [scale] * (scale == "unbiased") + [f"rounds={rounds}"] * (rounds > 1)


def rotate(key: jax.Array, x: jax.Array, rounds: int) -> jax.Array:
    """Returns R x, `[d]`."""
    for i in range(rounds):
        x = _hadamard(_flip(jax.random.fold_in(key, i), x))
    return x


def rotate_back(key: jax.Array, y: jax.Array, rounds: int) -> jax.Array:
    """Returns $R^{-1} y$, `[d]`."""
    for i in reversed(range(rounds)):
        y = _flip(jax.random.fold_in(key, i), _hadamard(y))
    return y


def pieces(d: int) -> list[int]:
    """Returns the powers of two that add up to d, in decreasing order."""
    return [1 << i for i in reversed(range(d.bit_length())) if d >> i & 1]


def _split_pieces(x: jax.Array) -> list[jax.Array]:
    return jnp.split(x, list(accumulate(pieces(x.shape[0])))[:-1])


def _hadamard(x: jax.Array) -> jax.Array:
    """Applies the normalised Hadamard transform to every piece."""

    def transform(part):
        # The division comes first, so that no sum exceeds the norm. It is stored, so that sender
        # and receivers round equally.
        p = part.shape[0]
        part = xla.materialize(part * (1 / math.sqrt(p)))
        # Sums of four terms need half as many passes as those of two. A product with a matrix would
        # be faster for neighbours, but its rounding depends on the number of vectors.
        done = 1
        while done < p:
            k = min(4, p // done)
            terms = jnp.unstack(part.reshape(-1, k, done), axis=1)
            part = jnp.stack(
                [sum(map(jnp.multiply, row, terms)) for row in _matrix(k).tolist()], axis=1
            )
            done *= k
        return part.ravel()

    return jnp.concatenate([transform(part) for part in _split_pieces(x)])


@cache
def _matrix(p: int) -> np.ndarray:
    """Returns the Hadamard matrix, `[p, p]`."""
    if p == 1:
        return np.ones((1, 1))
    half = _matrix(p // 2)
    return np.block([[half, half], [half, -half]])


def _flip(key: jax.Array, x: jax.Array) -> jax.Array:
    """Multiplies the elements by random signs, one random bit each."""
    d = x.shape[0]
    words = jax.random.bits(key, (-(-d // _WORD),), jnp.uint32)
    drawn = words[None] >> jnp.arange(_WORD, dtype=jnp.uint32)[:, None] & 1
    return jnp.where(drawn.ravel()[:d] == 1, -x, x)


def _sums(x: jax.Array) -> jax.Array:
    """Returns the sum of the elements of each piece."""
    return jnp.stack([xla.sum_elements(part) for part in _split_pieces(x)])


def _spread(values: jax.Array, d: int) -> jax.Array:
    """Returns one value for each piece as a vector `[d]`."""
    return jnp.concatenate([jnp.full(p, values[i]) for i, p in enumerate(pieces(d))])


def _nearest(x: jax.Array, width: int) -> jax.Array:
    """Returns the numbers of the nearest centroids, uint8."""
    c = centroids(width)
    boundaries = (c[1:] + c[:-1]) / 2
    codes = sum((x > boundary).astype(jnp.uint8) for boundary in boundaries.tolist())
    return xla.materialize(codes)


@cache
def centroids(bits: int) -> np.ndarray:
    """Returns the centroids of the optimal quantizer of a standard normal number, `[2^bits]`,
    increasing. They are computed by Lloyd's iteration, to the precision of float64.
    """
    c = np.linspace(0.1, 2.0, 2 ** (bits - 1))  # the positive half
    for _ in range(10_000):
        edges = [0.0, *((c[1:] + c[:-1]) / 2), math.inf]
        density = np.array([math.exp(-edge * edge / 2) for edge in edges]) / math.sqrt(2 * math.pi)
        above = np.array([math.erfc(edge / math.sqrt(2)) / 2 for edge in edges])
        new = -np.diff(density) / -np.diff(above)
        if np.max(np.abs(new - c)) < 1e-15:
            break
        c = new
    return np.concatenate([-c[::-1], c])
