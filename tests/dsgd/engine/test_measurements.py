"""The workers' measurements of a round, if a method reads them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
import dsgd
import topologies
from dsgd import LocalWork, clusters, problems
from tests.dsgd.engine import clocks
from tests.dsgd.engine.clocks import COMPUTE, DOWN, OPTIMIZER, UNEQUAL, UP, VECTOR, N

WORKERS = 8
RANDOM = clusters.Cluster(
    clusters.lognormal(0.0, 0.5),
    up=clusters.lognormal(4.0, 1.0),
    latency=0.1,
    micro_batches=2,
    noise=0.2,
)
SILENT = replace(RANDOM, noise=0.0)
RING = algorithms.decentralized_sgd(OPTIMIZER, topologies.ring(WORKERS))
run = partial(clocks.run, steps=12)
# about ten operations contribute to a round's seconds, which two programs may round differently
ROUNDING = 10 * 2.0**-24
NAMES = [f"measured_{what}" for what in ("compute", "up", "down", "bits_up", "bits_down")]


@pytest.fixture(scope="module")
def eight() -> dsgd.Problem:
    return problems.random_quadratic(WORKERS, 3, noise=0.3, seed=0)


def test_workers_measure_the_round_before(problem):
    """Everything that the clock charged, and the sent bits."""
    history = run(
        algorithms.with_diagnostics(algorithms.decentralized_sgd(OPTIMIZER, topologies.ring(N))),
        problem,
        UNEQUAL,
    ).history
    bits = np.full(N, 2 * VECTOR)
    values = COMPUTE["unequal"], bits / UP, bits / DOWN, bits, bits
    for name, value in zip(NAMES, values, strict=True):
        assert history[name].shape == (13, N)
        assert np.isnan(history[name][:2]).all()
        np.testing.assert_allclose(history[name][2:], np.tile(value, (11, 1)), rtol=1e-6)


def test_clocks_that_are_not_exact_change_only_measurements(eight):
    noisy, exact = (
        run(algorithms.with_diagnostics(RING), eight, cluster, steps=300).history
        for cluster in (RANDOM, SILENT)
    )
    for name in exact:
        if name not in NAMES or "bits" in name:
            np.testing.assert_allclose(
                noisy[name], exact[name], rtol=ROUNDING if name == "clock" else 0
            )
    logs = {
        name: np.log(noisy[name][2:] / exact[name][2:]).ravel()
        for name in ("measured_up", "measured_down")
    }
    for values in logs.values():
        assert abs(values.mean()) < 5 * 0.2 / np.sqrt(values.size)
        assert values.std() == pytest.approx(0.2, rel=5 / np.sqrt(2 * values.size))
    assert abs(np.corrcoef(*logs.values())[0, 1]) < 5 / np.sqrt(values.size)
    both = np.log(noisy["measured_compute"][2:] / exact["measured_compute"][2:])
    assert 0.1 < both.std() < 0.2  # two micro-batches, each with independent noise


def controller(M: int = 3) -> dsgd.Algorithm:
    """Returns a method in which a worker that measured more than two seconds for its first
    micro-batch computes only one of the M; slow workers stop after 3 seconds.
    """
    method = algorithms.minibatch_sgd(OPTIMIZER)

    def query(state, round):
        slow = round.timings.compute[:, :1] > 2.0
        counted = jnp.where(slow & (jnp.arange(M)[None] > 0), 0, 1).astype(jnp.int32)
        return method.query(state, round)._replace(work=LocalWork(counted, jnp.ones((N, M))))

    def update(state, gradients, round):
        assert round.timings.compute.shape == (N, M)
        round.log(**{f"micro_batch_{m}": round.timings.compute[:, m] for m in range(M)})
        round.computed(jnp.minimum(round.cluster.seconds(round, jnp.arange(N)), 3.0))
        return method.update(state, gradients, round)

    return method._replace(query=query, update=update)


def test_a_method_measures_the_requested_number_of_micro_batches(problem):
    """Micro-batches that were cut off, or not computed, have no measurement; the method's own
    seconds are charged. The cluster's default of two is not used.
    """
    history = run(controller(), problem, UNEQUAL, steps=4).history
    micro_batches = np.stack([history[f"micro_batch_{m}"] for m in range(3)], axis=-1)
    each = np.array([0.5, 1.75, 0.25, 3.0])
    first = np.where(np.arange(1, 4) * each[:, None] <= 3.0, each[:, None], np.nan)
    second = np.where((each[:, None] > 2.0) & (np.arange(3) > 0), np.nan, first)
    assert np.isnan(micro_batches[:2]).all()
    np.testing.assert_array_equal(micro_batches[2], first)
    np.testing.assert_array_equal(micro_batches[3:], [second] * 2)
    latest = 3.0 + 6 * (0.375 + VECTOR / 16 / N)
    np.testing.assert_allclose(np.diff(history["clock"]), latest, rtol=1e-6)
