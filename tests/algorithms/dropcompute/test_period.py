"""Local SGD whose period is swept, and with it the rounds over which workers' seconds are compared."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import dropcompute
from dsgd import clusters, problems

CLUSTER = clusters.Cluster(clusters.constant(0.5) + clusters.bernoulli(0.3, 1.0))
RUN = {"steps": 12, "key": jax.random.key(3), "cluster": CLUSTER, "mesh": 1, "seeds": 1}


def local(period):
    return algorithms.drop_compute(algorithms.local_sgd(optax.sgd(0.1), period), 2.1, 1, period=period)


def test_a_period_that_is_swept_drops_as_a_given_one():
    problem = problems.random_quadratic(4, 3, noise=0.1, seed=0)
    swept = dsgd.sweep(local, problem, period=[1, 4], **RUN)
    for i, period in enumerate((1, 4)):
        given = dsgd.run(local(period), problem, **RUN).history
        for name in ("samples", "dropped"):
            np.testing.assert_array_equal(swept.history[name][i], given[name])
        np.testing.assert_allclose(swept.history["clock"][i], given["clock"], rtol=1e-6)
        np.testing.assert_allclose(swept.history["loss"][i], given["loss"], rtol=1e-5)
    assert np.diff(swept.history["clock"][1, :, ::4], axis=-1).max() <= 2.1 * (1 + 1e-5), "of each period, from averaging to averaging"
    assert swept.history["dropped"][1, :, 1:].max() > 0 == swept.history["dropped"][0, :, 1:].max()


def test_a_swept_period_needs_a_given_threshold():
    problem = problems.random_quadratic(4, 3, seed=0)

    def chosen(period):
        return algorithms.drop_compute(algorithms.local_sgd(optax.sgd(0.1), period), dropcompute.chosen_after(2), 1, period=period)

    with pytest.raises(ValueError, match="a period that is swept, where as many rounds are measured"):
        dsgd.sweep(chosen, problem, period=[1, 4], **RUN)
