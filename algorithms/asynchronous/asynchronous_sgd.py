"""Asynchronous SGD: the survey's chapter 4."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.asynchronous import delays as delays_
from algorithms.asynchronous.asynchronous_server import asynchronous_server
from dsgd import checks
from dsgd.base import Algorithm, Params, PyTree


@checks.arguments
def asynchronous_sgd(
    optimizer: optax.GradientTransformation,
    delays: delays_.Delays | None = None,
    *,
    servers: int = 1,
    bound: int | None = None,
    staleness_aware: bool = False,
) -> Algorithm:
    r"""Asynchronous SGD: the server makes a step with every gradient that arrives, whatever model
    it was computed at.

    $$ x_{t+1} = x_t - \gamma\, g_t(x_{D(t)}), \qquad 0 \le t - D(t) \le \tau $$

    A round is one update, of one worker's gradient. Updates are atomic, part by part. The staleness
    emerges: each worker reads, computes and sends in the time that the run's cluster takes for it
    (without a cluster, everybody computes for a second). Or it is given: then a worker is drawn
    uniformly for each update, and there is no clock. The history has each record's `worker`, and
    its `staleness` (of several parts, the largest).

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` is the equation.
        delays: D(t), from `algorithms.delays`; None: it emerges.
        servers: P, each of one part of the model with its own staleness.
        bound: tau of bounded staleness: the server does not take a gradient while another one would
            grow too old; None: it takes any.
        staleness_aware: divide the step by $\max(1, t - D(t))$, part by part.

    Raises:
        ValueError: servers < 1 or above 10^5, not a rule for D(t), one whose bound is above 10^6, a
            bound beside given delays. When it runs: a bound below N - 1, since N workers read the
            first model; a cluster beside given delays; a staleness outside the bound.

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
    """The server's step; if it is `aware` of the staleness, it is divided by it.

    Args:
        optimizer, model, gradient: of the server.
        staleness: int32 leaves, of a tree like the parameters or of a prefix of it.
        aware: whether the staleness counts.
    """

    def divided(old, new, staleness):
        return jnp.where(staleness > 1, old + (new - old) / jnp.maximum(1, staleness), new)

    after = optimizers.step(optimizer, model, gradient)
    if not aware:
        return after
    return after._replace(
        params=jax.tree.map(
            divided, model.params, after.params, jax.tree.broadcast(staleness, model.params)
        )
    )
