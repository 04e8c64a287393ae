"""How samples move between nodes: LB-BSP's steps, whole parts, swaps, and the sizes from which something is learned, one decision each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from algorithms import cannikin
from algorithms.cannikin import parts, policies

NOISE = cannikin.NoiseScale(0.0, 0.0, 0.0)


def after(
    batches: list[int], limits: list[int], seconds: Any, *, before: float = np.inf, step: int = 5, going: bool = True
) -> tuple[list[int], policies._Tuned]:
    """What LB-BSP decides next, where nodes took these seconds, `[n]` or `[rounds, n]`, and the slowest so many in the epoch before."""
    system, b = cannikin.lb_bsp(sum(batches), step), np.array(batches)
    memory = policies._Tuned(policies.Cluster(len(b), 0.1, np.array(limits)), b, b - 100, before, going)
    times = np.atleast_2d(np.array(seconds, float))
    memory = system.observe(memory, policies.Observation(b, times, *[np.zeros(times.shape)] * 3, NOISE))
    return system.decide(memory)[0].tolist(), memory


@pytest.mark.parametrize(
    ("batches", "limits", "seconds", "expected"),
    [
        ([20, 20, 20], [40, 40, 40], [1.0, 2.0, 3.0], [25, 20, 15]),
        ([20, 20, 20], [20, 40, 40], [1.0, 2.0, 3.0], [20, 25, 15]),  # the fastest is at its limit: the next one
        ([20, 20, 20], [22, 40, 40], [1.0, 2.0, 3.0], [22, 20, 18]),  # it has room for two
        ([20, 20, 20], [19, 40, 40], [1.0, 2.0, 3.0], [20, 25, 15]),
        ([20, 38, 20], [20, 40, 40], [1.0, 2.0, 3.0], [20, 40, 18]),
        ([20, 20, 20], [20, 20, 40], [1.0, 2.0, 3.0], [20, 20, 20]),  # only the slowest has room
        ([20, 20, 20], [20, 20, 20], [1.0, 2.0, 3.0], [20, 20, 20]),
        ([57, 0, 3], [90, 90, 90], [1.0, 0.0, 3.0], [57, 3, 0]),  # the slowest has three
        ([20, 20, 20], [40, 40, 40], [2.0, 2.0, 2.0], [20, 20, 20]),
    ],
)
def test_lb_bsp_moves_samples_from_the_slowest_to_the_fastest_with_room(batches, limits, seconds, expected):
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
    found, memory = after([10, 10, 10], [40] * 3, [[3.0, 1.0, np.nan], [1.0, np.nan, np.nan], [2.0, 4.0, np.nan]])
    assert memory.seconds == 2.5
    assert found == [10, 5, 15], "who has measured nothing was not busy"


def test_equal_parts_give_the_first_nodes_one_more():
    np.testing.assert_array_equal(parts.equal_parts(11, np.array([3, 3, 3, 2])), [3, 3, 3, 2])
    np.testing.assert_array_equal(parts.equal_parts(12, np.array([3, 3, 3, 3])), [3, 3, 3, 3])
    for limits in ([3, 3, 2, 3], [2, 3, 3, 3]):
        with pytest.raises(ValueError, match="which has room for 2: need fewer"):
            parts.equal_parts(11, np.array(limits))


@pytest.mark.parametrize(
    ("real", "total", "limits", "expected"),
    [
        ([1.2, 2.7, 3.1], 7, [9, 9, 9], [1, 3, 3]),
        ([1.5, 2.5, 3.0], 7, [9, 9, 9], [2, 2, 3]),  # of equal remainders the first
        ([1.2, 2.7, 3.1], 7, [9, 2, 9], [2, 2, 3]),
        ([0.0, 0.0, 6.0], 6, [9, 1, 3], [2, 1, 3]),  # more than one sample each, where others are full
        ([2.0, 2.0, 2.0], 6, [9, 9, 9], [2, 2, 2]),
    ],
)
def test_rests_go_to_the_largest_remainders_within_the_limits(real, total, limits, expected):
    np.testing.assert_array_equal(parts.whole(np.array(real), total, np.array(limits)), expected)


NEW = np.nan  # a node that was not seen, or at two sizes


@pytest.mark.parametrize(
    ("batches", "seen_at", "limits", "expected"),
    [
        ([4, 4], [4.0, 4.0], [9, 9], [5, 3]),
        ([4, 4], [4.0, 4.0], [4, 9], [3, 5]),  # the first has no room
        ([4, 4], [4.0, 4.0], [5, 9], [5, 3]),
        ([4, 1], [4.0, 1.0], [9, 9], [3, 2]),  # nobody gives its last sample
        ([4, 2], [4.0, 2.0], [9, 9], [5, 1]),
        ([1, 1], [1.0, 1.0], [9, 9], [1, 1]),
        ([4, 4], [4.0, 4.0], [4, 4], [4, 4]),
        ([4, 5, 6, 7], [4.0, 5.0, 6.0, 7.0], [9] * 4, [5, 4, 7, 6]),
        ([4, 5, 6], [4.0, NEW, NEW], [9] * 3, [5, 5, 5]),  # one alone: the largest gives
        ([4, 6, 5], [4.0, NEW, NEW], [9] * 3, [5, 5, 5]),
        ([4, 6, 5], [4.0, 5.0, NEW], [9] * 3, [5, 6, 4]),  # not one that would come to its only size
        ([4, 3, 2], [4.0, 2.0, NEW], [9] * 3, [4, 3, 2]),  # nor one that would have one sample left
        ([4, 3, 3], [4.0, 2.0, NEW], [9] * 3, [5, 3, 2]),
        ([4, 6], [4.0, NEW], [4, 9], [4, 6]),  # no room
        ([4, 5, 6, 9], [4.0, 5.0, 6.0, NEW], [20] * 4, [5, 4, 7, 8]),
        ([4, 5, 6], [4.0, 5.0, 6.0], [20] * 3, [5, 3, 7]),  # one that has swapped may give once more
        ([5, 6], [4.0, NEW], [9, 9], [5, 6]),
    ],
)
def test_nodes_at_their_only_size_swap_a_sample(batches, seen_at, limits, expected):
    given = np.array(batches)
    np.testing.assert_array_equal(parts.unlike(given, np.array(seen_at), np.array(limits)), expected)
    np.testing.assert_array_equal(given, batches)


def next_sizes(sizes: list[float], speeds: list[float], total: float, limits: list[float] | None = None) -> np.ndarray:
    """After one epoch in which nodes had these sizes, and computed so many samples a second."""
    b, one = np.array(sizes), np.ones((2, len(sizes)))
    seconds = one * b / speeds
    learner = cannikin.learner(len(b), 0.1, limits).observed(b, seconds, seconds / 2, seconds / 4, one)
    return learner.next_batches(total)


@pytest.mark.parametrize(
    ("sizes", "factors"),
    [
        ([8, 8], [0.5, 1.5]),
        ([8, 8, 8], [0.5, 1.5, 1.5]),
        ([8, 8, 8, 8], [0.5, 1.5, 1.5, 0.5]),
        ([8] * 6, [0.5, 1.5, 1.5, 0.5, 0.5, 1.5]),
        ([8, 16, 12], [1.5, 0.5, 1.5]),  # in the order of size, from the largest on
        ([16, 8, 12], [0.5, 1.5, 1.5]),
    ],
)
def test_sizes_that_would_come_again_are_half_and_one_and_a_half_in_turn(sizes, factors):
    found = next_sizes(sizes, sizes, sum(sizes))
    expected = np.multiply(sizes, factors)
    np.testing.assert_allclose(found, expected * sum(sizes) / expected.sum())


def test_a_node_without_room_for_more_has_fewer_and_the_others_begin_with_more():
    found = next_sizes([8, 8, 8], [8, 8, 8], 24, [8.9, 99, 99])
    np.testing.assert_allclose(found, 24 * np.array([0.5, 1.5, 0.5]) / 2.5)
    found = next_sizes([8, 8, 8], [8, 8, 8], 24, [9.1, 99, 99])
    np.testing.assert_allclose(found, 24 * np.array([0.5, 1.5, 1.5]) / 3.5)


@pytest.mark.parametrize(
    ("size", "apart", "again"), [(16.0, 1.99, True), (16.0, 2.01, False), (4.0, 0.99, True), (4.0, 1.01, False), (8.0, 1.01, False)]
)
def test_sizes_count_as_the_same_up_to_an_eighth_of_them_or_one_sample(size, apart, again):
    """Of two nodes, whose speeds would give one so many more."""
    found = next_sizes([size, size], [size + apart, size - apart], 2 * size)
    plain = np.array([size + apart, size - apart])
    turned = plain * [0.5, 1.5]
    np.testing.assert_allclose(found, turned * 2 * size / turned.sum() if again else plain)
