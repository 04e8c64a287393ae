"""Compressors with random choices that depend on those of the other senders of an exchange, so that
the errors of the workers cancel in the mean.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dsgd import checks
from dsgd.base import Compressor, Encoded
from dsgd.compressors.quantization import Scaled, require_bits
from dsgd.compressors.seeds import draw_seed, from_seed
from dsgd.compressors.sizes import fixed_size, wide
from dsgd.compressors.sparsification import scatter
from dsgd.wire import codecs


class Share(NamedTuple):
    """A message of `perm_k`.

    Args:
        seed: uint32 `[2]`, the same for all senders of an exchange.
        rank: the sender's place in the random order of the senders, uint32 scalar.
        values: the elements, `[k]`.
    """

    seed: jax.Array
    rank: jax.Array
    values: jax.Array


@checks.arguments
def perm_k(workers: int) -> Compressor:
    r"""PermK: the elements are divided at random among the N workers, and each worker sends its
    elements, scaled up to be unbiased.

    For d > N, worker n sends one of every N consecutive elements, times N. A random permutation
    $\pi$ of the workers and a random $s_j$ for each of these $\lceil d/N \rceil$ groups, which all
    workers know, determine which one:

    $$ Q_n(x) = N \sum_j x_{i(j)} e_{i(j)}, \qquad i(j) = jN + (\pi_n + s_j) \bmod N $$

    Each element is sent by exactly one worker, and by each of them with probability 1/N. So

    $$ E|Q_n(x) - x|^2 = (N - 1) |x|^2, \qquad E\Big|\frac1N \sum_n Q_n(x_n) - \bar x\Big|^2 =
    \frac1N \sum_n |x_n|^2 - |\bar x|^2 $$

    exactly for all vectors: the mean of equal vectors has no error. If N does not divide d, the
    last group is padded with zeros.

    For $d \le N$, each worker sends one element, times d', where d' is the smallest divisor of N
    that is at least d; the vector is padded to d' elements. Each element is sent by N/d' random
    workers. N is then replaced by d' in the first equation, and the right-hand side of the second
    is multiplied by $(d' - 1) / (N - 1)$.

    A message has $\lceil d/N \rceil$ elements of 32 bits in float32, a seed of 64 bits and a number
    of 32 bits.

    Args:
        workers: N, the number of workers of the run. Outside of an exchange, a message is that of
            one of the workers.

    Raises:
        ValueError: if workers < 1; in a run, if it has another number of workers.

    Source: Szlendak, Tyurin and Richtarik, "Permutation compressors for provably faster distributed
    nonconvex optimization", 2021. Departure: the permutation of the elements consists of rotations
    of groups of N elements, which have the same expectations and need d/N random numbers.
    """
    N = checks.positive_int("perm_k: workers", workers)

    def width(d):
        """Returns the number of elements of a group; a worker sends one of them."""
        return N if d > N else next(width for width in range(d, N + 1) if N % width == 0)

    def places(seed, rank, d):
        group = jnp.arange(-(-d // width(d)))
        shifts = jax.random.randint(from_seed(seed), group.shape, 0, width(d))
        return group * width(d) + (rank.astype(jnp.int32) + shifts) % width(d)

    def compress(key, x, common=None):
        if common is not None and common.workers != N:
            raise ValueError(
                f"perm_k({N}): the run has {common.workers} workers; expected {N}: pass "
                f"perm_k({common.workers})"
            )
        d, shared = x.shape[0], key if common is None else common.key
        of_seed, of_order = jax.random.split(shared)
        rank = jax.random.permutation(of_order, N)[0 if common is None else common.worker]
        rank, seed = rank.astype(jnp.uint32), draw_seed(of_seed)
        at = places(seed, rank, d)
        values = jnp.where(at < d, x[jnp.minimum(at, d - 1)], 0)
        return Encoded(Share(seed, rank, values), decode(at, values, d))

    def decompress(message, d):
        return decode(places(message.seed, message.rank, d), message.values, d)

    def decode(at, values, d):
        scaled = wide(values) * width(d)
        return scatter(at, scaled, at.shape[0] * width(d))[:d]

    return fixed_size(compress, decompress, f"perm_k({N})", omega=lambda d: float(width(d) - 1))


@checks.arguments
def correlated_quantization(bits: int) -> Compressor:
    r"""Correlated quantization: unbiased randomised rounding to $k = 2^b$ equidistant levels
    between -R and R, in which the workers' roundings are spread evenly.

    With the position $y_i = \frac{k - 1}{2} (x_i / R + 1)$ of an element among the levels,

    $$ Q_n(x_i) = \text{level } \lfloor y_i \rfloor + [U_{ni} < y_i - \lfloor y_i \rfloor], \qquad
    U_{ni} = \frac1N ((\pi_n + s_i) \bmod N + u_{ni}), \qquad R = 2^{\lceil \log_2 |x|_\infty
    \rceil} $$

    with a random permutation $\pi$ of the N workers and random $s_i$ in 0, ..., N - 1, which all
    workers know, and independent uniform $u_{ni}$ in [0, 1). If the workers have equal elements
    $x_i$, the number of workers that round up is $N (y_i - \lfloor y_i \rfloor)$, rounded down or
    up, so that the error of the mean is at most $2R / (N (k - 1))$. Rounding independently, it
    decreases with $1/\sqrt N$ only. The more the vectors differ, the less is gained. Workers with
    different R round independently of each other in effect; R is a power of two so that workers
    with similar vectors have the same.

    A message has d codes of b bits, and R in the vector's type, which is at most the largest number
    of that type. For each worker, with least constants,

    $$ \omega = \frac{4d - 1}{(k - 1)^2} \text{ if } b = 1 \text{ or } k \le 4d, \qquad \text{else }
    \frac{4d}{k^2 - 4d} $$

    which is approached by one element just above R/2 and zeros, or by a single element. An element
    costs two random numbers, one of them once for all workers on a device, and a division.

    Args:
        bits: b, 1 to 8.

    Raises:
        ValueError: if bits is outside 1..8.

    Source: Suresh, Sun, Ro and Yu, "Correlated quantization for distributed mean estimation and
    optimization", 2022. Departures: the paper's permutation of the workers is drawn again for each
    element; rotations of one have the same joint distribution of every two workers, and so the same
    expected squared error of the mean. There, all workers know the range.
    """
    require_bits("correlated_quantization", bits)
    k = 2**bits

    def compress(key, x, common=None):
        R = _power_of_two(x)
        y = jnp.clip((wide(x) / jnp.where(R > 0, wide(R), 1) + 1) * ((k - 1) / 2), 0, k - 1)
        U = jax.random.uniform(key, x.shape, jnp.float32)
        if common is not None:
            of_order, of_elements = jax.random.split(common.key)
            N = common.workers
            rank = jax.random.permutation(of_order, N)[common.worker]
            stratum = rank + jnp.floor(N * jax.random.uniform(of_elements, x.shape, jnp.float32))
            U = (jnp.where(stratum < N, stratum, stratum - N) + U) / N
        floor = jnp.floor(y)
        codes = jnp.minimum(floor + (y - floor > U), k - 1).astype(jnp.uint8)
        return Encoded(Scaled(codecs.pack(codes, bits), R), decode(codes, wide(R)))

    def decompress(message, d):
        return decode(codecs.unpack(message.codes, bits, d), wide(message.scale))

    def decode(codes, R):
        return (2 * codes.astype(R.dtype) - (k - 1)) / (k - 1) * R

    def omega(d):
        if bits == 1 or k <= 4 * d:
            return (4 * d - 1) / (k - 1) ** 2
        return 4 * d / (k**2 - 4 * d)

    return fixed_size(compress, decompress, f"correlated_quantization({bits})", omega=omega)


def _power_of_two(x: jax.Array) -> jax.Array:
    """Returns the smallest power of two that is at least the largest magnitude, a scalar of x's
    type; the type's largest number if the power is larger, and 0 for zeros.
    """
    largest = jnp.max(jnp.abs(x))
    mantissa, exponent = jnp.frexp(wide(largest))
    power = jnp.ldexp(jnp.ones_like(mantissa), exponent - (mantissa == 0.5))
    bound = jnp.minimum(power, float(jnp.finfo(x.dtype).max)).astype(x.dtype)
    # A maximum that is not finite is kept, so that the message decodes to NaN.
    return jnp.where(jnp.isfinite(largest) & (largest > 0), bound, largest)
