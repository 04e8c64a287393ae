"""AsGrad: asynchronous SGD with a server that chooses the workers that compute."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from algorithms.asynchronous.asynchronous_server import asynchronous_server
from algorithms.asynchronous.rennala_sgd import Collected, collection
from algorithms.facts import method
from dsgd import Algorithm, checks
from dsgd.extend import Params, PyTree

Order = Literal["pure", "random", "shuffled"]


class Shuffled(NamedTuple):
    """The state of `rennala_sgd`'s server, and the workers that receive jobs.

    Args:
        params, optimizer, steps, total, arrived: see there.
        left: the rest of the present permutation, bool `[N]`.
        chosen: the next workers in order, int32 `[N]`; the first b receive jobs after this step.
    """

    params: Params
    optimizer: PyTree
    steps: jax.Array
    total: Params
    arrived: jax.Array
    left: jax.Array
    chosen: jax.Array


@method(
    sends="one gradient to the server, the model to a worker that the server chooses",
    needs=("all workers",),
    paper="Islamov et al., 2023",
    page="how_to/clusters/asynchronous.md",
    aliases=("asgrad",),
    settings={"order": "random"},
    variants={
        "pure": {"order": "pure", "wait": 2},
        "shuffled": {"order": "shuffled"},
    },
)
@checks.arguments
def as_grad(
    optimizer: optax.GradientTransformation,
    order: Order,
    wait: int = 1,
) -> Algorithm:
    r"""AsGrad: the server of asynchronous SGD waits for b gradients, makes a step with their mean,
    and then gives b new jobs, computations at the new model, to workers of its choice.

    $$ x_{k+1} = x_k - \frac{\gamma}{b} \sum_{i=1}^b g_{n_{ki}}(x_{k - \tau_{ki}}) $$

    Each worker has one job at first. A worker with several jobs computes one after the other, and
    one without a job waits. The order of the workers is

    - pure: those that have finished their jobs, so that fast workers compute more often;
    - random: uniformly drawn, independently for each job;
    - shuffled: a random permutation of all workers, then another one, and so on, so that all
      workers compute equally often, which different data require.

    A round is one gradient; the history has `server_steps`, and the `delay` of the last gradient.
    With b = 1, the pure order is `asynchronous_sgd`; with b = N, the pure order is mini-batch SGD.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        order: how the server chooses.
        wait: b, 1 to N.

    Raises:
        ValueError: if the order is another, or b is less than 1; during a run: if b is more than N.

    Source: Islamov, Safaryan and Alistarh, "AsGrad: a sharp unified analysis of asynchronous-SGD
    algorithms", 2023. The paper makes a step of its own with each of the b gradients: gamma there
    is $\gamma / b$ here.
    """
    if order not in get_args(Order):
        raise ValueError(
            f"as_grad: order = {checks.show(order)}; expected 'pure', 'random' or 'shuffled'"
        )
    wait = checks.positive_int("as_grad: wait", wait)
    begin, collect = collection(optimizer, wait)

    def start(model, N):
        if wait > N:
            raise ValueError(f"as_grad: wait = {wait} with {N} workers; expected at most {N}")
        first: Collected = begin(model, N)
        if order != "shuffled":
            return first
        return Shuffled(*first, jnp.ones(N, bool), jnp.zeros(N, jnp.int32))

    def step(model, gradient, arrival, read):
        after = collect(model, gradient, arrival.worker)
        if order != "shuffled":
            return after
        left, chosen = shuffle(arrival.key, model.left, wait)
        stepped = after.arrived == 0
        return after._replace(
            left=jnp.where(stepped, left, model.left),
            chosen=jnp.where(stepped, chosen, model.chosen),
        )

    def assign(model, arrival, jobs, key):
        N, rank = len(jobs.worker), jnp.cumsum(jobs.waiting) - 1
        workers = jobs.worker
        if order == "random":
            workers = jax.random.randint(key, (N,), 0, N, jnp.int32)
        if order == "shuffled":
            workers = model.chosen[rank]
        return jnp.where(jobs.waiting & (model.arrived == 0), workers, -1)

    name = f"as_grad({order}{f', {wait}' * (wait > 1)})"
    goes_on = order == "pure" and wait == 1  # as servers do without an order
    chooses = None if goes_on else assign
    return asynchronous_server(name, optimizer, step, start=start, order=chooses)


def shuffle(key: jax.Array, left: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Continues a sequence of random permutations of N workers.

    Args:
        key: random key.
        left: the rest of the present permutation, bool `[N]`.
        count: number of workers that the sequence advances by, at most N.

    Returns:
        The rest after them, and the next N workers, int32 `[N]`.
    """
    N, rest, places = len(left), jnp.sum(left), jnp.arange(len(left))
    draws = jax.random.uniform(key, (2, N))
    last, new = jnp.argsort(draws + jnp.array([~left, jnp.zeros(N, bool)]), axis=1)
    old = places < rest
    chosen = jnp.where(old, last, new[places - rest]).astype(jnp.int32)
    taken = jnp.zeros((2, N), bool).at[jnp.where(old, 0, 1), chosen].max(places < count)
    return jnp.where(count < rest, left & ~taken[0], ~taken[1]), chosen
