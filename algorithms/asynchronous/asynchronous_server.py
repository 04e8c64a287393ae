"""Asynchronous methods with a server that makes a custom step with each gradient that arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from algorithms import methods, optimizers
from algorithms.asynchronous import arrivals
from algorithms.asynchronous import delays as delays_
from dsgd import checks, communication, network, workers
from dsgd.base import Algorithm, Params, PyTree, Query, Round, State
from dsgd.engine import indices

_MOST_SERVERS = 10**5


class Arrival(NamedTuple):
    """The gradient that arrives, as the server's step sees it.

    Args:
        worker: that computed it, int32 scalar.
        staleness: updates since the model was read that the gradient was computed at, $t - D(t)$: a
            tree like the parameters of int32 leaves, scalars if there is one server; of several,
            each element has that of its server.
    """

    worker: jax.Array
    staleness: PyTree


class Server(NamedTuple):
    """The servers' part of the state.

    Args:
        model: the present one, an `optimizers.Model` or what `start` makes of it.
        buffer: earlier models that are still in use, cut into the servers' parts,
            `[P, models, part]`.
        events: what is about to happen, () if the staleness is given.
    """

    model: Any
    buffer: jax.Array
    events: Any


@checks.arguments
def asynchronous_server(
    name: str,
    optimizer: optax.GradientTransformation,
    step: Annotated[
        Callable[[Any, Params, Arrival, Params], Any], "(model, gradient, arrival, read)"
    ],
    delays: delays_.Delays | None = None,
    *,
    servers: int = 1,
    bound: int | None = None,
    start: Annotated[Callable[[optimizers.Model], Any], "(model)"] | None = None,
) -> Algorithm:
    r"""Returns the asynchronous method with this server step, which is made with each gradient that
    arrives.

    $$ x_{t+1} = \text{step}(x_t, g_t(x_{D(t)}), t - D(t), x_{D(t)}) $$

    A round is one update. Asynchronous SGD with delay compensation (Zheng et al., 2017) in full:

        def delay_compensated_sgd(optimizer, weight):
            def step(model, gradient, arrival, read):
                gradient = jax.tree.map(lambda g, x, old: g + weight * g * g * (x - old), gradient,
                model.params, read) return optimizers.step(optimizer, model, gradient)

            return asynchronous_server("delay_compensated_sgd", optimizer, step)

    Args:
        name: for tables and error messages; options of the method in brackets at its end.
        optimizer: of the server.
        step: (model, gradient, arrival, read) -> model. The model is an
            `algorithms.optimizers.Model`; `optimizers.step` returns the next one; the gradient has
            the shapes of the parameters; the `Arrival` is its worker and its staleness; and `read`
            are the parameters that it was computed at.
        delays: D(t), from `algorithms.delays`; None: it emerges from the seconds of the run's
            cluster.
        servers: P, each of one part of the model with its own staleness.
        bound: tau of bounded staleness: the server does not take a gradient while another one would
            grow too old; None: it takes any.
        start: model -> what the server has at the start, a NamedTuple with `params` and what else
            the step needs; None: the model.

    Raises:
        ValueError: as of `asynchronous_sgd`.
    """
    optimizers.require_descent(optimizer)
    method, _, own = name.partition("(")
    servers = checks.positive_int(f"{method}: servers", servers, most=_MOST_SERVERS)
    delays, bound = _validated(method, delays, bound)

    def init(params, N):
        if bound is not None and bound < N - 1:
            raise ValueError(
                f"{method}: bound = {bound} with {N} workers, who all read the first model: need "
                f"at least {N - 1}"
            )
        models = N if delays is None else delays.bound + 1
        buffer = jnp.repeat(cut(params, servers)[:, None], models, axis=1)
        events = arrivals.first_events(N, servers) if delays is None else ()
        model = optimizers.start(optimizer, params)
        return State(Server(model if start is None else start(model), buffer, events))

    def following(state: State, round: Round) -> tuple[arrivals.Arrival, Params]:
        """What arrives next, and the parameters that it was computed at."""
        server: Server = state.server
        if delays is None:
            bits = communication.bits.of_tree(workers.stack(server.model.params, 1)) / servers
            now = arrivals.following(server.events, arrivals.on_cluster(round), bits, bound)
        else:
            now = _given(method, delays, server, round)
        return now, unshard(server.buffer[jnp.arange(servers), now.slots], server.model.params)

    def query(state, round):
        now, read = following(state, round)
        return Query(read, workers=now.worker[None])

    def update(state, gradients, round):
        round.require_all(arrivals.NO_ROUNDS)
        now, read = following(state, round)
        if delays is not None:
            words = f"delays.{delays.name} gives a staleness of {{}}; expected 0 to {delays.bound}, and at most t in update t"
            wrong = indices.outside(now.staleness, jnp.minimum(round.step, delays.bound))
            round.refuse_if(~jnp.isnan(wrong), words, wrong)
        arrival = Arrival(now.worker, _of_elements(now.staleness, read))
        model = step(state.server.model, methods.first(gradients), arrival, read)
        checks.require_same(
            f"{method}: step gives the model", model, state.server.model, types=True
        )
        buffer = state.server.buffer.at[jnp.arange(servers), now.write].set(
            cut(model.params, servers)
        )
        round.event(gradients, now.worker[None], now.elapsed, network.asynchronous_server)
        round.log(staleness=jnp.max(now.staleness), worker=now.worker)
        return State(Server(model, buffer, now.events))

    how = [
        delays.name if delays else "",
        f"servers={servers}" * (servers > 1),
        "" if bound is None else f"bound={bound}",
    ]
    how = list(filter(None, [*how, own.removesuffix(")")]))
    return Algorithm(
        f"{method}({', '.join(how)})" if how else method,
        init,
        query,
        update,
        lambda state: state.server.model.params,
    )


def _validated(
    method: str, delays: delays_.Delays | None, bound: int | None
) -> tuple[delays_.Delays | None, int | None]:
    """Both with bounds as integers of Python.

    Raises:
        ValueError: both are given, or a bound is no integer in its range.
    """
    if delays is not None and bound is not None:
        raise ValueError(
            f"{method}: bound = {bound} with delays.{delays.name}, which has its own: need one of "
            "the two"
        )
    if bound is not None:
        bound = checks.natural(f"{method}: bound", bound, most=2**30)
    if delays is not None:
        delays = delays._replace(
            bound=checks.natural(
                f"{method}: bound of {delays.name}", delays.bound, most=delays_.MOST
            )
        )
    return delays, bound


def _given(method: str, delays: delays_.Delays, server: Server, round: Round) -> arrivals.Arrival:
    """A worker drawn as in SGD, and the staleness of the rule. The model after t updates is at
    place t mod (tau + 1).
    """
    if round.cluster is not None:
        raise ValueError(
            f"{method} with delays.{delays.name} on a cluster: D(t) is given and has no time; "
            "need a run without a cluster, or delays=None"
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
        raise ValueError(
            f"delays.{delays.name}: staleness returned {checks.typed(staleness)}; expected int32 "
            f"[{parts}], one of each part"
        )
    worker = jax.random.randint(round.key, (1,), 0, round.workers)[0]
    return arrivals.Arrival(
        worker, staleness, places[staleness], jnp.full(parts, (t + 1) % models), None, ()
    )


def _of_elements(staleness: jax.Array, params: Params) -> PyTree:
    """The staleness `[P]` of the servers' parts as that of the parameters' elements."""
    if len(staleness) == 1:
        return jax.tree.map(lambda leaf: staleness[0], params)
    parts = cut(params, len(staleness))
    whole_numbers = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, staleness.dtype), params)
    return unshard(jnp.broadcast_to(staleness[:, None], parts.shape), whole_numbers)


def cut(params: Params, parts: int) -> jax.Array:
    """The model as equal parts of one vector, the last filled up with zeros, `[P, part]`."""
    flat = ravel_pytree(params)[0]
    return jnp.pad(flat, (0, -flat.size % parts)).reshape(parts, -1)


def unshard(parts: jax.Array, like: Params) -> Params:
    """The model that `cut` has made into these parts, `[P, part]`, with the shapes and types of
    `like`.
    """
    flat, unravel = ravel_pytree(like)
    return unravel(parts.ravel()[: flat.size])
