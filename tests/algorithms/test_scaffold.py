"""SCAFFOLD against the paper's algorithm in numpy, and what it is made for: local steps that do not drift."""

from __future__ import annotations

from functools import cache
from itertools import islice

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import problems
from theory_checks.recursions import synchronous
from theory_checks.recursions.shared import quadratic

N, D, H, GAMMA, STEPS = 4, 6, 3, 0.05, 12


@cache
def problem() -> dsgd.Problem:
    """Without noise: exact gradients, workers that differ."""
    return problems.random_quadratic(N, D, heterogeneity=2.0, seed=4)


def test_models_are_the_papers(mesh):
    """The control variate is the mean of the local gradients there, too."""
    with jax.enable_x64(True):
        exact = problems.random_quadratic(N, D, heterogeneity=2.0, seed=4)
        A, b = (np.asarray(leaf) for leaf in (exact.data.A, exact.data.b))
        expected = list(islice(synchronous.scaffold(np.zeros(D), quadratic(A, b), N, GAMMA, H), STEPS))
        method = algorithms.scaffold(optax.sgd(GAMMA), H)
        for communications in (1, 2, STEPS // H):
            run = dsgd.run(method, exact, steps=communications * H, key=jax.random.key(0), mesh=mesh)
            np.testing.assert_allclose(run.params, expected[communications * H - 1]["params"][0], rtol=1e-12)
            np.testing.assert_allclose(run.state.server, run.state.workers.control.mean(axis=0), rtol=1e-12, atol=1e-14)


def test_local_steps_do_not_drift(mesh):
    """It ends at the minimum, where local SGD stays at a distance that its step sets."""
    ends = {}
    for method in (algorithms.scaffold(optax.sgd(0.1), 5), algorithms.local_sgd(optax.sgd(0.1), 5)):
        run = dsgd.run(method, problem(), steps=2_000, key=jax.random.key(0), record_every=100, mesh=mesh)
        ends[method.name] = run.history["grad_sqnorm"][-1]
    assert ends["scaffold(5)"] < 1e-9
    assert ends["local_sgd(5)"] > 1e-3


@pytest.mark.parametrize("method", [algorithms.scaffold, algorithms.local_sgd])
def test_the_period_can_be_swept(method, mesh):
    """One program for all; each is the run alone, and sends as much."""
    periods = [1, 2, 4]
    cluster = dsgd.clusters.Cluster(dsgd.clusters.constant(1.0))
    common = {"steps": STEPS, "key": jax.random.key(0), "mesh": mesh, "cluster": cluster}
    together = dsgd.sweep(lambda period: method(optax.sgd(GAMMA), period), problem(), period=periods, **common)
    for i, period in enumerate(periods):
        alone = dsgd.run(method(optax.sgd(GAMMA), period), problem(), seeds=1, **common)
        for name in ("loss", "bits", "clock"):
            np.testing.assert_allclose(together.history[name][i], alone.history[name], rtol=1e-5, atol=1e-6)  # f(x_0) = 0


def test_a_period_below_1_is_refused():
    with pytest.raises(ValueError, match="scaffold: period = 0: need an integer, at least 1"):
        algorithms.scaffold(optax.sgd(0.1), 0)
