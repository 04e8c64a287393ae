"""Patterns on machines with several workers: closed forms and clocks compared with the event
simulation, with explicit messages between numbered ports: those of the N workers, then those of the
M cards, then those of servers.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import topologies
from dsgd import Pattern, network
from dsgd.communication import transports
from dsgd.graphs.matchings import matchings
from dsgd.network import Message
from dsgd.network.switch import CONVENTIONS

LATENCY, TRANSFER = Fraction(3, 7), Fraction(5, 11)
# latency and transfer within machines, then those of cards
TIMES = [
    (LATENCY / 5, TRANSFER / 4, LATENCY, TRANSFER),
    (LATENCY, TRANSFER, LATENCY / 100, TRANSFER / 200),
    (Fraction(0), TRANSFER, LATENCY, Fraction(0)),
    (LATENCY, Fraction(0), Fraction(0), TRANSFER),
]
SIZES = [(2, 2), (2, 3), (3, 2), (4, 3), (3, 4)]  # workers of a machine, machines
HOPS = transports.ring_hops(4).pattern


def place(messages, k: int, N: int):
    """Returns messages between workers as they pass the ports: those of the workers within a
    machine, those of the cards between machines.
    """

    def passes(message):
        machines = message.sender // k, message.receiver // k
        if machines[0] == machines[1]:
            return message
        return message._replace(sender=N + machines[0], receiver=N + machines[1])

    return [passes(message) for message in messages]


def one_level(pattern: Pattern, N: int) -> list[Message]:
    assert pattern.messages is not None
    return pattern.messages(N)


def on_ring(ids, parts, steps, first, begin):
    """Returns the messages of some steps around a ring, of which the first comes after `begin(i)`.

    Args:
        ids: the ports.
        parts: a message is this part of a vector.
        steps: number of steps.
        first: place of the first message in the list.
        begin: number of a port in the ring -> messages before its first one.
    """
    n = len(ids)
    return [
        Message(
            ids[i],
            ids[(i + 1) % n],
            Fraction(1, parts),
            begin(i) if step == 0 else (first + (step - 1) * n + (i - 1) % n,),
        )
        for step in range(steps)
        for i in range(n)
    ]


def ring_messages(k: int, M: int):
    """Sums within machines, sums of these over the cards, and back."""
    N, messages, last = k * M, [], []
    for m in range(M):
        ids = range(m * k, m * k + k)
        messages += on_ring(ids, k, k - 1, len(messages), lambda i: ())
        last.append(tuple(range(len(messages) - k, len(messages))))
    first = len(messages)
    messages += on_ring(range(N, N + M), M, 2 * (M - 1), first, lambda m: last[m])
    arrived = [
        tuple(first + i for i in range(2 * (M - 1) * M) if (i + 1) % M == m) for m in range(M)
    ]
    for m in range(M):
        ids = range(m * k, m * k + k)
        messages += on_ring(ids, k, k - 1, len(messages), lambda i, m=m: (*last[m], *arrived[m]))
    return messages


def whole_ring_messages(k: int, M: int):
    """The whole vector, through each machine, around the machines twice, and through each."""
    N, messages, last = k * M, [], []
    for m in range(M):
        for i in range(k - 1):
            after = (len(messages) - 1,) if i else ()
            messages.append(Message(m * k + i, m * k + i + 1, after=after))
        last.append(len(messages) - 1)
    known = {}
    for hop in range(2 * (M - 1)):
        after = (last[hop % M], *([len(messages) - 1] if hop else []))
        messages.append(Message(N + hop % M, N + (hop + 1) % M, after=after))
        if hop >= M - 2:
            known.setdefault((hop + 1) % M, len(messages) - 1)
    for m in range(M):
        for i in range(k - 1, 0, -1):
            after = (len(messages) - 1,) if i < k - 1 else (known[m],)
            messages.append(Message(m * k + i, m * k + i - 1, after=after))
    return messages


def gather_messages(k: int, M: int):
    N = k * M
    messages = [Message(N + m, N + (m + j) % M, k) for j in range(1, M) for m in range(M)]
    known = [
        tuple(i for i, each in enumerate(messages) if each.receiver == N + m) for m in range(M)
    ]
    return messages + [
        Message(m * k + i, m * k + (i + j) % k, M, known[m])
        for j in range(1, k)
        for m in range(M)
        for i in range(k)
    ]


def server_messages(k: int, M: int):
    """The messages to all servers, in rounds without conflicts; then the replies."""
    N = k * M
    pairs = [
        (m * k + i, (m + j) % M * k + (i + h) % k)
        for j in range(M)
        for h in range(k)
        for i in range(k)
        for m in range(M)
        if j or h
    ]
    up = place([Message(*pair, Fraction(1, N)) for pair in pairs], k, N)
    return up + [message._replace(after=tuple(range(len(up)))) for message in up]


def to_server(k: int, M: int, ports: int):
    """The messages of all workers over their cards to the ports of a server, and its replies."""
    N = k * M
    up = [Message(N + n // k, N + M + (n // k if ports > 1 else 0)) for n in range(N)]
    return up + [Message(message.receiver, message.sender, after=tuple(range(N))) for message in up]


def hop_messages(k: int, M: int):
    """The steps of a ring, which begin together."""
    N = k * M
    steps = [
        message._replace(after=tuple(range((i // N - 1) * N, i // N * N)) if i >= N else ())
        for i, message in enumerate(one_level(network.ring_all_reduce, N))
    ]
    return place(steps, k, N)


def gossip_messages(topology, k: int, M: int):
    pairs = [(int(i), int(j)) for i, j in topology.links[0]]
    inside = [pair for pair in pairs if pair[0] // k == pair[1] // k]
    cards = [(i // k, j // k) for i, j in pairs if i // k != j // k]
    N = k * M
    return [Message(*pair) for group in matchings(inside, N) for pair in group] + [
        Message(N + i, N + j) for group in matchings(cards, M) for i, j in group
    ]


PATTERNS = {
    "ring": lambda k, M: (network.ring_all_reduce, ring_messages(k, M)),
    "whole ring": lambda k, M: (
        network.ring_all_reduce_unpartitioned,
        whole_ring_messages(k, M),
    ),
    "all-gather": lambda k, M: (network.all_gather, gather_messages(k, M)),
    "N servers": lambda k, M: (network.multi_server, server_messages(k, M)),
    "server": lambda k, M: (network.parameter_server, to_server(k, M, 1)),
    "star": lambda k, M: (network.star, to_server(k, M, M)),
    "shift": lambda k, M: (
        network.ring_shift,
        place(one_level(network.ring_shift, k * M), k, k * M),
    ),
    "hops": lambda k, M: (HOPS, hop_messages(k, M)),
    "local": lambda k, M: (network.local, []),
    **{
        f"gossip on {build.__name__}": lambda k, M, build=build: (
            network.gossip(build(k * M)),
            gossip_messages(build(k * M), k, M),
        )
        for build in (topologies.ring, topologies.star, topologies.exponential, topologies.complete)
    },
}


def seconds(simulate, messages, k, M, times, convention):
    """Returns what the simulation takes; `times` as in `TIMES`, and servers have cards' ports."""
    inner, inner_transfer, latency, transfer = times
    N = k * M
    return simulate(
        messages,
        [inner] * N + [latency] * 2 * M,
        [inner_transfer] * N + [transfer] * 2 * M,
        convention,
    ).seconds


@pytest.mark.parametrize("name", PATTERNS)
def test_costs_on_two_levels_are_what_the_simulation_takes(simulate, name):
    for k, M in SIZES:
        pattern, messages = PATTERNS[name](k, M)
        for times in TIMES:
            inside = network.Inside(k, *times[:2])
            for convention in CONVENTIONS:
                found = network.cost(pattern, k * M, *times[2:], convention, inside)
                expected = seconds(simulate, messages, k, M, times, convention)
                assert found == expected, (k, M, times, convention)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_costs_of_schedules_are_means_over_their_turns(simulate, convention):
    """One-peer exponential graphs of eight workers: the hops 1, 2 and 4 differ in how many messages
    stay within a machine.
    """
    k, M, schedule = 2, 4, topologies.one_peer_exponential(8)
    total = Fraction(0)
    for links in schedule.links:
        pairs = place([Message(int(i), int(j)) for i, j in links], k, k * M)
        total += seconds(simulate, pairs, k, M, TIMES[0], convention)
    found = network.cost(
        network.gossip(schedule), 8, *TIMES[0][2:], convention, network.Inside(k, *TIMES[0][:2])
    )
    assert found == total / len(schedule.links)


@pytest.mark.parametrize("name", PATTERNS)
def test_one_machine_and_machines_of_one_worker_have_one_level(name):
    k, M = 2, 3
    pattern, _ = PATTERNS[name](k, M)
    for convention in CONVENTIONS:
        for size, times in ((1, (LATENCY, TRANSFER)), (k * M, (LATENCY / 5, TRANSFER / 4))):
            inside = network.Inside(size, LATENCY / 5, TRANSFER / 4)
            found = network.cost(pattern, k * M, LATENCY, TRANSFER, convention, inside)
            assert found == network.cost(pattern, k * M, *times, convention)


def levels(k: int, inner, card):
    """Returns `Levels` of given bits. `inner` is the latency and the seconds of a bit within
    machines, `card` the latency and the seconds of a bit by machine, up and down.
    """
    latency, up, down = card

    def build(bits_up, bits_down):
        return network.Levels(
            k,
            bits_up,
            bits_down,
            lambda sent, received: network.Ports(inner[0], sent * inner[1], received * inner[1]),
            lambda begin, workers, sent, received: network.Ports(
                latency, sent * up[workers // k], received * down[workers // k]
            ),
        )

    return build


def done(pattern, finish, build, bits, convention):
    """Returns when each worker is done, if each sends and receives the given bits, `[N]`."""
    bits = jnp.asarray(bits, jnp.float32)
    finish = jnp.asarray(finish, jnp.float32)
    return network.elapse(pattern, finish, build(bits, bits), convention, jnp.int32(0))


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", PATTERNS)
def test_workers_that_begin_together_are_done_after_the_cost(name, convention):
    """The last of them is."""
    vector, begin = 24.0, 2.5
    k, M = 2, 3
    pattern, _ = PATTERNS[name](k, M)
    sent = [vector * float(pattern.volume(k * M))] * (k * M)
    if name.startswith("gossip"):
        links = getattr(topologies, name.removeprefix("gossip on "))(k * M).links[0]
        sent = vector * np.bincount(links[:, 0], minlength=k * M)

    @jax.jit
    def of(inner, card):
        build = levels(k, inner, (card[0], *[jnp.full(M, card[1])] * 2))
        return done(pattern, [begin] * (k * M), build, sent, convention)

    for inner, card in (((0.25, 0.125), (0.75, 0.5)), ((0.75, 0.5), (0.25, 0.125))):
        inside = network.Inside(k, inner[0], vector * inner[1])
        cost = network.cost(pattern, k * M, card[0], vector * card[1], convention, inside)
        np.testing.assert_allclose(of(inner, card).max(), begin + cost, rtol=1e-6)


CARDS = (3, np.array([2.0, 5.0, 1.0]), np.array([4.0, 1.0, 3.0]))


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", ["server", "star"])
def test_the_servers_clock_on_two_levels_is_the_simulation(simulate, name, convention):
    """For each worker, with unequal cards."""
    k, M = 2, 3
    N, (pattern, messages) = k * M, PATTERNS[name](k, M)
    draw = np.random.default_rng(4)
    ports = [*[0] * N, *CARDS[1]], [*[0] * N, *CARDS[2]]
    transfer, receive = ([int(each) for each in side] + [0] * M for side in ports)
    build = levels(k, (0.5, 0.25), (CARDS[0], *map(jnp.asarray, CARDS[1:])))
    for _ in range(20):
        finish = draw.integers(0, 40, N)
        sent = [
            message._replace(compute=int(finish[i])) if i < N else message
            for i, message in enumerate(messages)
        ]
        passages = simulate(sent, CARDS[0], transfer, convention, receive=receive).passages
        found = done(pattern, finish, build, [1.0] * N, convention)
        assert found.tolist() == [passage.arrived for passage in passages[N:]]


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_gossip_on_two_levels_is_done_at_the_latest_when_the_clock_says(simulate, convention):
    """Workers that are late delay their machine's messages to others, and not more: a worker whose
    neighbours are on its machine waits for these only.
    """
    k, M = 3, 2
    N, topology = k * M, topologies.ring(k * M)
    pattern, messages = network.gossip(topology), gossip_messages(topology, k, M)
    draw = np.random.default_rng(5)
    cards = (CARDS[0], CARDS[1][:M], CARDS[2][:M])
    build = levels(k, (1, 2.0), (cards[0], *map(jnp.asarray, cards[1:])))
    for _ in range(20):
        finish = draw.integers(0, 40, N)
        found = done(pattern, finish, build, [2.0] * N, convention)
        # messages over a card begin when all workers with such messages are ready
        ready = [*finish] + [max(finish[m * k], finish[m * k + k - 1]) for m in range(M)]
        sent = [message._replace(ready=int(ready[message.sender])) for message in messages]
        passages = simulate(
            sent,
            [1] * N + [cards[0]] * M,
            [2] * N + [int(each) for each in cards[1]],
            convention,
            receive=[2] * N + [int(each) for each in cards[2]],
        ).passages
        arrived = [
            max(
                passage.arrived
                for passage in passages
                for end in passage.message[:2]
                if end == n or (end == N + n // k and n % k != 1)
            )
            for n in range(N)
        ]
        assert (np.array(arrived) <= found).all()
        inner = max(finish[:3]) + (2 if convention == "blocking" else 1) + 2 * 2
        assert found[1] == inner


def test_workers_without_messages_to_other_machines_do_not_delay_the_card():
    """On a ring of two machines of four, worker 2 delays its neighbours 1 and 3, and no other one:
    the card of its machine waits for workers 0 and 3 only.
    """
    pattern = network.gossip(topologies.ring(8))
    build = levels(4, (1, 2.0), (3, jnp.ones(2), jnp.ones(2)))
    at_once, late = (
        np.asarray(done(pattern, finish, build, [2.0] * 8, "blocking"))
        for finish in (np.zeros(8), 100.0 * (np.arange(8) == 2))
    )
    np.testing.assert_array_equal(late - at_once > 50, np.isin(np.arange(8), [1, 2, 3]))


@pytest.mark.parametrize(
    "pattern",
    [
        network.asynchronous_gossip,
        Pattern("mine", network.star.seconds, network.star.volume),
        network.OneServer("mine", network.star.seconds, network.star.volume),
        network.ring_all_reduce._replace(clock=lambda *arguments: arguments[0]),
    ],
)
def test_patterns_whose_messages_on_two_levels_are_not_known_are_refused(pattern):
    with pytest.raises(ValueError, match="machines with several workers are not known"):
        network.cost(pattern, 4, 0.5, 2.0, inside=network.Inside(2, 0.25, 1.0))


def test_costs_refuse_machines_that_do_not_fit():
    cost = partial(network.cost, network.ring_all_reduce, 6, 0.5, 2.0)
    for inside, words in (
        (network.Inside(4, 0.5, 2.0), "a multiple of 4"),
        (network.Inside(0, 0.5, 2.0), "inside.size"),
        (network.Inside(2, -0.5, 2.0), "inside.latency = -0.5"),
        (network.Inside(2, 0.5, float("nan")), "inside.transfer = nan"),
    ):
        with pytest.raises(ValueError, match=words):
            cost(inside=inside)


def test_a_message_between_ports_of_different_latencies_is_refused():
    with pytest.raises(ValueError, match="latencies 2 and 3; expected equal"):
        network.simulate([Message(0, 1)], [2, 3], 1)


def block_messages(size: int, k: int, M: int):
    """An all-reduce in each block: of machines, or of parts of a machine."""
    N = k * M
    if size <= k:
        return one_level(network.block_all_reduce(size), N)
    machines, messages = size // k, []
    for first in range(0, M, machines):
        ring, start = ring_messages(k, machines), len(messages)

        def port(n, first=first):
            return first * k + n if n < size else N + first + n - size

        messages += [
            message._replace(
                sender=port(message.sender),
                receiver=port(message.receiver),
                after=tuple(start + i for i in message.after),
            )
            for message in ring
        ]
    return messages


@pytest.mark.parametrize(("size", "k", "M"), [(2, 4, 3), (4, 4, 2), (4, 2, 4), (6, 2, 3)])
def test_blocks_cost_what_the_simulation_takes(simulate, size, k, M):
    pattern, N = network.block_all_reduce(size), k * M
    assert network.cost(pattern, N, LATENCY, TRANSFER) == network.cost(
        network.ring_all_reduce, size, LATENCY, TRANSFER
    )
    of_one_level = simulate(one_level(pattern, N), LATENCY, TRANSFER).seconds
    assert of_one_level == network.cost(pattern, N, LATENCY, TRANSFER)
    messages = block_messages(size, k, M)
    for times in TIMES:
        inside = network.Inside(k, *times[:2])
        found = network.cost(pattern, N, *times[2:], "blocking", inside)
        assert found == seconds(simulate, messages, k, M, times, "blocking")


@pytest.mark.parametrize("size", [2, 8])
def test_blocks_wait_for_their_own_last_worker(size):
    """Blocks within machines, whose cards have no bits, and blocks of two machines of four."""
    k, M, vector, pattern = 4, 4, 12.0, network.block_all_reduce(size)
    N = k * M
    finish = np.random.default_rng(6).integers(0, 30, N).astype(float)
    build = levels(k, (0.25, 0.125), (3.0, np.full(M, 2.0), np.full(M, 0.5)))
    sent = [vector * float(pattern.volume(N))] * N
    inside = network.Inside(k, 0.25, vector * 0.125)
    cost = network.cost(pattern, N, 3.0, vector * 2.0, "blocking", inside)
    expected = np.repeat(finish.reshape(-1, size).max(axis=1), size) + cost
    np.testing.assert_allclose(done(pattern, finish, build, sent, "blocking"), expected, rtol=1e-6)
    ports = network.Ports(3.0, *[2.0 * jnp.asarray(sent)] * 2)
    alone = network.elapse(pattern, jnp.asarray(finish), ports, "blocking", jnp.int32(0))
    last = expected - cost
    np.testing.assert_allclose(alone, last + network.cost(pattern, N, 3.0, vector * 2.0), rtol=1e-6)


def test_blocks_with_parts_of_machines_are_refused():
    with pytest.raises(ValueError, match=r"block_all_reduce\(3\) on machines of 2 workers"):
        network.cost(network.block_all_reduce(3), 6, 0.5, 2.0, inside=network.Inside(2, 0.25, 1.0))
