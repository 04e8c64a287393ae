"""The samples of each worker, compared with the rules written as loops."""

from __future__ import annotations

from itertools import chain, pairwise, product
from typing import Any

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
        size = len(order) // workers
        ends = [*range(size, size * workers, size), len(order)]
        for remainder in ("last", "drop"):
            parts = split(labels, workers, partition, seed=seed, remainder=remainder)
            expected = [order[begin:end] for begin, end in pairwise((0, *ends))]
            if remainder == "drop":
                expected[-1] = expected[-1][:size]
            assert [part.tolist() for part in parts] == expected


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


@given(case=cases(), alpha=st.floats(1e-3, 1e6), least=st.integers(1, 9))
def test_sizes_are_the_minimum_plus_dirichlet_shares(case, alpha, least):
    labels, workers, seed = case
    M = len(labels)
    if least * workers > M:
        with pytest.raises(ValueError, match=rf"leaves worker .* expected at least {least}"):
            split(labels, workers, "dirichlet-sizes", alpha=alpha, seed=seed, min_samples=least)
        return
    parts = split(labels, workers, "dirichlet-sizes", alpha=alpha, seed=seed, min_samples=least)
    draw = np.random.default_rng(seed)
    order, shares = draw.permutation(M).tolist(), draw.dirichlet([alpha] * workers)
    begin = 0
    for n, part in enumerate(parts):
        end = round((M - least * workers) * float(np.cumsum(shares)[n])) + least * (n + 1)
        assert part.tolist() == order[begin:end]
        begin = end
    assert begin == M


@given(case=cases(), share=st.sampled_from([0.0, 0.15, 0.5, 0.8, 1.0]))
def test_a_share_of_similar_samples_is_iid_and_the_rest_sorted(case, share):
    labels, workers, seed = case
    M = len(labels)
    parts = split(labels, workers, "similarity", similarity=share, seed=seed)
    assert sorted(chain(*parts)) == list(range(M))
    sizes = [len(part) for part in equal_parts(list(range(M)), workers)]
    assert [len(part) for part in parts] == sizes
    order = np.random.default_rng(seed).permutation(M).tolist()
    iid, rest = order[: round(share * M)], order[round(share * M) :]
    sorted_parts = equal_parts(sorted(rest, key=lambda i: labels[i]), workers)
    begin = 0
    for part, by_label in zip(parts, sorted_parts, strict=True):
        end = begin + len(part) - len(by_label)
        assert part.tolist() == iid[begin:end] + by_label
        begin = end
    for end, partition in ((0.0, "by-label"), (1.0, "iid")):
        if share == end:
            same = split(labels, workers, partition, seed=seed)
            assert all(map(np.array_equal, parts, same))


@given(case=cases(), shards=st.integers(1, 4))
def test_each_worker_has_the_same_number_of_shards_of_the_sorted_samples(case, shards):
    labels, workers, seed = case
    if len(labels) < workers * shards:
        with pytest.raises(ValueError, match=rf"shards = {shards} for each of {workers} workers"):
            split(labels, workers, "shards", shards=shards, seed=seed)
        return
    parts = split(labels, workers, "shards", shards=shards, seed=seed)
    draw = np.random.default_rng(seed)
    order = sorted(draw.permutation(len(labels)).tolist(), key=lambda i: labels[i])
    pieces, dealt = equal_parts(order, workers * shards), draw.permutation(workers * shards)
    for n, part in enumerate(parts):
        mine = dealt[n * shards : (n + 1) * shards]
        assert part.tolist() == list(chain(*(pieces[shard] for shard in mine)))


@given(st.integers(2, 12), st.integers(2, 7), st.data())
def test_each_worker_has_k_classes_which_are_divided_equally(workers, C, data):
    k = data.draw(st.integers(1, C))
    seed = data.draw(st.integers(0, 2**32 - 1))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(C) * 3, 15 + np.arange(C)))
    if workers * k < C:
        with pytest.raises(ValueError, match=rf"expected {-(-C // workers)} to {C}, so that each"):
            split(labels, workers, "classes", classes=k, seed=seed)
        return
    parts = split(labels, workers, "classes", classes=k, seed=seed)
    assert sorted(chain(*parts)) == list(range(len(labels)))
    counts = problems.class_counts([labels[part] for part in parts]).counts
    assert ((counts > 0).sum(axis=1) == k).all()
    owners = (counts > 0).sum(axis=0)
    assert owners.max() - owners.min() <= 1
    for of_class in counts.T:
        assert np.ptp(of_class[of_class > 0]) <= 1


def test_a_partition_refuses_options_that_it_does_not_use():
    """Also in problems, whose message begins with their name, and for given indices."""
    labels = np.arange(90) % 3
    options = {"alpha": 0.3, "classes": 3, "shards": 4, "similarity": 0.35, "remainder": "last"}
    used = {
        "dirichlet": "alpha",
        "dirichlet-sizes": "alpha",
        "classes": "classes",
        "shards": "shards",
        "similarity": "similarity",
    }
    for partition, (option, value) in product(problems.PARTITIONS, options.items()):
        given: Any = {option: value}
        cuts = option == "remainder" and partition in ("iid", "blocks", "by-label")
        if used.get(partition) == option or cuts:
            assert len(split(labels, 4, partition, **given)) == 4
            continue
        words = rf"split: {option} = .* partition '{partition}', .*'{option}"
        if option == "remainder":
            words = r"split: remainder = .* expected it for 'iid' or 'blocks' or 'by-label' only"
        if option == "alpha":
            words = r"split: alpha = .* expected it for 'dirichlet' or 'dirichlet-sizes' only"
        with pytest.raises(ValueError, match=words):
            split(labels, 4, partition, **given)
    data = (np.zeros((90, 2)), labels)
    with pytest.raises(
        ValueError, match=r"^logistic_regression: shards = 2 for the partition 'iid"
    ):
        problems.logistic_regression(data, 3, shards=2)
    with pytest.raises(ValueError, match=r"^finite_sum: alpha = 0.4 for given indices, which do "):
        problems.finite_sum(
            problems.Model(lambda key: np.zeros(3, np.float32), _scores),
            optax.softmax_cross_entropy_with_integer_labels,
            (data[0], labels.astype(np.int32)),
            3,
            [[1], [2], [3]],
            alpha=0.4,
        )


def test_problems_have_the_samples_of_the_partition_and_its_options():
    digits = problems.load("digits")
    for partition, options in (
        ("dirichlet-sizes", {"alpha": 3.0, "min_samples": 7}),
        ("classes", {"classes": 3}),
        ("shards", {"shards": 4}),
        ("similarity", {"similarity": 0.35}),
    ):
        given: Any = options
        parts = split(digits.train_targets, 6, partition, seed=5, **given)
        expected = problems.class_counts([digits.train_targets[part] for part in parts]).counts
        by_name = problems.logistic_regression(digits, 6, partition, seed=5, **given)
        by_index = problems.logistic_regression(digits, 6, parts)
        assert by_index.name == "logistic_regression(digits, given indices)"
        for problem in (by_name, by_index):
            np.testing.assert_array_equal(problems.class_counts(problem).counts, expected)


def test_users_have_their_samples():
    users = np.array(["w", "b", "w", "c", "b", "w"])
    parts = problems.by_user(users)
    assert [part.tolist() for part in parts] == [[1, 4], [3], [0, 2, 5]]
    assert [part.tolist() for part in problems.by_user([7, -2, 7])] == [[1], [0, 2]]
    for wrong in ([], [[1, 2]], [0.5, 2.5]):
        with pytest.raises(ValueError, match="by_user: users = "):
            problems.by_user(wrong)


def test_given_indices_must_be_those_of_samples():
    """From the first to the last sample; at least one for each worker, and one list per worker."""
    found = require_parts([[0, 9], np.array([9], np.uint8), (3,)], 10, 3)
    assert [part.tolist() for part in found] == [[0, 9], [9], [3]]
    for wrong in ([10], [-1], [], [1.0], [[1]], ["1"]):
        with pytest.raises(ValueError, match="partition: worker 1"):
            require_parts([[0], wrong, [1]], 10, 3)
        with pytest.raises(ValueError, match="partition: worker 1"):
            require_parts(list(map(np.array, ([0], wrong, [1]))), 10, 3)
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


def test_the_table_of_many_workers_has_their_quantiles():
    labels = [[3] * 2] * 30 + [[3] * 7 + [5]] * 70 + [[3] * 300 + [5] * 440]
    counted = problems.class_counts(labels)
    whole = (60 + 490 + 300) / (60 + 560 + 740)
    far, near, last = 1 - whole, abs(7 / 8 - whole), abs(300 / 740 - whole)
    mean = (30 * far + 70 * near + last) / 101
    assert [line.split() for line in str(counted).splitlines()] == [
        ["101", "workers", "least", "10", "%", "median", "90", "%", "most", "mean"],
        ["samples", "2", "2", "8", "8", "740", f"{1360 / 101:.1f}"],
        ["classes", "1", "1", "2", "2", "2", f"{(30 + 142) / 101:.1f}"],
        ["distance", *(f"{each:.2f}" for each in (last, near, near, far, far, mean))],
    ]
    assert len(str(problems.class_counts(labels[:100])).splitlines()) == 102


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
