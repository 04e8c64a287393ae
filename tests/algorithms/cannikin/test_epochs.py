"""The loop of epochs with scripted rounds: the arguments of the system and of the training, and the
records. Real rounds are tested in test_training.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from algorithms.cannikin import epochs, policies
from dsgd import Problem, Sampler

N, B = 4, 8
RNG = np.random.default_rng(0)
TIMES = ("compute", "backward", "first", "communication")


def never(*given):
    raise AssertionError("rounds follow a script")


def plan(system: policies.System, each: int | None = 30, **options: Any) -> epochs.Plan:
    """Returns a plan for a problem of which only the sizes are used, with the given number of
    samples per worker.
    """
    sampler = Sampler(never, batch_size=B, local_samples=each and (each,) * N, truncate=never)
    given = {
        "epochs": 3,
        "micro_batches": 2,
        "samples": 100,
        "limits": None,
        "scaling": lambda *_: 1.0,
        "initial_batch": None,
        "smoothing": 0.3,
    }
    problem = Problem(never, never, np.zeros((N, 1)), sampler)
    return epochs.make_plan("train", problem, system, 0.25, **given | options)


def script(decisions: list[list[int]]) -> tuple[policies.System, list[Any]]:
    """Returns a system with these decisions, and the list of calls that it received."""
    calls: list[Any] = []
    left = iter(decisions)
    system = policies.System(
        start=lambda *given: calls.append(given),
        decide=lambda memory: (np.array(next(left)), memory),
        observe=lambda memory, seen: calls.append(seen),
        resize=lambda memory, *given: calls.append(given),
        name="a script",
    )
    return system, calls


class Rounds:
    """Random measurements of each epoch, which are stored."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.ran: list[epochs.EpochMeasurements] = []

    def __call__(self, sizes: np.ndarray, factor: float, rounds: int) -> epochs.EpochMeasurements:
        self.asked.append((sizes.tolist(), factor, rounds))
        times = [RNG.random((rounds, N)) for _ in range(5)]
        self.ran.append(
            epochs.EpochMeasurements(
                float(rounds), *times, RNG.random(rounds), {"loss": float(len(self.ran))}
            )
        )
        return self.ran[-1]


@pytest.mark.parametrize(("initial", "first"), [(None, 25), (7, 7)])
def test_an_epoch_has_the_rounds_of_its_samples_and_its_own_step_size(initial, first):
    """An epoch has at least two rounds; its step is scaled by the noise estimate before it. An
    epoch in which one node has all samples gives no estimate, and leaves the averages unchanged.
    """
    scaled: list[Any] = []

    def scaling(noise, *batches):
        scaled.append((pytest.approx(noise.seen), *batches))
        return 1.0 + len(scaled)

    system, _ = script([[10, 10, 5, 0], [10, 0, 0, 0], [16, 16, 16, 16], [10, 10, 5, 1]])
    rounds = Rounds()
    found = epochs.run_epochs(
        plan(system, scaling=scaling, initial_batch=initial, epochs=4), rounds
    )
    assert scaled == [(0, 25, first), (1.0, 10, first), (1.0, 64, first), (1.7, 26, first)]
    assert [asked[1:] for asked in rounds.asked] == [(2.0, 4), (3.0, 10), (4.0, 2), (5.0, 4)]
    assert [epoch.factor for epoch in found] == [2.0, 3.0, 4.0, 5.0]
    assert [epoch.seconds for epoch in found] == [epoch.rounds for epoch in found] == [4, 10, 2, 4]
    assert [epoch.batch_time for epoch in found] == [1.0] * 4
    assert [epoch.scalars["loss"] for epoch in found] == [0.0, 1.0, 2.0, 3.0]
    np.testing.assert_array_equal(epochs.Training(found, (), ()).clock(), [4.0, 14.0, 16.0, 20.0])


def test_the_system_receives_the_nodes_that_participate_and_their_measurements():
    """The first measurements are those of the last epoch; nodes that join are appended."""
    system, calls = script([[5, 6], [7, 8], [1, 2, 3]])
    rounds, present = Rounds(), [[0, 2], [2, 0], [1, 2, 3]]
    found = epochs.run_epochs(
        plan(
            system,
            limits=[16, 15, 14, 13],
            present=lambda epoch: np.isin(np.arange(N), present[epoch]),
        ),
        rounds,
    )
    assert [asked[0] for asked in rounds.asked] == [[5, 0, 6, 0], [7, 0, 8, 0], [0, 2, 1, 3]]
    assert [epoch.batches.tolist() for epoch in found] == [asked[0] for asked in rounds.asked]
    (start,), *seen, (stay, joined, limits), last = calls
    assert (start.nodes, start.last_share, start.limits.tolist()) == (2, 0.25, [16, 14])
    assert (stay.tolist(), joined, limits.tolist()) == ([1], 2, [14, 15, 13])
    for ids, each, ran, asked in zip(
        ([0, 2], [0, 2], [2, 1, 3]), (*seen, last), rounds.ran, rounds.asked, strict=True
    ):
        for name in TIMES:
            np.testing.assert_array_equal(getattr(each, name), getattr(ran, name)[:, ids])
        np.testing.assert_array_equal(each.batches, np.array(asked[0])[ids])


def test_defaults_of_lengths_and_memory():
    """By default an epoch has all samples of the largest worker, of N workers, or one batch each;
    memory is for M batches, or fewer.
    """
    system, _ = script([])
    for each, length in ((30, N * 30), (None, N * B)):
        assert plan(system, each, samples=None).samples == length
    np.testing.assert_array_equal(plan(system).room, [2 * B] * N)
    np.testing.assert_array_equal(plan(system, limits=[3, 16, 17, 0]).room, [3, 16, 16, 0])


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        ([16, 17, 16, 16], r"integers, one for each node, from 0 to \[16, 16, 16, 16\]"),
        ([-1, 4, 4, 4], "expected integers"),
        ([1.0, 4.0, 4.0, 4.0], "expected integers"),
        ([4, 4, 4], "expected integers"),
        ([0, 0, 0, 0], "batches of 0 samples in total"),
    ],
)
def test_batches_that_do_not_fit_are_refused(decision, words):
    with pytest.raises(ValueError, match=words):
        epochs.run_epochs(plan(script([decision])[0]), Rounds())
