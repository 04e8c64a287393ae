"""Schedules: exact means after a logarithm of rounds, and pairs that meet at random."""

from __future__ import annotations

import math

import numpy as np
import pytest

import topologies


@pytest.mark.parametrize("n", [2, 8, 64])
def test_one_peer_exponential_is_the_mean_after_a_period(n):
    graph = topologies.one_peer_exponential(n)
    # sums of powers of 2 do not round
    np.testing.assert_array_equal(graph.W, np.full((n, n), 1 / n))
    assert graph.rho == pytest.approx(0, abs=1e-15)
    assert graph.period == math.log2(n)
    assert graph.mixing_time(1e-9) == math.log2(n)
    assert graph.name == f"one_peer_exponential({n})"


@pytest.mark.parametrize("n", [2, 3, 8, 11])
def test_everybody_sends_half_to_one_a_power_of_two_further(n):
    graph = topologies.one_peer_exponential(n)
    assert graph.period == math.ceil(math.log2(n))
    for t, W in enumerate(graph.matrices):
        expected = np.zeros((n, n))
        for i in range(n):
            expected[i, i] += 1 / 2
            expected[(i + 2**t) % n, i] += 1 / 2
        np.testing.assert_array_equal(W.toarray(), expected)
    assert graph.sends.tolist() == graph.receives.tolist() == [[1] * n] * graph.period
    assert graph.degree == 1
    assert graph.doubly_stochastic
    assert graph.symmetric == (n == 2)


@pytest.mark.parametrize("n", [3, 12])
def test_where_n_is_no_power_of_two_something_is_left(n):
    graph = topologies.one_peer_exponential(n)
    assert 0 < graph.rho < 1
    left = graph.W - 1 / n
    assert np.abs(np.linalg.matrix_power(left, 60)).max() < 1e-4


@pytest.mark.parametrize("n", [2, 9])
def test_random_matchings_are_of_pairs_that_take_their_mean(n):
    graph = topologies.random_matchings(n, period=12, seed=3)
    assert (graph.n, graph.period, graph.name) == (n, 12, f"random_matchings({n}, 12, 3)")
    for W, met in zip((matrix.toarray() for matrix in graph.matrices), graph.sends, strict=True):
        partner = np.where(met == 0, np.arange(n), np.argmax(W - np.eye(n) * W, axis=1))
        np.testing.assert_array_equal(partner[partner], np.arange(n))
        assert (partner == np.arange(n)).sum() == n % 2
        np.testing.assert_array_equal(W, (np.eye(n) + np.eye(n)[partner]) / 2)
        np.testing.assert_array_equal(W @ W, W)
    assert graph.symmetric
    assert graph.doubly_stochastic
    assert graph.rho < 1


def test_everybody_meets_everybody_as_often():
    """Of 600 rounds: within five standard deviations of the mean, for each of the pairs of six, and
    the idle ones of five.
    """
    rounds = 600
    met = sum(W.toarray() > 0 for W in topologies.random_matchings(6, rounds, seed=1).matrices)
    pairs = met[np.triu_indices(6, 1)]
    assert np.abs(pairs - rounds / 5).max() < 5 * math.sqrt(rounds * 1 / 5 * 4 / 5)
    idle = (topologies.random_matchings(5, rounds, seed=1).sends == 0).sum(axis=0)
    assert np.abs(idle - rounds / 5).max() < 5 * math.sqrt(rounds * 1 / 5 * 4 / 5)


def test_random_matchings_are_the_same_for_the_same_seed():
    one, other, third = (topologies.random_matchings(8, 6, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.W, other.W)
    assert np.abs(one.W - third.W).max() > 0.01
    assert len({W.toarray().tobytes() for W in one.matrices}) > 1
    np.testing.assert_array_equal(
        topologies.random_matchings(8).W, topologies.random_matchings(8, 32, 0).W
    )


def test_one_worker_alone_is_a_schedule_and_two_meet_in_one_round():
    alone = topologies.one_peer_exponential(1)
    assert (alone.n, alone.period, alone.W.tolist(), alone.degree) == (1, 1, [[1.0]], 0)
    assert topologies.random_matchings(2, period=1).uniform


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: topologies.one_peer_exponential(0),
            "one_peer_exponential: n = 0; expected an integer, at least 1",
        ),
        (
            lambda: topologies.random_matchings(-1),
            r"random_matchings\(-1, 32, 0\): n = -1; expected an integer, at least 1",
        ),
        (
            lambda: topologies.random_matchings(1),
            r"random_matchings\(1, 32, 0\): n = 1; expected at least 2 workers",
        ),
        (
            lambda: topologies.random_matchings(4, period=0),
            r"random_matchings\(4, 0, 0\): period = 0; expected an integer, at least 1",
        ),
        (
            lambda: topologies.random_matchings(4, period=1),
            r"random_matchings\(4, 1, 0\): the graph has 2 components",
        ),
    ],
)
def test_what_is_no_schedule_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
