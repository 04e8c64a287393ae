"""OptPerf compared with a solver of linear programs, and integer splits with a sample-by-sample
algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from algorithms.cannikin import ClusterModel


def clusters(number: int) -> Iterator[tuple[ClusterModel, float]]:
    """Yields clusters of one to seven nodes, over six orders of magnitude, some of them without one
    of the coefficients, or with limited memory, and a batch that fits.
    """
    draw = np.random.default_rng(0)
    for _ in range(number):
        n = draw.integers(1, 8)
        q, s, k, m = (
            10.0 ** draw.integers(-3, 3)
            * draw.uniform(0, 1, n)
            * (draw.random(n) >= draw.choice([0, 0.3]))
            for _ in range(4)
        )
        limits = None
        if draw.random() < 0.5:
            limits = np.where(draw.random(n) < 0.3, np.inf, draw.uniform(0, 50, n))
            limits[(draw.random(n) < 0.2) & (np.arange(n) > 0)] = 0
        gamma, share = draw.choice([0, 1, draw.random()]), draw.uniform(0, 10) * draw.choice([0, 1])
        model = ClusterModel(
            q, s, np.where(q + k == 0, 1.0, k), m, gamma, share, draw.random(), limits
        )
        room = np.inf if limits is None else limits.sum()
        yield (
            model,
            min(
                draw.choice([1e-3, 1, draw.uniform(0, 200), room if np.isfinite(room) else 7]), room
            ),
        )


def solve(model: ClusterModel, total: float) -> float:
    """Returns the solution of the linear program by HiGHS."""
    n, rows, ends = model.nodes, [], []
    for slope, fixed in (
        (np.add(model.q, model.k), np.add(model.s, model.m)),
        (
            model.q + model.gamma * np.asarray(model.k),
            model.s + model.gamma * np.asarray(model.m) + model.t_overlap,
        ),
    ):
        rows.append(np.hstack([np.diag(slope), -np.ones((n, 1))]))
        ends.append(-fixed - model.t_last)
    limits = np.full(n, np.inf) if model.limits is None else model.limits
    bounds = [*((0, limit if np.isfinite(limit) else None) for limit in limits), (None, None)]
    options: dict[str, Any] = {"A_eq": [[1] * n + [0]], "b_eq": [total], "bounds": bounds}
    found = linprog([0] * n + [1], np.vstack(rows), np.concatenate(ends), **options)
    assert found.success
    return found.fun


def test_optperf_is_the_optimum_of_the_linear_program():
    for model, total in clusters(150):
        seconds, batches = model.optperf(total)
        assert seconds == pytest.approx(solve(model, total), rel=1e-9)
        assert batches.sum() == pytest.approx(total, rel=1e-12)
        assert (batches >= 0).all()
        assert (batches <= (np.inf if model.limits is None else np.asarray(model.limits))).all()
        assert model.batch_time(batches) == pytest.approx(seconds, rel=1e-12)


def test_bottlenecks():
    """Two nodes that differ only in their backward passes: 1 - gamma is compared with T_o."""
    model = ClusterModel(
        [0.1, 0.1], [0, 0], [1.0, 0.2], [0, 0], gamma=0.5, t_overlap=2.0, t_last=0.5
    )
    assert model.computes_longer([4, 4]).tolist() == [True, False]
    assert model.batch_time([4, 4]) == max(0.4 + 4, 0.4 + 2 + 2) + 0.5
    assert model.node_times([4, 4]).tolist() == pytest.approx([0.4 + 4 + 0.5, 0.4 + 0.4 + 2 + 0.5])


def one_by_one(model: ClusterModel, total: int) -> list[int]:
    """Returns the split in which each sample, starting from none, is given to the node that would
    finish it first.
    """
    limits = (
        np.full(model.nodes, np.inf) if model.limits is None else np.floor(np.asarray(model.limits))
    )
    batches = np.zeros(model.nodes, int)
    for _ in range(total):
        with_one_more = model.node_times(batches + 1)
        batches[np.argmin(np.where(batches < limits, with_one_more, np.inf))] += 1
    return batches.tolist()


def test_integer_splits_equal_those_given_sample_by_sample():
    for model, _ in clusters(60):
        limits = (
            np.full(model.nodes, np.inf)
            if model.limits is None
            else np.floor(np.asarray(model.limits))
        )
        total = int(min(60, limits.sum()))
        if total:
            seconds, batches = model.optperf_integer(total)
            assert batches.sum() == total
            assert (batches <= limits).all()
            assert seconds == pytest.approx(model.batch_time(one_by_one(model, total)), rel=1e-12)


@pytest.mark.parametrize("total", [6, 7, 30, 31, 299, 300])
def test_real_splits_that_are_integers_stay_unchanged(total):
    """Splits that are integers up to rounding, with limits slightly below or above integers."""
    for q, limits in (
        ([0.1, 0.1, 0.1], None),
        ([0.1, 0.2, 0.3], None),
        ([0.1, 0.1, 0.1], [3 - 1e-13, 500, 500]),
        ([0.3, 0.3, 0.3], [3 + 1e-13, 500.5, 500]),
    ):
        model = ClusterModel(q, [0.7, 0.7, 0.7], [0.0, 0.1, 0.2], [0.1] * 3, 0.2, 0.3, 0.1, limits)
        seconds, batches = model.optperf_integer(total)
        assert batches.sum() == total
        assert limits is None or (batches <= np.floor(limits)).all()
        assert seconds == pytest.approx(model.batch_time(one_by_one(model, total)), rel=1e-12)


def test_several_total_batches_at_once_equal_single_ones():
    for model, total in clusters(30):
        given = [(model.optperf, np.array([[total / 7, total / 3], [total / 2, total]]))]
        if model.limits is None:
            given.append((model.optperf_integer, np.array([[1, 17], [40, 5]])))
        for function, totals in given:
            together = function(totals)
            for i, j in np.ndindex(2, 2):
                one = function(totals[i, j])
                assert together.seconds[i, j] == one.seconds
                np.testing.assert_array_equal(together.batches[i, j], one.batches)


GOOD: dict[str, Any] = {
    **{name: [1.0, 2.0] for name in "qskm"},
    "gamma": 0.2,
    "t_overlap": 1.0,
    "t_last": 0.1,
}
LIMITED = ClusterModel(**GOOD, limits=[3.5, 2.5])
REFUSED = [
    ({"s": [1.0, 2.0, 3.0]}, "s has the shape"),
    ({"k": [-1.0, 2.0]}, "k = "),
    ({"m": [1.0, np.inf]}, "m = "),
    ({"q": [0.0, 1.0], "k": [0.0, 1.0]}, r"q \+ k = 0 for node 0"),
    ({"gamma": 1.5}, "gamma"),
    ({"t_overlap": -1.0}, "t_overlap"),
    ({"limits": [np.nan, 1.0]}, "limits"),
]
REFUSED_CALLS = [
    (LIMITED.optperf, [1.0, 6.5], r"6\.5 samples, but the limits add up to 6"),
    (LIMITED.optperf, [4.0, 0.0], "optperf: a total batch of 0"),
    (LIMITED.optperf_integer, 6, "6 samples, but the limits add up to 5"),
    (LIMITED.optperf_integer, 2.5, "optperf_integer: total_batch"),
    (LIMITED.node_times, [1.0, 2.0, 3.0], "node_times: batches"),
    (LIMITED.batch_time, [[1.0, 2.0], [np.nan, 2.0]], "batch_time: batches"),
]


def test_invalid_models_totals_and_batches_are_refused():
    for wrong, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            ClusterModel(**GOOD | wrong)
    for call, argument, words in REFUSED_CALLS:
        with pytest.raises(ValueError, match=words):
            call(argument)
