"""SCAFFOLD: local steps corrected by control variates."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, checks, network, workers
from dsgd.extend import Period


class Controlled(NamedTuple):
    """State of a worker.

    Args:
        params: y, its model.
        optimizer: the state of its optimizer.
        control: c^(n), its control variate, which estimates its own gradient.
        total: sum of its gradients since the last averaging, at least in float32.
    """

    params: Any
    optimizer: Any
    control: Any
    total: Any


@method(
    sends="models and control variates every H-th round, by an all-reduce",
    exact="any data",
    paper="Karimireddy et al., 2020, Algorithm 1",
    page="how_to/which_method.md",
    settings={"period": 4},
    candidates={"any problem": [{}]},
)
@checks.arguments
def scaffold(
    optimizer: optax.GradientTransformation,
    period: Period,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""SCAFFOLD, option II: H local steps along corrected gradients, then models and control
    variates are averaged.

    $$ y^{(n)} \leftarrow y^{(n)} - \gamma \big(g_n(y^{(n)}) - c^{(n)} + c\big) \quad H \text{
    times}, \qquad
       c^{(n)} \leftarrow \frac1H \sum_{h=1}^H g_n(y^{(n)}_h), \qquad
       x = \frac1N \sum_n y^{(n)}, \quad c = \frac1N \sum_n c^{(n)} $$

    If $c^{(n)} = f_n'(x)$, the corrections cancel the differences between the workers' gradients,
    and local steps no longer drift apart. A round is one gradient per worker. Every H-th round
    averages two vectors; the other rounds send nothing.

    With clients S that are drawn once per averaging period, this is the paper's method:

    $$ x \leftarrow x + \frac{1}{|S|} \sum_{n \in S} (y^{(n)} - x), \qquad
       c \leftarrow c + \frac1N \sum_{n \in S} (c_+^{(n)} - c^{(n)}), \qquad c^{(n)} \leftarrow
       c_+^{(n)} \text{ in S only} $$

    If a worker of S did not participate in a round of the period, $c^{(n)}$ replaces the missing
    gradient in $c_+^{(n)}$. The same holds for rounds in which a worker computes nothing
    (`Query.work`); it makes no step in them.

    On problems with weights, all means and sums over workers are weighted, as in FedAvg:
    $x = \frac1N \sum_n w_n y^{(n)}$, and sums over S are divided by $\sum_{n \in S} w_n$ instead of
    $|S|$.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation.
        period: H. It may be swept: `dsgd.sweep(lambda period: scaffold(optax.sgd(0.1), period),
            ..., period=[1, 2, 5])`.
        via: communication pattern: all-reduce, or clients of a server, as in `local_sgd`.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1.

    Source: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning",
    2020, Algorithm 1 with a global step of 1. The paper has $c^{(n)} \leftarrow c^{(n)} - c + (x -
    y^{(n)}) / (H \gamma)$, which for `optax.sgd` equals the mean above.
    """
    period = checks.period("scaffold: period", period)

    def start(y: optimizers.Model):
        return Controlled(
            *y, optax.tree.zeros_like(y.params), workers.widen(optax.tree.zeros_like(y.params))
        )

    def update(c, y, gradients, round):
        corrected = jax.tree.map(lambda g, c_n, c: g - c_n + c[None], gradients, y.control, c)
        total = optax.tree.add(y.total, round.if_active(gradients, y.control))
        y = optimizers.local_step(optimizer, y, corrected, round)._replace(total=total)

        def average(c, y):
            new = jax.tree.map(
                lambda total, c: (total / jax.numpy.asarray(period, total.dtype)).astype(c.dtype),
                y.total,
                y.control,
            )
            with round.joint():
                c, control = round.aggregate(new, y.control, c, via)
                x = round.average(y.params, via)
                return c, Controlled(x, y.optimizer, control, optax.tree.zeros_like(y.total))

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
