"""SGD with lossy communication compression: the survey's section 3.1.2."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from algorithms import absence, exchanges, optimizers
from dsgd import checks, network
from dsgd.base import Algorithm, Compressor, Info, Query, State
from dsgd.network import told

PATTERNS = {"server": network.multi_server, "ring": network.ring_all_reduce}


@checks.arguments
def compressed_sgd(
    optimizer: optax.GradientTransformation,
    compressor: Compressor,
    via: Literal["server", "ring"] = "server",
    allow_biased: bool = False,
) -> Algorithm:
    r"""CSGD: all that is sent is compressed, through N servers, each of one part of the vector, or around a ring.

    $$ x_{t+1} = x_t - \gamma\, Q\Big(\frac1N \sum_n Q(g_n(x_t))\Big) \tag{3.4, 3.6} $$
    $$ x_{t+1} = x_t - \gamma\, \frac1N Q(\cdots Q(Q(g_1(x_t)) + g_2(x_t)) + \cdots + g_N(x_t)) \tag{3.5, 3.6} $$

    Args:
        optimizer: the step; `optax.sgd(gamma)` is the equation.
        compressor: Q, unbiased. It works on parts of d/N elements: many workers and few elements, or small leaves (see
            `compressors.whole_model`), send little but headers. The last parts are padded, which is sent and told; an all-reduce pads
            nothing, so that `minibatch_sgd` tells fewer bits than this with `compressors.identity` where N does not divide d.
        via: "server" (3.4) or "ring" (3.5).
        allow_biased: take a biased compressor, with which CSGD need not converge.

    Raises:
        ValueError: no compressor, another `via`, or a biased compressor without `allow_biased`.

    Source: Liu and Zhang, section 3.1.2. Departure: (3.5) is printed without 1/N. Every part is compressed on its own.
    """
    if via not in PATTERNS:
        raise ValueError(f"compressed_sgd via {via!r}: need one of {', '.join(PATTERNS)}")
    if not compressor.unbiased and not allow_biased:
        raise ValueError(
            f"compressed_sgd with {compressor.name}, which is biased: need an unbiased compressor, "
            "error_compensated_sgd or ef21, or allow_biased=True"
        )

    def init(params, N):
        return State(jnp.int32(0), server=optimizers.start(optimizer, params))

    def query(state, round):
        return Query(state.server.params)

    def update(key, state, gradients, round):
        parts = exchanges.cut(gradients, round.workers, compressor)
        exchange = _through_servers if via == "server" else exchanges.around_ring
        mean, info = exchange(compressor, key, parts, round.workers)
        step = exchanges.join(mean, state.server.params, compressor)
        return State(state.step + 1, server=optimizers.step(optimizer, state.server, step)), info

    said = ", ".join([compressor.name, *[via] * (via != "server"), *["allow_biased"] * (not compressor.unbiased)])
    rate = optimizers.learning_rate(optimizer)
    away = absence.SERVES if via == "server" else "each worker adds its own to what the one before it sends on"
    return Algorithm(init, query, update, optimizers.server_params, PATTERNS[via], f"compressed_sgd({said})", rate, away=away)


def _through_servers(compressor: Compressor, key: jax.Array, parts: exchanges.Parts, N: int) -> tuple[exchanges.Parts, Info]:
    r"""$Q(\frac1N \sum_n Q(g_n))$."""
    up_key, down_key = jax.random.split(key)
    up = exchanges.to_servers(compressor, up_key, parts, N)
    down = exchanges.from_servers(compressor, down_key, up.received, N)
    return down.received, told.both(up.info, down.info)
