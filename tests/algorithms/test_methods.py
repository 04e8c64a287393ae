"""Each method against a readable numpy loop straight from the paper, and the identities between methods."""

from __future__ import annotations

from itertools import islice

import jax
import numpy as np
import optax
import pytest
from scipy import stats

import algorithms
import dsgd
import topologies
from dsgd import network, problems
from theory_checks.recursions import synchronous
from theory_checks.recursions.shared import Gradients, Rounds, at_one, momentum, plain, quadratic

N, D, STEPS, LEARNING_RATE = 6, 4, 15, 0.2


@pytest.fixture(scope="module")
def exact() -> dsgd.Problem:
    """Without noise, so that every method but SGD's choice and compression is deterministic. In float64."""
    with jax.enable_x64(True):
        return problems.random_quadratic(N, D, heterogeneity=2.0, seed=1)


def G(problem: dsgd.Problem) -> Gradients:
    return quadratic(np.asarray(problem.data.A), np.asarray(problem.data.b))


def last(rounds: Rounds) -> dict[str, np.ndarray]:
    """After as many rounds as the methods run."""
    *_, found = islice(rounds, STEPS)
    return found


def models(algorithm, problem, mesh, steps=STEPS, **options) -> np.ndarray:
    """The model after the last round, in float64."""
    with jax.enable_x64(True):
        return np.asarray(dsgd.run(algorithm, problem, steps=steps, key=jax.random.key(0), mesh=mesh, **options).params)


def test_gradient_descent_is_equation_1_2(exact, mesh):
    x = last(synchronous.minibatch(np.zeros(D), G(exact), N, plain(LEARNING_RATE)))["x"]
    got = models(algorithms.gradient_descent(optax.sgd(LEARNING_RATE)), exact, mesh)
    np.testing.assert_allclose(got, x, rtol=1e-12)


@pytest.mark.parametrize(
    "factory",
    [algorithms.minibatch_sgd, algorithms.model_averaging_sgd, algorithms.parameter_server_sgd],
    ids=lambda factory: factory.__name__,
)
def test_the_three_implementations_of_minibatch_sgd_are_one_algorithm(factory, exact, mesh):
    """With momentum too, which is linear in the gradient."""
    x = last(synchronous.minibatch(np.zeros(D), G(exact), N, momentum(LEARNING_RATE)))["x"]
    got = models(factory(optax.sgd(LEARNING_RATE, momentum=0.9)), exact, mesh)
    np.testing.assert_allclose(got, x, rtol=1e-11)


def test_sgd_takes_one_workers_gradient_drawn_uniformly(exact, mesh):
    """From x = 0 the first step is -gamma f_n'(0) for one n, and every n is as likely."""
    seeds = 3_000
    after = models(algorithms.sgd(optax.sgd(LEARNING_RATE)), exact, mesh, steps=1, seeds=seeds)
    possible = -LEARNING_RATE * at_one(G(exact), 0, np.zeros(D), N)
    distance = np.abs(after[:, None, :] - possible[None, :, :]).max(axis=-1)
    np.testing.assert_allclose(distance.min(axis=1), 0, atol=1e-12)
    drawn = np.bincount(distance.argmin(axis=1), minlength=N)
    assert stats.chisquare(drawn).pvalue > 1e-4


def test_optimisers_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="needs more than gradients"):
        algorithms.sgd(optax.lbfgs())


@pytest.mark.parametrize("convention", ["blocking", "pipelined"])
@pytest.mark.parametrize("topology", [None, topologies.star(N)], ids=["all-reduce", "gossip"])
def test_of_three_rounds_of_local_sgd_one_sends_and_takes_the_seconds_of_its_exchange(topology, convention):
    """On a star the middle sends N - 1 vectors and the others one each, as many as all workers do in the all-reduce."""
    d, link = N, {"latency": 0.5, "convention": convention}
    problem = problems.random_quadratic(N, d)
    method = algorithms.local_sgd(optax.sgd(0.1), 3, topology)
    (exchange,) = dsgd.exchanges(method, problem)
    assert (exchange.period, exchange.simulated) == (3, False)
    vectors = 2 * (N - 1) / N
    assert exchange.pattern.vectors(N) == pytest.approx(vectors, rel=1e-12)
    cluster = dsgd.clusters.Cluster(dsgd.clusters.constant(1.0), up=dsgd.clusters.constant(100.0), **link)
    history = dsgd.run(method, problem, steps=3, key=jax.random.key(0), mesh=1, cluster=cluster).history
    np.testing.assert_allclose(np.diff(history["bits"]), [0, 0, 2 * vectors * 32 * d], rtol=1e-6)
    seconds = network.round_seconds(exchange.pattern, N, vectors * 32 * d, bandwidth=100.0, **link)
    assert seconds > 0.5
    np.testing.assert_allclose(np.diff(history["clock"]), [1, 1, 1 + seconds], rtol=1e-6)


def test_in_every_round_it_is_the_exchange_of_the_method_that_averages_in_every_round():
    star, problem = topologies.star(N), problems.random_quadratic(N, D)
    often, always = algorithms.local_sgd(optax.sgd(0.1), 1, star), algorithms.decentralized_sgd(optax.sgd(0.1), star)
    ((one,), (other,)) = (dsgd.exchanges(method, problem) for method in (often, always))
    assert one._replace(pattern=other.pattern) == other
    assert one.pattern.name == other.pattern.name
