"""Randomised rounding is the survey's (3.3) to every digit that float32 has, and messages weigh what they say."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd import compressors

BITS = range(1, 9)
D = 33
DRAWS = 20_000
STANDARD_ERRORS = 5
EPS = float(jnp.finfo(jnp.float32).eps)
TINY = 4 * 255 * float(np.finfo(np.float32).tiny)  # XLA flushes denormals to zero: of a range like this, a step may vanish


@cache
def quantize(bits: int):
    """(key, x) -> what the receiver sees."""
    quantization = compressors.random_quantization(bits)
    return jax.jit(lambda key, x: quantization.decompress(quantization.compress(key, x), x.shape[0]))


@cache
def quantize_often(bits: int):
    """The same for DRAWS keys."""
    each = jax.vmap(quantize(bits), in_axes=(0, None))
    return jax.jit(lambda key, x: each(jax.random.split(key, DRAWS), x))


def knobs(x: np.ndarray, bits: int) -> np.ndarray:
    return np.linspace(x.min(), x.max(), 2**bits)


def neighbouring_knobs(x: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """c_k and c_{k+1} with c_k <= x <= c_{k+1}."""
    c = knobs(x, bits)
    k = np.clip(np.searchsorted(c, x, side="right") - 1, 0, 2**bits - 2)
    return c[k], c[k + 1]


def variances(x: np.ndarray, bits: int) -> np.ndarray:
    """Of each element of Q(x), from the probabilities in (3.3)."""
    below, above = neighbouring_knobs(x, bits)
    up = np.divide(x - below, above - below, out=np.zeros_like(x), where=above > below)
    mean = up * above + (1 - up) * below
    return up * (above - mean) ** 2 + (1 - up) * (below - mean) ** 2


@cache
def normal() -> np.ndarray:
    return np.random.default_rng(0).normal(size=D).astype(np.float32)


def worst(bits: int) -> np.ndarray:
    """All elements but the ends in the middle of the two middle knobs: the variance bound is reached."""
    return np.concatenate([[-1, 1], np.zeros(D - 2)]).astype(np.float32)


VECTORS = {
    "normal": lambda bits: normal(),
    "worst": worst,
    "offset": lambda bits: normal() + 100,
    "one large element": lambda bits: np.concatenate([[1e4], normal()[1:]]).astype(np.float32),
    "heavy tail": lambda bits: np.random.default_rng(1).standard_cauchy(D).astype(np.float32),
    "all but constant": lambda bits: np.concatenate([[1 + EPS], np.ones(D - 1)]).astype(np.float32),
    "small": lambda bits: (1e-35 * normal().astype(np.float64)).astype(np.float32),
    "tiny": lambda bits: (1e-36 * normal().astype(np.float64)).astype(np.float32),
    "large": lambda bits: 1e30 * normal(),
    "huge": lambda bits: np.concatenate([[-1e38, 1e38], 1e38 * np.linspace(-0.9, 0.9, D - 2)]).astype(np.float32),
    "the largest": lambda bits: np.concatenate([[-1, 1], np.linspace(-0.9, 0.9, D - 2)]).astype(np.float32) * np.finfo(np.float32).max,
}
every_bits = pytest.mark.parametrize("bits", BITS)


@every_bits
@pytest.mark.parametrize("name", [name for name in VECTORS if name != "tiny"])
def test_every_element_becomes_a_neighbouring_knob(key, bits, name):
    x = VECTORS[name](bits)
    seen = np.asarray(quantize(bits)(key, x))
    assert seen.dtype == np.float32
    assert np.isfinite(seen).all()
    exact, c = x.astype(np.float64), knobs(x.astype(np.float64), bits)
    nearest = c[np.abs(seen[:, None] - c).argmin(axis=1)]
    rounding = 4 * EPS * np.abs(exact).max()
    np.testing.assert_allclose(seen, nearest, rtol=0, atol=rounding)
    # Float32 may place an element that lies on a knob just beside it.
    assert (np.abs(seen - exact) <= (1 + 2**bits * 4 * EPS) * (c[1] - c[0]) + rounding).all()


@every_bits
@pytest.mark.parametrize("name", VECTORS)
def test_the_smallest_and_the_largest_element_are_sent_exactly(key, bits, name):
    x = VECTORS[name](bits)
    seen = np.asarray(quantize(bits)(key, x))
    ends = (x == x.min()) | (x == x.max())
    np.testing.assert_array_equal(seen[ends], x[ends])


@every_bits
def test_no_draw_moves_the_largest_element(key, bits):
    """It is a knob: many copies of it make many draws."""
    draw = np.random.default_rng(bits)
    for each, (low, high) in zip(jax.random.split(key, 64), draw.normal(size=(64, 2)).astype(np.float32), strict=True):
        x = np.full(2**14, max(low, high), np.float32)
        x[0] = min(low, high)
        np.testing.assert_array_equal(quantize(bits)(each, x), x)


@every_bits
@pytest.mark.parametrize("name", ["normal", "one large element", "small", "huge"])
def test_it_is_unbiased_with_the_variance_of_the_paper(key, bits, name):
    x = VECTORS[name](bits)
    scale = np.abs(x).max()
    draws, exact = np.asarray(quantize_often(bits)(key, x), np.float64) / scale, x.astype(np.float64) / scale
    variance = variances(exact, bits)
    standard_error = np.sqrt(variance / DRAWS)
    assert (np.abs(draws.mean(axis=0) - exact) <= STANDARD_ERRORS * standard_error + 8 * EPS).all()

    sqnorm = ((draws - exact) ** 2).sum(axis=1)
    below, above = neighbouring_knobs(exact, bits)
    assert variance.sum() == pytest.approx(((exact - below) * (above - exact)).sum())
    assert abs(sqnorm.mean() - variance.sum()) <= STANDARD_ERRORS * sqnorm.std() / np.sqrt(DRAWS) + 8 * EPS


@pytest.mark.parametrize("bits", [2, 8])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bfloat16", "float16"])
def test_it_is_unbiased_on_half_precision(key, bits, dtype):
    x = normal().astype(dtype)
    draws, exact = np.asarray(quantize_often(bits)(key, x), np.float64), x.astype(np.float64)
    standard_error = np.sqrt(variances(exact, bits) / DRAWS)
    assert (np.abs(draws.mean(axis=0) - exact) <= STANDARD_ERRORS * standard_error + 8 * EPS).all()


@every_bits
@pytest.mark.parametrize("name", ["normal", "worst", "offset", "one large element", "heavy tail"])
def test_omega_bounds_the_variance(key, bits, name):
    x = VECTORS[name](bits)
    sqdist = ((np.asarray(quantize_often(bits)(key, x), np.float64) - x) ** 2).sum(axis=1)
    bound = compressors.random_quantization(bits).omega(D) * (x.astype(np.float64) ** 2).sum()
    assert sqdist.mean() <= bound * (1 + 8 * EPS) + STANDARD_ERRORS * sqdist.std() / np.sqrt(DRAWS)


@every_bits
def test_omega_is_reached(key, bits):
    """No smaller omega is true."""
    x = worst(bits)
    sqdist = ((np.asarray(quantize(bits)(key, x), np.float64) - x) ** 2).sum()
    assert sqdist == pytest.approx(compressors.random_quantization(bits).omega(D) * (x**2).sum(), rel=1e-5)


@every_bits
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3.14159, 1e-30, 3e38, -3e38])
def test_a_constant_vector_is_sent_exactly(key, bits, value):
    x = np.full(D, value, np.float32)
    np.testing.assert_array_equal(quantize(bits)(key, x), x)


@pytest.mark.parametrize("bits", [1, 3, 8])
@pytest.mark.parametrize("x", [[2.5], [0.0], [-1.0, 3.0], [7.0, 7.0], [1.0, -1e-3], [3e38, -3e38]], ids=str)
def test_one_and_two_elements_are_sent_exactly(key, bits, x):
    np.testing.assert_array_equal(quantize(bits)(key, np.array(x, np.float32)), np.array(x, np.float32))


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=300)
@given(st.integers(1, 8), st.lists(floats, min_size=7, max_size=7), st.integers(0, 2**31 - 1))
def test_any_finite_vector_stays_within_a_step_of_itself(bits, elements, seed):
    x = np.resize(np.array(elements, np.float32), D)
    seen = np.asarray(quantize(bits)(jax.random.key(seed), x), np.float64)
    exact = x.astype(np.float64)
    assert np.isfinite(seen).all()
    step = (exact.max() - exact.min()) / (2**bits - 1)
    rounding = 4 * EPS * np.abs(exact).max() + TINY
    assert (np.abs(seen - exact) <= (1 + 2**bits * 4 * EPS) * step + rounding).all()
    ends = (exact == exact.min()) | (exact == exact.max())
    np.testing.assert_allclose(seen[ends], exact[ends], rtol=0, atol=float(np.finfo(np.float32).tiny))


@pytest.mark.parametrize("size", [1e-38, 1e-40, 1e-45])
@every_bits
def test_denormals_become_no_more_than_a_little_noise(key, bits, size):
    x = (size * np.linspace(-1, 1, D)).astype(np.float32)
    seen = np.asarray(quantize(bits)(key, x), np.float64)
    assert (np.abs(seen - x) <= 2 * size + float(np.finfo(np.float32).tiny)).all()


@every_bits
def test_draws_differ_between_keys_and_elements(bits):
    x = np.concatenate([[-1, 1], np.zeros(D - 2)]).astype(np.float32)
    first, again, other = (np.asarray(quantize(bits)(jax.random.key(seed), x)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert len(set(first[2:].tolist())) == 2


COMPRESSORS = {"identity": compressors.identity} | {f"{bits} bits": compressors.random_quantization(bits) for bits in BITS}
every_compressor = pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)


@every_compressor
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_bits_are_what_the_messages_arrays_hold(compressor, dtype):
    for d in (1, 2, 3, 7, 8, 9, 31, 64, 1001):
        message = jax.eval_shape(compressor.compress, jax.random.key(0), jax.ShapeDtypeStruct((d,), dtype))
        held = sum(8 * leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))
        assert int(compressor.bits(message)) == held
        seen = jax.eval_shape(lambda message, d=d: compressor.decompress(message, d), message)
        assert seen.shape == (d,)
        if compressor is compressors.identity:
            assert seen.dtype == dtype
        else:
            assert seen.dtype == jnp.float32
        if dtype == jnp.float32:
            assert compressor.mean_bits(d) == held


@every_bits
def test_a_message_is_codes_and_two_floats(bits):
    quantization = compressors.random_quantization(bits)
    assert [quantization.mean_bits(d) for d in (1, 8, 1000)] == [8 * -(-d * bits // 8) + 64 for d in (1, 8, 1000)]


@every_compressor
def test_an_unbiased_compressor_contracts_by_what_its_variance_leaves(compressor):
    """E|Q(x) - x|^2 <= w |x|^2 is (1 - a)|x|^2 with a = 1 - w, as long as that is a contraction."""
    assert compressor.unbiased
    for d in (1, 2, 3, 10, 100, 10_000, 1_000_000):
        omega, delta = compressor.omega(d), compressor.delta(d)
        assert omega >= 0
        assert delta is None if omega >= 1 else delta == pytest.approx(1 - omega)


def test_omega_falls_with_bits_and_vanishes_where_only_the_ends_are_left():
    omegas = [compressors.random_quantization(bits).omega(D) for bits in BITS]
    assert omegas == sorted(omegas, reverse=True)
    assert len(set(omegas)) == len(omegas)
    assert {compressors.random_quantization(bits).omega(d) for bits in BITS for d in (1, 2)} == {0}


def test_identity_sends_everything_as_it_is(key):
    x = np.concatenate([VECTORS["normal"](8), VECTORS["huge"](8)])
    message = compressors.identity.compress(key, x)
    np.testing.assert_array_equal(compressors.identity.decompress(message, x.size), x)
    assert compressors.identity.omega(5) == 0
    assert compressors.identity.delta(5) == 1


@pytest.mark.parametrize("compressor", [compressors.identity, compressors.random_quantization(3)], ids=lambda compressor: compressor.name)
def test_apply_keeps_the_trees_shapes_and_dtypes(key, compressor):
    tree = {"matrix": jnp.asarray(normal().reshape(11, 3)), "half": jnp.asarray(normal()[:5], jnp.bfloat16), "scalar": (jnp.float32(2.5),)}
    seen = jax.jit(compressors.apply, static_argnums=0)(compressor, key, tree)
    assert jax.tree.structure(seen) == jax.tree.structure(tree)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), seen) == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    for got, sent in zip(jax.tree.leaves(seen), jax.tree.leaves(tree), strict=True):
        assert got.min() == sent.min()
        assert got.max() == sent.max()


def test_apply_compresses_every_leaf_on_its_own_with_its_own_key(key):
    quantization = compressors.random_quantization(1)
    x = jnp.asarray(normal())
    seen = jax.jit(compressors.apply, static_argnums=0)(quantization, key, [x, x, 1000 * x])
    assert (seen[0] != seen[1]).any()
    assert (seen[1] * 1000 != seen[2]).any()
    np.testing.assert_array_equal([leaf.max() for leaf in seen], [x.max(), x.max(), (1000 * x).max()])


@pytest.mark.parametrize("bits", [0, 9, -1])
def test_bits_outside_1_to_8(bits):
    with pytest.raises(ValueError, match=rf"random_quantization\({bits}\): need bits between 1 and 8"):
        compressors.random_quantization(bits)
