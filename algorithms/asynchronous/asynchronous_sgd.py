"""Asynchronous SGD: the survey's chapter 4."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_server import asynchronous_server
from algorithms.facts import method
from algorithms.mechanisms import delays as delays_
from dsgd import Algorithm, checks
from dsgd.extend import Params, PyTree


@method(
    sends="one gradient to the server or servers, the model back",
    needs=("all workers",),
    paper="section 4.1; Ho et al., 2013; Zhang et al., 2016",
    page="how_to/clusters/asynchronous.md",
    aliases=("asgd",),
    candidates={"any problem": [{}]},
)
@checks.arguments
def asynchronous_sgd(
    optimizer: optax.GradientTransformation,
    delays: delays_.Delays | None = None,
    *,
    servers: int = 1,
    bound: int | None = None,
    staleness_aware: bool = False,
) -> Algorithm:
    r"""Asynchronous SGD: the server makes a step with every gradient that arrives, even if it was
    computed at an earlier model.

    $$ x_{t+1} = x_t - \gamma\, g_t(x_{D(t)}), \qquad 0 \le t - D(t) \le \tau $$

    A round is one update, with one worker's gradient. Updates are atomic for each shard. By default
    the staleness results from the simulation: each worker reads, computes and sends in the time
    that the run's cluster takes for it (without a cluster, every gradient takes one second). If
    `delays` is given, it sets the staleness; then a worker is drawn uniformly for each update, and
    there is no clock. The history contains each record's `worker` and its `staleness` (with several
    shards, the largest).

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        delays: D(t), from `algorithms.delays`; None: it results from the cluster's times.
        servers: P, number of servers, each with one shard of the model and its own staleness.
        bound: tau of bounded staleness: the server delays a gradient if accepting it would make
            another one too stale; None: it accepts any.
        staleness_aware: whether to divide the step by $\max(1, t - D(t))$, for each shard.

    Raises:
        ValueError: if servers is less than 1 or more than 10^5, the bound of `delays` is more than
            10^6, or both `bound` and `delays` are given. During a run: if the bound is below N - 1
            (all N workers read the initial model), `delays` is given on a cluster, or the given
            staleness is out of range.

    Source: Liu and Zhang, section 4.1; bounded staleness: Ho et al., "More effective distributed ML
    via a stale synchronous parallel parameter server", 2013; staleness-aware steps: Zhang et al.,
    "Staleness-aware async-SGD for distributed deep learning", 2016.
    """

    def step(model, gradient, arrival, read):
        return stale_step(optimizer, model, gradient, arrival.staleness, staleness_aware)

    name = f"asynchronous_sgd{'(staleness_aware)' * staleness_aware}"
    return asynchronous_server(name, optimizer, step, delays, servers=servers, bound=bound)


def stale_step(
    optimizer: optax.GradientTransformation,
    model: optimizers.Model,
    gradient: Params,
    staleness: PyTree,
    aware: bool,
) -> optimizers.Model:
    """Makes the server's step, divided by the staleness if `aware` is set.

    Args:
        optimizer, model, gradient: of the server.
        staleness: int32 leaves, of a tree like the parameters or a prefix of it.
        aware: whether to divide by max(1, staleness).
    """

    if aware:
        return divided_step(optimizer, model, gradient, staleness)
    return optimizers.step(optimizer, model, gradient)


def divided_step(
    optimizer: optax.GradientTransformation,
    model: optimizers.Model,
    gradient: Params,
    divisor: PyTree,
) -> optimizers.Model:
    """Makes the server's step, divided by the divisor if it is above 1.

    Args:
        optimizer, model, gradient: of the server.
        divisor: leaves are integers or floats, of a tree like the parameters or a prefix of it.
    """

    def divide(old, new, divisor):
        return jnp.where(divisor > 1, old + (new - old) / jnp.maximum(1, divisor), new)

    after = optimizers.step(optimizer, model, gradient)
    divisors = jax.tree.broadcast(divisor, model.params)
    return after._replace(params=jax.tree.map(divide, model.params, after.params, divisors))
