"""Algorithm 1 beside OptPerf: where they agree, and where the one is longer, or has batches that nobody can compute."""

from __future__ import annotations

import numpy as np
import pytest

from algorithms.cannikin import ClusterModel, published_optperf


def clusters(number: int, *, q: bool) -> list[tuple[ClusterModel, float]]:
    """Whose times are over two orders of magnitude, with as much to send as there is time for, about."""
    draw, found = np.random.default_rng(0), []
    for _ in range(number):
        q_, s, k, m = 10 ** draw.uniform(-1, 1, (4, draw.integers(2, 7)))
        total, gamma = 10 ** draw.uniform(1, 3), draw.uniform(0.02, 0.5)
        sending = (1 - gamma) * np.median(k * total / len(k) + m) * draw.uniform(0.5, 1.5)
        found.append((ClusterModel(q * q_, s, k, m, gamma, sending, draw.uniform(0, 1)), total))
    return found


def longer(model: ClusterModel, total: float) -> float:
    """How many times as long its batches take as the best ones."""
    return model.batch_time(published_optperf(model, total).batches) / model.optperf(total).seconds


def bottlenecks(model: ClusterModel, total: float) -> list[np.ndarray]:
    """Who computes longer than it sends in checks 1 and 2, when all lines of the one kind end together, and in OptPerf."""
    q, s, k, m = (np.asarray(each) for each in (model.q, model.s, model.k, model.m))
    found = []
    for slope, fixed in ((q + k, s + m), (q + model.gamma * k, s + model.gamma * m)):
        T = (total + (fixed / slope).sum()) / (1 / slope).sum()
        found.append(model.computes_longer((T - fixed) / slope))
    return [*found, model.computes_longer(model.optperf(total).batches)]


def test_without_q_and_with_positive_batches_it_is_optperf():
    mixed = positive = 0
    for model, total in clusters(600, q=False):
        found, best = published_optperf(model, total), model.optperf(total)
        if (found.batches <= 0).any():
            continue
        positive += 1
        mixed += len(set(model.computes_longer(best.batches))) > 1
        assert found.seconds == pytest.approx(best.seconds, rel=1e-9)
        np.testing.assert_allclose(found.batches, best.batches, rtol=1e-6, atol=1e-9 * total)
    assert positive > 100
    assert mixed > 30


def test_with_q_its_batches_take_longer_and_its_seconds_are_not_theirs():
    """A slow loader before a fast one: by fixed times they would change their places."""
    model, total = ClusterModel([3.0, 0.0], [4.0, 4.0], [1.0, 5.0], [0.0, 0.0], 0.5, 8.0, 0.0), 27.0
    found = published_optperf(model, total)
    assert model.batch_time(found.batches) > 1.25 * model.optperf(total).seconds > 1.25 * 1.25 * found.seconds
    both = [(model, total) for model, total in clusters(600, q=True) if (published_optperf(model, total).batches > 0).all()]
    ratios = [longer(model, total) for model, total in both]
    assert min(ratios) > 1 - 1e-9
    assert max(ratios) > 1.83
    assert np.sum(np.array(ratios) > 1 + 1e-9) > len(ratios) / 3


def test_its_batches_can_be_negative():
    """A node that is not ready for a sample before the others are done with all of them."""
    model = ClusterModel([0.0, 0.0], [9.0, 0.0], [1.0, 1.0], [5.0, 5.0], 0.5, 0.0, 0.0)
    assert published_optperf(model, 4.0).batches.tolist() == [-2.5, 6.5]
    assert model.optperf(4.0).batches.tolist() == [0.0, 4.0]


def test_who_sends_longer_in_both_checks_may_compute_longer_in_the_end():
    """What the paper's search takes for granted, without q too; those for which the checks differ compute longer in any case."""
    model, total = ClusterModel([0, 0, 0], [5.0, 7.0, 0.0], [8.0, 1.0, 1.0], [6.0, 4.0, 6.0], 0.1, 16.0, 0.0), 30.0
    assert [each.tolist() for each in bottlenecks(model, total)][2] == [True, False, True]
    assert not (bottlenecks(model, total)[0] | bottlenecks(model, total)[1])[0]
    assert longer(model, total) == pytest.approx(1)
    for model, total in clusters(300, q=True):
        if (model.optperf(total).batches > 0).all():
            first, second, best = bottlenecks(model, total)
            assert (best | ~(first | second)).all()


def test_what_it_cannot_solve_is_refused():
    with pytest.raises(ValueError, match=r"q \+ gamma k = 0 of node 1: need more, or check 2 cannot be solved"):
        published_optperf(ClusterModel([1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0], 0.0, 1.0, 0.0), 4.0)
    for total in (0.0, -1.0):
        with pytest.raises(ValueError, match=rf"total = {total}: need a finite number above 0"):
            published_optperf(ClusterModel([1.0], [0.0], [1.0], [0.0], 0.0, 1.0, 0.0), total)
