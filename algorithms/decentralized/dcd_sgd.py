"""DCD-SGD and ECD-SGD: decentralized SGD that sends compressed differences or extrapolations of
models.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.copies import Estimates
from dsgd import Algorithm, Compressor, Topology, checks, compressors


class Known(NamedTuple):
    """Local models that the neighbours know, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        laplacian: the weighted sum of the differences between the neighbours' models and x.
        last: the last messages, from which a warm-started compressor starts.
    """

    params: Any
    optimizer: Any
    laplacian: Any
    last: Any


@method(
    sends="compressed changes of models, to neighbours",
    needs=("symmetric W", "one W", "unbiased compressor", "all workers"),
    paper="DCD-PSGD: Tang et al., 2018",
    page="how_to/compression.md",
    graph=topologies.ring,
    settings={"compressor": compressors.whole_model(compressors.random_quantization(8))},
)
@checks.arguments
def dcd_sgd(
    optimizer: optax.GradientTransformation, topology: Topology, compressor: Compressor
) -> Algorithm:
    r"""DCD-SGD (difference compression): workers send the compressed change of their model, and
    make the same change as their neighbours, so that the neighbours know the model.

    $$ X_{t+1} = X_t + Q(X_t (W - I) - \gamma G(X_t)) $$

    Each worker sends Q to its neighbours, and keeps X (W - I). All workers must participate. With
    `compressors.identity` the method is decentralized gradient descent,
    $X_{t+1} = X_t W - \gamma G(X_t)$. With exact gradients the compression error vanishes at that
    method's fixed point, which differs from the optimum of the mean objective by the order of
    $\gamma$ if the workers' objectives differ.

    There is no consensus step by which errors could be damped, so that the method diverges if the
    compression is coarse. Gossip alone ($\gamma = 0$) contracts the mean square of the disagreement
    by $\rho^2 + \omega \mu^2$, where $\mu$ is the largest magnitude of an eigenvalue of W - I, for
    an unbiased compressor with independent errors.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation.
        topology: W, symmetric, the same in all rounds.
        compressor: Q, unbiased, with $\omega \mu^2 < 1 - \rho^2$.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule, or the compressor is biased.

    Source: Tang, Gan, Zhang, Zhang and Liu, "Communication compression for decentralized training",
    2018, DCD-PSGD.
    """
    gossip.require_topology("dcd_sgd", topology, symmetric=True, fixed=True)
    topology.require_one_exchange("dcd_sgd")
    gossip.require_unbiased("dcd_sgd", compressor)

    def start(x: optimizers.Model):
        last = gossip.start_compressed("dcd_sgd", compressor, x.params, unbiased=True)
        return Known(*x, optax.tree.zeros_like(x.params), last)

    def update(state, gradients, round):
        round.require_all(gossip.SUMMED)
        change, memory = optimizers.update_local(optimizer, state, gradients)
        difference = optax.tree.add(state.laplacian, change)
        sent = round.to_neighbours(compressor, difference, topology, state.last)
        x, laplacian = optax.tree.add(
            (state.params, state.laplacian), (sent.decoded, sent.received)
        )
        return Known(x, memory, laplacian, sent.messages)

    return methods.local_models(
        f"dcd_sgd({topology.name}, {compressor.name})",
        optimizer,
        update,
        start=start,
        common_start=True,
        topology=topology,
    )


@method(
    sends="compressed extrapolations of models, to neighbours",
    needs=("symmetric W", "one W", "unbiased compressor", "all workers"),
    paper="ECD-PSGD: Tang et al., 2018",
    page="how_to/compression.md",
    graph=topologies.ring,
    settings={"compressor": compressors.whole_model(compressors.random_quantization(8))},
)
@checks.arguments
def ecd_sgd(
    optimizer: optax.GradientTransformation, topology: Topology, compressor: Compressor
) -> Algorithm:
    r"""ECD-SGD (extrapolation compression): workers send compressed extrapolations of their models,
    from which the neighbours average an estimate.

    $$ X_{t+1} = \hat X_t W - \gamma G(X_t), \qquad Z_t = X_t + \frac t2 (X_{t+1} - X_t), \qquad
    \hat X_{t+1} = \hat X_t + \frac2t (Q(Z_t) - \hat X_t), \qquad t = 1, 2, \dots $$

    Each worker sends Q(Z) to its neighbours, and keeps its $\hat X$ and $\hat X (W - I)$. All
    workers must participate. With `compressors.identity` the method is decentralized gradient
    descent, $X_{t+1} = X_t W - \gamma G(X_t)$.

    The estimates start at the common initial model, which all workers have. If the error of Q has
    bounded variance, the variance of $\hat X - X$ decreases as 1/t. The compressors of this package
    have errors in proportion to Z, which contains t times the last change of the model, so that
    they must be precise.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation.
        topology: W, symmetric, the same in all rounds.
        compressor: Q, unbiased.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule, or the compressor is biased.

    Source: Tang, Gan, Zhang, Zhang and Liu, "Communication compression for decentralized training",
    2018, ECD-PSGD.
    """
    gossip.require_topology("ecd_sgd", topology, symmetric=True, fixed=True)
    topology.require_one_exchange("ecd_sgd")
    gossip.require_unbiased("ecd_sgd", compressor)

    def start(x: optimizers.Model):
        last = gossip.start_compressed("ecd_sgd", compressor, x.params, unbiased=True)
        return Estimates(*x, x.params, optax.tree.zeros_like(x.params), last)

    def update(state, gradients, round):
        round.require_all(gossip.SUMMED)
        change, memory = optimizers.update_local(optimizer, state, gradients)
        x = jax.tree.map(lambda *terms: sum(terms), state.x_hat, state.laplacian, change)
        # In float16 t overflows, and in bfloat16 it is not exact.
        half = (round.step + 1).astype(jnp.result_type(float)) / 2  # t / 2
        z = jax.tree.map(
            lambda old, new: (old + half * (new - old)).astype(old.dtype), state.params, x
        )
        sent = round.to_neighbours(compressor, z, topology, state.last)
        x_hat, laplacian = jax.tree.map(
            lambda old, new: (old + (new - old) / half).astype(old.dtype),
            (state.x_hat, state.laplacian),
            (sent.decoded, sent.received),
        )
        return Estimates(x, memory, x_hat, laplacian, sent.messages)

    return methods.local_models(
        f"ecd_sgd({topology.name}, {compressor.name})",
        optimizer,
        update,
        start=start,
        common_start=True,
        topology=topology,
    )
