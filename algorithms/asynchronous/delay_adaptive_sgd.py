"""Asynchronous SGD with steps that depend on the delay of the gradient."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_server import asynchronous_server
from algorithms.asynchronous.asynchronous_sgd import divided_step
from algorithms.facts import method
from dsgd import Algorithm, checks
from dsgd.extend import Params, PyTree, Real


class Sized(NamedTuple):
    """A model and the number of workers, int32 scalar."""

    params: Params
    optimizer: PyTree
    workers: jax.Array


@method(
    sends="one gradient to the server, the model back",
    needs=("all workers",),
    paper="Mishchenko et al., 2022; Koloskova et al., 2022",
    page="how_to/clusters/asynchronous.md",
    variants={"late": {"late": 2.5}},
)
@checks.arguments
def delay_adaptive_sgd(
    optimizer: optax.GradientTransformation, late: Real | None = None
) -> Algorithm:
    r"""Delay-adaptive asynchronous SGD: the server makes smaller steps with gradients of a large
    delay $\tau_t$, the number of steps since the model was read.

    $$ x_{t+1} = x_t - \gamma \min\Big(1, \frac{N}{\tau_t}\Big) g(x_{t - \tau_t}) $$

    With `late` = c, steps are full for $\tau_t \le 2N$, and later ones have the factor
    $\min(1, c / \tau_t)$. The paper's step $1/(4 L \tau_t)$ is $c = 1/(4 L \gamma)$; c = 0 ignores
    late gradients. A round is one gradient.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation. The factor multiplies
            the change of the model.
        late: c, at least 0; None: the equation.

    Raises:
        ValueError: if c is negative.

    Source: Mishchenko, Bach, Even and Woodworth, "Asynchronous SGD beats minibatch SGD under
    arbitrary delays", 2022; with `late`: Koloskova, Stich and Jaggi, "Sharper convergence
    guarantees for asynchronous SGD for distributed and federated learning", 2022.
    """
    if late is not None:
        late = checks.number("delay_adaptive_sgd: late", late, "[0, inf)")

    def start(model, N):
        return Sized(model.params, model.optimizer, jnp.int32(N))

    def step(model, gradient, arrival, read):
        def divisor(x, delay):
            wide = delay.astype(x.dtype)
            if late is None:
                return wide / model.workers.astype(x.dtype)
            return jnp.where(delay > 2 * model.workers, wide / late, 1)

        divisors = jax.tree.map(divisor, model.params, arrival.staleness)
        plain = optimizers.Model(model.params, model.optimizer)
        return Sized(*divided_step(optimizer, plain, gradient, divisors), model.workers)

    name = "delay_adaptive_sgd" if late is None else f"delay_adaptive_sgd({late})"
    return asynchronous_server(name, optimizer, step, start=start)
