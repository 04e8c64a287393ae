"""Kimad over sockets: messages as long as they say, choices that fit, and the iterates of the
simulated method.
"""

from __future__ import annotations

import itertools
import math
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import kimad
from algorithms.kimad import processes
from algorithms.kimad import wire as wires
from algorithms.kimad.wire import Frame, Wire, receive, send
from dsgd import compressors, problems

ROUNDS, RATIO, STEP = 8, 0.1, 0.5
KEY = 3


def test_a_message_is_as_long_as_it_says_and_says_what_it_is():
    x = jax.random.normal(jax.random.key(1), (1000,))
    wire = Wire([1.0, 0.05, 0.3], 1000)
    for choice, ratio in enumerate((0.05, 0.3, 1.0)):
        message = wire.message(x, choice)
        assert 8 * len(message.packed) == wire.sizes[choice]
        whole = compressors.top_k(ratio) if ratio < 1 else compressors.identity
        np.testing.assert_array_equal(
            message.decoded,
            whole.decompress(compressors.encode(whole, jax.random.key(0), x).message, 1000),
        )
        np.testing.assert_array_equal(wire.decoded(choice, message.packed), message.decoded)


def test_a_message_may_take_longer_than_one_may_wait_for_a_byte():
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as thread:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least that there is
        here.settimeout(0.5)
        there.settimeout(20)
        packed = bytes(range(256)) * 100
        sending = thread.submit(send, here, Frame(0, False, 0.0, 0.0), packed)
        read = b""
        while not read.endswith(packed):
            time.sleep(0.1)
            read += there.recv(3000)
        sending.result()
        with pytest.raises(OSError, match="timed out"):
            send(here, Frame(0, False, 0.0, 0.0), packed)


# --- The server and a worker over connections that follow a script, with a scripted clock: frames,
# choices and records.

N, D, TIME, CONGESTION = 3, 40, 2.0, 0.5
WIRE = Wire([0.1, 0.2, 0.4, 1.0], D)
SIZES = np.array([WIRE.sizes[choice] for choice in range(4)])
RNG = np.random.default_rng(0)
PROBLEM = problems.random_quadratic(N, D, seed=0)
FLAT = jnp.asarray(RNG.normal(size=D), jnp.float32)


class Connection:
    """One that does not carry anything."""

    def __init__(self, n: int = 0) -> None:
        self.n, self.received, self.closed = n, b"", False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def sendall(self, some: bytes) -> None:
        self.received += some

    def recv(self, size: int) -> bytes:
        return b"s"

    def settimeout(self, seconds: float | None) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Script:
    """What arrives, what was sent, and the time, which goes on by a second each time that it is
    looked at.
    """

    def __init__(
        self,
        monkeypatch,
        connections: Sequence[Connection],
        arrivals: dict[int, list[tuple[Frame, bytes, float]]],
    ) -> None:
        self.sent: dict[int, list[tuple[Frame, bytes]]] = {one.n: [] for one in connections}
        self.now = 0.0
        left = {n: iter(each) for n, each in arrivals.items()}
        monkeypatch.setattr(processes, "_connected", lambda N: connections)
        monkeypatch.setattr(processes, "receive", lambda one, wire: next(left[one.n]))
        monkeypatch.setattr(
            processes, "send", lambda one, frame, packed: self.sent[one.n].append((frame, packed))
        )
        monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=self.look))

    def look(self) -> float:
        self.now += 1.0
        return self.now


def fitting(budget: float) -> int:
    """The largest message that fits, or the smallest."""
    return max(0, sum(size <= budget for size in SIZES.tolist()) - 1)


def plan(congestion: float = CONGESTION) -> processes._Plan:
    return processes._Plan(N, WIRE, TIME, congestion, kimad.last)


def messages(choices: Sequence[int]) -> list[list]:
    """A message with each choice, of vectors that differ."""
    return [
        WIRE.message(jnp.asarray(RNG.normal(size=D), jnp.float32), choice)
        for choice in map(int, choices)
    ]


# bits per second of the server's messages
HEARD = np.array([[np.nan] * N, [2000.0, 1150.0, 1600.0], [580.0, 5000.0, 800.0]])
COMPUTING = np.array([[0.5, 1.0, 0.25], [0.2, 0.1, 0.8], [0.5, 0.0, 0.5]])
RATES = np.array([[3e3, 1e3, 2e3], [5e3, 7e3, 6e3], [9e3, 8e3, 4e3]])
CHOICES = np.array([[3, 2, 3], [0, 1, 3], [2, 0, 0]])


def whole_loss(x: np.ndarray) -> float:
    """Of the workers' mean objective."""
    each = [jax.tree.map(lambda leaf, n=n: leaf[n], PROBLEM.data) for n in range(N)]
    return float(np.mean([PROBLEM.loss(jnp.asarray(x, jnp.float32), data) for data in each]))


def server(monkeypatch, seconds: float, rounds: float):
    sent = [messages(each) for each in CHOICES]
    arrivals = {n: [] for n in range(N)}
    for k, n in np.ndindex(len(sent), N):
        one = sent[k][n]
        arrivals[n].append(
            (Frame(one.choice, False, COMPUTING[k, n], HEARD[k, n]), one.packed, RATES[k, n])
        )
    connections = [Connection(n) for n in range(N)]
    script = Script(monkeypatch, connections, arrivals)
    trained = processes._Server(
        plan(), PROBLEM, optax.sgd(STEP), jax.random.key(0), FLAT, lambda x: x
    ).run(seconds, rounds, None)
    assert all(one.received == b"s" and one.closed for one in connections)
    return trained, script, np.array([[m.decoded for m in each] for each in sent])


def test_the_server_is_algorithm_1_and_follows_the_slowest_of_each(monkeypatch):
    """Budgets use the slowest downlink and the longest computation; records have the slowest rates
    and the mean bits.
    """
    trained, script, seen = server(monkeypatch, 1e9, 3)
    x, x_hat, total, losses, chosen, answers = (
        np.asarray(FLAT),
        np.asarray(FLAT),
        np.zeros(D),
        [],
        [],
        [],
    )
    for k in range(3):
        total = total + seen[k].mean(axis=0)
        x = x - STEP * total
        budget = (
            HEARD[k].min() * CONGESTION * (TIME - COMPUTING[k].max()) / (1 + CONGESTION)
            if k
            else np.inf
        )
        chosen.append(fitting(budget))
        kept = np.argsort(-np.abs(x - x_hat), kind="stable")[
            : round((0.1, 0.2, 0.4, 1.0)[chosen[-1]] * D)
        ]
        answers.append(np.where(np.isin(np.arange(D), kept), x - x_hat, 0))
        x_hat = x_hat + answers[-1]
        losses.append(whole_loss(x))
    np.testing.assert_allclose(trained.params, x, atol=1e-4)
    history = trained.history
    np.testing.assert_array_equal(history["bits_up"], SIZES[CHOICES].mean(axis=1))
    np.testing.assert_array_equal(history["bits_down"], SIZES[chosen])
    np.testing.assert_array_equal(history["rate_up"], RATES.min(axis=1))
    np.testing.assert_array_equal(history["rate_down"], HEARD.min(axis=1))
    np.testing.assert_array_equal(history["seconds"], [2.0, 4.0, 6.0])
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-4)
    for n in range(N):
        frames = [frame for frame, _ in script.sent[n]]
        assert frames == [Frame(chosen[k], k == 2, 0.0, RATES[k, n]) for k in range(3)]
        for k, (frame, packed) in enumerate(script.sent[n]):
            np.testing.assert_allclose(WIRE.decoded(frame.choice, packed), answers[k], atol=1e-4)
    assert chosen == [3, 1, 0], "budgets of a mean or of the fastest would choose others"


@pytest.mark.parametrize(
    ("seconds", "rounds", "length"), [(1e9, 2, 2), (1.0, 3, 1), (3.0, 3, 2), (3.5, 3, 3)]
)
def test_the_server_ends_after_so_many_rounds_or_seconds(monkeypatch, seconds, rounds, length):
    """It looks at its clock at 1, 3 and 5 seconds."""
    trained, script, _ = server(monkeypatch, seconds, rounds)
    assert len(trained.history["seconds"]) == length
    assert [frame.last for frame, _ in script.sent[0]] == [False] * (length - 1) + [True]


def test_a_worker_reports_its_measurements_and_follows_the_reported_rate(monkeypatch):
    """Its update takes a second; its messages are of what its estimate lacks."""
    heard, rates = [1800.0, 700.0, 900.0], [100.0, 200.0, 300.0]
    answers = messages([3, 1, 0])
    connection = Connection()
    arrivals = [
        (Frame(m.choice, k == 2, 0.0, heard[k]), m.packed, rates[k]) for k, m in enumerate(answers)
    ]
    script = Script(monkeypatch, [connection], {0: arrivals})
    exact = PROBLEM._replace(sample=lambda key, data: data)
    worker = processes._Worker(plan(), 1, exact, jax.random.key(0), FLAT, lambda x: x)
    data = jax.tree.map(lambda leaf: leaf[1], PROBLEM.data)
    model = worker.run()
    x, known = np.asarray(FLAT), np.zeros(D)
    assert len(script.sent[0]) == 3
    for k, (frame, packed) in enumerate(script.sent[0]):
        budget = heard[k - 1] * (TIME - 1.0) / (1 + CONGESTION) if k else np.inf
        choice = fitting(budget)
        assert frame.choice == choice
        assert (frame.last, frame.computing) == (False, 1.0)
        np.testing.assert_equal(frame.heard, rates[k - 1] if k else math.nan)
        lacking = np.asarray(PROBLEM.gradient(jnp.asarray(x, jnp.float32), data)) - known
        sent = np.asarray(WIRE.decoded(choice, packed))
        places = np.argsort(-np.abs(lacking), kind="stable")[
            : round((0.1, 0.2, 0.4, 1.0)[choice] * D)
        ]
        np.testing.assert_allclose(
            sent, np.where(np.isin(np.arange(D), places), lacking, 0), atol=1e-4
        )
        known, x = known + sent, x + np.asarray(answers[k].decoded)
    np.testing.assert_allclose(model, x, atol=1e-4)
    np.testing.assert_allclose(worker.known, known, atol=1e-4)
    assert [frame.choice for frame, _ in script.sent[0]] == [3, 2, 1]


def test_a_link_of_each_direction_has_its_share_of_the_time():
    """With congestion 0 the downlink has no limit, and the uplink has all the time that computation
    leaves.
    """
    for congestion in (0.0, 0.5, 2.0):
        for down in (False, True):
            link = processes._Link(plan(congestion), down)
            assert link.budget(0.5) == math.inf
            link.observe(300.0)
            share = (congestion if down else 1.0) / (1 + congestion)
            assert link.budget(0.5) == (
                math.inf if down and not congestion else pytest.approx(300.0 * 1.5 * share)
            )


def test_messages_are_in_the_order_of_their_sizes_and_the_whole_vector_as_it_is():
    """Where the largest elements with their places would be longer than all, all are sent."""
    unordered = Wire([1.0, 0.1, 0.95, 0.3], D)
    assert unordered.sizes == sorted(unordered.sizes)
    x = jnp.arange(1.0, D + 1)
    kept = [
        int((np.asarray(unordered.message(x, choice).decoded) != 0).sum()) for choice in range(4)
    ]
    assert kept == [4, 12, D, D]
    assert unordered.sizes[2:] == [32 * D, 32 * D]


def test_what_is_sent_is_received_with_the_rate_from_its_first_byte_to_its_last(monkeypatch):
    looks = itertools.chain([10.0, 10.25], itertools.repeat(11.0))
    monkeypatch.setattr(wires, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    message = WIRE.message(FLAT, 1)
    here, there = socket.socketpair()
    with here, there:
        for last, rate in ((True, SIZES[1] / 0.25), (False, math.inf)):
            send(here, Frame(1, last, 0.5, 123.0), message.packed)
            assert receive(there, WIRE) == (Frame(1, last, 0.5, 123.0), message.packed, rate)
        for choice, length in ((4, SIZES[3] // 8), (0, SIZES[1] // 8), (3, SIZES[3] // 8 - 1)):
            send(here, Frame(choice, False, 0.0, 0.0), bytes(int(length)))
            with pytest.raises(
                OSError,
                match=(
                    f"received {length} bytes with compressor {choice}; "
                    "expected a message of the same ratios"
                ),
            ):
                receive(there, WIRE)
            there.recv(int(length), socket.MSG_WAITALL)
        here.close()
        with pytest.raises(OSError, match="closed the connection"):
            receive(there, WIRE)


def test_the_choice_is_the_largest_that_fits():
    assert [
        WIRE.choice(float(budget))
        for budget in (0, SIZES[0], SIZES[1] - 1, SIZES[1], SIZES[3] - 1, math.inf)
    ] == [0, 0, 0, 1, 2, 3]


def test_refusals():
    with pytest.raises(
        ValueError, match="3 workers in 1 processes; expected 4 processes: the server and one"
    ):
        processes.train_processes(
            PROBLEM, optax.sgd(0.1), [0.1], 1.0, seconds=1.0, key=jax.random.key(0)
        )
    with pytest.raises(
        ValueError, match=r"kimad.top_k: ratios contain 2.0; expected numbers in \(0, 1\]"
    ):
        Wire([2.0], 10)
