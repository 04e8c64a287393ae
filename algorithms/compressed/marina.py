"""MARINA: compressed differences of successive gradients, and now and then whole gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from algorithms import optimizers
from algorithms.facts import method
from algorithms.mechanisms.estimates import Estimated, coin
from dsgd import (
    Algorithm,
    Communicator,
    Compressor,
    Query,
    Round,
    State,
    checks,
    compressors,
    network,
    workers,
)
from dsgd.extend import Gradients, Params, Real

_ALL = "a difference that does not arrive is missing in the estimate until the next whole gradients"


@method(
    sends="compressed differences of gradients, with probability p gradients, to a server",
    exact="any data",
    needs=("unbiased compressor", "some exact gradients", "all workers"),
    paper="MARINA: Gorbunov et al., 2021; with sampled clients PP-MARINA",
    settings={
        "compressor": compressors.whole_model(compressors.random_k(0.25)),
        "probability": 0.25,
    },
)
@checks.arguments
def marina(
    optimizer: optax.GradientTransformation,
    compressor: Compressor,
    probability: Real,
    *,
    clients: int | None = None,
    via: network.OneServer = network.star,
) -> Algorithm:
    r"""MARINA: the workers send whole gradients with probability p, else compressed differences of
    successive gradients; also with sampled clients (PP-MARINA).

    $$ g_t = \begin{cases} \frac1N \sum_n f_n'(x_t) & \text{with probability } p \\ g_{t-1} +
       \frac1r \sum_{n \in S_t} Q(f_n'(x_t) - f_n'(x_{t-1})) & \text{otherwise} \end{cases}, \qquad
       x_{t+1} = x_t - \gamma g_t $$

    One coin is drawn for all workers; in the first round all send $f_n'(x_0)$. $S_t$ are r clients
    drawn without replacement, and all workers by default. The server sends $g_t$ to all workers.
    Gradients are exact. With the identity as Q the method is gradient descent. The limit is the
    optimum for any data. All workers must participate, since the estimate lacks a difference that
    does not arrive.

    With r = N, L-smooth $f_n$, $\omega$ of Q, independent draws of the workers, and $\gamma \le 1 /
    \big(L (1 + \sqrt{(1-p) \omega / (p N)})\big)$, a random iterate $\hat x$ of the first T has

    $$ E|f'(\hat x)|^2 \le \frac{2 (f(x_0) - f^\star)}{\gamma T} $$

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.
        compressor: Q, unbiased. With `compressors.perm_k` and equal data, the method is gradient
            descent.
        probability: p, in (0, 1]. The paper has $1 / (1 + \omega)$, which is k / d for
            `compressors.random_k`: whole gradients then cost as many bits as differences. It may be
            swept.
        clients: r, from 1 to N; None: N.
        via: `network.star`, in which each worker has its own link to the server, or
            `network.parameter_server`.

    Raises:
        ValueError: if the compressor is biased, p is not in (0, 1] or r is less than 1. At the
            start of a run: if r > N, or not all workers participate.

    Source: Gorbunov, Burlachenko, Li and Richtarik, "MARINA: faster non-convex distributed learning
    with compression", 2021. Departure: clients are drawn without replacement.
    """

    def start(params: Params, N: int) -> Params:
        return workers.replicate(optax.tree.zeros_like(params), N)

    def query(state: State, round: Round) -> Query:
        return Query(state.server.params, exact=True)

    def parts(state: State, gradients: Gradients, round: Communicator) -> Parts:
        whole = round.if_active(gradients, state.workers)
        return Parts(whole, optax.tree.sub(whole, state.workers), whole)

    return _marina("marina", optimizer, compressor, probability, clients, via, start, query, parts)


@method(
    sends=(
        "compressed differences of gradients of the same samples, with probability p exact "
        "gradients, to a server"
    ),
    exact="any data and samples",
    needs=("unbiased compressor", "some exact gradients", "all workers"),
    paper="VR-MARINA: Gorbunov et al., 2021",
    settings={
        "compressor": compressors.whole_model(compressors.random_k(0.25)),
        "probability": 0.25,
    },
)
@checks.arguments
def vr_marina(
    optimizer: optax.GradientTransformation,
    compressor: Compressor,
    probability: Real,
    *,
    clients: int | None = None,
    via: network.OneServer = network.star,
) -> Algorithm:
    r"""VR-MARINA: MARINA with differences of gradients of the same samples.

    $$ g_t = \begin{cases} \frac1N \sum_n f_n'(x_t) & \text{with probability } p \\ g_{t-1} +
       \frac1r \sum_{n \in S_t} Q(g_n(x_t; \xi) - g_n(x_{t-1}; \xi)) & \text{otherwise}
       \end{cases} $$

    The second case computes two gradients of the same samples, the first one the exact gradient.
    With the identity as Q and r = N the method is `page`. Otherwise as `marina`; the limit is the
    optimum, also with gradients of batches.

    Args:
        optimizer, compressor, clients, via: as in `marina`.
        probability: p, in (0, 1]. With batches of b of m samples, the paper has the smaller of
            $1 / (1 + \omega)$ and b / (b + m). It may be swept.

    Raises:
        ValueError: as `marina`; in a run, also if the user supplies the batches, because exact
            gradients are then not known.

    Source: Gorbunov, Burlachenko, Li and Richtarik, "MARINA: faster non-convex distributed learning
    with compression", 2021. Departure: clients are drawn without replacement.
    """

    def query(state: State, round: Round) -> tuple[Query, ...]:
        x, new = state.server, coin(round, probability)
        pair = Query(x.params, active=~new), Query(x.last, active=~new)
        return *pair, Query(x.params, exact=True, active=new)

    def parts(state: State, answer: tuple[Gradients, ...], round: Communicator) -> Parts:
        at_x, at_last, exact = answer
        return Parts(exact, optax.tree.sub(at_x, at_last), ())

    return _marina(
        "vr_marina",
        optimizer,
        compressor,
        probability,
        clients,
        via,
        lambda params, N: (),
        query,
        parts,
        keep_model=True,
    )


class Parts(NamedTuple):
    """What MARINA makes of the gradients of a round.

    Args:
        whole: the gradients, leaves `[n, ...]`.
        difference: their difference to the gradients at the previous model, leaves `[n, ...]`.
        workers: the next states of the workers.
    """

    whole: Gradients
    difference: Gradients
    workers: Any


def _marina(
    name: str,
    optimizer: optax.GradientTransformation,
    Q: Compressor,
    probability: Real,
    clients: int | None,
    via: network.OneServer,
    start: Callable[[Params, int], Any],
    query: Callable,
    parts: Callable[[State, Any, Communicator], Parts],
    keep_model: bool = False,
) -> Algorithm:
    """Returns MARINA with these parts of a round.

    Args:
        name: for tables and error messages.
        optimizer, Q, probability, clients, via: as in `marina`.
        start: (parameters, N) -> the states of the workers.
        query: of the method.
        parts: (state, answer, round) -> `Parts`.
        keep_model: whether the server keeps the last model.
    """
    optimizers.require_descent(optimizer)
    checks.number(f"{name}: probability", probability, "(0, 1]")
    if clients is not None:
        checks.positive_int(f"{name}: clients", clients)
    if not Q.unbiased:
        raise ValueError(
            f"{name}: the compressor {Q.name} is biased; expected an unbiased one, such as "
            "compressors.random_k(0.1), or use ef21"
        )

    def init(params: Params, N: int) -> State:
        if clients is not None and clients > N:
            raise ValueError(
                f"{name}: clients = {clients}, but there are {N} workers; expected at most {N}"
            )
        g, last = optax.tree.zeros_like(params), params if keep_model else ()
        return State(Estimated(*optimizers.init(optimizer, params), g, last), start(params, N))

    def update(state: State, answer: Any, round: Communicator) -> State:
        round.require_all(_ALL)
        x, gradients, N = state.server, parts(state, answer, round), round.workers
        r, drawn = N, None
        if clients is not None:
            places = jax.random.permutation(round.next_key(), N)
            r, drawn = clients, workers.local_block(places < clients, N)

        def replace(g: Params) -> Params:
            sent = round.to_server(compressors.identity, gradients.whole, via=via)
            return round.from_server(sent.received).received

        def change(g: Params) -> Params:
            sent = round.to_server(Q, gradients.difference, via=via, senders=drawn)
            g = jax.tree.map(lambda g, mean: g + N / r * mean, g, sent.received)
            return round.from_server(g).received

        new = coin(round, probability)
        g = round.when(new, replace, x.estimate)
        g = round.when(~new, change, g)
        model = optimizers.step(optimizer, optimizers.Model(x.params, x.optimizer), g)
        return State(Estimated(*model, g, x.params if keep_model else ()), gradients.workers)

    return Algorithm(
        f"{name}({Q.name}, {probability}{'' if clients is None else f', clients={clients}'})",
        init,
        query,
        update,
        lambda state: state.server.params,
    )
