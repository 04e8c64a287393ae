"""Asynchronous methods whose server makes a custom step with each gradient that arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from algorithms import methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms import arrivals
from algorithms.mechanisms import delays as delays_
from dsgd import Algorithm, Query, Round, State, checks, communication, network, workers
from dsgd.extend import Params, PyTree, first_outside

_MOST_SERVERS = 10**5


class Arrival(NamedTuple):
    """An arriving gradient, as passed to the server's step.

    Args:
        worker: the worker that computed it, int32 scalar.
        staleness: $t - D(t)$, number of updates since the model was read at which the gradient was
            computed. A tree like the parameters with int32 leaves: scalars with one server; with
            several servers, each element has the staleness of its server.
        delay: number of steps that the server made since then, int32 scalar, if its state counts
            them in `steps`; else ().
    """

    worker: jax.Array
    staleness: PyTree
    delay: Any = ()


class Counted(NamedTuple):
    """A model and the number of steps that the server made."""

    params: Params
    optimizer: PyTree
    steps: jax.Array


class Server(NamedTuple):
    """The servers' part of the state.

    Args:
        model: the current model, an `optimizers.Model` or what `start` returns.
        buffer: earlier models that are still in use, as the servers' shards, `[P, models, part]`.
        events: pending events; () if the staleness is given.
        steps: number of the server's steps before each model of the buffer, int32 `[models]`; () if
            the state does not count them.
    """

    model: Any
    buffer: jax.Array
    events: Any
    steps: Any = ()


@method(
    sends="one gradient to the server or servers, the model back",
    needs=("all workers",),
    paper="with a custom step of the server",
    page="how_to/own_method/asynchronous.md",
    settings=None,
)
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
    start: Annotated[Callable[[optimizers.Model, int], Any], "(model, N)"] | None = None,
) -> Algorithm:
    r"""Returns the asynchronous method whose server makes a custom step with each gradient that
    arrives.

    $$ x_{t+1} = \text{step}(x_t, g_t(x_{D(t)}), t - D(t), x_{D(t)}) $$

    A round is one update. A complete example, asynchronous SGD with delay compensation (Zheng et
    al., 2017):

        def delay_compensated_sgd(optimizer, weight):
            def step(model, gradient, arrival, read):
                def compensated(g, x, old):
                    return g + weight * g * g * (x - old)

                gradient = jax.tree.map(compensated, gradient, model.params, read)
                return optimizers.step(optimizer, model, gradient)

            return asynchronous_server("delay_compensated_sgd", optimizer, step)

    Args:
        name: for tables and error messages; options of the method go in brackets at its end.
        optimizer: the server's optimizer.
        step: (model, gradient, arrival, read) -> model. `model` is an
            `algorithms.optimizers.Model`, and `optimizers.step` returns the next one; `gradient`
            has the shapes of the parameters; `arrival` contains its worker and its staleness;
            `read` is the parameters at which it was computed.
        delays: D(t), from `algorithms.delays`; None: it results from the times of the run's
            cluster.
        servers: P, number of servers, each with one shard of the model and its own staleness.
        bound: tau of bounded staleness: the server delays a gradient if accepting it would make
            another one too stale; None: it accepts any.
        start: (model, N) -> the server's initial state, a NamedTuple with `params` and everything
            else that the step needs; with a field `steps` for a server that does not make a step
            with every gradient, or that ignores old ones by their delay; None: the model.

    Raises:
        ValueError: see `asynchronous_sgd`.
    """
    optimizers.require_descent(optimizer)
    method, _, own = name.partition("(")
    servers = checks.positive_int(f"{method}: servers", servers, most=_MOST_SERVERS)
    delays, bound = _validate(method, delays, bound)

    def init(params, N):
        if bound is not None and bound < N - 1:
            raise ValueError(
                f"{method}: bound = {bound} with {N} workers; expected at least N - 1 = {N - 1}, "
                "because all workers start from the initial model"
            )
        models = N if delays is None else delays.bound + 1
        buffer = jnp.repeat(shard(params, servers)[:, None], models, axis=1)
        events = arrivals.first_events(N, servers) if delays is None else ()
        model = optimizers.init(optimizer, params)
        model = model if start is None else start(model, N)
        counts = jnp.zeros(models, jnp.int32) if hasattr(model, "steps") else ()
        return State(Server(model, buffer, events, counts))

    def next_arrival(state: State, round: Round) -> tuple[arrivals.Arrival, Params]:
        """Returns the next arrival and the parameters at which its gradient was computed."""
        server: Server = state.server
        if delays is None:
            bits = communication.bits.row_bits(workers.replicate(server.model.params, 1)) / servers
            now = arrivals.next_arrival(server.events, arrivals.with_cluster(round), bits, bound)
        else:
            now = _rule_arrival(method, delays, server, round)
        return now, unshard(server.buffer[jnp.arange(servers), now.slots], server.model.params)

    def query(state, round):
        now, read = next_arrival(state, round)
        return Query(read, workers=now.worker[None])

    def update(state, gradients, round):
        round.require_all(arrivals.NO_ROUNDS)
        now, read = next_arrival(state, round)
        if delays is not None:
            words = (
                f"delays.{delays.name} returned a staleness of {{}}; expected 0 to "
                f"{delays.bound}, and at most t in update t"
            )
            wrong = first_outside(now.staleness, jnp.minimum(round.step, delays.bound))
            round.refuse_if(~jnp.isnan(wrong), words, wrong)
        before, counts = state.server.model, state.server.steps
        delay = before.steps - counts[now.slots[0]] if hasattr(before, "steps") else ()
        arrival = Arrival(now.worker, _element_staleness(now.staleness, read), delay)
        model = step(state.server.model, methods.first(gradients), arrival, read)
        checks.require_same(
            f"{method}: step gives the model", model, state.server.model, types=True
        )
        buffer = state.server.buffer.at[jnp.arange(servers), now.write].set(
            shard(model.params, servers)
        )
        if hasattr(model, "steps"):
            counts = counts.at[now.write[0]].set(model.steps)
            round.log(delay=delay, server_steps=model.steps)
        round.event(gradients, now.worker[None], now.elapsed, network.asynchronous_server)
        round.log(staleness=jnp.max(now.staleness), worker=now.worker)
        return State(Server(model, buffer, now.events, counts))

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


def _validate(
    method: str, delays: delays_.Delays | None, bound: int | None
) -> tuple[delays_.Delays | None, int | None]:
    """Returns `delays` and `bound`, with bounds as Python integers.

    Raises:
        ValueError: if both are given, or a bound is not an integer in its range.
    """
    if delays is not None and bound is not None:
        raise ValueError(
            f"{method}: bound = {bound} with delays.{delays.name}, which has its own bound; "
            "expected one of the two"
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


def _rule_arrival(
    method: str, delays: delays_.Delays, server: Server, round: Round
) -> arrivals.Arrival:
    """Returns an arrival with a uniformly drawn worker and the staleness of the rule. The model
    after t updates has the buffer index t mod (tau + 1).
    """
    if round.cluster is not None:
        raise ValueError(
            f"{method}: delays.{delays.name} on a cluster, but given delays have no times; "
            "expected delays=None, or a run without a cluster"
        )
    parts, models = server.buffer.shape[:2]
    t = round.step
    places = (t - jnp.arange(models)) % models

    def distances():
        buffer = workers.widen(server.buffer)
        return jnp.sum((buffer[:, places] - buffer[:, t % models][:, None]) ** 2, axis=2)

    staleness = delays.staleness(jax.random.fold_in(round.key, 1), t, parts, distances)
    given = isinstance(staleness, jax.Array | np.ndarray) and staleness.shape == (parts,)
    if not given or not jnp.issubdtype(staleness.dtype, jnp.integer):
        raise ValueError(
            f"delays.{delays.name}: staleness returned {checks.kind(staleness)}; expected int32 "
            f"[{parts}], one for each part"
        )
    worker = jax.random.randint(round.key, (1,), 0, round.workers)[0]
    return arrivals.Arrival(
        worker, staleness, places[staleness], jnp.full(parts, (t + 1) % models), None, ()
    )


def _element_staleness(staleness: jax.Array, params: Params) -> PyTree:
    """Returns the staleness `[P]` of the servers' shards as a tree with the staleness of each
    parameter element.
    """
    if len(staleness) == 1:
        return jax.tree.map(lambda leaf: staleness[0], params)
    parts = shard(params, len(staleness))
    whole_numbers = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, staleness.dtype), params)
    return unshard(jnp.broadcast_to(staleness[:, None], parts.shape), whole_numbers)


def shard(params: Params, parts: int) -> jax.Array:
    """Returns the model as P equal shards of one vector, the last one padded with zeros,
    `[P, part]`.
    """
    flat = ravel_pytree(params)[0]
    return jnp.pad(flat, (0, -flat.size % parts)).reshape(parts, -1)


def unshard(parts: jax.Array, like: Params) -> Params:
    """Returns the model with the shards `parts`, `[P, part]`, and the shapes and types of `like`;
    the inverse of `shard`.
    """
    flat, unravel = ravel_pytree(like)
    return unravel(parts.ravel()[: flat.size])
