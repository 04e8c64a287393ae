"""The closed forms, against the table of the notes and against a simulation of the switch that knows nothing of them."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
import optax
import pytest

import algorithms
import topologies
from dsgd import network

LATENCY, TRANSFER = Fraction(3, 7), Fraction(5, 11)
TIMES = [(LATENCY, TRANSFER), (Fraction(0), TRANSFER), (LATENCY, Fraction(0)), (Fraction(5), Fraction(1, 3))]


def ring_gossip(N: int):
    return network.gossip(topologies.ring(N).degree)


TABLE = {
    "parameter server": (network.parameter_server, lambda N, l, r: 2 * N * (l + r), lambda N, l, r: 2 * (l + N * r)),
    "ring": (network.ring_all_reduce, *[lambda N, l, r: 2 * (N - 1) * (l + r / N)] * 2),
    "whole ring": (network.ring_all_reduce_unpartitioned, *[lambda N, l, r: 2 * (N - 1) * (l + r)] * 2),
    "multi-server": (
        network.multi_server,
        lambda N, l, r: 2 * (N - 1) * (l + r / N),
        lambda N, l, r: 2 * l + 2 * (N - 1) * r / N if N > 1 else 0,
    ),
    "gossip on a ring": (
        ring_gossip,
        lambda N, l, r: [0, l + r, 2 * (l + r)][min(N, 3) - 1],
        lambda N, l, r: [0, l + r, l + 2 * r][min(N, 3) - 1],
    ),
    "gossip with everybody": (
        lambda N: network.gossip(topologies.complete(N).degree),
        lambda N, l, r: (N - 1) * (l + r),
        lambda N, l, r: l + (N - 1) * r if N > 1 else 0,
    ),
    "local": (network.local, *[lambda N, l, r: 0] * 2),
}


def pattern_of(name: str, N: int):
    pattern = TABLE[name][0]
    return pattern if isinstance(pattern, network.Pattern) else pattern(N)


class Message(NamedTuple):
    """A part of a full vector, sent when all messages `after` have arrived."""

    sender: int
    receiver: int
    part: Fraction = Fraction(1)
    after: tuple[int, ...] = ()


def simulate(messages: list[Message], latency: Fraction, transfer: Fraction, *, pipelined: bool) -> Fraction:
    """When the last message arrives, if every port takes what is ready, the earliest and then the first in the list.

    Blocking: a message holds both ports for latency + transfer. Pipelined: the sender's for the first `transfer` of its journey, and the
    receiver's for the last.
    """
    sends: dict[int, Fraction] = {}
    receives: dict[int, Fraction] = {}
    arrived: dict[int, Fraction] = {}
    head_start = latency if pipelined else 0

    def earliest(i: int) -> Fraction:
        message = messages[i]
        ready = max((arrived[j] for j in message.after), default=Fraction(0))
        return max(ready, sends.get(message.sender, Fraction(0)), receives.get(message.receiver, Fraction(0)) - head_start)

    waiting = list(range(len(messages)))
    while waiting:
        i = min((i for i in waiting if all(j in arrived for j in messages[i].after)), key=earliest)
        start, takes = earliest(i), transfer * messages[i].part
        arrived[i] = receives[messages[i].receiver] = start + latency + takes
        sends[messages[i].sender] = start + takes + latency - head_start
        waiting.remove(i)
    return max(arrived.values(), default=Fraction(0))


def server_messages(N: int) -> list[Message]:
    server = N
    return [Message(n, server) for n in range(N)] + [Message(server, n, after=tuple(range(N))) for n in range(N)]


def whole_ring_messages(N: int) -> list[Message]:
    return [Message(i % N, (i + 1) % N, after=(i - 1,) if i else ()) for i in range(2 * (N - 1))]


def ring_messages(N: int) -> list[Message]:
    def received(step: int, n: int) -> tuple[int, ...]:
        return ((step - 1) * N + (n - 1) % N,) if step else ()

    return [Message(n, (n + 1) % N, Fraction(1, N), received(step, n)) for step in range(2 * (N - 1)) for n in range(N)]


def multi_server_messages(N: int) -> list[Message]:
    up = [Message(n, (n + k) % N, Fraction(1, N)) for k in range(1, N) for n in range(N)]
    sums = {server: tuple(i for i, message in enumerate(up) if message.receiver == server) for server in range(N)}
    return up + [Message(n, (n + k) % N, Fraction(1, N), sums[n]) for k in range(1, N) for n in range(N)]


def gossip_messages(N: int) -> list[Message]:
    return [Message(n, (n + k) % N) for k in sorted({1 % N, -1 % N} - {0}) for n in range(N)]


MESSAGES = {
    "parameter server": server_messages,
    "ring": ring_messages,
    "whole ring": whole_ring_messages,
    "multi-server": multi_server_messages,
    "gossip on a ring": gossip_messages,
}


@pytest.mark.parametrize("name", TABLE)
def test_costs_are_the_tables_exactly(name):
    _, blocking, pipelined = TABLE[name]
    for N in range(1, 65):
        pattern = pattern_of(name, N)
        assert network.cost(pattern, N, LATENCY, TRANSFER) == blocking(N, LATENCY, TRANSFER)
        assert network.cost(pattern, N, LATENCY, TRANSFER, "blocking") == blocking(N, LATENCY, TRANSFER)
        assert network.cost(pattern, N, LATENCY, TRANSFER, "pipelined") == pipelined(N, LATENCY, TRANSFER)


@pytest.mark.parametrize("convention", ["blocking", "pipelined"])
@pytest.mark.parametrize("name", MESSAGES)
def test_costs_are_what_a_simulation_of_the_switch_takes(name, convention):
    for N in (1, 2, 3, 4, 5, 6):
        for latency, transfer in TIMES:
            simulated = simulate(MESSAGES[name](N), latency, transfer, pipelined=convention == "pipelined")
            assert network.cost(pattern_of(name, N), N, latency, transfer, convention) == simulated, (N, latency, transfer)


@pytest.mark.parametrize("name", TABLE)
def test_pipelining_never_costs(name):
    for N in (1, 2, 3, 10, 64):
        for latency, transfer in TIMES:
            pattern = pattern_of(name, N)
            assert network.cost(pattern, N, latency, transfer, "pipelined") <= network.cost(pattern, N, latency, transfer, "blocking")


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("convention", ["blocking", "pipelined"])
def test_measured_bits_become_the_transfer_of_a_full_vector(name, convention):
    vector, bandwidth, latency = 1_000_003, 2.5e6, 0.125
    for N in (1, 2, 3, 8):
        sent = sum(message.part for message in MESSAGES[name](N) if message.sender < N)
        pattern = pattern_of(name, N)
        seconds = network.round_seconds(pattern, N, float(sent * vector / N), latency=latency, bandwidth=bandwidth, convention=convention)
        assert seconds == pytest.approx(network.cost(pattern, N, latency, vector / bandwidth, convention), rel=1e-12)


def test_measured_bits_of_an_irregular_graph():
    """On a star most workers send one vector, but the middle's ports set the pace."""
    N, vector, bandwidth, latency = 5, 1e6, 1e6, 0.5
    W = np.zeros((N, N))
    W[0, 1:] = W[1:, 0] = 1 / N
    star = topologies.from_matrix(W + np.diag(1 - W.sum(axis=1)), "star(5)")
    pattern = algorithms.decentralized_sgd(optax.sgd(0.1), star).pattern
    bits_up = vector * star.sends.mean()
    seconds = network.round_seconds(pattern, N, bits_up, latency=latency, bandwidth=bandwidth)
    assert seconds == pytest.approx((N - 1) * (latency + vector / bandwidth))


def test_a_schedule_costs_the_mean_of_its_rounds():
    """A ring in one round of four, nothing in the others: what local SGD on a ring costs."""
    ring = topologies.ring(6)
    schedule = topologies.from_matrix([ring.W, np.eye(6), np.eye(6), np.eye(6)])
    pattern = algorithms.decentralized_sgd(optax.sgd(0.1), schedule).pattern
    local = algorithms.local_sgd(optax.sgd(0.1), 4, ring).pattern
    for convention in ("blocking", "pipelined"):
        assert network.cost(pattern, 6, 0.5, 2.0, convention) == network.cost(local, 6, 0.5, 2.0, convention)
    assert network.cost(pattern, 6, 0.5, 2.0) == 2 * 2.5 / 4
    assert pattern.vectors(6) == 2 / 4


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
        getattr(network.cost, "__wrapped__", network.cost)(network.parameter_server, 4, 1, 1, "duplex")


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


def test_gossip_of_a_negative_degree():
    with pytest.raises(ValueError, match="gossip of degree -1: need degree >= 0"):
        network.gossip(-1)
