"""Sums of many numbers, which go other ways on CPUs; those over workers are in `workers/test_rows.py`, too."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import sums


def values(*shape: int, dtype="float32") -> jax.Array:
    return (1e3 + jax.random.normal(jax.random.key(0), shape)).astype(dtype)


SHORT = [(5_000, 1), (300, 15), (300, 16), (20, 30, 10)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (4095,), (4096,), (100_000,), (2, 3), (16, 256), (5, 7, 120), *SHORT], ids=str)
def test_sums_of_elements_are_those_of_numpy_and_products_where_there_are_many(shape, dtype):
    """Mapped over leading axes they count all elements, and mix none; fewer than 16 are added up."""
    with jax.enable_x64(dtype == "float64"):
        x, total = values(*shape, dtype=dtype), sums.of_elements
        for _ in shape[1:]:
            total = jax.vmap(total)
        total = jax.jit(total)
        assert total(x).dtype == x.dtype
        np.testing.assert_allclose(total(x), np.asarray(x, np.float64).sum(axis=-1), rtol=8 * float(jnp.finfo(dtype).eps))
        text = total.lower(x).as_text()
        assert ("stablehlo.reduce(" not in text) == (x.size >= 4096)
        assert ("dot_general" in text) == (x.size >= 4096 and shape[-1] >= 16)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (30,), (63, 65), (64, 64)], ids=str)
def test_inner_products_are_those_of_numpy_in_float32_at_least(shape, dtype):
    with jax.enable_x64(dtype == "float64"):
        x, y = values(*shape, dtype=dtype), jax.random.normal(jax.random.key(1), shape).astype(dtype)
        inner = jax.jit(sums.inner)
        found = inner(x, y)
        exact = np.asarray(x, np.float64) * np.asarray(y, np.float64)
        assert found.dtype == jnp.promote_types(dtype, "float32")
        assert abs(found - exact.sum()) <= 8 * float(jnp.finfo(found.dtype).eps) * np.abs(exact).sum()
        assert ("dot_general" in inner.lower(x, y).as_text()) == (x.size >= 4096)


@pytest.mark.parametrize("edge", [np.inf, -np.inf, np.nan])
def test_a_sum_with_what_is_not_finite_is_not_and_its_neighbours_are(edge):
    x = values(64, 64).at[3, 5].set(edge)
    total = np.array(jax.jit(jax.vmap(sums.of_elements))(x))
    np.testing.assert_equal(total[3], np.float32(edge))
    assert np.isfinite(np.delete(total, 3)).all()


def test_sums_of_elements_can_be_differentiated():
    """Forwards and backwards: the derivative of a linear function is the function."""
    x, change = values(16, 256), jax.random.normal(jax.random.key(1), (16,))
    total = jax.vmap(sums.of_elements)
    value, derivative = jax.jit(lambda x: jax.jvp(total, (x,), (x,)))(x)
    np.testing.assert_allclose(derivative, value, rtol=1e-6)
    (back,) = jax.jit(lambda x: jax.vjp(total, x)[1](change))(x)
    np.testing.assert_array_equal(back, np.broadcast_to(change[:, None], x.shape))


@pytest.mark.parametrize(("platform", "products"), [("cpu", 1), ("cuda", 0), ("tpu", 0)])
def test_only_on_cpus_sums_of_elements_are_products(platform, products):
    text = jax.jit(jax.vmap(sums.of_elements)).trace(values(16, 256)).lower(lowering_platforms=(platform,)).as_text()
    assert text.count("dot_general") == products
    assert text.count("stablehlo.reduce") == 1 - products


# Blocks of 1,024 float32 lie whole pages apart, and eight blocks of 64 rows of 256, but not twelve.
ROWS = [(512,), (8, 64), (256, 2), (512, 1), (1024,), (256,)]


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("n", [1, 7, 9, 17, 64, 513])
def test_sums_of_any_number_of_rows(n, row):
    """Of whole numbers they are exact: none is left out, none counted twice."""
    x = np.random.default_rng(0).integers(-10, 10, (8, n, *row)).astype(np.float32)
    total, (apart, squares) = jax.jit(lambda x: (sums.over_rows(x), sums.moments(x)))(x)
    np.testing.assert_array_equal(total, x.sum(axis=1))
    np.testing.assert_array_equal(apart, (x - x[:, :1]).sum(axis=1))
    np.testing.assert_array_equal(squares, ((x - x[:, :1]) ** 2).sum(axis=1))


@pytest.mark.parametrize("edge", [np.inf, np.nan])
def test_rows_that_are_counted_once_spoil_their_sum_only(edge):
    """Of 17 rows the last block has number 14 of another block's, too, which does not count there."""
    x = values(1, 17, 256).at[0, 14, 3].set(edge)
    for total in map(np.array, jax.jit(lambda x: (sums.over_rows(x), *sums.moments(x)))(x)):
        np.testing.assert_equal(total[0, 3], np.float32(edge))
        assert np.isfinite(np.delete(total, 3)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("n", [3, 40])
def test_moments_of_rows_that_agree_but_for_little_are_as_small(n, dtype):
    """What all rows have in common is not rounded with it."""
    with jax.enable_x64(dtype == "float64"):
        step = float(jnp.finfo(dtype).eps)
        x = np.float64(step) * np.random.default_rng(0).integers(0, 2, (2, n, 2048)) + 1
        apart, squares = jax.jit(sums.moments)(jnp.asarray(x, dtype))
        assert apart.dtype == squares.dtype == ("float64" if dtype == "float64" else "float32")
        np.testing.assert_array_equal(apart, (x - x[:, :1]).sum(axis=1))
        np.testing.assert_array_equal(squares, ((x - x[:, :1]) ** 2).sum(axis=1))


def test_moments_can_be_differentiated():
    """Forwards, as finite differences say; and backwards, as forwards says."""
    x, change = (jax.random.normal(jax.random.key(i), (1, 16, 256)) for i in (0, 1))
    values, changes = jax.jit(lambda x: jax.jvp(sums.moments, (x,), (change,)))(x)
    for at, (value, derivative) in enumerate(zip(values, changes, strict=True)):
        there, here = (sums.moments(x + sign * change)[at] for sign in (0.5, -0.5))
        np.testing.assert_allclose(derivative, there - here, rtol=1e-4, atol=1e-4)
        (back,) = jax.jit(lambda x, at=at: jax.vjp(lambda x: sums.moments(x)[at], x)[1](jnp.ones((1, 256))))(x)
        np.testing.assert_allclose(jnp.vdot(back, change), derivative.sum(), rtol=1e-3, atol=1e-3)
        assert value.shape == (1, 256)


@pytest.mark.parametrize(("platform", "reductions"), [("cpu", 0), ("cuda", 2), ("tpu", 2)])
def test_only_on_cpus_moments_are_complex_numbers(platform, reductions):
    text = jax.jit(sums.moments).trace(values(1, 16, 256)).lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.reduce") == reductions
    assert ("complex" in text) == (platform == "cpu")


def test_what_makes_rows_does_not_go_through_memory():
    """A sixth of them at the most: the sums of eights."""
    A, b, x = jnp.ones((128, 4096)), jnp.ones((128, 4096)), jnp.ones((1, 4096))
    program = jax.jit(lambda A, b, x: sums.over_rows((A * x - b)[None])).lower(A, b, x).compile()
    assert program.memory_analysis().temp_size_in_bytes < A.nbytes / 6
