"""`python -m experiments.asynchrony` with a tiny budget: its files, its tables, and the saturation
of the server.
"""

from __future__ import annotations

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import scripts

import dsgd
from dsgd import problems
from experiments import asynchrony
from experiments.asynchrony import Args


def least_squares(data, workers, partition, *, batch_size, seed, data_dir):
    """Replaces logistic regression: equally many parameters in programs of half the size."""
    assert (data, partition, batch_size, seed, data_dir) == ("digits", "iid", 16, 0, None)
    inputs, noise = np.random.default_rng(0).normal(size=(2, workers, 8, 650)).astype(np.float32)
    return dsgd.Problem(
        init=lambda key: jnp.zeros(650),
        loss=lambda params, batch: jnp.mean((batch[0] @ params - batch[1]) ** 2),
        data=(inputs / np.sqrt(650), inputs.mean(axis=-1) + noise[..., 0]),
        sample=lambda key, mine: mine,
    )


def quick(args: Args) -> Args:
    """Gradients are so short that 2.1 workers saturate the server: few numbers of workers are
    tried, each of which is a separate program.
    """
    return replace(args, compute=0.1 * (args.latency + 650 * 32 / args.bandwidth))


STALE: list[dict[str, np.ndarray]] = []  # of the fixture's run, on each cluster
SMALL = Args(
    workers=4,
    slow=1,
    backups=1,
    bound=6,
    rounds=20,
    seeds=1,
    learning_rates=(0.1,),
    compute=2e-3,
    methods=("synchronous", "asynchronous", "bounded"),
    progress=False,
)
BITS = 650 * 32


@pytest.fixture(scope="module")
def full(long):
    return asynchrony.measure_saturation(quick(SMALL), BITS)


@pytest.fixture(scope="module")
def ran(tmp_path_factory, full):
    args = replace(SMALL, out=tmp_path_factory.mktemp("asynchrony"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problems, "logistic_regression", least_squares)
        late = asynchrony.measure_staleness
        patch.setattr(
            asynchrony,
            "measure_staleness",
            lambda *arguments: STALE.append(late(*arguments)) or STALE[-1],
        )
        patch.setattr(asynchrony, "measure_saturation", lambda args, bits: full)
        scripts.ran(asynchrony.main, args)
    return args


def test_stragglers_slow_down_only_methods_that_wait(ran):
    last = {row["method"]: float(row["clock"]) for row in scripts.rows(ran.out / "history.csv")}
    assert len(last) == 2 * len(ran.methods)
    slower = {
        name: last[f"stragglers, {name}"] / last[f"equal workers, {name}"]
        for name in asynchrony.make_methods(ran)
    }
    assert slower["synchronous"] > 3
    assert slower["asynchronous"] < 1.6
    assert slower["bounded"] > slower["asynchronous"]


def test_twice_as_many_workers_as_saturate_the_server_add_staleness(ran):
    saturated, twice = scripts.rows(ran.out / "saturated.csv")
    assert (int(saturated["workers"]), int(saturated["staleness"])) == (3, 2)
    assert (int(twice["workers"]), int(twice["staleness"])) == (6, 4), "of no more than 5 workers"


def test_the_server_saturates_at_the_workers_given_by_its_ports(full):
    """Below this number each worker adds its own rate; above it only the staleness grows."""
    args = quick(SMALL)
    message = args.latency + BITS / args.bandwidth
    assert len(full.workers) == 5
    lap = 2 * message + args.compute
    np.testing.assert_allclose(full.rate, np.minimum(full.workers / lap, 1 / message), rtol=1e-3)
    np.testing.assert_allclose(full.staleness, full.workers - 1, atol=1e-6)
    assert (
        asynchrony.find_knee(full)
        == math.ceil(asynchrony.saturation_point(args, BITS))
        == math.ceil(lap / message)
    )
