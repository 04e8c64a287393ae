"""Local work: constructors, compared with explicit sums over samples; and invalid work."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from dsgd import work

SIZES = np.array([9, 1, 0, 6])
COUNTED = np.array([[1, 1, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0]], bool)


@pytest.mark.parametrize("average", ["samples", "workers"])
def test_local_batches_average_samples_or_workers(average):
    """Draws are numbers: the mean over workers of their sums is the mean over samples, or the mean
    of their means.
    """
    made = work.local_batches(SIZES, batch_size=4, micro_batches=3, average=average)
    np.testing.assert_array_equal(made.samples, [[4, 4, 1], [1, 0, 0], [0, 0, 0], [4, 2, 0]])
    draws = [np.arange(1.0, 1 + size) + 10 * n for n, size in enumerate(SIZES)]
    parts = [
        np.split(mine, np.cumsum(cut)[:-1]) for mine, cut in zip(draws, made.samples, strict=True)
    ]
    means = np.array([[part.mean() if len(part) else 99.0 for part in mine] for mine in parts])
    local = (made.weights * means).sum(axis=1)
    expected = (
        np.concatenate(draws).mean()
        if average == "samples"
        else np.mean([mine.mean() if len(mine) else 0 for mine in draws])
    )
    assert local.mean() == pytest.approx(expected, rel=1e-6)
    if average == "workers":
        np.testing.assert_allclose(work.weight_sums(made), SIZES > 0, rtol=1e-6)


def test_micro_batches_average_weighted_ones_or_workers():
    means = np.arange(12.0).reshape(4, 3)
    by_samples, by_workers = (
        work.micro_batches(COUNTED, average=average) for average in ("samples", "workers")
    )
    assert (by_samples.weights * means).sum() / 4 == pytest.approx(means[COUNTED].mean(), rel=1e-6)
    np.testing.assert_allclose((by_workers.weights * means).sum(axis=1), [1, 0, 7, 10], rtol=1e-6)
    np.testing.assert_array_equal(by_samples.samples, COUNTED)


@pytest.mark.parametrize("average", ["samples", "workers"])
def test_the_estimate_is_the_mean_over_participating_workers(average):
    """The workers over which methods average; also if participation is known only at run time."""
    sizes, there, g = (
        np.array([8, 3, 5, 1]),
        np.array([True, False, True, True]),
        np.array([1.0, 10.0, 100.0, 1000.0]),
    )
    given = work.local_batches(sizes, batch_size=4, micro_batches=2, average=average, present=there)
    np.testing.assert_array_equal(given.samples.sum(axis=1), np.where(there, sizes, 0))
    mean = (given.weights.sum(axis=1) * g)[there].mean()
    expected = (
        (sizes * g)[there].sum() / sizes[there].sum() if average == "samples" else g[there].mean()
    )
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    traced = jax.jit(
        lambda present: work.local_batches(
            sizes, batch_size=4, micro_batches=2, average=average, present=present
        )
    )(there)
    jax.tree.map(np.testing.assert_allclose, traced, given)
    counted = np.array([[True, True], [True, False], [False, False], [True, False]])
    some = work.micro_batches(counted, average=average, present=there)
    np.testing.assert_array_equal(some.samples, counted & there[:, None])
