"""Kimad: EF21 in both directions with compressors that adapt to the bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from algorithms import optimizers
from algorithms.facts import method
from algorithms.kimad import budgets, monitors, updates
from algorithms.kimad.allocation import uniform
from algorithms.kimad.budgets import Numbers
from algorithms.kimad.choices import CompressorSet, from_compressors
from algorithms.kimad.exchange import Config, Server, Worker, exchange
from algorithms.kimad.monitors import Monitor
from algorithms.kimad.updates import Update
from dsgd import checks, communication, workers
from dsgd.base import Algorithm, Compressor, State

Number = Annotated[float | jax.Array, "a number"]

_NEEDS_ALL = "a worker that misses a message of the server no longer has its estimate of the model"
_TOO_LONG = (
    "a message has {:,.0f} bits more than round_time leaves for it; pass a longer round_time, "
    'smaller ratios, or too_small="wait"'
)


@method(
    sends=(
        "compressed differences of gradients to one server, of models back, with as many bits "
        "as the bandwidth allows"
    ),
    exact="any data",
    needs=("contractive compressor", "all workers"),
    paper="Kimad, 2023, Algorithms 1 and 3",
    page="how_to/kimad.md",
    settings=None,
)
@checks.arguments
def kimad_sgd(
    optimizer: optax.GradientTransformation,
    compressors: CompressorSet | Sequence[Compressor],
    round_time: Number,
    *,
    computation: Numbers | None = None,
    congestion: Number = 1.0,
    rule: Annotated[Callable[[Any, Any, Any], Any], "(errors, sizes, budget)"] = uniform,
    monitor: Monitor = monitors.last,
    down: CompressorSet | Sequence[Compressor] | None = None,
    weights: Sequence[float] | np.ndarray | None = None,
    update: Update = updates.gradient,
    warm_up: int = 0,
    too_small: Literal["wait", "error"] = "wait",
) -> Algorithm:
    r"""Kimad: EF21 in both directions, where each sender chooses a compressor for each layer in
    every round, so that its message fills the time that the round leaves for it.

    $$ \hat u_m^k = \hat u_m^{k-1} + C_m^k(u_m^k - \hat u_m^{k-1}), \quad u_m^k = A^{update}_m(\hat
    x^k), \qquad
       x^{k+1} = x^k - \gamma^k \sum_m w_m \hat u_m^k $$
    $$ \hat x^{k+1} = \hat x^k + C^{k+1}(x^{k+1} - \hat x^k), \qquad C = A^{compress}(\Omega, \cdot,
    \hat B, t) $$

    A worker's $\hat B$ is its monitor's estimate of its own uplink. The server sends one message to
    all workers; its $\hat B$ is the estimate of the slowest downlink. `kimad.budget` converts these
    to bits, and the rule makes the choice: `kimad.uniform` (Kimad) or `kimad.allocate`
    (Kimad+). With `kimad.whole_model(...)` there is only one layer. Before a link has carried a
    message (and without a cluster), it uses the most accurate compressors of the set. The estimates
    of the updates start at 0 and that of the model at $x_0$, so the first message of Algorithm 1 is
    empty and is not sent: a round ends with the server's message.

    The recorded bits are those of the messages between each worker and the server: packed values
    and indices, and the compressor of each layer. On several devices every device computes the
    server's step, and the traffic between devices is an all-reduce of the decoded messages, and
    each worker's numbers for the history.

    The history contains, for the record's round: `message_up` `[N]` and `message_down` (bits),
    `error_up` `[N]` and `error_down` (squared norm of the compression error), and `missing` (the
    largest number of bits so far by which a message exceeded its budget). On a cluster it also
    contains `estimated_up` and `estimated_down` (the monitors' estimates, bits per second `[N]`),
    `bandwidth_up` and `bandwidth_down` (the true mean bandwidths over the seconds planned for the
    message). All except `missing` are NaN in rounds without messages.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        compressors: Omega: `kimad.top_k(ratios)`, or a list of compressors; all contractions.
        round_time: t, seconds, without latencies.
        computation: T_comp, seconds, a number or `[N]`, before messages start; None: the time that
            each worker measured for its last update.
        congestion: a, seconds of the downlink for each second of the uplink, see `kimad.budget`. If
            it is 0, the downlink's time is neglected, and the server's message uses the most
            accurate compressors of the set.
        rule: (errors `[layers, choices]`, sizes in bits `[layers, choices]`, budget in bits) -> the
            choice of each layer, int32 `[layers]`.
        monitor: estimates the bandwidths of the links: `kimad.last`,
            `kimad.exponential_average(w)`, `kimad.harmonic_mean(W)`, or `kimad.oracle`.
        down: the server's Omega; None: the same as the workers'.
        weights: w_m, `[N]`, which need not add up to 1 (in the paper's experiments each is 1);
            None: 1/N.
        update: A^update: `kimad.gradient`, or `kimad.local_steps(optimizer, H)`, with which only
            every H-th round sends.
        warm_up: number of sending rounds at the start in which messages are not compressed.
        too_small: what happens if even the rule's smallest message exceeds its budget. "wait": it
            is sent, and the round takes longer; "error": the run ends with an error.

    Raises:
        ValueError: if there are no compressors, only one of the two sets works layer by layer,
            times are not positive or leave no time for messages, weights are negative, or
            `too_small` is not one of the two. At the start of a run: if weights or times are for
            another N, a compressor declares no contraction for a layer, a layer has no elements, or
            workers do not participate or messages are lost on the cluster. During a run: if a
            message exceeds its budget and `too_small` is "error".

    Source: Xin et al., "Kimad: adaptive gradient compression with bandwidth awareness", 2023,
    Algorithms 1 and 3.
    """
    optimizers.require_descent(optimizer)
    up_set = _make_choices("compressors", compressors)
    down_set = up_set if down is None else _make_choices("down", down)
    communication.require_two("kimad_sgd", up_set, down_set)
    seconds = _require_times(round_time, computation, congestion)
    shares = None if weights is None else _require_weights(weights)
    # The number of rounds is smaller than 2^31.
    warm_up = min(checks.natural("kimad_sgd: warm_up", warm_up), 2**31 - 1)
    if too_small not in ("wait", "error"):
        raise ValueError(f"kimad_sgd: too_small = {too_small!r}; expected 'wait' or 'error'")

    terms = Config(
        optimizer,
        up_set,
        down_set,
        rule,
        monitor,
        round_time,
        seconds,
        congestion,
        shares,
        update.period,
        warm_up,
    )

    def init(params, N):
        for what, values in (("weights", shares), ("computation", seconds)):
            if values is not None and values.shape not in ((), (N,)):
                raise ValueError(
                    f"kimad_sgd: {what} has {values.shape[0]} entries for {N} workers; "
                    "expected one for each worker"
                )
        vectors = communication.flatten(workers.replicate(params, 1), up_set.layer_wise)
        for choices in (up_set, down_set):
            communication.require_contraction("kimad_sgd", choices, vectors)
        nothing = jax.tree.map(jnp.zeros_like, params)
        start = optimizers.init(optimizer, params)
        server = Server(
            start, nothing, params, budgets.first_memory(monitor, N), jnp.zeros((), jnp.float32)
        )
        return State(server, Worker(workers.replicate(nothing, N), update.start(params, N)))

    def query(state, round):
        return update.query(state.workers.memory, state.server.estimate)

    def step(state, gradients, round):
        round.require_all(_NEEDS_ALL)
        links = budgets.update_monitor(monitor, state.server.links, round.timings)
        server, known = state.server._replace(links=links), state.workers.estimate
        memory, own = update.step(state.workers.memory, server.estimate, gradients)

        def send(server, worker):
            after, estimates = exchange(terms, server, worker.estimate, own, round)
            return after, Worker(estimates, update.begin(worker.memory, after.estimate))

        server, worker = round.every(update.period, send, server, Worker(known, memory))
        round.log(missing=server.missing)
        if too_small == "error":
            round.refuse_if(server.missing > 0, _TOO_LONG, server.missing)
        return State(server, worker)

    words = [
        up_set.name,
        *([down_set.name] if down is not None else []),
        _name_of(rule),
        monitor.name,
        *filter(None, [update.name]),
    ]
    return Algorithm(
        f"kimad_sgd({', '.join(words)})", init, query, step, lambda state: state.server.model.params
    )


def _make_choices(what: str, compressors: CompressorSet | Sequence[Compressor]) -> CompressorSet:
    if not compressors:
        raise ValueError(f"kimad_sgd: {what} = []; expected at least one compressor")
    return compressors if isinstance(compressors, CompressorSet) else from_compressors(compressors)


def _name_of(rule: Any) -> str:
    if isinstance(rule, partial):
        options = ", ".join(f"{name}={value!r}" for name, value in rule.keywords.items())
        return f"{_name_of(rule.func)}({options})"
    return getattr(rule, "__name__", "a rule")


def _require_times(
    round_time: Number, computation: Numbers | None, congestion: Number
) -> np.ndarray | jax.Array | None:
    """Validates the times; returns T_comp as an array."""
    for what, value in (("round_time", round_time), ("congestion", congestion)):
        if jnp.ndim(value):
            raise ValueError(f"kimad_sgd: {what} = {checks.show(value)}; expected a number")
    budgets.require_times("kimad_sgd", round_time, congestion)
    if computation is None or isinstance(computation, Tracer):
        return computation
    seconds = np.array(computation, float)
    if seconds.ndim > 1 or not seconds.size or not (seconds >= 0).all():
        raise ValueError(
            f"kimad_sgd: computation = {checks.show(computation)}; expected seconds >= 0, one "
            "number or one for each worker"
        )
    if not isinstance(round_time, Tracer) and not seconds.max() < round_time:
        raise ValueError(
            f"kimad_sgd: round_time = {round_time} s with a computation of {seconds.max():g} s; "
            "expected a longer round_time, which leaves time for messages"
        )
    return seconds


def _require_weights(weights: Sequence[float] | np.ndarray) -> np.ndarray:
    given = np.array(weights, float)
    if given.ndim != 1 or not np.isfinite(given).all() or (given < 0).any() or not given.sum() > 0:
        raise ValueError(
            f"kimad_sgd: weights = {checks.show(weights)}; expected finite numbers >= 0, one for "
            "each worker, not all 0"
        )
    return given
