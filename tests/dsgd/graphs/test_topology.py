"""Properties of mixing matrices: rho, senders and receivers, and mixing times; an invalid matrix is
refused with the invalid entry.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from matrices import circulant, second_largest

import topologies
from dsgd import Topology
from topologies import from_matrix


def metropolis(edges, n: int) -> np.ndarray:
    degree = np.bincount(np.ravel(list(edges)).astype(int), minlength=n)
    W = np.zeros((n, n))
    for i, j in edges:
        W[i, j] = W[j, i] = 1 / (1 + max(degree[i], degree[j]))
    return W + np.diag(1 - W.sum(axis=1))


def star(n: int) -> np.ndarray:
    return metropolis([(0, i) for i in range(1, n)], n)


def arcs(pairs, n: int) -> np.ndarray:
    """Returns push-sum weights: each sender shares equally among itself and its receivers."""
    W = np.eye(n)
    for sender, receiver in pairs:
        W[receiver, sender] = 1
    return W / W.sum(axis=0)


def shift_matrix(n: int, by: int = 1) -> np.ndarray:
    """Returns the matrix in which each worker sends everything to the worker `by` further."""
    return np.roll(np.eye(n), by, axis=0)


def halves(n: int, by: int = 1) -> np.ndarray:
    """Returns the matrix in which each worker keeps half and sends half to the worker `by` further;
    it is doubly stochastic.
    """
    return (np.eye(n) + shift_matrix(n, by)) / 2


def distances(rounds: list[np.ndarray], until: int) -> list[float]:
    """Returns the remaining disagreement after 0, 1, 2, ... rounds: the largest singular value,
    with rows scaled as in push-sum.
    """
    P, left = np.eye(len(rounds[0])), []
    for t in range(until + 1):
        left.append(np.linalg.norm(P / P.sum(axis=1)[:, None] - 1 / len(P), 2))
        P = rounds[t % len(rounds)] @ P
    return left


SYMMETRIC = {
    "two": np.array([[0.7, 0.3], [0.3, 0.7]]),
    "circulant, even": circulant(12, {1: 0.1, 3: 0.2, 6: 0.15}),
    "circulant, negative weights": circulant(9, {1: 0.4, 2: -0.05}),
    "circulant, rho from the negative end": circulant(8, {1: 0.45}),
    "star": star(6),
    "weighted": np.array([[0.5, 0.4, 0.1], [0.4, 0.35, 0.25], [0.1, 0.25, 0.65]]),
    "irregular with as many entries a row": np.array(
        [[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 0.5, 0.5]]
    ),
    "one place, other weights": np.array(
        [[0.5, 0.2, 0, 0.3], [0.2, 0.7, 0.1, 0], [0, 0.1, 0.5, 0.4], [0.3, 0, 0.4, 0.3]]
    ),
}
DOUBLY = {
    "directed cycle": halves(5),
    "directed circulant": 0.5 * np.eye(7) + 0.3 * shift_matrix(7) + 0.2 * shift_matrix(7, 3),
    "directed, mixed": 0.2 * np.eye(6)
    + 0.3 * shift_matrix(6)
    + 0.5 * np.eye(6)[[1, 0, 2, 4, 3, 5]],
    "negative weights, nothing kept": 0.55 * shift_matrix(5)
    + 0.5 * shift_matrix(5, 2)
    - 0.05 * shift_matrix(5, -1),
}
PUSH_SUM = {
    "push-sum": arcs([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], 4),
    "push-sum, uneven": np.array([[0.9, 0.0, 0.5], [0.05, 0.3, 0.25], [0.05, 0.7, 0.25]]),
}
MATRICES = SYMMETRIC | DOUBLY | PUSH_SUM
THIRDS = np.full((3, 3), 1 / 3)
PAIRS = np.kron(np.eye(2), np.full((2, 2), 0.5))
SCHEDULES = {
    "halves in turn": [halves(8, by) for by in (1, 2, 4)],
    "pairs in turn": [
        PAIRS,
        np.array([[1, 0, 0, 0], [0, 0.6, 0.4, 0], [0, 0.4, 0.6, 0], [0, 0, 0, 1.0]]),
    ],
    "push-sum in turn": [
        arcs([(0, 1), (2, 1)], 4),
        arcs([(1, 3)], 4),
        arcs([(3, 0), (3, 2), (0, 2)], 4),
    ],
    "symmetric, then directed": [circulant(5, {1: 0.3}), halves(5)],
    "ring, then star": [circulant(6, {1: 1 / 3}), star(6)],
}


@st.composite
def connected_graphs(draw) -> np.ndarray:
    """Draws a tree and some more edges, or push-sum on a cycle and some more arcs."""
    n = draw(st.integers(2, 8))
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    some = draw(st.lists(st.sampled_from(pairs), max_size=8))
    if draw(st.booleans()):
        tree = [(draw(st.integers(0, i - 1)), i) for i in range(1, n)]
        return metropolis({tuple(sorted(pair)) for pair in [*tree, *some]}, n)
    order = draw(st.permutations(range(n)))
    return arcs({*zip(order, order[1:] + order[:1], strict=True), *some}, n)


def check(rounds: list[np.ndarray], *, rho: float) -> None:
    """Compares the properties of a topology with numpy's general solver, counts of entries and
    products of all rounds. A round may increase the disagreement (push-sum, negative weights): the
    mixing time is one at which it falls below eps.
    """
    topology, n = Topology("mine", np.stack(rounds)), len(rounds[0])
    P = np.linalg.multi_dot([*rounds[::-1], np.eye(n)])
    links = np.stack([(W != 0) & ~np.eye(n, dtype=bool) for W in rounds])
    symmetric = all((W == W.T).all() for W in rounds)
    assert (topology.n, topology.period) == (n, len(rounds))
    assert topology.uniform == (len(rounds) == 1 and np.allclose(P, 1 / n))
    np.testing.assert_allclose(topology.W, P, rtol=0, atol=1e-14)
    for kept, W in zip(topology.matrices, rounds, strict=True):
        np.testing.assert_allclose(kept.toarray(), W, rtol=0, atol=1e-15)
    assert topology.rho == pytest.approx(second_largest(P), abs=rho)
    assert topology.spectral_gap == 1 - topology.rho
    assert topology.symmetric == symmetric
    assert topology.doubly_stochastic == all(np.allclose(W.sum(axis=1), 1) for W in rounds)
    assert topology.out_degrees.tolist() == links.sum(axis=1).tolist()
    assert topology.in_degrees.tolist() == links.sum(axis=2).tolist()
    assert topology.degree == max(topology.out_degrees.max(), topology.in_degrees.max())
    pairs = np.argwhere(np.triu(links.any(axis=0)) if symmetric else links.any(axis=0).T)
    assert topology.edges.tolist() == pairs.tolist()
    if symmetric and len(rounds) == 1:
        values = np.sort(np.linalg.eigvals(P).real)
        assert topology.smallest_eigenvalue == pytest.approx(values[0], abs=1e-12)
        second = values[-2] if n > 1 else 0.0
        assert topology.second_eigenvalue == pytest.approx(second, abs=1e-12)
    for eps in (0.9, 0.1, 1e-3, 1e-6):
        left = distances(rounds, topology.mixing_time(eps))
        assert left[-1] <= eps * (1 + 1e-9)
        assert left[-2] > eps * (1 - 1e-9)


@pytest.mark.parametrize("name", MATRICES)
def test_properties_of_a_matrix_are_found(name):
    """With permuted workers, a circulant matrix is not circulant any more, and its eigenvalues are
    found by another algorithm.
    """
    W = MATRICES[name]
    order = np.random.default_rng(1).permutation(len(W))
    for same in (W, W[order][:, order]):
        check([same], rho=1e-12)
    assert Topology("mine", W).symmetric == (name in SYMMETRIC)
    assert Topology("mine", W).doubly_stochastic == (name not in PUSH_SUM)


@pytest.mark.parametrize("name", SCHEDULES)
def test_properties_of_a_schedule_are_found(name):
    """Up to the square root of a rounding: a defective product has ill-conditioned eigenvalues."""
    check(SCHEDULES[name], rho=1e-7)


@given(connected_graphs())
def test_properties_of_random_matrices_are_found(W):
    check([W], rho=1e-12 if (W == W.T).all() else 1e-6)  # some matrices are defective


@pytest.mark.parametrize("of", ["array", "csr_array", "coo_array", "lil_array", "csr_matrix"])
def test_W_is_a_read_only_copy_of_its_input(of):
    W = MATRICES["push-sum"]
    mine = W.copy() if of == "array" else getattr(scipy.sparse, of)(W)
    topology = Topology("mine", mine)
    mine *= 7
    np.testing.assert_array_equal(topology.W, W)
    assert topology.matrices[0].has_sorted_indices
    with pytest.raises(ValueError, match="read-only"):
        topology.W[0, 0] = 2
    with pytest.raises(AttributeError):
        topology.degree = 3


def test_stored_zeros_are_no_edges_and_duplicates_are_summed():
    """Compressed rows may contain 0, and may contain a half as two quarters; a list of such
    matrices is a schedule.
    """
    data = [0.5, 0.25, 0.25, 0.0, 0.5, 0.5, 0.5, 0.5]
    W = scipy.sparse.csr_array((data, [0, 2, 2, 1, 0, 1, 2, 1], [0, 4, 6, 8]), shape=(3, 3))
    topology = from_matrix([W, W], "twice")
    assert topology.out_degrees.tolist() == topology.in_degrees.tolist() == [[1, 1, 1]] * 2
    np.testing.assert_array_equal(topology.W, W.toarray() @ W.toarray())
    assert repr(topology) == "Topology(twice)"


def test_rounds_must_connect_and_converge_only_together():
    """Also if their weights cancel, and if rho is 1 up to rounding but each worker keeps a part."""
    others = (np.eye(4)[[0, 2, 1, 3]] + np.eye(4)) / 2
    assert Topology("together", np.stack([PAIRS, others])).rho < 1
    there, back = arcs([(0, 1), (1, 2)], 3), arcs([(2, 0)], 3)
    assert Topology("there and back", np.stack([there, back])).rho < 1
    once, again = circulant(2, {1: 0.2}), circulant(2, {1: -0.2})
    assert Topology("to and fro", np.stack([once, again])).rho == pytest.approx(0.84, abs=1e-12)
    assert Topology("slow", circulant(3, {1: 1e-14})).rho == pytest.approx(1, abs=1e-12)


# --- Matrices for push-pull methods.


@pytest.mark.parametrize("name", [*PUSH_SUM, "push-sum in turn"])
def test_the_transpose_of_a_push_sum_matrix_is_for_pull(name):
    """Its edges are reversed, its spectrum is the same, and its rows sum to 1."""
    rounds = SCHEDULES[name] if name in SCHEDULES else [PUSH_SUM[name]]
    pull = Topology("pull", [W.T for W in rounds[::-1]], role="pull")
    push = Topology("push", rounds)
    np.testing.assert_array_equal(pull.W, push.W.T)
    assert (pull.row_stochastic, pull.column_stochastic) == (True, False)
    assert (push.row_stochastic, push.column_stochastic) == (False, True)
    assert not pull.doubly_stochastic
    assert pull.rho == pytest.approx(second_largest(pull.W), abs=1e-12)
    assert pull.rho == pytest.approx(push.rho, abs=1e-12)
    assert {tuple(edge) for edge in pull.edges} == {tuple(edge[::-1]) for edge in push.edges}
    with pytest.raises(ValueError, match="mixing_time: pull is a topology for 'pull'"):
        pull.mixing_time(0.1)


PATH = arcs([(0, 1), (1, 2), (2, 3), (3, 2)], 4)  # all workers reach 2 and 3


def test_roots_reach_all_others_for_pull_and_are_reached_for_push():
    assert Topology("push", PATH, role="push").roots.tolist() == [2, 3]
    pull = Topology("pull", PATH.T, role="pull")
    assert pull.roots.tolist() == [2, 3]
    assert pull.rho == pytest.approx(second_largest(pull.W), abs=1e-12)
    in_turn = [arcs([pair], 3).T for pair in ((1, 0), (2, 1))]
    assert Topology("in turn", in_turn, role="pull").roots.tolist() == [0]
    assert Topology("mine", THIRDS).roots.tolist() == [0, 1, 2]


PULL_REFUSED = {
    "columns": (PUSH_SUM["push-sum"], "pull", r"row \d of W sums to .*columns do: is W transposed"),
    "sums": (2 * THIRDS, "pull", r'role = "pull", but row 0 of W sums to 2; expected 1'),
    "a negative weight": (
        np.array([[1.0, 0, 0], [0.5, 0.5, 0], [0.75, -0.25, 0.5]]),
        "pull",
        r"W\[2, 1\] = -0.25; expected weights >= 0",
    ),
    "nothing kept": (np.array([[1.0, 0], [1, 0]]), "pull", r"W\[1, 1\] = 0; expected .* diagonal"),
    "two roots": (arcs([(0, 1), (0, 2)], 3).T, "pull", "3 components.*a worker that reaches all"),
    "two ends": (arcs([(0, 1), (0, 2)], 3), "push", "3 components.*a worker that all others reach"),
    "rows for push": (PUSH_SUM["push-sum"].T, "push", "transposed"),
}


@pytest.mark.parametrize("name", PULL_REFUSED)
def test_matrices_that_do_not_fit_their_role_are_refused(name):
    W, role, message = PULL_REFUSED[name]
    with pytest.raises(ValueError, match=f"(?s)mine.*{message}"):
        Topology("mine", W, role=role)


# --- Errors that are corrected.

COARSE = {
    "float16": lambda W: W.astype(np.float16),
    "float32": lambda W: W.astype(np.float32),
    "bfloat16": lambda W: jnp.asarray(W, jnp.bfloat16),
    "lil": lambda W: scipy.sparse.lil_array(W.astype(np.float32)),
    "list": lambda W: W.astype(np.float32).tolist(),
    "seven digits": lambda W: np.round(W, 7),
}


@pytest.mark.parametrize("coarse", COARSE)
def test_rounding_errors_are_corrected(coarse):
    """Symmetric and doubly stochastic matrices stay so, and no edge is added or removed."""
    finest = {"float16": 1e-3, "bfloat16": 2.0**-8}.get(coarse, 1e-6)
    for W in [*MATRICES.values(), topologies.ring(7).W, topologies.erdos_renyi(9, 0.5, 1).W]:
        exact, fixed = Topology("mine", W), from_matrix(COARSE[coarse](W))
        np.testing.assert_allclose(fixed.W.sum(axis=0), 1, rtol=0, atol=1e-15)
        np.testing.assert_allclose(fixed.W, W, rtol=0, atol=4 * finest)
        for known in ("symmetric", "doubly_stochastic"):
            assert getattr(fixed, known) == getattr(exact, known)
        np.testing.assert_array_equal(fixed.edges, exact.edges)


# --- Invalid matrices.


def change(W: np.ndarray, **entries: float) -> np.ndarray:
    """Returns the matrix with other entries W_ij."""
    W = W.copy()
    for name, value in entries.items():
        W[int(name[1]), int(name[2])] = value
    return W


THREE = arcs([(0, 1), (1, 2), (2, 0), (0, 2)], 3)
REFUSED = {
    "not square": (np.ones((2, 3)) / 3, r"shape \(2, 3\)"),
    "0s and 1s": (np.ones((3, 3), int), r"sums to 3 \(off by 2\).*from_graph"),
    "asymmetric": (
        change(star(5), W13=0.25),
        r"W\[1, 3\] = 0.25 but W\[3, 1\] = 0 \(off by 0.25\), and column 3 sums to 1.25",
    ),
    "the transpose": (PUSH_SUM["push-sum"].T, "transposed"),
    "a negative weight": (
        change(THREE, W10=THREE[1, 0] - 0.5, W00=THREE[0, 0] + 0.5),
        r"row 1 of W sums to 0.333333.*W\[1, 0\] = -0.16",
    ),
    "nothing kept": (change(THREE, W11=0, W21=1), r"W\[1, 1\] = 0"),
    "nan": (change(star(5), W24=np.nan), r"W\[2, 4\] = nan"),
    "two components": (PAIRS, r"2 components, one of them workers \{(0, 1|2, 3)\}"),
    "the same two in each round": (np.stack([PAIRS, PAIRS]), r"2 components"),
    "a directed path": (
        arcs([(0, 1), (1, 2), (2, 3)], 4),
        r"4 components, one of them workers \{0\}.*strongly",
    ),
    "rounds of different sizes": ([star(4), star(5)], r"round 1: .*\(5, 5\).*\(4, 4\)"),
    "a wrong round": ([star(4), star(4), star(4) + np.eye(4)], "round 2: row 0 .* 2 "),
    "no rounds": ([], "schedule"),
    "a permutation": (shift_matrix(5), "rho = 1,"),
    "models run apart": (circulant(8, {1: -0.1}), "rho = 1.4,"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_mixing_matrices_are_refused(name):
    W, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"(?s)mine.*{message}"):
        Topology("mine", W)
