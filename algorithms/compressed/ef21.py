"""EF21: compressing what changes, in both directions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import absence, exchanges, optimizers
from dsgd import checks, network, workers
from dsgd.base import Algorithm, Compressor, Query, State
from dsgd.network import told


class Estimators(NamedTuple):
    """What workers and servers know. The estimate of the model, which everybody knows, is `State.server`.

    Args:
        gradient: u^(n), what the servers know of each worker's gradient, leaves `[n, M, part]`.
        mean: of the workers' u^(n), the part that one serves, leaves `[n, part]`.
        model: the part that one serves of x, and its optimiser's state, leaves `[n, part]`.
        estimate: of that part of x, what the workers know, with its padding, leaves `[n, part]`.
        up, down: last messages, of compressors that start warm.
    """

    gradient: exchanges.Parts
    mean: exchanges.Parts
    model: optimizers.Model
    estimate: exchanges.Parts
    up: Any
    down: Any


@checks.arguments
def ef21(optimizer: optax.GradientTransformation, up: Compressor, down: Compressor) -> Algorithm:
    r"""EF21 in both directions: workers send what their gradient has moved from its estimate, servers what the model has.

    $$ u_t^{(n)} = u_{t-1}^{(n)} + C(g_n(\hat x_t) - u_{t-1}^{(n)}), \qquad x_{t+1} = x_t - \gamma \frac1N \sum_n u_t^{(n)} $$
    $$ \hat x_{t+1} = \hat x_t + C'(x_{t+1} - \hat x_t) $$

    With `down=compressors.identity`, $\hat x = x$ up to rounding: EF21 as first published. Estimates of gradients start at 0,
    that of the model at $x_0$.

    Args:
        optimizer: the step of each server on its part; `optax.sgd(gamma)` is the equation. One that works element by element (SGD,
            momentum, Adam) steps as it would on the whole.
        up: C, a contraction.
        down: C', a contraction.

    Raises:
        ValueError: no compressor, or one layer by layer, the other of the whole model; at the start, one that states no contraction for
            a part.

    Source: Richtarik, Sokolov and Fatkhullin, "EF21", 2021; in both directions, Fatkhullin et al., "EF21 with bells and whistles", 2021,
    and Algorithm 3 of Kimad. Departure: N servers, each of one part, instead of one.
    """
    exchanges.need_two("ef21", up, down)

    def init(params, N):
        parts = jax.tree.map(lambda leaf: leaf[0], exchanges.cut(workers.stack(params, 1), N, up))
        nothing = workers.stack(jax.tree.map(jnp.zeros_like, parts), N)
        served = exchanges.padded(parts, N)
        for compressor in (up, down):
            exchanges.need_contraction("ef21", compressor, served)
        estimators = Estimators(
            gradient=nothing,
            mean=jax.tree.map(jnp.zeros_like, served),
            model=jax.vmap(lambda part: optimizers.start(optimizer, part))(served),
            estimate=served,
            up=exchanges.start(up, nothing),
            down=exchanges.start(down, served),
        )
        return State(jnp.int32(0), server=params, workers=estimators)

    def query(state, round):
        return Query(state.server)

    def update(key, state, gradients, round):
        N, known = round.workers, state.workers
        up_key, down_key = jax.random.split(key)
        news = jax.tree.map(jnp.subtract, exchanges.cut(gradients, N, up), known.gradient)
        sent = exchanges.to_servers(up, up_key, news, N, known.up)
        mean = jax.tree.map(jnp.add, known.mean, sent.received)
        model = optimizers.step_local(optimizer, known.model, mean)
        moved = jax.tree.map(jnp.subtract, model.params, known.estimate)
        answer = exchanges.from_servers(down, down_key, moved, N, known.down)
        known = Estimators(
            gradient=jax.tree.map(jnp.add, known.gradient, sent.seen),
            mean=mean,
            model=model,
            estimate=jax.tree.map(jnp.add, known.estimate, answer.seen),
            up=sent.messages,
            down=answer.messages,
        )
        change = exchanges.join(answer.received, state.server, down)
        estimate = jax.tree.map(jnp.add, state.server, change)
        return State(state.step + 1, estimate, known), told.both(sent.info, answer.info)

    def model(state):
        """x, of which the estimate lags behind."""
        return exchanges.join(workers.gather(state.workers.model.params), state.server, up)

    name, rate = f"ef21({up.name}, {down.name})", optimizers.learning_rate(optimizer)
    return Algorithm(init, query, update, model, network.multi_server, name, rate, away=absence.SERVES)
