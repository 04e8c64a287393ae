"""SGD on one machine: the survey's section 1.2."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from dsgd import checks, network
from dsgd.base import Algorithm, Query, State
from dsgd.network import told


@checks.arguments
def sgd(optimizer: optax.GradientTransformation) -> Algorithm:
    r"""SGD on one machine that holds all data: each step takes a batch of one worker's part, drawn uniformly.

    $$ x_{t+1} = x_t - \gamma\, g(x_t), \qquad g = F_{n}'(x_t; \xi_t),\ n \sim \mathrm{Uniform}\{1, \dots, N\} \tag{1.10} $$

    Args:
        optimizer: the step; `optax.sgd(gamma)` is the equation.

    Source: Liu and Zhang, section 1.2. Departure: a step takes `problem.batch_size` samples; the survey's takes one.
    """

    def init(params, N):
        return State(jnp.int32(0), server=optimizers.start(optimizer, params))

    def query(state, round):
        chosen = jax.random.randint(round.key, (1,), 0, round.workers)
        return Query(state.server.params, workers=chosen)

    def update(key, state, gradients, round):
        gradient = jax.tree.map(lambda leaf: leaf[0], gradients)
        return State(state.step + 1, server=optimizers.step(optimizer, state.server, gradient)), told.nothing(round.workers)

    rate = optimizers.learning_rate(optimizer)
    away = "it is one machine, which asks one worker a round"
    return Algorithm(init, query, update, optimizers.server_params, network.one_machine, "sgd", rate, away=away)
