"""Patterns: closed forms against the table of the notes, and against the event simulation; and what they do to workers' clocks."""

from __future__ import annotations

import inspect
import random
from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import topologies
from dsgd import network
from dsgd.base import Pattern
from dsgd.graphs.matchings import matchings
from dsgd.network.switch import CONVENTIONS

LATENCY, TRANSFER = Fraction(3, 7), Fraction(5, 11)
TIMES = [(LATENCY, TRANSFER), (Fraction(0), TRANSFER), (LATENCY, Fraction(0)), (Fraction(5), Fraction(1, 3))]
SIZES = (2, 3, 4, 5, 7, 8, 16, 33, 64)  # odd ones, even ones, powers of two; the closed forms have one branch, at N = 1
ONE_SERVER = [network.parameter_server, network.star]
TOGETHER = [network.multi_server, network.ring_all_reduce, network.ring_all_reduce_unpartitioned]
ALL_REDUCES = [*ONE_SERVER, *TOGETHER]
ROWS = [network.all_gather, network.ring_shift]  # each worker's own vector goes to others

TABLE = {
    "parameter server": (network.parameter_server, lambda N, l, r: 2 * N * (l + r), lambda N, l, r: 2 * (l + N * r)),
    "star": (network.star, *[lambda N, l, r: 2 * (l + r)] * 2),
    "ring": (network.ring_all_reduce, *[lambda N, l, r: 2 * (N - 1) * (l + r / N)] * 2),
    "whole ring": (network.ring_all_reduce_unpartitioned, *[lambda N, l, r: 2 * (N - 1) * (l + r)] * 2),
    "multi-server": (
        network.multi_server,
        lambda N, l, r: 2 * (N - 1) * (l + r / N),
        lambda N, l, r: 2 * l + 2 * (N - 1) * r / N if N > 1 else 0,
    ),
    "gossip on a ring": (
        lambda N: network.gossip(topologies.ring(N)),
        lambda N, l, r: [0, l + r, 2 * (l + r)][min(N, 3) - 1],
        lambda N, l, r: [0, l + r, l + 2 * r][min(N, 3) - 1],
    ),
    "gossip with everybody": (
        lambda N: network.gossip(topologies.complete(N)),
        lambda N, l, r: (N - 1) * (l + r),
        lambda N, l, r: l + (N - 1) * r if N > 1 else 0,
    ),
    "all-gather": (
        network.all_gather,
        lambda N, l, r: (N - 1) * (l + r),
        lambda N, l, r: l + (N - 1) * r if N > 1 else 0,
    ),
    "ring shift": (network.ring_shift, *[lambda N, l, r: l + r if N > 1 else 0] * 2),
    "local": (network.local, *[lambda N, l, r: 0] * 2),
    "asynchronous server": (
        network.asynchronous_server,
        lambda N, l, r: max(1, Fraction(2, N)) * (l + r),
        lambda N, l, r: max(r, Fraction(2, N) * (l + r)),
    ),
    "asynchronous gossip": (network.asynchronous_gossip, *[lambda N, l, r: (l + r) / (N // 2) if N > 1 else 0] * 2),
}


def directed(N: int):
    """A directed cycle and some more arcs."""
    graph = nx.cycle_graph(N, create_using=nx.DiGraph)
    draw = random.Random(N)
    graph.add_edges_from(draw.sample(range(N), 2) for _ in range(N))
    return topologies.from_graph(graph)


RANDOM = range(2, 65)  # each another graph
GRAPHS = {
    "ring": (topologies.ring, SIZES),
    "star": (topologies.star, SIZES),
    "complete": (topologies.complete, SIZES),
    "exponential": (topologies.exponential, SIZES),
    "erdos_renyi": (lambda N: topologies.erdos_renyi(N, min(1, 0.1 + 4 / N), N), RANDOM),
    "directed": (directed, RANDOM),
    "hypercube": (lambda N: topologies.hypercube(N.bit_length() - 1), [2, 4, 8, 16, 32, 64]),
}
SCHEDULES = [topologies.one_peer_exponential(8), topologies.random_matchings(7, period=5), topologies.one_peer_exponential(3)]


@cache
def pattern_of(name: str, N: int):
    pattern = TABLE[name][0]
    return pattern if isinstance(pattern, Pattern) else pattern(N)


def in_parts(messages, N: int):
    """The messages with sizes in parts of 1 / N of a vector, as ints, with which the simulation is exact and fast."""
    parts = [N * message.size for message in messages]
    assert all(part == int(part) for part in parts)
    return [message._replace(size=int(part)) for message, part in zip(messages, parts, strict=True)]


def id_of(value):
    return getattr(value, "name", None)


@pytest.mark.parametrize("name", TABLE)
def test_costs_are_the_tables_exactly(name):
    _, blocking, pipelined = TABLE[name]
    for N in range(1, 65):
        pattern = pattern_of(name, N)
        assert network.cost(pattern, N, LATENCY, TRANSFER) == blocking(N, LATENCY, TRANSFER)
        assert network.cost(pattern, N, LATENCY, TRANSFER, "blocking") == blocking(N, LATENCY, TRANSFER)
        assert network.cost(pattern, N, LATENCY, TRANSFER, "pipelined") == pipelined(N, LATENCY, TRANSFER)


@pytest.mark.parametrize("pattern", [*ALL_REDUCES, *ROWS], ids=id_of)
def test_costs_are_what_the_simulation_takes(simulate, pattern):
    for N in SIZES:
        messages = in_parts(pattern.messages(N), N)
        for convention in CONVENTIONS:
            simulated = simulate(messages, 3, 5, convention).seconds
            assert network.cost(pattern, N, Fraction(3), Fraction(5 * N), convention) == simulated, (N, convention)


@pytest.mark.parametrize("graph", GRAPHS)
def test_costs_of_gossip_are_what_the_simulation_takes(simulate, graph):
    build, sizes = GRAPHS[graph]
    for N in sizes:
        topology = build(N)
        pattern = network.gossip(topology)
        messages = pattern.messages(N)
        assert sorted((message.sender, message.receiver) for message in messages) == sorted(map(tuple, topology.links[0].tolist()))
        for convention in CONVENTIONS:
            simulated = simulate(messages, 3, 5, convention).seconds
            assert network.cost(pattern, N, 3, 5, convention) == simulated, (N, convention)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_costs_of_few_workers_are_what_the_simulation_takes(simulate, convention):
    """At many latencies and transfers, 0 among them; also of one worker, who sends nothing but to a server."""
    for N in (1, 2, 3, 4, 6):
        patterns = [*ALL_REDUCES, *ROWS, network.local, *[pattern_of(name, N) for name in TABLE if name.startswith("gossip")]]
        for pattern in patterns:
            messages = pattern.messages(N)
            for latency, transfer in TIMES:
                simulated = simulate(messages, latency, transfer, convention).seconds
                assert network.cost(pattern, N, latency, transfer, convention) == simulated, (pattern.name, N, latency, transfer)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=id_of)
def test_costs_of_schedules_are_means_of_what_the_simulation_takes(simulate, schedule, convention):
    """Its messages are those of its turns."""
    pattern, N = network.gossip(schedule), schedule.n
    assert pattern.messages is None
    messages = []
    for links in schedule.links:
        pairs = [(int(i), int(j)) for i, j in links]
        messages.append([network.Message(*pair) for group in matchings(pairs, N) for pair in group])
    seconds = [simulate(one, LATENCY, TRANSFER, convention).seconds for one in messages]
    assert network.cost(pattern, N, LATENCY, TRANSFER, convention) == Fraction(sum(seconds)) / len(seconds)
    assert pattern.vectors(N) == pytest.approx(sum(map(len, messages)) / N / len(messages))


@pytest.mark.parametrize("pattern", ALL_REDUCES, ids=id_of)
def test_messages_bring_everybody_the_sum_of_all(pattern):
    """Followed from message to message: of whom the sums are that are sent. Who makes a part of the whole sum need not receive it. All
    numbers from N on are one server's."""
    for N in range(2, 10):
        messages, sums, whole = pattern.messages(N), [], [Fraction(0)] * (2 * N)
        for message in messages:
            assert all(min(messages[j].receiver, N) == min(message.sender, N) for j in message.after)
            sums.append({message.sender}.union(*(sums[j] for j in message.after)))
            if sums[-1] >= set(range(N)):
                whole[message.receiver] += Fraction(message.size)
        expected = {"parameter_server": [1] * N, "star": [1] * N, "ring_all_reduce_unpartitioned": [0] + [1] * (N - 1)}
        assert sorted(whole[:N]) == expected.get(pattern.name, [1 - Fraction(1, N)] * N)


@pytest.mark.parametrize("name", TABLE)
def test_pipelining_never_costs(name):
    for N in (1, 2, 3, 10, 64):
        for latency, transfer in TIMES:
            pattern = pattern_of(name, N)
            assert network.cost(pattern, N, latency, transfer, "pipelined") <= network.cost(pattern, N, latency, transfer, "blocking")


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("pattern", [*ALL_REDUCES, network.gossip(topologies.star(6)), network.gossip(topologies.ring(6))], ids=id_of)
def test_measured_bits_become_the_transfer_of_a_full_vector(pattern, convention):
    vector, bandwidth, latency, N = 1_000_003, 2.5e6, 0.125, 6
    sent = sum(message.size for message in pattern.messages(N) if message.sender < N)
    seconds = network.round_seconds(pattern, N, float(sent * vector / N), latency=latency, bandwidth=bandwidth, convention=convention)
    assert seconds == pytest.approx(network.cost(pattern, N, latency, vector / bandwidth, convention), rel=1e-12)


def test_fewer_bits_take_less_time_but_the_latency_stays():
    seconds = [network.round_seconds(network.ring_all_reduce, 4, bits, latency=0.5, bandwidth=100.0) for bits in (0.0, 150.0, 300.0)]
    assert seconds == [2 * 3 * 0.5, pytest.approx(3 + 1.5), pytest.approx(3 + 3)]


def test_local_work_takes_no_time_on_the_network():
    assert network.round_seconds(network.local, 4, 0.0, latency=1.0, bandwidth=1.0) == 0


@pytest.mark.parametrize("convention", ["blocking", "pipelined"])
def test_cost_of_an_array_of_latencies(convention):
    latency, transfer = np.array([0.5, 1.0, 2.0]), np.array([1.0, 0.0, 3.0])
    for name in TABLE:
        pattern = pattern_of(name, 4)
        one_by_one = [network.cost(pattern, 4, *pair, convention) for pair in zip(latency.tolist(), transfer.tolist(), strict=True)]
        np.testing.assert_allclose(network.cost(pattern, 4, latency, transfer, convention), one_by_one)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": 0}, "cost for 0 workers: need at least 1"),
        ({"latency": -1}, "latency = -1"),
        ({"latency": Fraction(-1, 3)}, "latency = -1/3"),
        ({"latency": float("nan")}, "latency = nan"),
        ({"transfer": -0.5}, "transfer = -0.5"),
        ({"transfer": float("nan")}, "transfer = nan"),
        ({"latency": np.array([1.0, -1.0])}, "latency"),
    ],
)
def test_cost_refuses(change, message):
    arguments = {"workers": 4, "latency": 1, "transfer": 1} | change
    with pytest.raises(ValueError, match=message):
        network.cost(network.parameter_server, **arguments)


def test_cost_refuses_an_unknown_convention():
    with pytest.raises(ValueError, match="unknown convention 'duplex': need 'blocking' or 'pipelined'"):
        # Under pytest the annotation would catch it; a user has only the check inside.
        inspect.unwrap(network.cost)(network.parameter_server, 4, 1, 1, "duplex")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bandwidth": 0.0}, "bandwidth = 0.0 bit/s: need > 0"),
        ({"bandwidth": -1.0}, "bandwidth = -1.0"),
        ({"bandwidth": float("nan")}, "bandwidth = nan"),
        ({"bits_up": -1.0}, "bits_up = -1.0: need >= 0"),
        ({"bits_up": float("nan")}, "bits_up = nan"),
        ({"latency": -1.0}, "latency = -1.0"),
        ({"workers": 0}, "for 0 workers"),
    ],
)
@pytest.mark.parametrize("pattern", [network.parameter_server, network.ring_all_reduce], ids=lambda pattern: pattern.name)
def test_round_seconds_refuses(pattern, change, message):
    arguments = {"workers": 4, "bits_up": 100.0, "latency": 1.0, "bandwidth": 1.0} | change
    with pytest.raises(ValueError, match=message):
        network.round_seconds(pattern, **arguments)


@cache
def laps_of(N: int, compute, convention, servers: int = 1):
    """Seconds of an update where all is in order: the server's arrivals of many laps, exactly."""
    laps = 24
    messages = network.asynchronous_server_messages([[compute] * laps] * N, servers)
    passages = network.simulate(messages, LATENCY, TRANSFER, convention).passages
    arrivals = sorted(passage.arrived for passage in passages if passage.message.receiver == N + servers - 1)
    return (arrivals[20 * N - 1] - arrivals[10 * N - 1]) / (10 * N)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("N", range(1, 9))
def test_updates_of_an_asynchronous_server_come_as_often_as_in_the_simulation(N, convention):
    """As often as the server's busiest port lets them, or as all workers make them."""
    assert laps_of(N, 0, convention) == network.cost(network.asynchronous_server, N, LATENCY, TRANSFER, convention)
    port = LATENCY + TRANSFER if convention == "blocking" else TRANSFER
    for compute in (Fraction(1, 5), Fraction(2), Fraction(9)):
        assert laps_of(N, compute, convention) == max(port, (2 * (LATENCY + TRANSFER) + compute) / N)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("servers", [1, 2, 5])
def test_a_lap_alone_through_several_servers(servers, convention):
    """Each part comes back while the next one is sent."""
    assert laps_of(1, Fraction(2), convention, servers) == 2 + (servers + 1) * (LATENCY + TRANSFER / servers)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("servers", [1, 3])
def test_every_server_sees_the_gradients_in_one_order(servers, convention):
    draw = random.Random(servers)
    N, laps = 5, 6
    compute = [[draw.choice([0, 1, Fraction(3, 2), draw.randint(0, 12)]) for _ in range(laps)] for _ in range(N)]
    messages = network.asynchronous_server_messages(compute, servers)
    passages = network.simulate(messages, LATENCY, TRANSFER, convention).passages
    orders = []
    for server in range(N, N + servers):
        own = sorted((passage for passage in passages if passage.message.receiver == server), key=lambda passage: passage.arrived)
        orders.append([(passage.message.sender, passage.message.label) for passage in own])
    assert len(set(orders[0])) == N * laps
    assert all(order == orders[0] for order in orders)
    for worker in range(N):
        own = [passage for passage in passages if worker in (passage.message.sender, passage.message.receiver)]
        labels = [f"{what} {lap}" for lap in range(laps) for what in ("gradient", "model") for _ in range(servers)]
        assert [passage.message.label for passage in own] == labels
        assert all(passage.message.size == Fraction(1, servers) for passage in own)
        gradients = own[:: 2 * servers]
        assert [passage.message.compute for passage in gradients] == compute[worker]
        ends = [0, *[passage.arrived for passage in own[2 * servers - 1 :: 2 * servers]]]
        assert [passage.computing for passage in gradients] == ends[:-1]  # with the whole new model


def test_asynchronous_messages_of_few_laps():
    messages = network.asynchronous_server_messages([[1, 2], [3]])
    assert [message[:5] for message in messages] == [
        (0, 2, 1, (), 1),
        (2, 0, 1, (0,), 0),
        (0, 2, 1, (1,), 2),
        (2, 0, 1, (2,), 0),
        (1, 2, 1, (), 3),
        (2, 1, 1, (4,), 0),
    ]
    assert network.asynchronous_server_messages([[], []]) == []
    half = Fraction(1, 2)
    messages = network.asynchronous_server_messages([[3]], servers=2)
    assert [message[:5] for message in messages] == [
        (0, 1, half, (), 3),
        (0, 2, half, (0,), 0),
        (1, 0, half, (0,), 0),
        (2, 0, half, (1, 2), 0),
    ]


@pytest.mark.parametrize(
    ("compute", "servers", "error"),
    [
        ([], 1, "asynchronous_server_messages for no workers"),
        ([[1]], 0, "asynchronous_server_messages: servers = 0: need an integer, at least 1"),
        ([[1]], -2, "asynchronous_server_messages: servers = -2"),
    ],
)
def test_asynchronous_messages_of_nobody_are_refused(compute, servers, error):
    with pytest.raises(ValueError, match=error):
        network.asynchronous_server_messages(compute, servers)


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
def test_asynchronous_messages_after_no_seconds_are_refused(wrong):
    with pytest.raises(ValueError, match=f"message 2: compute = {wrong}"):
        network.simulate(network.asynchronous_server_messages([[1, wrong]]), 1, 1)


def clock_of(pattern, convention):
    """Many instances at once: (finish `[many, N]`, latency `[many]`, up and down `[many, N]`) to when everybody is done."""

    def one(finish, latency, up, down):
        return network.elapse(pattern, finish, network.Ports(latency, up, down), convention, jnp.int32(0))

    many = jax.jit(jax.vmap(one))
    return lambda *arrays: np.asarray(many(*(jnp.asarray(array, jnp.float32) for array in arrays)))


def instances(seed: int, N: int, many: int = 60):
    """Small whole numbers, which float32 adds without rounding: finish, latency, up, down. Ties, zeros and equal ports among them."""
    draw = np.random.default_rng(seed)
    finish, up, down = draw.integers(0, 30, (3, many, N))
    finish[::5] //= 10
    finish[1::5] *= 10
    up[::7] = down[::7] = 3
    return finish, draw.integers(0, 8, many), up, down


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("N", [1, 2, 3, 6])
@pytest.mark.parametrize("pattern", ONE_SERVER, ids=id_of)
def test_the_servers_clock_is_the_simulation(pattern, N, convention):
    """Message by message, to everybody's own end: the server's ports are never the slower ones."""
    finish, latency, up, down = instances(N, N)
    done = clock_of(pattern, convention)(finish, latency, up, down)
    for k in range(len(done)):
        messages = [m._replace(compute=int(finish[k, m.sender])) if m.sender < N else m for m in pattern.messages(N)]
        ports = {"transfer": [*up[k].tolist(), *[0] * N], "receive": [*down[k].tolist(), *[0] * N]}
        passages = network.simulate(messages, int(latency[k]), convention=convention, **ports).passages
        assert done[k].tolist() == [passage.arrived for passage in passages[N:]]


def simulated(pattern, N: int, convention, start, latency, up, down):
    """When each worker has sent and received all of it, where `up` and `down` are seconds of a full vector."""
    messages = [message._replace(ready=start[message.sender]) for message in pattern.messages(N)]
    done = list(start)
    for passage in network.simulate(messages, latency, up, convention, receive=down).passages:
        for worker in (passage.message.sender, passage.message.receiver):
            done[worker] = max(done[worker], passage.arrived)
    return done


CLOCKS = [
    *[(pattern, N) for pattern in (*ALL_REDUCES, *ROWS) for N in (1, 2, 5, 64)],
    *[(network.gossip(topology), topology.n) for topology in (topologies.ring(2), topologies.ring(7), topologies.exponential(6))],
    *[(network.gossip(topology), topology.n) for topology in (topologies.complete(5), topologies.hypercube(3))],
    (network.local, 4),
]


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(("pattern", "N"), CLOCKS, ids=id_of)
def test_where_all_are_equal_clocks_show_the_closed_form(pattern, N, convention):
    latency, transfer = 0.75, 2.5
    port = np.full(N, transfer * float(pattern.vectors(N)))
    done = clock_of(pattern, convention)([np.full(N, 4.0)], [latency], [port], [port])
    cost = float(network.cost(pattern, N, latency, transfer, convention))
    np.testing.assert_allclose(done.max(), 4 + cost, rtol=1e-6)
    if pattern is not network.parameter_server:
        np.testing.assert_allclose(done, done.max(), rtol=1e-7)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("pattern", TOGETHER, ids=id_of)
def test_in_all_reduces_all_wait_for_the_last_and_for_the_slowest_port(pattern, convention):
    """On rings that is never too early. Among servers, it is what they take if nobody begins before all can."""
    N = 5
    finish, latency, up, down = instances(7, N)
    vectors = float(pattern.vectors(N))
    clock = clock_of(pattern, convention)(finish, latency, up * vectors, down * vectors)
    for k, done in enumerate(clock):
        last, slowest = finish[k].max().item(), max(up[k].max(), down[k].max()).item()
        cost = float(network.cost(pattern, N, latency[k].item(), slowest, convention))
        np.testing.assert_allclose(done, last + cost, rtol=1e-6)
        together = simulated(pattern, N, convention, [last] * N, latency[k].item(), [slowest] * N, [slowest] * N)
        np.testing.assert_allclose(max(map(float, together)), last + cost, rtol=1e-6)
        if pattern is not network.multi_server:
            alone = simulated(pattern, N, convention, finish[k].tolist(), latency[k].item(), up[k].tolist(), down[k].tolist())
            assert all(float(end) <= shown * (1 + 1e-6) for end, shown in zip(alone, done, strict=True))


def around(topology, turn: int) -> list[list[int]]:
    """Of each worker, itself and those that it sends to or receives from, read from the matrix."""
    W = topology.matrices[turn].toarray() != 0
    return [sorted({i, *np.flatnonzero(W[i]), *np.flatnonzero(W[:, i])}) for i in range(topology.n)]


def busy_ports(topology, turn: int, convention, latency, up, down):
    """For how long each worker's busier port is held, where messages take as long as the slower of their two ports needs, `[n]`."""
    n, links = topology.n, topology.links[turn]
    sends, receives = np.zeros(n), np.zeros(n)
    for sender, receiver in links:
        takes = max(up[sender], down[receiver]) + (latency if convention == "blocking" else 0)
        sends[sender] += takes
        receives[receiver] += takes
    once = latency if convention == "pipelined" else 0
    return np.maximum(sends, receives) + once * np.isin(np.arange(n), links)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(
    "topology",
    [topologies.ring(7), topologies.torus(3, 4), topologies.complete(4), topologies.exponential(6), topologies.star(5), directed(7)],
    ids=id_of,
)
def test_in_gossip_all_wait_for_neighbours_and_for_the_busiest_port_among_them(topology, convention):
    finish, latency, up, down = instances(9, topology.n)
    clock = clock_of(network.gossip(topology), convention)(finish, latency, up * topology.sends[0], down * topology.receives[0])
    for k, done in enumerate(clock):
        busy = busy_ports(topology, 0, convention, latency[k], up[k], down[k])
        near = around(topology, 0)
        np.testing.assert_allclose(done, [finish[k][group].max() + busy[group].max() for group in near], rtol=1e-6)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("topology", [topologies.star(6), directed(7), topologies.erdos_renyi(8, 0.4, 3)], ids=id_of)
def test_on_irregular_graphs_the_busiest_neighbour_sets_the_pace(topology, convention):
    """Of ports that need as long for each message: as many messages as it sends, or receives if they are more."""
    finish, latency, *_ = instances(11, topology.n)
    sends, receives = topology.sends[0], topology.receives[0]
    transfer = np.full((len(finish), 1), 5)
    clock = clock_of(network.gossip(topology), convention)(finish, latency, transfer * sends, transfer * receives)
    busiest = np.maximum(sends, receives)
    for i, near in enumerate(around(topology, 0)):
        latencies = busiest[near].max() if convention == "blocking" else 1
        np.testing.assert_array_equal(clock[:, i], finish[:, near].max(axis=1) + latencies * latency + 5 * busiest[near].max())


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_on_a_star_clocks_are_never_too_early(convention):
    """All messages go through the middle, whose ports are taken for as long as the slower of the two needs."""
    topology = topologies.star(6)
    pattern = network.gossip(topology)
    finish, latency, up, down = instances(13, 6)
    clock = clock_of(pattern, convention)(finish, latency, up * topology.sends[0], down * topology.receives[0])
    for k, done in enumerate(clock):
        alone = simulated(pattern, 6, convention, finish[k].tolist(), latency[k].item(), up[k].tolist(), down[k].tolist())
        assert all(end <= shown for end, shown in zip(alone, done, strict=True)), (alone, done)


def test_gossip_waits_for_neighbours_only():
    """One late worker, and one slow port, of eight on a ring."""
    clock = clock_of(network.gossip(topologies.ring(8)), "blocking")
    port, late = np.full(8, 2.0), np.where(np.arange(8) == 3, 100.0, 0.0)
    assert clock([late], [1.0], [port], [port]).tolist() == [[4, 4, 104, 104, 104, 4, 4, 4]]
    slow = np.where(np.arange(8) == 7, 50.0, port)
    for up, down in ((slow, port), (port, slow)):
        # Worker 7's two messages take 25 each, on its neighbours' ports, too.
        assert clock([np.zeros(8)], [1.0], [up], [down]).tolist() == [[52, 28, 4, 4, 4, 28, 52, 52]]


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("topology", SCHEDULES, ids=id_of)
def test_a_schedules_clock_uses_the_rounds_graph(topology, convention):
    """Who has nobody to exchange with waits for nobody, and for no latency."""
    n, period = topology.n, topology.period
    finish, latency, up, down = instances(17, n, 8)
    ports = [np.where(topology.sends, up[:, None], 0), np.where(topology.receives, down[:, None], 0)]
    pattern = network.gossip(topology)

    def one(finish, latency, up, down, step):
        return network.elapse(pattern, finish, network.Ports(latency, up, down), convention, step)

    many = jax.jit(jax.vmap(one, (0, 0, 0, 0, None)))
    for step in range(2 * period + 1):
        turn = step % period
        arrays = [jnp.asarray(array, jnp.float32) for array in (finish, latency, ports[0][:, turn], ports[1][:, turn])]
        done = np.asarray(many(*arrays, jnp.int32(step)))
        for k, shown in enumerate(done):
            each = [
                port[k, turn] / np.maximum(1, number[turn]) for port, number in zip(ports, (topology.sends, topology.receives), strict=True)
            ]
            busy = busy_ports(topology, turn, convention, latency[k], *each)
            expected = [finish[k][group].max() + busy[group].max() for group in around(topology, turn)]
            np.testing.assert_allclose(shown, expected, rtol=1e-6)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_local_work_waits_for_nobody(convention):
    finish, latency, up, down = instances(19, 3)
    np.testing.assert_array_equal(clock_of(network.local, convention)(finish, latency, up, down), finish)
