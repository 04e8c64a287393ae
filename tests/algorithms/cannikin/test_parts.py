"""How a total batch is cut into whole parts, and which nodes swap samples."""

from __future__ import annotations

import numpy as np
import pytest

from algorithms.cannikin import policies


def test_equal_parts_give_the_first_nodes_one_more():
    np.testing.assert_array_equal(policies.equal_parts(11, np.array([3, 3, 3, 2])), [3, 3, 3, 2])
    np.testing.assert_array_equal(policies.equal_parts(12, np.array([3, 3, 3, 3])), [3, 3, 3, 3])
    for limits in ([3, 3, 2, 3], [2, 3, 3, 3]):
        with pytest.raises(ValueError, match="which has room for 2: need fewer"):
            policies.equal_parts(11, np.array(limits))


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
    np.testing.assert_array_equal(policies.unlike(given, np.array(seen_at), np.array(limits)), expected)
    np.testing.assert_array_equal(given, batches)
