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
