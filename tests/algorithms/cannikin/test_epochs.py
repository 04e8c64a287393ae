"""The loop of epochs, with rounds that follow a script: the arguments of the system and of the
training, and the records.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from algorithms.cannikin import NoiseScale, epochs, gradient_noise_scale, policies, smoothed
from dsgd import Problem, Sampler

N, B = 4, 8
RNG = np.random.default_rng(0)
UNSEEN = NoiseScale(0.0, 0.0, 0.0)


def problem(samples: int | None = 30) -> Problem:
    """Of which only the sizes are looked at."""

    def never(*given):
        raise AssertionError("rounds follow a script")

    return Problem(
        init=never,
        loss=never,
        data=np.zeros((N, 1)),
        sample=Sampler(never, batch_size=B, samples=samples, take=never),
    )


def plan(
    system: policies.System,
    *,
    limits: Any = None,
    samples: int | None = 100,
    holder: Any = None,
    **more: Any,
) -> epochs.Plan:
    given = {
        "epochs": 3,
        "micro_batches": 2,
        "scaling": lambda *_: 1.0,
        "initial_batch": None,
        "smoothing": 0.3,
        **more,
    }
    return epochs.make_plan(
        "train", holder or problem(), system, 0.25, samples=samples, limits=limits, **given
    )


def scripted(decisions: list[list[int]]) -> tuple[policies.System, list[Any]]:
    """A system with these decisions, and the list of the calls that it received."""
    calls: list[Any] = []
    left = iter(decisions)

    def note(what, value):
        calls.append((what, value))
        return len(calls)

    return (
        policies.System(
            start=lambda cluster: note("start", cluster),
            decide=lambda memory: (np.array(next(left)), memory),
            observe=lambda memory, seen: note("observe", seen),
            resize=lambda memory, stay, joined, limits: note(
                "resize", (stay.tolist(), joined, limits.tolist())
            ),
            name="a script",
        ),
        calls,
    )


class Rounds:
    """Random measurements of each epoch, which are kept."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], float, int]] = []
        self.ran: list[epochs.Ran] = []

    def __call__(self, sizes: np.ndarray, factor: float, rounds: int) -> epochs.Ran:
        self.asked.append((sizes.tolist(), factor, rounds))
        times = [RNG.random((rounds, N)) for _ in range(5)]
        self.ran.append(
            epochs.Ran(float(rounds), *times, RNG.random(rounds), {"loss": float(len(self.ran))})
        )
        return self.ran[-1]


def test_an_epoch_has_as_many_rounds_as_its_samples_need_and_two_at_least():
    system, _ = scripted([[10, 10, 5, 0], [10, 10, 5, 1], [16, 16, 16, 16]])
    rounds = Rounds()
    found = epochs.follow(plan(system), rounds)
    assert [asked[2] for asked in rounds.asked] == [4, 4, 2]
    assert [epoch.rounds for epoch in found] == [4, 4, 2]
    assert [epoch.seconds for epoch in found] == [4.0, 4.0, 2.0]
    assert [epoch.total for epoch in found] == [25, 26, 64]
    assert [epoch.batch_time for epoch in found] == [1.0] * 3
    assert [epoch.scalars["loss"] for epoch in found] == [0.0, 1.0, 2.0]
    np.testing.assert_array_equal(epochs.Training(found, (), ()).clock(), [4.0, 8.0, 10.0])


def test_noise_is_the_mean_of_an_epoch_and_smoothed_over_all():
    """An epoch in which one node has all samples gives no estimate and leaves the averages as they
    are.
    """
    decisions = [[10, 10, 5, 0], [12, 0, 0, 0], [0, 8, 0, 4]]
    system, calls = scripted(decisions)
    rounds = Rounds()
    found = epochs.follow(plan(system), rounds)
    expected, seen = UNSEEN, [value.noise for what, value in calls if what == "observe"]
    for i, sizes in enumerate(decisions):
        there = np.array(sizes) > 0
        if there.sum() > 1:
            ran = rounds.ran[i]
            each = gradient_noise_scale(
                ran.local_sqnorms[:, there], ran.global_sqnorm, np.array(sizes)[there]
            )
            expected = smoothed(expected, NoiseScale(each.noise.mean(), each.sqnorm.mean()), 0.3)
        np.testing.assert_allclose(seen[i], expected)
        assert found[i].noise_scale == pytest.approx(expected.samples)
    assert seen[2].seen == pytest.approx(1 + 0.7)


@pytest.mark.parametrize(("initial", "first"), [(None, 25), (7, 7)])
def test_steps_are_scaled_by_the_noise_before_the_epoch_and_the_first_batch(initial, first):
    asked = []

    def scaling(noise, total, initial_batch):
        asked.append((noise.seen, total, initial_batch))
        return 1.0 + len(asked)

    system, _ = scripted([[10, 10, 5, 0], [10, 10, 10, 10], [1, 1, 1, 1]])
    rounds = Rounds()
    found = epochs.follow(plan(system, scaling=scaling, initial_batch=initial), rounds)
    assert asked == [(0, 25, first), (1.0, 40, first), (pytest.approx(1.7), 4, first)]
    assert (
        [asked[1] for asked in rounds.asked] == [epoch.factor for epoch in found] == [2.0, 3.0, 4.0]
    )


def test_the_system_receives_the_nodes_that_participate_and_their_measurements():
    """Those of the last epoch first; those that join behind them."""
    there = [[0, 2], [0, 2], [2, 3, 1]]
    system, calls = scripted([[5, 6], [7, 8], [1, 2, 3]])
    rounds = Rounds()
    present = [np.isin(np.arange(N), each) for each in ([0, 2], [2, 0], [1, 2, 3])]
    found = epochs.follow(
        plan(system, limits=[16, 15, 14, 13], present=lambda epoch: present[epoch]), rounds
    )
    assert [asked[0] for asked in rounds.asked] == [[5, 0, 6, 0], [7, 0, 8, 0], [0, 2, 1, 3]]
    words = [what for what, _ in calls]
    assert words == ["start", "observe", "observe", "resize", "observe"]
    start = calls[0][1]
    assert (start.nodes, start.last_share, start.limits.tolist()) == (2, 0.25, [16, 14])
    stay, joined, limits = calls[3][1]
    assert (stay, joined) == ([1], 2)
    assert limits == [14, 15, 13]
    order = [2, 1, 3]
    observed = [value for what, value in calls if what == "observe"]
    for i, ids in enumerate((there[0], there[1], order)):
        for name in ("compute", "backward", "first", "communication"):
            np.testing.assert_array_equal(
                getattr(observed[i], name), getattr(rounds.ran[i], name)[:, ids], err_msg=name
            )
        np.testing.assert_array_equal(observed[i].batches, np.array(rounds.asked[i][0])[ids])
    assert [epoch.batches.tolist() for epoch in found] == [asked[0] for asked in rounds.asked]


def test_training_ends_when_until_returns_true():
    system, _ = scripted([[4, 4, 4, 4]] * 3)
    assert len(epochs.follow(plan(system), Rounds())) == 3
    system, _ = scripted([[4, 4, 4, 4]] * 3)
    assert len(epochs.follow(plan(system, until=lambda found: len(found) == 2), Rounds())) == 2


def test_lengths_and_room_that_are_not_given():
    """All samples of the largest worker, of N of them, or a batch each; memory for M batches, or
    less.
    """
    system, _ = scripted([])
    assert plan(system, samples=None).samples == N * 30
    assert plan(system, samples=None, holder=problem(None)).samples == N * B
    np.testing.assert_array_equal(plan(system).room, [2 * B] * N)
    np.testing.assert_array_equal(plan(system, limits=[3, 16, 17, 0]).room, [3, 16, 16, 0])
    assert plan(system, initial_batch=5).initial_batch == 5


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (
            [16, 17, 16, 16],
            r"batches array\(\[16, 17, 16, 16\]\); expected integers, one for each node, from 0 to "
            r"\[16, 16, 16, 16\]",
        ),
        ([-1, 4, 4, 4], "expected integers"),
        ([1.0, 4.0, 4.0, 4.0], "expected integers"),
        ([4, 4, 4], "expected integers"),
        ([0, 0, 0, 0], "returned batches of 0 samples in total"),
    ],
)
def test_batches_that_do_not_fit_are_refused(decision, words):
    system, _ = scripted([decision])
    with pytest.raises(ValueError, match=words):
        epochs.follow(plan(system), Rounds())
    system, _ = scripted([[16, 0, 16, 16]] * 3)
    assert len(epochs.follow(plan(system), Rounds())) == 3
