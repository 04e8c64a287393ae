"""DC-ASGD: asynchronous SGD with delay compensation."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_server import asynchronous_server
from algorithms.facts import method
from dsgd import Algorithm, checks
from dsgd.extend import Params, PyTree, Real


class Compensated(NamedTuple):
    """A model and the moving average v of squared gradients."""

    params: Params
    optimizer: PyTree
    v: Params


@method(
    sends="one gradient to the server, the model back",
    needs=("all workers",),
    paper="Zheng et al., 2017",
    page="how_to/clusters/asynchronous.md",
    aliases=("delay_compensated_sgd",),
    variants={"adaptive": {"decay": 0.95}},
)
@checks.arguments
def dc_asgd(
    optimizer: optax.GradientTransformation, weight: Real = 0.04, decay: Real | None = None
) -> Algorithm:
    r"""DC-ASGD: asynchronous SGD that compensates the delay of a gradient to first order, with
    the squared gradient in the place of the Hessian's diagonal.

    $$ x_{t+1} = x_t - \gamma \big(g + \lambda\, g \odot g \odot (x_t - x_{t - \tau_t})\big),
       \qquad g = g(x_{t - \tau_t}) $$

    With `decay` = m, the adaptive variant divides $\lambda$ by $\sqrt{v_{t+1} + 10^{-7}}$, where
    $v_{t+1} = m v_t + (1 - m)\, g \odot g$ and $v_0 = 0$. A round is one gradient.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        weight: lambda, at least 0. The paper has 0.04, and 2 for the adaptive variant.
        decay: m, in [0, 1), 0.95 in the paper; None: the equation.

    Raises:
        ValueError: if the weight is negative, or the decay is not in [0, 1).

    Source: Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", 2017.
    """
    weight = checks.number("dc_asgd: weight", weight, "[0, inf)")
    if decay is not None:
        decay = checks.number("dc_asgd: decay", decay, "[0, 1)")

    def start(model, N):
        v = () if decay is None else optax.tree.zeros_like(model.params)
        return Compensated(model.params, model.optimizer, v)

    def step(model, gradient, arrival, read):
        v, scale = (), jax.tree.map(lambda g: jnp.asarray(weight, g.dtype), gradient)
        if decay is not None:
            v = optimizers.moving_average(decay, model.v, jax.tree.map(jnp.square, gradient))
            scale = jax.tree.map(lambda v: weight / jnp.sqrt(v + 1e-7), v)
        gradient = jax.tree.map(
            lambda g, scale, x, old: g + scale * g * g * (x - old),
            *(gradient, scale, model.params, read),
        )
        plain = optimizers.Model(model.params, model.optimizer)
        return Compensated(*optimizers.step(optimizer, plain, gradient), v)

    name = f"dc_asgd({weight}{'' if decay is None else f', {decay}'})"
    return asynchronous_server(name, optimizer, step, start=start)
