"""Evaluations that are rarer than records: what was not evaluated is NaN, not computed, and taken
for no divergence.
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
from dsgd.runs import plans

N, STEPS, EVERY, RARELY = 4, 15, 2, 3
RECORDS = np.array([0, 2, 4, 6, 8, 10, 12, 14, 15])
EVALUATED = np.array([0, 6, 12, 15])
OF_EVALUATION = ("loss", "grad_sqnorm")


@pytest.fixture(scope="module")
def method():
    return algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring(N))


def test_some_records_are_evaluated_and_all_else_is_as_ever(method, problem, key):
    options = {"steps": STEPS, "key": key, "seeds": 2, "mesh": 2, "record_every": EVERY}
    plain, rare = (
        dsgd.run(method, problem, **options),
        dsgd.run(method, problem, evaluate_every=RARELY, **options),
    )
    mask = np.isin(RECORDS, EVALUATED)
    np.testing.assert_array_equal(rare.history["step"], RECORDS)
    np.testing.assert_array_equal(
        rare.history["evaluated"], np.broadcast_to(mask, plain.history["loss"].shape)
    )
    assert rare.history["evaluated"].dtype == bool
    for name in OF_EVALUATION:
        assert np.isnan(rare.history[name][..., ~mask]).all()
        np.testing.assert_allclose(
            rare.history[name][..., mask], plain.history[name][..., mask], rtol=1e-6
        )
    for name in ("bits", "consensus"):
        np.testing.assert_allclose(rare.history[name], plain.history[name], rtol=1e-6)
    np.testing.assert_array_equal(rare.params, plain.params)
    kept = dsgd.evaluated(rare.history)
    np.testing.assert_array_equal(kept["step"], EVALUATED)
    np.testing.assert_array_equal(kept["bits"], rare.history["bits"][..., mask])
    assert dsgd.evaluated(plain.history) is plain.history


def counting(calls: list, *, slope: bool = True) -> dsgd.Problem:
    """Notes each evaluation; its loss is the first parameter."""

    def evaluate(params, data, shared):
        jax.debug.callback(lambda: calls.append(1))
        return {"loss": params[0], "half": params[0] / 2}, (params if slope else None)

    return dsgd.Problem(
        init=lambda key: jnp.ones(2),
        loss=lambda x, batch: x @ x,
        data=jnp.zeros((N, 1)),
        sample=lambda key, mine: mine,
        evaluate=evaluate,
    )


def test_records_that_are_not_due_compute_no_evaluation(method, mesh, key):
    calls: list = []
    result = dsgd.run(
        method,
        counting(calls),
        steps=STEPS,
        key=key,
        mesh=mesh,
        record_every=EVERY,
        evaluate_every=RARELY,
    )
    jax.effects_barrier()
    assert len(calls) == len(EVALUATED)
    np.testing.assert_array_equal(np.isnan(result.history["half"]), ~np.isin(RECORDS, EVALUATED))


def test_an_evaluation_may_give_no_gradient(method, mesh, key):
    result = dsgd.run(
        method, counting([], slope=False), steps=4, key=key, mesh=mesh, evaluate_every=2
    )
    assert np.isnan(result.history["grad_sqnorm"]).all()
    assert np.isfinite(result.history["loss"][::2]).all()


def test_a_stage_begins_and_ends_with_an_evaluation(method, problem, mesh, key):
    first = dsgd.run(method, problem, steps=5, key=key, mesh=mesh)
    second = dsgd.run(method, problem, steps=8, key=key, mesh=mesh, start=first, evaluate_every=4)
    np.testing.assert_array_equal(dsgd.evaluated(second.history)["step"], [5, 8, 12, 13])
    assert np.isfinite(dsgd.evaluated(second.history)["loss"]).all()


def test_bar_and_until_see_the_last_evaluation(method, problem, mesh, key, capsys):
    seen = []

    def until(history):
        seen.append(history)
        return history["step"][-1] >= 30

    dsgd.run(
        method,
        problem,
        steps=40,
        key=key,
        mesh=mesh,
        evaluate_every=1_000,
        until=until,
        progress=True,
    )
    assert "loss nan" not in capsys.readouterr().out
    assert len(seen) > 1
    assert all(np.isfinite(dsgd.evaluated(history)["loss"]).all() for history in seen)


@pytest.mark.parametrize(("record_every", "evaluate_every"), [(1, 0), (2, plans.MOST_IN_CHUNK)])
def test_what_is_no_period_is_refused(record_every, evaluate_every, method, problem, mesh, key):
    with pytest.raises(ValueError, match=rf"evaluate_every = {evaluate_every}.*; expected"):
        dsgd.run(
            method,
            problem,
            steps=1,
            key=key,
            mesh=mesh,
            record_every=record_every,
            evaluate_every=evaluate_every,
        )


def test_until_is_asked_where_the_last_record_has_a_loss(method, problem, mesh, key):
    def until(history):
        return len(history["step"]) > 1 and history["loss"][-1] < np.inf

    steps = dsgd.run(
        method, problem, steps=100, key=key, mesh=mesh, evaluate_every=7, until=until
    ).history["step"]
    assert steps[-1] < 100
    assert steps[-1] % 7 == 0
