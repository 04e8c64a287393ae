"""Compressors made of compressors agree with slices, scaled copies and ravelled trees; `apply`
refuses values that are not finite.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from dsgd import compressors
from tests.dsgd.compressors.shared import (
    normal,
    seen,
)

SIGN, TERNARY, IDENTITY, NATURAL = (
    compressors.sign,
    compressors.ternary,
    compressors.identity,
    compressors.natural,
)
buckets, contraction, top_k, random_k, random_quantization, random_sparsification = (
    cache(make)
    for make in (
        compressors.buckets,
        compressors.contraction,
        compressors.top_k,
        compressors.random_k,
        compressors.random_quantization,
        compressors.random_sparsification,
    )
)


def slices(d: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, d)) for start in range(0, d, size)]


@pytest.mark.parametrize(("inner", "d"), [(SIGN, 7), (SIGN, 16), (top_k(0.25), 21)])
def test_buckets_compress_slices(key, inner, d):
    x = normal(d)
    each = [seen(inner)(key, x[part]) for part in slices(d, 8)]
    np.testing.assert_allclose(seen(buckets(inner, 8))(key, x), np.concatenate(each), rtol=1e-6)


def test_constants_of_buckets_are_those_of_the_worst_bucket():
    one = buckets(random_quantization(1), 4)
    assert [one.omega(d) for d in (1, 2, 3, 4, 5, 7, 8, 9)] == [0, 0, 0.5, 1, 1, 1, 1, 1]
    assert [one.delta(d) for d in (1, 3, 4, 9)] == [1, 0.5, None, None]
    two = buckets(SIGN, 4)
    assert [two.delta(d) for d in (1, 2, 3, 4, 6, 9)] == [1, 1 / 2, 1 / 3, 1 / 4, 1 / 4, 1 / 4]
    assert two.omega is None
    three = buckets(random_k(0.5), 5)  # 3 of 5 elements, 1 of 1
    omegas = [three.omega(d) for d in (1, 2, 5, 6, 11, 12)]  # 1 of the last 2 elements
    assert omegas == pytest.approx([0, 1, 2 / 3, 2 / 3, 2 / 3, 1])
    assert (one.unbiased, two.unbiased) == (True, False)


@pytest.mark.parametrize("inner", [random_k(0.25), buckets(TERNARY, 4)], ids=lambda c: c.name)
def test_a_contraction_is_the_unbiased_one_shrunk(key, inner):
    d = 21
    x, compressor = normal(d), contraction(inner)
    np.testing.assert_allclose(
        seen(compressor)(key, x), seen(inner)(key, x) / (1 + inner.omega(d)), rtol=1e-6
    )
    assert compressor.delta(d) == pytest.approx(1 / (1 + inner.omega(d)))
    assert compressor.omega is None
    assert not compressor.unbiased
    assert compressors.mean_bits(compressor, d) == compressors.mean_bits(inner, d)
    assert compressor.name == f"contraction({inner.name})"


def test_induced_adds_the_compressed_error(key):
    d, x, first, second = 21, jnp.asarray(normal(21)), top_k(0.25), random_k(0.25)
    compressor = compressors.induced(first, second)
    keys = jax.random.split(key)
    biased = seen(first)(keys[0], x)
    np.testing.assert_array_equal(
        seen(compressor)(key, x), biased + seen(second)(keys[1], x - biased)
    )
    assert compressors.mean_bits(compressor, d) == sum(
        compressors.mean_bits(one, d) for one in (first, second)
    )
    assert compressor.omega(d) == pytest.approx(second.omega(d) * (1 - first.delta(d)))
    assert compressor.name == "induced(top_k(0.25), random_k(0.25))"


def test_constants_of_induced_need_those_of_both():
    assert compressors.induced(IDENTITY, TERNARY).omega(9) == 0
    assert compressors.induced(TERNARY, NATURAL).omega(100) is None  # ternary expands
    assert compressors.induced(SIGN, TERNARY).omega(1) == 0
    sizes = compressors.induced(random_sparsification(0.5), NATURAL)
    assert compressors.sizes.fixed_bits(sizes, 10) is None


@pytest.mark.parametrize("inner", [SIGN, random_k(0.25)], ids=lambda c: c.name)
def test_repeated_compresses_the_remaining_error(key, inner):
    d, times, x = 21, 3, jnp.asarray(normal(21))
    compressor, v = compressors.repeated(inner, times), jnp.zeros(21)
    for one in jax.random.split(key, times):
        v = v + seen(inner)(one, x - v)
    np.testing.assert_allclose(seen(compressor)(key, x), v, rtol=1e-5, atol=1e-6)
    assert compressors.mean_bits(compressor, d) == times * compressors.mean_bits(inner, d)
    if inner is SIGN:
        assert compressor.delta(d) == pytest.approx(1 - (1 - 1 / d) ** 3)
        assert compressor.omega is None
    else:
        assert compressor.omega(d) == pytest.approx(inner.omega(d) ** 3)
        assert compressor.delta(d) is None


def test_sender_and_receivers_add_float64_terms_equally(key):
    """Also if each message decodes to float32: otherwise, copies of a model would drift apart."""
    compressor, x = compressors.repeated(compressors.cast("float16", "none"), 2), normal(9) * np.pi
    with jax.enable_x64(True):
        message, decoded = compressors.encode(compressor, key, jnp.asarray(x, np.float64))
        received = compressor.decompress(message, 9)
    assert decoded.dtype == received.dtype
    np.testing.assert_array_equal(decoded, received)


TREE = {"matrix": normal(33).reshape(11, 3), "bias": normal(5, 1), "scalar": (np.float32(2.5),)}


@pytest.fixture
def tree():
    return jax.tree.map(jnp.asarray, TREE)


def apply(compressor, key, tree):
    return jax.jit(compressors.apply, static_argnums=0)(compressor, key, tree)


def test_whole_model_compresses_the_ravelled_tree_and_others_leaf_by_leaf(key, tree):
    inner = top_k(0.2)
    whole, (flat, unravel) = compressors.whole_model(inner), ravel_pytree(tree)
    leaves = jax.tree.map(lambda leaf: seen(inner)(key, leaf.ravel()).reshape(leaf.shape), tree)
    for compressor, expected in ((whole, unravel(seen(inner)(key, flat))), (inner, leaves)):
        jax.tree.map(np.testing.assert_array_equal, apply(compressor, key, tree), expected)
    assert whole.name == "whole_model(top_k(0.2))"


def test_every_leaf_has_its_own_key(key):
    x = jnp.asarray(normal(33))
    draws = apply(random_quantization(1), key, [x, x, 1000 * x])
    assert (draws[0] != draws[1]).any()
    assert (draws[1] * 1000 != draws[2]).any()
    np.testing.assert_array_equal(
        [leaf.max() for leaf in draws], [x.max(), x.max(), (1000 * x).max()]
    )


@pytest.mark.parametrize(
    "compressor", [IDENTITY, compressors.whole_model(TERNARY)], ids=lambda c: c.name
)
def test_apply_keeps_the_trees_shapes_and_dtypes(key, compressor, tree):
    tree |= {"half": jnp.asarray(normal(4), jnp.bfloat16)}
    draw = apply(compressor, key, tree)
    assert jax.tree.structure(draw) == jax.tree.structure(tree)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), draw) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), tree
    )
    if "identity" in compressor.name:
        jax.tree.map(np.testing.assert_array_equal, draw, tree)
