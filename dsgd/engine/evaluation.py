"""Scalars of one record of the history: the objective at the model that a run would return, and the
distance of the local models from it. Nothing here counts as traffic.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from dsgd import workers, xla
from dsgd.base import Params, PyTree, State
from dsgd.engine import columns, leaves, oracle, queries, rounds
from dsgd.engine.plan import Carry, Plan, Records
from dsgd.engine.protocol import Method


def final_model(plan: Plan, method: Method, state: State) -> Params:
    """Returns the method's model, or the mean of its local models."""
    params, stacked = method.models(state)
    with workers.with_weights(plan.weights):
        return workers.mean(params) if stacked else params


def measure(
    plan: Plan,
    method: Method,
    key: jax.Array,
    carry: Carry,
    data: PyTree,
    shared: PyTree,
    step: jax.Array,
    due: jax.Array,
) -> Records:
    """Returns the scalars of one record. Those of the evaluation are NaN if none is `due`; other
    arguments as in `loop.advance`.
    """
    params, consensus = _model_and_consensus(plan, method, key, carry, step)
    replicated, minimizer = shared

    def evaluate():
        all_params = leaves.join(plan.problem, params, carry.state.fixed)
        scalars, slope = oracle.evaluate(plan.problem, all_params, data, replicated)
        unknown = jnp.full((), np.nan, jnp.result_type(scalars["loss"]))
        more: dict[str, jax.Array] = {
            "grad_sqnorm": unknown if slope is None else xla.sqnorm(slope)
        }
        if minimizer is not None:
            away = optax.tree.sub(params, minimizer)
            names = ("grad_sqnorm", columns.DISTANCE)
            sums = (unknown, xla.sqnorm(away)) if slope is None else xla.sqnorms(slope, away)
            more = dict(zip(names, sums, strict=True))
        return jax.tree.map(
            lambda scalar: rounds.to_history_type(jnp.asarray(scalar)),
            {**scalars, **more},
        )

    def skip():
        return jax.tree.map(
            lambda scalar: jnp.full((), np.nan, scalar.dtype), jax.eval_shape(evaluate)
        )

    scalars = (
        evaluate()
        if plan.evaluate_every == 1
        else {**lax.cond(due, evaluate, skip), columns.EVALUATED: due}
    )
    return {**scalars, "consensus": consensus.astype(scalars["loss"].dtype)}


def _model_and_consensus(
    plan: Plan, method: Method, key: jax.Array, carry: Carry, step: jax.Array
) -> tuple[Params, jax.Array]:
    """Returns the model that a run would return, and the mean squared distance of the local models
    from it; 0 if there is only one model.
    """
    params, stacked = method.models(carry.state)
    with workers.with_weights(plan.weights):
        if stacked:
            return workers.mean_and_sqdist(params)
        asked = method.query(carry.state, rounds.make_round(plan, key, carry.clock, step))
        asked = queries.each(asked)[0]
        return params, jnp.zeros(()) if asked.axis is None else workers.mean_sqdist(
            asked.params, params
        )
