"""Mistakes in graphs, in costs of messages on the switch, and in clusters."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

NETWORK, GRAPHS, TOPOLOGIES = (
    "tests/dsgd/network/test_",
    "tests/dsgd/graphs/test_",
    "tests/topologies/test_",
)
CLUSTERS, INTEGRALS = "tests/dsgd/test_clusters.py", "tests/dsgd/test_integrals.py"

MISTAKES = [
    Mistake(
        "dsgd/network/patterns.py",
        "* 2 / min(N, 2)",
        "* 2 / N",
        f"{NETWORK}patterns.py -k asynchronous",
    ),
    Mistake(
        "dsgd/network/patterns.py",
        "latency * (degree > 0)",
        "latency * degree",
        f"{NETWORK}patterns.py -k gossip",
    ),
    Mistake(
        "dsgd/network/clocks.py",
        "received + 2 * overlapped",
        "received + overlapped",
        f"{NETWORK}patterns.py -k servers_clock",
    ),
    Mistake(
        "dsgd/network/clocks.py",
        "jnp.maximum(busy(to, up, down), busy(origin, down, up))",
        "busy(to, up, down)",
        f"{NETWORK}patterns.py -k in_gossip",
    ),
    Mistake(
        "dsgd/network/clocks.py",
        "for ends in (to, origin)\n",
        "for ends in (to,)\n",
        f"{NETWORK}patterns.py -k in_gossip",
    ),
    Mistake(
        "dsgd/network/switch.py",
        "message.size * max(",
        "message.size * min(",
        f"{NETWORK}switch.py -k given_by_the_rules",
    ),
    Mistake(
        "dsgd/network/switch.py",
        "start + takes if self.overlap else arrived",
        "arrived",
        f"{NETWORK}switch.py -k given_by_the_rules",
    ),
    Mistake(
        "dsgd/graphs/matchings.py",
        "max(real.sum(axis=0).max(), real.sum(axis=1).max())",
        "real.sum(axis=1).max()",
        f"{GRAPHS}matchings.py",
    ),
    Mistake(
        "dsgd/graphs/spectra.py",
        "(len(matrices) << doublings)",
        "(1 << doublings)",
        f"{GRAPHS}topology.py -k of_a_schedule",
    ),
    Mistake(
        "dsgd/graphs/topology.py",
        'connection="strong"',
        'connection="weak"',
        f"{GRAPHS}topology.py -k invalid_mixing",
    ),
    Mistake(
        "dsgd/graphs/topology.py",
        'entry.col if role == "push" else entry.row',
        "entry.row",
        f"{GRAPHS}topology.py -k roots",
    ),
    Mistake(
        "dsgd/workers/mixing.py",
        "if topology.row_stochastic and not",
        "if topology.doubly_stochastic and not",
        "tests/algorithms/test_participation.py -k push_pull",
    ),
    Mistake(
        "dsgd/communication/record.py",
        "return one.topology.same_links(other.topology)",
        "return True",
        "tests/dsgd/communication/test_communicator.py -k not_joint",
    ),
    Mistake(
        "dsgd/graphs/topology.py",
        "(W.sum(axis=1) - 1).max() <= 100 * _EXACT",
        "(W.sum(axis=0) - 1).max() <= 100 * _EXACT",
        f"{GRAPHS}topology.py -k of_a_matrix",
    ),
    Mistake(
        "dsgd/clusters/integrals.py", "laps * large[n] + passed", "passed", f"{INTEGRALS} -k trace"
    ),
    Mistake(
        "dsgd/clusters/integrals.py", "jnp.minimum(rest, first)", "rest", f"{INTEGRALS} -k square"
    ),
    Mistake(
        "dsgd/clusters/quantity.py",
        "+ other.sample(second,",
        "+ other.sample(first,",
        f"{CLUSTERS} -k have_the_distribution",
    ),
    Mistake(
        "dsgd/clusters/cluster.py",
        "if self.down else self._sender",
        "if self.down else (_FREE, _DOWN)",
        f"{CLUSTERS} -k defaults_of_ports",
    ),
    Mistake(
        "topologies/weights.py",
        "np.maximum(degrees[edges.row], degrees[edges.col])",
        "np.minimum(degrees[edges.row], degrees[edges.col])",
        f"{TOPOLOGIES}graphs.py -k a_graph_has",
    ),
    Mistake(
        "topologies/schedules.py",
        "(ids - (1 << k)) % n",
        "(ids + (1 << k)) % n",
        f"{TOPOLOGIES}schedules.py",
    ),
    Mistake(
        "topologies/graphs.py",
        "(ids + np.tile(hops, n)) % n",
        "(ids - np.tile(hops, n)) % n",
        f"{TOPOLOGIES}graphs.py -k forward",
    ),
]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
