"""Schedules with an exact mean after one period."""

from __future__ import annotations

import math

import numpy as np
import pytest

import topologies

# number of rounds by k and n, as the authors' code has them
LENGTHS = {
    1: {3: 3, 5: 5, 6: 4, 7: 5, 12: 5, 25: 9},
    2: {3: 1, 5: 3, 6: 2, 7: 4, 12: 3, 25: 6},
    3: {12: 2, 25: 5},
    4: {},
    6: {},
}


def fewest_factors(n: int, most: int) -> float:
    """Returns the smallest number of factors of n that are at most `most`; infinite if a prime
    factor is larger.
    """
    factors = [1 + fewest_factors(n // f, most) for f in range(2, most + 1) if n % f == 0]
    return min(factors, default=math.inf) if n > 1 else 0


def simple_length(n: int, base: int) -> float:
    """Returns the number of rounds of the graph in which n is not divided: the mean within the
    parts of the digits, and an exchange with the mean of each part but the last.
    """
    if fewest_factors(n, base) < math.inf:
        return fewest_factors(n, base)
    powers = [base**p for p in range(10, -1, -1) if n // base**p % base]
    within = [fewest_factors(n // power % base * power, base) for power in powers]
    after = [j + 1 + fewest_factors(power, base) for j, power in enumerate(powers[:-1])]
    return max(within) + max(after)


def length(n: int, base: int) -> float:
    """Returns the number of rounds, of which some divide n if this is shorter."""
    smooth = max(d for d in range(1, n + 1) if n % d == 0 and fewest_factors(d, base) < math.inf)
    divided = simple_length(n // smooth, base) + fewest_factors(smooth, base)
    return min(simple_length(n, base), divided)


@pytest.mark.parametrize("degree", LENGTHS)
def test_one_period_of_a_base_graph_is_the_exact_mean(degree):
    """With larger degrees some numbers of workers, such as 22 with 4, are not divided."""
    for n in range(1, 41):
        graph = topologies.base_graph(n, degree)
        np.testing.assert_allclose(graph.W, np.full((n, n), 1 / n), atol=1e-14)
        assert graph.symmetric
        assert graph.degree <= degree
        assert all(W.data.min() > 0 for W in graph.matrices)
        assert graph.period <= 2 * math.log(n, degree + 1) + 2
        assert graph.period == max(length(n, degree + 1), 1)
        assert graph.period == LENGTHS[degree].get(n, graph.period)


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_the_one_peer_hypercube_averages_workers_with_numbers_that_differ_in_one_bit(dimension):
    graph, n = topologies.one_peer_hypercube(dimension), 2**dimension
    for t, W in enumerate(graph.matrices):
        expected = (np.eye(n) + np.eye(n)[np.arange(n) ^ (1 << t)]) / 2
        np.testing.assert_array_equal(W.toarray(), expected)
    np.testing.assert_array_equal(graph.W, np.full((n, n), 1 / n))
    assert (graph.period, graph.degree) == (dimension, 1)


def test_numbers_below_1_are_refused():
    with pytest.raises(ValueError, match="base_graph: degree = 0; expected an integer"):
        topologies.base_graph(5, 0)
    with pytest.raises(ValueError, match="one_peer_hypercube: dimension = 0; expected an integer"):
        topologies.one_peer_hypercube(0)
