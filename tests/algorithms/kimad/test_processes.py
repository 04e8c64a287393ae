"""Kimad over sockets: lengths of messages, choices that fit, and the iterates of the recursion.
Real processes are tested in `tests/algorithms/test_real_processes.py`.
"""

from __future__ import annotations

import itertools
import json
import math
import queue
import socket
import threading
import time
from collections.abc import Iterable
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
from tests.methods import kimad_sgd as papers

N, D, TIME, CONGESTION, STEP = 3, 40, 2.0, 0.5, 0.5
RATIOS = (0.1, 0.2, 0.4, 1.0)
WIRE = Wire(RATIOS, D)
SIZES = WIRE.sizes
CHOICE = 8  # bits of the choice, which the recursion counts, and which are here in the frame
RNG = np.random.default_rng(0)
FLAT = jnp.asarray(RNG.normal(size=D), jnp.float32)


# --- The wire.


def test_a_message_has_the_stated_length_and_decodes():
    """In the order of their sizes; if the largest elements with their indices would be longer than
    the vector, the vector is sent.
    """
    wire = Wire([1.0, 0.1, 0.95, 0.3], D)
    assert wire.sizes == sorted(wire.sizes)
    for choice, ratio in enumerate((0.1, 0.3, 1.0, 1.0)):
        message = wire.message(FLAT, choice)
        assert 8 * len(message.packed) == wire.sizes[choice]
        whole = compressors.top_k(ratio) if ratio < 1 else compressors.identity
        np.testing.assert_array_equal(
            message.decoded,
            whole.decompress(compressors.encode(whole, jax.random.key(0), FLAT).message, D),
        )
        np.testing.assert_array_equal(wire.decode(choice, message.packed), message.decoded)


def test_the_choice_is_the_largest_that_fits():
    budgets = (0, SIZES[0], SIZES[1] - 1, SIZES[1], SIZES[3] - 1, math.inf)
    assert [WIRE.choice(float(budget)) for budget in budgets] == [0, 0, 0, 1, 2, 3]


def test_a_message_may_take_longer_than_the_timeout_of_a_byte():
    here, there = socket.socketpair()
    with here, there, ThreadPoolExecutor(1) as thread:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the smallest possible buffer
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


def test_a_received_message_has_the_rate_from_its_first_byte_to_its_last(monkeypatch):
    looks = itertools.chain([10.0, 10.25], itertools.repeat(11.0))
    monkeypatch.setattr(wires, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    message = WIRE.message(FLAT, 1)
    here, there = socket.socketpair()
    with here, there:
        for last, rate in ((True, SIZES[1] / 0.25), (False, math.inf)):
            send(here, Frame(1, last, 0.5, 123.0), message.packed)
            assert receive(there, WIRE) == (Frame(1, last, 0.5, 123.0), message.packed, rate)
        for choice, length in ((4, SIZES[3] // 8), (0, SIZES[1] // 8), (3, SIZES[3] // 8 - 1)):
            send(here, Frame(choice, False, 0.0, 0.0), bytes(length))
            with pytest.raises(OSError, match=f"{length} bytes with compressor {choice}"):
                receive(there, WIRE)
            there.recv(length, socket.MSG_WAITALL)
        here.close()
        with pytest.raises(OSError, match="closed the connection"):
            receive(there, WIRE)


# --- The server and its workers in threads, over queues, with given clocks and rates.

PROBLEM = problems.random_quadratic(N, D, heterogeneity=1.0, seed=0)
# Seconds of each worker's updates; bits per second, round by round, of messages to and from the
# server. Budgets from means, or from the fastest link, would give other choices.
COMPUTING = np.array([0.5, 1.0, 0.25])
TO_SERVER = np.array([[800.0, 350.0, 700.0], [400.0, 700.0, 600.0], [900.0, 800.0, 400.0]])
FROM_SERVER = np.array([[2000.0, 1150.0, 1600.0], [580.0, 5000.0, 800.0], [900.0] * N])


class End:
    """One end of a connection; its received messages have the given rates."""

    def __init__(self, rates: Iterable[float]) -> None:
        self.rates, self.arrived, self.closed = iter(rates), queue.Queue(), False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def recv(self, size: int) -> bytes:
        return self.arrived.get(timeout=60)

    def settimeout(self, seconds: float | None) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def training(monkeypatch):
    """Returns a function (seconds, rounds) -> the server's result, the workers' models, and the
    last frames.
    """

    def train(seconds, rounds):
        own, last = threading.local(), []
        workers, server = ([End(row) for row in rates.T] for rates in (FROM_SERVER, TO_SERVER))
        for one, other in zip(workers, server, strict=True):
            one.other, other.other = other, one
            other.sendall = one.arrived.put

        def look():
            own.now = getattr(own, "now", 0.0) + own.seconds
            return own.now

        def send_frame(end, frame, packed):
            last.append(frame.last)
            end.other.arrived.put((frame, packed))

        monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=look))
        monkeypatch.setattr(processes, "_connect", lambda N: own.ends)
        monkeypatch.setattr(processes, "send", send_frame)
        monkeypatch.setattr(processes, "receive", lambda end, wire: (*end.recv(1), next(end.rates)))
        plan = processes._Plan(N, WIRE, TIME, CONGESTION, kimad.last)
        exact = PROBLEM._replace(sample=lambda key, data: data)
        of_all = jax.random.key(0), FLAT, lambda x: x

        def work(n):
            own.seconds, own.ends = COMPUTING[n], [workers[n]]
            return processes._Worker(plan, n, exact, *of_all).run()

        with ThreadPoolExecutor(N) as threads:
            models = [threads.submit(work, n) for n in range(N)]
            own.seconds, own.ends = 1.0, server
            found = processes._Server(plan, PROBLEM, optax.sgd(STEP), *of_all).run(
                seconds, rounds, None
            )
            models = [model.result() for model in models]
        assert all(end.closed for end in (*workers, *server))
        return found, models, last

    return train


def recursion():
    """Returns the iterates of the paper's recursion, with budgets from the rates of the previous
    round.
    """
    A, b = (np.asarray(leaf, float) for leaf in PROBLEM.data[:2])

    def budgets(rounds):
        k, seconds = len(rounds), (TIME - COMPUTING) / (1 + CONGESTION)
        if not k:
            return np.full(N, np.inf), np.inf
        return TO_SERVER[k - 1] * seconds, FROM_SERVER[k - 1].min() * CONGESTION * seconds.min()

    def fitting(errors, sizes, budget):
        return [WIRE.choice(budget + float(CHOICE))]

    select = papers.selecting((D,), papers.top_k(RATIOS, 32), fitting, 32)
    return papers.kimad(
        np.asarray(FLAT, float),
        lambda k, x: np.einsum("nij,j->ni", A, x) - b,
        lambda g: -STEP * g,
        select,
        select,
        budgets,
        np.full(N, 1 / N),
    )


def test_the_server_and_its_workers_run_algorithm_1_and_follow_the_slowest_links(training):
    """Budgets use the slowest downlink and the longest computation; records have the slowest rates
    and the mean bits.
    """
    found, models, _ = training(1e9, 3)
    rounds = list(itertools.islice(recursion(), 3))
    np.testing.assert_allclose(found.params, rounds[-1]["x"], atol=1e-4)
    for model in models:
        np.testing.assert_allclose(model, rounds[-1]["x_hat"], atol=1e-4)
    history = found.history
    expected = {
        "bits_up": [each["message_up"].mean() - CHOICE for each in rounds],
        "bits_down": [each["message_down"] - CHOICE for each in rounds],
        "rate_up": TO_SERVER.min(axis=1),
        "rate_down": [np.nan, *FROM_SERVER.min(axis=1)[:2]],
        "seconds": [2.0, 4.0, 6.0],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(history[name], values, err_msg=name)
    A, b = (np.asarray(leaf, float).mean(axis=0) for leaf in PROBLEM.data[:2])
    losses = [each["x"] @ A @ each["x"] / 2 - b @ each["x"] for each in rounds]
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-4)
    assert len({*expected["bits_down"]}) == 3


@pytest.mark.parametrize(("seconds", "rounds", "length"), [(1e9, 2, 2), (1.0, 3, 1), (3.0, 3, 2)])
def test_the_server_ends_after_the_given_rounds_or_seconds(training, seconds, rounds, length):
    """The server reads its clock at 1, 3 and 5 seconds."""
    found, _, last = training(seconds, rounds)
    assert len(found.history["seconds"]) == length
    assert sum(last) == N


def test_the_server_listens_at_the_loopback_address(monkeypatch):
    """Not at the others of the machine, to which 127.0.0.2 belongs."""
    refused, workers = [], []

    def connect(_, address):
        host, port = json.loads(address)
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), 10)
        refused.append(host)
        for n in (1, 0):
            workers.append(socket.create_connection((host, port), 10))
            workers[-1].sendall(n.to_bytes(4, "big"))

    monkeypatch.setattr(processes.agreement, "all_gather", connect)
    ends = processes._connect(2)
    assert refused == ["127.0.0.1"]
    assert [end.getpeername() for end in ends] == [each.getsockname() for each in workers[::-1]]
    for each in (*ends, *workers):
        each.close()


def test_another_number_of_processes_is_refused():
    with pytest.raises(ValueError, match="3 workers in 1 processes; expected 4"):
        processes.train_processes(
            PROBLEM, optax.sgd(0.1), [0.1], 1.0, seconds=1.0, key=jax.random.key(0)
        )
