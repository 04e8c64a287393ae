"""DiLoCo with communication that takes a whole period: delayed and eager outer steps."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.outer import Inner, Outer, local_updates, mean_change, scale
from dsgd import Algorithm, Communicator, checks, network, workers
from dsgd.extend import Params, Period, PyTree

_LATER = "all workers use a mean one period after it was sent"


class Eager(NamedTuple):
    """State of a worker.

    Args:
        params: y, its model.
        optimizer: state of its inner optimizer.
        start: x^(n), its model after its last outer step.
        outer: state of its outer optimizer.
        others: the last mean of changes, minus the worker's own part of it.
    """

    params: Params
    optimizer: PyTree
    start: Params
    outer: PyTree
    others: Params


@method(
    sends="changes every H-th round, used one period later, by an all-reduce",
    needs=("all workers",),
    paper="Kale et al., 2025, section 3",
    settings={"period": 4},
    candidates={"language models": [{}]},
)
@checks.arguments
def delayed_diloco(
    optimizer: optax.GradientTransformation,
    period: Period = 30,
    outer: optax.GradientTransformation | None = None,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""DiLoCo with delayed outer steps: a mean of changes is used one period after it was sent, so
    that its communication may overlap with the H gradients in between.

    $$ \Delta_t = \frac1N \sum_n \big(x_t - y_H^{(n)}\big), \qquad
       x_{t+1} = \mathrm{Outer}(x_t, \Delta_{t-1}), \qquad \Delta_{-1} = 0 $$

    All else is as in `diloco`, except that all workers must participate. On the clock of a
    cluster the messages are sent during the next period; at its end the workers wait for them
    (`round.delayed`). The models are equal after each period, and the limit is that of `diloco`.

    Args:
        optimizer: each worker's inner step; its state is kept.
        period: H. It may be swept.
        outer: the outer step; None: Nesterov momentum with the paper's step size,
            `optax.sgd(0.4, momentum=0.9, nesterov=True)`.
        via: as in `diloco`.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1.

    Source: Kale, Douillard and Donchev, "Eager updates for overlapped communication and computation
    in DiLoCo", 2025, section 3.
    """
    period = checks.period("delayed_diloco: period", period)

    def change(x: Outer, y: Inner, round: Communicator, via: network.AllReduce):
        round.require_all(_LATER)
        with round.delayed(period):
            return x.memory, mean_change(x, y, round, via)[0], y.memory

    return local_updates(
        f"delayed_diloco({period})",
        optimizer,
        _outer(outer),
        period,
        via=via,
        change=change,
        shared=optax.tree.zeros_like,
    )


@method(
    sends="changes every H-th round, those of others used one period later, by an all-reduce",
    needs=("all workers",),
    paper="Kale et al., 2025, section 3",
    settings={"period": 4},
)
@checks.arguments
def eager_diloco(
    optimizer: optax.GradientTransformation,
    period: Period = 30,
    outer: optax.GradientTransformation | None = None,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""DiLoCo with eager outer steps: a worker's own change is used at once, the changes of the
    others one period after they were sent.

    $$ \Delta_t^{(n)} = x_t^{(n)} - y_H^{(n)}, \qquad
       \tilde\Delta_t^{(n)} = \bar\Delta_{t-1}
       + \frac1N \big(\Delta_t^{(n)} - \Delta_{t-1}^{(n)}\big), \qquad
       x_{t+1}^{(n)} = \mathrm{Outer}\big(x_t^{(n)}, \tilde\Delta_t^{(n)}\big) $$

    Models and outer states differ between workers. The mean of $\tilde\Delta_t^{(n)}$ over the
    workers is the mean of $\Delta_t^{(n)}$. The worker's own old change is subtracted: otherwise
    each worker would converge to its own optimum. The limit is biased by $O(\gamma H)$, and the
    models differ from each other by $O(\gamma H)$. If the problem has worker weights,
    $w_n / \sum_m w_m$ replaces 1/N. All workers must participate. Seconds are counted as for
    `delayed_diloco`.

    Args:
        optimizer, period, outer, via: as in `delayed_diloco`.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1.

    Source: Kale, Douillard and Donchev, "Eager updates for overlapped communication and computation
    in DiLoCo", 2025, section 3.
    """
    period, outer = checks.period("eager_diloco: period", period), _outer(outer)
    optimizers.require_descent(outer)

    def update(y: Eager, gradients, round: Communicator):
        y = optimizers.local_step(optimizer, y, gradients, round)

        def synchronize(y: Eager):
            round.require_all(_LATER)
            fresh = optax.tree.sub(y.start, y.params)
            own = _share(fresh, round)
            x = optimizers.step_local(
                outer, optimizers.Model(y.start, y.outer), optax.tree.add(y.others, own)
            )
            with round.delayed(period):
                mean = round.weighted_mean(fresh, via)
            others = jax.tree.map(lambda mean, own: mean[None] - own, mean, own)
            return Eager(x.params, y.optimizer, x.params, x.optimizer, others)

        return round.every(period, synchronize, y)

    def start(y: optimizers.Model) -> Eager:
        state = optimizers.init_each(outer, y.params).optimizer
        return Eager(*y, y.params, state, optax.tree.zeros_like(y.params))

    return methods.local_models(
        f"eager_diloco({period})", optimizer, update, start=start, common_start=True
    )


def _outer(outer: optax.GradientTransformation | None) -> optax.GradientTransformation:
    return optax.sgd(0.4, momentum=0.9, nesterov=True) if outer is None else outer


def _share(changes: Params, round: Communicator) -> Params:
    """Returns each worker's part of the mean of the changes, leaves `[n, ...]`."""
    N, weights = round.workers, round.problem and round.problem.weights
    if weights is None:
        return jax.tree.map(lambda leaf: leaf / N, changes)
    shares = workers.local_block(jnp.asarray(weights), N) / sum(weights)
    return jax.vmap(scale)(shares, changes)
