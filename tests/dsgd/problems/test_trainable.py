"""Leaves of the parameters that are not trained: frozen ones, integers, keys."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import problems
from dsgd.engine import run_keys

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
Y = X @ np.array([1, 2, 3], np.float32)
SGD = algorithms.minibatch_sgd(optax.sgd(0.1))
FROZEN = {"w": True, "frozen": False, "table": True, "key": True}


def init(key):
    frozen = {"frozen": jax.random.normal(key, (3,)), "table": jnp.arange(3)}
    return {"w": jnp.zeros(3), "key": jax.random.fold_in(key, 1), **frozen}


def predict(params, x):
    constant = params["table"].sum() + jax.random.normal(params["key"])
    return x @ params["w"] + 0.1 * x @ params["frozen"] + constant


def regression(init=init, predict=predict, **options: Any) -> dsgd.Problem:
    model, options = problems.Model(init, predict), {"batch_size": 4, "l2": 0.1, **options}
    return problems.finite_sum(model, optax.squared_error, (X, Y), 3, **options)


def test_frozen_and_integer_leaves_stay_and_the_rest_runs_as_without_them(mesh, key):
    problem = regression(trainable=FROZEN)
    start = problem.init(run_keys.split(key)[0])
    alone = regression(
        lambda key: {"w": jnp.zeros(3)}, lambda params, x: predict({**start, **params}, x)
    )
    method = algorithms.make("choco_sgd", optax.sgd(0.05), 3)
    found, expected = (
        dsgd.run(method, each, steps=4, key=key, mesh=mesh) for each in (problem, alone)
    )
    for leaf in ("frozen", "table", "key"):
        assert jnp.array_equal(found.params[leaf], start[leaf])
    np.testing.assert_allclose(found.params["w"], expected.params["w"], rtol=1e-6)
    for column in ("bits", "loss", "grad_sqnorm", "consensus"):
        np.testing.assert_allclose(found.history[column], expected.history[column], rtol=1e-5)


def test_runs_with_frozen_leaves_continue_from_results_checkpoints_and_models(tmp_path, mesh, key):
    problem = regression(trainable=lambda params: {**dict.fromkeys(params, True), "frozen": False})
    options = {"key": key, "mesh": mesh, "seeds": 2, "record_every": 2}
    whole = dsgd.run(SGD, problem, steps=4, **options)
    first = dsgd.run(SGD, problem, steps=2, checkpoint=tmp_path, **options)
    resumed = dsgd.run(SGD, problem, steps=4, checkpoint=tmp_path, **options)
    second = dsgd.run(SGD, problem, steps=2, start=first, **options)
    for other in (resumed, second):
        for leaf in ("w", "frozen", "table"):
            np.testing.assert_array_equal(other.params[leaf], whole.params[leaf])
    model = jax.tree.map(lambda leaf: leaf[0], first.params)
    options = {"key": key, "mesh": mesh, "record_every": 2, "steps": 2}
    start = dsgd.Parameters(lambda key: model, problem.parameters.trainable)
    third = dsgd.run(SGD, problem._replace(init=start), **options)
    np.testing.assert_allclose(third.history["loss"][0], first.history["loss"][0, -1], rtol=1e-6)
    assert not np.array_equal(third.params["w"], model["w"])
    with pytest.raises(ValueError, match=r"leaves \['w'\].*\['frozen'\], \['w'\]"):
        dsgd.run(SGD, problem._replace(init=lambda key: model), **options)


@pytest.mark.parametrize(
    ("trainable", "words"),
    [
        ({**FROZEN, "w": 1}, r"trainable = .*True and False"),
        ({"w": True}, "trainable = {'w': True}.*prefix"),
        (False, "no floating-point leaf"),
    ],
)
def test_a_choice_of_leaves_that_does_not_fit_is_refused(trainable, words):
    with pytest.raises(ValueError, match=words):
        regression(trainable=trainable)
