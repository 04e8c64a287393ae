"""Local SGD: averaging every few rounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.core import Tracer

from algorithms import absence, gossip, optimizers, weights
from dsgd import checks, network, workers
from dsgd.base import Algorithm, Period, Query, State
from dsgd.graphs.topology import Topology
from dsgd.network import told


@checks.arguments
def local_sgd(optimizer: optax.GradientTransformation, period: Period, topology: Topology | None = None) -> Algorithm:
    r"""Local SGD, or periodic averaging: everybody makes H steps of its own, then models are averaged.

    $$ x_{t+1}^{(n)} = \begin{cases} \sum_m W_{nm} \big(x_t^{(m)} - \gamma g_m(x_t^{(m)})\big) & H \mid t + 1 \\
       x_t^{(n)} - \gamma g_n(x_t^{(n)}) & \text{otherwise} \end{cases} $$

    A round is one gradient; nothing is sent in the others. Who computes nothing in a round (`Query.work`) makes no step in it. Who is
    away when models are averaged gets the average when it comes back: with clients that are drawn once for every averaging it is FedAvg.

    On problems with weights the mean over all is $\sum_n w_n x^{(n)} / \sum_n w_n$ over those that take part, as in FedAvg, and local steps
    are as long as without. On a topology W stays as it is, and worker n steps along $w_n g_n$.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation. Momentum and Adam keep their memories locally.
        period: H. With 1 it is model averaging, or decentralized SGD. It may be swept.
        topology: W, doubly stochastic; None: the mean over all, by an all-reduce. The averagings go through a schedule one by one.

    Raises:
        ValueError: a period < 1 or above 2^31 - 1, not a topology, or not a doubly stochastic one.

    Source: Stich, "Local SGD converges fast and communicates little", 2019; on graphs, Koloskova et al., "A unified theory of
    decentralized SGD with changing topology and local updates", 2020.
    """
    if not isinstance(period, Tracer):
        period = checks.positive_int("local_sgd: period", period)
    if topology is not None:
        gossip.need("local_sgd", topology)
    reduce = network.ring_all_reduce if topology is None else network.gossip(topology)

    def init(params, N):
        return State(jnp.int32(0), workers=optimizers.start_local(optimizer, params, N))

    def query(state, round):
        if topology is not None:
            weights.warn_if_cancelled("local_sgd", optimizer, round)
        return Query(state.workers.params, axis=0)

    def average(params, turn):
        if topology is not None:
            return workers.mix(params, topology, turn)
        mean = jax.tree.map(lambda mean, leaf: jnp.broadcast_to(mean, leaf.shape), workers.mean(params), params)
        return workers.if_any(mean, params)

    def update(key, state, gradients, round):
        local = optimizers.if_computed(round, optimizers.step_local(optimizer, state.workers, gradients), state.workers)
        local = local._replace(params=workers.where_present(local.params, state.workers.params))
        now, turn = (round.step + 1) % period == 0, round.step // period
        params = lax.cond(now, lambda params: average(params, turn), lambda params: params, local.params)
        info = told.all_reduced(local.params, round.workers) if topology is None else told.to_neighbours(local.params, topology, turn)
        return State(state.step + 1, workers=local._replace(params=params)), told.only_if(now, info)

    away = absence.takes_average if topology is None else absence.where_symmetric(topology, absence.takes_average)
    return Algorithm(
        init,
        query,
        update,
        optimizers.mean_params,
        network.every(period, reduce),
        f"local_sgd({period}{'' if topology is None else f', {topology.name}'})",
        optimizers.learning_rate(optimizer),
        None if topology is None else topology.n,
        away=away,
        averages_models=topology is None,
    )
