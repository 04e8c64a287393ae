"""What workers compute: constructors, against sums over samples written out; and what they
refuse.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import work

SIZES = np.array([9, 1, 0, 6])
COUNTED = np.array([[1, 1, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0]], bool)


@pytest.mark.parametrize("average", ["samples", "workers"])
def test_local_batches_average_samples_or_workers(average):
    """Of draws that are numbers: the mean over workers of what each adds up is the mean over
    samples, or the mean of their means.
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
        np.testing.assert_allclose(work.of_each(made), SIZES > 0, rtol=1e-6)


def test_micro_batches_average_those_that_count_or_workers():
    means = np.arange(12.0).reshape(4, 3)
    by_samples, by_workers = (
        work.micro_batches(COUNTED, average=average) for average in ("samples", "workers")
    )
    assert (by_samples.weights * means).sum() / 4 == pytest.approx(means[COUNTED].mean(), rel=1e-6)
    np.testing.assert_allclose((by_workers.weights * means).sum(axis=1), [1, 0, 7, 10], rtol=1e-6)
    np.testing.assert_array_equal(by_samples.samples, COUNTED)


def test_weighted_micro_batches_are_computed_where_they_have_weight():
    made = work.weighted(COUNTED * 0.5)
    np.testing.assert_array_equal(made.samples, COUNTED)
    np.testing.assert_array_equal(work.in_samples(made, 16).samples, COUNTED * 16)
    np.testing.assert_array_equal(work.in_samples(made, None).samples, COUNTED)


def test_traced_sizes_are_those_of_known_ones_and_cut_to_what_there_is():
    def make(sizes):
        return work.local_batches(sizes, batch_size=4, micro_batches=3)

    traced, known = jax.jit(make)(jnp.asarray(SIZES)), make(SIZES)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), traced, known
    )
    cut = jax.jit(make)(jnp.array([100, -3, 0, 0]))
    np.testing.assert_array_equal(cut.samples, [[4, 4, 4], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(jax.jit(make)(jnp.zeros(4, int)).weights, 0)


SIX = {"batch_size": 2, "micro_batches": 3}
REFUSED = {
    "above the capacity": (
        lambda: work.local_batches([7, 1], **SIX),
        r"sizes = \[7, 1\]; expected integers \[N\] from 0 to 6, the capacity",
    ),
    "fractions": (
        lambda: work.local_batches([1.5, 1], **SIX),
        r"sizes = float64\[2\]; expected integers \[N\]",
    ),
    "a table": (
        lambda: work.local_batches([[1, 1]], **SIX),
        r"sizes = int64\[1, 2\]; expected integers \[N\]",
    ),
    "nobody": (
        lambda: work.local_batches([0, 0], **SIX),
        "sizes: all values are 0; expected at least one worker that computes",
    ),
    "more than int32": (
        lambda: work.local_batches([1], batch_size=2**31),
        "1 micro-batches of 2147483648; expected fewer than 2\\^31 samples",
    ),
    "an unknown mean": (
        lambda: work.local_batches([1], batch_size=1, average="all"),
        "average = 'all'; expected 'samples' or 'workers'",
    ),
    "counts": (
        lambda: work.micro_batches([[1, 0]]),
        r"counted = int64\[1, 2\]; expected bool \[N, M\]",
    ),
    "a negative weight": (
        lambda: work.weighted([[-1.0, 2.0]]),
        "weighted: weights -1 to 2; expected finite numbers, at least 0",
    ),
    "no weight": (lambda: work.weighted([[0.0]]), "weights: all values are 0"),
    "whole weights": (
        lambda: work.weighted([[1]]),
        r"weights = int64\[1, 1\]; expected floating-point numbers \[N, M\]",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_cannot_be_computed_is_refused(mistake):
    make, message = REFUSED[mistake]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("average", ["samples", "workers"])
def test_of_those_who_are_there_the_mean_is_the_estimate(average):
    """Over whom methods take it; also where who that is is known only when it runs."""
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
    with pytest.raises(
        ValueError, match=r"local_batches: present = bool\[3\]; expected bool \[4\]"
    ):
        work.local_batches(sizes, batch_size=8, present=there[:3])
