"""Each method against a readable numpy loop straight from the paper, and the identities between methods."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import optax
import pytest
from scipy import stats

import algorithms
import dsgd
import topologies
from dsgd import problems

N, D, STEPS, LEARNING_RATE = 6, 4, 15, 0.2


@pytest.fixture(scope="module")
def exact() -> dsgd.Problem:
    """Without noise, so that every method but SGD's choice and compression is deterministic. In float64."""
    with jax.enable_x64(True):
        return problems.random_quadratic(N, D, heterogeneity=2.0, seed=1)


def gradient(problem: dsgd.Problem, n: int, x: np.ndarray) -> np.ndarray:
    return np.asarray(problem.data.A[n]) @ x - np.asarray(problem.data.b[n])


def models(algorithm, problem, mesh, steps=STEPS, **options) -> np.ndarray:
    """The model after the last round, in float64."""
    with jax.enable_x64(True):
        return np.asarray(dsgd.run(algorithm, problem, steps=steps, key=jax.random.key(0), mesh=mesh, **options).params)


def test_gradient_descent_is_equation_1_2(exact, mesh):
    x = np.zeros(D)
    for _ in range(STEPS):
        x = x - LEARNING_RATE * np.mean([gradient(exact, n, x) for n in range(N)], axis=0)
    got = models(algorithms.gradient_descent(optax.sgd(LEARNING_RATE)), exact, mesh)
    np.testing.assert_allclose(got, x, rtol=1e-12)


@pytest.mark.parametrize(
    "factory",
    [algorithms.minibatch_sgd, algorithms.model_averaging_sgd, algorithms.parameter_server_sgd],
    ids=lambda factory: factory.__name__,
)
def test_the_three_implementations_of_minibatch_sgd_are_one_algorithm(factory, exact, mesh):
    """With momentum too, which is linear in the gradient."""
    x, memory = np.zeros(D), np.zeros(D)
    for _ in range(STEPS):
        memory = 0.9 * memory + np.mean([gradient(exact, n, x) for n in range(N)], axis=0)
        x = x - LEARNING_RATE * memory
    got = models(factory(optax.sgd(LEARNING_RATE, momentum=0.9)), exact, mesh)
    np.testing.assert_allclose(got, x, rtol=1e-11)


def random_mixing_matrix(seed: int) -> np.ndarray:
    """Averages of symmetric permutations (swaps of pairs), lazy: symmetric and doubly stochastic, not circulant."""
    rng = np.random.default_rng(seed)
    W = np.eye(N)
    for _ in range(8):
        order = rng.permutation(N)
        swap = np.eye(N)
        for i, j in zip(order[::2], order[1::2], strict=True):
            swap[[i, j]] = swap[[j, i]]
        W += swap
    return W / 9


@pytest.mark.parametrize(
    "topology",
    [topologies.ring(N), topologies.complete(N), topologies.from_matrix(random_mixing_matrix(0))],
    ids=lambda topology: topology.name,
)
def test_decentralized_sgd_is_equation_5_2(topology, exact, mesh):
    X = np.zeros((D, N))  # the paper's layout: one column a worker
    for _ in range(STEPS):
        G = np.stack([gradient(exact, n, X[:, n]) for n in range(N)], axis=1)
        X = (X - LEARNING_RATE * G) @ topology.W
    with jax.enable_x64(True):
        result = dsgd.run(
            algorithms.decentralized_sgd(optax.sgd(LEARNING_RATE), topology), exact, steps=STEPS, key=jax.random.key(0), mesh=mesh
        )
    np.testing.assert_allclose(result.state.workers.params, X.T, rtol=1e-11)
    spread = np.mean(np.sum((X - X.mean(axis=1, keepdims=True)) ** 2, axis=0))
    np.testing.assert_allclose(result.history["consensus"][-1], spread, rtol=1e-9, atol=1e-25)


def test_the_complete_graph_is_minibatch_sgd(exact, mesh):
    optimizer = optax.sgd(LEARNING_RATE)
    together = models(algorithms.decentralized_sgd(optimizer, topologies.complete(N)), exact, mesh)
    np.testing.assert_allclose(together, models(algorithms.minibatch_sgd(optimizer), exact, mesh), rtol=1e-12)


def test_sgd_takes_one_workers_gradient_drawn_uniformly(exact, mesh):
    """From x = 0 the first step is -gamma f_n'(0) for one n, and every n is as likely."""
    seeds = 3_000
    after = models(algorithms.sgd(optax.sgd(LEARNING_RATE)), exact, mesh, steps=1, seeds=seeds)
    possible = np.stack([-LEARNING_RATE * gradient(exact, n, np.zeros(D)) for n in range(N)])
    distance = np.abs(after[:, None, :] - possible[None, :, :]).max(axis=-1)
    np.testing.assert_allclose(distance.min(axis=1), 0, atol=1e-12)
    drawn = np.bincount(distance.argmin(axis=1), minlength=N)
    assert stats.chisquare(drawn).pvalue > 1e-4


FLOATS = 32 * D
QUANTIZED = 8 * 1 + 2 * 32  # a part of one element with 4 bits: one byte, and its two ends
SIGN = 8 * 1 + 32  # one byte, and its scale
LARGEST = 32  # its value, and no bits that say where it is


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("gd", 2 * 2 * (N - 1) / N * FLOATS),
        ("sgd", 0),
        ("mb-sgd", 2 * 2 * (N - 1) / N * FLOATS),
        ("mb-sgd-model", 2 * 2 * (N - 1) / N * FLOATS),
        ("mb-sgd-server", 2 * FLOATS),
        ("csgd", 2 * 2 * (N - 1) * QUANTIZED),
        ("csgd-ring", 2 * 2 * (N - 1) * QUANTIZED),
        ("ec-sgd", 2 * 2 * (N - 1) * SIGN),
        ("ef21", 2 * 2 * (N - 1) * LARGEST),
        ("dsgd", 2 * 2 * FLOATS),
        ("dsgd-complete", 2 * (N - 1) * FLOATS),
    ],
)
def test_bits_per_round_up_and_down(name, bits, mesh):
    """Of float32 models of d elements; what compresses sends, with d <= N, parts of one element."""
    problem = problems.random_quadratic(N, D, seed=1)
    history = dsgd.run(algorithms.make(name, optax.sgd(0.1), N), problem, steps=2, key=jax.random.key(0), mesh=mesh).history
    np.testing.assert_allclose(history["bits"], [0, bits, 2 * bits], atol=2)  # each round and direction to the nearest bit


def test_the_step_size_is_read_off_the_optimiser():
    assert algorithms.sgd(optax.sgd(0.25)).learning_rate == pytest.approx(0.25)
    assert algorithms.sgd(optax.adam(0.01)).learning_rate == pytest.approx(0.01, rel=1e-4)
    assert algorithms.sgd(optax.sgd(optax.linear_schedule(0.5, 0.0, 10))).learning_rate == pytest.approx(0.5)
    by_name = optax.multi_transform({"kernel": optax.sgd(0.1), "bias": optax.adam(0.1)}, {"kernel": "kernel", "bias": "bias"})
    assert np.isnan(algorithms.sgd(by_name).learning_rate)


def test_optimisers_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="needs more than gradients"):
        algorithms.sgd(optax.lbfgs())


def test_irregular_graphs_count_each_workers_own_neighbours(mesh):
    """A star: the hub has N - 1 neighbours, a leaf one; 2(N - 1) messages a round in all, each sent and received."""
    W = np.diag(np.full(N, 1 - 1 / N))
    W[0, 1:] = W[1:, 0] = 1 / N
    W[0, 0] = 1 / N
    method = algorithms.decentralized_sgd(optax.sgd(0.1), topologies.from_matrix(W))
    run = partial(dsgd.run, method, problems.random_quadratic(N, D, seed=1), steps=1, key=jax.random.key(0))
    for here in (mesh, dsgd.workers.mesh(2)):
        np.testing.assert_allclose(run(mesh=here).history["bits"][-1], 2 * 2 * (N - 1) * FLOATS / N)
