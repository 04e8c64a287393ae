"""Ringleader: a step with each arriving gradient and a table of all workers' gradients."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_server import asynchronous_server
from algorithms.asynchronous.malenia_sgd import mean_of_means
from algorithms.facts import method
from dsgd import Algorithm, checks, workers
from dsgd.extend import Params, PyTree


class Tables(NamedTuple):
    """The server's state.

    Args:
        params, optimizer: the model.
        steps: number of the server's steps.
        totals, counts: for each worker the sum, leaves `[N, ...]`, and the number of its gradients
            in this round.
        next_totals, next_counts: of its gradients for the next round.
        waiting: workers that make a step with their next gradient, bool `[N]`; if there are none,
            the round collects one gradient of each worker.
    """

    params: Params
    optimizer: PyTree
    steps: jax.Array
    totals: Params
    counts: jax.Array
    next_totals: Params
    next_counts: jax.Array
    waiting: jax.Array


@method(
    sends="one gradient to the server, the model back",
    exact="any data",
    needs=("all workers",),
    paper="Maranjyan and Richtárik, 2025, algorithm 1",
    page="how_to/clusters/asynchronous.md",
    aliases=("ringleader", "ringleader_asgd"),
    candidates={"any problem": [{}]},
)
@checks.arguments
def ringleader_sgd(optimizer: optax.GradientTransformation) -> Algorithm:
    r"""Ringleader: asynchronous SGD with a table of the workers' gradients, for different data.

    $$ x_{k+1} = x_k - \frac{\gamma}{N} \sum_n \frac{1}{b_n} G_n $$

    $G_n$ is the sum of $b_n$ gradients of worker n. The rounds of the server have two parts. First
    it collects until it has a gradient of each worker, and makes a step with the last one. Then it
    makes a step with the next gradient of each other worker, which is added to the table; further
    gradients of a worker that has made its step are kept for the next round. No gradient is
    ignored, and none is older than 2 N - 2 steps. (A round of the run is one gradient.) The history
    has `server_steps`, and the `delay` of the last gradient.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.

    Source: Maranjyan and Richtarik, "Ringleader ASGD: the first asynchronous SGD with optimal time
    complexity under data heterogeneity", 2025, algorithm 1.
    """

    def start(model, N):
        zeros = workers.replicate(optax.tree.zeros_like(model.params), N)
        none = jnp.zeros(N, jnp.int32)
        return Tables(
            model.params,
            model.optimizer,
            jnp.int32(0),
            zeros,
            none,
            zeros,
            none,
            jnp.zeros(N, bool),
        )

    def step(model, gradient, arrival, read):
        n, second = arrival.worker, jnp.any(model.waiting)
        early = second & ~model.waiting[n]  # this worker has made its step in this round

        def added(early_rows, rows):
            return jax.tree.map(
                lambda new, old: jnp.where(early == early_rows, new, old),
                (
                    jax.tree.map(lambda rows, g: rows.at[n].add(g), rows[0], gradient),
                    rows[1].at[n].add(1),
                ),
                rows,
            )

        totals, counts = added(False, (model.totals, model.counts))
        following = added(True, (model.next_totals, model.next_counts))
        steps = jnp.where(second, model.waiting[n], jnp.all(counts > 0))
        stepped = optimizers.step(
            optimizer,
            optimizers.Model(model.params, model.optimizer),
            mean_of_means(totals, counts),
        )
        params, memory = jax.tree.map(
            partial(jnp.where, steps), tuple(stepped), (model.params, model.optimizer)
        )
        waiting = jnp.where(second, model.waiting, steps).at[n].set(False)
        # After the last step of a round the gradients that were kept are those of the next one.
        ends = steps & ~jnp.any(waiting)
        current, following = (
            jax.tree.map(partial(jnp.where, ends), new, old)
            for new, old in (
                (following, (totals, counts)),
                (optax.tree.zeros_like(following), following),
            )
        )
        (totals, counts), (next_totals, next_counts) = current, following
        return Tables(
            params,
            memory,
            model.steps + steps,
            totals,
            counts,
            next_totals,
            next_counts,
            waiting,
        )

    return asynchronous_server("ringleader_sgd", optimizer, step, start=start)
