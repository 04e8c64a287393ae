"""Killed processes: the others name the killed one, and the same command resumes from the last
checkpoint.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys

import cloudpickle
import jax
import multiprocess_cases
import numpy as np
import pytest

from dsgd.machines import heartbeat, subprocess_call

# the last value is the time within which the other process ends, on a busy machine
KILLS, LOST_AFTER, SECONDS = 20, 3.0, 60


@pytest.fixture(scope="module")
def killed_run(long, tmp_path_factory):
    """Returns the folder of a run that was killed this many times at random rounds, and then
    completed, and the observations at each kill. Before, each of its processes is stopped once,
    while its connections stay open.
    """
    folder, draw, seen = tmp_path_factory.mktemp("killed"), random.Random(0), []
    command = [
        sys.executable,
        "-c",
        "import multiprocess_cases, pathlib; "
        f"multiprocess_cases.nursery(pathlib.Path({str(folder)!r}), {LOST_AFTER})",
    ]
    with subprocess.Popen(
        command,
        env=subprocess_call.environment(1),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as nursery:
        try:
            rounds = sorted(
                draw.sample(range(multiprocess_cases.EVERY, multiprocess_cases.ROUNDS), KILLS)
            )
            stopped = [(victim, multiprocess_cases.EVERY, signal.SIGSTOP) for victim in range(2)]
            for victim, at, by in [
                *stopped,
                *((draw.randrange(2), at, signal.SIGKILL) for at in rounds),
                (-1, 0, 0),
            ]:
                print(victim, at, int(by), file=nursery.stdin, flush=True)
                seen.append((victim, *json.loads(nursery.stdout.readline())))
            nursery.communicate(timeout=SECONDS)
        finally:
            nursery.kill()
    return folder, seen


def test_a_run_that_was_killed_many_times_equals_an_uninterrupted_run(killed_run):
    folder, seen = killed_run
    assert sum(-signal.SIGKILL in statuses for _, *statuses, _ in seen) == len(seen) - 1
    straight = multiprocess_cases.host_values(
        multiprocess_cases.dsgd.run(
            multiprocess_cases.method("permutes"),
            multiprocess_cases.quadratic(),
            steps=multiprocess_cases.ROUNDS,
            key=jax.random.key(0),
            record_every=multiprocess_cases.EVERY,
            mesh=multiprocess_cases.dsgd.workers.mesh(2),
        )
    )
    for i in range(2):
        jax.tree.map(
            np.testing.assert_array_equal,
            cloudpickle.loads((folder / f"{i}.result").read_bytes()),
            straight,
        )


def test_surviving_processes_end_soon_and_name_the_killed_one(killed_run):
    folder, seen = killed_run
    for victim, *statuses, seconds in seen[:-1]:
        assert statuses[1 - victim] == heartbeat.STATUS
        assert seconds < SECONDS
    first, second = ((folder / f"{i}.log").read_text() for i in range(2))
    victims = [victim for victim, *_ in seen]
    ended = "is lost|exited or cannot be reached|gave no sign of life|did not answer"
    ends = rf"^(PeerLost|Error): process %d of 2 \(.* ({ended})"
    for victim, log in ((1, first), (0, second)):
        assert len(re.findall(ends % victim, log, re.MULTILINE)) == victims.count(victim)
