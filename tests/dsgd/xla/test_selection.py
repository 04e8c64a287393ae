"""The k largest elements, which are found by counting on CPUs if there are many."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import xla

# Runs, vectors, elements, k: side by side and one after the other; indices of 8, 16 and 32 bits;
# few elements, which are sorted.
SIDE_BY_SIDE, LONG, ONE, FEW = (3, 60, 99, 7), (160, 157, 16), (1, 70_000, 69_000), (2, 41, 2)
CASES = [
    (SIDE_BY_SIDE, "float32"),
    (LONG, "float32"),
    (ONE, "float32"),
    (FEW, "float32"),
    (LONG, "float64"),
]


def examples(dtype: str, *shape: int, k: int) -> dict[str, np.ndarray]:
    """Returns examples with equal elements in many positions: some vectors have none, some have
    some, and some are constant.
    """
    rng = np.random.default_rng(0)
    normal = rng.normal(size=shape)
    equal = np.round(normal * 8) / 8
    equal[..., :1, :] = -2.5
    distinct = rng.permuted(np.broadcast_to(np.arange(1.0, shape[-1] + 1), shape), axis=-1)
    kth = shape[-1] + 1 - k
    # the k-th and the next are equal
    one_too_many = np.where(distinct == kth - 1, kth, distinct) * rng.choice([-1, 1], shape)
    in_one = distinct.copy()
    in_one[..., :1, :] = one_too_many[..., :1, :]
    zeros = np.where(rng.random(shape) < 0.5, 0.0, -0.0)
    tiny, few = np.finfo(dtype).smallest_subnormal, rng.random(shape) < k / 2 / shape[-1]
    found = {
        "normal": normal,
        "equal": equal,
        "few": np.where(rng.random(shape) < 0.05, normal, 0),
        "edges": np.where(np.abs(normal) > 1.5, np.copysign(np.inf, normal), normal),
        "not a number": np.where(normal > 2, np.nan, normal),
        "scales": normal * 10 ** rng.uniform(-30, 30, shape),
        "one too many": one_too_many,
        "in one": in_one,
        "zeros": zeros,
        "denormal": np.where(few, tiny, zeros),
    }
    return {name: values.astype(dtype) for name, values in found.items()}


def magnitudes(x: np.ndarray) -> np.ndarray:
    """Returns unsigned integers in the order of magnitudes, NaN last: floats without their sign
    bit.
    """
    return x.view(f"uint{8 * x.itemsize}") << 1


def those_to_send(x: np.ndarray, k: int) -> np.ndarray:
    """Returns the k largest nonzero elements by magnitude, the first of equal ones."""
    order = np.argsort(~magnitudes(x), axis=-1, kind="stable")
    among = np.zeros(x.shape, bool)
    np.put_along_axis(among, order[..., :k], True, axis=-1)
    return among & (magnitudes(x) != 0)


@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_the_largest_are_those_of_a_sort_and_the_first_of_equal_ones(shape, dtype):
    """The selection among zeros of either sign does not matter."""
    *shape, k = shape

    def among(x):
        return xla.among_largest(x, k)

    for _ in shape[1:]:
        among = jax.vmap(among)
    with jax.enable_x64(dtype == "float64"):
        among = jax.jit(among)
        for name, x in examples(dtype, *shape, k=k).items():
            found = np.asarray(among(jnp.asarray(x)))
            np.testing.assert_array_equal(
                found & (magnitudes(x) != 0), those_to_send(x, k), err_msg=name
            )


@pytest.mark.parametrize(("k", "vectors"), [(31, (3,)), (700, ())], ids=str)
def test_indices_of_long_vectors_are_those_of_a_sort(k, vectors):
    """Their length is not a multiple of 32. Some vectors have equal elements, and fewer than k
    nonzero ones.
    """
    d = (1 << 14) + 5
    indices = jax.jit(
        jax.vmap(lambda x: xla.largest(x, k)) if vectors else lambda x: xla.largest(x, k)
    )
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((*vectors, d)).astype(np.float32)
    for x in (normal, np.round(3 * normal), normal * (rng.random(normal.shape) < 20 / d)):
        order = np.argsort(-np.abs(x), axis=-1, kind="stable")
        np.testing.assert_array_equal(indices(x), order[..., :k])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_indices_of_the_largest_are_in_order_and_the_first_of_equal_ones(k):
    np.testing.assert_array_equal(xla.largest(jnp.array([1.0, -3.0, 2.0, 3.0]), k), [1, 3, 2][:k])
