"""Picky SGD: asynchronous SGD that ignores gradients at models that are far away."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_server import Counted, asynchronous_server
from algorithms.facts import method
from dsgd import Algorithm, checks, workers
from dsgd.extend import Real


@method(
    sends="one gradient to the server, the model back",
    needs=("all workers",),
    paper="Cohen et al., 2021",
    page="how_to/clusters/asynchronous.md",
    settings={"distance": 0.5},
)
@checks.arguments
def picky_sgd(optimizer: optax.GradientTransformation, distance: Real) -> Algorithm:
    r"""Picky SGD: asynchronous SGD in which the server ignores a gradient if its model has moved by
    more than r since the model was read at which the gradient was computed.

    $$ x_{t+1} = x_t - \gamma\, g(x_{t - \tau_t}) \quad \text{if } |x_t - x_{t - \tau_t}| \le r $$

    With $r = \epsilon/(2L)$ a step follows a gradient that is correct up to $\epsilon/2$, however
    old it is. A round is one gradient; the history has `server_steps`, and the `delay` of the last
    gradient.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        distance: r, at least 0, in the Euclidean norm of all parameters.

    Raises:
        ValueError: if the distance is negative.

    Source: Cohen, Daniely, Drori, Koren and Schain, "Asynchronous stochastic optimization robust to
    arbitrary delays", 2021.
    """
    distance = checks.number("picky_sgd: distance", distance, "[0, inf)")

    def start(model, N):
        return Counted(model.params, model.optimizer, jnp.int32(0))

    def step(model, gradient, arrival, read):
        moved = optax.tree.norm(workers.widen(optax.tree.sub(model.params, read)))
        stepped = optimizers.step(
            optimizer, optimizers.Model(model.params, model.optimizer), gradient
        )
        after = Counted(*stepped, model.steps + 1)
        return jax.tree.map(partial(jnp.where, moved <= distance), after, model)

    return asynchronous_server(f"picky_sgd({distance})", optimizer, step, start=start)
