"""FedOpt: FedAvg with an optimizer's step of the server on the mean of the clients' changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.facts import method
from algorithms.mechanisms.clients import Inclusion, client_updates
from dsgd import Algorithm, checks, network
from dsgd.extend import Params, Period, Real, wide


@method(
    sends="changes of the participating clients every H-th round, the model back, through a server",
    paper="Reddi et al., 2021, Algorithm 1",
    settings=None,
)
@checks.arguments
def fed_opt(
    optimizer: optax.GradientTransformation,
    period: Period,
    outer: optax.GradientTransformation,
    *,
    inclusion: Inclusion = None,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""FedOpt: the clients that participate make H local steps from the server's model, and the
    server makes one step of its own optimizer on the mean of their changes.

    $$ \Delta_t = \frac{\sum_{n \in S_t} p_n (x_t - y_H^{(n)})}{\sum_{n \in S_t} p_n}, \qquad
       x_{t+1} = \mathrm{Outer}(x_t, \Delta_t) $$

    Clients, communication and weights are those of `fed_avg`, which is this method with
    `optax.sgd(1)` at the server. If no client participates, the server makes no step. The limit is
    that of FedAvg, a zero of $\Delta$, for every outer optimizer.

    Args:
        optimizer: each client's step, as in `fed_avg`.
        period: H. It may be swept.
        outer: the server's step on $\Delta_t$. `optax.adam` corrects the bias of its moments;
            `fed_adam` does not.
        inclusion, via: as in `fed_avg`.

    Raises:
        ValueError: as `fed_avg`.

    Source: Reddi et al., "Adaptive federated optimization", 2021, Algorithm 1. The update of
    fedjax's `federated_averaging` is the same: new client optimizers in each period, changes
    weighted by the sizes of the sampled clients, and an optimizer of the server.
    """
    return client_updates("fed_opt", optimizer, period, outer, inclusion, via)


@method(
    sends="changes of the participating clients every H-th round, the model back, through a server",
    paper="Hsu et al., 2019",
    settings={"period": 4},
)
@checks.arguments
def fed_avgm(
    optimizer: optax.GradientTransformation,
    period: Period,
    outer_step: Real = 1.0,
    momentum: Real = 0.9,
    *,
    inclusion: Inclusion = None,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""FedAvgM: FedAvg with momentum at the server.

    $$ u_{t+1} = \beta u_t + \Delta_t, \qquad x_{t+1} = x_t - \eta u_{t+1} $$

    $\Delta_t$ and all else are those of `fed_opt`. With $\beta = 0$ and $\eta = 1$ the method is
    FedAvg.

    Args:
        optimizer, period: as in `fed_avg`.
        outer_step: $\eta$.
        momentum: $\beta$, in [0, 1).
        inclusion, via: as in `fed_avg`.

    Raises:
        ValueError: as `fed_avg`, or if $\eta$ is not positive or $\beta$ is not in [0, 1).

    Source: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for
    federated visual classification", 2019.
    """
    checks.number("fed_avgm: outer_step", outer_step, "(0, 3e38]")
    checks.number("fed_avgm: momentum", momentum, "[0, 1)")
    outer = optax.sgd(outer_step, momentum=momentum)
    return client_updates("fed_avgm", optimizer, period, outer, inclusion, via)


@method(
    sends="changes of the participating clients every H-th round, the model back, through a server",
    paper="Reddi et al., 2021, Algorithm 2",
    settings={"period": 4, "outer_step": 0.1},
)
@checks.arguments
def fed_adagrad(
    optimizer: optax.GradientTransformation,
    period: Period,
    outer_step: Real,
    beta1: Real = 0.0,
    epsilon: Real = 1e-3,
    *,
    inclusion: Inclusion = None,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""FedAdagrad: FedOpt with Adagrad at the server.

    $$ m_t = \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t, \qquad v_t = v_{t-1} + \Delta_t^2, \qquad
       x_{t+1} = x_t - \eta \frac{m_t}{\sqrt{v_t} + \tau} $$

    $m_{-1} = 0$ and $v_{-1} = \tau^2$; there is no bias correction. $\Delta_t$ and all else are
    those of `fed_opt`.

    Args:
        optimizer, period: as in `fed_avg`.
        outer_step: $\eta$, tuned in the paper.
        beta1: $\beta_1$, in [0, 1).
        epsilon: $\tau$, the degree of adaptivity, from 1e-18 to 1e18.
        inclusion, via: as in `fed_avg`.

    Raises:
        ValueError: as `fed_avg`, or if $\eta$ is not positive, or $\tau$ or $\beta_1$ is out of
            range.

    Source: Reddi et al., "Adaptive federated optimization", 2021, Algorithm 2.
    """

    def second(v, delta):
        return v + delta**2

    outer = _adaptive("fed_adagrad", outer_step, beta1, epsilon, second)
    return client_updates("fed_adagrad", optimizer, period, outer, inclusion, via)


@method(
    sends="changes of the participating clients every H-th round, the model back, through a server",
    paper="Reddi et al., 2021, Algorithm 2",
    settings={"period": 4, "outer_step": 0.1},
)
@checks.arguments
def fed_yogi(
    optimizer: optax.GradientTransformation,
    period: Period,
    outer_step: Real,
    beta1: Real = 0.9,
    beta2: Real = 0.99,
    epsilon: Real = 1e-3,
    *,
    inclusion: Inclusion = None,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""FedYogi: `fed_adam` with the second moment of Yogi,

    $$ v_t = v_{t-1} - (1 - \beta_2) \Delta_t^2\, \mathrm{sign}(v_{t-1} - \Delta_t^2) $$

    Args:
        optimizer, period, outer_step, beta1, beta2, epsilon, inclusion, via: as in `fed_adam`.

    Raises:
        ValueError: as `fed_adam`.

    Source: Reddi et al., "Adaptive federated optimization", 2021, Algorithm 2.
    """
    checks.number("fed_yogi: beta2", beta2, "[0, 1)")

    def second(v, delta):
        return v - (1 - beta2) * delta**2 * jnp.sign(v - delta**2)

    outer = _adaptive("fed_yogi", outer_step, beta1, epsilon, second)
    return client_updates("fed_yogi", optimizer, period, outer, inclusion, via)


@method(
    sends="changes of the participating clients every H-th round, the model back, through a server",
    paper="Reddi et al., 2021, Algorithm 2",
    settings={"period": 4, "outer_step": 0.1},
)
@checks.arguments
def fed_adam(
    optimizer: optax.GradientTransformation,
    period: Period,
    outer_step: Real,
    beta1: Real = 0.9,
    beta2: Real = 0.99,
    epsilon: Real = 1e-3,
    *,
    inclusion: Inclusion = None,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""FedAdam: FedOpt with Adam at the server, as the paper has it.

    $$ m_t = \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t, \qquad v_t = \beta_2 v_{t-1} + (1 - \beta_2)
       \Delta_t^2, \qquad x_{t+1} = x_t - \eta \frac{m_t}{\sqrt{v_t} + \tau} $$

    $m_{-1} = 0$ and $v_{-1} = \tau^2$; there is no bias correction. $\Delta_t$ and all else are
    those of `fed_opt`. Flower's first steps differ: it starts at $v_{-1} = 0$ and multiplies $\eta$
    by $\sqrt{1 - \beta_2^{t+2}} / (1 - \beta_1^{t+2})$.

    Args:
        optimizer, period: as in `fed_avg`.
        outer_step: $\eta$, tuned in the paper.
        beta1, beta2: $\beta_1$ and $\beta_2$, in [0, 1).
        epsilon: $\tau$, the degree of adaptivity, from 1e-18 to 1e18.
        inclusion, via: as in `fed_avg`.

    Raises:
        ValueError: as `fed_avg`, or if $\eta$ is not positive, or $\tau$, $\beta_1$ or $\beta_2$ is
            out of range.

    Source: Reddi et al., "Adaptive federated optimization", 2021, Algorithm 2.
    """
    checks.number("fed_adam: beta2", beta2, "[0, 1)")

    def second(v, delta):
        return beta2 * v + (1 - beta2) * delta**2

    outer = _adaptive("fed_adam", outer_step, beta1, epsilon, second)
    return client_updates("fed_adam", optimizer, period, outer, inclusion, via)


class _Moments(NamedTuple):
    """State of `_adaptive`: the first and second moments, m and v, leaves as the parameters'."""

    first: Params
    second: Params


def _adaptive(
    name: str,
    outer_step: Real,
    beta1: Real,
    epsilon: Real,
    second: Callable[[jax.Array, jax.Array], jax.Array],
) -> optax.GradientTransformation:
    r"""Returns the server's optimizer of Algorithm 2, $x - \eta m_t / (\sqrt{v_t} + \tau)$.

    Args:
        name: the method's, for error messages.
        outer_step, beta1, epsilon: $\eta$, $\beta_1$, $\tau$.
        second: $(v_{t-1}, \Delta_t) \mapsto v_t$, of one leaf.
    """
    checks.number(f"{name}: outer_step", outer_step, "(0, 3e38]")
    checks.number(f"{name}: beta1", beta1, "[0, 1)")
    # so that its square is a normal float32
    checks.number(f"{name}: epsilon", epsilon, "[1e-18, 1e18]")

    def init(params):
        return _Moments(optax.tree.zeros_like(params), optax.tree.full_like(params, epsilon**2))

    def update(updates, state, params=None):
        m = jax.tree.map(
            lambda m, delta: (beta1 * m + (1 - beta1) * delta).astype(m.dtype), state.first, updates
        )
        v = jax.tree.map(lambda v, delta: second(v, delta).astype(v.dtype), state.second, updates)

        def step(m, v):
            return (-outer_step * wide(m) / (jnp.sqrt(wide(v)) + epsilon)).astype(m.dtype)

        return jax.tree.map(step, m, v), _Moments(m, v)

    return optax.GradientTransformation(init, update)
