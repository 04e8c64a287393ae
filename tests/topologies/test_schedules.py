"""Schedules: exact means after logarithmically many rounds, and random pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

import topologies


@pytest.mark.parametrize("n", [1, 2, 3, 8, 11, 64])
def test_each_worker_sends_half_to_the_worker_a_power_of_two_further(n):
    """If n is a power of 2, a period gives the exact mean: sums of powers of 2 are not rounded."""
    graph = topologies.one_peer_exponential(n)
    assert graph.name == f"one_peer_exponential({n})"
    assert graph.period == max(1, math.ceil(math.log2(n)))
    for t, W in enumerate(graph.matrices):
        expected = (np.eye(n) + np.roll(np.eye(n), 2**t, axis=0)) / 2
        np.testing.assert_array_equal(W.toarray(), expected)
    if n & (n - 1):
        assert 0 < graph.rho < 1
    else:
        np.testing.assert_array_equal(graph.W, np.full((n, n), 1 / n))
        assert graph.rho == pytest.approx(0, abs=1e-15)
        assert graph.mixing_time(1e-9) == math.log2(n)


@pytest.mark.parametrize("n", [2, 9])
def test_random_matchings_average_pairs_of_workers(n):
    graph = topologies.random_matchings(n, period=12, seed=3)
    assert (graph.n, graph.period, graph.name) == (n, 12, f"random_matchings({n}, 12, 3)")
    for matrix, met in zip(graph.matrices, graph.out_degrees, strict=True):
        W = matrix.toarray()
        partner = np.where(met == 0, np.arange(n), np.argmax(W - np.eye(n) * W, axis=1))
        np.testing.assert_array_equal(partner[partner], np.arange(n))
        assert (partner == np.arange(n)).sum() == n % 2
        np.testing.assert_array_equal(W, (np.eye(n) + np.eye(n)[partner]) / 2)
    assert topologies.random_matchings(2, period=1).uniform


def test_all_pairs_meet_and_all_workers_idle_equally_often():
    """In 600 rounds: within five standard deviations of the mean, for each of the pairs of six
    workers, and for the idle ones of five.
    """
    rounds = 600
    met = sum(W.toarray() > 0 for W in topologies.random_matchings(6, rounds, seed=1).matrices)
    idle = (topologies.random_matchings(5, rounds, seed=1).out_degrees == 0).sum(axis=0)
    for often in (met[np.triu_indices(6, 1)], idle):
        assert np.abs(often - rounds / 5).max() < 5 * math.sqrt(rounds * 1 / 5 * 4 / 5)


@pytest.mark.parametrize(("given", "message"), [((1,), "at least 2"), ((4, 1), "2 components")])
def test_invalid_schedules_are_refused(given, message):
    with pytest.raises(ValueError, match=rf"random_matchings\({given[0]}, .*{message}"):
        topologies.random_matchings(*given)


def test_in_random_pushes_each_worker_sends_half_to_one_other():
    push = topologies.random_pushes(7, period=12, seed=3)
    pull = topologies.random_pushes(7, period=12, seed=3, weights=topologies.pull)
    assert (push.name, push.period) == ("random_pushes(7, 12, 3)", 12)
    assert (pull.name, pull.role) == ("random_pushes(7, 12, 3, pull)", "pull")
    assert (push.out_degrees == 1).all()
    for P, R, received in zip(push.matrices, pull.matrices, push.in_degrees, strict=True):
        np.testing.assert_array_equal(P.toarray()[P.toarray() > 0], 0.5)
        expected = (P.toarray() > 0) / (1 + received[:, None])
        np.testing.assert_allclose(R.toarray(), expected, rtol=1e-15)
    assert np.abs(push.W - topologies.random_pushes(7, 12, 4).W).max() > 0.01


def test_random_pushes_need_two_workers_and_a_connected_union():
    with pytest.raises(ValueError, match=r"random_pushes\(1, 32, 0\): n = 1; expected at least 2"):
        topologies.random_pushes(1)
    with pytest.raises(ValueError, match=r"random_pushes\(8, 1, 0\): .*components.*strongly"):
        topologies.random_pushes(8, 1)
