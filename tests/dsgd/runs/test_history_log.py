"""The log of a run, chunk by chunk, with records that are made up here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd.runs.history import Diverged, Log, evaluated
from dsgd.wire import counts

N = 2


def bits(*numbers: int) -> np.ndarray:
    return counts.table(list(numbers))


def piece(loss: Any, **more: Any) -> dict[str, np.ndarray]:
    """Of one run: records with these losses, of 10 bits each."""
    loss = np.array(loss, np.float32)
    return {"loss": loss, "bits": np.broadcast_to(bits(10), (*loss.shape, 4)).copy(), **more}


def log(runs: int = 0, record_every: int = 3, first: int = 0) -> Log:
    return Log(runs=runs, N=N, record_every=record_every, first=first)


def test_records_are_numbered_from_the_start_and_the_last_may_come_early():
    one = log()
    one.extend(piece([5.0, 4.0, 3.0, -1.0, -1.0]), 6)  # of a chunk that has room for more
    assert one.steps == [0, 3, 6]
    one.extend(piece([2.0, 1.0, -1.0]), 10)
    assert one.steps == [0, 3, 6, 9, 10]
    history = one.history()
    np.testing.assert_array_equal(history["step"], [0, 3, 6, 9, 10])
    np.testing.assert_array_equal(history["loss"], [5.0, 4.0, 3.0, 2.0, 1.0])
    np.testing.assert_array_equal(history["bits"], np.array([10, 20, 30, 40, 50]) / N)
    assert one.last_loss() == 1.0
    later = log(first=4)
    later.extend(piece([1.0, 1.0]), 7)
    assert later.steps == [4, 7]
    assert log().history() == {}


def test_bits_are_added_up_exactly_of_each_run():
    one = log(runs=1, record_every=1)
    large = (1 << 52) + 1
    each = np.stack([bits(0, large), bits(1, 3)])
    one.extend({"loss": np.ones((2, 2), np.float32), "bits": each}, 1)
    one.extend({"loss": np.ones((2, 1), np.float32), "bits": np.stack([bits(large), bits(5)])}, 2)
    np.testing.assert_array_equal(
        one.history()["bits"], [[0, large / N, 2 * large / N], [0.5, 2, 4.5]]
    )


def test_what_is_kept_for_later_is_all_and_goes_on():
    one = log()
    one.extend(piece([5.0, 4.0], clock=np.array([[0.0, 0.0], [2.0, 0.5]], np.float32)), 3)
    again = log()
    again.resume(one.records())
    for each in (one, again):
        each.extend(piece([3.0], clock=np.array([[4.0, 0.25]], np.float32)), 6)
    assert again.steps == one.steps == [0, 3, 6]
    for name, values in one.history().items():
        np.testing.assert_array_equal(again.history()[name], values)
    np.testing.assert_array_equal(one.history()["clock"], [0.0, 1.5, 3.75])


@pytest.mark.parametrize(
    ("runs", "losses", "expected"),
    [
        (0, [[3.0, 2.0]], 2.0),
        (1, [[[3.0, 2.0], [5.0, 6.0]]], 4.0),  # the mean over seeds
        # of the best point that is finite
        (
            2,
            [[[[9.0, 3.0], [9.0, 5.0]], [[9.0, 1.0], [9.0, 9.0]], [[9.0, np.inf], [9.0, 0.0]]]],
            4.0,
        ),
        (1, [[[1.0, np.nan], [1.0, 2.0]]], np.nan),
    ],
)
def test_the_last_loss_is_the_mean_over_seeds_of_the_best_point(runs, losses, expected):
    one = log(runs=runs, record_every=1)
    values = np.array(losses[0], np.float32)
    one.extend(
        {"loss": values, "bits": np.zeros((*values.shape, 4), np.uint32)}, values.shape[-1] - 1
    )
    np.testing.assert_equal(one.last_loss(), expected)


def test_the_last_loss_is_of_the_last_evaluation():
    one = log(record_every=1)
    one.extend(piece([5.0, 4.0, np.nan], evaluated=np.array([1, 1, 0], np.float32)), 2)
    assert one.last_loss() == 4.0
    one.extend(piece([np.nan, np.nan], evaluated=np.zeros(2, np.float32)), 4)
    assert one.last_loss() == 4.0
    one.check("a method", lambda at_start: "")
    history = one.history()
    assert history["evaluated"].dtype == bool
    found = evaluated(history)
    np.testing.assert_array_equal(found["step"], [0, 1])
    np.testing.assert_array_equal(found["loss"], [5.0, 4.0])
    plain = {"step": np.arange(2), "loss": np.ones(2)}
    assert evaluated(plain) is plain


def test_evaluated_records_of_several_runs_and_workers():
    """The axis of records is the last but for one of workers."""
    mask = np.array([True, False, True])
    history = {
        "step": np.arange(3),
        "loss": np.arange(6.0).reshape(2, 3),
        "samples": np.arange(12.0).reshape(2, 3, 2),
        "evaluated": np.broadcast_to(mask, (2, 3)),
    }
    found = evaluated(history)
    for name in ("loss", "samples"):
        np.testing.assert_array_equal(found[name], history[name][:, mask])
    np.testing.assert_array_equal(found["step"], [0, 2])


def diverged(
    one: Log, name: str = "a method", reason: str = ""
) -> tuple[str, dict[str, np.ndarray], list[bool]]:
    asked = []

    def suspects(record, first, run):
        asked.append(first == 0)
        return reason

    with pytest.raises(Diverged) as error:
        one.check(name, suspects)
    return str(error.value), error.value.history, asked


def test_the_first_record_that_is_not_finite_is_reported_with_its_round():
    one = log()
    one.extend(piece([5.0, 4.0, 3.0]), 6)
    one.check("a method", lambda at_start: "never asked")
    one.extend(piece([np.inf, np.nan]), 12)
    words, history, asked = diverged(one)
    assert words.startswith(
        "a method: the loss is inf after round 9 (finite after 6); try a smaller step size (the "
        "error's attribute `history`"
    )
    assert asked == [False]
    np.testing.assert_array_equal(history["step"], [0, 3, 6, 9])
    np.testing.assert_array_equal(history["loss"], [5, 4, 3, np.inf])
    words, _, _ = diverged(one, "a method(allow_any)")
    assert "try a smaller step size, or a method without allow_any (" in words
    words, _, _ = diverged(one, reason="batch 3 is not finite")
    assert ": batch 3 is not finite; expected finite numbers" in words


def test_a_start_that_is_not_finite_and_a_record_each_round():
    one = log(record_every=1)
    one.extend(piece([np.nan, 1.0]), 1)
    words, history, asked = diverged(one)
    assert "the loss is nan after round 0; try" in words
    assert asked == [True]
    assert len(history["loss"]) == 1
    one = log(record_every=1)
    one.extend(piece([1.0, np.nan]), 1)
    assert "the loss is nan after round 1; try" in diverged(one)[0]


def test_of_seeds_the_one_that_diverges_first_is_reported():
    one = log(runs=1, record_every=2)
    one.extend(piece([[1.0, 2.0, np.inf], [1.0, np.nan, np.nan]]), 4)
    words, history, _ = diverged(one)
    assert "the loss of seed 1 is nan after round 2 (finite after 0)" in words
    np.testing.assert_array_equal(history["loss"], [[1.0, 2.0], [1.0, np.nan]])


def test_only_evaluated_records_are_looked_at():
    one = log(record_every=1)
    one.extend(
        piece(
            [1.0, np.nan, np.nan, np.inf, np.nan], evaluated=np.array([1, 0, 0, 1, 0], np.float32)
        ),
        4,
    )
    words, history, _ = diverged(one)
    assert "the loss is inf after round 3 (finite after 0)" in words
    assert len(history["step"]) == 4


@pytest.mark.parametrize(
    ("before", "clock", "wrong"),
    [
        ([0.0, 1.0], [1.0, 2.0], False),
        ([0.0, 1.0], [0.5, 2.0], True),  # back from one chunk to the next
        ([0.0, 1.0], [2.0, 1.5], True),
        ([0.0, 1.0], [2.0, np.inf], True),
        ([0.0, 1.0], [2.0, np.nan], True),
        ([1.0, 0.5], [2.0, 2.0], True),
    ],
)
def test_a_clock_that_goes_back_or_is_not_finite_is_refused(before, clock, wrong):
    def seconds(values):
        return np.stack([np.array(values, np.float32), np.zeros(2, np.float32)], axis=-1)

    def written():
        one = log(record_every=1)
        one.extend(piece([1.0, 1.0], clock=seconds(before)), 1)
        one.extend(piece([1.0, 1.0], clock=seconds(clock)), 3)

    if wrong:
        with pytest.raises(
            ValueError,
            match=r"the cluster's clock is not finite or decreases, at (inf|nan|\S+ to \d\S*) s by round [13]",
        ):
            written()
    else:
        written()
