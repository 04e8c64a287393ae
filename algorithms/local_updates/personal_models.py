"""Ditto and APFL: each client trains a model of its own next to that of FedAvg."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.facts import method
from algorithms.mechanisms.personal import Parts, each, personal_updates
from dsgd import Algorithm, checks, network
from dsgd.extend import Params, Period, PyTree, Real, scale_rows


@method(
    sends="changes of the participating clients every H-th round, the model back, through a server",
    paper="Ditto: Li et al., 2021, Algorithm 1",
    settings={"period": 4, "penalty": 0.1},
)
@checks.arguments
def ditto(
    optimizer: optax.GradientTransformation,
    period: Period,
    penalty: Real,
    *,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""Ditto: FedAvg, next to which each client trains a personal model that a penalty keeps near
    the server's.

    $$ y^{(n)} \leftarrow y^{(n)} - \gamma g_n(y^{(n)}) \quad H \text{ times from } x_t, \qquad
       v_n \leftarrow v_n - \gamma \big(g_n(v_n) + \lambda (v_n - x_t)\big) \quad H \text{ times} $$

    $x_{t+1}$, participation and weights are those of `fed_avg`, and the final model is FedAvg's.
    $v_n$ starts at $x_0$, stays with the client, and approaches the minimizer of $f_n(v) +
    \frac\lambda2 |v - x|^2$. `Algorithm.personal` returns the $v_n$. A round is two gradients per
    client, of the same batch; every H-th round sends $y^{(n)}$.

    Args:
        optimizer: each client's step on each of the two models; `optax.sgd(gamma)` needs $\gamma (L
            + \lambda) < 2$. Its states start again in each period.
        period: H. It may be swept.
        penalty: $\lambda$, at least 0; with 0 clients train $v_n$ alone. The paper tunes it over
            0.05, 0.1, 0.2, 1 and 2. It may be swept.
        via: communication pattern; by default each client has its own link to the server.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1, or $\lambda$ is negative.

    Source: Li et al., "Ditto: fair and robust federated learning through personalization", 2021,
    Algorithm 1 with FedAvg.
    """
    checks.number("ditto: penalty", penalty, "[0, inf)")

    def gradients(x: Params, parts: Parts, answers: tuple[Any, ...]) -> Parts:
        at_y, at_v = answers
        pulled = jax.tree.map(
            lambda g, v, x: g + jnp.asarray(penalty, g.dtype) * (v - x[None]), at_v, parts.local, x
        )
        return Parts(at_y, pulled)

    return personal_updates(
        "ditto",
        optimizer,
        each(optimizer),
        period,
        via,
        start=lambda params: Parts(params, params),
        points=lambda parts: (parts.shared, parts.local),
        gradients=gradients,
        personal=lambda parts: parts.local,
        model=lambda parts: parts.shared,
    )


class Mixed(NamedTuple):
    r"""The part of APFL that stays with the client.

    Args:
        params: v, its local model.
        mixture: $\alpha$, the share of v in its personal model.
    """

    params: Params
    mixture: jax.Array


@method(
    sends="changes of the participating clients every H-th round, the model back, through a server",
    paper="APFL: Deng et al., 2020, Algorithm 1",
    settings={"period": 4, "mixture": 0.5},
)
@checks.arguments
def apfl(
    optimizer: optax.GradientTransformation,
    period: Period,
    mixture: Real = 0.5,
    mixture_step: Real = 0.0,
    *,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""APFL: FedAvg, next to which each client trains a mixture of a local model and the common
    one.

    $$ \bar v_n = \alpha_n v_n + (1 - \alpha_n) y^{(n)}, \qquad
       y^{(n)} \leftarrow y^{(n)} - \gamma g_n(y^{(n)}), \qquad
       v_n \leftarrow v_n - \gamma \alpha_n g_n(\bar v_n) \quad H \text{ times} $$

    $$ \alpha_n \leftarrow \mathrm{clip}\big(\alpha_n - \gamma_\alpha \langle v_n - y^{(n)},
       g_n(\bar v_n) \rangle, 0, 1\big) $$

    All gradients of a round are at the values before it. The start $y^{(n)} = x_t$, $x_{t+1}$,
    participation and weights are those of `fed_avg`, and the final model is FedAvg's. $v_n$, which
    starts at $x_0$, and $\alpha_n$ stay with the client. `Algorithm.personal` returns the $\bar
    v_n$: with $\alpha = 0$ they are FedAvg's models, with $\alpha = 1$ clients train them alone. A
    round is two gradients per client, of the same batch; every H-th round sends $y^{(n)}$.

    Args:
        optimizer: each client's step on each of the two models; its states start again in each
            period.
        period: H. It may be swept.
        mixture: $\alpha$ at the start, in [0, 1]. It may be swept.
        mixture_step: $\gamma_\alpha$, at least 0; 0: all $\alpha_n$ stay as they are. The paper has
            the step size $\gamma$. It may be swept.
        via: communication pattern; by default each client has its own link to the server.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1, $\alpha$ is not in [0, 1],
            or $\gamma_\alpha$ is negative.

    Source: Deng et al., "Adaptive personalized federated learning", 2020, Algorithm 1. fedjax's
    `apfl` steps with $g_n(\bar v_n)$ instead of $\alpha_n g_n(\bar v_n)$, and has an $\alpha$ for
    each leaf.
    """
    checks.number("apfl: mixture", mixture, "[0, 1]")
    checks.number("apfl: mixture_step", mixture_step, "[0, inf)")
    both = each(optimizer)

    def start(params: Params) -> Parts:
        return Parts(params, Mixed(params, jnp.asarray(mixture, jnp.result_type(float))))

    def mix(parts: Parts) -> Params:
        y, (v, alpha) = parts
        return jax.tree.map(jnp.add, scale_rows(alpha, v), scale_rows(1 - alpha, y))

    def gradients(x: Params, parts: Parts, answers: tuple[Any, ...]) -> Parts:
        (y, (v, alpha)), (at_y, at_mixture) = parts, answers
        slope: Any = jax.vmap(optax.tree.vdot)(optax.tree.sub(v, y), at_mixture)
        local = Mixed(scale_rows(alpha, at_mixture), slope.astype(alpha.dtype))
        return Parts(at_y, local)

    def init(params: Any) -> PyTree:
        return both.init(params._replace(local=params.local.params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        slope, alpha = updates.local.mixture, params.local.mixture
        models, of = (parts._replace(local=parts.local.params) for parts in (updates, params))
        steps: Any
        steps, state = both.update(models, state, of)
        moved = jnp.clip(alpha - jnp.asarray(mixture_step, alpha.dtype) * slope, 0, 1) - alpha
        return Parts(steps.shared, Mixed(steps.local, moved)), state

    return personal_updates(
        "apfl",
        optimizer,
        optax.GradientTransformation(init, update),
        period,
        via,
        start=start,
        points=lambda parts: (parts.shared, mix(parts)),
        gradients=gradients,
        personal=mix,
        model=lambda parts: parts.shared,
    )
