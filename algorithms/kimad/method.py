"""Kimad: EF21 in both directions, whose compressors follow the bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.core import Tracer

from algorithms import exchanges, optimizers
from algorithms.kimad import budgets, messages, monitors, plans, updates
from algorithms.kimad.allocation import one_for_all
from algorithms.kimad.budgets import Numbers
from algorithms.kimad.choices import Choices, any_of
from algorithms.kimad.monitors import Monitor
from algorithms.kimad.updates import Update
from dsgd import checks, counts, network, workers
from dsgd.base import Algorithm, Compressor, Gradients, Info, Params, PyTree, State
from dsgd.network import told

Number = Annotated[float | jax.Array, "a number"]

AWAY = "who misses a message of the server no longer has its estimate of the model"


class Server(NamedTuple):
    r"""What the server knows.

    Args:
        model: x, and its optimiser's state.
        updates: $\sum_m w_m \hat u_m$, of the estimators of the workers' updates.
        estimate: $\hat x$, which the workers have, too.
        links: what their monitors remember.
        missing: by how many bits a message was longer than its budget, at most so far.
    """

    model: optimizers.Model
    updates: Params
    estimate: Params
    links: plans.Memory
    missing: jax.Array


class Worker(NamedTuple):
    r"""What each worker knows besides $\hat x$: $\hat u_m$, and what its A^update remembers; leaves `[n, ...]`."""

    estimate: PyTree
    memory: PyTree


@checks.arguments
def kimad_sgd(
    optimizer: optax.GradientTransformation,
    compressors: Choices | Sequence[Compressor],
    round_time: Number,
    *,
    computation: Numbers | None = None,
    congestion: Number = 1.0,
    rule: Callable = one_for_all,
    monitor: Monitor = monitors.last,
    down: Choices | Sequence[Compressor] | None = None,
    weights: Sequence[float] | np.ndarray | None = None,
    update: Update = updates.gradient,
    warm_up: int = 0,
    too_small: Literal["wait", "error"] = "wait",
) -> Algorithm:
    r"""Kimad: EF21 in both directions, where all who send choose their compressors anew in every round, layer by layer, so that the
    message fills the time that the round has for it.

    $$ \hat u_m^k = \hat u_m^{k-1} + C_m^k(u_m^k - \hat u_m^{k-1}), \quad u_m^k = A^{update}_m(\hat x^k), \qquad
       x^{k+1} = x^k - \gamma^k \sum_m w_m \hat u_m^k $$
    $$ \hat x^{k+1} = \hat x^k + C^{k+1}(x^{k+1} - \hat x^k), \qquad C = A^{compress}(\Omega, \cdot, \hat B, t) $$

    A worker's $\hat B$ is its monitor's estimate of its own uplink; the server's, whose one message goes to all, is that of the slowest
    downlink. `kimad.budget` makes bits of it, and the rule chooses: `kimad.one_for_all` (Kimad), `kimad.allocate` (Kimad+); with
    `kimad.whole_model(...)` there is one layer. Before a link has carried anything (and without a cluster) its messages are the best of
    the set. Estimates of updates start at 0, that of the model at $x_0$, so that the first message of Algorithm 1 is empty, and not sent:
    a round ends with the server's message.

    Bits are those of the messages between each worker and the server: packed values and places, and which compressor each layer has. On
    several devices the server is everywhere: an all-reduce of what it makes of the messages crosses them, and each worker's numbers for
    the history.

    History, of the record's round: `message_up` `[N]` and `message_down` (bits), `error_up` `[N]` and `error_down` (the squared norm of
    what compression left out), and `missing` (bits by which a message was longer than its budget, at most so far); on a cluster also
    `estimated_up`, `estimated_down` (what monitors say, bits per second `[N]`), `bandwidth_up` and `bandwidth_down` (what was true: the
    mean over the seconds planned for the message). NaN in rounds without messages.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` is the equation.
        compressors: Omega: `kimad.top_k(ratios)`, or a list of compressors; contractions.
        round_time: t, seconds, besides latencies.
        computation: T_comp, seconds, of all or `[N]`; None: what each worker measured of its last update.
        congestion: a, seconds of the downlink for each second of the uplink, as of `kimad.budget`; where it is 0, the downlink's time is
            neglected, and the server's message is the best of the set.
        rule: (errors `[layers, choices]`, sizes likewise in bits, budget in bits) -> the choice of each layer, int32 `[layers]`.
        monitor: of the links: `kimad.last`, `kimad.exponential_average(w)`, `kimad.harmonic_mean(W)`, or `kimad.oracle`.
        down: the server's Omega; None: the same.
        weights: w_m, `[N]`, which need not add up to 1 (the paper's experiments have 1 each); None: 1/N.
        update: A^update: `kimad.gradient`, or `kimad.local_steps(optimizer, H)`, where only one round in H sends.
        warm_up: in the first so many rounds that send, all is sent as it is.
        too_small: where a message is longer than its budget, since not even the rule's smallest fits: "wait", it is sent all the same and
            the round takes longer; or "error", the run ends.

    Raises:
        ValueError: no compressors; one set layer by layer, the other of the whole model; times that are not positive, or leave nothing for
            messages; negative weights; another `too_small`; weights or times for another N; at the start, a compressor that states no
            contraction for a layer, or a layer without elements; in a run, "error".

    Source: Xin et al., "Kimad: adaptive gradient compression with bandwidth awareness", 2023, Algorithms 1 and 3.
    """
    up_set = _as_choices("compressors", compressors)
    down_set = up_set if down is None else _as_choices("down", down)
    if up_set.layer_wise != down_set.layer_wise:
        raise ValueError(f"kimad_sgd with {up_set.name} up and {down_set.name} down: need both layer by layer, or both of the whole model")
    seconds = _need_times(round_time, computation, congestion)
    shares = None if weights is None else _need_weights(weights)
    checks.natural("kimad_sgd: warm_up", warm_up)
    if too_small not in ("wait", "error"):
        raise ValueError(f"kimad_sgd: too_small = {too_small!r}; need 'wait' or 'error'")

    def init(params, N):
        for what, values in (("weights", shares), ("computation", seconds)):
            if values is not None and values.shape not in ((), (N,)):
                raise ValueError(f"kimad_sgd: {what} of {values.shape[0]} numbers for {N} workers: need one for each")
        vectors = exchanges.flat(workers.stack(params, 1), up_set.layer_wise)
        for choices in (up_set, down_set):
            exchanges.need_contraction("kimad_sgd", choices, vectors)
        nothing = jax.tree.map(jnp.zeros_like, params)
        start = optimizers.start(optimizer, params)
        server = Server(start, nothing, params, plans.start(monitor, N), jnp.zeros((), jnp.float32))
        return State(jnp.int32(0), server, Worker(workers.stack(nothing, N), update.start(params, N)))

    def query(state, round):
        return update.query(state.workers.memory, state.server.estimate)

    def send(state, own, round, key):
        """The round's messages: (server, workers' estimates, bits, metrics)."""
        server, N = state.server, round.workers
        plan = plans.plan(monitor, server.links, round, round_time, seconds, congestion, update.period)
        everything = round.step // update.period < warm_up
        up_key, down_key = jax.random.split(key)

        def of_worker(key, news, budget):
            return messages.compress(up_set, rule, key, news, budget, everything)

        difference = jax.tree.map(jnp.subtract, own, state.workers.estimate)
        sent = jax.vmap(of_worker)(workers.keys(up_key, N), exchanges.flat(difference, up_set.layer_wise), workers.own(plan.up, N))
        seen = exchanges.shaped(sent.seen, difference, up_set.layer_wise)
        total = jax.tree.map(jnp.add, server.updates, _weighted_sum(seen, shares, N))
        model = optimizers.step(optimizer, server.model, total)

        lag = workers.stack(jax.tree.map(jnp.subtract, model.params, server.estimate), 1)
        vectors = jax.tree.map(lambda row: row[0], exchanges.flat(lag, down_set.layer_wise))
        answer = messages.compress(down_set, rule, down_key, vectors, plan.down, everything)
        moved = exchanges.shaped(workers.stack(answer.seen, 1), lag, down_set.layer_wise)
        estimate = jax.tree.map(lambda x, change: x + change[0], server.estimate, moved)

        bits, errors, missing = workers.gather((sent.bits, sent.error, sent.missing))
        most = jnp.maximum(server.missing, jnp.maximum(jnp.max(missing), answer.missing))
        after = server._replace(model=model, updates=total, estimate=estimate, missing=most)
        known = jax.tree.map(jnp.add, state.workers.estimate, seen)
        metrics = {
            **plan.shown,
            "message_up": bits.astype(jnp.float32),
            "message_down": answer.bits.astype(jnp.float32),
            "error_up": errors,
            "error_down": answer.error,
        }
        n = sent.bits.shape[0]
        return after, known, (counts.of(sent.bits, n), counts.of(jnp.broadcast_to(answer.bits, (n,)), n)), metrics

    def step(key, state, gradients, round):
        links = plans.observed(monitor, state.server.links, round.measured)
        state = state._replace(server=state.server._replace(links=links))
        memory, own = update.step(state.workers.memory, state.server.estimate, gradients)

        def speak():
            server, known, bits, metrics = send(state, own, round, key)
            return server, Worker(known, update.begin(memory, server.estimate)), bits, metrics

        def be_silent():
            nothing = told.nothing(round.workers)
            unknown = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), jax.eval_shape(speak)[3])
            return state.server, Worker(state.workers.estimate, memory), (nothing.bits_up, nothing.bits_down), unknown

        result = speak() if update.period == 1 else lax.cond((round.step + 1) % update.period == 0, speak, be_silent)
        server, own, (bits_up, bits_down), metrics = result
        return State(state.step + 1, server, own), Info(bits_up, bits_down, {**metrics, "missing": server.missing})

    def refuses(records):
        missing = np.nanmax(records["missing"], initial=0.0)
        if missing <= 0:
            return ""
        return f'a message has {missing:,.0f} bits more than round_time leaves for it: need more time, smaller ratios, or too_small="wait"'

    words = [up_set.name, *([down_set.name] if down is not None else []), _name_of(rule), monitor.name, *filter(None, [update.name])]
    return Algorithm(
        init,
        query,
        step,
        lambda state: state.server.model.params,
        network.every(update.period, network.star) if update.period > 1 else network.star,
        f"kimad_sgd({', '.join(words)})",
        optimizers.learning_rate(optimizer),
        away=AWAY,
        measures=True,
        refuses=refuses if too_small == "error" else None,
    )


def _weighted_sum(seen: Gradients, shares: np.ndarray | None, N: int) -> Params:
    if shares is None:
        return workers.mean(seen)
    mine = workers.own(jnp.asarray(shares, float), N)
    return workers.sum(jax.tree.map(lambda leaf: jnp.expand_dims(mine, tuple(range(1, leaf.ndim))).astype(leaf.dtype) * leaf, seen))


def _as_choices(what: str, compressors: Choices | Sequence[Compressor]) -> Choices:
    if not compressors:
        raise ValueError(f"kimad_sgd: {what} = []: need at least one compressor")
    return compressors if isinstance(compressors, Choices) else any_of(compressors)


def _name_of(rule: Any) -> str:
    if isinstance(rule, partial):
        return f"{_name_of(rule.func)}({', '.join(f'{name}={value!r}' for name, value in rule.keywords.items())})"
    return getattr(rule, "__name__", "a rule")


def _need_times(round_time: Number, computation: Numbers | None, congestion: Number) -> np.ndarray | jax.Array | None:
    """T_comp as an array."""
    for what, value in (("round_time", round_time), ("congestion", congestion)):
        if jnp.ndim(value):
            raise ValueError(f"kimad_sgd: {what} = {checks.shown(value)}: need a number")
    budgets.need_times("kimad_sgd", round_time, congestion)
    if computation is None or isinstance(computation, Tracer):
        return computation
    seconds = np.asarray(computation, float)
    if seconds.ndim > 1 or not seconds.size or not (seconds >= 0).all():
        raise ValueError(f"kimad_sgd: computation = {checks.shown(computation)}; need seconds >= 0, of all workers or one for each")
    if not isinstance(round_time, Tracer) and not seconds.max() < round_time:
        raise ValueError(f"kimad_sgd: round_time = {round_time} s with a computation of {seconds.max():g} s: need more, for messages")
    return seconds


def _need_weights(weights: Sequence[float] | np.ndarray) -> np.ndarray:
    given = np.asarray(weights, float)
    if given.ndim != 1 or not np.isfinite(given).all() or (given < 0).any() or not given.sum() > 0:
        raise ValueError(f"kimad_sgd: weights = {checks.shown(weights)}: need finite numbers >= 0, one for each worker, not all 0")
    return given
