"""Algorithm 1 compared with OptPerf: where they agree, and where its batches take longer or are
negative.
"""

from __future__ import annotations

import numpy as np
import pytest

from algorithms.cannikin import ClusterModel, published_optperf


def test_its_batches_can_be_negative():
    """A node is not ready for its first sample before the others have finished all samples."""
    model = ClusterModel([0.0, 0.0], [9.0, 0.0], [1.0, 1.0], [5.0, 5.0], 0.5, 0.0, 0.0)
    assert published_optperf(model, 4.0).batches.tolist() == [-2.5, 6.5]
    assert model.optperf(4.0).batches.tolist() == [0.0, 4.0]


def test_unsolvable_models_are_refused():
    with pytest.raises(
        ValueError,
        match=r"q \+ gamma k = 0 for node 1; expected a positive value, without which check 2 has "
        r"no",
    ):
        published_optperf(
            ClusterModel([1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0], 0.0, 1.0, 0.0), 4.0
        )
    for total in (0.0, -1.0):
        with pytest.raises(ValueError, match=rf"total = {total}; expected a finite number > 0"):
            published_optperf(ClusterModel([1.0], [0.0], [1.0], [0.0], 0.0, 1.0, 0.0), total)


def test_without_q_and_with_positive_batches_it_is_optperf():
    """Clusters with times over two orders of magnitude, and similar times of communication and
    computation.
    """
    draw, mixed = np.random.default_rng(0), 0
    for _ in range(200):
        s, k, m = 10 ** draw.uniform(-1, 1, (3, draw.integers(2, 7)))
        total, gamma = 10 ** draw.uniform(1, 3), draw.uniform(0.02, 0.5)
        sending = (1 - gamma) * np.median(k * total / len(k) + m) * draw.uniform(0.5, 1.5)
        model = ClusterModel(np.zeros(len(k)), s, k, m, gamma, sending, draw.uniform(0, 1))
        found, best = published_optperf(model, total), model.optperf(total)
        if (found.batches > 0).all():
            mixed += len(set(model.computes_longer(best.batches))) > 1
            assert found.seconds == pytest.approx(best.seconds, rel=1e-9)
            np.testing.assert_allclose(found.batches, best.batches, rtol=1e-6, atol=1e-9 * total)
    assert mixed > 10


def test_with_q_its_batches_take_longer_than_predicted():
    """A slow loader and a fast one: with fixed times their order would be reversed."""
    model, total = ClusterModel([3.0, 0.0], [4.0, 4.0], [1.0, 5.0], [0.0, 0.0], 0.5, 8.0, 0.0), 27.0
    found = published_optperf(model, total)
    assert (
        model.batch_time(found.batches)
        > 1.25 * model.optperf(total).seconds
        > 1.25 * 1.25 * found.seconds
    )
    fixed, growing = (
        ([2.4, 4.1, 9.8, 1.3, 0.4], [1.1, 0.2, 0.2, 0.7, 0.6]),
        ([0.3, 0.1, 0.2, 1.1, 0.3], [0.1, 8.5, 0.3, 0.2, 0.1]),
    )
    model, total = ClusterModel(growing[0], fixed[0], growing[1], fixed[1], 0.06, 24.2, 0.57), 668.0
    found, best = published_optperf(model, total).batches, model.optperf(total).batches
    assert (found > 0).all()
    assert model.batch_time(found) > 7 * model.batch_time(best)
