"""Asynchronous methods whose server makes a custom step with each gradient that arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
from dsgd.extend import Params, PyTree, Real, first_outside

_MOST_SERVERS = 10**5


class Arrival(NamedTuple):
    """What arrives, as passed to the server's step.

    Args:
        worker: the worker that computed it, int32 scalar.
        staleness: $t - D(t)$, number of updates since the model was read at which the gradient was
            computed. A tree like the parameters with int32 leaves: scalars with one server; with
            several servers, each element has the staleness of its server.
        delay: number of steps that the server made since then, int32 scalar, if its state counts
            them in `steps`; else ().
        job: number of the job, int32 scalar: that of its worker, unless the server gives jobs to
            others.
        lost: whether it was cut, so that the gradient is 0, bool scalar; never without `timeouts`.
        key: for random choices of the step.
    """

    worker: jax.Array
    staleness: PyTree
    delay: Any = ()
    job: Any = ()
    lost: jax.Array | bool = False
    key: Any = ()


class Jobs(NamedTuple):
    """The jobs of all workers after the server's step, as passed to `order`; a job is a model that
    was read and the computation at it.

    Args:
        worker: the worker that computes each job, int32 `[J]`, J = N.
        waiting: whether it waits, as that of the arrival does, bool `[J]`.
        delay: number of steps that the server made since its model was read, int32 `[J]`, 0 if it
            is not yet read; () if its state does not count them.
    """

    worker: jax.Array
    waiting: jax.Array
    delay: Any


class LocalRuns(NamedTuple):
    r"""Local training between two messages of a worker: H steps of its own optimizer from the model
    x that it has read. It then sends x - y, where y is its model after them.

    Args:
        optimizer: the workers' optimizer, which has a new state in each run.
        steps: H, an integer, or one for each worker.
        pull: $\rho$ of the objective $f_n(y) + \frac\rho2 |y - x|^2$ that it minimizes.
    """

    optimizer: optax.GradientTransformation
    steps: int | Sequence[int]
    pull: Real = 0.0


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
        local: the models of local runs, an `optimizers.Model` with leaves `[J, ...]`; () without
            them.
    """

    model: Any
    buffer: jax.Array
    events: Any
    steps: Any = ()
    local: Any = ()


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
    order: Annotated[
        Callable[[Any, Arrival, Jobs, jax.Array], jax.Array], "(model, arrival, jobs, key)"
    ]
    | None = None,
    local: LocalRuns | None = None,
    timeouts: float | Sequence[float] | None = None,
    concurrency: int | None = None,
) -> Algorithm:
    r"""Returns the asynchronous method whose server makes a custom step with each gradient that
    arrives.

    $$ x_{t+1} = \text{step}(x_t, g_t(x_{D(t)}), t - D(t), x_{D(t)}) $$

    A round is one gradient. A complete example, asynchronous SGD with delay compensation (Zheng et
    al., 2017):

        def delay_compensated_sgd(optimizer, weight):
            def step(model, gradient, arrival, read):
                def compensated(g, x, old):
                    return g + weight * g * g * (x - old)

                gradient = jax.tree.map(compensated, gradient, model.params, read)
                return optimizers.step(optimizer, model, gradient)

            return asynchronous_server("delay_compensated_sgd", optimizer, step)

    Each arrival is one gradient sent, and each computation that begins is one model received; a
    computation that is stopped or cut sends nothing. The history has each record's `worker` and
    `staleness`, when the computation of the gradient `began` and `ended` on the clock, and when its
    job `resumed` (NaN: it waits); with time-outs and workers that leave, whether it was `lost`.

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
        order: (model, arrival, jobs, key) -> int32 `[N]`, after the step: for each job, the worker
            that now receives the current model and computes the job; -1: the job goes on, or waits
            if it is that of the arrival. A job that goes on is stopped if it is given a worker. A
            worker with several jobs computes one gradient at a time. None: the arrival's worker
            begins again.
        local: training of the workers between two messages; `gradient` is then x - y of a run, and
            a round is one gradient of one worker. None: each gradient is sent.
        timeouts: seconds after which a worker cuts a gradient and asks for the current model, one
            number or one for each worker; the step then gets `arrival.lost`. None: never.
        concurrency: number of workers that compute from the start on, the first ones; the others
            wait until the order begins their jobs. None: all.

    Raises:
        ValueError: see `asynchronous_sgd`; if an option is not for one server without `delays` or
            `bound`; if steps, time-outs or concurrency are not positive, steps or time-outs not one
            for each worker, or the concurrency is larger than N or without an order.
    """
    method, _, own = name.partition("(")
    optimizers.require_descent(optimizer)
    servers = checks.positive_int(f"{method}: servers", servers, most=_MOST_SERVERS)
    delays, bound = _validate(method, delays, bound)
    for option, given in {"order": order, "local": local, "timeouts": timeouts}.items():
        if given is not None and (servers > 1 or delays or bound is not None):
            raise ValueError(
                f"{method}: {option} with several servers, delays or a bound; expected one server "
                "and a staleness that results from the cluster"
            )
    for one in np.ravel([] if local is None else local.steps).tolist():
        checks.positive_int(f"{method}: steps of local runs", one)
    for one in np.ravel([] if timeouts is None else timeouts).tolist():
        checks.number(f"{method}: timeouts", one, "(0, 3e38]")
    if concurrency is not None:
        concurrency = checks.positive_int(f"{method}: concurrency", concurrency)
        if order is None:
            raise ValueError(
                f"{method}: concurrency = {concurrency} without an order; expected one that begins "
                "the jobs of workers that wait"
            )
    rule = Rule(
        method,
        optimizer,
        step,
        delays,
        servers,
        bound,
        start,
        order,
        local,
        timeouts,
        concurrency,
    )
    how = [
        delays.name if delays else "",
        f"servers={servers}" * (servers > 1),
        "" if bound is None else f"bound={bound}",
    ]
    how = list(filter(None, [*how, own.removesuffix(")")]))
    return Algorithm(
        f"{method}({', '.join(how)})" if how else method,
        rule.init,
        rule.query,
        rule.update,
        lambda state: state.server.model.params,
    )


@dataclass(frozen=True, eq=False)
class Rule:
    """A method of `asynchronous_server`; fields are its arguments.

    Args:
        name: of the method, without options.
        optimizer, step, delays, servers, bound, start, order, local, timeouts, concurrency: as
            there.
    """

    name: str
    optimizer: optax.GradientTransformation
    step: Callable[[Any, Params, Arrival, Params], Any]
    delays: delays_.Delays | None
    servers: int
    bound: int | None
    start: Callable[[optimizers.Model, int], Any] | None
    order: Callable[[Any, Arrival, Jobs, jax.Array], jax.Array] | None
    local: LocalRuns | None
    timeouts: float | Sequence[float] | None
    concurrency: int | None

    def init(self, params: Params, N: int) -> State:
        """Returns the state at the start: all workers have read the initial model."""
        if self.bound is not None and self.bound < N - 1:
            raise ValueError(
                f"{self.name}: bound = {self.bound} with {N} workers; expected at least N - 1 = "
                f"{N - 1}, because all workers start from the initial model"
            )
        if self.concurrency is not None and self.concurrency > N:
            raise ValueError(
                f"{self.name}: concurrency = {self.concurrency} with {N} workers; expected at most "
                f"{N}"
            )
        runs, events, models = (), (), 0
        if self.delays is not None:
            models = self.delays.bound + 1
        else:
            events = arrivals.first_events(N, self.servers, self.options(N))
            models = N
        if self.local is not None:
            runs, models = optimizers.init_local(self.local.optimizer, params, N), N + 1
        buffer = jnp.repeat(shard(params, self.servers)[:, None], models, axis=1)
        model = self.initial_model(params, N)
        counts = jnp.zeros(models, jnp.int32) if hasattr(model, "steps") else ()
        return State(Server(model, buffer, events, counts, runs))

    def initial_model(self, params: Params, N: int) -> Any:
        """Returns the initial model: an `optimizers.Model`, or what `start` returns."""
        model = optimizers.init(self.optimizer, params)
        return model if self.start is None else self.start(model, N)

    def make_step(self, model: Any, gradient: Params, arrival: Arrival, read: Params) -> Any:
        """Returns the model after the step; its type is validated."""
        after = self.step(model, gradient, arrival, read)
        checks.require_same(f"{self.name}: step gives the model", after, model, types=True)
        return after

    def decide(self, model: Any, arrival: Arrival, jobs: Jobs, key: jax.Array) -> jax.Array:
        """Returns what `order` does; its type is validated."""
        assert self.order is not None
        orders = self.order(model, arrival, jobs, key)
        checks.require_same(f"{self.name}: order gives", orders, jobs.worker, types=True)
        return orders

    def query(self, state: State, round: Round) -> Query:
        """Asks the worker of the next arrival."""
        now = self._next(state.server, round)
        return Query(now.at, workers=now.event.worker[None])

    def update(self, state: State, gradients: PyTree, round: Any) -> State:
        """Makes the server's step, and begins the next computations."""
        if round.cluster is None or round.cluster.spells is None:
            round.require_all(arrivals.NO_ROUNDS)
        now = self._next(state.server, round)
        server, event = now.server, now.event
        before, counts, runs = server.model, server.steps, server.local
        message = methods.first(gradients)
        if self.local is not None:
            runs, message = _step_run(self.local, runs, now, message)
        if self.timeouts is not None:
            message = jax.tree.map(lambda leaf: jnp.where(event.lost, 0, leaf), message)
        delay = before.steps - counts[event.slots[0]] if hasattr(before, "steps") else ()
        staleness = _element_staleness(event.staleness, now.read)
        key = jax.random.fold_in(round.key, 3)  # 1 and 2: the cluster's, and the order's
        arrival = Arrival(event.worker, staleness, delay, event.job, event.lost, key)
        model = self.make_step(before, message, arrival, now.read)
        loses = self.delays is None and now.round.cluster.spells is not None
        if self.local is not None or (loses and self.timeouts is None):
            steps = event.sends if self.timeouts is None else event.sends | event.lost
            model = jax.tree.map(partial(jnp.where, steps), model, before)
        if self.delays is None:
            after = self._proceed(now, model, arrival, gradients, round)
            events, write = after.events, after.write
        else:
            words = (
                f"delays.{self.delays.name} returned a staleness of {{}}; expected 0 to "
                f"{self.delays.bound}, and at most t in update t"
            )
            wrong = first_outside(event.staleness, jnp.minimum(round.step, self.delays.bound))
            round.refuse_if(~jnp.isnan(wrong), words, wrong)
            round.event(gradients, event.worker[None], None, network.asynchronous_server)
            events, write = (), jnp.full(self.servers, (round.step + 1) % server.buffer.shape[1])
        buffer = server.buffer.at[jnp.arange(self.servers), write].set(
            shard(model.params, self.servers)
        )
        if hasattr(model, "steps"):
            counts = counts.at[write[0]].set(model.steps)
            round.log(delay=delay, server_steps=model.steps)
        round.log(staleness=jnp.max(event.staleness), worker=event.worker)
        return State(Server(model, buffer, events, counts, runs))

    def options(self, N: int) -> arrivals.Options:
        """Returns what jobs are, for N workers."""
        steps = timeouts = None
        if self.local is not None:
            given = f"{self.name}: steps of local runs", self.local.steps
            steps = methods.by_worker(*given, N).astype(np.int32)
        if self.timeouts is not None:
            timeouts = methods.by_worker(f"{self.name}: timeouts", self.timeouts, N)
        return arrivals.Options(self.bound, steps, timeouts, self.concurrency)

    def _next(self, server: Server, round: Round) -> _Next:
        """Returns the next event, and the models of its gradient."""
        bits = communication.bits.row_bits(workers.replicate(server.model.params, 1)) / self.servers
        options = self.options(round.workers)
        if self.delays is not None:
            placed, event = round, _rule_arrival(self.name, self.delays, server, round)
        else:
            placed = arrivals.with_cluster(round)
            server = server._replace(events=arrivals.start_first(server.events, placed, options))
            event = arrivals.next_arrival(server.events, placed, bits, options)
        parts = server.buffer[jnp.arange(self.servers), event.slots]
        read = at = unshard(parts, server.model.params)
        first: Any = True
        if options.steps is not None:
            first = server.events.left[event.job] == jnp.asarray(options.steps)[event.worker]
            own = jax.tree.map(lambda rows: rows[event.job], server.local.params)
            at = jax.tree.map(partial(jnp.where, first), read, own)
        return _Next(event, server, placed, bits, options, read, at, first)

    def _proceed(
        self, now: _Next, model: Any, arrival: Arrival, gradients: PyTree, round: Any
    ) -> arrivals.After:
        """Returns what follows the event, and records it."""
        event, pending = now.event, now.server.events
        orders, receives = self._orders(now, model, arrival, round), None
        if orders is not None:
            receives = jnp.zeros(round.workers, jnp.uint32).at[orders].add(orders >= 0, mode="drop")
        elif event.lost is not False:
            receives = jnp.zeros(round.workers, jnp.uint32).at[event.worker].set(1)
        after = arrivals.proceed(pending, event, orders, now.round, now.bits, now.options)
        cluster, clock = now.round.cluster, now.round.clock
        if self.order is not None or event.lost is not False or cluster.power is not None:
            words = (
                "no computation will ever end at {} s: all workers have left, or wait for a server "
                "that waits for them; expected workers that stay, or an order that lets one begin"
            )
            round.refuse_if(jnp.isinf(after.ready), words, clock)
        sender = jnp.where(event.sends, event.worker, -1)[None]
        pattern = network.asynchronous_server
        round.event(gradients, sender, after.elapsed, pattern, receives=receives)
        times = {"began": after.began, "ended": after.ready, "resumed": after.resumed}
        round.log(**{name: clock + seconds for name, seconds in times.items()})
        if event.lost is not False:
            round.log(lost=event.lost)
        return after

    def _orders(self, now: _Next, model: Any, arrival: Arrival, round: Any) -> jax.Array | None:
        """Returns who begins each job now, int32 `[J]`; None: the event's worker begins again."""
        event, pending, jobs = now.event, now.server.events, jnp.arange(round.workers)
        if self.order is not None:
            waiting = pending.waiting | (jobs == event.job)
            delay: Any = ()
            if hasattr(model, "steps"):
                delay = model.steps - now.server.steps[pending.slot[:, 0]]
                fresh = waiting | (pending.read[:, 0] > event.applied)
                delay = jnp.where(fresh, 0, delay)
            of = Jobs(pending.worker, waiting, delay)
            orders = self.decide(model, arrival, of, jax.random.fold_in(round.key, 2))
            words = f"{self.name}: order gives worker {{}}; expected -1 to {round.workers - 1}"
            wrong = first_outside(orders + 1, round.workers)
            round.refuse_if(~jnp.isnan(wrong), words, wrong - 1)
        elif self.local is not None:
            orders = jnp.where(jobs == event.job, event.worker, -1)
        else:
            return None
        return orders if self.local is None else jnp.where(event.sends | event.lost, orders, -1)


class _Next(NamedTuple):
    """The next event.

    Args:
        event: which.
        server: the servers' state, with all jobs begun.
        round: the round on a cluster.
        bits: of a shard.
        options: what jobs are.
        read: the model that was read.
        at: the model at which the gradient is computed.
        first: whether it is the first gradient of a local run.
    """

    event: arrivals.Arrival
    server: Server
    round: Round
    bits: float
    options: arrivals.Options
    read: Params
    at: Params
    first: Any


def local_step(
    local: LocalRuns, model: optimizers.Model, read: Params, gradient: Params
) -> optimizers.Model:
    """Makes a step of a local run, which began at the model `read`."""
    if not (isinstance(local.pull, int | float) and local.pull == 0):
        gradient = jax.tree.map(
            lambda g, y, x: g + local.pull * (y - x), gradient, model.params, read
        )
    return optimizers.step(local.optimizer, model, gradient)


def _step_run(
    local: LocalRuns, runs: optimizers.Model, now: _Next, gradient: Params
) -> tuple[optimizers.Model, Params]:
    """Makes a step of the event's local run. Returns all runs' models, and the change x - y of this
    one.
    """
    fresh = optimizers.first_memory(local.optimizer, now.read, now.round.key)
    kept = jax.tree.map(lambda rows: rows[now.event.job], runs.optimizer)
    memory = jax.tree.map(partial(jnp.where, now.first), fresh, kept)
    after = local_step(local, optimizers.Model(now.at, memory), now.read, gradient)
    runs = jax.tree.map(lambda rows, row: rows.at[now.event.job].set(row), runs, after)
    return runs, jax.tree.map(jnp.subtract, now.read, after.params)


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
    return arrivals.Arrival(jnp.int32(0), worker, staleness, places[staleness])


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
