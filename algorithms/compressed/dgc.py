"""Deep gradient compression (DGC): top-k with momentum correction and factor masking."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.facts import method
from dsgd import Algorithm, Compressor, Query, State, checks, compressors, workers, xla
from dsgd.communication import flatten, require_contraction
from dsgd.compressors import top_k
from dsgd.extend import Gradients, Params, Period, Real

_LARGEST = top_k(0.001)  # of the paper


class Accumulated(NamedTuple):
    """State of a worker.

    Args:
        momentum: u^(n).
        error: v^(n), the sum of the momenta that have not been sent.
    """

    momentum: Params
    error: Params


@method(
    sends="largest elements of the sums of momenta, by an all-gather",
    needs=("contractive compressor", "all workers"),
    paper="deep gradient compression: Lin et al., 2018",
    page="reference/compressors.md",
    settings={"compressor": compressors.whole_model(compressors.top_k(0.1))},
    candidates={
        "language models": [
            {
                "compressor": _LARGEST,
                "optimizer": optax.sgd,
                "learning_rates": (0.01, 0.03, 0.1, 0.3),
            }
        ]
    },
)
@checks.arguments
def dgc(
    optimizer: optax.GradientTransformation,
    compressor: Compressor | None = None,
    momentum: Real = 0.9,
    *,
    nesterov: bool = False,
    factor_masking: bool = True,
    clip: Real | None = None,
    warm_up: Sequence[Compressor] = (),
    stage: Period = 1,
) -> Algorithm:
    r"""DGC (deep gradient compression): each worker sends the largest elements of the sum of its
    momenta, and removes them from both the sum and the momentum.

    $$ u^{(n)} \leftarrow m u^{(n)} + g_n(x), \qquad v^{(n)} \leftarrow v^{(n)} + u^{(n)}, \qquad
       c^{(n)} = C(v^{(n)}) $$
    $$ v^{(n)} \leftarrow v^{(n)} - c^{(n)}, \qquad u_i^{(n)} \leftarrow 0 \text{ for } i \text{
       with } c_i^{(n)} \ne 0, \qquad x \leftarrow x - \gamma \frac1N \sum_n c^{(n)} $$

    Momentum is applied before elements are selected (momentum correction); that sent elements lose
    their momentum is factor masking. $u^{(n)}$ and $v^{(n)}$ start at 0. If all elements are sent,
    the method is SGD without momentum, because masking removes it; without masking it is then SGD
    with momentum. With $m = 0$ it is `error_compensated_sgd` with the identity for the servers.

    If the workers' data differ, the limit is biased: without masking, or with $m = 0$, by
    $O(\gamma)$; with both, by an amount that does not vanish with $\gamma$. The reason is that
    momentum multiplies a constant gradient by a factor that increases from 1 to $1 / (1 - m)$ with
    the number of rounds between two messages, so that elements that a worker sends rarely count
    more.

    Sends a message of C from each worker to all others, by an all-gather, so that all workers must
    participate. The mean is weighted by the problem's worker weights.

    Args:
        optimizer: the step along the mean message; `optax.sgd(gamma)` gives the equation. Momentum
            belongs to the workers: `momentum`, not that of `optax.sgd`.
        compressor: C, a contraction that sends a part of the elements; None: the paper's,
            `compressors.top_k(0.001)`, the largest 0.1 % of each leaf.
        momentum: m, in [0, 1).
        nesterov: whether momentum is Nesterov's: $u \leftarrow m (u + g_n)$,
            $v \leftarrow v + u + g_n$.
        factor_masking: whether $u_i \leftarrow 0$ for sent elements.
        clip: $\theta$, positive: $g_n$ is multiplied by $\min(1, \theta N^{-1/2} / |g_n|)$ first,
            with the Euclidean norm of all leaves; None: it is not.
        warm_up: compressors of the first stages of the run, in their order, before C. The paper's
            are `[top_k(1 - s) for s in (0.75, 0.9375, 0.984375, 0.996)]`.
        stage: number of rounds of each stage of the warm-up; the paper has one epoch.

    Raises:
        ValueError: if m is outside [0, 1), $\theta$ is not positive, or `stage` is less than 1 or
            more than 2^31 - 1. At the start of a run: if a compressor states no contraction.

    Source: Lin et al., "Deep gradient compression: reducing the communication bandwidth for
    distributed training", 2018. Departure: the largest elements are found exactly, not from a
    sample, and in every leaf, also in biases.
    """
    optimizers.require_descent(optimizer)
    compressor = _LARGEST if compressor is None else compressor
    checks.number("dgc: momentum", momentum, "[0, 1)")
    if clip is not None:
        checks.number("dgc: clip", clip, "(0, inf)")
    stage = checks.period("dgc: stage", stage)
    stages = (*warm_up, compressor)

    def init(params, N):
        zeros = workers.replicate(optax.tree.zeros_like(params), N)
        for each in stages:
            require_contraction("dgc", each, flatten(zeros, each.layer_wise))
        return State(optimizers.init(optimizer, params), Accumulated(zeros, zeros))

    def next_momentum(u, g):
        m = jnp.asarray(momentum, g.dtype)
        return m * (u + g) if nesterov else m * u + g

    def update(state, gradients, round):
        if clip is not None:
            gradients = _clip(gradients, clip / round.workers**0.5)
        u = jax.tree.map(next_momentum, state.workers.momentum, gradients)
        v = optax.tree.add(state.workers.error, u)
        if nesterov:
            v = optax.tree.add(v, gradients)

        def exchange(compressor, x, u, v):
            sent = round.mean_of_messages(compressor, v)
            if factor_masking:
                u = jax.tree.map(lambda u, c: jnp.where(c == 0, u, 0), u, sent.decoded)
            return optimizers.step(optimizer, x, sent.received), u, optax.tree.sub(v, sent.decoded)

        x, turn = state.server, round.step // stage
        for i, each in enumerate(stages[:-1]):
            x, u, v = round.when(turn == i, partial(exchange, each), x, u, v)
        last = partial(exchange, stages[-1])
        x, u, v = round.when(turn >= len(warm_up), last, x, u, v) if warm_up else last(x, u, v)
        return State(x, Accumulated(u, v))

    return Algorithm(
        f"dgc({', '.join(each.name for each in stages)})",
        init,
        lambda state, round: Query(state.server.params),
        update,
        lambda state: state.server.params,
    )


def _clip(gradients: Gradients, largest: Real) -> Gradients:
    """Scales each worker's gradient down to this norm, leaves `[n, ...]`."""

    def clip_worker(gradient):
        rescaled, power = xla.rescale(gradient)
        factor = jnp.minimum(power, largest / jnp.sqrt(xla.sqnorm(rescaled)))
        each = jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, rescaled)
        return workers.narrow(each, gradient)

    return jax.vmap(clip_worker)(gradients)
