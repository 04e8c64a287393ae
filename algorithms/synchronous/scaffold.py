"""SCAFFOLD: local steps corrected by control variates."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

from algorithms import methods, optimizers
from dsgd import Algorithm, checks, workers
from dsgd.base import Period


class Controlled(NamedTuple):
    """What a worker has.

    Args:
        params: y, its model.
        optimizer: its optimiser's state.
        control: c^(n), what it expects of its own gradient.
        total: the sum of its gradients since the last averaging, in float32 at least.
    """

    params: Any
    optimizer: Any
    control: Any
    total: Any


@checks.arguments
def scaffold(optimizer: optax.GradientTransformation, period: Period) -> Algorithm:
    r"""SCAFFOLD, option II: H local steps along corrected gradients, then models and control
    variates are averaged.

    $$ y^{(n)} \leftarrow y^{(n)} - \gamma \big(g_n(y^{(n)}) - c^{(n)} + c\big) \quad H \text{
    times}, \qquad
       c^{(n)} \leftarrow \frac1H \sum_{h=1}^H g_n(y^{(n)}_h), \qquad
       x = \frac1N \sum_n y^{(n)}, \quad c = \frac1N \sum_n c^{(n)} $$

    With $c^{(n)} = f_n'(x)$ the corrections cancel what workers differ in: local steps no longer
    drift apart. A round is one gradient; two vectors are all-reduced in the last of every H,
    nothing in the others.

    With clients S that are drawn once for every averaging it is the paper's:

    $$ x \leftarrow x + \frac{1}{|S|} \sum_{n \in S} (y^{(n)} - x), \qquad
       c \leftarrow c + \frac1N \sum_{n \in S} (c_+^{(n)} - c^{(n)}), \qquad c^{(n)} \leftarrow
       c_+^{(n)} \text{ in S only} $$

    For the gradients of a round that a worker of S has missed, $c^{(n)}$ stands in $c_+^{(n)}$; so
    it does of rounds in which a worker computes nothing (`Query.work`), and makes no step.

    On problems with weights all means and sums over workers have them, as in FedAvg:
    $x = \frac1N \sum_n w_n y^{(n)}$, and those over S are divided by $\sum_{n \in S} w_n$ instead
    of $|S|$.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation.
        period: H. It may be swept:
            `dsgd.sweep(lambda period: scaffold(optax.sgd(0.1), period), ..., period=[1, 2, 5])`.

    Raises:
        ValueError: a period < 1 or above 2^31 - 1.

    Source: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning",
    2020, Algorithm 1 with a global step of 1. There
    $c^{(n)} \leftarrow c^{(n)} - c + (x - y^{(n)}) / (H \gamma)$, which for `optax.sgd` is the mean
    above.
    """
    period = checks.period("scaffold: period", period)

    def start(y: optimizers.Model):
        return Controlled(
            *y, optax.tree.zeros_like(y.params), workers.widened(optax.tree.zeros_like(y.params))
        )

    def update(c, y, gradients, round):
        corrected = jax.tree.map(lambda g, own, c: g - own + c[None], gradients, y.control, c)
        total = optax.tree.add(y.total, round.if_active(gradients, y.control))
        y = optimizers.local_step(optimizer, y, corrected, round)._replace(total=total)

        def average(c, y):
            new = jax.tree.map(
                lambda total, c: (total / jax.numpy.asarray(period, total.dtype)).astype(c.dtype),
                y.total,
                y.control,
            )
            with round.joint():
                c, control = round.aggregate(new, y.control)
                return c, Controlled(
                    round.average(y.params), y.optimizer, control, optax.tree.zeros_like(y.total)
                )

        return round.every(period, average, c, y)

    def absent(before, after):
        return before._replace(params=after.params, total=after.total)

    return methods.with_server(
        f"scaffold({period})",
        optimizer,
        update,
        server=optax.tree.zeros_like,
        start=start,
        absent=absent,
    )
