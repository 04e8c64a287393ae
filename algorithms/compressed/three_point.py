"""Three-point compressors (3PC): workers send compressed changes of their gradients, or nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

from algorithms import optimizers
from algorithms.facts import method
from algorithms.mechanisms import three_points
from algorithms.mechanisms.estimates import Estimated
from algorithms.mechanisms.three_points import ThreePoint
from dsgd import (
    Algorithm,
    Communicator,
    Compressor,
    Query,
    State,
    checks,
    communication,
    compressors,
    network,
    workers,
)
from dsgd.extend import Gradients, Params, Real


class Points(NamedTuple):
    """State of a worker.

    Args:
        estimate: h, the estimate of its gradient that the server also knows.
        gradient: y, its last gradient.
    """

    estimate: Any
    gradient: Any


@method(
    sends="messages of a three-point compressor, to a server",
    exact="any data",
    paper="3PC: Richtarik et al., 2022",
    aliases=("3pc",),
    settings={
        "point": three_points.v2(
            compressors.whole_model(compressors.top_k(0.1)),
            compressors.whole_model(compressors.random_k(0.25)),
        )
    },
)
@checks.arguments
def three_point(
    optimizer: optax.GradientTransformation,
    point: ThreePoint,
    *,
    via: network.OneServer = network.star,
) -> Algorithm:
    r"""3PC: gradient descent on estimates of the workers' gradients, which a three-point compressor
    updates.

    $$ h_n \leftarrow \mathcal C_{h_n, y_n}(g_n(x_t)), \qquad y_n \leftarrow g_n(x_t), \qquad
       x_{t+1} = x_t - \gamma \frac1N \sum_n h_n $$

    Each worker sends the compressed messages of $\mathcal C$, possibly none, to a server, which
    keeps the mean of all $h_n$ and sends x to all workers. $h_n$ starts at 0, and $y_n$ is
    $g_n(x_0)$ in the first round. With exact gradients the limit is the optimum for any data. A
    worker that does not participate, or loses its message, keeps $h_n$ and $y_n$, which still
    count in the mean; a worker that computes nothing uses its last gradient. The server makes its
    step in every round in which a worker participates, even if no message arrives.

    With A and B of the compressor, with $L_-$-smooth f and $\frac1N \sum_n |f_n'(x) - f_n'(y)|^2
    \le L_+^2 |x - y|^2$, exact gradients and $\gamma \le 1 / (L_- + L_+ \sqrt{B / A})$, a random
    iterate $\hat x$ of the first T has

    $$ E|f'(\hat x)|^2 \le \frac{2 (f(x_0) - f^\star)}{\gamma T} + \frac{\frac1N \sum_n E|h_n -
       f_n'(x_0)|^2}{A T} $$

    with the $h_n$ after the first round.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        point: $\mathcal C$, from `algorithms.three_points`.
        via: `network.star`, in which each worker has its own link to the server, or
            `network.parameter_server`.

    Raises:
        ValueError: at the start of a run, if a compressor that must be a contraction states none
            for the model's vectors.

    Source: Richtarik, Sokolov, Fatkhullin, Gasanov, Li and Gorbunov, "3PC: three point compressors
    for communication-efficient distributed training and a better theory for lazy aggregation",
    2022.
    """
    return _three_point("three_point", optimizer, point, via)


@method(
    sends="gradients that have changed enough, to a server",
    exact="any data",
    paper="LAG: Chen et al., 2018",
    settings={"threshold": 4.5},
)
@checks.arguments
def lag(
    optimizer: optax.GradientTransformation,
    threshold: Real,
    *,
    via: network.OneServer = network.star,
) -> Algorithm:
    r"""LAG: workers send their gradients only if these have changed by more than a share of the
    change in the last round.

    $$ h_n \leftarrow \begin{cases} g_n(x_t) & |g_n(x_t) - h_n|^2 > \zeta |g_n(x_t) - y_n|^2 \\ h_n
       & \text{otherwise} \end{cases}, \qquad y_n \leftarrow g_n(x_t), \qquad
       x_{t+1} = x_t - \gamma \frac1N \sum_n h_n $$

    In the first case a worker sends $g_n - h_n$, uncompressed; in the second nothing, which counts
    no bits. After a message $h_n = y_n$; so with $\zeta < 1$ all workers send in every round, and
    the method is gradient descent. On quadratics $\zeta = k^2$, with an integer k, may be an exact
    tie after k rounds, which rounding errors decide: take 4.5 instead of 4. With noisy gradients,
    $y_n$ differs from $g_n$ by the noise, so that the condition does not depend on the progress.
    Otherwise the method is `three_point` with A = 1 and B = $\zeta$.

    Args:
        optimizer, via: as in `three_point`.
        threshold: $\zeta$, at least 0 and useful above 1. It may be swept.

    Raises:
        ValueError: if $\zeta$ is negative.

    Source: Chen, Giannakis, Sun and Yin, "LAG: lazily aggregated gradient for communication-
    efficient distributed learning", 2018, with the condition of Richtarik et al., "3PC", 2022.
    """
    return _three_point("lag", optimizer, three_points.lag(threshold), via)


@method(
    sends="compressed differences of gradients that have changed enough, to a server",
    exact="any data",
    needs=("contractive compressor",),
    paper="CLAG: Richtarik et al., 2022",
    settings={"compressor": compressors.whole_model(compressors.top_k(0.1)), "threshold": 0.9},
)
@checks.arguments
def clag(
    optimizer: optax.GradientTransformation,
    compressor: Compressor,
    threshold: Real,
    *,
    via: network.OneServer = network.star,
) -> Algorithm:
    r"""CLAG: LAG in which the messages are compressed, as in EF21.

    $$ h_n \leftarrow \begin{cases} h_n + C(g_n(x_t) - h_n) & |g_n(x_t) - h_n|^2 > \zeta |g_n(x_t) -
       y_n|^2 \\ h_n & \text{otherwise} \end{cases} $$

    With $\zeta = 0$ the method is EF21 with one server, with `compressors.identity` it is `lag`.
    Otherwise the method is `three_point`.

    Args:
        optimizer, via: as in `three_point`.
        compressor: C, a contraction.
        threshold: $\zeta$, at least 0. It may be swept.

    Raises:
        ValueError: if the compressor states no contraction, or $\zeta$ is negative.

    Source: Richtarik, Sokolov, Fatkhullin, Gasanov, Li and Gorbunov, "3PC", 2022.
    """
    return _three_point("clag", optimizer, three_points.clag(compressor, threshold), via)


def _three_point(
    name: str, optimizer: optax.GradientTransformation, point: ThreePoint, via: network.OneServer
) -> Algorithm:
    """Returns 3PC under this name; the other arguments are those of `three_point`."""
    optimizers.require_descent(optimizer)

    def init(params: Params, N: int) -> State:
        for C in point.contractions:
            vectors = communication.flatten(workers.replicate(params, 1), C.layer_wise)
            communication.require_contraction(name, C, vectors)
        zeros = optax.tree.zeros_like(params)
        model = optimizers.init(optimizer, params)
        return State(Estimated(*model, zeros), workers.replicate(Points(zeros, zeros), N))

    def update(state: State, gradients: Gradients, round: Communicator) -> State:
        x, (h, y) = state.server, state.workers
        g = round.if_active(gradients, y)
        y = optax.tree.where(round.step == 0, g, y)
        received = []

        def send(C: Compressor, vectors: Gradients, senders: jax.Array | None = None) -> Gradients:
            sent = round.to_server(C, vectors, via=via, senders=senders)
            received.append(sent.received)
            return sent.decoded

        with round.joint():
            h = point.apply(send, g, h, y, round)
        share = workers.share_delivered()
        change = jax.tree.map(lambda *means: sum(means), *received)
        mean = jax.tree.map(
            lambda mean, change: mean + (share * change).astype(mean.dtype), x.estimate, change
        )
        model = optimizers.step(optimizer, optimizers.Model(x.params, x.optimizer), mean)
        round.from_server(model.params)
        kept = workers.where_delivered(Points(h, g), state.workers)
        return State(Estimated(*model, mean), kept)

    return Algorithm(
        f"{name}({point.name})" if name == "three_point" else point.name,
        init,
        lambda state, round: Query(state.server.params),
        update,
        lambda state: state.server.params,
        lambda before, after: after,
    )
