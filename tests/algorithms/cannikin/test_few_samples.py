"""Learning a cluster whose nodes have a few samples each, so that rounding may give them the same sizes again."""

from __future__ import annotations

import numpy as np

from algorithms import cannikin
from algorithms.cannikin import parts, policies


def test_two_samples_a_node_are_enough_to_learn_all_nodes():
    n, rng = 16, np.random.default_rng(0)
    q, s, k, m = np.linspace(1, 4, n), np.full(n, 0.5), np.linspace(2, 8, n), np.full(n, 1.0)
    model = cannikin.ClusterModel(q, s, k, m, 0.1, 20.0, 2.0)
    for total in (2 * n, 2 * n + 1, 3 * n - 1, 3 * n, int(rng.integers(2 * n, 6 * n))):
        system = cannikin.cannikin(total)
        memory, sizes = system.start(policies.Cluster(n, 1 / 11, np.full(n, 100))), []
        for _ in range(6):
            batches, memory = system.decide(memory)
            sizes.append(batches)
            backward = k * batches + m
            compute, first, messages = q * batches + s + backward, 0.1 * backward, np.full(n, 22.0)
            times = (each[None] for each in (compute, backward, first, messages))
            memory = system.observe(memory, policies.Observation(batches, *times, noise=cannikin.NoiseScale(0.0, 1.0)))
        assert (np.sum(sizes, axis=1) == total).all()
        assert np.isclose(model.batch_time(sizes[-1]), model.optperf_integer(total).seconds), total


def test_only_nodes_with_their_only_size_swap_samples():
    limits, nothing = np.array([9, 9, 3, 9, 9]), np.nan
    swapped = parts.unlike(np.array([3, 5, 3, 2, 7]), np.array([3, 4, 3, nothing, 8]), limits)
    np.testing.assert_array_equal(swapped, [4, 5, 2, 2, 7])
    swapped = parts.unlike(np.array([3, 5, 3, 2, 7]), np.array([nothing, 5, 3, 2, nothing]), limits)
    np.testing.assert_array_equal(swapped, [3, 6, 2, 3, 6], "an odd number: the largest of the others gives")
    alone = np.array([4])
    np.testing.assert_array_equal(parts.unlike(alone, alone, np.array([9])), alone)
