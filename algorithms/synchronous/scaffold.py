"""SCAFFOLD: local steps corrected by control variates."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.core import Tracer

from algorithms import optimizers
from dsgd import checks, network, workers
from dsgd.base import Algorithm, Params, Period, PyTree, Query, State
from dsgd.network import told


class Controlled(NamedTuple):
    """What a worker has.

    Args:
        params: y, its model.
        optimizer: its optimiser's state.
        control: c^(n), what it expects of its own gradient.
        total: the sum of its gradients since the last averaging, in float32 at least.
    """

    params: Params
    optimizer: PyTree
    control: Params
    total: Params


@checks.arguments
def scaffold(optimizer: optax.GradientTransformation, period: Period) -> Algorithm:
    r"""SCAFFOLD, option II: H local steps along corrected gradients, then models and control variates are averaged.

    $$ y^{(n)} \leftarrow y^{(n)} - \gamma \big(g_n(y^{(n)}) - c^{(n)} + c\big) \quad H \text{ times}, \qquad
       c^{(n)} \leftarrow \frac1H \sum_{h=1}^H g_n(y^{(n)}_h), \qquad
       x = \frac1N \sum_n y^{(n)}, \quad c = \frac1N \sum_n c^{(n)} $$

    With $c^{(n)} = f_n'(x)$ the corrections cancel what workers differ in: local steps no longer drift apart. A round is one gradient;
    two vectors are all-reduced in the last of every H, nothing in the others.

    With clients S that are drawn once for every averaging it is the paper's:

    $$ x \leftarrow x + \frac{1}{|S|} \sum_{n \in S} (y^{(n)} - x), \qquad
       c \leftarrow c + \frac1N \sum_{n \in S} (c_+^{(n)} - c^{(n)}), \qquad c^{(n)} \leftarrow c_+^{(n)} \text{ in S only} $$

    For the gradients of a round that a worker of S has missed, $c^{(n)}$ stands in $c_+^{(n)}$; so it does of rounds in which a worker
    computes nothing (`Query.work`), and makes no step.

    On problems with weights all means and sums over workers have them, as in FedAvg: $x = \frac1N \sum_n w_n y^{(n)}$, and those over S
    are divided by $\sum_{n \in S} w_n$ instead of $|S|$.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation.
        period: H. It may be swept: `dsgd.sweep(lambda period: scaffold(optax.sgd(0.1), period), ..., period=[1, 2, 5])`.

    Raises:
        ValueError: a period < 1 or above 2^31 - 1.

    Source: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", 2020, Algorithm 1 with
    a global step of 1. There $c^{(n)} \leftarrow c^{(n)} - c + (x - y^{(n)}) / (H \gamma)$, which for `optax.sgd` is the mean above.
    """
    if not isinstance(period, Tracer):
        period = checks.positive_int("scaffold: period", period)
    pattern = network.every(period, network.ring_all_reduce)

    def init(params, N):
        models = optimizers.start_local(optimizer, params, N)
        zeros = jax.tree.map(jnp.zeros_like, models.params)
        return State(jnp.int32(0), jax.tree.map(jnp.zeros_like, params), Controlled(*models, zeros, workers.widened(zeros)))

    def query(state, round):
        return Query(state.workers.params, axis=0)

    def average(c, known, N):
        """Everybody has x; what the steps since the last time have shown is the new control."""
        control = jax.tree.map(lambda total: total / jnp.asarray(period, total.dtype), known.total)
        control = workers.narrowed(control, known.control)
        x, c_mean = workers.mean((known.params, control))
        if workers.attendance():
            control = workers.where_counted(control, known.control)
            change = workers.weighted_sum(jax.tree.map(jnp.subtract, *workers.widened((control, known.control))))
            c_mean = workers.narrowed(jax.tree.map(lambda c, change: c + change / N, c, change), c)
        models = jax.tree.map(lambda mean, leaf: jnp.broadcast_to(mean, leaf.shape), x, known.params)
        models = workers.if_any(models, known.params)
        return c_mean, Controlled(models, known.optimizer, control, jax.tree.map(jnp.zeros_like, known.total))

    def update(key, state, gradients, round):
        known = state.workers
        corrected = jax.tree.map(lambda g, own, c: g - own + c[None], gradients, known.control, state.server)
        before = optimizers.Model(known.params, known.optimizer)
        stepped = optimizers.step_local(optimizer, before, corrected), gradients
        (params, memory), seen = optimizers.if_computed(round, stepped, (before, known.control))
        params, seen = workers.where_present((params, seen), (known.params, known.control))
        known = Controlled(params, memory, known.control, jax.tree.map(jnp.add, known.total, seen))
        now = (round.step + 1) % period == 0
        c, known = lax.cond(now, lambda known: average(state.server, known, round.workers), lambda known: (state.server, known), known)
        return State(state.step + 1, c, known), told.only_if(now, told.all_reduced((params, known.control), round.workers))

    def away(before, after, round):
        return before._replace(params=after.params, total=after.total)

    rate = optimizers.learning_rate(optimizer)
    return Algorithm(init, query, update, optimizers.mean_params, pattern, f"scaffold({period})", rate, away=away, averages_models=True)
