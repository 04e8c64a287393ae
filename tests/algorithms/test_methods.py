"""Synchronous methods: what their recursions (`theory_checks`) do not show."""

from __future__ import annotations

import jax
import numpy as np
import optax
from scipy import stats

import algorithms
import dsgd
import topologies
from dsgd import clusters, network, problems

N, D, GAMMA = 6, 4, 0.2


def test_sgd_takes_one_workers_gradient_drawn_uniformly(mesh):
    """From x = 0 the first step is -gamma f_n'(0) for one n, and every n is as likely."""
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


def test_of_three_rounds_of_local_sgd_one_sends_and_takes_the_seconds_of_its_exchange():
    """On a star the middle sends N - 1 vectors and the others one each."""
    link = {"latency": 0.5, "convention": "blocking"}
    problem, star = problems.random_quadratic(N, N), topologies.star(N)
    method = algorithms.local_sgd(optax.sgd(0.1), 3, star)
    (exchange,), (other,) = (
        dsgd.exchanges(method, problem),
        dsgd.exchanges(algorithms.decentralized_sgd(optax.sgd(0.1), star), problem),
    )
    assert exchange._replace(pattern=other.pattern, period=1) == other
    assert (exchange.period, exchange.pattern.name) == (3, other.pattern.name)
    vectors = 2 * (N - 1) / N
    cluster = clusters.Cluster(clusters.constant(1.0), up=clusters.constant(100.0), **link)
    history = dsgd.run(
        method, problem, steps=3, key=jax.random.key(0), mesh=1, cluster=cluster
    ).history
    np.testing.assert_allclose(np.diff(history["bits"]), [0, 0, 2 * vectors * 32 * N], rtol=1e-6)
    seconds = network.round_seconds(exchange.pattern, N, vectors * 32 * N, bandwidth=100.0, **link)
    assert seconds > 0.5
    np.testing.assert_allclose(np.diff(history["clock"]), [1, 1, 1 + seconds], rtol=1e-6)


def test_the_period_of_scaffold_can_be_swept(mesh):
    """One program for all; each is the run alone, and sends as much."""
    problem, periods = problems.random_quadratic(4, D, heterogeneity=2.0, seed=4), [1, 4]
    common = {
        "steps": 12,
        "key": jax.random.key(0),
        "mesh": mesh,
        "cluster": clusters.Cluster(clusters.constant(1.0)),
    }
    together = dsgd.sweep(
        lambda period: algorithms.scaffold(optax.sgd(0.05), period),
        problem,
        period=periods,
        **common,
    )
    for i, period in enumerate(periods):
        alone = dsgd.run(algorithms.scaffold(optax.sgd(0.05), period), problem, seeds=1, **common)
        for name in ("loss", "bits", "clock"):
            # f(x_0) = 0
            np.testing.assert_allclose(
                together.history[name][i], alone.history[name], rtol=1e-5, atol=1e-6
            )
