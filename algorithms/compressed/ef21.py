"""EF21: compresses the changes of gradients and model, in both directions."""

from __future__ import annotations

from typing import Any, NamedTuple

import optax

from algorithms import optimizers
from dsgd import Algorithm, Compressor, Query, State, checks, communication, workers


class Estimates(NamedTuple):
    """State of workers and servers. The estimate of the model, which all of them have, is
    `State.server`.

    Args:
        gradient: u^(n), the servers' estimate of each worker's gradient, leaves `[n, M, part]`.
        mean: the mean of the workers' u^(n), restricted to the server's shard, leaves `[n, part]`.
        model: the server's shard of x and its optimizer's state, leaves `[n, part]`.
        estimate: the workers' estimate of the server's shard of x, with its padding, leaves
            `[n, part]`.
        up, down: the last messages, from which warm-started compressors start.
    """

    gradient: Any
    mean: Any
    model: optimizers.Model
    estimate: Any
    up: Any
    down: Any


@checks.arguments
def ef21(optimizer: optax.GradientTransformation, up: Compressor, down: Compressor) -> Algorithm:
    r"""EF21 in both directions: workers send the compressed difference between their gradient and
    its estimate, servers that between the model and its estimate.

    $$ u_t^{(n)} = u_{t-1}^{(n)} + C(g_n(\hat x_t) - u_{t-1}^{(n)}), \qquad x_{t+1} = x_t - \gamma
    \frac1N \sum_n u_t^{(n)} $$
    $$ \hat x_{t+1} = \hat x_t + C'(x_{t+1} - \hat x_t) $$

    With `down=compressors.identity`, $\hat x = x$ up to rounding; this is EF21 as first published.
    The estimates of the gradients start at 0, that of the model at $x_0$.

    Args:
        optimizer: the step of each server on its shard; `optax.sgd(gamma)` gives the equation. An
            elementwise optimizer (SGD, momentum, Adam) makes the same step as on the whole vector.
        up: C, a contraction.
        down: C', a contraction.

    Raises:
        ValueError: if only one of the compressors works layer by layer. At the start of a run: if a
            compressor declares no contraction for a shard.

    Source: Richtarik, Sokolov and Fatkhullin, "EF21", 2021; in both directions, Fatkhullin et al.,
    "EF21 with bells and whistles", 2021, and Algorithm 3 of Kimad. Departure: N servers, each with
    one shard, instead of one server.
    """
    optimizers.require_descent(optimizer)
    communication.require_two("ef21", up, down)

    def init(params, N):
        zeros, served = communication.start_shards("ef21", params, N, up, down)
        last = communication.last_messages(up, zeros), communication.last_messages(down, served)
        model = optimizers.init_each(optimizer, served)
        return State(params, Estimates(zeros, optax.tree.zeros_like(served), model, served, *last))

    def update(state, gradients, round):
        estimates, u = state.workers, communication.shards(gradients, round.workers, up)
        sent = round.to_servers(up, optax.tree.sub(u, estimates.gradient), estimates.up)
        mean = optax.tree.add(estimates.mean, sent.received)
        x = optimizers.step_local(optimizer, estimates.model, mean)
        answer = round.from_servers(
            down, optax.tree.sub(x.params, estimates.estimate), estimates.down
        )
        u, x_hat = optax.tree.add(
            (estimates.gradient, estimates.estimate), (sent.decoded, answer.decoded)
        )
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
