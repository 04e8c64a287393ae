"""Sums in the form for CPUs, compared with numpy; both forms are compared in `test_forms.py`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import xla


def map_vectors(function, x: jax.Array):
    """Applies the function of vectors over all leading axes."""
    for _ in x.shape[1:]:
        function = jax.vmap(function)
    return function(x)


LENGTHS = [(1,), (100_000,), (16, 256), (5, 7, 120), (5_000, 1), (300, 15), (300, 16), (20, 30, 10)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_elements_are_those_of_numpy(dtype):
    with jax.enable_x64(dtype == "float64"):
        vectors = [
            (1e3 + jax.random.normal(jax.random.key(0), shape)).astype(dtype) for shape in LENGTHS
        ]
        totals = jax.jit(lambda vectors: [map_vectors(xla.sum_elements, x) for x in vectors])(
            vectors
        )
        for x, total in zip(vectors, totals, strict=True):
            assert total.dtype == x.dtype
            np.testing.assert_allclose(
                total, np.asarray(x, np.float64).sum(axis=-1), rtol=8 * float(jnp.finfo(dtype).eps)
            )


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_inner_products_are_those_of_numpy_in_float32_at_least(dtype):
    with jax.enable_x64(dtype == "float64"):
        pairs = [
            [jax.random.normal(jax.random.key(i), shape).astype(dtype) for i in (0, 1)]
            for shape in [(), (63, 65), (64, 64)]
        ]
        found = jax.jit(lambda pairs: [xla.inner(x, y) for x, y in pairs])(pairs)
        for (x, y), inner in zip(pairs, found, strict=True):
            exact = np.asarray(x, np.float64) * np.asarray(y, np.float64)
            assert inner.dtype == jnp.promote_types(dtype, "float32")
            assert (
                abs(inner - exact.sum())
                <= 8 * float(jnp.finfo(inner.dtype).eps) * np.abs(exact).sum()
            )


# Blocks of 1,024 float32 have distances of whole pages, and so do eight blocks of 64 rows of 256,
# but not twelve.
ROWS = [(512,), (8, 64), (256, 2), (512, 1), (1024,), (256,)]


@pytest.mark.parametrize("n", [1, 7, 17, 64, 513])
def test_sums_of_any_number_of_rows(n):
    """For integers they are exact: no row is left out, none is counted twice."""
    given = [
        np.random.default_rng(0).integers(-10, 10, (8, n, *row)).astype(np.float32) for row in ROWS
    ]
    found = jax.jit(
        lambda given: [(jax.vmap(xla.sum_rows)(x), jax.vmap(xla.moments)(x)) for x in given]
    )(given)
    for x, (total, (differences, squares)) in zip(given, found, strict=True):
        np.testing.assert_array_equal(total, x.sum(axis=1))
        np.testing.assert_array_equal(differences, (x - x[:, :1]).sum(axis=1))
        np.testing.assert_array_equal(squares, ((x - x[:, :1]) ** 2).sum(axis=1))


@pytest.mark.parametrize("edge", [np.inf, np.nan])
def test_a_row_that_is_not_finite_affects_only_its_own_sum(edge):
    """Of 17 rows the last block also contains row 14 of another block, with weight 0."""
    x = jnp.ones((17, 256)).at[14, 3].set(edge)
    rows, (differences, squares), elements = jax.jit(
        lambda x: (xla.sum_rows(x), xla.moments(x), jax.vmap(xla.sum_elements)(x))
    )(x)
    for totals, spoilt in (rows, 3), (differences, 3), (squares, 3), (elements, 14):
        np.testing.assert_equal(np.array(totals)[spoilt], np.float32(edge))
        assert np.isfinite(np.delete(totals, spoilt)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_moments_of_rows_that_almost_agree_are_as_small_as_their_differences(dtype):
    """The common part of all rows causes no rounding error."""
    with jax.enable_x64(dtype == "float64"):
        step = float(jnp.finfo(dtype).eps)
        given = [
            np.float64(step) * np.random.default_rng(0).integers(0, 2, (n, 2048)) + 1
            for n in (3, 40)
        ]
        found = jax.jit(lambda rows: [*map(xla.moments, rows)])(
            [jnp.asarray(x, dtype) for x in given]
        )
        for x, (differences, squares) in zip(given, found, strict=True):
            assert (
                differences.dtype
                == squares.dtype
                == ("float64" if dtype == "float64" else "float32")
            )
            np.testing.assert_array_equal(differences, (x - x[:1]).sum(axis=0))
            np.testing.assert_array_equal(squares, ((x - x[:1]) ** 2).sum(axis=0))


def test_two_squared_norms_are_those_of_each_tree():
    """Of a short leaf, and of one that is summed in the form for CPUs."""
    one, other = (
        {"a": np.arange(5, dtype=np.float32) + shift, "b": np.full(5_000, shift, np.float32)}
        for shift in (0.5, -2.0)
    )
    found = jax.jit(xla.sqnorms)(one, other)
    expected = [
        sum(float((leaf.astype(float) ** 2).sum()) for leaf in each.values())
        for each in (one, other)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
