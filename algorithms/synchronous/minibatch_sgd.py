"""Mini-batch SGD in the survey's three implementations (section 2.1.2), which are one algorithm with three ways to send it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from algorithms import absence, optimizers
from dsgd import checks, network, workers
from dsgd.base import Algorithm, Pattern, Query, State
from dsgd.network import told


@checks.arguments
def minibatch_sgd(optimizer: optax.GradientTransformation) -> Algorithm:
    r"""Gradient aggregation: the workers all-reduce their gradients and make the same step on equal replicas.

    $$ x_{t+1} = x_t - \gamma \frac1N \sum_n g_n(x_t) $$

    Args:
        optimizer: the step; `optax.sgd(gamma)` is the equation.

    Source: Liu and Zhang, section 2.1.2, "Gradient Aggregation". The replicas are equal in every round, so each device keeps one
    for all of its workers.
    """
    return _averaged_gradients(optimizer, network.ring_all_reduce, "minibatch_sgd")


@checks.arguments
def parameter_server_sgd(optimizer: optax.GradientTransformation) -> Algorithm:
    r"""Global replica: the model is on one server; the workers fetch it and send their gradients.

    $$ x_{t+1} = x_t - \gamma \frac1N \sum_n g_n(x_t) $$

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` is the equation.

    Source: Liu and Zhang, section 2.1.2, "Global Model Replica", with one dedicated server (section 1.3.2): bits are those of a worker's
    port, the server's carries N times as many. Over N servers it costs what `minibatch_sgd` does.
    """
    return _averaged_gradients(optimizer, network.parameter_server, "parameter_server_sgd")


@checks.arguments
def model_averaging_sgd(optimizer: optax.GradientTransformation) -> Algorithm:
    r"""Model aggregation: every worker makes its own step, then the workers all-reduce their models.

    $$ x_{t+1/2}^{(n)} = x_t - \gamma g_n(x_t), \qquad x_{t+1} = \frac1N \sum_n x_{t+1/2}^{(n)} $$

    With an optimiser that is linear in the gradient (SGD, momentum) this is `minibatch_sgd`; Adam keeps its memory locally. On problems
    with weights the mean is $\sum_n w_n x_{t+1/2}^{(n)} / \sum_n w_n$.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation.

    Source: Liu and Zhang, section 2.1.2, "Model Aggregation".
    """

    def init(params, N):
        return State(jnp.int32(0), workers=optimizers.start_local(optimizer, params, N))

    def query(state, round):
        return Query(state.workers.params, axis=0)

    def update(key, state, gradients, round):
        local = optimizers.step_local(optimizer, state.workers, gradients)
        mean = workers.stack(workers.mean(local.params), jax.tree.leaves(gradients)[0].shape[0])
        models = local._replace(params=workers.if_any(mean, workers.where_present(local.params, state.workers.params)))
        return State(state.step + 1, workers=models), told.all_reduced(local.params, round.workers)

    return Algorithm(
        init,
        query,
        update,
        optimizers.mean_params,
        network.ring_all_reduce,
        "model_averaging_sgd",
        optimizers.learning_rate(optimizer),
        away=absence.takes_average,
        averages_models=True,
    )


def _averaged_gradients(optimizer: optax.GradientTransformation, pattern: Pattern, name: str) -> Algorithm:
    def init(params, N):
        return State(jnp.int32(0), server=optimizers.start(optimizer, params))

    def query(state, round):
        return Query(state.server.params)

    def update(key, state, gradients, round):
        server = optimizers.step(optimizer, state.server, workers.mean(gradients))
        server = workers.if_any(server, state.server)
        return State(state.step + 1, server=server), told.all_reduced(gradients, round.workers, pattern)

    rate = optimizers.learning_rate(optimizer)
    return Algorithm(init, query, update, optimizers.server_params, pattern, name, rate, away=absence.stay)
