"""1-bit Adam and 0/1 Adam: momenta with one bit per element, scaled by second moments that are
fixed after some rounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from algorithms import optimizers
from algorithms.facts import method
from algorithms.mechanisms.compensation import Memory, exchange, start
from algorithms.mechanisms.outer import repeat_rows, scale
from dsgd import Algorithm, Compressor, Query, State, checks, compressors, workers
from dsgd.extend import Params, Period, PyTree, Real, wide


class Shared(NamedTuple):
    """State that all workers of `one_bit_adam` share.

    Args:
        params: x.
        optimizer: state of the optimizer.
        m: first moments.
        v: second moments.
    """

    params: Params
    optimizer: PyTree
    m: PyTree
    v: PyTree


@method(
    sends=(
        "gradients in the first rounds, then compressed momenta plus error memory, in both "
        "directions"
    ),
    needs=("contractive compressor", "all workers"),
    paper="1-bit Adam: Tang et al., 2021",
    page="how_to/compression.md",
    settings={
        "warm_up": 3,
        "compressor": compressors.whole_model(compressors.sign),
        "beta2": 0.9,
        "epsilon": 0.1,
    },
    candidates={
        "language models": [
            {"warm_up": (100, 300), "compressor": compressors.sign, "optimizer": optax.sgd}
        ]
    },
)
@checks.arguments
def one_bit_adam(
    optimizer: optax.GradientTransformation,
    warm_up: Period,
    compressor: Compressor = compressors.sign,
    *,
    beta1: Real = 0.9,
    beta2: Real = 0.999,
    epsilon: Real = 1e-8,
) -> Algorithm:
    r"""1-bit Adam: Adam on the mean gradient for $T_w$ rounds; then the second moments do not
    change, and workers send compressed momenta with error memory, in both directions.

    $$ m \leftarrow \beta_1 m + (1 - \beta_1) \bar g, \qquad
       v \leftarrow \beta_2 v + (1 - \beta_2) \bar g^2, \qquad
       \bar g = \frac1N \sum_n g_n(x) \qquad (t < T_w) $$
    $$ m_n = \beta_1 m + (1 - \beta_1) g_n(x), \qquad c_n = C(m_n + e_n), \qquad
       e_n \leftarrow m_n + e_n - c_n $$
    $$ s = \frac1N \sum_n c_n + \bar e, \qquad m \leftarrow C(s), \qquad \bar e \leftarrow s - m
       \qquad (t \ge T_w) $$
    $$ x \leftarrow x - \gamma \frac{m}{\sqrt v + \epsilon} $$

    m, v and the error memories start at 0. The moments are not corrected for bias, as in DeepSpeed;
    the first step is therefore $(1 - \beta_1) / \sqrt{1 - \beta_2}$ times that of `optax.adam`.
    An element of x with $v = 0$ after the warm-up does not change: a message of one bit cannot
    express that its momentum is 0. With `compressors.identity` the method is Adam on the mean
    gradient, with v fixed after $T_w$ rounds, and its limit is exact for any data. No part of a
    momentum is lost: $x - \frac{\gamma}{\sqrt v + \epsilon} (\bar e + \frac1N \sum_n e_n)$ makes
    the steps of the exact mean of $m_n$, for any C.

    Sends one all-reduce of the gradients in each of the first $T_w$ rounds. Afterwards workers
    send compressed momenta to N servers with one part of the vector each, and the servers send
    compressed means back: one bit per element and one scale per part and layer in each direction.

    Args:
        optimizer: the step along $m / (\sqrt v + \epsilon)$; `optax.sgd(gamma)` gives the equation.
        warm_up: $T_w$, at least 1; in the paper 15 to 20 % of the training. It should be several
            times $1 / (1 - \beta_2)$, since v starts at 0. It may be swept.
        compressor: C, a contraction. DeepSpeed scales signs by $|z|_2 / \sqrt d$ instead of
            `compressors.sign`'s $|z|_1 / d$, and is then not a contraction for sparse z.
        beta1: $\beta_1$, in [0, 1).
        beta2: $\beta_2$, in [0, 1).
        epsilon: $\epsilon$, at least 0.

    Raises:
        ValueError: if an argument is out of range. At the start of a run: if the compressor states
            no contraction for a part, or workers may be absent or messages may be lost.

    Source: Tang et al., "1-bit Adam: communication efficient large-scale training with Adam's
    convergence speed", 2021; microsoft/DeepSpeed, `onebit/adam.py`.
    """
    optimizers.require_descent(optimizer)
    warm_up = checks.period("one_bit_adam: warm_up", warm_up)
    _require_numbers("one_bit_adam", beta1, beta2, epsilon)

    def init(params, N):
        zeros = _zeros(params)
        x = optimizers.init(optimizer, params)
        return State(Shared(*x, zeros, zeros), start("one_bit_adam", zeros, N, compressor))

    def update(state, gradients, round):
        x, m, v, memory = state.server, state.server.m, state.server.v, state.workers

        def adam(m, v):
            mean = round.mean(gradients)
            return optimizers.moving_average(beta1, m, mean), optimizers.moving_average(
                beta2, v, _squares(mean)
            )

        def exchange_momentum(m, memory):
            m_n = optimizers.moving_average(beta1, workers.replicate(m, 1), gradients)
            return exchange(compressor, m_n, memory, round)

        m, v = round.when(round.step < warm_up, adam, m, v)
        m, memory = round.when(round.step >= warm_up, exchange_momentum, m, memory)
        model = optimizers.Model(x.params, x.optimizer)
        model = optimizers.step(optimizer, model, _direction(m, v, epsilon, x.params))
        return State(Shared(*model, m, v), memory)

    return Algorithm(
        f"one_bit_adam({warm_up}, {compressor.name}, {beta1}, {beta2})",
        init,
        lambda state, round: Query(state.server.params),
        update,
        lambda state: state.server.params,
    )


class Anchor(NamedTuple):
    """State that all workers of `zero_one_adam` share.

    Args:
        params: the common model after the last exchange.
        v: second moments.
        total: sum of the step sizes since the last exchange.
    """

    params: Params
    v: PyTree
    total: jax.Array


class Local(NamedTuple):
    """State of each worker of `zero_one_adam`.

    Args:
        params: x_n.
        m: first moments.
        u: sum of first moments times step sizes since the last exchange.
        memory: error memories.
    """

    params: Params
    m: PyTree
    u: PyTree
    memory: Memory


@method(
    sends=(
        "gradients in some of the first rounds, then compressed sums of steps plus error "
        "memory, in both directions"
    ),
    needs=("contractive compressor", "all workers"),
    paper="0/1 Adam: Lu et al., 2022",
    page="how_to/compression.md",
    settings={
        "freeze": 4,
        "compressor": compressors.whole_model(compressors.sign),
        "stretch": 1,
        "longest": 2,
        "epsilon": 0.1,
    },
)
@checks.arguments
def zero_one_adam(
    step_size: optax.ScalarOrSchedule,
    freeze: Period,
    compressor: Compressor = compressors.sign,
    *,
    updates: Period = 16,
    stretch: Period = 32_768,
    longest: Period = 16,
    beta1: Real = 0.9,
    beta2: Real = 0.999,
    epsilon: Real = 1e-8,
) -> Algorithm:
    r"""0/1 Adam: local steps along scaled momenta; some rounds exchange compressed sums of momenta,
    with error memory in both directions, and some of the first rounds update the second moments.

    $$ v \leftarrow \beta_2 v + (1 - \beta_2) \Big(\frac1N \sum_n g_n(x_n)\Big)^2
       \quad \text{if } t \in \mathcal T_v $$
    $$ m_n \leftarrow \beta_1 m_n + (1 - \beta_1) g_n(x_n), \qquad
       x_n \leftarrow x_n - \gamma_t \frac{m_n}{\sqrt v + \epsilon}, \qquad
       u_n \leftarrow u_n + \gamma_t m_n $$
    $$ m_n \leftarrow \frac{\bar u}{\sum_h \gamma_h}, \qquad
       x_n \leftarrow \tilde x - \frac{\bar u}{\sqrt v + \epsilon}, \qquad u_n \leftarrow 0
       \quad \text{if } t \in \mathcal T_u $$

    $\bar u$ is the mean of $u_n$ after compression in both directions, with the error memories of
    `one_bit_adam`; $\tilde x$ is the common model after the last exchange, and the sum of the step
    sizes is over the rounds since then. If that sum is 0, $m_n$ does not change.

    $\mathcal T_v$: v changes in the first $\kappa$ rounds, then in $\kappa$ rounds at a distance of
    2, in $\kappa$ rounds at a distance of 4 and so on, until round $T_f$. $\mathcal T_u$: momenta
    are exchanged in each round until $T_f$, and then in the rounds t for which $t + 1 - T_f$ is a
    multiple of $\min(2^k, H)$, where $k = \lfloor (t - T_f) / s \rfloor$.

    There is no correction for bias, and an element with $v = 0$ does not change, as in
    `one_bit_adam`, which this method equals if every round before $T_f$ updates v, $H = 1$ and C is
    the identity. Its limit is then exact for any data; with $H > 1$ it is biased by
    $O(\gamma)$ where data differ, as for local SGD.

    Sends compressed vectors as `one_bit_adam` in the rounds $\mathcal T_u$, and in addition one
    all-reduce of the gradients in the rounds $\mathcal T_v$.

    Args:
        step_size: $\gamma$, or a schedule from the number of the round to $\gamma_t$.
        freeze: $T_f$, at least 1; several times $1 / (1 - \beta_2)$, as in `one_bit_adam`. All
            numbers of rounds may be swept.
        compressor: C, a contraction.
        updates: $\kappa$, number of updates of v at each distance.
        stretch: s, number of rounds after which the distance between exchanges doubles.
        longest: H, largest distance between exchanges, in rounds.
        beta1, beta2, epsilon: as in `one_bit_adam`.

    Raises:
        ValueError: as `one_bit_adam`, or if a number of rounds is less than 1, or the step size is
            not positive.

    Source: Lu et al., "Maximizing communication efficiency for large-scale training via 0/1 Adam",
    2022; microsoft/DeepSpeed, `onebit/zoadam.py`. Departures: the step uses the momentum after its
    update, as DeepSpeed does, since otherwise an exchange in each round would lose all gradients; v
    is updated before the step; once the distance between exchanges doubles, DeepSpeed's are one
    round later (17, 19, 21 where they are 16, 18, 20 here), and its s is 32678.
    """
    if not callable(step_size):
        checks.number("zero_one_adam: step_size", step_size, "(0, inf)")
    freeze = checks.period("zero_one_adam: freeze", freeze)
    updates = checks.period("zero_one_adam: updates", updates)
    stretch = checks.period("zero_one_adam: stretch", stretch)
    longest = checks.period("zero_one_adam: longest", longest)
    _require_numbers("zero_one_adam", beta1, beta2, epsilon)

    def updates_v(t):
        distance = _power_of_two((t + updates) // updates)
        return (t < freeze) & ((t + updates) % distance == 0)

    def exchanges(t):
        later = t - freeze
        doublings = jnp.clip(later // stretch, 0, 30)
        return (later < 0) | ((later + 1) % jnp.minimum(longest, 1 << doublings) == 0)

    def init(params, N):
        zeros = _zeros(params)
        memory = start("zero_one_adam", zeros, N, compressor)
        x, m, u = workers.replicate((params, zeros, zeros), N)
        return State(Anchor(params, zeros, jnp.zeros(())), Local(x, m, u, memory))

    def update(state, gradients, round):
        x, y, t = state.server, state.workers, round.step
        gamma: Any = step_size(t) if callable(step_size) else step_size
        v = round.when(
            updates_v(t),
            lambda v: optimizers.moving_average(beta2, v, _squares(round.mean(gradients))),
            x.v,
        )
        m = optimizers.moving_average(beta1, y.m, gradients)
        step = scale(gamma, m)
        params = optax.tree.sub(
            y.params, _direction(step, workers.replicate(v, 1), epsilon, y.params)
        )
        u = optax.tree.add(y.u, step)

        def exchange_sum(x, y):
            mean, memory = exchange(compressor, y.u, y.memory, round)
            params = optax.tree.sub(x.params, _direction(mean, x.v, epsilon, x.params))
            # Without any step since the last exchange, there is no mean momentum in u.
            moves = x.total != 0
            common = scale(1 / jnp.where(moves, x.total, 1), mean)
            m = jax.tree.map(lambda m, own: jnp.where(moves, m[None], own), common, y.m)
            zeros = optax.tree.zeros_like(y.u)
            local = Local(repeat_rows(params, y.params), m, zeros, memory)
            return Anchor(params, x.v, 0 * x.total), local

        x = Anchor(x.params, v, x.total + gamma)
        return State(*round.when(exchanges(t), exchange_sum, x, Local(params, m, u, y.memory)))

    return Algorithm(
        f"zero_one_adam({freeze}, {compressor.name}, {updates}, {stretch}, {longest})",
        init,
        lambda state, round: Query(state.workers.params),
        update,
        lambda state: state.workers.params,
    )


def _power_of_two(number: jax.Array) -> jax.Array:
    """Returns the largest power of 2 that is at most a positive int32 number."""
    return 1 << (31 - lax.clz(jnp.asarray(number, jnp.int32)))


def _direction(m: PyTree, v: PyTree, epsilon: Real, like: Params) -> Params:
    r"""Returns $m / (\sqrt v + \epsilon)$, or 0 if v = 0, in the types of `like`."""

    def ratio(m, v, x):
        size = jnp.sqrt(v) + jnp.asarray(epsilon, v.dtype)
        return jnp.where(v == 0, 0, m / size).astype(x.dtype)

    return jax.tree.map(ratio, m, v, like)


def _squares(tree: PyTree) -> PyTree:
    """Returns the squares, which may be too small for half precision."""
    return jax.tree.map(lambda x: jnp.square(wide(x)), tree)


def _zeros(params: Params) -> Params:
    """Returns zeros like the parameters, in the type in which moments are computed."""
    return jax.tree.map(lambda x: jnp.zeros_like(wide(x)), params)


def _require_numbers(name: str, beta1: Real, beta2: Real, epsilon: Real) -> None:
    checks.number(f"{name}: beta1", beta1, "[0, 1)")
    checks.number(f"{name}: beta2", beta2, "[0, 1)")
    checks.number(f"{name}: epsilon", epsilon, "[0, inf)")
