"""`python -m experiments.cannikin_processes`: two processes, started once, with a tiny budget; and
its results for exact times.
"""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest
import scripts

from algorithms import cannikin
from experiments import cannikin_processes
from experiments.cannikin import competitors

SHARES, PASSES = (0.25, 0.75), 2
MODEL = cannikin.ClusterModel([2e-3, 4e-3], [0.1, 0.2], [3e-3, 8e-3], [0.0, 0.1], 1.0, 0.0, 0.05)


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    args = cannikin_processes.Args(
        total=64,
        shares=SHARES,
        piece=8,
        rounds=2,
        passes=PASSES,
        width=8,
        out=tmp_path_factory.mktemp("cannikin"),
        progress=False,
    )
    scripts.ran(cannikin_processes.main, args)
    return scripts.rows(args.out / "epochs.csv")


def test_it_tries_all_splits_in_real_processes(ran):
    rows = ran
    assert len(rows) == 2 + PASSES * 4
    sizes = [(int(row["batches[0]"]), int(row["batches[1]"])) for row in rows]
    assert all(sum(each) == 64 for each in sizes)
    assert sizes[0] == (32, 32) != sizes[1]
    for some in (sizes[2:6], sizes[6:]):
        assert {(16, 48), (48, 16), (32, 32)} <= set(some), "each pass has all"
    for row in rows:
        slowest = max(float(row["compute[0]"]), float(row["compute[1]"]))
        assert float(row["batch_time"]) > 0.9 * slowest


def trial(batches, slower=1.0):
    """An epoch of three rounds with the times of the model, all longer by a factor."""
    b = np.array(batches)
    backward = slower * np.tile(MODEL.k * b + MODEL.m, (3, 1))
    compute = backward + slower * np.tile(MODEL.q * b + MODEL.s, (3, 1))
    communication = np.full((3, 2), slower * MODEL.t_last)
    seen = cannikin.Observation(
        b, compute, backward, backward, communication, cannikin.NoiseScale(0.0, 0.0)
    )
    return cannikin_processes.Trial(seen, slower * float(MODEL.batch_time(b)))


def test_a_split_is_not_predicted_from_itself():
    """One split takes twice the time of the model: predictions of the others do not use it."""
    trials = [
        trial((32, 32)),
        trial((44, 20)),
        trial((16, 48), slower=2.0),
        trial((48, 16)),
        trial((16, 48), slower=2.0),
        trial((48, 16)),
    ]
    odd, even = cannikin_processes.judge(trials, 2)
    assert [each.batches.tolist() for each in (odd, even)] == [[16, 48], [48, 16]]
    assert [len(each.measured) for each in (odd, even)] == [2, 2]
    assert even.measured == pytest.approx(MODEL.batch_time(even.batches))
    assert odd.errors() == pytest.approx((-0.5, -0.5))
    assert even.errors()[0] == pytest.approx(0)
    assert abs(even.errors()[1]) > 0.01


def fails_among(started):
    """An error in the block."""
    with competitors.competing((0, 2), nice=19) as cores:
        assert len(cores) == len(started) == 2
        assert set(cores) <= os.sched_getaffinity(0)
        raise KeyError


def test_competitors_end_with_the_block(monkeypatch):
    """For any reason."""
    started, really = [], subprocess.Popen

    def start(*args, **options):
        started.append(really(*args, **options))
        return started[-1]

    monkeypatch.setattr(competitors.subprocess, "Popen", start)
    with pytest.raises(KeyError):
        fails_among(started)
    assert all(other.returncode is not None for other in started)
