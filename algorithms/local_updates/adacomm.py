"""AdaComm: local SGD that communicates more often as the loss decreases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from algorithms.facts import method
from algorithms.mechanisms.outer import Inner, Outer, local_updates, outer_gradient
from dsgd import Algorithm, Communicator, Query, Round, State, causes, checks, network, workers
from dsgd.extend import Gradients, Params, Period, Real, loss_type


@method(
    sends="models and losses, after periods that decrease with the loss, by an all-reduce",
    paper="AdaComm: Wang and Joshi, 2019",
    settings={"period": 4, "interval": 4, "minimum": -10.0},
)
@checks.arguments
def adacomm(
    optimizer: optax.GradientTransformation,
    period: Period,
    interval: Period,
    *,
    minimum: Real = 0.0,
    schedule: Callable[[Any], Any] | None = None,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""AdaComm: local SGD with a period that decreases with the square root of the loss.

    $$ H \leftarrow \begin{cases} \hat H & \text{if } \hat H < H \\ \lceil H / 2 \rceil &
       \text{otherwise} \end{cases}, \qquad
       \hat H = \left\lceil \sqrt{\frac{\gamma_0}{\gamma_t}
       \frac{F_t - F_{\inf}}{F_0 - F_{\inf}}}\, H_0 \right\rceil $$

    Between two averages of the models, workers make H local steps. F estimates the training loss:
    it is the mean over workers of the losses of their first batches after an average, when all
    models are equal. Each worker sends its loss with its model. H is decided at the first average
    that is at least `interval` rounds after the last decision, or the start. The history contains
    `period`, the current H.

    The models of workers that participate in an average are averaged, and all workers continue from
    it; if no message arrives, from the last average, and the next round averages. A worker that
    does not compute a loss in a period sends its last one. H decreases with each decision until it
    is 1; the limit is then that of mini-batch SGD.

    Args:
        optimizer: each worker's step.
        period: $H_0$, in rounds. It may be swept.
        interval: the least number of rounds between two decisions. The paper decides every
            $T_0$ seconds instead. It may be swept.
        minimum: $F_{\inf}$, a lower bound of the loss below the loss at the start. The losses of
            batches below it count as equal to it.
        schedule: the step size $\gamma_t$ as a function of the round, if the optimizer's step size
            changes; None: it is constant.
        via: communication pattern of the averages.

    Raises:
        ValueError: if the period or the interval is less than 1 or more than 2^31 - 1, the minimum
            is not finite, or schedule(0) is not positive. During a run: if the loss at the start is
            not above `minimum`, or the schedule is negative.

    Source: Wang and Joshi, "Adaptive communication strategies to achieve the best error-runtime
    trade-off in local-update SGD", 2019 (AdaComm).
    """
    period = checks.period("adacomm: period", period)
    interval = checks.period("adacomm: interval", interval)
    checks.number("adacomm: minimum", minimum, "(-inf, inf)")
    if schedule is not None:
        _require_schedule(schedule)

    def change(x: Outer, y: Inner, round: Communicator, via: network.AllReduce):
        delta, loss = round.weighted_mean((outer_gradient(x, y), y.memory.loss), via)
        done, now = round.step + 1, x.memory
        start = jnp.where(now.averages == 0, loss, now.start)
        ratio = (jnp.maximum(loss, minimum) - minimum) / (start - minimum)
        if schedule is not None:
            ratio = ratio * schedule(0) / schedule(done)
        target = jnp.ceil(jnp.sqrt(ratio) * period).astype(jnp.int32)
        lower = jnp.where(target < now.period, jnp.maximum(target, 1), (now.period + 1) // 2)
        due = done - now.decided >= interval
        H, decided = jnp.where(due, lower, now.period), jnp.where(due, done, now.decided)
        after = Decisions(H, done + H, decided, now.averages + 1, start)
        unknown = y.memory._replace(known=jnp.zeros_like(y.memory.known))
        return delta, workers.if_nonempty(after, now), unknown

    method = local_updates(
        f"adacomm({period}, {interval})",
        optimizer,
        optax.sgd(1.0),
        lambda x, round: round.step + 1 >= x.memory.next,
        via=via,
        change=change,
        shared=partial(_first_decisions, period),
        own=_unknown,
    )

    def query(state: State, round: Round) -> Query:
        return Query(state.workers.params, loss=True)

    def update(state: State, answer: tuple[jax.Array, Gradients], round: Communicator) -> State:
        (losses, gradients), y = answer, state.workers
        loss = jnp.where(y.memory.known, y.memory.loss, losses)
        computed = FirstLoss(loss, jnp.ones_like(y.memory.known))
        y = y._replace(memory=round.if_active(computed, y.memory))
        after = method.update(state._replace(workers=y), gradients, round)
        start = after.server.memory.start
        words = (
            "the loss at the start is {}; expected a loss above adacomm's minimum; pass a smaller "
            "minimum"
        )
        wrong = (after.server.memory.averages > 0) & ~(start > minimum)
        round.refuse_if(wrong, words, start)
        if schedule is not None:
            gamma = schedule(round.step + 1)
            words = "adacomm: the schedule returns {}; expected step sizes of at least 0"
            round.refuse_if(~(gamma >= 0), words, gamma)
        round.log(period=after.server.memory.period)
        return after

    return method._replace(query=query, update=update)


def _require_schedule(schedule: Callable[[Any], Any]) -> None:
    """Raises a ValueError unless the schedule starts with a positive number."""
    with causes.refuse_errors("adacomm: schedule"):
        first = schedule(0)
    if not checks.is_number(first) or not (isinstance(first, Tracer) or first > 0):
        raise ValueError(
            f"adacomm: schedule(0) = {checks.show(first)}; expected a number above 0: pass a "
            "function from the round to the step size, such as optax.exponential_decay(0.1, 100, "
            "0.5)"
        )


class Decisions(NamedTuple):
    """The period and what determines the next one.

    Args:
        period: H.
        next: the number of rounds after which the models are averaged next, at the earliest.
        decided: the number of rounds after which the last decision was made.
        averages: the number of averages so far.
        start: the loss at the start, F_0; 0 before the first average.
    """

    period: jax.Array
    next: jax.Array
    decided: jax.Array
    averages: jax.Array
    start: jax.Array


class FirstLoss(NamedTuple):
    """A worker's loss at the common model.

    Args:
        loss: the loss of its first batch after the last average.
        known: whether it has computed this loss, bool.
    """

    loss: jax.Array
    known: jax.Array


def _first_decisions(period: Period, params: Params) -> Decisions:
    H, zero = jnp.asarray(period, jnp.int32), jnp.int32(0)
    return Decisions(H, H, zero, zero, jnp.zeros((), loss_type(params)))


def _unknown(models: Params) -> FirstLoss:
    """Returns the workers' losses before the first round, from equal models `[N, ...]`."""
    rows = jax.tree.leaves(models)[0].shape[0]
    return FirstLoss(jnp.zeros(rows, loss_type(models)), jnp.zeros(rows, bool))
