"""SGD with lossy communication compression: the survey's section 3.1.2."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from algorithms import optimizers
from dsgd import counts, network, workers
from dsgd.base import Algorithm, Compressor, Gradients, Info, Params, PyTree, Query, State


def compressed_sgd(optimizer: optax.GradientTransformation, compressor: Compressor) -> Algorithm:
    r"""CSGD through servers: worker n is the server of the n-th part of the vector, and both directions are compressed.

    $$ x_{t+1} = x_t - \gamma\, Q\Big(\frac1N \sum_n Q(g_n(x_t))\Big) \tag{3.4, 3.6} $$

    Args:
        optimizer: the step; `optax.sgd(gamma)` is the equation.
        compressor: Q, unbiased.

    Raises:
        ValueError: a biased compressor, for which CSGD need not converge.

    Source: Liu and Zhang, section 3.1.2. As there, each part is compressed on its own; the parts are of the whole model as one vector.
    """
    if not compressor.unbiased:
        raise ValueError(f"compressed_sgd with {compressor.name}, which is biased: need an unbiased compressor")

    def init(params, N):
        return State(jnp.int32(0), server=optimizers.start(optimizer, params))

    def query(state, round):
        return Query(state.server.params)

    def update(key, state, gradients, round):
        mean, info = _through_servers(compressor, key, gradients, round.workers)
        return State(state.step + 1, server=optimizers.step(optimizer, state.server, mean)), info

    return Algorithm(
        init,
        query,
        update,
        optimizers.server_params,
        network.multi_server,
        f"compressed_sgd({compressor.name})",
        optimizers.learning_rate(optimizer),
    )


def _through_servers(compressor: Compressor, key: jax.Array, gradients: Gradients, N: int) -> tuple[Params, Info]:
    r"""$Q(\frac1N \sum_n Q(g_n))$, the same on every device; only packed messages cross."""
    d, unravel, parts = _parts(gradients, N)  # [n, N, part]
    part = parts.shape[-1]
    up_key, down_key = jax.random.split(key)
    compress, decompress = compressor.compress, lambda message: compressor.decompress(message, part)
    up_keys = jax.vmap(lambda own: jax.random.split(own, N))(workers.keys(up_key, N))
    up = jax.vmap(jax.vmap(compress))(up_keys, parts)
    received = jax.vmap(jax.vmap(decompress))(workers.all_to_all(up))
    down = jax.vmap(compress)(workers.keys(down_key, N), jnp.mean(received, axis=1))
    mean = jax.vmap(decompress)(workers.gather(down))  # [N, part]
    return unravel(mean.ravel()[:d]), _sent(compressor, up, N)


def _parts(gradients: Gradients, N: int):
    """The gradients as vectors cut into N equal parts, `[n, N, part]`; the last is padded with the last element, which widens no range."""
    flat = jax.vmap(lambda tree: ravel_pytree(tree)[0])(gradients)
    unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], gradients))[1]
    n, d = flat.shape
    padded = jnp.pad(flat, ((0, 0), (0, -d % N)), mode="edge")
    return d, unravel, padded.reshape(n, N, -1)


def _sent(compressor: Compressor, messages: PyTree, N: int) -> Info:
    """What a worker sends: N - 1 parts to their servers, and as a server its own part to N - 1 workers. It receives as much."""
    n = jax.tree.leaves(messages)[0].shape[0]
    part = compressor.bits(jax.tree.map(lambda leaf: leaf[0, 0], messages))
    bits = counts.of(2 * (N - 1) * part, n)
    return Info(bits, bits)
