"""Rounds that are simulated without storing them, compared with the same rounds stored."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from algorithms import dropcompute
from dsgd import clusters

CLUSTER = clusters.Cluster(clusters.constant(0.45) + clusters.exponential(0.225))
N, M, ROUNDS, COMMUNICATION = 5, 4, 23, 0.7
KEY = jax.random.key(5)
TAUS = np.array([[0.5, 2.1, 2.6], [3.5, 100.0, np.inf]])
STOPS = pytest.mark.parametrize("stop", ["preempt", "between"])


@STOPS
def test_means_and_their_errors_are_those_of_stored_rounds(stop):
    latencies = dropcompute.latencies(CLUSTER, N, M, iterations=ROUNDS, key=KEY)
    # the last chunk is shorter
    given = {"rounds": ROUNDS, "key": KEY, "communication": COMMUNICATION, "stop": stop, "chunk": 7}
    found = dropcompute.simulated_effect(CLUSTER, N, M, TAUS, **given)

    def measure(times):
        return dropcompute.measured_effect(times, TAUS, COMMUNICATION, stop)

    rounds = [measure(latencies[i : i + 1]) for i in range(ROUNDS)]
    for name, mean, error, expected, *each in zip(
        dropcompute.Effect._fields, *found, measure(latencies), *rounds, strict=True
    ):
        np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-8, err_msg=name)
        if name == "threshold":
            assert not error.any()
            continue
        of_the_mean = np.std(each, axis=0, ddof=1) / np.sqrt(ROUNDS)
        np.testing.assert_allclose(error, of_the_mean, rtol=1e-5, atol=1e-8, err_msg=name)
        assert error[0, 2] > 0.001 or (name, stop) == ("step_time", "preempt"), (
            "there is something to estimate"
        )


def test_errors_are_of_means_that_are_far_from_zero():
    """In float32, the squared differences between rounds would be lost in the sums of squares."""
    cluster = clusters.Cluster(clusters.constant(1e3) + clusters.exponential(0.1))
    options = {"rounds": 600, "key": KEY, "chunk": 50}
    found = dropcompute.simulated_effect(cluster, 1, 1, np.inf, **options)
    mean, error = found.mean.step_time, found.error.step_time
    assert mean == pytest.approx(1000.1, abs=5 * float(error))
    assert error == pytest.approx(0.1 / np.sqrt(600), rel=0.2)


def test_impossible_simulations_are_refused():
    good = {"cluster": CLUSTER, "workers": N, "micro_batches": M, "thresholds": TAUS, "rounds": 4}
    for changed, words in (
        ({"rounds": 1}, "rounds"),
        ({"communication": -1.0}, "communication"),
        ({"thresholds": [1.0, np.nan]}, "thresholds"),
        (
            {"cluster": clusters.Cluster(clusters.constant(1.0), single_batch=True)},
            "as one batch",
        ),
    ):
        with pytest.raises(ValueError, match=f"simulated_effect: .*{words}"):
            dropcompute.simulated_effect(key=KEY, **good | changed)
