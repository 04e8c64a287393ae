"""A mixing matrix knows its rho, its senders and receivers and how soon it mixes; a wrong one is
refused with the entry that is wrong.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from matrices import circulant, second_largest

import topologies
from dsgd import Topology


def metropolis(edges: list[tuple[int, int]], n: int) -> np.ndarray:
    degree = np.bincount(np.ravel(edges).astype(int), minlength=n)
    W = np.zeros((n, n))
    for i, j in edges:
        W[i, j] = W[j, i] = 1 / (1 + max(degree[i], degree[j]))
    return W + np.diag(1 - W.sum(axis=1))


def star(n: int) -> np.ndarray:
    return metropolis([(0, i) for i in range(1, n)], n)


def arcs(pairs: list[tuple[int, int]], n: int) -> np.ndarray:
    """Push-sum weights: each sender shares equally among itself and those that it sends to."""
    W = np.eye(n)
    for sender, receiver in pairs:
        W[receiver, sender] = 1
    return W / W.sum(axis=0)


def cycle(n: int, by: int = 1) -> np.ndarray:
    """Everybody keeps half and sends half to the one `by` further. Doubly stochastic."""
    return (np.eye(n) + np.roll(np.eye(n), by, axis=0)) / 2


def far_from_average(P: np.ndarray) -> float:
    """The largest singular value of what is left, its rows scaled as push-sum does."""
    ratio = P / P.sum(axis=1)[:, None]
    return np.linalg.svd(ratio - np.full(P.shape, 1 / len(P)), compute_uv=False)[0]


def distances(rounds: list[np.ndarray], until: int) -> list[float]:
    """After 0, 1, 2, ... rounds."""
    P = np.eye(len(rounds[0]))
    left = [far_from_average(P)]
    for t in range(until):
        P = rounds[t % len(rounds)] @ P
        left.append(far_from_average(P))
    return left


SYMMETRIC = {
    "two": np.array([[0.7, 0.3], [0.3, 0.7]]),
    "circulant, odd": circulant(7, {1: 0.2, 2: 0.1}),
    "circulant, even": circulant(12, {1: 0.1, 3: 0.2, 6: 0.15}),
    "circulant, negative weights": circulant(9, {1: 0.4, 2: -0.05}),
    "circulant, rho from the negative end": circulant(8, {1: 0.45}),
    "star": star(6),
    "path": metropolis([(i, i + 1) for i in range(6)], 7),
    "weighted": np.array([[0.5, 0.4, 0.1], [0.4, 0.35, 0.25], [0.1, 0.25, 0.65]]),
    "irregular with as many entries a row": np.array(
        [[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 0.5, 0.5]]
    ),
    "one place, other weights": np.array(
        [[0.5, 0.2, 0, 0.3], [0.2, 0.7, 0.1, 0], [0, 0.1, 0.5, 0.4], [0.3, 0, 0.4, 0.3]]
    ),
}
DOUBLY = {
    "directed cycle": cycle(5),
    "directed circulant": 0.5 * np.eye(7)
    + 0.3 * np.roll(np.eye(7), 1, axis=0)
    + 0.2 * np.roll(np.eye(7), 3, axis=0),
    "directed, mixed": 0.2 * np.eye(6)
    + 0.3 * np.roll(np.eye(6), 1, axis=0)
    + 0.5 * np.eye(6)[[1, 0, 2, 4, 3, 5]],
}
PUSH_SUM = {
    "push-sum": arcs([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], 4),
    "push-sum star": arcs([(0, i) for i in range(1, 5)] + [(i, 0) for i in range(1, 5)], 5),
    "push-sum, uneven": np.array([[0.9, 0.0, 0.5], [0.05, 0.3, 0.25], [0.05, 0.7, 0.25]]),
}
MATRICES = SYMMETRIC | DOUBLY | PUSH_SUM
SCHEDULES = {
    "halves in turn": [cycle(8, by) for by in (1, 2, 4)],
    "halves of six in turn": [cycle(6, by) for by in (1, 2, 4)],
    "pairs in turn": [
        np.kron(np.eye(2), np.full((2, 2), 0.5)),
        np.array([[1, 0, 0, 0], [0, 0.6, 0.4, 0], [0, 0.4, 0.6, 0], [0, 0, 0, 1.0]]),
    ],
    "push-sum in turn": [
        arcs([(0, 1), (2, 1)], 4),
        arcs([(1, 3)], 4),
        arcs([(3, 0), (3, 2), (0, 2)], 4),
    ],
    "ring, then star": [circulant(6, {1: 1 / 3}), star(6)],
}


def every(matrices: dict):
    return pytest.mark.parametrize("W", matrices.values(), ids=matrices)


def product(rounds: list[np.ndarray]) -> np.ndarray:
    """The last round is the leftmost."""
    P = np.eye(len(rounds[0]))
    for W in rounds:
        P = np.einsum("ij,jk->ik", W, P)
    return P


@st.composite
def connected(draw) -> tuple[int, list[tuple[int, int]]]:
    """A tree, and any other edges."""
    n = draw(st.integers(2, 8))
    tree = [(draw(st.integers(0, i - 1)), i) for i in range(1, n)]
    pairs = [(i, j) for j in range(n) for i in range(j)]
    return n, sorted({*tree, *draw(st.lists(st.sampled_from(pairs), max_size=8))})


@st.composite
def strongly_connected(draw) -> tuple[int, list[tuple[int, int]]]:
    """A cycle through everybody, and any other arcs."""
    n = draw(st.integers(2, 7))
    order = draw(st.permutations(range(n)))
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    return n, sorted(
        {
            *zip(order, order[1:] + order[:1], strict=True),
            *draw(st.lists(st.sampled_from(pairs), max_size=8)),
        }
    )


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_knows_what_it_is(name):
    """Renamed, a circulant matrix is none any more, and its eigenvalues are found in another
    way.
    """
    W = MATRICES[name]
    topology, n = Topology("W", W), len(W)
    order = np.random.default_rng(1).permutation(n)
    assert topology.rho == pytest.approx(second_largest(W), abs=1e-12)
    assert topology.rho == pytest.approx(Topology("renamed", W[order][:, order]).rho, abs=1e-12)
    assert topology.spectral_gap == 1 - topology.rho
    assert topology.symmetric == (name in SYMMETRIC)
    assert topology.doubly_stochastic == (name not in PUSH_SUM)
    if name in SYMMETRIC:
        assert topology.smallest_eigenvalue == pytest.approx(
            np.linalg.eigvals(W).real.min(), abs=1e-12
        )
    received = [sum(W[i, j] != 0 for j in range(n) if j != i) for i in range(n)]
    sent = [sum(W[i, j] != 0 for i in range(n) if j != i) for j in range(n)]
    assert (topology.n, topology.period, topology.uniform) == (n, 1, False)
    assert topology.receives.tolist() == [received]
    assert topology.sends.tolist() == [sent]
    assert topology.degree == max(received + sent)


@pytest.mark.parametrize("rounds", SCHEDULES.values(), ids=SCHEDULES)
def test_rho_of_a_schedule_is_that_of_its_product(rounds):
    """Up to the square root of a rounding: a product that is defective has ill-conditioned
    eigenvalues.
    """
    assert Topology("in turn", np.stack(rounds)).rho == pytest.approx(
        second_largest(product(rounds)), abs=1e-7
    )


@given(connected())
def test_rho_of_random_connected_graphs(graph):
    n, edges = graph
    W = metropolis(edges, n)
    topology = Topology("W", W)
    np.testing.assert_allclose(topology.W, W, rtol=0, atol=1e-15)
    assert topology.rho == pytest.approx(second_largest(W), abs=1e-12)
    assert topology.symmetric
    assert topology.doubly_stochastic
    assert topology.edges.tolist() == [list(edge) for edge in edges]
    assert topology.smallest_eigenvalue == pytest.approx(np.linalg.eigvals(W).real.min(), abs=1e-12)


@given(strongly_connected())
def test_rho_of_random_directed_graphs(graph):
    n, pairs = graph
    W = arcs(pairs, n)
    topology = Topology("W", W)
    np.testing.assert_array_equal(topology.W, W)
    assert topology.rho == pytest.approx(second_largest(W), abs=1e-6)  # some are defective
    assert topology.symmetric == (W == W.T).all()
    back_and_forth = {(i, j) for i, j in pairs if i < j}
    assert list(map(tuple, topology.edges.tolist())) == sorted(
        back_and_forth if topology.symmetric else pairs
    )


def test_one_directed_round_makes_a_schedule_directed():
    both = Topology("both", np.stack([circulant(5, {1: 0.3}), cycle(5)]))
    push = Topology(
        "push", np.stack([arcs([(i, (i + 1) % 5) for i in range(5)], 5), arcs([(0, 2)], 5)])
    )
    assert (both.symmetric, both.doubly_stochastic) == (False, True)
    assert (push.symmetric, push.doubly_stochastic) == (False, False)
    assert Topology("twice", np.stack([circulant(5, {1: 0.3}), star(5)])).symmetric


def test_a_schedule_counts_messages_by_round_and_edges_once():
    rounds = [arcs([(0, 1), (0, 2)], 3), arcs([(1, 0), (0, 1)], 3), arcs([(2, 0)], 3)]
    topology = Topology("in turn", np.stack(rounds))
    assert topology.sends.tolist() == [[2, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert topology.receives.tolist() == [[0, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert topology.degree == 2
    assert topology.edges.tolist() == [[0, 1], [0, 2], [1, 0], [2, 0]]
    assert (topology.period, topology.n) == (3, 3)
    assert Topology("pairs", np.stack(SCHEDULES["pairs in turn"])).edges.tolist() == [
        [0, 1],
        [1, 2],
        [2, 3],
    ]


def test_one_worker():
    alone = Topology("alone", np.ones((1, 1)))
    assert (
        alone.n,
        alone.rho,
        alone.degree,
        alone.uniform,
        alone.symmetric,
        alone.smallest_eigenvalue,
    ) == (1, 0.0, 0, True, True, 1.0)
    assert alone.edges.shape == (0, 2)
    assert (
        alone.mixing_time(0.5) == Topology("alone, twice", np.ones((2, 1, 1))).mixing_time(0.5) == 0
    )


def test_almost_equal_weights_are_not_uniform():
    W = np.full((4, 4), 0.25) + 1e-6 * np.kron([[1, -1], [-1, 1]], np.ones((2, 2)))
    assert not Topology("almost", W).uniform


def test_a_schedule_of_means_is_not_one_round():
    """`uniform` is for what one collective does; and its rho is 0 all the same."""
    means = Topology("means", np.full((2, 3, 3), 1 / 3))
    assert not means.uniform
    assert means.rho == pytest.approx(0, abs=1e-15)
    assert means.mixing_time(0.5) == 1


@pytest.mark.parametrize("rounds", SCHEDULES.values(), ids=SCHEDULES)
def test_W_of_a_schedule_is_what_a_period_makes_of_the_models(rounds):
    topology = Topology("in turn", np.stack(rounds))
    x = np.random.default_rng(0).normal(size=(topology.n, 3))
    after = x
    for W in rounds:
        after = W @ after
    np.testing.assert_allclose(topology.W @ x, after, rtol=0, atol=1e-14)
    for W, kept in zip(rounds, topology.matrices, strict=True):
        np.testing.assert_allclose(kept.toarray(), W, rtol=0, atol=1e-15)


def test_W_is_a_read_only_copy():
    mine = star(4)
    topology = Topology("star(4)", mine)
    before = mine.copy()
    with pytest.raises(ValueError, match="read-only"):
        topology.W[0, 0] = 2
    mine[:] = 0
    np.testing.assert_array_equal(topology.W, before)
    with pytest.raises(AttributeError):
        topology.degree = 3


@pytest.mark.parametrize("of", ["csr_array", "coo_array", "dia_array", "lil_array", "csr_matrix"])
def test_a_sparse_matrix_is_the_same_as_a_dense_one(of):
    W = MATRICES["push-sum"]
    mine, dense = getattr(scipy.sparse, of)(W), Topology("W", W)
    sparse = Topology("W", mine)
    mine *= 7  # it was copied
    np.testing.assert_array_equal(sparse.W, dense.W)
    np.testing.assert_array_equal(sparse.edges, dense.edges)
    assert sparse.rho == dense.rho
    assert sparse.matrices[0].has_sorted_indices


def test_what_is_stored_but_zero_or_twice_is_one_weight_or_none():
    """Compressed rows may say 0, and may say a half in two quarters."""
    data = [0.5, 0.25, 0.25, 0.0, 0.5, 0.5, 0.5, 0.5]
    W = scipy.sparse.csr_array((data, [0, 2, 2, 1, 0, 1, 2, 1], [0, 4, 6, 8]), shape=(3, 3))
    np.testing.assert_array_equal(W.toarray(), [[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    topology = Topology("twice", W)
    assert topology.sends.tolist() == topology.receives.tolist() == [[1, 1, 1]]
    np.testing.assert_array_equal(topology.W, W.toarray())


def test_a_schedule_of_sparse_matrices():
    rounds = SCHEDULES["halves in turn"]
    topology = topologies.from_matrix([scipy.sparse.csr_array(W) for W in rounds], "halves")
    np.testing.assert_allclose(topology.W, product(rounds), rtol=0, atol=1e-15)
    assert (topology.period, topology.name, repr(topology)) == (3, "halves", "Topology(halves)")


@pytest.mark.parametrize("eps", [0.9, 1e-2])
@every(MATRICES)
def test_mixing_time_of_a_matrix_is_the_first_round_that_is_close_enough(W, eps):
    left = distances([W], Topology("W", W).mixing_time(eps))
    assert left[-1] <= eps
    assert min(left[:-1]) > eps


@pytest.mark.parametrize("eps", [0.9, 1e-2, 1e-6])
@pytest.mark.parametrize("rounds", SCHEDULES.values(), ids=SCHEDULES)
def test_mixing_time_of_a_schedule_counts_rounds_not_periods(rounds, eps):
    left = distances(rounds, Topology("in turn", np.stack(rounds)).mixing_time(eps))
    assert left[-1] <= eps
    assert min(left[:-1]) > eps


@given(connected(), st.sampled_from([0.7, 0.1, 1e-3]))
def test_mixing_time_of_random_connected_graphs(graph, eps):
    """At a tie either round is right."""
    W = metropolis(graph[1], graph[0])
    left = distances([W], Topology("W", W).mixing_time(eps))
    assert left[-1] <= eps * (1 + 1e-9)
    assert min(left[:-1]) > eps * (1 - 1e-9)


@given(strongly_connected(), st.sampled_from([0.7, 0.1, 1e-3]))
def test_mixing_time_of_random_directed_graphs_is_when_they_fall_below(graph, eps):
    """Under push-sum disagreement may grow for a round, and fall below eps more than once."""
    W = arcs(graph[1], graph[0])
    left = distances([W], Topology("W", W).mixing_time(eps))
    assert left[-1] <= eps * (1 + 1e-9)
    assert left[-2] > eps * (1 - 1e-9)


@pytest.mark.parametrize(
    ("rho", "eps", "rounds"),
    [(0.5, 0.25, 2), (0.5, 0.24, 3), (0.1, 0.1, 1), (0.1, 1e-3, 3), (0.9, 0.95, 1)],
)
def test_mixing_time_where_a_power_of_rho_is_eps(rho, eps, rounds):
    W = np.array([[1 + rho, 1 - rho], [1 - rho, 1 + rho]]) / 2
    assert Topology("two", W).mixing_time(eps) == rounds == math.ceil(math.log(eps, rho) - 1e-9)


def test_negative_weights_and_nothing_of_ones_own_are_fine_in_a_doubly_stochastic_matrix():
    W = (
        1.1 * np.roll(np.eye(5), 1, axis=0) / 2
        + np.roll(np.eye(5), 2, axis=0) / 2
        - 0.05 * np.roll(np.eye(5), -1, axis=0)
    )
    assert Topology("mine", W).rho == pytest.approx(second_largest(W), abs=1e-12)


def test_steps_around_a_ring_connect_it_or_it_is_refused():
    """Everybody sends the same few steps ahead: whether all are reached is seen in the n-th
    power.
    """
    for n in (2, 3, 4, 6, 9, 12):
        for steps in [(s, t) for s in range(1, n) for t in range(s, n)]:
            W = np.eye(n) / 2 + sum(np.roll(np.eye(n), s, axis=0) for s in steps) / 4
            if (np.linalg.matrix_power(W, n) > 0).all():
                assert Topology("mine", W).n == n
            else:
                with pytest.raises(
                    ValueError, match=rf"has {np.gcd.reduce([n, *steps])} components"
                ):
                    Topology("mine", W)


def test_rounds_need_to_connect_only_together():
    pairs, others = np.kron(np.eye(2), np.full((2, 2), 0.5)), np.eye(4)[[0, 2, 1, 3]]
    together = Topology("together", np.stack([pairs, (others + np.eye(4)) / 2]))
    assert together.rho < 1
    with pytest.raises(
        ValueError,
        match=r"mine: the graph has 2 components, one of them workers \{0, 1\}; expected a connected graph, or",
    ):
        Topology("mine", np.stack([pairs, pairs]))


def test_rounds_whose_weights_cancel_are_connected_all_the_same():
    once, back = circulant(2, {1: 0.2}), circulant(2, {1: -0.2})
    assert Topology("to and fro", np.stack([once, back])).rho == pytest.approx(0.6 * 1.4, abs=1e-12)


def test_directed_rounds_need_to_connect_strongly_together():
    there, back = arcs([(0, 1), (1, 2)], 3), arcs([(2, 0)], 3)
    assert Topology("there and back", np.stack([there, back])).rho < 1
    with pytest.raises(ValueError, match=r"3 components, .* a strongly connected graph"):
        Topology("there", np.stack([there, there]))


def test_slow_gossip_is_accepted_where_it_is_plain_that_it_converges():
    """rho is 1 up to roundings, and no reason to refuse: everybody keeps a part."""
    slow = Topology("slow", circulant(3, {1: 1e-14}))
    assert slow.rho == pytest.approx(1, abs=1e-12)


def test_a_matrix_in_float32_is_put_right():
    W = np.asarray(topologies.ring(7).W, np.float32)
    W[0, 1] += 3e-8
    fixed = topologies.from_matrix(W)
    np.testing.assert_array_equal(fixed.W, fixed.W.T)
    np.testing.assert_allclose(fixed.W.sum(axis=1), 1, rtol=0, atol=1e-15)
    np.testing.assert_allclose(fixed.W, W, rtol=0, atol=1e-6)
    assert fixed.rho == pytest.approx(topologies.ring(7).rho, abs=1e-6)
    with pytest.raises(ValueError, match=r"sums to .* \(off by .*\); expected 1"):
        topologies.from_matrix(W * np.float32(1.001))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@every(PUSH_SUM | DOUBLY)
def test_columns_of_a_coarse_directed_matrix_are_put_right(W, dtype):
    fixed = topologies.from_matrix(W.astype(dtype))
    np.testing.assert_allclose(fixed.W.sum(axis=0), 1, rtol=0, atol=1e-15)
    np.testing.assert_allclose(fixed.W, W, rtol=0, atol=4 * float(np.finfo(dtype).eps))
    assert fixed.doubly_stochastic == Topology("W", W).doubly_stochastic
    assert not fixed.symmetric


def test_roundings_of_float64_are_no_asymmetry():
    W = star(5)
    W[0, 1] += 1e-10
    fixed = Topology("star", W)
    assert fixed.symmetric
    np.testing.assert_array_equal(fixed.W, fixed.W.T)
    W[0, 1] += 1e-5
    with pytest.raises(
        ValueError, match=r"W\[0, 1\] = 0.20001 but W\[1, 0\] = 0.2 \(off by 1e-05\)"
    ):
        Topology("star", W)


def changed(W: np.ndarray, **entries: float) -> np.ndarray:
    """With other entries: those of W_ij."""
    W = W.copy()
    for name, value in entries.items():
        W[int(name[1]), int(name[2])] = value
    return W


THREE, PAIRS = arcs([(0, 1), (1, 2), (2, 0), (0, 2)], 3), np.kron(np.eye(2), np.full((2, 2), 0.5))
DIVERGES = r"mine: rho = {}, so gossip does not converge although the graph is connected"
REFUSED = {
    "not square": (np.ones((2, 3)) / 3, r"mine: W has shape \(2, 3\); expected a square matrix"),
    "empty": (np.zeros((0, 0)), r"mine: W has shape \(0, 0\); expected a square matrix"),
    "a number": (np.float64(1), r"mine: W has shape \(\); expected a square matrix"),
    "complex": (np.eye(2) * 1j, "mine: W: got .*; expected (real )?numbers"),
    "text": (np.array([["a"]]), "mine: W: got .*; expected (real )?numbers"),
    "ragged": ([[1.0], [0.5, 0.5]], "W: got rows of different lengths"),
    "asymmetric": (
        changed(star(5), W13=0.25),
        r"mine: W\[1, 3\] = 0.25 but W\[3, 1\] = 0 \(off by 0.25\), and column 3 sums to 1.25; "
        r"expected a sym",
    ),
    "the transpose": (
        PUSH_SUM["push-sum"].T,
        r"columns that sum to 1, as in .* \(the rows do: is W transposed\?\)$",
    ),
    "no transpose": (
        PUSH_SUM["push-sum"] + 0.1 * np.eye(4)[[3, 3, 1, 3]] * (np.arange(4)[:, None] == 2),
        r"columns that sum to 1, as in W / W.sum\(axis=0\)$",
    ),
    "a row": (
        changed(star(5), W33=star(5)[3, 3] - 0.02),
        r"mine: row 3 of W sums to 0.98 \(off by 0.02\); expected 1",
    ),
    "a negative weight": (
        changed(THREE, W10=THREE[1, 0] - 0.5, W00=THREE[0, 0] + 0.5),
        r"mine: row 1 of W sums to 0.333333, so W is for push-sum, but W\[1, 0\] = -0.16.*expected "
        r"weights >= 0",
    ),
    "nothing kept": (
        changed(THREE, W11=0, W21=1),
        r"mine: W\[1, 1\] = 0; expected a positive diagonal, as push-sum needs",
    ),
    "nan": (changed(star(5), W24=np.nan), r"mine: W\[2, 4\] = nan; expected finite weights"),
    "infinite": (changed(star(5), W24=-np.inf), r"mine: W\[2, 4\] = -inf; expected finite weights"),
    "two components": (
        PAIRS,
        r"mine: the graph has 2 components, one of them workers \{(0, 1|2, 3)\}; expected a "
        r"conn\w+ graph, or",
    ),
    "a directed path": (
        arcs([(0, 1), (1, 2), (2, 3)], 4),
        r"has 4 components, one of them workers \{0\}; expected a strongly "
        r"connected graph",
    ),
    "eight workers": (np.kron(np.eye(2), np.full((8, 8), 1 / 8)), r"\{0, 1, 2, 3, 4, 5, 6, 7\}"),
    "nine workers": (
        np.kron(np.eye(2), np.full((9, 9), 1 / 9)),
        r"\{0, 1, 2, 3, 4, 5, 6, 7, \.\.\.\}",
    ),
    "rounds of different sizes": (
        [star(4), star(5), star(6)],
        r"mine, round 1: W has shape \(5, 5\), that of the first round \(4, 4\); expected the same number",
    ),
    "a wrong round": (
        [star(4), star(4), star(4) + np.eye(4)],
        r"mine, round 2: row 0 of W sums to 2 \(off by 1\)",
    ),
    "no rounds": ([], "mine: W is an empty schedule; expected at least one mixing matrix"),
    "no rounds in an array": (
        np.zeros((0, 4, 4)),
        "mine: W is an empty schedule; expected at least one mixing matrix",
    ),
    "two halves swapped": (circulant(6, {1: 0.5}), DIVERGES.format(1)),
    "a permutation": (np.roll(np.eye(5), 1, axis=0), DIVERGES.format(1)),
    "models run apart": (circulant(8, {1: -0.1}), DIVERGES.format(1.4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_mixing_matrix_is_refused(name):
    W, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        Topology("mine", W)


@pytest.mark.parametrize("eps", [0.0, 1.0, math.nan])
def test_mixing_time_needs_a_part(eps):
    with pytest.raises(
        ValueError, match=rf"mixing_time: eps = {eps}; expected a number between 0 and 1"
    ):
        Topology("star", star(4)).mixing_time(eps)
