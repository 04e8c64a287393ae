"""The number of a process as given by its launcher; and a coordinator that is unreachable, or has
too few processes.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import dsgd
from dsgd.machines import heartbeat, runtime, subprocess_call

SLURM = {
    "SLURM_JOB_ID": "4097",
    "SLURM_STEP_NODELIST": "node[07-09],far",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
# as in version 4
FOUR = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}


@pytest.fixture
def environment(monkeypatch):
    """Sets variables, in an environment without other variables of launchers."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMIX_", "JOB_COMPLETION", "KUBERNETES_")):
            monkeypatch.delenv(name)

    def put(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("variables", "given", "place"),
    [
        ({}, (None, None, None), None),
        ({}, ("host:1", 2, 1), ("host:1", 2, 1, None)),
        (SLURM, (None, None, None), ("node07:61441", 8, 5, 1)),
        (SLURM, ("other:99", None, None), ("other:99", 8, 5, 1)),
        (SLURM, ("other:99", 2, 0), ("other:99", 2, 0, None)),
        ({**SLURM, "SLURM_NTASKS": "1"}, (None, None, None), None),
        (MPI | FOUR, (None, None, None), ("10.96.0.1:62624", 4, 3, 3)),
        (
            MPI | {"PMIX_NAMESPACE": "prterun-vm-1@1"},
            (None, None, None),
            ("127.0.0.1:61453", 4, 3, 3),
        ),
        (
            {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            ("node1:99", None, None),
            ("node1:99", 4, 3, 3),
        ),
    ],
)
def test_the_number_of_a_process_is_detected(variables, given, place, environment):
    environment(variables)
    found = runtime._place(*given, timeout=1.0)
    assert (found and tuple(found)) == place


def test_an_unreachable_coordinator_is_reported_within_the_timeout():
    began = time.monotonic()
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nothing listens on this port
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(
            dsgd.PeerLost, match=f"coordinator {address} cannot be reached within 0.3 s"
        ):
            dsgd.join(address, 2, 1, timeout=0.3)
    assert time.monotonic() - began < 20


def test_the_coordinator_refuses_connections_to_other_addresses():
    """At the machine's address in its network, if it has one, not at those of the loopback."""
    host = runtime._towards("192.0.2.1") or "127.0.0.1"
    status, said = run(LISTENS, 1, 0, host)
    assert status == 0, said
    assert said.splitlines()[-1] == "refused"


IMPORTS = """
import os, signal, sys, time
import dsgd
from dsgd.machines import agreement, heartbeat
"""
ALONE = "dsgd.join(address, 2, index, timeout=1)"
LISTENS = """
import socket
dsgd.join(address, 1, index)
host, port = address.split(":")
socket.create_connection((host, int(port)), 10).close()
try:
    socket.create_connection(("127.0.0.2", int(port)), 10).close()
    print("accepted")
except OSError:
    print("refused")
"""
JUST_JOINED = """
if index:
    agreement.all_gather = lambda about, words: os.kill(os.getpid(), signal.SIGKILL)
try:
    dsgd.join(address, 2, index, lost_after=3.0)
except dsgd.PeerLost as error:
    print(error, flush=True)
    os._exit(heartbeat.STATUS)
"""
HOST_HANGS = """
dsgd.join(address, 2, index, lost_after=3.0)
if not index:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(3)
"""


def run(script: str, processes: int, asked: int, host: str = "127.0.0.1") -> tuple[int, str]:
    """Returns the exit status and the output of one of several processes."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, 0))
        address = f"{host}:{held.getsockname()[1]}"
        commands = [
            [sys.executable, "-c", f"{IMPORTS}address, index = {address!r}, {i}\n{script}"]
            for i in range(processes)
        ]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        there = [
            subprocess.Popen(command, env=subprocess_call.environment(1), **pipes)
            for command in commands
        ]
        try:
            said, _ = there[asked].communicate(timeout=240)
        finally:
            for process in there:
                process.kill()
                process.communicate()
    return there[asked].returncode, said


def test_the_first_process_reports_missing_processes():
    status, said = run(ALONE, 1, 0)
    assert status == heartbeat.STATUS
    assert re.match(
        r"Error: not all of 2 processes reached 127\.0\.0\.1:\d+ within 1 s", said.splitlines()[-1]
    )


@pytest.mark.long
def test_lost_processes_are_detected_at_the_start_and_the_end_of_a_run():
    """One process is killed before it has sent its name; a coordinator is stopped while another
    process ends normally.
    """
    with ThreadPoolExecutor() as pool:  # they mostly wait
        (joined, said_first), (hung, said_other) = pool.map(
            run, (JUST_JOINED, HOST_HANGS), (2, 2), (0, 1)
        )
    assert (joined, hung) == (heartbeat.STATUS, heartbeat.STATUS)
    assert "process 1 of 2 (which had just joined) gave no sign of life for 3 s" in said_first
    assert "the coordinator, did not answer for 3 s" in said_other


class Store(dict):
    """A replacement of the coordinator's store with one process."""

    def key_value_set(self, key, words, allow_overwrite):
        self[key] = words

    def key_value_dir_get(self, _):
        return list(self.items())


@pytest.mark.parametrize("state", ["ended", "left"])
@pytest.mark.parametrize(("words", "same"), [("why", True), ("another why", False)])
def test_messages_of_process_0_are_not_repeated(monkeypatch, state, words, same):
    """Also for a process that reads only after process 0 has left."""
    monkeypatch.setattr(heartbeat, "leave_at_once", lambda *_: None)
    monkeypatch.setattr(
        heartbeat,
        "_heartbeat",
        heartbeat._Heartbeat(
            Store({"dsgd/alive/0": f"{state}: {words}"}), 1, ["first", "second"], 3.0
        ),
    )
    assert heartbeat.end("why") == (True, same)


def test_a_process_that_was_silent_and_continues_is_not_lost():
    store = Store({"dsgd/alive/1": "7"})
    watch = heartbeat._Heartbeat(store, 0, ["first", "second"], 1e3)
    watch.look()
    watch.lost_after = 0.0
    watch.look()
    assert "process 1 of 2 (second) gave no sign of life" in (watch.lost or "")
    watch.lost_after, store["dsgd/alive/1"] = 1e3, "8"
    watch.look()
    assert watch.lost is None
    store["dsgd/alive/1"] = "ended: why"
    watch.look()
    store["dsgd/alive/1"] = "ended: why not"
    watch.look()
    assert watch.lost == "process 1 of 2 (second) exited: why"
    watch.ended.set()
    watch.gone.set()
