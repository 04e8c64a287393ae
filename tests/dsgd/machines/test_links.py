"""Shaped links between processes in network namespaces: they have the given rates, and are removed
afterwards.
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
import pytest
from jax.experimental import multihost_utils

from dsgd.machines import links, local_processes
from dsgd.machines.links import Rate

RATE = Rate((40e6, 8e6), period=4.0)
BYTES = 300_000


def _why_not() -> str:
    try:
        links.require_allowed()
    except ValueError as error:
        return str(error)
    return ""


allowed = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "it is allowed")


def transfers(rate: Rate, cross) -> dict[float, float]:
    """Returns the median of three messages in each period of the rate, bits per second; called in
    two processes.
    """
    first = jax.process_index() == 0
    with socket.create_server((local_processes.here(), 5000 if first else 0)) as listening:
        multihost_utils.sync_global_devices("listening")
        one = (
            listening.accept()[0] if first else socket.create_connection((cross, 5000), timeout=20)
        )
    one.settimeout(20)
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
    one.close()
    return {bits: sorted(rates)[1] if rates else 0.0 for bits, rates in found.items()}


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
    return str(Path("/proc/self/ns/net").readlink()), transfers(rate, "10.0.0.1")


@pytest.mark.long
@allowed
def test_links_have_the_given_rate_and_follow_its_changes():
    (here, found), (there, _) = links.shaped(
        2, partial(space_and_transfers, RATE), RATE, timeout=120
    )
    assert len({here, there, str(Path("/proc/self/ns/net").readlink())}) == 3
    assert found == {bits: pytest.approx(bits, rel=0.2) for bits in RATE.bits}
    assert gone([here, there])


@allowed
def test_nothing_is_left_after_a_kill():
    script = """
import subprocess, time
from dsgd.machines import links, local_processes
def wait(name, sites, function, timeout):
    for site in sites:
        command = [*site.enter, "readlink", "/proc/self/ns/net"]
        print(subprocess.check_output(command, text=True).strip(), flush=True)
    time.sleep(60)
local_processes.called = wait
links.shaped(2, print, links.Rate((1e6, 2e6), 1.0))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
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

    def called(command, lines=""):
        if " change " in lines:
            failed.set()
            raise ValueError("shaped links: tc took more than 30 s")

    monkeypatch.setattr(links, "_called", called)
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


def test_missing_permissions_are_reported(monkeypatch):
    monkeypatch.setattr(links.os, "geteuid", lambda: 1000)
    with pytest.raises(ValueError, match="shaped: the user id is 1000; expected root"):
        links.require_allowed()
    monkeypatch.setattr(links.os, "geteuid", lambda: 0)
    monkeypatch.setattr(links.shutil, "which", lambda tool: None if tool == "tc" else tool)
    with pytest.raises(ValueError, match="shaped: tc not found; expected"):
        links.require_allowed()
