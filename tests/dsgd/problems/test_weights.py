"""Weights of the workers' objectives."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import compressors, problems
from dsgd.engine import oracle, pooled

SIZES = [1, 2, 4, 9]
N, M = len(SIZES), sum(SIZES)
KEY = jax.random.key(0)
PARTS = np.split(np.arange(M), np.cumsum(SIZES)[:-1])
CENTERS = np.array([-8.0, -4.0, 2.0, 4.0])
W = np.array(SIZES) * N / M
GD, SGD = (each(optax.sgd(0.1)) for each in (algorithms.gradient_descent, algorithms.minibatch_sgd))


@cache
def means(weights: Any = "samples") -> dsgd.Problem:
    """Returns a problem with f_n(x) = |x - c_n|^2 / 2 for x in R^2 and worker n's center c_n, with
    exact gradients: each batch is all data of a worker.
    """
    model = problems.Model(
        lambda key: jnp.zeros(2), lambda x, inputs: jnp.broadcast_to(x, (len(inputs), 2))
    )
    data = np.zeros((M, 1)), np.repeat(CENTERS, SIZES)
    options: Any = {"weights": weights, "batch_size": max(SIZES), "replacement": False}
    return problems.finite_sum(model, lambda x, c: (x - c[:, None]) ** 2, data, N, PARTS, **options)


def objective(x: float, weights: Any) -> float:
    return np.average((x - CENTERS) ** 2, weights=weights)


@pytest.mark.parametrize(
    ("weights", "numbers", "devices"),
    [("samples", W, 4), ((0.0, 3.0, 2.0, 1.0), np.array([0.0, 3.0, 2.0, 1.0]), 1)],
)
def test_the_history_has_the_weighted_objective_and_its_gradient(weights, numbers, devices):
    """Batches are all data, so that their loss is the objective at the previous model."""
    options = {"steps": 2, "key": KEY, "mesh": devices, "train_loss": True}
    history = dsgd.run(SGD, means(weights), **options).history
    x = 0.1 * np.average(CENTERS, weights=numbers)
    values = [objective(0, numbers), objective(x, numbers)]
    np.testing.assert_allclose(history["loss"][:2], values, rtol=1e-5)
    np.testing.assert_allclose(history["train_loss"][1:], values, rtol=1e-5)
    assert history["grad_sqnorm"][0] == pytest.approx(2 * (10 * x) ** 2, rel=1e-5)


OVERFLOWING = np.where(np.arange(12) < 8, 1.5, 1e38).astype(np.float32)


@pytest.mark.parametrize(("workers_order", "evaluate"), [([0, 1, 2], True), ([2, 1, 0], False)])
def test_values_of_a_worker_of_weight_0_that_overflow_have_no_effect(workers_order, evaluate):
    """Also in the gradient of the mean, in which they would be 0 times infinity."""
    model = problems.Model(lambda key: jnp.full(1, 0.3), lambda w, x: x @ w)
    parts = [np.arange(4 * n, 4 * n + 4) for n in workers_order]
    weights = [[1.75, 1.25, 0.0][n] for n in workers_order]

    def history(inputs):
        data = inputs[:, None], np.ones(12, np.float32)
        problem = problems.finite_sum(
            model, optax.squared_error, data, 3, parts, weights=weights, batch_size=None
        )
        problem = problem if evaluate else problem._replace(evaluate=None)
        return [
            dsgd.run(SGD, problem, steps=3, key=KEY, mesh=devices).history for devices in (1, 3)
        ]

    for found, expected in zip(
        history(OVERFLOWING), history(np.minimum(OVERFLOWING, 1.5)), strict=True
    ):
        assert expected["loss"][-1] < expected["loss"][0] / 2
        for name in ("loss", "grad_sqnorm"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


EACH, DOUBLED = np.array([0, 1, 2]), np.array([0, 0, 1, 2])
CURVATURES = np.array([0.5, 1.0, 2.0])
TARGETS = np.random.default_rng(0).normal(size=(3, 3, 2))
MOMENTUM = optax.sgd(0.1, momentum=0.5)


def three(workers: np.ndarray, dtype: Any = jnp.float32) -> dsgd.Problem:
    """Returns the problem f_n(x) = a_n |x - c_n|^2 / 2 with three functions, of which each of the
    given workers has one. The first function has the weight 2, or belongs to two workers.
    """
    problem = dsgd.Problem(
        lambda key: {"x": jnp.zeros((3, 2), dtype)},
        lambda params, data: data[0] * jnp.sum((params["x"] - data[1]) ** 2) / 2,
        (jnp.asarray(CURVATURES[workers], dtype), jnp.asarray(TARGETS[workers], dtype)),
        lambda key, data: data,
    )
    return problem._replace(weights=[1.5, 0.75, 0.75] if workers is EACH else None)


def steps_of(workers: np.ndarray) -> Callable:
    """Returns the local work of the workers with function n: they compute in the first n + 1 of
    three rounds.
    """

    def work(state, round):
        computes = (round.step % 3 < 1 + jnp.asarray(workers))[:, None]
        return dsgd.LocalWork(computes, jnp.ones(computes.shape))

    return work


DIVIDED: dict[str, Callable[[np.ndarray], dsgd.Algorithm]] = {
    "FedNova": lambda of: algorithms.with_local_work(
        algorithms.fed_nova(optax.sgd(0.1), 3), steps_of(of)
    ),
    "FedDyn": lambda of: algorithms.fed_dyn(optax.sgd(0.1), 3, 1.0),
    "MimeLite": lambda of: algorithms.mime_lite(MOMENTUM, 3),
    "AdaComm": lambda of: algorithms.adacomm(MOMENTUM, 4, 3),
    "SparseLoCo": lambda of: algorithms.sparse_loco(
        MOMENTUM, 2, compressors.chunked_top_k(1, 3), outer=optax.sgd(0.7)
    ),
    "DGC": lambda of: algorithms.dgc(optax.sgd(0.1), compressors.chunked_top_k(1, 3), 0.5),
    "Fed-EF": lambda of: algorithms.fed_ef(optax.sgd(0.1), 2, compressors.chunked_top_k(1, 3)),
    "FedCOMGATE": lambda of: algorithms.fed_comgate(0.1, 2, compressors.identity),
    "Mime": lambda of: algorithms.mime(MOMENTUM, 2),
    "Scaffnew": lambda of: algorithms.scaffnew(optax.sgd(0.1), 0.5),
    "CSER": lambda of: algorithms.cser(
        MOMENTUM, 2, compressors.chunked_top_k(2, 3), compressors.random_places(0.5, unbiased=False)
    ),
    "Streaming DiLoCo": lambda of: algorithms.streaming_diloco(MOMENTUM, 1, 2, compressor=None),
    "DeMo": lambda of: algorithms.demo(optax.sgd(0.1), 0.9, 1, 3),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("Mime", "CSER", "DeMo") else pytest.mark.long)
        for name in DIVIDED
    ],
)
def test_a_worker_of_weight_2_counts_as_two_workers(name):
    options: Any = {"steps": 6, "key": KEY, "mesh": 1}
    weighted, doubled = (
        dsgd.run(DIVIDED[name](workers), three(workers), **options).state
        for workers in (EACH, DOUBLED)
    )
    workers = jax.tree.map(lambda rows: rows[1:], doubled.workers)  # without the second copy
    for left, right in (weighted.workers, workers), (weighted.server, doubled.server):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), left, right)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(weighted.workers))


def test_a_problem_without_a_custom_evaluation_has_weights_by_one_field():
    quadratic = problems.quadratic(np.ones((N, 1)), CENTERS[:, None])._replace(weights=W)
    method = algorithms.gradient_descent(optax.sgd(1.0))
    found = dsgd.run(method, quadratic._replace(evaluate=None), steps=1, key=KEY, mesh=4)
    minimizer = np.average(CENTERS, weights=W)
    np.testing.assert_allclose(found.params, minimizer, rtol=1e-5)
    np.testing.assert_allclose(found.history["loss"][1], -0.5 * minimizer**2, rtol=1e-5)
    with pytest.raises(ValueError, match=r"weights, .*evaluate"):
        dsgd.run(method, quadratic, steps=1, key=KEY, mesh=1)


def test_a_run_warns_if_the_optimizers_of_the_workers_cancel_their_weights():
    momentum, adam = optax.sgd(0.1, momentum=0.9), optax.adam(0.1)
    with pytest.warns(UserWarning, match="the weights have no effect"):
        dsgd.compile_round(algorithms.make("dsgd", adam, N), means(), 1)
    with pytest.warns(UserWarning, match="easgd.*: the problem has weights"):
        dsgd.compile_round(algorithms.easgd(adam), means(), 1)
    for name, optimizer in (("dsgd", momentum), ("local_sgd", adam)):
        dsgd.compile_round(algorithms.make(name, optimizer, N), means(), 1)


@pytest.mark.parametrize(
    "weights", ["sizes", [1.0, 2.0], [1.0, -1.0, 1.0, 1.0], [0.0] * N, [np.nan, 1, 1, 1]]
)
def test_invalid_weights_are_refused(weights):
    with pytest.raises(ValueError, match="finite_sum: weights = "):
        means.__wrapped__(weights)
    if not isinstance(weights, str):
        wrong = problems.random_quadratic(N, 2)._replace(weights=weights, evaluate=None)
        with pytest.raises(ValueError, match=r"weights = .*mean 1"):
            dsgd.run(GD, wrong, steps=1, key=KEY, mesh=1)


def test_a_worker_alone_computes_its_weighted_loss():
    """As in processes and actors."""
    problem = means()
    for n in range(N):
        alone, data = oracle.worker_problem(problem, n), pooled.worker_data(problem.data, n)
        loss, slope = oracle.value_and_grad(alone)(jnp.ones(2), alone.sample(KEY, data))
        assert float(loss) == pytest.approx(W[n] * (1 - CENTERS[n]) ** 2, rel=1e-5)
        np.testing.assert_allclose(slope, W[n] * (1 - CENTERS[n]), rtol=1e-5)
