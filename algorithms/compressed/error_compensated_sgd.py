"""Error-compensated SGD (DoubleSqueeze): the survey's section 3.3."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import absence, exchanges, optimizers
from dsgd import checks, network, workers
from dsgd.base import Algorithm, Compressor, Query, State
from dsgd.network import told


class Memory(NamedTuple):
    """What compression has left out so far.

    Args:
        worker: delta^(n) of each worker, leaves `[n, M, part]`.
        server: delta of the part that one serves, leaves `[n, part]`.
        up, down: last messages, of compressors that start warm.
    """

    worker: exchanges.Parts
    server: exchanges.Parts
    up: Any
    down: Any


@checks.arguments
def error_compensated_sgd(
    optimizer: optax.GradientTransformation, up: Compressor, down: Compressor, *, allow_expanding: bool = False
) -> Algorithm:
    r"""EC-SGD: workers and servers add to what they send what compression has left out of it before.

    $$ v_t^{(n)} = g_n(x_t) + \delta_{t-1}^{(n)}, \qquad \delta_t^{(n)} = v_t^{(n)} - Q(v_t^{(n)}) \tag{3.10, 3.11} $$
    $$ v_t = \frac1N \sum_n Q(v_t^{(n)}) + \delta_{t-1}, \qquad \delta_t = v_t - Q(v_t) \tag{3.12, 3.13} $$
    $$ x_{t+1} = x_t - \gamma\, Q(v_t) \tag{3.14} $$

    Nothing is lost: $\tilde x_t = x_t - \gamma (\delta_{t-1} + \frac1N \sum_n \delta_{t-1}^{(n)})$ follows SGD, whatever Q (Lemma 3.4.1).

    Args:
        optimizer: the step; `optax.sgd(gamma)` is the equation.
        up: Q of the workers, biased or not, a contraction, so that what it leaves out cannot grow; `compressors.contraction` makes one
            of any unbiased one.
        down: Q of the servers, likewise.
        allow_expanding: take compressors that state no contraction, with which the errors may grow without bound: Lemma 3.4.1 holds, but
            $\tilde x$ may leave $x$ behind.

    Raises:
        ValueError: no compressor, or one layer by layer, the other of the whole model; at the start, one that states no contraction for
            a part, without `allow_expanding`.

    Source: Liu and Zhang, section 3.3; Tang et al., "DoubleSqueeze", 2019. Departure: N servers, each of one part, as in section 3.1.2,
    where the equations have one.
    """
    exchanges.need_two("error_compensated_sgd", up, down)

    def init(params, N):
        nothing = exchanges.cut(workers.stack(jax.tree.map(jnp.zeros_like, params), N), N, up)
        served = jax.tree.map(lambda leaf: leaf[:, 0], nothing)
        for compressor in () if allow_expanding else (up, down):
            exchanges.need_contraction("error_compensated_sgd", compressor, served, insist="allow_expanding=True")
        memory = Memory(nothing, served, exchanges.start(up, nothing), exchanges.start(down, served))
        return State(jnp.int32(0), server=optimizers.start(optimizer, params), workers=memory)

    def query(state, round):
        return Query(state.server.params)

    def update(key, state, gradients, round):
        N, memory = round.workers, state.workers
        up_key, down_key = jax.random.split(key)
        v_worker = jax.tree.map(jnp.add, exchanges.cut(gradients, N, up), memory.worker)  # (3.10)
        sent = exchanges.to_servers(up, up_key, v_worker, N, memory.up)
        v_server = jax.tree.map(jnp.add, sent.received, memory.server)  # (3.12)
        answer = exchanges.from_servers(down, down_key, v_server, N, memory.down)
        memory = Memory(
            jax.tree.map(jnp.subtract, v_worker, sent.seen),  # (3.11)
            jax.tree.map(jnp.subtract, v_server, answer.seen),  # (3.13)
            sent.messages,
            answer.messages,
        )
        step = exchanges.join(answer.received, state.server.params, down)
        server = optimizers.step(optimizer, state.server, step)  # (3.14)
        return State(state.step + 1, server, memory), told.both(sent.info, answer.info)

    return Algorithm(
        init,
        query,
        update,
        optimizers.server_params,
        network.multi_server,
        f"error_compensated_sgd({up.name}, {down.name}{', allow_expanding' * allow_expanding})",
        optimizers.learning_rate(optimizer),
        away=absence.SERVES,
    )
