"""Patterns: closed forms compared with the event simulation, and their effect on workers'
clocks.
"""

from __future__ import annotations

import random
from fractions import Fraction
from functools import cache, partial

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import topologies
from dsgd import network
from dsgd.graphs.matchings import matchings
from dsgd.network.switch import CONVENTIONS

LATENCY, TRANSFER = Fraction(3, 7), Fraction(5, 11)
TIMES = [
    (LATENCY, TRANSFER),
    (Fraction(0), TRANSFER),
    (LATENCY, Fraction(0)),
    (Fraction(5), Fraction(1, 3)),
]
# odd and even numbers, powers of two; the closed forms have one branch, at N = 1
FEW, SIZES = (1, 2, 3, 4), (5, 8, 16, 33)
ONE_SERVER = [network.parameter_server, network.star]
TOGETHER = [network.multi_server, network.ring_all_reduce, network.ring_all_reduce_unpartitioned]
ALL_REDUCES = [*ONE_SERVER, *TOGETHER]
# patterns that send each worker's own vector to others
ROWS = [network.all_gather, network.ring_shift]


def directed_graph(N: int):
    """Returns a directed cycle and some more arcs."""
    graph = nx.cycle_graph(N, create_using=nx.DiGraph)
    draw = random.Random(N)
    graph.add_edges_from(draw.sample(range(N), 2) for _ in range(N))
    return topologies.from_graph(graph)


GRAPHS = {
    "ring": topologies.ring,
    "star": topologies.star,
    "complete": topologies.complete,
    "exponential": topologies.exponential,
    "erdos_renyi": lambda N: topologies.erdos_renyi(N, min(1, 0.1 + 4 / N), N),
    "directed": directed_graph,
}
SIMULATED = {
    **{
        pattern.name: lambda N, pattern=pattern: pattern
        for pattern in (*ALL_REDUCES, *ROWS, network.local)
    },
    **{
        f"gossip on {name}": lambda N, build=build: network.gossip(build(N))
        for name, build in GRAPHS.items()
    },
}
SCHEDULES = [topologies.random_matchings(7, period=5), topologies.one_peer_exponential(3)]


def divide(messages, N: int):
    """Returns the messages with integer sizes in parts of 1 / N of a vector, for which the
    simulation is exact and fast.
    """
    parts = [N * message.size for message in messages]
    assert all(part == int(part) for part in parts)
    return [message._replace(size=int(part)) for message, part in zip(messages, parts, strict=True)]


def id_of(value):
    return getattr(value, "name", None)


@pytest.mark.parametrize("name", SIMULATED)
def test_costs_are_what_the_simulation_takes(simulate, name):
    """For few workers with many latencies and transfers, including 0."""
    for N in (*FEW[name == "gossip on directed" :], *SIZES):
        pattern = SIMULATED[name](N)
        messages = pattern.messages(N) if N in FEW else divide(pattern.messages(N), N)
        for latency, transfer in TIMES if N in FEW else [(3, 5)]:
            for convention in CONVENTIONS:
                simulated = simulate(messages, latency, transfer, convention).seconds
                whole = transfer if N in FEW else Fraction(N * transfer)
                assert network.cost(pattern, N, latency, whole, convention) == simulated, (
                    N,
                    latency,
                    transfer,
                    convention,
                )
        if name.startswith("gossip"):
            links = GRAPHS[name.removeprefix("gossip on ")](N).links[0]
            assert sorted((message.sender, message.receiver) for message in messages) == sorted(
                map(tuple, links.tolist())
            )


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
    assert network.cost(pattern, N, LATENCY, TRANSFER, convention) == Fraction(sum(seconds)) / len(
        seconds
    )
    assert pattern.volume(N) == pytest.approx(sum(map(len, messages)) / N / len(messages))


@pytest.mark.parametrize("pattern", ALL_REDUCES, ids=id_of)
def test_messages_bring_the_sum_to_all_workers(pattern):
    """The vectors in each sum are followed from message to message. A worker that computes a part
    of the whole sum need not receive it. Numbers from N on belong to a server.
    """
    for N in (2, 3, 4, 9):
        messages, sums, whole = pattern.messages(N), [], [Fraction(0)] * (2 * N)
        for message in messages:
            assert all(
                min(messages[j].receiver, N) == min(message.sender, N) for j in message.after
            )
            sums.append({message.sender}.union(*(sums[j] for j in message.after)))
            if sums[-1] >= set(range(N)):
                whole[message.receiver] += Fraction(message.size)
        expected = {
            "parameter_server": [1] * N,
            "star": [1] * N,
            "ring_all_reduce_unpartitioned": [0] + [1] * (N - 1),
        }
        assert sorted(whole[:N]) == expected.get(pattern.name, [1 - Fraction(1, N)] * N)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(
    "pattern",
    [*ALL_REDUCES, network.gossip(topologies.star(6)), network.gossip(topologies.ring(6))],
    ids=id_of,
)
def test_measured_bits_become_the_transfer_of_a_full_vector(pattern, convention):
    vector, bandwidth, latency, N = 1_000_003, 2.5e6, 0.125, 6
    sent = sum(message.size for message in pattern.messages(N) if message.sender < N)
    seconds = network.round_seconds(
        pattern,
        N,
        float(sent * vector / N),
        latency=latency,
        bandwidth=bandwidth,
        convention=convention,
    )
    assert seconds == pytest.approx(
        network.cost(pattern, N, latency, vector / bandwidth, convention), rel=1e-12
    )


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_pairs_of_asynchronous_gossip_exchange_side_by_side(convention):
    for N in (*FEW, *SIZES):
        expected = (LATENCY + TRANSFER) / (N // 2) if N > 1 else 0
        pattern = network.asynchronous_gossip
        assert network.cost(pattern, N, LATENCY, TRANSFER, convention) == expected


@cache
def laps_of(N: int, compute, convention, servers: int = 1):
    """Returns the seconds of an update in the steady state, exactly, from the server's arrivals
    over many laps.
    """
    laps = 24
    messages = network.asynchronous_server_messages([[compute] * laps] * N, servers)
    passages = network.simulate(messages, LATENCY, TRANSFER, convention).passages
    arrivals = sorted(
        passage.arrived for passage in passages if passage.message.receiver == N + servers - 1
    )
    return (arrivals[20 * N - 1] - arrivals[10 * N - 1]) / (10 * N)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("N", [1, 2, 3, 8])
def test_updates_of_an_asynchronous_server_come_as_often_as_in_the_simulation(N, convention):
    """The rate is that of the server's busiest port, or of all workers."""
    assert laps_of(N, 0, convention) == network.cost(
        network.asynchronous_server, N, LATENCY, TRANSFER, convention
    )
    port = LATENCY + TRANSFER if convention == "blocking" else TRANSFER
    for compute in (Fraction(1, 5), Fraction(2), Fraction(9)):
        assert laps_of(N, compute, convention) == max(
            port, (2 * (LATENCY + TRANSFER) + compute) / N
        )


def clock_of(pattern, convention):
    """Returns a program for many instances: (finish `[many, N]`, latency `[many]`, up and down
    `[many, N]`) to the times at which all workers have finished.
    """

    def one(finish, latency, up, down):
        return network.elapse(
            pattern, finish, network.Ports(latency, up, down), convention, jnp.int32(0)
        )

    many = jax.jit(jax.vmap(one))
    return lambda *arrays: np.asarray(many(*(jnp.asarray(array, jnp.float32) for array in arrays)))


def instances(seed: int, N: int, many: int = 60):
    """Returns small integers, which float32 adds without rounding: finish, latency, up, down. They
    contain ties, zeros and equal ports.
    """
    draw = np.random.default_rng(seed)
    finish, up, down = draw.integers(0, 30, (3, many, N))
    finish[::5] //= 10
    finish[1::5] *= 10
    up[::7] = down[::7] = 3
    return finish, draw.integers(0, 8, many), up, down


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("N", [1, 6])
@pytest.mark.parametrize("pattern", ONE_SERVER, ids=id_of)
def test_the_servers_clock_is_the_simulation(simulate, pattern, N, convention):
    """For each message and the end of each worker; the server's ports are never slower than the
    workers'.
    """
    finish, latency, up, down = instances(N, N)
    done = clock_of(pattern, convention)(finish, latency, up, down)
    for k in range(len(done)):
        messages = [
            m._replace(compute=int(finish[k, m.sender])) if m.sender < N else m
            for m in pattern.messages(N)
        ]
        ports = {"transfer": [*up[k].tolist(), *[0] * N], "receive": [*down[k].tolist(), *[0] * N]}
        passages = simulate(messages, int(latency[k]), convention=convention, **ports).passages
        assert done[k].tolist() == [passage.arrived for passage in passages[N:]]


def simulated(simulate, pattern, N: int, convention, latency, start, up, down):
    """Returns the times at which each worker has sent and received everything; `up` and `down` are
    seconds of a full vector.
    """
    messages = [message._replace(ready=start[message.sender]) for message in pattern.messages(N)]
    done = list(start)
    for passage in simulate(messages, latency, up, convention, receive=down).passages:
        for worker in (passage.message.sender, passage.message.receiver):
            done[worker] = max(done[worker], passage.arrived)
    return done


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("pattern", [*TOGETHER, *ROWS], ids=id_of)
def test_in_all_reduces_all_wait_for_the_last_and_for_the_slowest_port(
    simulate, pattern, convention
):
    """On rings the clock is an upper bound. With servers, it is exact if all workers start when the
    last one can.
    """
    N = 5
    finish, latency, up, down = instances(7, N, 20)
    vectors = float(pattern.volume(N))
    clock = clock_of(pattern, convention)(finish, latency, up * vectors, down * vectors)
    for k, done in enumerate(clock):
        last, slowest = finish[k].max().item(), max(up[k].max(), down[k].max()).item()
        cost = float(network.cost(pattern, N, latency[k].item(), slowest, convention))
        np.testing.assert_allclose(done, last + cost, rtol=1e-6)
        run = partial(simulated, simulate, pattern, N, convention, latency[k].item())
        together = run([last] * N, [slowest] * N, [slowest] * N)
        np.testing.assert_allclose(max(map(float, together)), last + cost, rtol=1e-6)
        if pattern in (network.ring_all_reduce, network.ring_all_reduce_unpartitioned):
            alone = run(finish[k].tolist(), up[k].tolist(), down[k].tolist())
            assert all(
                float(end) <= shown * (1 + 1e-6) for end, shown in zip(alone, done, strict=True)
            )
