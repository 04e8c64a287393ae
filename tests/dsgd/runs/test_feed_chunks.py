"""Streamed batches, chunk by chunk: those that are on the devices, their number, and the number of
an invalid one.
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


def feed(batches, rounds: int = 100, record_every: int = 3) -> Feed:
    plan = loop.Plan(lambda points: None, PROBLEM, workers.mesh(1), N, 0, record_every, 1)  # type: ignore[arg-type]
    return Feed(plan, batches, rounds)


def numbered(first: int = 0, last: int = 10**6):
    """Yields batches; batch t is filled with t."""
    for t in range(first, last):
        yield {"x": np.full((N, 3), t, np.float32), "n": np.full(N, t, np.int32)}


@pytest.mark.parametrize(
    ("record_every", "records"), [(1, 16), (3, 5), (5, 3), (8, 2), (16, 1), (17, 1), (100, 1)]
)
def test_sixteen_rounds_are_on_the_devices_or_the_rounds_of_one_record(record_every, records):
    one = feed(numbered(), 1000, record_every)
    assert one.records == records
    assert jax.tree.map(np.shape, one.first) == {"n": (N,), "x": (N, 3)}
    assert one.take(1)["x"].shape == (records * record_every, N, 3)


def test_each_batch_is_used_once_and_in_order_unless_it_is_skipped():
    one, seen = feed(numbered()), []
    for skipped, rounds in ((0, 4), (0, 15), (7, 1), (0, 3), (2, 2)):
        one.skip(skipped)
        taken = jax.tree.map(lambda leaf: np.asarray(leaf)[:rounds], one.take(rounds))  # noqa: B023
        seen += taken["n"][:, 0].tolist()
        np.testing.assert_array_equal(taken["x"][:, :, 2], taken["n"])
    assert seen == [*range(19), *range(26, 30), 32, 33]


@pytest.mark.parametrize("rounds", [(3, 3), (1, 5), (5, 1)])
def test_batches_that_end_are_reported_with_the_round(rounds):
    one, just = feed(numbered(0, 5)), feed(numbered(0, 5), 5)
    one.take(rounds[0])
    with pytest.raises(ValueError, match=r"batches ended after round 5; .* 100 rounds"):
        one.take(rounds[1])
    just.skip(2)
    just.take(3)
    with pytest.raises(ValueError, match="batches ended after round 5"):
        just.skip(1)


@pytest.mark.parametrize(
    ("wrong", "skipped", "chunks", "expected"),
    [
        ([6, 4], 0, (3, 4), [None, 4]),
        ([2], 0, (3, 4), [2, 2]),
        ([], 0, (3, 4), [None, None]),
        ([3], 0, (3, 4), [None, 3]),
        ([5], 4, (3,), [5]),
    ],
)
def test_the_first_batch_that_is_not_finite_is_reported_with_its_number(
    wrong, skipped, chunks, expected
):
    def batches():
        for t, batch in enumerate(numbered()):
            if t in wrong:
                batch["x"][1, t % 3] = (np.nan, np.inf)[t % 2]
            yield batch

    one = feed(batches())
    one.skip(skipped)
    for rounds, number in zip(chunks, expected, strict=True):
        one.take(rounds)
        assert one.not_finite == number


GOOD = {"x": np.zeros((N, 3), np.float32), "n": np.zeros(N, np.int32)}
OTHERS = {
    "is": {**GOOD, "x": np.zeros((N, 4), np.float32)},
    "is ": {**GOOD, "n": np.zeros(N, np.float32)},
    "is  ": {"x": GOOD["x"]},
    "has a leaf of shape": jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=0), GOOD),
}


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("words", OTHERS)
def test_a_batch_of_another_kind_is_reported_with_its_number(words, at):
    one = feed(itertools.chain(numbered(0, at), [OTHERS[words]], numbered()))
    one.take(at)
    with pytest.raises(ValueError, match=f"batches: batch {at} {words.strip()}"):
        one.take(2)
