"""`python -m experiments.dropcompute_processes`: two processes, started once, with a tiny budget;
and the comparison of measurements with plans.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scripts

from experiments import dropcompute_processes as script

ARGS = script.Args(processes=2, slow=1, factor=2.0, micro_batches=4, steps=40, rounds=10)


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    args = script.Args(
        factor=6.0,
        micro_batches=3,
        batch_size=8,
        steps=9,
        rounds=3,
        width=8,
        out=tmp_path_factory.mktemp("processes"),
        progress=False,
    )
    return scripts.ran(script.main, args), scripts.rows(args.out / "steps.csv")


def test_it_measures_both_runs_in_real_processes(ran):
    lines, rows = ran
    assert [(row["run"], int(row["step"])) for row in rows] == [
        (run, step + 1) for run in ("without", "with") for step in range(9)
    ]
    without, with_it = rows[:9], rows[9:]
    assert {row["threshold"] for row in without} == {"inf"}
    assert {
        (row["micro_batches[0]"], row["micro_batches[1]"]) for row in without + with_it[:3]
    } == {("3", "3")}
    (tau,) = {float(row["threshold"]) for row in with_it[3:]}
    assert tau < math.inf, "the slow one is six times as slow"
    for row in with_it[3:]:
        done = int(row["micro_batches[0]"]) + int(row["micro_batches[1]"])
        assert float(row["dropped"]) == pytest.approx(1 - done / 6, abs=1e-5)
    for row in rows:
        slowest = max(float(row["computing[0]"]), float(row["computing[1]"]))
        assert float(row["seconds"]) >= slowest + float(row["communication"]) - 1e-5
    assert "by process 1, the slow process" in [row[0] for row in scripts.cells(lines)]


def history(latencies, communication=0.5, tau=math.inf, loss=None):
    """History of a run in which micro-batches took these times, `[steps, N, M]`, stopped between
    micro-batches.
    """
    starts = np.cumsum(latencies, axis=-1) - latencies
    done = np.where(starts <= np.reshape(tau, (-1, 1, 1)), latencies, np.nan)
    steps = len(latencies)
    seconds = np.nansum(done, axis=-1).max(axis=1) + communication
    return {
        "latencies": done,
        "communication": np.full(steps, communication),
        "seconds": seconds,
        "dropped": np.isnan(done).mean(axis=(1, 2)),
        "threshold": np.broadcast_to(tau, steps),
        "loss": np.ones(steps) if loss is None else np.asarray(loss, float),
    }


def test_plans_use_the_first_steps_and_comparisons_the_later_ones():
    """The machine is twice as slow after the threshold is chosen: so is each step, except for the
    half second of communication.
    """
    latencies = np.ones((40, 2, 4))
    latencies[:, 1] = 2
    latencies[10:] *= 2
    taus = np.where(np.arange(40) < 10, math.inf, 3.0)
    found = script.judge(ARGS, script.Pair(1.0, history(latencies), history(latencies, tau=taus)))
    assert found["with"] == pytest.approx((4.5, 4.5, 4.5, 0)), "2 and 1 of them, in 4 s"
    assert found["without"] == pytest.approx((8.5, 16.5, 16.5, 0))
    assert found["dropped"] == pytest.approx((0.25, 0.625, 0.625, 0))


def test_delays_are_those_of_the_paper():
    """The noise has mean 0.4959 and is at most 5.5; the slow process takes twice as long for
    everything.
    """
    setting = replace(ARGS, steps=20_000, micro_batches=5)
    fast, slow = (script.delays(setting, process, 0.01) for process in (0, 1))
    noise = fast / 0.01
    assert noise.mean() == pytest.approx(0.4959, abs=4 * noise.std() / math.sqrt(noise.size))
    assert noise.max() == pytest.approx(5.5)
    assert noise.min() > 0
    assert (slow / 0.01).mean() == pytest.approx(
        2 * 1.4959 - 1, abs=8 * noise.std() / math.sqrt(noise.size)
    )
    assert not np.array_equal(slow, 2 * fast + 0.01), "of its own"
