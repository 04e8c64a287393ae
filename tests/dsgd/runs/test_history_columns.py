"""Columns of bits, exchanges, gradients, gap and distance, compared with counts of numpy."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import Query, State, clusters, compressors, problems, work
from dsgd.engine import queries

N, B, D, STEPS = 4, 3, 2, 11
SIZES = (5, 7, 3, 12)
INPUTS = np.random.default_rng(0).normal(size=(sum(SIZES), D))
MODEL = problems.Model(lambda key: jnp.zeros(D), lambda params, inputs: inputs @ params)
PROBLEM = problems.finite_sum(
    MODEL,
    lambda outputs, targets: (outputs - targets) ** 2,
    (INPUTS, INPUTS[:, 0]),
    workers=N,
    batch_size=B,
    partition=np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1]),
)
SAMPLES = np.array([[3, 0], [1, 2], [2, 3], [0, 0]], np.int32)  # of two micro-batches
EVERY, FLOAT = 3, 32


def coin(step: Any) -> Any:
    return step % 4 == 1


def method() -> dsgd.Algorithm:
    """A method with local work, exact gradients in rounds 1, 5 and 9, one exchange in every round,
    one to a server in every third, and a joint one of two vectors in these rounds.
    """

    def query(state, round):
        local = dsgd.LocalWork(SAMPLES, np.full(SAMPLES.shape, 0.5))
        return Query(state.server, work=local), Query(
            state.server, exact=True, active=coin(round.step)
        )

    def update(state, answer, round):
        def joint(x):
            with round.joint():
                return x - round.mean(x)[None] - round.mean(2 * x)[None]

        def up_only(x):
            return round.to_server(compressors.identity, x).decoded

        one, exact = answer
        mean = round.mean(one)
        round.every(EVERY, up_only, one)
        round.when(coin(round.step), joint, exact)
        return state._replace(server=state.server - 0.01 * mean)

    return dsgd.Algorithm(
        "counted", lambda params, N: State(params), query, update, lambda state: state.server
    )


@pytest.mark.parametrize("mesh", [1, 2])
def test_exchanges_and_gradients_are_those_of_the_rounds(mesh):
    history = dsgd.run(
        method(), PROBLEM, steps=STEPS, key=jax.random.key(0), seeds=2, record_every=2, mesh=mesh
    ).history
    t = np.arange(STEPS)
    third, exact = (t + 1) % EVERY == 0, coin(t)
    end = history["step"]
    exchanges = np.cumsum([0, *(1 + third + exact)])[end]
    samples = np.cumsum([0, *(SAMPLES.sum() + exact * sum(SIZES))])[end] / N
    one = D * FLOAT
    down = 2 * (N - 1) / N * one * np.cumsum([0, *(1 + 2.0 * exact)])[end]
    up = down + one * np.cumsum([0, *third])[end]
    assert history["communications"].dtype == np.int64
    for name, expected in (
        ("communications", exchanges),
        ("gradients", samples),
        ("epochs", samples * N / sum(SIZES)),
        ("bits_up", up),
        ("bits_down", down),
        ("bits", up + down),
    ):
        np.testing.assert_array_equal(history[name], np.tile(expected, (2, 1)), err_msg=name)


def test_absent_workers_compute_no_gradients():
    """One of four participates; without a cluster each worker computes a batch."""
    cluster = clusters.Cluster(clusters.constant(1.0), present=clusters.sampled(1, N))
    for options, each in (({}, B), ({"cluster": cluster}, B / N)):
        history = dsgd.run(
            algorithms.minibatch_sgd(optax.sgd(0.1)),
            PROBLEM,
            steps=4,
            key=jax.random.key(0),
            mesh=1,
            **options,
        ).history
        np.testing.assert_array_equal(history["gradients"], each * np.arange(5))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (Query(jnp.zeros(D)), [3, 3, 2, 3]),
        (Query(jnp.zeros(D), exact=True), SIZES),
        (Query(jnp.zeros(D), workers=jnp.array([2, 0])), [2, 3]),
        (Query(jnp.zeros(D), samples=jnp.zeros((N, 5), jnp.int32)), [5] * 4),
        (Query(jnp.zeros(D), work=work.micro_batches(SAMPLES > 1)), [3, 3, 4, 0]),
    ],
)
def test_samples_of_a_query(query, expected):
    sampler = PROBLEM.sampler
    assert sampler.batch_sizes is None
    unequal = PROBLEM._replace(
        sample=dsgd.Sampler(
            sampler.draw, B, SIZES, sampler.truncate, (3, 3, 2, 3), choose=sampler.choose
        )
    )
    if query.work is not None:
        query = query._replace(work=work.to_samples(query.work, B, (3, 3, 2, 3)))
    asked = queries.convert(query, jnp.zeros(D), unequal, N)
    np.testing.assert_array_equal(queries.each_samples(asked, unequal, N), expected)


@pytest.mark.parametrize("regularizer", [None, problems.l1(0.1)])
def test_gap_and_distance_are_those_of_the_evaluated_model(regularizer):
    quadratic, best = problems.random_quadratic(N, D, seed=3), np.array([0.5, -0.25])
    if regularizer is not None:
        quadratic = problems.regularized(quadratic, regularizer)
    constants = quadratic.constants._replace(minimum=-2.5, minimizer=best)
    quadratic = quadratic._replace(constants=constants)
    objective = "loss" if regularizer is None else "objective"
    result = dsgd.run(
        algorithms.proximal_sgd(0.2),
        quadratic,
        steps=5,
        key=jax.random.key(0),
        record_every=2,
        evaluate_every=2,
        mesh=1,
    )
    history = result.history
    np.testing.assert_array_equal(history["gap"], history[objective].astype(float) + 2.5)
    start = np.asarray(quadratic.init(jax.random.key(0)))
    expected = [((x - best) ** 2).sum() for x in (start, np.asarray(result.params))]
    np.testing.assert_allclose(history["distance"][[0, -1]], expected, rtol=1e-5)
    np.testing.assert_array_equal(np.isnan(history["distance"]), ~history["evaluated"])


def test_gap_and_distance_need_a_known_solution():
    run = partial(
        dsgd.run,
        algorithms.gradient_descent(optax.sgd(0.1)),
        steps=1,
        key=jax.random.key(0),
        mesh=1,
    )
    assert not {"gap", "distance"} & run(PROBLEM).history.keys()
    wrong = problems.random_quadratic(N, D)
    wrong = wrong._replace(constants=wrong.constants._replace(minimizer=np.zeros(3)))
    with pytest.raises(ValueError, match=r"constants.minimizer as float64\[3\]; expected"):
        run(wrong)
