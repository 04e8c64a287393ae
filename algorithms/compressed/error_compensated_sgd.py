"""Error-compensated SGD (DoubleSqueeze): the survey's section 3.3."""

from __future__ import annotations

from typing import Any, NamedTuple

import optax

from algorithms import optimizers
from dsgd import Algorithm, Compressor, Query, State, checks, communication


class Memory(NamedTuple):
    """Error memories: what compression has left out so far.

    Args:
        worker: delta^(n) of each worker, leaves `[n, M, part]`.
        server: delta of the server's shard, leaves `[n, part]`.
        up, down: the last messages, from which warm-started compressors start.
    """

    worker: Any
    server: Any
    up: Any
    down: Any


@checks.arguments
def error_compensated_sgd(
    optimizer: optax.GradientTransformation,
    up: Compressor,
    down: Compressor,
    *,
    allow_expanding: bool = False,
) -> Algorithm:
    r"""Error-compensated SGD (EC-SGD): workers and servers add the error of earlier compressions to
    the next vector before they compress it.

    $$ v_t^{(n)} = g_n(x_t) + \delta_{t-1}^{(n)}, \qquad \delta_t^{(n)} = v_t^{(n)} - Q(v_t^{(n)})
    \tag{3.10, 3.11} $$
    $$ v_t = \frac1N \sum_n Q(v_t^{(n)}) + \delta_{t-1}, \qquad \delta_t = v_t - Q(v_t) \tag{3.12,
    3.13} $$
    $$ x_{t+1} = x_t - \gamma\, Q(v_t) \tag{3.14} $$

    No part of a gradient is lost:
    $\tilde x_t = x_t - \gamma (\delta_{t-1} + \frac1N \sum_n \delta_{t-1}^{(n)})$ follows SGD with
    the gradients at $x_t$, for any Q (Lemma 3.4.1).

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.
        up: Q of the workers. It may be biased, but must be a contraction, so that the error memory
            stays bounded; `compressors.contraction` turns any unbiased compressor into one.
        down: Q of the servers, with the same requirements.
        allow_expanding: whether compressors that declare no contraction are accepted. With them the
            error memories may grow without bound: Lemma 3.4.1 holds, but the distance between
            $\tilde x$ and $x$ may grow.

    Raises:
        ValueError: if only one of the compressors works layer by layer. At the start of a run: if a
            compressor declares no contraction for a shard and `allow_expanding` is not set.

    Source: Liu and Zhang, section 3.3; Tang et al., "DoubleSqueeze", 2019. Departure: N servers,
    each with one shard, as in section 3.1.2; the equations have one server.
    """
    optimizers.require_descent(optimizer)
    communication.require_two("error_compensated_sgd", up, down)

    def init(params, N):
        insist = None if allow_expanding else "allow_expanding=True"
        zeros, served = communication.start_shards(
            "error_compensated_sgd", optax.tree.zeros_like(params), N, up, down, insist
        )
        up_last, down_last = (
            communication.last_messages(up, zeros),
            communication.last_messages(down, served),
        )
        return State(optimizers.init(optimizer, params), Memory(zeros, served, up_last, down_last))

    def update(state, gradients, round):
        memory = state.workers
        # (3.10)
        v = optax.tree.add(communication.shards(gradients, round.workers, up), memory.worker)
        sent = round.to_servers(up, v, memory.up)
        v_server = optax.tree.add(sent.received, memory.server)  # (3.12)
        answer = round.from_servers(down, v_server, memory.down)
        # (3.11, 3.13)
        error, server_error = optax.tree.sub((v, v_server), (sent.decoded, answer.decoded))
        step = communication.unshard(answer.received, state.server.params, down)
        # (3.14)
        return State(
            optimizers.step(optimizer, state.server, step),
            Memory(error, server_error, sent.messages, answer.messages),
        )

    name = f"error_compensated_sgd({up.name}, {down.name}{', allow_expanding' * allow_expanding})"
    return Algorithm(
        name,
        init,
        lambda state, round: Query(state.server.params),
        update,
        lambda state: state.server.params,
    )
