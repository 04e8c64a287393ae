"""Synchronous methods: properties that their recursions do not show."""

from __future__ import annotations

import jax
import numpy as np
import optax
from scipy import stats

import algorithms
import dsgd
from dsgd import problems

N, D, GAMMA = 6, 4, 0.2


def test_sgd_takes_one_workers_gradient_drawn_uniformly(mesh):
    """From x = 0 the first step is -gamma f_n'(0) for one n, and all n are equally likely."""
    problem = problems.random_quadratic(N, D, heterogeneity=2.0, seed=1)
    after = dsgd.run(
        algorithms.sgd(optax.sgd(GAMMA)),
        problem,
        steps=1,
        key=jax.random.key(0),
        seeds=3_000,
        mesh=mesh,
    ).params
    distance = np.abs(after[:, None, :] - GAMMA * problem.data.b[None]).max(axis=-1)
    np.testing.assert_allclose(distance.min(axis=1), 0, atol=1e-6)
    drawn = np.bincount(distance.argmin(axis=1), minlength=N)
    assert stats.chisquare(drawn).pvalue > 1e-4
