"""Asynchronous SGD: the survey's chapter 4."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from algorithms import methods, optimizers
from algorithms.asynchronous import arrivals
from algorithms.asynchronous import delays as delays_
from algorithms.asynchronous.arrivals import Arrival
from dsgd import checks, communication, network, workers
from dsgd.base import Algorithm, Params, Query, Round, State
from dsgd.engine import indices

_MOST_SERVERS = 10**5


class Server(NamedTuple):
    """The servers' part of the state.

    Args:
        model: the present one.
        buffer: earlier models that are still in use, cut into the servers' parts, `[P, models, part]`.
        events: what is about to happen, () where the staleness is given.
    """

    model: optimizers.Model
    buffer: jax.Array
    events: Any


@checks.arguments
def asynchronous_sgd(
    optimizer: optax.GradientTransformation,
    delays: delays_.Delays | None = None,
    *,
    servers: int = 1,
    bound: int | None = None,
    staleness_aware: bool = False,
) -> Algorithm:
    r"""Asynchronous SGD: the server makes a step with every gradient that arrives, whatever model it was computed at.

    $$ x_{t+1} = x_t - \gamma\, g_t(x_{D(t)}), \qquad 0 \le t - D(t) \le \tau $$

    A round is one update, of one worker's gradient. Updates are atomic, part by part. The staleness emerges: each worker reads, computes
    and sends in the time that the run's cluster takes for it (without a cluster, everybody computes for a second). Or it is given: then
    a worker is drawn uniformly for each update, and there is no clock. The history has each record's `worker`, and its `staleness` (of
    several parts, the largest).

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` is the equation.
        delays: D(t), from `algorithms.delays`; None: it emerges.
        servers: P, each of one part of the model with its own staleness.
        bound: tau of bounded staleness: the server does not take a gradient while another one would grow too old; None: it takes any.
        staleness_aware: divide the step by $\max(1, t - D(t))$, part by part.

    Raises:
        ValueError: servers < 1 or above 10^5, not a rule for D(t), one whose bound is above 10^6, a bound beside given delays. When it
            runs: a bound below N - 1, since N workers read the first model; a cluster beside given delays; a staleness outside the bound.

    Source: Liu and Zhang, section 4.1; bounded staleness: Ho et al., "More effective distributed ML via a stale synchronous parallel
    parameter server", 2013; staleness-aware steps: Zhang et al., "Staleness-aware async-SGD for distributed deep learning", 2016.
    """
    optimizers.require_descent(optimizer)
    servers = checks.positive_int("asynchronous_sgd: servers", servers, most=_MOST_SERVERS)
    if delays is not None and bound is not None:
        raise ValueError(f"asynchronous_sgd: bound = {bound} with delays.{delays.name}, which has its own: need one of the two")
    if bound is not None:
        bound = checks.natural("asynchronous_sgd: bound", bound, most=2**30)
    if delays is not None:
        delays = delays._replace(bound=checks.natural(f"asynchronous_sgd: bound of {delays.name}", delays.bound, most=delays_.MOST))

    def init(params, N):
        if bound is not None and bound < N - 1:
            raise ValueError(f"asynchronous_sgd: bound = {bound} with {N} workers, who all read the first model: need at least {N - 1}")
        models = N if delays is None else delays.bound + 1
        buffer = jnp.repeat(cut(params, servers)[:, None], models, axis=1)
        events = arrivals.start(N, servers) if delays is None else ()
        return State(Server(optimizers.start(optimizer, params), buffer, events))

    def arrival(state: State, round: Round) -> Arrival:
        server: Server = state.server
        if delays is not None:
            return _given(delays, server, round)
        bits = communication.bits.of_tree(workers.stack(server.model.params, 1)) / servers
        return arrivals.following(server.events, arrivals.on_cluster(round), bits, bound)

    def query(state, round):
        now = arrival(state, round)
        parts = state.server.buffer[jnp.arange(servers), now.slots]
        return Query(join(parts, state.server.model.params), workers=now.worker[None])

    def update(state, gradients, round):
        round.require_all(arrivals.NO_ROUNDS)
        now = arrival(state, round)
        if delays is not None:
            words = f"delays.{delays.name} gives a staleness of {{}}; expected 0 to {delays.bound}, and at most t in update t"
            wrong = indices.outside(now.staleness, jnp.minimum(round.step, delays.bound))
            round.refuse_if(~jnp.isnan(wrong), words, wrong)
        model = stale_step(optimizer, state.server.model, methods.first(gradients), now.staleness, staleness_aware)
        buffer = state.server.buffer.at[jnp.arange(servers), now.write].set(cut(model.params, servers))
        round.event(gradients, now.worker[None], now.elapsed, network.asynchronous_server)
        round.log(staleness=jnp.max(now.staleness), worker=now.worker)
        return State(Server(model, buffer, now.events))

    how = [delays.name if delays else "", f"servers={servers}" * (servers > 1), "" if bound is None else f"bound={bound}"]
    how = list(filter(None, [*how, "staleness_aware" * staleness_aware]))
    name = "asynchronous_sgd" + f"({', '.join(how)})" * bool(how)
    return Algorithm(name, init, query, update, lambda state: state.server.model.params)


def _given(delays: delays_.Delays, server: Server, round: Round) -> Arrival:
    """A worker drawn as in SGD, and the staleness of the rule. The model after t updates is at place t mod (tau + 1)."""
    if round.cluster is not None:
        raise ValueError(
            f"asynchronous_sgd with delays.{delays.name} on a cluster: D(t) is given and has no time;"
            " need a run without a cluster, or delays=None"
        )
    parts, models = server.buffer.shape[:2]
    t = round.step
    places = (t - jnp.arange(models)) % models

    def moved():
        buffer = workers.widened(server.buffer)
        return jnp.sum((buffer[:, places] - buffer[:, t % models][:, None]) ** 2, axis=2)

    staleness = delays.staleness(jax.random.fold_in(round.key, 1), t, parts, moved)
    given = isinstance(staleness, jax.Array | np.ndarray) and staleness.shape == (parts,)
    if not given or not jnp.issubdtype(staleness.dtype, jnp.integer):
        raise ValueError(f"delays.{delays.name}: staleness returned {checks.typed(staleness)}; expected int32 [{parts}], one of each part")
    worker = jax.random.randint(round.key, (1,), 0, round.workers)[0]
    return Arrival(worker, staleness, places[staleness], jnp.full(parts, (t + 1) % models), None, ())


def stale_step(
    optimizer: optax.GradientTransformation, model: optimizers.Model, gradient: Params, staleness: jax.Array, aware: bool
) -> optimizers.Model:
    """The server's step with a gradient whose parts are so stale, int32 `[P]`; where it is `aware` of that, each part's step is divided."""
    after = optimizers.step(optimizer, model, gradient)
    return after._replace(params=_shortened(model.params, after.params, staleness)) if aware else after


def _shortened(before: Params, after: Params, staleness: jax.Array) -> Params:
    """The step divided by the staleness of each part, where it is more than 1."""
    old, new = (cut(params, staleness.shape[0]) for params in (before, after))
    times = staleness[:, None]
    return join(jnp.where(times > 1, old + (new - old) / jnp.maximum(1, times), new), after)


def cut(params: Params, parts: int) -> jax.Array:
    """The model as equal parts of one vector, the last filled up with zeros, `[P, part]`."""
    flat = ravel_pytree(params)[0]
    return jnp.pad(flat, (0, -flat.size % parts)).reshape(parts, -1)


def join(parts: jax.Array, like: Params) -> Params:
    """The model of which these are the parts, with the shapes and types of `like`."""
    flat, unravel = ravel_pytree(like)
    return unravel(parts.ravel()[: flat.size])
