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
from theory_checks.statements import bits

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


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_bits_of_a_round_are_what_its_messages_hold(name):
    """Up and down, of fewer elements than workers: some have parts of padding alone."""
    for outcome in bits.of(name, N, D):
        assert outcome.holds, outcome.case


def test_the_step_size_is_read_off_the_optimiser():
    assert algorithms.sgd(optax.sgd(0.25)).learning_rate == pytest.approx(0.25)
    assert algorithms.sgd(optax.adam(0.01)).learning_rate == pytest.approx(0.01, rel=1e-4)
    assert algorithms.sgd(optax.sgd(optax.linear_schedule(0.5, 0.0, 10))).learning_rate == pytest.approx(0.5)
    by_name = optax.multi_transform({"kernel": optax.sgd(0.1), "bias": optax.adam(0.1)}, {"kernel": "kernel", "bias": "bias"})
    assert np.isnan(algorithms.sgd(by_name).learning_rate)


def test_optimisers_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="needs more than gradients"):
        algorithms.sgd(optax.lbfgs())


@pytest.mark.parametrize("convention", ["blocking", "pipelined"])
@pytest.mark.parametrize("topology", [None, topologies.star(N)], ids=["all-reduce", "gossip"])
def test_a_round_of_local_sgd_lasts_as_long_as_its_rounds_do_on_average(topology, convention):
    """Of three rounds two send nothing and take no time on the network, and one is that of the pattern."""
    pattern = algorithms.local_sgd(optax.sgd(0.1), 3, topology).pattern
    inner = network.ring_all_reduce if topology is None else algorithms.decentralized_sgd(optax.sgd(0.1), topology).pattern
    assert inner.vectors(N) == pytest.approx(
        2 * (N - 1) / N, rel=1e-12
    )  # of the all-reduce, and of the star: 2(N - 1) messages of N workers
    assert pattern.vectors(N) == pytest.approx(inner.vectors(N) / 3, rel=1e-12)
    for latency, transfer in ((0.5, 2.0), (3.0, 0.0), (0.0, 1.0)):
        averaging = network.cost(inner, N, latency, transfer, convention)
        assert network.cost(pattern, N, latency, transfer, convention) == pytest.approx(averaging / 3, rel=1e-12)
    sent, link = inner.vectors(N) * 32 * D, {"latency": 0.5, "bandwidth": 100.0, "convention": convention}
    rounds = [0.0, 0.0, network.round_seconds(inner, N, sent, **link)]
    assert rounds[2] > 0.5
    assert network.round_seconds(pattern, N, sent / 3, **link) == pytest.approx(np.mean(rounds), rel=1e-12)


def test_a_pattern_in_every_round_is_itself_and_its_name_says_how_often():
    """On a star of four, whose middle sends three vectors and whose others send one."""
    star = network.gossip(topologies.star(4))
    once, often = (network.every(period, star) for period in (1, 4))
    assert (once.vectors(4), often.vectors(4)) == (1.5, 1.5 / 4)
    assert network.cost(once, 4, 1.0, 2.0) == 4 * network.cost(often, 4, 1.0, 2.0) == 3 * (1 + 2)
    assert network.cost(often, 4, 1.0, 2.0, "pipelined") == (1 + 3 * 2) / 4
    assert "4 rounds" in often.name
    assert star.name in often.name
