"""Who participates: frequencies compared with inclusion probabilities, bounds, and errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dsgd import clusters
from dsgd.clusters import Quantity

N, DRAWS = 6, 4000


def participants(quantity: Quantity, workers: int = N) -> np.ndarray:
    """Returns which workers participate in each of many draws, bool `[DRAWS, workers]`."""

    @jax.jit
    @jax.vmap
    def draw(key):
        return jax.vmap(lambda n: quantity.sample(key, jnp.float32(0), n) > 0)(jnp.arange(workers))

    return np.asarray(draw(jax.random.split(jax.random.key(3), DRAWS)))


def require_frequencies(drawn: np.ndarray, inclusion) -> None:
    """Asserts that each worker's frequency is within 5 standard errors of its probability."""
    expected = np.broadcast_to(inclusion, drawn.shape[1])
    error = 5 * np.sqrt(expected * (1 - expected) / len(drawn))
    assert (np.abs(drawn.mean(0) - expected) <= error + 1e-7).all(), (drawn.mean(0), expected)


SAMPLED = clusters.sampled(2, of=N)
COIN = clusters.bernoulli(0.3, 2.0)
MASK = clusters.constant([0.0, 2.0, 3.0, 0.0, 0.0, 5.0])
# Quantities with their bound for N workers, and the inclusion probabilities.
KNOWN = {
    "sampled": (SAMPLED, 2, 1 / 3),
    "coin": (COIN, 6, 0.3),
    "mask": (MASK, 3, [0, 1, 1, 0, 0, 1]),
    "multiple": (0.5 * SAMPLED, 2, 1 / 3),
    "multiple of 0": (0 * COIN, 6, 0),
    "bounded": (clusters.bounded(COIN, 0.5), 6, 0.3),
    "bounded by 0": (clusters.bounded(MASK, 0), 3, 0),
    "slow": (clusters.slow(SAMPLED, [1, 3], 4.0), 2, 1 / 3),
    "servers": (clusters.per_server(clusters.sampled(2, of=3), 2), 4, 2 / 3),
    "servers of a mask": (clusters.per_server(clusters.constant([0, 3]), 3), 3, [0] * 3 + [1] * 3),
    "never": (clusters.bernoulli(0.0, 2.0), 0, 0),
    "worthless": (clusters.bernoulli(0.4, 0.0), 0, 0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_inclusion_and_the_bound_agree_with_draws(name):
    quantity, most, inclusion = KNOWN[name]
    drawn = participants(quantity)
    assert quantity.most_of(N) == most
    assert drawn.sum(1).max() <= most
    assert quantity.inclusion is not None
    np.testing.assert_allclose(quantity.inclusion, inclusion, rtol=1e-12)
    require_frequencies(drawn, inclusion)


@pytest.mark.parametrize("quantity", [clusters.exponential(2.0), SAMPLED + MASK], ids=repr)
def test_without_a_known_bound_all_may_participate(quantity):
    assert quantity.most_of(N) == N
    assert quantity.inclusion is None


@pytest.mark.parametrize(("workers", "p"), [(7, 0.5), (1000, 0.01), (100_000, 0.001), (40, 0.97)])
def test_the_bound_of_independent_draws_is_the_smallest(workers, p):
    B = clusters.bernoulli(p, 2.0).most_of(workers)
    assert scipy.stats.binom.sf(B, workers, p) <= 1e-12 < scipy.stats.binom.sf(B - 1, workers, p)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"most": -2}, "Quantity: most = -2; expected an integer, at least 0"),
        ({"inclusion": 1.5}, "Quantity: inclusion = 1.5; expected probabilities, numbers from 0"),
        ({"inclusion": (0.5, float("nan"))}, r"Quantity: inclusion = \(0.5, nan\); expected prob"),
    ],
)
def test_wrong_bounds_and_probabilities_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Quantity(SAMPLED.sample, "mine", False, **given)
