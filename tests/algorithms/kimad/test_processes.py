"""Kimad over sockets: messages as long as they say, choices that fit, and the iterates of the simulated method."""

from __future__ import annotations

import math
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import kimad
from algorithms.kimad import monitors, processes
from algorithms.kimad.wire import Frame, Wire, receive, send
from dsgd import compressors, problems

ROUNDS, RATIO, STEP = 8, 0.1, 0.5
KEY = 3


def task() -> dsgd.Problem:
    return problems.logistic_regression(workers=2, partition="by-label", batch_size=16)


def trained(problem: dsgd.Problem) -> list:
    """In each of three processes: with one ratio; and with several, where a message has next to no time."""
    run = {"seconds": 60.0, "key": jax.random.key(KEY), "rounds": ROUNDS}
    always = processes.train_processes(problem, optax.sgd(STEP), [RATIO], 1.0, **run)
    hurried = processes.train_processes(problem, optax.sgd(STEP), [0.01, 1.0, 0.1], 1e-9, **run)
    return [always, hurried]


@pytest.fixture(scope="module")
def ran():
    problem = task()
    return problem, dsgd.loopback(3, partial(trained, problem), timeout=300)


def test_the_iterates_are_those_of_the_simulated_method(ran):
    problem, (server, *workers) = ran
    method = algorithms.kimad_sgd(optax.sgd(STEP), kimad.whole_model(kimad.top_k([RATIO])), 1.0)
    simulated = dsgd.run(method, problem, steps=ROUNDS, key=jax.random.key(KEY), mesh=1)
    history = server[0].history
    np.testing.assert_allclose(history["loss"], simulated.history["loss"][1:], rtol=1e-5)
    for ours, theirs in zip(jax.tree.leaves(server[0].params), jax.tree.leaves(simulated.params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_array_equal(history["bits_up"], simulated.history["message_up"][1:].mean(axis=1))
    estimates = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(each[0].params)]) for each in workers]
    np.testing.assert_array_equal(*estimates)
    assert all(each[0].history is None for each in workers)


def test_messages_without_time_are_the_smallest_once_the_link_is_known(ran):
    problem, (server, *_) = ran
    d = sum(leaf.size for leaf in jax.tree.leaves(problem.init(jax.random.key(0))))
    history, wire = server[1].history, Wire([0.01, 0.1, 1.0], d)
    np.testing.assert_array_equal(history["bits_up"], [wire.bits(2)] + [wire.bits(0)] * (ROUNDS - 1))
    assert np.isfinite(history["rate_up"]).all()
    assert (np.diff(history["seconds"]) > 0).all()


def test_a_message_is_as_long_as_it_says_and_says_what_it_is():
    x = jax.random.normal(jax.random.key(1), (1000,))
    wire = Wire([1.0, 0.05, 0.3], 1000)
    for choice, ratio in enumerate((0.05, 0.3, 1.0)):
        message = wire.message(x, choice)
        assert 8 * len(message.packed) == wire.bits(choice)
        whole = compressors.top_k(ratio) if ratio < 1 else compressors.identity
        np.testing.assert_array_equal(message.seen, whole.decompress(whole.compress(jax.random.key(0), x), 1000))
        np.testing.assert_array_equal(wire.seen(choice, message.packed), message.seen)


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


def test_the_choice_is_the_largest_that_fits():
    wire = Wire([0.05, 0.3, 1.0], 1000)
    sizes = [wire.bits(i) for i in range(3)]
    assert sizes[2] == 32_000
    assert [wire.choice(budget) for budget in (0, sizes[0], sizes[1] - 1, sizes[1], sizes[2] - 1, math.inf)] == [0, 0, 0, 1, 1, 2]


def test_budgets_are_those_of_the_paper():
    plan = processes._Plan(2, Wire([0.1], 100), 0.5, 1.0, monitors.last)
    for down in (False, True):
        link = processes._Link(plan, down)
        assert link.budget(0.1) == math.inf
        link.told(1e6)
        assert link.budget(0.1) == pytest.approx(float(kimad.budget(1e6, 0.5, 0.1).up))
        assert link.budget(0.6) == 0
    assert processes._Link(plan._replace(congestion=0.0), down=True).budget(0.0) == math.inf


def test_refusals():
    problem = task()
    run = {"seconds": 1.0, "key": jax.random.key(0)}
    with pytest.raises(ValueError, match="train_processes: 2 workers in 1 processes: need 3, of which the first is the server"):
        processes.train_processes(problem, optax.sgd(0.1), [0.1], 1.0, **run)
    with pytest.raises(ValueError, match=r"kimad.top_k: a ratio of 2.0; need numbers in \(0, 1\]"):
        Wire.of([2.0], 10)
    one, other = socket.socketpair()
    other.close()
    with one, pytest.raises(OSError, match="a connection is gone"):
        receive(one, Wire([0.5], 10))
