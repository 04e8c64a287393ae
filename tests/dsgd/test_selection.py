"""The k largest elements, which are found by counting on CPUs where there are many."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import selection
from tests.dsgd.compressors.shared import largest

MANY = 1 << 14  # elements

# Runs, vectors, elements, k: side by side and one after the other; places of 8, 16 and 32 bits.
SIDE_BY_SIDE, LONG, ONE = (3, 60, 99, 7), (160, 157, 16), (1, 70_000, 69_000)
CASES = [(SIDE_BY_SIDE, "float32"), (LONG, "float32"), (ONE, "float32"), (LONG, "float64")]


def kept(x: jax.Array, k: int) -> jax.Array:
    def one(x):
        return jnp.where(selection.among_largest(x, k), x, 0)

    for _ in x.shape[1:]:
        one = jax.vmap(one)
    return jax.jit(one)(x)


def examples(dtype: str, *shape: int) -> dict[str, np.ndarray]:
    """With equal elements in many places: some vectors have none, some some, some a single value."""
    rng = np.random.default_rng(0)
    normal = rng.normal(size=shape)
    rounded = np.round(normal * 8) / 8
    rounded[..., :1, :] = -2.5
    few = np.where(rng.random(shape) < 0.05, normal, 0)
    edges = np.where(normal > 1.5, np.inf, np.where(normal < -1.5, -np.inf, normal))
    scales = normal * 10 ** rng.uniform(-30, 30, shape)
    each = {"normal": normal, "equal": rounded, "few": few, "edges": edges, "scales": scales}
    return {name: x.astype(dtype) for name, x in each.items()}


@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_they_are_those_that_a_sort_finds_and_of_equal_ones_the_first(shape, dtype):
    *shape, k = shape
    with jax.enable_x64(dtype == "float64"):
        for name, x in examples(dtype, *shape).items():
            np.testing.assert_array_equal(kept(jnp.asarray(x), k), largest(x, k), err_msg=name)


@pytest.mark.parametrize("many", [False, True])
def test_what_is_not_a_number_is_the_largest(many):
    x = np.ones((400 if many else 2, 41), np.float32)
    x[1, [3, 7]] = np.nan, np.inf
    x[1, 9] = 2
    seen = np.array(kept(jnp.asarray(x), 2))
    np.testing.assert_array_equal(seen, largest(x, 2))
    assert np.isnan(seen[1, 3])
    assert seen[1, 7] == np.inf
    assert seen[1, 9] == 0


@pytest.mark.parametrize(("platform", "sorts"), [("cpu", 0), ("cuda", 1), ("tpu", 1)])
def test_only_on_cpus_and_only_where_there_are_many_are_they_counted(platform, sorts):
    def text(vectors):
        select = jax.jit(jax.vmap(lambda x: selection.among_largest(x, 4)))
        return select.trace(jnp.ones((vectors, 64))).lower(lowering_platforms=(platform,)).as_text()

    assert text(MANY // 64).count("chlo.top_k") == sorts
    assert text(MANY // 64 - 1).count("chlo.top_k") == 1


def chosen(x: np.ndarray, k: int) -> np.ndarray:
    """Which elements of each vector, `[n, d]`, by counting."""
    assert x.size >= MANY
    return np.asarray(jax.jit(jax.vmap(lambda x: selection.among_largest(x, k)))(jnp.asarray(x)))


def those_to_send(x: np.ndarray, k: int) -> np.ndarray:
    """The k largest that are not 0, of equal ones the first."""
    place = np.argsort(-np.abs(x), axis=1, kind="stable")[:, :k]
    among = np.zeros(x.shape, bool)
    np.put_along_axis(among, place, True, axis=1)
    return among & (x != 0)


@pytest.mark.parametrize("shape", [(200, 99), (160, 157)], ids=str)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_of_vectors_with_fewer_than_k_that_are_not_0_those_are_chosen(shape, k):
    """Down to the smallest number that there is; zeros, of either sign, need no choice."""
    rng, (n, d) = np.random.default_rng(1), shape
    x = np.where(rng.random(shape) < 0.5, 0.0, -0.0).astype(np.float32)
    assert not chosen(x, k).any(), "of zeros alone none"
    least = np.uint32(1).view(np.float32)
    for i in range(n):
        places = rng.choice(d, rng.integers(0, 2 * k), replace=False)
        x[i, places] = np.where(rng.random(len(places)) < 0.5, least, rng.normal(size=len(places)))
    bits = x.view(np.uint32) & 0x7FFFFFFF
    expected = those_to_send(bits.astype(np.float64), k)
    np.testing.assert_array_equal(chosen(x, k) & (bits != 0), expected)


@pytest.mark.parametrize("shape", [(200, 99), (160, 157)], ids=str)
def test_where_no_vector_has_more_than_one_too_many_the_first_of_equals_are_chosen(shape):
    """Two are equal in the place of the k-th, in all vectors or in one of them."""
    rng, k = np.random.default_rng(2), 16
    for tied in (slice(None), slice(3, 4), slice(0, 0)):
        x = rng.permuted(np.tile(np.arange(1.0, shape[1] + 1), (shape[0], 1)), axis=1).astype(np.float32)
        kth = shape[1] + 1 - k
        some = x[tied]
        some[some == kth - 1] = kth
        x *= rng.choice([-1, 1], shape)
        found = chosen(x, k)
        np.testing.assert_array_equal(found.sum(axis=1), k)
        np.testing.assert_array_equal(found, those_to_send(x, k))


def test_ranks_are_in_the_order_of_magnitudes():
    x = np.array([0.0, -0.0, 1e-45, -1.0, 1.0, 3.0, -np.inf, np.nan], np.float32)
    ranks = np.asarray(selection.ranks(jnp.asarray(x))).astype(np.int64)
    assert ranks.tolist()[:2] == [0, 0]
    assert ranks[2] == 1
    assert ranks[3] == ranks[4] < ranks[5] < ranks[6] < ranks[7]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_places_of_the_largest_are_in_order_and_of_equal_ones_the_first(k):
    np.testing.assert_array_equal(selection.largest(jnp.array([1.0, -3.0, 2.0, 3.0]), k), [1, 3, 2][:k])
