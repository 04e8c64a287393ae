"""Who decides what, from observations that are made up here: each system beside what is computed by
hand; a total batch in whole parts.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import cannikin
from algorithms.cannikin import policies, scalings
from algorithms.cannikin.candidates import Candidates

MODEL = cannikin.ClusterModel(
    [0.01, 0.02, 0.05],
    [0.1, 0.2, 0.3],
    [0.02, 0.05, 0.08],
    [0.05, 0.2, 0.1],
    0.25,
    0.6,
    0.2,
    [40, 40, 40],
)
ROOM = np.array([40, 40, 40])
NOISE = cannikin.NoiseScale(1500.0, 3.0)  # 500 samples


def observation(
    batches: np.ndarray, model: cannikin.ClusterModel = MODEL, noise: cannikin.NoiseScale = NOISE
) -> policies.Observation:
    """Of two rounds, without errors."""
    b = np.asarray(batches)
    P = np.asarray(model.k) * b + model.m
    a = np.asarray(model.q) * b + model.s
    T_comm = np.full(len(b), model.t_overlap + model.t_last)
    compute, backward, first, communication = (
        np.stack([each, each]) for each in (a + P, P, model.gamma * P, T_comm)
    )
    return policies.Observation(b, compute, backward, first, communication, noise)


def epochs(
    system: cannikin.System, number: int, model: cannikin.ClusterModel = MODEL, limits: Any = ROOM
) -> tuple[list[np.ndarray], Any]:
    """What it decides on a cluster without noise, epoch by epoch, and what it remembers."""
    memory, found = system.start(policies.Cluster(model.nodes, 0.25, np.asarray(limits))), []
    for _ in range(number):
        batches, memory = system.decide(memory)
        memory = system.observe(memory, observation(batches, model))
        found.append(batches)
    return found, memory


# --- LB-BSP.


def test_lb_bsp_goes_on_where_two_are_equally_slow():
    """One change helps one of them: it takes two for a shorter time. Nobody is slower than others
    then.
    """
    nothing = np.zeros(3)
    model = cannikin.ClusterModel([0.1, 0.2, 0.2], nothing, nothing, nothing, 0.0, 0.0, 0.0)
    found, _ = epochs(cannikin.lb_bsp(60), 5, model)
    assert [each.tolist() for each in found] == [[20, 20, 20], [25, 15, 20], *3 * [[30, 15, 15]]]


def after(
    batches: list[int],
    limits: list[int],
    seconds: Any,
    *,
    before: float = np.inf,
    step: int = 5,
    going: bool = True,
) -> tuple[list[int], policies._Tuned]:
    """What LB-BSP decides next, where nodes took these seconds, `[n]` or `[rounds, n]`, and the
    slowest so many in the epoch before.
    """
    system, b = cannikin.lb_bsp(sum(batches), step), np.array(batches)
    memory = policies._Tuned(
        policies.Cluster(len(b), 0.1, np.array(limits)), b, b - 100, before, going
    )
    times = np.atleast_2d(np.array(seconds, float))
    memory = system.observe(
        memory, policies.Observation(b, times, *[np.zeros(times.shape)] * 3, NOISE)
    )
    return system.decide(memory)[0].tolist(), memory


@pytest.mark.parametrize(
    ("batches", "limits", "seconds", "expected"),
    [
        ([20, 20, 20], [40, 40, 40], [1.0, 2.0, 3.0], [25, 20, 15]),
        # the fastest is at its limit: the next one
        ([20, 20, 20], [20, 40, 40], [1.0, 2.0, 3.0], [20, 25, 15]),
        ([20, 20, 20], [22, 40, 40], [1.0, 2.0, 3.0], [22, 20, 18]),  # it has room for two
        ([20, 20, 20], [19, 40, 40], [1.0, 2.0, 3.0], [20, 25, 15]),
        ([20, 38, 20], [20, 40, 40], [1.0, 2.0, 3.0], [20, 40, 18]),
        ([20, 20, 20], [20, 20, 40], [1.0, 2.0, 3.0], [20, 20, 20]),  # only the slowest has room
        ([20, 20, 20], [20, 20, 20], [1.0, 2.0, 3.0], [20, 20, 20]),
        ([57, 0, 3], [90, 90, 90], [1.0, 0.0, 3.0], [57, 3, 0]),  # the slowest has three
        ([20, 20, 20], [40, 40, 40], [2.0, 2.0, 2.0], [20, 20, 20]),
    ],
)
def test_lb_bsp_moves_samples_from_the_slowest_to_the_fastest_with_room(
    batches, limits, seconds, expected
):
    found, memory = after(batches, limits, seconds)
    assert found == expected
    assert memory.going
    assert memory.seconds == max(seconds)
    np.testing.assert_array_equal(memory.before, batches)


def test_lb_bsp_takes_the_last_change_back_only_if_the_slowest_became_slower():
    for seconds, going in (([1.0, 2.5], True), ([1.0, 2.6], False)):
        found, memory = after([20, 20], [40, 40], seconds, before=2.5)
        assert memory.going is going
        assert found == ([25, 15] if going else [-80, -80])
    assert after([20, 20], [40, 40], [9.0, 1.0], going=False)[0] == [20, 20]


def test_lb_bsp_s_seconds_are_means_over_rounds_in_which_something_was_measured():
    found, memory = after(
        [10, 10, 10], [40] * 3, [[3.0, 1.0, np.nan], [1.0, np.nan, np.nan], [2.0, 4.0, np.nan]]
    )
    assert memory.seconds == 2.5
    assert found == [10, 5, 15], "a node without measurements counts as 0 seconds"


# --- Goodput.


def test_goodput_is_throughput_times_efficiency():
    """Pollux, equation 7, in plain numbers."""
    assert cannikin.efficiency(100, 50.0, 25) == pytest.approx(75 / 150)
    assert cannikin.efficiency(25, 50.0, 25) == 1
    assert cannikin.efficiency(1000, np.inf, 25) == 1
    assert cannikin.efficiency(1000, 0.0, 25) == pytest.approx(1 / 40)
    totals, seconds = np.array([[25, 50], [100, 400]]), np.array([[1.0, 1.5], [2.0, 6.0]])
    expected = [[25 * 1, 50 / 1.5 * 75 / 100], [50 * 75 / 150, 400 / 6 * 75 / 450]]
    np.testing.assert_allclose(cannikin.goodput(seconds, totals, 50.0, 25), expected)


def test_the_noise_scale_in_samples():
    """What is negative of the noise counts as 0; where no gradient is seen it is infinite."""
    for noise, sqnorm, samples in (
        (0.125, 2.0, 0.0625),
        (-1.0, 2.0, 0.0),
        (1.0, 0.0, np.inf),
        (1.0, -1.0, np.inf),
        (-1.0, -1.0, np.inf),
    ):
        assert cannikin.NoiseScale(noise, sqnorm).samples == samples


def by_hand(totals: np.ndarray, seconds: list[float], phi: float, first: int) -> int:
    return int(
        totals[
            np.argmax(
                [B / T * (phi + first) / (phi + B) for B, T in zip(totals, seconds, strict=True)]
            )
        ]
    )


def test_adaptdl_s_total_batch_is_that_of_the_largest_goodput_at_equal_parts():
    totals = np.array([30, 60, 75, 90, 120])
    found, _ = epochs(cannikin.adaptdl(totals, 30), 4)
    equal = [
        max(
            0.03 * b + 0.35,
            0.07 * b + 0.6,
            0.13 * b + 0.6,
            0.015 * b + 0.9125,
            0.0325 * b + 1.05,
            0.07 * b + 1.125,
        )
        for b in totals / 3
    ]
    best = by_hand(totals, equal, 500, 30)
    assert [each.tolist() for each in found] == [[10, 10, 10], [20, 20, 20], *2 * [[best // 3] * 3]]
    assert best == 90


def test_cannikin_s_is_that_at_optperf():
    totals = np.array([30, 60, 75, 90, 120])
    found, memory = epochs(cannikin.cannikin(totals), 5)
    best = by_hand(totals, [MODEL.optperf(B).seconds for B in totals], 500, 30)
    assert [batches.sum() for batches in found] == [30, 30, best, best, best]
    assert best == 60
    np.testing.assert_array_equal(found[0], [10, 10, 10])
    assert (found[1] != found[0]).all()
    for batches in found[2:]:
        assert MODEL.batch_time(batches) == pytest.approx(
            MODEL.optperf_integer(best).seconds, rel=1e-9
        )
    # Where no gradient is seen in the noise, what counts is throughput; with no noise, the first
    # batch is all that is needed.
    for noise, total in (
        (
            cannikin.NoiseScale(1.0, -1.0),
            by_hand(totals, [MODEL.optperf(B).seconds for B in totals], 1e12, 30),
        ),
        (cannikin.NoiseScale(-1.0, 1.0), 30),
    ):
        known = cannikin.cannikin(totals).observe(memory, observation(found[-1], noise=noise))
        assert cannikin.cannikin(totals).decide(known)[0].sum() == total


def test_adaptdl_learns_from_two_sizes_of_every_node():
    """Of 31 samples, one node has 11: of 32, two; that is not yet another size of all three."""
    found, memory = epochs(cannikin.adaptdl([31, 32, 34], 31), 2)
    assert [batches.tolist() for batches in found] == [[11, 10, 10], [12, 11, 11]]
    assert memory.learner.model() is not None
    alone, memory = epochs(cannikin.adaptdl(30, 30), 3)
    assert [batches.tolist() for batches in alone] == [[10, 10, 10]] * 3
    assert memory.learner.model() is None


def test_nodes_that_join_are_learned_in_two_epochs_and_those_that_stay_are_known():
    q, s, k, m = (np.append(each, each[1]) for each in (MODEL.q, MODEL.s, MODEL.k, MODEL.m))
    more = cannikin.ClusterModel(q, s, k, m, 0.25, 0.6, 0.2, [40] * 4)
    for system in (cannikin.cannikin([30, 60], 30), cannikin.adaptdl([30, 60], 30)):
        _, memory = epochs(system, 3)
        memory, totals = system.resize(memory, np.arange(3), 1, np.full(4, 40)), []
        for _ in range(3):
            assert len(totals) == 2 or memory.learner.model() is None
            batches, memory = system.decide(memory)
            memory = system.observe(memory, observation(batches, more))
            totals.append(batches.sum())
        np.testing.assert_allclose(memory.learner.model().q, more.q, rtol=1e-6)
        assert totals[0] == 30, "the first batch, as at the start"
        memory = system.resize(memory, np.array([0, 2]), 0, np.array([40, 40]))
        batches, memory = system.decide(memory)
        np.testing.assert_allclose(memory.learner.model().k, [0.02, 0.08], rtol=1e-6)
        assert (len(batches), memory.candidates.patterns.shape) == (2, (2, 2))


def test_where_all_nodes_are_others_everything_is_learned_anew():
    for system in (
        cannikin.cannikin([30, 60], 30),
        cannikin.adaptdl([30, 60], 30),
        cannikin.lb_bsp(30),
        cannikin.equal_split(30),
    ):
        _, memory = epochs(system, 3)
        memory = system.resize(memory, np.arange(0), 2, np.array([40, 40]))
        batches, memory = system.decide(memory)
        np.testing.assert_array_equal(batches, [15, 15])
    system = cannikin.cannikin([30, 60], 30)
    _, memory = epochs(system, 3)
    after = system.resize(memory, np.arange(0), 2, np.array([40, 40]))
    assert after.learner.model() is None
    assert after.noise == memory.noise  # the gradient's is that of the model, whoever computes it


@pytest.mark.parametrize(
    ("first", "seen", "total"),
    [
        (12, [4, 4, 4], 12),
        (6, [2, 2, 2], 30),
        (5, [2, 2, 1], 30),
        (3, [1, 1, 1], 30),
        (2, [0, 2, 0], 30),
        (5, [1, 1, 3], 30),
    ],
)
def test_a_larger_total_is_taken_where_a_node_would_have_its_only_size_again_or_none(
    first, seen, total
):
    """Then every node has a new size and at least one sample."""
    system = cannikin.cannikin([first, 30, 60], first)
    memory = system.start(policies.Cluster(3, 0.25, ROOM))
    b = np.array(seen)
    times = observation(b)
    nothing = [
        np.where(b > 0, each, np.nan) for each in (times.compute, times.backward, times.first)
    ]
    memory = system.observe(
        memory, times._replace(compute=nothing[0], backward=nothing[1], first=nothing[2])
    )
    batches, _ = system.decide(memory)
    assert batches.sum() == total
    assert (batches > 0).all()
    assert (batches != b).all()


def test_candidates_that_memory_does_not_allow_are_left_out():
    start = policies.Cluster(3, 0.25, np.array([40, 20, 10]))
    assert cannikin.cannikin([30, 60, 71]).start(start).candidates.totals.tolist() == [30, 60]
    assert cannikin.adaptdl([30, 31, 60], 30).start(start).candidates.totals.tolist() == [30]
    with pytest.raises(
        ValueError,
        match=(
            "AdaptDL: total batches of 31 samples or more, but the nodes have memory for 30; "
            "expected"
        ),
    ):
        cannikin.adaptdl([31, 60], 30).start(start)


class Counted:
    """A cluster that writes down what it is asked."""

    nodes = 2

    def __init__(self, seconds: dict[int, float], longer: bool) -> None:
        self.seconds, self.longer, self.asked = seconds, longer, []

    def optperf(self, total_batch: Any) -> cannikin.OptPerf:
        self.asked.append(np.asarray(total_batch).tolist())
        batches = np.repeat(np.asarray(total_batch, float)[..., None] / 2, 2, axis=-1)
        return cannikin.OptPerf(np.vectorize(self.seconds.get)(total_batch), batches)

    def computes_longer(self, batches: Any) -> np.ndarray:
        return np.full(np.shape(batches), self.longer)


def test_candidates_are_known_until_bottlenecks_change():
    """Section 4.5: all in the first epoch, then the chosen one alone; and all again when its
    bottlenecks are not what they were.
    """
    first = Counted({10: 1.0, 20: 1.5, 40: 4.0}, False)
    best, known = Candidates(np.array([10, 20, 40])).chosen(first, 100.0, 10)
    assert (best, first.asked) == (20, [[10, 20, 40]])
    second = Counted({10: 1.0, 20: 1.8, 40: 1.0}, False)
    best, kept = known.chosen(second, 100.0, 10)
    assert (best, second.asked) == (20, [20])
    assert kept.seconds is not None
    assert known.seconds is not None
    # what the third one takes now, nobody has asked
    np.testing.assert_allclose(kept.seconds, [1.0, 1.8, 4.0])
    np.testing.assert_allclose(known.seconds, [1.0, 1.5, 4.0])
    third = Counted({10: 1.0, 20: 1.8, 40: 1.0}, True)
    best, anew = kept.chosen(third, 100.0, 10)
    assert (best, third.asked) == (40, [20, [10, 20, 40]])
    assert anew.seconds is not None
    assert anew.patterns is not None
    np.testing.assert_allclose(anew.seconds, [1.0, 1.8, 1.0])
    assert anew.patterns.all()
    more = Counted({10: 1.0, 20: 1.8, 40: 9.0}, True)
    more.nodes = 3  # another number of nodes
    assert (anew.chosen(more, 100.0, 10)[0], more.asked) == (20, [[10, 20, 40]])


# --- Step sizes.


def test_step_sizes_grow_as_one_step_brings_more():
    """tr Sigma = 1500, |G|^2 = 3."""
    assert cannikin.adascale(NOISE, 40, 10) == pytest.approx((150 + 3) / (37.5 + 3))
    assert cannikin.adascale(NOISE, 10, 10) == 1
    assert cannikin.adascale(cannikin.NoiseScale(600.0, -3.0), 40, 10) == 4  # all noise
    assert cannikin.adascale(cannikin.NoiseScale(-600.0, 3.0), 40, 10) == 1  # none
    assert cannikin.adascale(cannikin.NoiseScale(-1.0, -1.0), 40, 10) == 1
    assert cannikin.adascale(cannikin.NoiseScale(0.0, 0.0, 0.0), 40, 10) == 1
    assert (cannikin.square_root(NOISE, 40, 10), cannikin.constant(NOISE, 40, 10)) == (2, 1)


def test_steps_of_adam_are_scaled_not_its_gradients():
    scaled, adam, gradient = (
        cannikin.scalable(optax.adam(0.1)),
        optax.adam(0.1),
        jnp.array([3.0, -0.5]),
    )
    state = scalings.rescaled("mine", scaled.init(gradient), cannikin.square_root(NOISE, 40, 10))
    np.testing.assert_allclose(
        scaled.update(gradient, state)[0],
        2 * adam.update(gradient, adam.init(gradient))[0],
        rtol=1e-6,
    )


# --- Nodes with few samples, of which rounding may make the same sizes again.


def followed(total: Any, model: cannikin.ClusterModel, epochs: int) -> list[np.ndarray]:
    """What Cannikin decides on nodes that measure nothing of an epoch in which they have no
    samples.
    """
    limits = (
        np.full(model.nodes, 100) if model.limits is None else np.asarray(model.limits).astype(int)
    )
    system, sizes = cannikin.cannikin(total), []
    memory = system.start(
        policies.Cluster(model.nodes, model.t_last / (model.t_overlap + model.t_last), limits)
    )
    for _ in range(epochs):
        batches, memory = system.decide(memory)
        sizes.append(batches)
        seen = observation(batches, model)
        seen = seen._replace(
            **{
                name: np.where(batches > 0, getattr(seen, name), np.nan)
                for name in ("compute", "backward", "first")
            }
        )
        memory = system.observe(memory, seen)
    for batches in sizes[-2:]:
        assert model.batch_time(batches) == pytest.approx(
            model.optperf_integer(int(batches.sum())).seconds
        )
    return sizes


@pytest.mark.parametrize("total", [32, 33, 47, 48, 71])
def test_two_samples_a_node_are_enough_to_learn_all_nodes(total):
    n = 16
    model = cannikin.ClusterModel(
        np.linspace(1, 4, n), np.full(n, 0.5), np.linspace(2, 8, n), np.ones(n), 0.1, 20.0, 2.0
    )
    assert (np.sum(followed(total, model, 6), axis=1) == total).all()


@pytest.mark.parametrize(("first", "length"), [(2, 3), (4, 2), (5, 2)])
def test_with_a_sample_a_node_or_fewer_the_next_epochs_have_the_total_batch_that_tells(
    first, length
):
    """Of BERT the paper begins with 9 samples on 16 nodes."""
    model = cannikin.ClusterModel(
        [1.0, 2.0, 3.0, 4.0], np.ones(4), [2.0, 4.0, 6.0, 8.0], np.ones(4), 0.2, 5.0, 1.0
    )
    assert [batches.sum() for batches in followed([first, 40, 80], model, 5)[:length]] == [
        first,
        40,
        40,
    ][:length]


@pytest.mark.parametrize("limits", [[1, 50, 50, 50], [1, 50, 0, 50]])
def test_nodes_with_memory_for_one_sample_or_none_do_not_keep_the_others_from_being_learned(limits):
    """A node with memory for one is taken to compute in proportion, as it does here; one with none
    is never seen, and not waited for.
    """
    s, m = (
        np.array([0.0, 1.0, 1.0, 1.0]) * np.sign(limits),
        np.array([0.0, 1.0, 2.0, 1.0]) * np.sign(limits),
    )
    followed(
        40,
        cannikin.ClusterModel(
            [1.0, 2.0, 3.0, 4.0], s, [2.0, 4.0, 1.0, 8.0], m, 0.2, 5.0, 1.0, limits
        ),
        4,
    )


REFUSED = [
    (lambda: cannikin.lb_bsp(8, step=0), "cannikin.lb_bsp: step = 0"),
    (
        lambda: cannikin.adaptdl([], 8),
        r"cannikin.adaptdl: total_batches = \[\]; expected integers >= 1",
    ),
    (lambda: cannikin.cannikin(np.array([8.5])), "cannikin.cannikin: total_batches"),
    (lambda: cannikin.cannikin([8, 16], -1), "cannikin.cannikin: initial_batch = -1"),
    (
        lambda: cannikin.efficiency(0.5, 1.0, 8),
        "cannikin.efficiency: total_batch = 0.5; expected finite numbers >= 1",
    ),
    (lambda: cannikin.efficiency(8, np.nan, 8), "cannikin.efficiency: noise_scale = nan"),
    (
        lambda: cannikin.goodput(0.0, 8, 1.0, 8),
        "cannikin.goodput: seconds = 0.0; expected numbers > 0",
    ),
    (lambda: cannikin.adascale(NOISE, 0, 8), "adascale: total_batch = 0"),
]


def test_what_makes_no_sense_is_refused():
    for wrong, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            wrong()


def test_equal_parts_give_the_first_nodes_one_more():
    np.testing.assert_array_equal(policies.equal_parts(11, np.array([3, 3, 3, 2])), [3, 3, 3, 2])
    np.testing.assert_array_equal(policies.equal_parts(12, np.array([3, 3, 3, 3])), [3, 3, 3, 3])
    for limits in ([3, 3, 2, 3], [2, 3, 3, 3]):
        with pytest.raises(
            ValueError, match="but has memory for 2; expected a smaller total batch"
        ):
            policies.equal_parts(11, np.array(limits))


@pytest.mark.parametrize(
    ("real", "total", "limits", "expected"),
    [
        ([1.2, 2.7, 3.1], 7, [9, 9, 9], [1, 3, 3]),
        ([1.5, 2.5, 3.0], 7, [9, 9, 9], [2, 2, 3]),  # of equal remainders the first
        ([1.2, 2.7, 3.1], 7, [9, 2, 9], [2, 2, 3]),
        # more than one sample each, where others are full
        ([0.0, 0.0, 6.0], 6, [9, 1, 3], [2, 1, 3]),
        ([2.0, 2.0, 2.0], 6, [9, 9, 9], [2, 2, 2]),
    ],
)
def test_rests_go_to_the_largest_remainders_within_the_limits(real, total, limits, expected):
    np.testing.assert_array_equal(policies.whole(np.array(real), total, np.array(limits)), expected)


NEW = np.nan  # a node that was not seen, or at two sizes


@pytest.mark.parametrize(
    ("batches", "seen_at", "limits", "expected"),
    [
        ([4, 4], [4.0, 4.0], [9, 9], [5, 3]),
        ([4, 4], [4.0, 4.0], [4, 9], [3, 5]),  # the first has no room
        ([4, 4], [4.0, 4.0], [5, 9], [5, 3]),
        ([4, 1], [4.0, 1.0], [9, 9], [3, 2]),  # no node gives its last sample
        ([4, 2], [4.0, 2.0], [9, 9], [5, 1]),
        ([1, 1], [1.0, 1.0], [9, 9], [1, 1]),
        ([4, 4], [4.0, 4.0], [4, 4], [4, 4]),
        ([4, 5, 6, 7], [4.0, 5.0, 6.0, 7.0], [9] * 4, [5, 4, 7, 6]),
        ([4, 5, 6], [4.0, NEW, NEW], [9] * 3, [5, 5, 5]),  # one alone: the largest gives
        ([4, 6, 5], [4.0, NEW, NEW], [9] * 3, [5, 5, 5]),
        # not one that would come to its only size
        ([4, 6, 5], [4.0, 5.0, NEW], [9] * 3, [5, 6, 4]),
        ([4, 3, 2], [4.0, 2.0, NEW], [9] * 3, [4, 3, 2]),  # nor one that would have one sample left
        ([4, 3, 3], [4.0, 2.0, NEW], [9] * 3, [5, 3, 2]),
        ([4, 6], [4.0, NEW], [4, 9], [4, 6]),  # no room
        ([4, 5, 6, 9], [4.0, 5.0, 6.0, NEW], [20] * 4, [5, 4, 7, 8]),
        # one that has swapped may give once more
        ([4, 5, 6], [4.0, 5.0, 6.0], [20] * 3, [5, 3, 7]),
        ([5, 6], [4.0, NEW], [9, 9], [5, 6]),
    ],
)
def test_nodes_at_their_only_size_swap_a_sample(batches, seen_at, limits, expected):
    given = np.array(batches)
    np.testing.assert_array_equal(
        policies.unlike(given, np.array(seen_at), np.array(limits)), expected
    )
    np.testing.assert_array_equal(given, batches)
