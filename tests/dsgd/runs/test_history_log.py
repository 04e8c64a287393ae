"""The log of a run, chunk by chunk, with constructed records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd.engine import columns
from dsgd.runs.history import Diverged, Log
from dsgd.wire import counts

N = 2


def bits(*numbers: int) -> np.ndarray:
    """Returns totals of these bits up in each record, and nothing else."""
    return counts.table([each for up in numbers for each in (up, 0, 0, 0)]).reshape(-1, 4, 4)


def log(*pieces: tuple[dict[str, np.ndarray], int], **options: int) -> Log:
    """Returns the log of one run with a record every 3 rounds, unless the options differ, and
    pieces with their last rounds.
    """
    one = Log(N=N, **{"runs": 0, "record_every": 3, "first": 0, **options})
    for piece, last in pieces:
        one.extend(piece, last)
    return one


def piece(loss: Any, **more: Any) -> dict[str, np.ndarray]:
    """Returns records with these losses, of 10 bits each."""
    loss = np.array(loss, np.float32)
    return {
        "loss": loss,
        columns.TOTALS: np.broadcast_to(bits(10)[0], (*loss.shape, 4, 4)).copy(),
        **more,
    }


OF_SEEDS = [[1.0, 2.0, np.inf], [1.0, np.nan, np.nan]]
SOME_EVALUATED = piece(
    [1.0, np.nan, np.nan, np.inf, np.nan], evaluated=np.array([1, 0, 0, 1, 0], np.float32)
)
FIRST = log((piece([5.0, np.inf]), 3))
DIVERGED = [
    # the log; the method, and the message about the data; words; kept records
    (
        log((piece([5.0, 4.0, 3.0]), 6), (piece([np.inf, np.nan]), 12)),
        ("mine", ""),
        "mine: the loss is inf after round 9 (finite after 6); try a smaller step size (",
        4,
    ),
    (FIRST, ("a(allow_any)", ""), "a smaller step size, or a method without allow_any (", 2),
    (FIRST, ("mine", "batch 3 is not finite"), ": batch 3 is not finite; expected finite", 2),
    (log((piece([np.nan, 1.0]), 1), record_every=1), ("mine", ""), "after round 0; try", 1),
    (log((piece([1.0, np.nan]), 1), record_every=1), ("mine", ""), "after round 1; try", 2),
    (
        log((piece(OF_SEEDS), 4), runs=1, record_every=2),
        ("mine", ""),
        "the loss of seed 1 is nan after round 2 (finite after 0)",
        2,
    ),
    (
        log((SOME_EVALUATED, 4), record_every=1),
        ("mine", ""),
        "the loss is inf after round 3 (finite after 0)",
        4,
    ),
]


@pytest.mark.parametrize(("one", "given", "words", "records"), DIVERGED)
def test_the_first_record_that_is_not_finite_is_reported_with_its_round(one, given, words, records):
    """The data are examined once, at the start if its own record is not finite."""
    (name, reason), asked = given, []

    def diagnose(record, first, run):
        asked.append(first == 0)
        return reason

    with pytest.raises(Diverged) as error:
        one.check(name, diagnose)
    assert words in str(error.value)
    assert asked == [records == 1]
    assert error.value.history["loss"].shape[-1] == len(error.value.history["step"]) == records


@pytest.mark.parametrize(
    ("before", "clock", "wrong"),
    [
        ([0.0, 1.0], [1.0, 2.0], False),
        ([0.0, 1.0], [0.5, 2.0], True),  # it decreases between two chunks
        ([0.0, 1.0], [2.0, 1.5], True),
        ([0.0, 1.0], [2.0, np.inf], True),
        ([0.0, 1.0], [2.0, np.nan], True),
        ([1.0, 0.5], [2.0, 2.0], True),
    ],
)
def test_a_clock_that_goes_back_or_is_not_finite_is_refused(before, clock, wrong):
    pieces = [
        (piece([1.0, 1.0], clock=np.stack([np.float32(seconds), np.zeros(2)], axis=-1)), last)
        for seconds, last in ((before, 1), (clock, 3))
    ]
    if not wrong:
        log(*pieces, record_every=1)
        return
    with pytest.raises(ValueError, match=r"clock is not finite or decreases, .* by round [13]"):
        log(*pieces, record_every=1)
