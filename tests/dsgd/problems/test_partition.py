"""The samples of each worker, compared with the rules written as loops."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import optax
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsgd import problems
from dsgd.engine.pooled import Pooled
from dsgd.problems import split
from dsgd.problems.partition import require_parts


@st.composite
def cases(draw):
    """Draws labels of up to five classes, in any order, and at least as many samples as workers."""
    workers = draw(st.integers(1, 8))
    labels = draw(st.lists(st.integers(0, 4), min_size=workers, max_size=100))
    return np.array(labels), workers, draw(st.integers(0, 2**32 - 1))


def equal_parts(order: list[int], workers: int) -> list[list[int]]:
    """Returns equal parts; the first ones have one sample more."""
    size, more = divmod(len(order), workers)
    ends = [n * size + min(n, more) for n in range(workers + 1)]
    return [order[begin:end] for begin, end in pairwise(ends)]


def dirichlet(labels, workers: int, alpha: float, seed: int) -> list[list[int]]:
    """Returns the partition class by class: its samples in random order, in pieces whose ends are
    the rounded ends of the drawn shares; then each worker's samples, in random order.
    """
    draw, shares = np.random.default_rng(seed), [[] for _ in range(workers)]
    for label in sorted(set(labels.tolist())):
        members = draw.permutation([i for i, own in enumerate(labels) if own == label])
        drawn, begin, share = draw.dirichlet([alpha] * workers), 0, 0.0
        for n in range(workers):
            share += drawn[n]
            end = len(members) if n == workers - 1 else int(np.round(share * len(members)))
            shares[n] += members[begin:end].tolist()
            begin = end
    return [draw.permutation(share).tolist() for share in shares]


@given(case=cases())
def test_equal_parts_are_those_of_one_order(case):
    labels, workers, seed = case
    shuffled = np.random.default_rng(seed).permutation(len(labels)).tolist()
    orders = {
        "iid": shuffled,
        "blocks": list(range(len(labels))),
        "by-label": sorted(shuffled, key=lambda i: labels[i]),
    }
    for partition, order in orders.items():
        parts = split(labels, workers, partition, seed=seed)
        assert [part.tolist() for part in parts] == equal_parts(order, workers)


@given(case=cases(), alpha=st.floats(1e-3, 1e6))
def test_dirichlet_cuts_each_class_where_the_drawn_shares_end(case, alpha):
    """If a worker would have no samples, shares are drawn again."""
    labels, workers, seed = case
    try:
        parts = split(labels, workers, "dirichlet", alpha=alpha, seed=seed)
    except ValueError as error:
        assume("without samples" not in str(error))
        raise
    expected = dirichlet(labels, workers, alpha, seed)
    found = [part.tolist() for part in parts]
    if min(map(len, expected)):
        assert found == expected
    assert min(map(len, found)) >= 1
    assert sorted(chain(*found)) == list(range(len(labels)))


def test_given_indices_must_be_those_of_samples():
    """From the first to the last sample; at least one for each worker, and one list per worker."""
    found = require_parts([[0, 9], np.array([9], np.uint8), (3,)], 10, 3)
    assert [part.tolist() for part in found] == [[0, 9], [9], [3]]
    for wrong in ([10], [-1], [], [1.0], [[1]], ["1"]):
        with pytest.raises(ValueError, match="partition: worker 1"):
            require_parts([[0], wrong, [1]], 10, 3)
    for parts in ([[0], [1]], [[0]] * 4):
        with pytest.raises(ValueError, match=rf"partition: {len(parts)} parts .*workers = 3"):
            require_parts(parts, 10, 3)


def test_classes_are_counted_by_worker():
    counted = problems.class_counts([["b", "a", "b", "b"], ["c"], ["a", "c", "c"]])
    assert counted.classes.tolist() == ["a", "b", "c"]
    assert counted.counts.tolist() == [[1, 3, 0], [0, 0, 1], [1, 0, 2]]
    np.testing.assert_array_equal(counted.samples, [4, 1, 3])
    np.testing.assert_allclose(counted.shares[0], [0.25, 0.75, 0])
    # all samples: 2/8, 3/8, 3/8
    np.testing.assert_allclose(counted.distances, [3 / 8, 5 / 8, 3 / 8])
    assert str(counted).splitlines() == [
        "worker  samples  distance     a     b     c",
        "     0        4      0.38  0.25  0.75  0.00",
        "     1        1      0.62  0.00  0.00  1.00",
        "     2        3      0.38  0.33  0.00  0.67",
        "  mean      2.7      0.46",
    ]
    for data, words in (
        ([], "data = "),
        ([[1], []], "worker 1"),
        ([[[1]]], r"worker 0 .* \(1, 1\)"),
    ):
        with pytest.raises(ValueError, match=f"class_counts: .*{words}"):
            problems.class_counts(data)


def test_classes_of_a_problem_are_those_of_its_parts():
    """Padded samples do not count, also if the samples are pooled."""
    labels = np.repeat([0, 1, 2], [200, 7, 13])
    parts = [np.arange(205), np.arange(205, 211), np.arange(211, 220)]
    given = problems.class_counts([labels[part] for part in parts])
    for width in (2, 40_000):  # 40,000 numbers: padding would be larger than 8 MB
        inputs = np.zeros((220, width), np.float32)
        problem = problems.finite_sum(
            problems.Model(lambda key: np.zeros(3, np.float32), _scores),
            optax.softmax_cross_entropy_with_integer_labels,
            (inputs, labels.astype(np.int32)),
            3,
            parts,
        )
        assert isinstance(problem.data, Pooled) == (width > 2)
        np.testing.assert_array_equal(problems.class_counts(problem).counts, given.counts)
    with pytest.raises(ValueError, match=r"class_counts: the data of quadratic.* have no classes"):
        problems.class_counts(problems.random_quadratic(2, 3))


def _scores(params, inputs):
    return inputs[:, :1] + params[None]
