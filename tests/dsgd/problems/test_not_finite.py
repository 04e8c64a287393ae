"""Losses and gradients that are not finite: the message names the likely cause."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import problems

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)


def regression(start: Any, apply: Any, targets: Any = X[:, 0]) -> dsgd.Problem:
    model = problems.Model(lambda key: start, apply)
    return problems.finite_sum(model, optax.squared_error, (X, targets), 2, batch_size=2)


class Labels:
    """A custom loss, for which no check knows that its targets are indices."""

    def __call__(self, params, batch):
        return jnp.log(-1.0 - jnp.sum(batch.targets)) + jnp.sum(params)

    def outputs(self, params, batch):
        return batch.inputs @ params


def linear(params, x):
    return x @ params


def root_model(params, x):
    return x @ params["w"] + jnp.sqrt(jnp.sum(params["v"] ** 2)) * x[:, 0]


def late(x, batch):
    return x + jnp.where(x > 0.5, 0.0, jnp.sqrt(jnp.abs(x)) + batch)


CASES = {
    "finite data": (
        regression(jnp.zeros(3), linear, np.arange(24) % 2)._replace(loss=Labels(), evaluate=None),
        0.1,
        r"before the first round, .*data.inputs from -2.\d+ to 1.\d+, data.targets from 0 to 1, "
        ".*start from 0 to 0, outputs from 0 to 0",
    ),
    "a gradient": (
        regression({"w": jnp.ones(3), "v": jnp.zeros(2)}, root_model),
        0.1,
        r"gradient in \['v'\] of worker 0 is not finite at the start, .*sqrt",
    ),
    "a gradient, later": (
        dsgd.Problem(lambda key: jnp.array(2.0), late, jnp.zeros(2), lambda key, mine: mine),
        1.0,
        "gradient is not finite after round 2, although the loss is 0 .*sqrt",
    ),
    "the step size": (
        regression(jnp.zeros(3), linear),
        1e3,
        r"minibatch_sgd: the loss is .* after round \d+; try a smaller step size",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_values_that_are_not_finite_are_named(case, key):
    problem, rate, words = CASES[case]
    with pytest.raises(dsgd.Diverged, match=words):
        dsgd.run(algorithms.minibatch_sgd(optax.sgd(rate)), problem, steps=90, key=key, mesh=1)
