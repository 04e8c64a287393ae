"""EF21: compressing what changes, in both directions."""

from __future__ import annotations

from typing import Any, NamedTuple

import optax

from algorithms import optimizers
from dsgd import Algorithm, Compressor, Query, State, checks, communication, workers


class Estimates(NamedTuple):
    """What workers and servers know. The estimate of the model, which everybody knows, is
    `State.server`.

    Args:
        gradient: u^(n), what the servers know of each worker's gradient, leaves `[n, M, part]`.
        mean: of the workers' u^(n), the part that one serves, leaves `[n, part]`.
        model: the part that one serves of x, and its optimiser's state, leaves `[n, part]`.
        estimate: of that part of x, what the workers know, with its padding, leaves `[n, part]`.
        up, down: last messages, of compressors that start warm.
    """

    gradient: Any
    mean: Any
    model: optimizers.Model
    estimate: Any
    up: Any
    down: Any


@checks.arguments
def ef21(optimizer: optax.GradientTransformation, up: Compressor, down: Compressor) -> Algorithm:
    r"""EF21 in both directions: workers send what their gradient has moved from its estimate,
    servers what the model has.

    $$ u_t^{(n)} = u_{t-1}^{(n)} + C(g_n(\hat x_t) - u_{t-1}^{(n)}), \qquad x_{t+1} = x_t - \gamma
    \frac1N \sum_n u_t^{(n)} $$
    $$ \hat x_{t+1} = \hat x_t + C'(x_{t+1} - \hat x_t) $$

    With `down=compressors.identity`, $\hat x = x$ up to rounding: EF21 as first published.
    Estimates of gradients start at 0, that of the model at $x_0$.

    Args:
        optimizer: the step of each server on its part; `optax.sgd(gamma)` is the equation. One that
            works element by element (SGD, momentum, Adam) steps as it would on the whole.
        up: C, a contraction.
        down: C', a contraction.

    Raises:
        ValueError: no compressor, or one layer by layer, the other of the whole model; at the
            start, one that states no contraction for a part.

    Source: Richtarik, Sokolov and Fatkhullin, "EF21", 2021; in both directions, Fatkhullin et al.,
    "EF21 with bells and whistles", 2021, and Algorithm 3 of Kimad. Departure: N servers, each of
    one part, instead of one.
    """
    optimizers.require_descent(optimizer)
    communication.need_two("ef21", up, down)

    def init(params, N):
        zeros, served = communication.start_shards("ef21", params, N, up, down)
        last = communication.last_messages(up, zeros), communication.last_messages(down, served)
        model = optimizers.start_each(optimizer, served)
        return State(params, Estimates(zeros, optax.tree.zeros_like(served), model, served, *last))

    def update(state, gradients, round):
        known, u = state.workers, communication.shards(gradients, round.workers, up)
        sent = round.to_servers(up, optax.tree.sub(u, known.gradient), known.up)
        mean = optax.tree.add(known.mean, sent.received)
        x = optimizers.step_local(optimizer, known.model, mean)
        answer = round.from_servers(down, optax.tree.sub(x.params, known.estimate), known.down)
        u, x_hat = optax.tree.add((known.gradient, known.estimate), (sent.decoded, answer.decoded))
        change = communication.unshard(answer.received, state.server, down)
        return State(
            optax.tree.add(state.server, change),
            Estimates(u, mean, x, x_hat, sent.messages, answer.messages),
        )

    def model(state):
        return communication.unshard(workers.gather(state.workers.model.params), state.server, up)

    return Algorithm(
        f"ef21({up.name}, {down.name})",
        init,
        lambda state, round: Query(state.server),
        update,
        model,
    )
