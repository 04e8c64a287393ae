"""Scalars of one record of the history: the objective at the model that a run would return, and the
distance of the local models from it. Nothing here counts as traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from dsgd import workers, xla
from dsgd.base import Params, PyTree, State
from dsgd.engine import cohorts, columns, leaves, oracle, queries, rounds, units
from dsgd.engine.plan import Carry, Plan, Records
from dsgd.engine.protocol import Method


def final_model(plan: Plan, method: Method, state: State) -> Params:
    """Returns the method's model, or the mean of its local models."""
    if plan.cohort:
        return _mean_over_cohort(plan, state, partial(_models, method))[0]
    params, rows = _models(method, state)
    with workers.with_weights(plan.weights):
        return workers.mean(rows) if params is None else params


def _models(method: Method, state: State) -> tuple[Params | None, Params | None]:
    """Returns the method's model and None, or None and the local models, leaves `[n, ...]`."""
    params, stacked = method.models(state)
    return (None, params) if stacked else (params, None)


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
        with workers.on_each_device(plan.cohort is not None):
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

    def local(state):
        params, rows = _models(method, state)
        if params is None:
            return None, rows
        asked = method.query(state, rounds.make_round(plan, key, carry.clock, step))
        asked = queries.each(asked)[0]
        return params, None if asked.axis is None else asked.params

    if plan.cohort:
        return _mean_over_cohort(plan, carry.state, local)
    with workers.with_weights(plan.weights):
        params, rows = local(carry.state)
        if params is None:
            return workers.mean_and_sqdist(rows)
        return params, jnp.zeros(()) if rows is None else workers.mean_sqdist(rows, params)


def _mean_over_cohort(plan: Plan, state: State, local: Callable) -> tuple[Params, jax.Array]:
    r"""Returns the result of `_model_and_consensus` for the local models of all N workers if only
    those of a cohort are stored.

    $$ \bar x = z + \frac{1}{\sum_n w_n} \sum_{n \in C} w_n (x_n - z), \qquad \frac1N \sum_n |x_n -
       \bar x|^2 = \frac1N \sum_{n \in C} |x_n - \bar x|^2 + \frac{N - |C|}{N} |z - \bar x|^2 $$

    with the common model z of the workers outside of the cohort C.

    Args:
        plan: static.
        state: state of the run, with a `Clients` in `workers`.
        local: State -> (the model or None, local models or None).
    """
    layout, clients, N = plan.cohort, state.workers, plan.N
    assert layout is not None
    if not layout.common_models:
        everyone = cohorts.all_rows(clients)
        with workers.on_each_device(), workers.with_weights(plan.weights):
            params, rows = local(state._replace(workers=everyone))
            if params is None:
                return workers.mean_and_sqdist(rows)
            return params, jnp.zeros(()) if rows is None else workers.mean_sqdist(rows, params)

    def moved(rows, z):
        away = jax.tree.map(lambda row, z: row - z[None], workers.widen(rows), z)
        if plan.weights is None:
            totals = jax.tree.map(lambda leaf: workers.sum_rows(leaf) / N, away)
        else:
            by = np.asarray(plan.weights)
            shares = workers.local_block(jnp.asarray(by / by.sum(), jnp.result_type(float)), N)
            totals = jax.tree.map(workers.sum_rows, units.scale_rows(shares, away))
        return workers.sum_over_devices(totals)

    with workers.with_cohort(workers.Cohort(clients.ids, N)):
        params, rows = local(state._replace(workers=clients.rows))
        if rows is None:
            assert params is not None
            return params, jnp.zeros(())
        outside = local(state._replace(workers=cohorts.common_rows(clients)))[1]
        z = jax.tree.map(lambda leaf: leaf[0], workers.widen(outside))
        if params is None:
            params = workers.narrow(optax.tree.add(z, moved(rows, z)), rows)

        def sqdist(tree):
            away = jax.tree.map(lambda row, mean: row - mean[None], workers.widen(tree), params)
            return workers.sqnorm_rows(away)

        inside = workers.sum_over_devices(jnp.sum(sqdist(rows)))
        far = sqdist(jax.tree.map(lambda leaf: leaf[None], z))[0]
        return params, (inside + (N - layout.rows) * far) / N
