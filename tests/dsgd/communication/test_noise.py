"""Noise on messages: the variances of received vectors, and calls that cannot have it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters, compressors, problems
from dsgd.clusters import MessageNoise

N, D, S = 5, 4000, 0.3
CLUSTER = clusters.Cluster(clusters.constant(2.0))
NOISY = replace(CLUSTER, message_noise=MessageNoise(S))
STILL = optax.sgd(0.0)
GRAPHS = {
    "ring": topologies.ring(N),
    "star": topologies.star(N),
    "complete": topologies.complete(N),
    "schedule": topologies.one_peer_exponential(4),
}


def flat(workers: int = N, dimension: int = D, hessian: float = 0.5, start: float = 0.0):
    """A problem whose gradient is a multiple of x, from a start that all workers share."""
    A = np.full((workers, dimension), hessian)
    return problems.quadratic(A, np.zeros_like(A), start=np.full(dimension, start))


def models(method, problem, *, steps, cluster=NOISY, seed=0, **options) -> np.ndarray:
    """Returns the models after a run, `[N, d]`, or `[1, d]` of a method with one model."""
    options = {"key": jax.random.key(seed), "mesh": 1, "cluster": cluster} | options
    state = dsgd.run(method, problem, steps=steps, **options).state
    return np.atleast_2d(np.asarray(method.model(state), float))


def require_variance(expected, values) -> None:
    """Asserts that the variance of independent normal values is within 5 standard errors."""
    error = 5 * expected * np.sqrt(2 / values.size)
    assert abs(np.mean(values**2) - expected) <= error, (np.mean(values**2), expected)


@pytest.mark.parametrize(
    "method",
    [
        algorithms.decentralized_sgd(optax.sgd(0.2), topologies.ring(N)),
        algorithms.local_sgd(optax.sgd(0.2), 2),
        algorithms.gradient_tracking(0.05, topologies.ring(N)),
    ],
    ids=lambda method: method.name,
)
def test_without_noise_all_bits_are_the_same(method):
    problem = problems.random_quadratic(N, 7, noise=0.4, seed=1)
    plain, silent, noisy = (
        models(method, problem, steps=9, cluster=replace(CLUSTER, message_noise=each))
        for each in (None, MessageNoise(0.0), MessageNoise(1e-3))
    )
    np.testing.assert_array_equal(plain, silent)
    assert 1e-5 < np.abs(plain - noisy).max() < 0.1


@pytest.mark.parametrize("name", GRAPHS)
def test_plain_gossip(name):
    """Each worker's own vector has no noise, and links have noise of their own: the covariance of
    all workers follows C <- W C W' + s^2 diag(sum_{j != i} W_ij^2), and the mean is a random walk.
    """
    graph, steps = GRAPHS[name], 3
    n = graph.n
    x = models(algorithms.decentralized_sgd(STILL, graph), flat(n), steps=steps)
    covariance, walk = np.zeros((n, n)), 0.0
    for t in range(steps):
        W = graph.matrices[t % graph.period].toarray()
        off = W - np.diag(np.diag(W))
        covariance = W @ covariance @ W.T + S**2 * np.diag((off**2).sum(1))
        walk += S**2 * (off**2).sum() / n**2
    require_variance(walk, x.mean(0))
    for i in range(n):
        require_variance(covariance[i, i], x[i])
        for j in range(i):
            error = 5 * np.sqrt((covariance[i, i] * covariance[j, j] + covariance[i, j] ** 2) / D)
            assert abs(np.mean(x[i] * x[j]) - covariance[i, j]) <= error


def test_noise_does_not_depend_on_the_number_of_devices():
    for method in (
        algorithms.decentralized_sgd(STILL, topologies.ring(4)),
        algorithms.local_sgd(optax.sgd(0.1), 2),
    ):
        one, two = (models(method, flat(4, 9), steps=3, mesh=mesh) for mesh in (1, 2))
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)


def test_lost_messages_have_no_noise():
    """With losses on a ring, the mean over workers is a random walk by what arrives."""
    cluster = replace(NOISY, delivered=clusters.bernoulli(0.6, 2.0))
    ring, steps = topologies.ring(N), 4
    method = algorithms.decentralized_sgd(STILL, ring)
    run = dsgd.run(method, flat(), steps=steps, key=jax.random.key(2), mesh=1, cluster=cluster)
    messages = 2 * N * run.history["arrived"][1:].sum()
    assert 0 < messages < 2 * N * steps
    x = np.asarray(jax.tree.leaves(run.state.workers)[0], float)
    require_variance(messages * S**2 * ring.matrices[0].toarray()[0, 1] ** 2 / N**2, x.mean(0))


@pytest.mark.parametrize("name", ["mean", "average", "server"])
def test_sums_have_one_draw_of_each_contribution(name):
    """The same noise at all workers, with the variance of a mean; only of workers that participate
    and whose contributions arrive.
    """
    method = {
        "mean": algorithms.minibatch_sgd(optax.sgd(0.7)),
        "average": algorithms.local_sgd(optax.sgd(0.7), 2),
        "server": algorithms.parameter_server_sgd(optax.sgd(0.7)),
    }[name]
    steps, scale = (2, 1.0) if name == "average" else (1, 0.7)
    x = models(method, flat(), steps=steps)
    require_variance(scale**2 * S**2 / N, x[0])
    np.testing.assert_array_equal(x, x[:1].repeat(len(x), 0))
    some = replace(NOISY, present=clusters.constant([2.0, 0, 3, 0, 0]))
    x = models(method, flat(), steps=steps, cluster=some)
    require_variance(scale**2 * S**2 / 2, x[0])


def test_a_ratio_of_signal_to_noise():
    """At 20 dB, noise has a hundredth of the mean square of each message, of all its leaves."""
    noise = MessageNoise(snr=20.0)
    tree = {
        "a": 3 * jnp.ones((2, 4)),
        "b": jnp.array([[2.0, 5.0], [0.5, 0.0]]),
        "c": jnp.ones(2, int),
    }
    squares = [4 * 9 + 4 + 25, 4 * 9 + 0.25]
    np.testing.assert_allclose(noise.variances(tree), 0.01 * np.array(squares) / 6, rtol=1e-6)
    cluster = replace(CLUSTER, message_noise=MessageNoise(snr=10.0))
    x = models(
        algorithms.decentralized_sgd(STILL, GRAPHS["ring"]),
        flat(start=4.0),
        steps=1,
        cluster=cluster,
    )
    weights = GRAPHS["ring"].matrices[0].toarray()[0, 1]
    for worker in x:
        require_variance(2 * weights**2 * 16 / 10, worker - 4)


def test_the_stationary_variance_of_decentralized_gradient_descent():
    """The mean follows x <- (1 - gamma a) x + noise, with variance V / (1 - (1 - gamma a)^2)."""
    gamma, a, d, ring = 0.25, 0.5, 300, GRAPHS["ring"]
    x = models(algorithms.decentralized_sgd(optax.sgd(gamma), ring), flat(N, d, a), steps=150)
    off = ring.matrices[0].toarray() - np.diag(ring.matrices[0].diagonal())
    step = S**2 * (off**2).sum() / N**2
    require_variance(step / (1 - (1 - gamma * a) ** 2), x.mean(0))


def test_vectors_for_single_neighbours():
    """Noise of its own on each vector and leaf that arrives, and none on what replaces a lost
    one.
    """

    def update(state, gradients, round):
        x = jax.tree.leaves(state.workers)[0]
        sent = jnp.broadcast_to(x[:, None], (x.shape[0], 2, x.shape[1]))
        pair = round.to_each_neighbour((sent, sent), (7 + sent, 7 + sent), GRAPHS["ring"])
        return state._replace(workers=jnp.sum(pair[0] - pair[1], axis=1))

    def init(params, n):
        return dsgd.State((), jnp.broadcast_to(params, (n, *params.shape)))

    def query(state, round):
        return dsgd.Query(state.workers)

    method = dsgd.Algorithm("single", init, query, update, lambda state: state.workers)
    x = models(method, flat(), steps=1)
    for worker in x:
        require_variance(4 * S**2, worker)
    lossy = replace(NOISY, delivered=clusters.bernoulli(0.0, 2.0))
    assert not models(method, flat(), steps=1, cluster=lossy).any()


def test_a_taped_run_is_replayed_with_its_noise():
    method = algorithms.decentralized_sgd(STILL, GRAPHS["ring"])
    options = {"steps": 3, "key": jax.random.key(0), "mesh": 1}
    taped = dsgd.run(method, flat(N, 3), cluster=NOISY, taped=True, **options)
    slower = replace(NOISY, compute=clusters.constant(5.0))
    np.testing.assert_allclose(dsgd.replay(taped, slower), 5.0 * np.arange(4))
    with pytest.raises(ValueError, match="another participation, message loss or noise"):
        dsgd.replay(taped, CLUSTER)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (
            algorithms.choco_sgd(optax.sgd(0.1), GRAPHS["ring"], compressors.top_k(0.5), 0.3),
            r"round\.to_neighbours on a cluster .*std 0\.3.*: it sends packed messages; expected",
        ),
        (algorithms.asynchronous_sgd(optax.sgd(0.1)), r"round\.event .*: event-driven methods"),
        (algorithms.backup_workers_sgd(optax.sgd(0.1), 2), r"round\.sent .*: the method moves"),
    ],
    ids=lambda given: getattr(given, "name", None),
)
def test_methods_that_cannot_have_noise_are_refused(method, reason):
    with pytest.raises(ValueError, match=reason):
        dsgd.run(method, flat(N, 4), steps=2, key=jax.random.key(0), cluster=NOISY)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "std = None, snr = None; expected one of them"),
        ({"std": 0.1, "snr": 20.0}, "std = 0.1, snr = 20.0; expected one of them"),
        ({"std": -0.1}, "std = -0.1; expected a finite number >= 0"),
        ({"snr": float("inf")}, "snr = inf; expected a finite number"),
    ],
)
def test_wrong_noise_is_refused(given, message):
    with pytest.raises(ValueError, match=f"^MessageNoise: {message}"):
        MessageNoise(**given)
