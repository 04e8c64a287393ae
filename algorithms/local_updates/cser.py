"""CSER: the error that compression leaves out is kept in the workers' models and reset."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import optax

from algorithms import optimizers
from algorithms.facts import method
from dsgd import Algorithm, Compressor, Query, State, checks, compressors, workers
from dsgd.communication import flatten, require_contraction
from dsgd.compressors import LinearCode
from dsgd.extend import Params, Period, PyTree


class Local(NamedTuple):
    """State of a worker.

    Args:
        error: e^(n), what the worker has added to its model and has not sent.
        optimizer: state of its optimizer.
    """

    error: Params
    optimizer: PyTree


@method(
    sends=(
        "compressed steps in every round, compressed errors of the models every H-th, by all-"
        "reduces of the same random elements"
    ),
    paper="CSER: Xie et al., 2020",
    page="reference/compressors.md",
    settings={
        "period": 4,
        "reset": compressors.random_block(0.4, unbiased=False),
        "steps": compressors.random_block(0.1, unbiased=False),
    },
)
@checks.arguments
def cser(
    optimizer: optax.GradientTransformation,
    period: Period,
    reset: Compressor | LinearCode,
    steps: Compressor | LinearCode | None = None,
) -> Algorithm:
    r"""CSER (SGD with error reset): each worker applies its whole step to its own model, although
    only a compressed part of the step is averaged over the workers; every H-th round, the workers
    also average a compressed part of the errors that have accumulated.

    $$ x^{(n)} \leftarrow x^{(n)} - p'^{(n)}, \quad e^{(n)} \leftarrow e^{(n)} - r^{(n)}, \qquad
       p'^{(n)}, r^{(n)} = \mathrm{PSync}\big(\gamma g_n(x^{(n)}), C_2\big) $$
    $$ x^{(n)} \leftarrow x^{(n)} - e^{(n)} + e'^{(n)}, \quad e^{(n)} \leftarrow r^{(n)}, \qquad
       e'^{(n)}, r^{(n)} = \mathrm{PSync}\big(e^{(n)}, C_1\big) \qquad \text{every } H
       \text{ rounds} $$
    $$ \mathrm{PSync}(v^{(n)}, C) = \Big(\frac1N \sum_m C(v^{(m)}) + r^{(n)},\ r^{(n)}\Big), \qquad
       r^{(n)} = v^{(n)} - C(v^{(n)}) $$

    The difference $\hat x = x^{(n)} - e^{(n)}$ is the same for all workers, so that the state is
    $\hat x$ and each worker's $e^{(n)}$, and PSync adds $\frac1N \sum_m C(v^{(m)})$ to
    $\hat x$. A round is one gradient per worker, at its own model; the final model is the mean of
    the models. With identities for both compressors the method is SGD, and with the identity for
    $C_1$ and no messages between resets it is local SGD with period H. The limit is biased, as
    that of local SGD.

    Linear codes, such as `compressors.random_block(k / d, unbiased=False)` with the same k elements
    for all workers, are averaged by an all-reduce. A worker that does not
    participate, or loses its message, keeps its error: when it returns, its model is the common
    $\hat x$ at that time plus this error. With other compressors all workers gather the messages of
    all others, so that all must participate. Means are weighted by the problem's worker weights.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. Its state stays local.
            With `optax.sgd(gamma, momentum=beta, nesterov=True)`, $C_2$ compresses the step
            $\gamma (\beta m^{(n)} + g_n)$.
        period: H. It may be swept.
        reset: $C_1$, compressor or linear code of the errors, a contraction.
        steps: $C_2$, compressor or linear code of the steps, a contraction; None: nothing is sent
            between resets, $C_2 = 0$.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1. At the start of a run: if a
            compressor states no contraction.

    Source: Xie et al., "CSER: communication-efficient SGD with error reset", 2020. Departure: $C_2$
    compresses $\gamma g_n$ instead of $g_n$, which differs only for compressors that do not commute
    with a multiplication by $\gamma$.
    """
    optimizers.require_descent(optimizer)
    period = checks.period("cser: period", period)

    def init(params, N):
        start = optimizers.init_local(optimizer, params, N)
        for compressor in (reset, *(() if steps is None else (steps,))):
            require_contraction("cser", compressor, flatten(start.params, compressor.layer_wise))
        return State(params, Local(optax.tree.zeros_like(start.params), start.optimizer))

    def models(state):
        return jax.tree.map(lambda x, e: x[None] + e, state.server, state.workers.error)

    def update(state, gradients, round):
        def synchronize(compressor, x, v):
            if isinstance(compressor, LinearCode):
                sent = round.mean_of_codes(compressor, v, weighted=True)
            else:
                sent = round.mean_of_messages(compressor, v)
            rest = workers.where_delivered(optax.tree.sub(v, sent.decoded), v)
            return optax.tree.add(x, sent.received), rest

        x, e = state.server, state.workers.error
        y = optimizers.Model(models(state), state.workers.optimizer)
        nothing = optax.tree.zeros_like(e), y.optimizer
        p, memory = round.if_active(optimizers.update_local(optimizer, y, gradients), nothing)
        if steps is not None:
            x, p = synchronize(steps, x, p)
        e = optax.tree.add(e, p)
        x, e = round.every(period, partial(synchronize, reset), x, e)
        return State(x, Local(e, memory))

    name = f"cser({period}, {reset.name}{'' if steps is None else f', {steps.name}'})"
    return Algorithm(name, init, lambda state, round: Query(models(state)), update, models)
