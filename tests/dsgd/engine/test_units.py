"""Micro-batches as a list of units of work, with numbers that encode the row, the position and the
samples of each.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd.engine import units

RNG = np.random.default_rng(0)


def numbers(rows: Any, m: Any, samples: Any) -> Any:
    """Returns 100 times the row, 10 times the position, plus the samples."""
    return 100.0 * rows + 10.0 * m + samples


def sum_units(
    samples: np.ndarray, weights: tuple[np.ndarray, np.ndarray]
) -> tuple[Any, list[tuple[int, ...]]]:
    n, asked = len(samples), []

    def compute(rows, m, samples):
        asked.append(samples.shape)
        if rows is None:
            rows, m = jnp.arange(n), jnp.zeros(n, jnp.int32)
        one = numbers(rows, m, samples)
        return one, {"tree": jnp.stack([one, 2 * one], axis=1)}

    of_arrays = jax.jit(lambda samples, weights: units.weighted_sums(compute, samples, weights))
    found = of_arrays(jnp.asarray(samples, jnp.int32), tuple(map(jnp.asarray, weights)))
    return found, asked


@pytest.mark.parametrize(("n", "M"), [(1, 1), (4, 1), (1, 3), (3, 2), (5, 4), (2, 7)])
@pytest.mark.parametrize("some", [0.0, 0.4, 1.0])
def test_each_unit_with_samples_counts_once_with_its_weight(n, M, some):
    """Weights of units without samples have no effect, and groups have half as many units as there
    are rows.
    """
    samples = np.where(RNG.random((n, M)) < some, RNG.integers(1, 9, (n, M)), 0)
    weights = tuple(RNG.integers(0, 5, (n, M)).astype(np.float32) for _ in range(2))
    (plain, tree), asked = sum_units(samples, weights)
    each = np.where(samples > 0, numbers(np.arange(n)[:, None], np.arange(M)[None], samples), 0)
    np.testing.assert_allclose(plain, (weights[0] * each).sum(axis=1))
    doubled = (weights[1] * each).sum(axis=1)
    np.testing.assert_allclose(tree["tree"], np.stack([doubled, 2 * doubled], axis=1))
    assert set(asked) == {(n,) if M == 1 else (-(-n // 2),)}


def test_half_precision_is_summed_in_float32_and_returned_in_its_type():
    """In float16, 2048 + 1 = 2048."""

    def ones(rows, m, samples):
        return jnp.ones(samples.shape, jnp.float16)

    weights = jnp.array([[2048.0] + [1.0] * 40] * 2)
    found = units.weighted_sums(ones, jnp.ones((2, 41), jnp.int32), weights)
    assert found.dtype == jnp.float16
    np.testing.assert_array_equal(found, 2088)


def test_rows_of_weight_0_are_0_even_if_not_finite():
    rows = {
        "a": jnp.array([jnp.nan, 2.0, jnp.inf]),
        "b": jnp.array([[1.0, jnp.nan], [3.0, 4.0], [5.0, 6.0]]),
    }
    found = units.scale_rows(jnp.array([0.0, 0.5, 0.0]), rows)
    np.testing.assert_array_equal(found["a"], [0, 1, 0])
    np.testing.assert_array_equal(found["b"], [[0, 0], [1.5, 2], [0, 0]])
