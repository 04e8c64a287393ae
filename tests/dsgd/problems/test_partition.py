from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsgd.problems import split
from dsgd.problems.partition import need_parts

BALANCED = np.repeat(np.arange(10), 40)


@st.composite
def cases(draw):
    """Labels of up to five classes, in any order, and at least as many samples as workers."""
    workers = draw(st.integers(1, 8))
    labels = draw(st.lists(st.integers(0, 4), min_size=workers, max_size=100))
    return np.array(labels), workers, draw(st.integers(0, 2**32 - 1))


def sizes(parts: list[np.ndarray]) -> np.ndarray:
    return np.array([len(part) for part in parts])


def assert_disjoint_cover(parts: list[np.ndarray], workers: int, samples: int):
    assert len(parts) == workers
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


@pytest.mark.parametrize("partition", ["iid", "by-label"])
@given(case=cases())
def test_equal_parts_give_every_sample_to_one_worker(partition, case):
    labels, workers, seed = case
    parts = split(labels, workers, partition, seed=seed)
    assert_disjoint_cover(parts, workers, len(labels))
    assert np.ptp(sizes(parts)) <= 1


@given(case=cases(), alpha=st.floats(1e-3, 1e6))
def test_dirichlet_gives_every_sample_to_one_worker_or_names_one_without(case, alpha):
    labels, workers, seed = case
    try:
        parts = split(labels, workers, "dirichlet", alpha=alpha, seed=seed)
    except ValueError as error:
        assume("without samples" not in str(error))
        raise
    assert_disjoint_cover(parts, workers, len(labels))
    assert sizes(parts).min() >= 1


@pytest.mark.parametrize(("samples", "workers"), [(12, 3), (13, 5)])
def test_blocks_are_pieces_in_the_order_of_the_samples(samples, workers):
    parts = split(np.zeros(samples, int), workers, "blocks")
    np.testing.assert_array_equal(np.concatenate(parts), np.arange(samples))
    assert np.ptp([len(part) for part in parts]) <= 1


@pytest.mark.parametrize(
    ("labels", "workers", "partition", "alpha", "message"),
    [
        (BALANCED, 4, "sorted", 1.0, "'sorted'; expected one of iid, blocks, by-label, dirichlet"),
        (BALANCED, 4, "dirichlet", 0.0, "alpha = 0.0"),
        (BALANCED, 4, "dirichlet", float("inf"), "alpha = inf"),
        ([0, 1] * 10, 8, "dirichlet", 0.01, r"leaves worker \d without samples.*alpha"),
        ([0, 1, 0], 5, "by-label", 1.0, "5 workers leaves worker 3 without samples"),
        (BALANCED, 0, "iid", 1.0, "workers = 0"),
    ],
)
def test_partitions_that_cannot_be_are_refused(labels, workers, partition, alpha, message):
    with pytest.raises(ValueError, match=message):
        split(labels, workers, partition, alpha=alpha)


def test_dirichlet_cuts_each_class_where_the_drawn_shares_end():
    """Class by class: its members in random order, in pieces whose ends are rounded; then each
    worker's samples, in random order.
    """
    labels, workers, alpha = np.random.default_rng(5).integers(0, 3, 60), 4, 2.0
    draw, shares = np.random.default_rng(8), [[] for _ in range(workers)]
    for label in range(3):
        members = draw.permutation([i for i in range(60) if labels[i] == label])
        drawn, begin, share = draw.dirichlet([alpha] * workers), 0, 0.0
        for n in range(workers):
            share += drawn[n]
            end = len(members) if n == workers - 1 else int(np.round(share * len(members)))
            shares[n] += members[begin:end].tolist()
            begin = end
    expected = [draw.permutation(share) for share in shares]
    for part, own in zip(
        split(labels, workers, "dirichlet", alpha=alpha, seed=8), expected, strict=True
    ):
        np.testing.assert_array_equal(part, own)


def test_iid_and_by_label_are_of_one_permutation():
    labels = np.random.default_rng(5).integers(0, 3, 10)
    shuffled = np.random.default_rng(8).permutation(10).tolist()
    by_label = sorted(shuffled, key=lambda i: labels[i])
    for partition, order in (("iid", shuffled), ("by-label", by_label)):
        parts = split(labels, 3, partition, seed=8)
        assert [part.tolist() for part in parts] == [order[:4], order[4:7], order[7:]]


def test_indices_that_are_given_are_those_of_samples():
    """From the first to the last; of each worker one at least, and as many lists as workers."""
    found = need_parts([[0, 9], np.array([9], np.uint8), (3,)], 10, 3)
    assert [part.tolist() for part in found] == [[0, 9], [9], [3]]
    for wrong in ([10], [-1], [], [1.0], [[1]], ["1"]):
        with pytest.raises(
            ValueError,
            match=r"partition: worker 1(: got text| has .*; expected indices from 0 to 9, at least one)",
        ):
            need_parts([[0], wrong, [1]], 10, 3)
    for parts in ([[0], [1]], [[0]] * 4):
        with pytest.raises(ValueError, match=rf"partition: {len(parts)} parts for workers = 3"):
            need_parts(parts, 10, 3)
