"""Rows cross devices in the fewest permutes, and all required rows arrive: simulated in numpy,
nothing is compiled.
"""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import topologies
from dsgd import Topology
from dsgd.workers import routes

Pairs = list[tuple[int, int]]


@st.composite
def gossip(draw) -> tuple[int, int, str, list[int], Pairs]:
    """Draws devices, workers, a kind of graph, a random order of the workers as a path, and other
    pairs.
    """
    devices, block = draw(
        st.sampled_from([(1, 4), (2, 1), (2, 3), (3, 2), (4, 1), (4, 2), (5, 2), (6, 1)])
    )
    n = devices * block
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    kind = draw(st.sampled_from(["undirected", "directed", "schedule"]))
    return (
        devices,
        n,
        kind,
        draw(st.permutations(range(n))),
        draw(st.lists(st.sampled_from(pairs), max_size=2 * n)),
    )


def build(n: int, kind: str, order: list[int], some: Pairs) -> Topology:
    path = list(itertools.pairwise(order))
    if kind == "undirected":
        return topologies.from_graph(graph(nx.Graph, n, [*path, *some]))
    cycle = [*path, (order[-1], order[0])]
    if kind == "directed":
        return topologies.from_graph(graph(nx.DiGraph, n, [*cycle, *some]))
    return topologies.from_matrix(
        [topologies.uniform(adjacency(n, arcs)) for arcs in (cycle[::2], some, cycle[1::2])]
    )


def graph(kind: type[nx.Graph], n: int, pairs: Pairs) -> nx.Graph:
    made = nx.empty_graph(n, create_using=kind)
    made.add_edges_from(pairs)
    return made


def adjacency(n: int, arcs: Pairs):
    return nx.to_scipy_sparse_array(graph(nx.DiGraph, n, arcs), format="csr", dtype=float).T.tocsr()


def table(plan: routes.Routes, turn: int, device: int, rows: np.ndarray, block: int) -> np.ndarray:
    """Returns the rows on a device after permutes, or the gather, have been executed."""
    if plan.permutes is None:
        return rows
    found = [rows[device * block : (device + 1) * block]]
    for pairs, sent in plan.permutes[turn]:
        assert all(set(sent[sender] // block) == {sender} for sender, _ in pairs)
        senders = [sender for sender, receiver in pairs if receiver == device]
        assert len(senders) <= 1
        found.append(
            rows[sent[senders[0]]] if senders else np.zeros((sent.shape[1], *rows.shape[1:]))
        )
    brought = np.concatenate(found)
    assert len(brought) <= plan.length
    return np.concatenate([brought, np.full((plan.length - len(brought), *rows.shape[1:]), np.nan)])


@given(gossip())
def test_a_plan_moves_exactly_the_rows_that_W_requires(given):
    devices, topology = given[0], build(*given[1:])
    for rows in (True, False):  # sums of a few rows, and products with the whole table
        plan = routes.routes_of.__wrapped__(topology, devices, rows)
        assert (plan.places is None) == (not rows)
        check_sums(plan, topology, devices)
    check_cost(plan, topology, devices)


def check_sums(plan: routes.Routes, topology: Topology, devices: int) -> None:
    """Checks that each device's weights applied to its table give the product with W."""
    block = topology.n // devices
    x = np.random.default_rng(0).normal(size=(topology.n, 2))
    others = [W - scipy.sparse.diags_array(W.diagonal()) for W in topology.matrices]
    assert plan.permutes is None or len(plan.permutes) == topology.period
    for turn, W in enumerate(matrix.toarray() for matrix in others):
        for device in range(devices):
            rows = np.nan_to_num(table(plan, turn, device, x, block))
            assert len(rows) == plan.length
            weights = plan.weights[turn, device]
            if plan.places is not None:
                assert ((plan.places >= 0) & (plan.places < plan.length)).all()
            terms = np.broadcast_to(
                rows if plan.places is None else rows[plan.places[turn, device]],
                (*weights.shape, 2),
            )
            own = slice(device * block, (device + 1) * block)
            np.testing.assert_allclose(
                np.einsum("nk,nkd->nd", weights, terms), W[own] @ x, atol=1e-14
            )
            np.testing.assert_allclose(
                np.einsum("nk,nkd->nd", weights != 0, terms), (W[own] != 0) @ x, atol=1e-14
            )


def check_cost(plan: routes.Routes, topology: Topology, devices: int) -> None:
    """Checks that the number of permutes is the number of a device's peers, and that they move less
    than a gather; otherwise the gather is used.
    """
    block = topology.n // devices
    device = np.arange(topology.n) // block
    cost = []
    for turn, W in enumerate(topology.matrices):
        receivers, senders = np.nonzero(W.toarray())
        crossing = {
            (device[j], device[i])
            for i, j in zip(receivers, senders, strict=True)
            if device[i] != device[j]
        }
        peers = max(
            [pair[end] for pair in crossing].count(d) for end in (0, 1) for d in range(devices)
        )
        if plan.permutes is not None:
            assert len(plan.permutes[turn]) == peers
            assert {pair for pairs, _ in plan.permutes[turn] for pair in pairs} == crossing
            for pairs, sent in plan.permutes[turn]:
                for sender, receiver in pairs:
                    needed = {
                        j
                        for i, j in zip(receivers, senders, strict=True)
                        if device[i] == receiver and device[j] == sender
                    }
                    assert set(sent[sender, : len(needed)]) == needed
            cost.append(sum(sent.shape[1] for _, sent in plan.permutes[turn]))
    if plan.permutes is None:
        assert devices > 1
        assert plan.length == topology.n
    else:
        assert devices == 1 or max(cost) < topology.n - block
        assert plan.length == block + max(cost)


def test_rounds_that_differ_in_one_entry_of_a_long_list_have_different_plans():
    """numpy abbreviates an array of more than 1000 elements when it is printed: rounds must not be
    compared by their text.
    """
    workers = np.arange(1200)[None, :].repeat(2, axis=0)
    other = workers.copy()
    other[1, 600] = 7
    a, b = ([routes.Permute([(0, 1), (1, 0)], rows)] for rows in (workers, other))
    rounds, which = routes.different([a, b, a, b, b])
    assert [one is a or one is b for one in rounds] == [True, True]
    assert which.tolist() == [0, 1, 0, 1, 1]
