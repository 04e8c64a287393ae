"""Sparsification by thresholds on the magnitude. The number of elements is random, or depends on
the vector. Elements are sent in the vector's own type: 64 bits each for float64 models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks, xla
from dsgd.base import Compressor, Encoded
from dsgd.compressors.places import selected_indices
from dsgd.compressors.scales import unit
from dsgd.compressors.sizes import FLOAT_BITS, wide
from dsgd.compressors.sparsification import (
    Counted,
    require_countable,
    require_share,
    selected_count,
)
from dsgd.wire import codecs


@checks.arguments
def threshold(v: float) -> Compressor:
    r"""Threshold-v sparsification: keeps the elements of magnitude above v; biased.

    $$ C(x)_i = x_i \text{ if } |x_i| > v, \text{ else } 0, \qquad |C(x) - x| \le \sqrt d\, v $$

    The error is bounded absolutely, not relative to |x|: if no magnitude exceeds v, nothing is
    sent. Hence no contraction is stated, and methods with error memory need `allow_expanding`; the
    memory then has a norm of at most $\sqrt d\, v$. A message counts 32 bits for the number of
    elements, and the value and index of each. Its arrays have room for all d elements; filling them
    takes most of the time.

    Args:
        v: the threshold, positive, in the unit of the vectors.

    Raises:
        ValueError: if v is not positive and finite.

    Source: Dutta et al., "On the discrepancy between the theoretical analysis and practical
    implementations of compressed communication for distributed deep learning", 2020.
    """
    checks.number("threshold: v", v, "(0, inf)")
    return _selecting_compressor(
        f"threshold({v:g})", lambda d: d, lambda key, x: ~(jnp.abs(x) <= v)
    )


@checks.arguments
def sampled_top_k(fraction: float, sample: float = 0.01) -> Compressor:
    r"""Top-k with a threshold from a sample: of the magnitudes that reach the threshold,
    keeps the k largest, or all if there are fewer; biased.

    $$ C(x) = \mathrm{TopK}_m(x), \qquad m = \min(k, |\{i : |x_i| \ge t\}|), \quad k = \lceil
    \mathrm{fraction} \cdot d \rceil $$

    t is the r-th largest of s magnitudes that are drawn with replacement, $s = \lceil
    \mathrm{sample} \cdot d \rceil$ and $r = \lceil s k / d \rceil$. Let R be its rank among all
    magnitudes. Then $m \ge \min(k, R)$, with equality if they are all different, and

    $$ E|C(x) - x|^2 \le \Big(1 - \frac{E \min(k, R)}{d}\Big) |x|^2, \qquad P(R > j) = P(B < r), \;
    B \sim \mathrm{Binomial}(s, j / d) $$

    The bound is approached by different elements of almost equal magnitude.

    A message counts 32 bits for m, and the value and index of each element.

    Args:
        fraction: k / d, a float in (0, 1].
        sample: s / d, a float in (0, 1].

    Raises:
        ValueError: if fraction or sample is an integer or outside (0, 1].

    Source: Lin et al., "Deep gradient compression", 2018, for the thresholds. Departure: if fewer
    than k elements reach the threshold, no second threshold is tried.
    """
    require_share("sampled_top_k", "fraction", fraction)
    require_share("sampled_top_k", "sample", sample)

    def sizes(d):
        k, s = selected_count(fraction, d), selected_count(sample, d)
        return k, s, -(-s * k // d)

    def choose(key, x):
        d = x.shape[0]
        k, s, r = sizes(d)
        # NaN is the largest, as in `top_k`.
        drawn = xla.ranks(x[jax.random.randint(key, (s,), 0, d)])
        reached = xla.ranks(x) >= jax.lax.top_k(drawn, r)[0][-1]
        return jax.lax.cond(
            jnp.sum(reached) > k, lambda: xla.among_largest(x, k), lambda: reached & (x != 0)
        )

    @cache
    def delta(d):
        from scipy.stats import binom  # noqa: PLC0415 (takes a second to import)

        k, s, r = sizes(d)
        return float(np.sum(binom.cdf(r - 1, s, np.arange(k) / d))) / d

    return _selecting_compressor(
        f"sampled_top_k({fraction:g}, {sample:g})",
        lambda d: selected_count(fraction, d),
        choose,
        delta,
    )


@checks.arguments
def sidco(fraction: float, stages: int = 1) -> Compressor:
    r"""SIDCo: keeps the elements above a threshold that is estimated from means, without a
    selection; biased.

    $$ t_1 = - \bar m \ln \delta_1, \qquad t_i = \mu_i - (\bar m_i - \mu_i) \ln \delta_i, \qquad
    \prod_i \delta_i = \mathrm{fraction} $$

    $\bar m$ is the mean magnitude; $\bar m_i$ and $\mu_i$ are the mean and the smallest of those
    that reach $t_{i-1}$. In every stage the share of magnitudes that reach the threshold is
    $\delta_i$ if those above the previous threshold are distributed exponentially. More stages
    describe the tails of other distributions better. Here all $\delta_i$ are equal.

    The number of elements is random, and nothing is sent if the threshold exceeds the largest
    magnitude, for example of equal elements; hence no contraction is stated. A message counts 32
    bits for the number of elements, and the value and index of each. Its arrays have room for all d
    elements; filling them takes most of the time.

    Args:
        fraction: share of the elements that is aimed at, in (0, 1).
        stages: number of estimates.

    Raises:
        ValueError: if fraction is outside (0, 1), or stages < 1.

    Source: Abdelmoniem et al., "An efficient statistical-based gradient compression technique for
    distributed training systems", 2021, for exponential magnitudes. Departure: the number of stages
    is fixed, and their shares are equal.
    """
    checks.number("sidco: fraction", fraction, "(0, 1)")
    checks.positive_int("sidco: stages", stages)
    factor = -math.log(fraction) / stages

    def choose(key, x):
        magnitude = jnp.abs(unit(x)[0])
        reached, least = jnp.ones(x.shape, bool), jnp.zeros((), x.dtype)
        for _ in range(stages):
            number = jnp.maximum(1, jnp.sum(reached))
            excess = xla.sum_elements(jnp.where(reached, magnitude - least, 0)) / number
            reached = ~(magnitude < least + factor * excess)
            least = jnp.min(jnp.where(reached, magnitude, jnp.inf))
        return reached & (x != 0)

    return _selecting_compressor(f"sidco({fraction:g}, {stages})", lambda d: d, choose)


def _selecting_compressor(
    name: str, room: Callable, choose: Callable, delta: Callable | None = None
) -> Compressor:
    """Returns a compressor that sends the elements of the mask `choose(key, x)`; a message has room
    for room(d) of them.
    """

    def compress(key, x):
        d = x.shape[0]
        require_countable(name, d, room(d) * cost(x, d))
        # Stored, since comparisons of denormal numbers may differ between two computations.
        mask = xla.materialize(choose(key, wide(x)).astype(jnp.uint8)) == 1
        places = selected_indices(mask, room(d))
        used = places < d
        codes = jnp.where(used, places, 0)
        bits = FLOAT_BITS + jnp.uint32(cost(x, d)) * jnp.sum(mask, dtype=jnp.uint32)
        values = jnp.where(used, x[codes], 0)
        return Encoded(
            Counted(bits, codecs.pack(codes, codecs.index_bits(d)), values),
            jnp.where(mask, wide(x), 0),
        )

    def decompress(message, d):
        places = codecs.unpack(message.places, codecs.index_bits(d), room(d))
        number = (message.bits - FLOAT_BITS) // cost(message.values, d)
        used = jnp.arange(room(d)) < number
        # A sum would flush denormal numbers to zero.
        return (
            jnp.zeros(d, wide(message.values).dtype)
            .at[jnp.where(used, places, d)]
            .set(wide(message.values), mode="drop")
        )

    def cost(x, d):
        return 8 * x.dtype.itemsize + codecs.index_bits(d)

    return Compressor(
        compress, decompress, bits=lambda message: message.bits, name=name, delta=delta
    )
