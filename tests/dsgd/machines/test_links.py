"""Shaped links between processes in network namespaces: they have the given rates and latency, and
are removed afterwards.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from dsgd.machines import delays, links, local_processes
from dsgd.machines.links import Rate

RATE = Rate((40e6, 8e6), period=4.0)
BYTES = 300_000
LATENCY = 0.01


def _why_not(latency: float = 0.0) -> str:
    try:
        links.require_allowed(latency)
    except ValueError as error:
        return str(error)
    return ""


allowed = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "it is allowed")
delayed = pytest.mark.skipif(bool(_why_not(LATENCY)), reason=_why_not(LATENCY) or "it is allowed")


def connect() -> socket.socket:
    """Returns a connection between two processes; called in both of them."""
    first = jax.process_index() == 0
    with socket.create_server((local_processes.here(), 5000 if first else 0)) as listening:
        multihost_utils.sync_global_devices("listening")
        one = (
            listening.accept()[0]
            if first
            else socket.create_connection(("10.0.0.1", 5000), timeout=20)
        )
    one.settimeout(20)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


def transfers(rate: Rate, one: socket.socket) -> dict[float, float]:
    """Returns the median of three messages in each period of the rate, bits per second; called in
    two processes.
    """
    first = jax.process_index() == 0
    found: dict[float, list[float]] = {bits: [] for bits in rate.bits}
    turn = rate.period / len(rate.bits)
    for i, bits in enumerate(rate.bits):
        for _ in range(3):
            if first:
                time.sleep(((i + 0.3) * turn - time.monotonic()) % rate.period)
                one.sendall(b"go")
                one.recv(1)
                began, left = time.monotonic(), BYTES - 1
                while left:
                    left -= len(one.recv(min(left, 1 << 16)))
                found[bits].append(8 * BYTES / (time.monotonic() - began))
            else:
                one.recv(2)
                one.sendall(bytes(BYTES))
    return {bits: sorted(rates)[1] if rates else 0.0 for bits, rates in found.items()}


def round_trip(one: socket.socket) -> float:
    """Returns the median seconds of eleven round trips of a byte."""
    seconds = []
    for _ in range(11):
        began = time.monotonic()
        if jax.process_index() == 0:
            one.sendall(b"x")
            one.recv(1)
        else:
            one.recv(1)
            one.sendall(b"x")
        seconds.append(time.monotonic() - began)
    return float(np.median(seconds))


def alive(space: str) -> bool:
    """Returns whether some process is in this network namespace."""
    for each in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if str(each.readlink()) == space:
                return True
        except OSError:
            continue
    return False


def gone(spaces: list[str], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, spaces)):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def space_and_transfers(rate: Rate):
    with connect() as one:
        return str(Path("/proc/self/ns/net").readlink()), transfers(rate, one)


def space_round_trip_and_transfers(rate: Rate):
    with connect() as one:
        space = str(Path("/proc/self/ns/net").readlink())
        return space, round_trip(one), transfers(rate, one)


@pytest.mark.long
@allowed
def test_links_have_the_given_rate_and_follow_its_changes():
    (here, found), (there, _) = links.shaped(
        2, partial(space_and_transfers, RATE), RATE, timeout=120
    )
    assert len({here, there, str(Path("/proc/self/ns/net").readlink())}) == 3
    assert found == {bits: pytest.approx(bits, rel=0.2) for bits in RATE.bits}
    assert gone([here, there])


@pytest.mark.long
@delayed
def test_links_have_the_given_latency_and_rate():
    rate = Rate((20e6,))
    (here, seconds, found), (there, _, _) = links.shaped(
        2, partial(space_round_trip_and_transfers, rate), rate, latency=LATENCY, timeout=120
    )
    assert seconds == pytest.approx(2 * LATENCY, rel=0.2)
    assert found[20e6] == pytest.approx(20e6, rel=0.2)
    assert gone([here, there])


@allowed
@pytest.mark.parametrize("latency", [0.0, pytest.param(LATENCY, marks=delayed)])
def test_nothing_is_left_after_a_kill(latency):
    """Neither processes (the relay is one) nor namespaces."""
    script = """
import subprocess, sys, time
from dsgd.machines import links, local_processes
def wait(name, sites, function, timeout):
    for site in sites:
        command = [*site.enter, "readlink", "/proc/self/ns/net"]
        print(subprocess.check_output(command, text=True).strip(), flush=True)
    time.sleep(60)
local_processes.call = wait
links.shaped(2, print, links.Rate((1e6, 2e6), 1.0), latency=float(sys.argv[1]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(latency)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        spaces = [process.stdout.readline().strip() for _ in range(2)]
        assert all(map(alive, spaces))
        os.kill(process.pid, signal.SIGKILL)
    assert gone(spaces)


def test_a_rate_that_could_not_be_changed_in_time_is_reported(monkeypatch):
    """For example if a tool takes too long on a busy machine: later measurements have been made at
    another rate.
    """
    failed = threading.Event()

    def call(command, lines=""):
        if " change " in lines:
            failed.set()
            raise ValueError("shaped links: tc took more than 30 s")

    monkeypatch.setattr(links, "_call", call)
    with subprocess.Popen(["true"]) as nobody:
        ends = [(nobody, "eth0")]
    with (
        pytest.raises(ValueError, match="tc took more than 30 s"),
        links._kept_at(ends, Rate((1e6, 2e6), 0.05)),
    ):
        assert failed.wait(20)
    with pytest.raises(KeyError), links._kept_at(ends, Rate((1e6, 2e6), 0.05)):
        raise KeyError  # an error of the block takes precedence


def test_rates_take_turns_by_the_clock():
    assert [RATE.at(clock) for clock in (0.0, 1.9, 2.1, 3.9, 4.1)] == [40e6, 40e6, 8e6, 8e6, 40e6]
    assert RATE.next_turn(1.9) == 2.0
    assert RATE.next_turn(2.1) == 4.0


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (Rate(()), "rate has bits = none; expected finite numbers > 0"),
        (Rate((1e6, 0.0)), "rate has bits = 1e\\+06, 0; expected finite numbers > 0"),
        (Rate((1e6,), float("inf")), "rate has period = inf; expected finite numbers > 0"),
    ],
)
def test_invalid_rates_are_refused(rate, message):
    with pytest.raises(ValueError, match=message):
        links.shaped(2, print, rate)


@pytest.mark.parametrize("latency", [-0.1, float("inf"), float("nan")])
def test_invalid_latencies_are_refused(latency):
    with pytest.raises(ValueError, match=r"shaped: latency = .*; expected a number in \[0, inf\)"):
        links.shaped(2, print, RATE, latency=latency)


@delayed
def test_a_relay_that_failed_is_reported():
    with (
        pytest.raises(ValueError, match="the relay that delays frames created no TAP devices"),
        delays.pairs(("unshare", "--net"), [("same", "same")], LATENCY),
    ):
        pass
