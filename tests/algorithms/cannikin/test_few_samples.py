"""Learning a cluster whose nodes have a few samples each, so that rounding may give them the same sizes again."""

from __future__ import annotations

import numpy as np
import pytest

from algorithms import cannikin
from algorithms.cannikin import parts, policies


def followed(system: cannikin.System, model: cannikin.ClusterModel, epochs: int) -> list[np.ndarray]:
    """What it decides on nodes that have this model, and measure nothing of an epoch in which they have no samples."""
    limits = np.full(model.nodes, 100) if model.limits is None else np.asarray(model.limits).astype(int)
    T_comm = model.t_overlap + model.t_last
    memory, sizes = system.start(policies.Cluster(model.nodes, model.t_last / T_comm, limits)), []
    for _ in range(epochs):
        batches, memory = system.decide(memory)
        sizes.append(batches)
        backward = np.where(batches > 0, np.multiply(model.k, batches) + model.m, np.nan)
        compute = np.where(batches > 0, np.multiply(model.q, batches) + model.s, np.nan) + backward
        times = (each[None] for each in (compute, backward, model.gamma * backward, np.full(model.nodes, T_comm)))
        memory = system.observe(memory, policies.Observation(batches, *times, noise=cannikin.NoiseScale(1e3, 1.0)))
    return sizes


def test_two_samples_a_node_are_enough_to_learn_all_nodes():
    n, rng = 16, np.random.default_rng(0)
    q, s, k, m = np.linspace(1, 4, n), np.full(n, 0.5), np.linspace(2, 8, n), np.full(n, 1.0)
    model = cannikin.ClusterModel(q, s, k, m, 0.1, 20.0, 2.0)
    for total in (2 * n, 2 * n + 1, 3 * n - 1, 3 * n, int(rng.integers(2 * n, 6 * n))):
        sizes = followed(cannikin.cannikin(total), model, 6)
        assert (np.sum(sizes, axis=1) == total).all()
        assert np.isclose(model.batch_time(sizes[-1]), model.optperf_integer(total).seconds), total


@pytest.mark.parametrize("first", [4, 5])
def test_with_a_sample_a_node_the_second_epoch_has_the_next_total_batch_that_tells(first):
    """Of BERT the paper begins with 9 samples on 16 nodes."""
    model = cannikin.ClusterModel([1.0, 2.0, 3.0, 4.0], np.ones(4), [2.0, 4.0, 6.0, 8.0], np.ones(4), 0.2, 5.0, 1.0)
    sizes = followed(cannikin.cannikin([first, 40, 80]), model, 4)
    assert [batches.sum() for batches in sizes[:2]] == [first, 40]
    for batches in sizes[2:]:
        assert model.batch_time(batches) == pytest.approx(model.optperf_integer(int(batches.sum())).seconds)


def test_with_fewer_samples_than_nodes_it_takes_as_long_as_all_are_seen_twice():
    model = cannikin.ClusterModel([1.0, 2.0, 3.0, 4.0], np.ones(4), [2.0, 4.0, 6.0, 8.0], np.ones(4), 0.2, 5.0, 1.0)
    sizes = followed(cannikin.cannikin([2, 40, 80]), model, 5)
    assert [batches.sum() for batches in sizes[:3]] == [2, 40, 40]
    for batches in sizes[3:]:
        assert model.batch_time(batches) == pytest.approx(model.optperf_integer(int(batches.sum())).seconds)


def test_nodes_with_memory_for_one_sample_or_none_do_not_keep_the_others_from_being_learned():
    """Who has one is taken to compute in proportion, as it does here; who has none is never seen."""
    q, s, k, m = [1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 1.0, 1.0], [2.0, 4.0, 1.0, 8.0], [0.0, 1.0, 2.0, 1.0]
    for limits in ([1, 50, 50, 50], [1, 50, 0, 50]):
        there = np.greater(limits, 0)  # who has nothing to compute is not waited for
        model = cannikin.ClusterModel(q, s * there, k, m * there, 0.2, 5.0, 1.0, limits)
        sizes = followed(cannikin.cannikin(40), model, 4)
        for batches in sizes[2:]:
            assert model.batch_time(batches) == pytest.approx(model.optperf_integer(40).seconds)


def test_only_nodes_with_their_only_size_swap_samples():
    limits, nothing = np.array([9, 9, 3, 9, 9]), np.nan
    swapped = parts.unlike(np.array([3, 5, 3, 2, 7]), np.array([3, 4, 3, nothing, 8]), limits)
    np.testing.assert_array_equal(swapped, [4, 5, 2, 2, 7])
    swapped = parts.unlike(np.array([3, 5, 3, 2, 7]), np.array([nothing, 5, 3, 2, nothing]), limits)
    np.testing.assert_array_equal(swapped, [3, 6, 2, 3, 6], "an odd number: the largest of the others gives")
    alone = np.array([4])
    np.testing.assert_array_equal(parts.unlike(alone, alone, np.array([9])), alone)
