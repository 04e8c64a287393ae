"""Evaluations that are rarer than records: other records are NaN, are not computed, and are not
treated as a divergence.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from tests.dsgd.by_hand import run

N, STEPS = 4, 15
EVERY = {"record_every": 2, "evaluate_every": 3}
RECORDS = np.array([0, 2, 4, 6, 8, 10, 12, 14, 15])
EVALUATED = np.array([0, 6, 12, 15])
MASK = np.isin(RECORDS, EVALUATED)
METHOD = algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring(N))


def test_some_records_are_evaluated_and_everything_else_is_unchanged(problem):
    plain, rare = (
        run(METHOD, problem, STEPS, seeds=2, mesh=2, **options)
        for options in ({"record_every": 2}, EVERY)
    )
    history = rare.history
    np.testing.assert_array_equal(history["evaluated"], [MASK] * 2)
    assert history["evaluated"].dtype == bool
    for name, values in plain.history.items():
        unknown = name in ("loss", "grad_sqnorm", "gap", "distance")
        seen = np.where(MASK, values, np.nan) if unknown else values
        np.testing.assert_allclose(history[name], seen, rtol=1e-6)
    np.testing.assert_array_equal(rare.params, plain.params)
    kept = dsgd.history.evaluated_records(history)
    np.testing.assert_array_equal(kept["step"], EVALUATED)
    np.testing.assert_array_equal(kept["bits"], history["bits"][..., MASK])
    assert dsgd.history.evaluated_records(plain.history) is plain.history


@pytest.mark.parametrize("slope", [True, False])
def test_records_that_are_not_due_compute_no_evaluation(slope):
    """The evaluation may return no gradient."""
    calls = []

    def evaluate(params, data, shared):
        jax.debug.callback(lambda: calls.append(1))
        return {"loss": params[0], "half": params[0] / 2}, (params if slope else None)

    problem = dsgd.Problem(
        init=lambda key: jnp.ones(2),
        loss=lambda x, batch: x @ x,
        data=jnp.zeros((N, 1)),
        sample=lambda key, mine: mine,
        evaluate=evaluate,
    )
    history = run(METHOD, problem, STEPS, **EVERY).history
    jax.effects_barrier()
    assert len(calls) == len(EVALUATED)
    for name, found in (("half", MASK), ("loss", MASK), ("grad_sqnorm", MASK & slope)):
        np.testing.assert_array_equal(np.isfinite(history[name]), found)


def test_a_stage_begins_and_ends_with_an_evaluation(problem):
    first = run(METHOD, problem, 5)
    second = run(METHOD, problem, 8, start=first, evaluate_every=4)
    evaluated = dsgd.history.evaluated_records(second.history)
    np.testing.assert_array_equal(evaluated["step"], [5, 8, 12, 13])
    assert np.isfinite(evaluated["loss"]).all()


def test_until_is_called_if_the_last_record_has_a_loss(problem):
    def until(history):
        return len(history["step"]) > 1 and history["loss"][-1] < np.inf

    steps = run(METHOD, problem, 100, evaluate_every=7, until=until).history["step"]
    assert steps[-1] < 100
    assert steps[-1] % 7 == 0
