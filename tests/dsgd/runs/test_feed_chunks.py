"""Batches from outside, chunk by chunk: which are on the devices, how many, and the number of a
wrong one.
"""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from dsgd import problems, workers
from dsgd.engine import loop
from dsgd.runs.feed import Feed

N = 2
PROBLEM = loop.without_arrays(problems.random_quadratic(N, 2, seed=0))


def plan(record_every: int = 3) -> loop.Plan:
    return loop.Plan(lambda points: None, PROBLEM, workers.mesh(1), N, 0, record_every, 1)  # type: ignore[arg-type]


def numbered(first: int = 0, last: int = 10**6):
    """Batch t is full of t."""
    for t in range(first, last):
        yield {"x": np.full((N, 3), t, np.float32), "n": np.full(N, t, np.int32)}


@pytest.mark.parametrize(
    ("record_every", "records"), [(1, 16), (3, 5), (5, 3), (8, 2), (16, 1), (17, 1), (100, 1)]
)
def test_sixteen_rounds_are_on_the_devices_or_the_rounds_of_one_record(record_every, records):
    feed = Feed(plan(record_every), numbered(), 1000)
    assert feed.records == records
    taken = feed.take(1)
    assert taken["x"].shape == (records * record_every, N, 3)


def test_each_batch_is_taken_once_and_in_order():
    feed, seen = Feed(plan(), numbered(), 100), []
    for rounds in (4, 15, 1, 3):
        taken = feed.take(rounds)
        seen += np.asarray(taken["n"])[:rounds, 0].tolist()
        np.testing.assert_array_equal(
            np.asarray(taken["x"])[:rounds, :, 2], np.asarray(taken["n"])[:rounds]
        )
    assert seen == list(range(23))


def test_rounds_that_are_done_are_skipped():
    feed = Feed(plan(), numbered(), 100)
    feed.skip(7)
    assert np.asarray(feed.take(3)["n"])[:3, 1].tolist() == [7, 8, 9]
    feed.skip(2)
    assert np.asarray(feed.take(1)["n"])[0, 0] == 12


def test_the_first_is_known_by_its_shapes():
    feed = Feed(plan(), numbered(), 100)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), feed.first) == {
        "n": ((N,), np.int32),
        "x": ((N, 3), np.float32),
    }
    assert feed.identity is None


@pytest.mark.parametrize(("before", "rounds"), [(3, 3), (1, 5), (5, 1)])
def test_batches_that_end_are_reported_with_the_round(before, rounds):
    feed = Feed(plan(), numbered(0, 5), 100)
    feed.take(before)
    with pytest.raises(
        ValueError, match="batches ended after round 5; expected one for each of the 100 rounds"
    ):
        feed.take(rounds)
    feed = Feed(plan(), numbered(0, 5), 100)
    with pytest.raises(ValueError, match="batches ended after round 5"):
        feed.skip(6)
    feed = Feed(plan(), numbered(0, 5), 5)
    feed.skip(2)
    feed.take(3)


def test_the_first_batch_with_what_is_not_finite_is_reported_with_its_number():
    def batches(wrong):
        for t, batch in enumerate(numbered()):
            if t in wrong:
                batch["x"][1, t % 3] = (np.nan, np.inf)[t % 2]
            yield batch

    for wrong, chunks, expected in (
        ([6, 4], (3, 4), [None, 4]),
        ([2], (3, 4), [2, 2]),
        ([], (3, 4), [None, None]),
        ([3], (3, 4), [None, 3]),
    ):
        feed = Feed(plan(), batches(wrong), 100)
        for rounds, number in zip(chunks, expected, strict=True):
            feed.take(rounds)
            assert feed.not_finite == number
    feed = Feed(plan(), batches([5]), 100)
    feed.skip(4)
    feed.take(3)
    assert feed.not_finite == 5


@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_batch_of_another_kind_is_reported_with_its_number(at):
    good = {"x": np.zeros((N, 3), np.float32), "n": np.zeros(N, np.int32)}
    for other in (
        {**good, "x": np.zeros((N, 4), np.float32)},
        {**good, "n": np.zeros(N, np.float32)},
        {"x": good["x"]},
    ):
        feed = Feed(plan(), itertools.chain(numbered(0, at), [other], numbered()), 100)
        feed.take(at)
        with pytest.raises(ValueError, match=f"batches: batch {at} is"):
            feed.take(2)
    few = {"x": np.zeros((N + 1, 3), np.float32), "n": np.zeros(N + 1, np.int32)}
    feed = Feed(plan(), itertools.chain(numbered(0, at), [few], numbered()), 100)
    with pytest.raises(ValueError, match=f"batches: batch {at} has a leaf of shape"):
        feed.take(6)
