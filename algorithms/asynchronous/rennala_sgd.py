"""Rennala: mini-batches of the gradients that arrive first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_server import asynchronous_server
from algorithms.facts import method
from dsgd import Algorithm, checks
from dsgd.extend import Params, Period, PyTree


class Collected(NamedTuple):
    """The server's state: a model, the number of its steps, and the sum and the number of gradients
    since the last one.
    """

    params: Params
    optimizer: PyTree
    steps: jax.Array
    total: Params
    arrived: jax.Array


@method(
    sends="one gradient to the server, the model back",
    needs=("all workers",),
    paper="Tyurin and Richtárik, 2023, method 4",
    page="how_to/clusters/asynchronous.md",
    aliases=("rennala",),
    settings={"batch": 3},
    candidates={"any problem": [{"batch": (4, 16, 64)}]},
)
@checks.arguments
def rennala_sgd(optimizer: optax.GradientTransformation, batch: Period) -> Algorithm:
    r"""Rennala: the server makes a step with the mean of the first B gradients that arrive and were
    computed at the current model, by any workers; others are ignored.

    $$ x_{k+1} = x_k - \frac{\gamma}{B} \sum_{b=1}^B g_b(x_k) $$

    A worker receives the current model after each of its gradients, so that fast workers contribute
    several. For workers with equal data, $B = \max(1, \lceil \sigma^2/\epsilon \rceil)$ and
    $\gamma = 1/(2L)$ reach $E|f'|^2 \le \epsilon$ in optimal time. A round is one gradient; the
    history has `server_steps`, and the `delay` of the last gradient.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        batch: B, the number of gradients of a step. It may be swept.

    Raises:
        ValueError: if the batch is less than 1.

    Source: Tyurin and Richtarik, "Optimal time complexities of parallel stochastic optimization
    methods under a fixed computation model", 2023, method 4.
    """
    batch = checks.period("rennala_sgd: batch", batch)
    start, collect = collection(optimizer, batch)

    def step(model, gradient, arrival, read):
        after = collect(model, gradient, arrival.worker)
        return jax.tree.map(partial(jnp.where, arrival.delay == 0), after, model)

    return asynchronous_server(f"rennala_sgd({batch})", optimizer, step, start=start)


def collection(
    optimizer: optax.GradientTransformation, batch: Period
) -> tuple[Callable[[optimizers.Model, int], Collected], Callable[..., Any]]:
    """Returns the server's part: the function (model, N) -> its initial state, and the function
    (state, gradient, worker) -> its state after a gradient that counts, where the state is any with
    these fields.

    Args:
        optimizer: the server's step.
        batch: B.
    """

    def start(model, N):
        zeros = optax.tree.zeros_like(model.params)
        return Collected(model.params, model.optimizer, jnp.int32(0), zeros, jnp.int32(0))

    def collect(model, gradient, worker):
        total, count = optax.tree.add(model.total, gradient), model.arrived + 1
        mean = jax.tree.map(lambda leaf: leaf / batch, total)
        stepped = optimizers.step(optimizer, optimizers.Model(model.params, model.optimizer), mean)
        return jax.tree.map(
            partial(jnp.where, count == batch),
            model._replace(
                params=stepped.params,
                optimizer=stepped.optimizer,
                steps=model.steps + 1,
                total=optax.tree.zeros_like(total),
                arrived=jnp.zeros_like(count),
            ),
            model._replace(total=total, arrived=count),
        )

    return start, collect
