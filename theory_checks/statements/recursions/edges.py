"""Methods with variables of the edges, the unweighted Laplacian or accelerated gossip, compared
with their recursions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import algorithms
import topologies
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Symbols
from theory_checks.machinery.trajectories import N, Trajectory
from theory_checks.recursions import edges
from theory_checks.statements.recursions.shared import (
    BITS,
    graph,
    matrices,
    on_graph,
)

TAU, RHO, BETA, K = 3, 0.4, 0.2, 3
L, MU = 1.3, 0.1
COUNT = 32  # bits of a count
VARIABLES = ("z", "messages", "counts")  # of the edges


def _adjacency(on: str) -> np.ndarray:
    return np.where(np.eye(N), 0, matrices(on)(0) != 0)


def _on_edges(on: str) -> Callable[[Trajectory, Symbols], Symbols]:
    """Returns the symbols of the method, those of edges as `[T, N, N, ...]` with 0 for pairs that
    are not neighbours. A worker has its neighbours in ascending order.
    """
    A = _adjacency(on)

    def pairs(values: np.ndarray) -> np.ndarray:
        found = np.zeros((len(values), N, N, *values.shape[3:]), values.dtype)
        for i in range(N):
            neighbours = np.flatnonzero(A[i])
            found[:, i, neighbours] = values[:, i, : len(neighbours)]
            assert not values[:, i, len(neighbours) :].any()
        return found

    def seen(found: Trajectory, papers: Symbols) -> Symbols:
        symbols = {"params": trajectories.rows(found.states.workers.params)}
        for name in papers.keys() & set(VARIABLES):
            value = getattr(found.states.workers, name)
            symbols[name] = pairs(value if name == "counts" else trajectories.rows(value, 3))
        return symbols

    return seen


def _local(found: Trajectory) -> Trajectory:
    """Returns the rounds with the states of LT-ADMM in place of those of LT-ADMM-VR."""
    states = found.states
    return found._replace(states=states._replace(workers=states.workers.inner))


CASES = (
    on_graph(
        "LT-ADMM",
        "Ren et al. 2024",
        lambda optimizer: algorithms.lt_admm(
            optimizer, graph("irregular"), TAU, penalty=RHO, correction_step=BETA
        ),
        lambda inputs: edges.local_admm(
            inputs.X, inputs.G, _adjacency("irregular"), inputs.step, TAU, RHO, BETA
        ),
        "irregular",
        every=TAU,
        seen=_on_edges("irregular"),
        optimizer="momentum",
    ),
    on_graph(
        "LT-ADMM-VR",
        "Ren et al. 2025",
        lambda optimizer: algorithms.lt_admm_vr(
            optimizer, graph("star"), TAU, penalty=RHO, correction_step=BETA
        ),
        lambda inputs: edges.local_admm(
            inputs.X, inputs.exact, _adjacency("star"), inputs.step, TAU, RHO, BETA
        ),
        "star",
        every=TAU,
        seen=lambda found, papers: _on_edges("star")(_local(found), papers),
        hypotheses="on star; the noise of a gradient does not depend on the model",
    ),
    on_graph(
        "DLM",
        "Ling et al. 2015",
        lambda optimizer: algorithms.dlm(optimizer, graph("irregular"), RHO),
        lambda inputs: edges.linearized_admm(
            inputs.X, inputs.G, _adjacency("irregular"), inputs.step, RHO
        ),
        "irregular",
        optimizer="momentum",
    ),
    on_graph(
        "RelaySGD",
        "Vogels et al. 2021",
        lambda optimizer: algorithms.relay_sgd(optimizer, graph("tree")),
        lambda inputs: edges.relayed(inputs.X, inputs.G, _adjacency("tree"), inputs.step),
        "tree",
        BITS + COUNT,
        seen=_on_edges("tree"),
        optimizer="momentum",
    ),
    on_graph(
        "DSGD, accelerated gossip",
        "Scaman et al. 2017, algorithm 2",
        lambda optimizer: algorithms.decentralized_sgd(
            optimizer, topologies.chebyshev(graph("irregular"), K)
        ),
        lambda inputs: edges.accelerated_gossip(
            inputs.X, inputs.G, matrices("irregular")(0), inputs.step, K
        ),
        "irregular",
        K * BITS,
    ),
    on_graph(
        "OPAPC",
        "Kovalev et al. 2020, algorithm 3",
        lambda optimizer: algorithms.opapc(graph("irregular"), L, MU),
        lambda inputs: edges.optimal(inputs.X, inputs.exact, matrices("irregular")(0), L, MU),
        "irregular",
        edges.exchanges(matrices("irregular")(0)) * BITS,
    ),
)
