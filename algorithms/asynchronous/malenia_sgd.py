"""Malenia: steps with the means of all workers' gradients at the current model."""

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
from dsgd import Algorithm, checks, workers
from dsgd.extend import Params, PyTree, Real


class Collected(NamedTuple):
    """The server's state: a model, the number of its steps, and for each worker the sum, leaves
    `[N, ...]`, and the number of its gradients at this model.
    """

    params: Params
    optimizer: PyTree
    steps: jax.Array
    totals: Params
    counts: jax.Array


@method(
    sends="one gradient to the server, the model back",
    exact="any data",
    needs=("all workers",),
    paper="Tyurin and Richtárik, 2023, method 6",
    page="how_to/clusters/asynchronous.md",
    aliases=("malenia",),
    settings={"batch": 3.5},
    candidates={"any problem": [{"batch": (1, 32, 128)}]},
)
@checks.arguments
def malenia_sgd(optimizer: optax.GradientTransformation, batch: Real) -> Algorithm:
    r"""Malenia: the server collects gradients at the current model until the harmonic mean of the
    workers' numbers of gradients is large enough, and makes a step with the mean over workers of
    their means; gradients at earlier models are ignored.

    $$ x_{k+1} = x_k - \frac{\gamma}{N} \sum_n \frac{1}{B_n} \sum_{b=1}^{B_n} g_{nb}(x_k), \qquad
       \Big(\frac1N \sum_n \frac1{B_n}\Big)^{-1} \ge \frac{S}{N} $$

    Workers may have different data. $S = \max(1, \lceil \sigma^2/\epsilon \rceil)$ and
    $\gamma = 1/(2L)$ reach $E|f'|^2 \le \epsilon$ in optimal time. A round is one gradient; the
    history has `server_steps`, and the `delay` of the last gradient.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        batch: S, greater than 0. With S <= N a step waits for one gradient of each worker.
            It may be swept.

    Raises:
        ValueError: if the batch is not greater than 0.

    Source: Tyurin and Richtarik, "Optimal time complexities of parallel stochastic optimization
    methods under a fixed computation model", 2023, method 6.
    """
    batch = checks.number("malenia_sgd: batch", batch, "(0, inf)")
    start, collect = collection(optimizer, batch)

    def step(model, gradient, arrival, read):
        after = collect(model, gradient, arrival.worker)
        return jax.tree.map(partial(jnp.where, arrival.delay == 0), after, model)

    return asynchronous_server(f"malenia_sgd({batch})", optimizer, step, start=start)


def collection(
    optimizer: optax.GradientTransformation, batch: Real
) -> tuple[Callable[[optimizers.Model, int], Collected], Callable[..., Any]]:
    """Returns the server's part: the function (model, N) -> its initial state, and the function
    (state, gradient, worker) -> its state after a gradient at the current model.

    Args:
        optimizer: the server's step.
        batch: S.
    """

    def start(model, N):
        zeros = workers.replicate(optax.tree.zeros_like(model.params), N)
        return Collected(
            model.params, model.optimizer, jnp.int32(0), zeros, jnp.zeros(N, jnp.int32)
        )

    def collect(model, gradient, n):
        N = len(model.counts)
        totals = jax.tree.map(lambda rows, g: rows.at[n].add(g), model.totals, gradient)
        counts = model.counts.at[n].add(1)
        # N^2 <= S sum_n 1 / B_n, which is not so while a worker has no gradient
        enough = jnp.sum(1 / counts) * batch <= N**2
        mean = mean_of_means(totals, counts)
        stepped = optimizers.step(optimizer, optimizers.Model(model.params, model.optimizer), mean)
        no_totals, no_counts = optax.tree.zeros_like((totals, counts))
        return jax.tree.map(
            partial(jnp.where, enough),
            Collected(stepped.params, stepped.optimizer, model.steps + 1, no_totals, no_counts),
            model._replace(totals=totals, counts=counts),
        )

    return start, collect


def mean_of_means(totals: Params, counts: jax.Array) -> Params:
    """Returns the mean over workers of the means of their gradients.

    Args:
        totals: sums of gradients, leaves `[N, ...]`.
        counts: their numbers, int32 `[N]`; the mean of none is 0.
    """

    def mean(leaf):
        each = leaf / workers.align(jnp.maximum(counts, 1), leaf).astype(leaf.dtype)
        return jnp.mean(each, axis=0)

    return jax.tree.map(mean, totals)
