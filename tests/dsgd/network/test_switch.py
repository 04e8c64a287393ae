"""The event simulation of the switch, compared with a simulation that searches all messages
repeatedly.
"""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from dsgd import network
from dsgd.network import Message
from dsgd.network.switch import CONVENTIONS


def naive(messages, latency, transfer, convention, receive=None):
    """Returns (ready, start, arrived) of each message: the message that can start first goes first,
    then the one that is ready first, then the first of the list.

    Blocking: a message occupies both ports until it has arrived. Pipelined: the sender's port while
    it leaves, the receiver's while it arrives.
    """

    def port_of(ports, worker):
        return ports[worker] if isinstance(ports, list) else ports

    head_start = latency if convention == "pipelined" else 0
    leaves: dict[int, Fraction] = {}
    arrives: dict[int, Fraction] = {}
    times: list = [None] * len(messages)
    while None in times:
        candidates = []
        for i, message in enumerate(messages):
            if times[i] is None and all(times[j] is not None for j in message.after):
                ready = (
                    max([message.ready, *(times[j][2] for j in message.after)]) + message.compute
                )
                start = max(
                    ready,
                    leaves.get(message.sender, ready),
                    arrives.get(message.receiver, ready + head_start) - head_start,
                )
                candidates.append((start, ready, i))
        start, ready, i = min(candidates)
        sender, receiver = messages[i].sender, messages[i].receiver
        takes = messages[i].size * max(
            port_of(transfer, sender), port_of(transfer if receive is None else receive, receiver)
        )
        times[i] = (ready, start, start + latency + takes)
        leaves[sender], arrives[receiver] = (
            start + latency + takes - head_start,
            start + latency + takes,
        )
    return times


def lists(seed: int, count: int):
    """Returns messages on few ports, with few different times, so that there are many ties;
    latency; the ports' transfers.
    """
    draw = random.Random(seed)
    some = [Fraction(0), Fraction(1, 2), Fraction(1), Fraction(1), Fraction(7, 3), Fraction(5)]
    for _ in range(count):
        workers = draw.randint(2, 6)
        messages = []
        for i in range(draw.choice([*range(25), *range(25), 70])):  # some queues are long
            sender, receiver = draw.sample(range(workers), 2)
            after = tuple(draw.choices(range(i), k=draw.choice([0, 0, 1, 3]))) if i else ()
            size, compute, ready = (
                draw.choice([1, 1, *some]),
                draw.choice([0, 0, *some]),
                draw.choice([0, 0, *some]),
            )
            messages.append(Message(sender, receiver, size, after, compute, ready))
        messages = shuffle(messages, draw)
        ports = [
            [draw.choice(some) for _ in range(workers)],
            [draw.choice(some) for _ in range(workers)],
        ]
        transfer, receive = draw.choice(
            [
                (Fraction(1), None),
                (Fraction(2, 3), ports[1]),
                (ports[0], None),
                (ports[0], ports[1]),
            ]
        )
        yield (
            workers,
            messages,
            draw.choice([Fraction(0), Fraction(1), Fraction(1), Fraction(3, 4)]),
            transfer,
            receive,
        )


def shuffle(messages, draw):
    """Returns the list in another order, so that messages may follow later ones in the list."""
    order = list(range(len(messages)))
    draw.shuffle(order)
    place = {i: k for k, i in enumerate(order)}
    return [messages[i]._replace(after=tuple(place[j] for j in messages[i].after)) for i in order]


def times_of(timeline):
    return [(passage.ready, passage.start, passage.arrived) for passage in timeline.passages]


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_messages_start_at_the_times_given_by_the_rules(simulate, convention):
    """No port has two messages at once."""
    for workers, messages, latency, transfer, receive in lists(0, 200):
        timeline = simulate(iter(messages), latency, transfer, convention, receive=receive)
        expected = naive(messages, latency, transfer, convention, receive)
        assert times_of(timeline) == expected
        assert timeline.seconds == max((arrived for *_, arrived in expected), default=0)
        assert timeline.start == min((start for _, start, _ in expected), default=0)
        passages = timeline.passages
        assert [passage.message for passage in passages] == messages
        for passage in passages:
            holds = passage.transfer + (latency if convention == "blocking" else 0)
            assert passage.sent - passage.start == passage.arrived - passage.receiving == holds
            assert passage.arrived - passage.start == passage.transfer + latency
            assert passage.computing + passage.message.compute == passage.ready <= passage.start
            assert passage.computing == max(
                [passage.message.ready, *(passages[j].arrived for j in passage.message.after)]
            )
        for worker in range(workers):
            leaving = [
                (passage.start, passage.sent)
                for passage in passages
                if passage.message.sender == worker
            ]
            arriving = [
                (passage.receiving, passage.arrived)
                for passage in passages
                if passage.message.receiver == worker
            ]
            for held in (leaving, arriving):
                assert all(one[1] <= other[0] for one, other in itertools.pairwise(sorted(held)))


@pytest.mark.parametrize(
    ("transfer", "seconds"),
    [(Fraction(5), 14), (Fraction(5, 2), 9)],
    ids=["example 1.3.1", "compressed, 1.3.2"],
)
def test_the_surveys_example(transfer, seconds):
    """M1 to M2 at 5, M2 to M1 and M3 to M1 at 6, with a latency of 1.5 and a transfer of 5 units:
    latency occupies ports by default.
    """
    messages = [Message(0, 1, ready=5), Message(1, 0, ready=6), Message(2, 0, ready=6)]
    timeline = network.simulate(messages, Fraction(3, 2), transfer)
    assert timeline.start == 5
    assert timeline.seconds - timeline.start == seconds
    assert [passage.start for passage in timeline.passages] == [5, 6, 6 + transfer + Fraction(3, 2)]


def test_a_long_chain_is_no_cycle():
    """It is not too deep either; and a message may depend twice on the same one."""
    count = 3000
    messages = [
        Message(i % 2, 1 - i % 2, after=(i + 1, i + 1) if i + 1 < count else ())
        for i in range(count)
    ]
    assert network.simulate(messages, 1, 2).seconds == 3 * count


def test_on_ports_that_are_free_messages_start_when_they_are_ready():
    """Exactly: (0.1 + 0.3) - 0.3 is larger than 0.1."""
    (passage,) = network.simulate([Message(0, 1, ready=0.1)], 0.3, 1.0, "pipelined").passages
    assert passage.start == 0.1
