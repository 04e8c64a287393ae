"""Mistakes in messages along edges, in accelerated gossip, and in the methods that use them."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

COMMUNICATOR = "tests/dsgd/communication/test_communicator.py -k"
EDGES, ACCELERATION = "tests/algorithms/test_edges.py -k", "tests/topologies/test_acceleration.py"
STATEMENTS = "tests/theory_checks/test_statements.py -k"

MISTAKES = [
    Mistake(
        "dsgd/workers/routes.py",
        "edges[np.lexsort((sender, receiver))]",
        "edges",
        f"{COMMUNICATOR} to_each_neighbour",
    ),
    Mistake(
        "dsgd/workers/mixing.py",
        "arrives &= participants.arrives(axis.ids(topology.n)[:, None], receivers)",
        "pass",
        f"{COMMUNICATOR} vectors_of_neighbours",
    ),
    Mistake(
        "dsgd/workers/mixing.py",
        "times = 1 if weighted else topology.n",
        "times = 1",
        f"{COMMUNICATOR} unweighted",
    ),
    Mistake(
        "dsgd/communication/communicator.py",
        "bits.of_tree(tree) // max(1, topology.degree)",
        "bits.of_tree(tree)",
        f"{COMMUNICATOR} to_each_neighbour",
    ),
    Mistake(
        "dsgd/graphs/accelerated.py",
        "- (omega - 1) * before",
        "+ (omega - 1) * before",
        ACCELERATION,
    ),
    Mistake("topologies/acceleration.py", "[1.0], 2.0", "[1.0], 1.0", ACCELERATION),
    Mistake(
        "topologies/graphs.py",
        "_both_ways(topology.n, reached[1:], before[reached[1:]])",
        "_both_ways(topology.n, reached[1:], reached[:-1])",
        "tests/topologies/test_graphs.py -k spanning",
    ),
    Mistake(
        "algorithms/decentralized/dlm.py",
        "g + (XL + Y)",
        "g + Y",
        f"{EDGES} dlm_is_extra",
    ),
    Mistake(
        "algorithms/decentralized/lt_admm.py",
        "(z - r) / 2",
        "(z + r) / 2",
        f"{STATEMENTS} LT-ADMM",
    ),
    Mistake(
        "algorithms/variance_reduction.py",
        "optax.tree.sub(at_x, at_snapshot)",
        "at_x",
        f"{STATEMENTS} LT-ADMM-VR",
    ),
    Mistake(
        "algorithms/decentralized/relay_sgd.py",
        "known[:, None] - m",
        "known[:, None]",
        f"{EDGES} relaysum",
    ),
    Mistake(
        "algorithms/decentralized/opapc.py",
        "2 * tau / (2 - tau)",
        "tau",
        f"{STATEMENTS} OPAPC",
    ),
]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
