"""Sums and means over workers that are long enough to use another algorithm on CPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dsgd import workers

LONG = (2, 4096)  # a leaf whose sums are additions, also on eight devices


def spread(function, mesh):
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=P(workers.AXIS), out_specs=P(), check_vma=False)
    )


def rows(dtype, N: int = 8) -> jax.Array:
    return (1e3 + jax.random.normal(jax.random.key(0), (N, *LONG))).astype(dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_sums_and_means_of_long_rows_are_those_of_numpy(dtype, any_mesh):
    """To a rounding of the result, and on one device of nothing else: half precision is not summed
    in half precision.
    """
    with jax.enable_x64(dtype == "float64"):
        x = rows(dtype)
        # eight terms, exact for float64, too, except for a thousandth of its rounding
        exact = np.asarray(x).astype(np.longdouble)
        total, mean = spread(lambda x: (workers.sum(x), workers.mean(x)), any_mesh)(x)
        assert total.dtype == mean.dtype == x.dtype
        # For float32 sums, one rounding for each term; for float64, three halves: eight terms are
        # three additions deep.
        roundings = (
            8 if dtype == "float32" or any_mesh.size > 1 else 1.5 if dtype == "float64" else 1
        )
        tolerance = roundings * float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(
            np.asarray(total).astype(np.longdouble), exact.sum(axis=0), rtol=tolerance
        )
        np.testing.assert_allclose(
            np.asarray(mean).astype(np.longdouble), exact.mean(axis=0), rtol=tolerance
        )


def weighted_moments(x):
    with workers.with_weights(WEIGHTS):
        return workers.mean_and_sqdist(x)


WEIGHTS = (2.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("by", [(1.0,) * 8, WEIGHTS], ids=["plain", "weighted"])
def test_a_mean_and_the_distances_from_it_are_those_of_numpy_and_take_one_pass(by, any_mesh):
    """The program contains the sums of pairs once. Types are kept; half precision is rounded
    once.
    """
    x = {"a": rows("float32"), "b": rows("bfloat16")[:, 0]}
    both = spread(weighted_moments if by is WEIGHTS else workers.mean_and_sqdist, any_mesh)
    mean, apart = both(x)
    squares = 0.0
    for name, rounding in (("a", 1e-6), ("b", 2.0**-8)):
        exact = np.asarray(x[name], np.float64)
        middle = np.tensordot(np.array(by), exact, axes=1) / 8
        assert mean[name].dtype == x[name].dtype
        np.testing.assert_allclose(np.asarray(mean[name], np.float64), middle, rtol=rounding)
        squares += ((exact - np.asarray(mean[name], np.float64)) ** 2).sum() / 8
    np.testing.assert_allclose(apart, squares, rtol=1e-5)
    if by is not WEIGHTS:
        alone = both.lower(rows("float32")).as_text()
        assert alone.count("stablehlo.complex") == 8 // any_mesh.size


@pytest.mark.parametrize("shape", [LONG, (5,)])
def test_on_one_device_equal_models_equal_their_mean_and_have_consensus_distance_0(shape):
    """Bit for bit, although their sum is rounded."""
    one = (1 / 3 + jax.random.normal(jax.random.key(0), shape)).astype("float32")
    mean, apart = spread(workers.mean_and_sqdist, workers.mesh(1))(
        jnp.broadcast_to(one, (7, *shape))
    )
    np.testing.assert_array_equal(mean, one)
    assert apart == 0
