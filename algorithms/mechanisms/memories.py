r"""Compressed messages with memories at both ends: error feedback and compressed differences.

Worker n compresses $\eta e_n + v_n - h_n$: its vector v, the gradient or an estimate made of
gradients; its shift h, which the server also knows; and its error memory e.

| method | $\eta$ | $\lambda$ | $\nu$ | v | C |
|---|---|---|---|---|---|
| compressed SGD | | | 1 | gradient | unbiased |
| EC-SGD | 1 | | 1 | gradient | contraction |
| EF21 | | 1 | 1 | gradient | contraction |
| EF21-SGDM | | 1 | 1 | momentum | contraction |
| EControl | $\eta$ | 1 | 1 | gradient | contraction |
| DIANA | | $\alpha$ | 1 | gradient | unbiased |
| EF-BV | | $\lambda$ | $\nu$ | gradient | any |

A memory without a number is not stored. The servers have memories of the same kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.mechanisms.servers import Parts, Route, is_regularized, make_route, proximal_step
from algorithms.optimizers import Model
from dsgd import (
    Algorithm,
    Communicator,
    Compressor,
    Query,
    checks,
    communication,
    network,
    signatures,
    workers,
)
from dsgd.extend import Params, PyTree, Real

__all__ = [
    "Down",
    "Up",
    "Vector",
    "double_momentum",
    "gradient",
    "momentum",
    "steps",
    "with_memories",
]

Coefficient = Real | Callable[[tuple[int, ...], int], Any]


class Vector(NamedTuple):
    r"""The vector v that a worker wants to send, made of its gradients.

    Args:
        start: params -> the state of one worker.
        step: (state, gradient, params) of one worker -> (v, state).
        name: for tables; "" for the gradient.
        in_steps: whether v is in units of the step, so that the servers do not know $\gamma$.
    """

    start: Callable[[Params], PyTree]
    step: Callable[[PyTree, Params, Params], tuple[Params, PyTree]]
    name: str
    in_steps: bool = False


gradient: Vector = Vector(lambda params: (), lambda state, g, x: (g, state), "")
r"""$v_n = g_n(x)$."""


@checks.arguments
def momentum(momentum_step: Real) -> Vector:
    r"""The momentum $v_n \leftarrow (1 - \eta) v_n + \eta g_n(x)$, which starts at 0.

    Args:
        momentum_step: $\eta$, in (0, 1].

    Raises:
        ValueError: if the step is not in (0, 1].
    """
    checks.number("memories.momentum: momentum_step", momentum_step, "(0, 1]")

    def step(v, g, x):
        v = _average(v, momentum_step, g)
        return v, v

    return Vector(optax.tree.zeros_like, step, f"momentum({momentum_step})")


@checks.arguments
def double_momentum(momentum_step: Real) -> Vector:
    r"""The momentum, averaged a second time: $v_n \leftarrow (1 - \eta) v_n + \eta g_n(x)$, then
    $w_n \leftarrow (1 - \eta) w_n + \eta v_n$. Both start at 0, and w is compressed.

    Args:
        momentum_step: $\eta$, in (0, 1].

    Raises:
        ValueError: if the step is not in (0, 1].
    """
    checks.number("memories.double_momentum: momentum_step", momentum_step, "(0, 1]")

    def start(params):
        return optax.tree.zeros_like(params), optax.tree.zeros_like(params)

    def step(state, g, x):
        v, w = state
        v = _average(v, momentum_step, g)
        w = _average(w, momentum_step, v)
        return w, (v, w)

    return Vector(start, step, f"double_momentum({momentum_step})")


@checks.arguments
def steps(optimizer: optax.GradientTransformation) -> Vector:
    r"""The step of the worker's optimizer, $\gamma_t g_n(x)$ for `optax.sgd`, so that memories are
    in units of the step. The servers' optimizer is then `optax.sgd(1.0)`. Problems with a
    regularizer are refused, because its proximal step needs $\gamma$.

    For a constant step size of SGD the iterates are those of memories in units of the gradient, if
    $C(a x) = a C(x)$ for a > 0; with a schedule they differ.

    Args:
        optimizer: each worker's; its state stays local.
    """

    def step(memory, g, x):
        updates, memory = optimizers.update(optimizer, g, memory, x)
        return jax.tree.map(lambda update, x: -update.astype(x.dtype), updates, x), memory

    return Vector(lambda params: optimizers.init(optimizer, params).optimizer, step, "steps", True)


class Up(NamedTuple):
    r"""Messages of the workers, and the memories that they need.

    Each number may be swept. In place of a number, a function (numbers of elements of the vectors
    that are compressed, N) -> number depends on the model.

    Args:
        compressor: C.
        error: $\eta$, the weight of the error memory in the message; None: there is none.
        shift: $\lambda$, the step of the shifts; None: there are none.
        gain: $\nu$, the weight of the messages in the direction.
        decay: $\beta$, the factor of the error memory in each round.
        over: what the mean of the messages in the direction is divided by: "all" N workers, or
            those that "arrived". The shifts' mean is always over all.
    """

    compressor: Compressor
    error: Coefficient | None = None
    shift: Coefficient | None = None
    gain: Coefficient = 1.0
    decay: Coefficient = 1.0
    over: Literal["all", "arrived"] = "all"


class Down(NamedTuple):
    r"""Messages of the servers, and the memories that they need.

    Args:
        compressor: C'.
        memory: "error": C' compresses the direction and the error memory,
            $C'(\hat g + e)$; "difference": that of the model and the workers' estimate of it,
            $C'(x - \hat x)$; None: the direction.
    """

    compressor: Compressor
    memory: Literal["error", "difference"] | None = "error"


class Kept(NamedTuple):
    """What a worker keeps between rounds; None for memories that the method does not have.

    Args:
        vector: state of its `Vector`.
        shift: h, which the server also knows.
        error: e, what compression has left out so far.
        last: its last messages, from which warm-started compressors start.
    """

    vector: PyTree
    shift: Parts | None
    error: Parts | None
    last: Any


class Served(NamedTuple):
    r"""What a server keeps between rounds; None for memories that the method does not have.

    Args:
        shift: $\bar h$, the mean of the workers' shifts.
        error: e, what the compression of its replies has left out so far.
        model: x and its optimizer's state, if the workers only have an estimate of x.
        estimate: the workers' estimate of the server's shard of x, with its padding, if there are N
            servers; otherwise it is what the workers have.
        last: its last messages.
    """

    shift: Parts | None
    error: Parts | None
    model: Model | None
    estimate: Parts | None
    last: Any


def with_memories(
    name: str,
    optimizer: optax.GradientTransformation,
    up: Up,
    down: Down | None,
    *,
    vector: Vector = gradient,
    via: network.OneServer | network.NServers,
    contracting: tuple[Compressor, ...] = (),
    insist: str = "",
) -> Algorithm:
    """Returns the method `error_feedback` with a name.

    Args:
        name: for tables and error messages; ends with the arguments in brackets.
        optimizer, up, down, vector, via: as in `error_feedback`.
        contracting: compressors that must state a contraction.
        insist: as in `communication.require_contraction`.
    """
    optimizers.require_descent(optimizer)
    method = name.partition("(")[0]
    validate(method, up, down)
    route = make_route(method, up.compressor, down and down.compressor, via)
    estimated = down is not None and down.memory == "difference"

    def init(params, N):
        zeros, served = route.start(params, N)
        vectors, replies = route.compression_parts(zeros, served)
        for compressor in contracting:
            communication.require_contraction(method, compressor, replies, insist)
        nothing = optax.tree.zeros_like(served)
        kept = Kept(
            workers.replicate(vector.start(params), N),
            None if up.shift is None else zeros,
            None if up.error is None else zeros,
            communication.last_messages(up.compressor, vectors),
        )
        server = Served(
            None if up.shift is None else nothing,
            nothing if down and down.memory == "error" else None,
            route.first(optimizer, served) if estimated else None,
            served if estimated and route.sharded else None,
            communication.last_messages(down.compressor, replies) if down else (),
        )
        return route.pack(params if estimated else optimizers.init(optimizer, params), kept, server)

    def query(state, round):
        x, _, _ = route.unpack(state)
        return Query(x if estimated else x.params)

    def update(state, gradients, round):
        x, kept, server = route.unpack(state)
        at = x if estimated else x.params
        if vector.in_steps and is_regularized(round):
            raise ValueError(
                f"{method}: memories in units of the step do not know the step size of a proximal "
                "step; expected a problem without a regularizer, or a method with memories in "
                "units of the gradient, such as algorithms.ef21"
            )
        v, memory = jax.vmap(vector.step, (0, 0, None))(kept.vector, gradients, at)
        kept, server, direction = _send(
            up, route, kept, server, route.parts(v, round.workers), round
        )
        reply = _estimates if estimated else _directions
        x, server = reply(optimizer, route, x, server, direction, round)
        return route.pack(x, kept._replace(vector=memory), server)

    def model(state):
        x, _, server = route.unpack(state)
        return route.gather(server.model.params, x) if estimated else x.params

    return Algorithm(name, init, query, update, model)


def _send(
    up: Up, route: Route, kept: Kept, server: Served, v: Parts, round: Communicator
) -> tuple[Kept, Served, Parts]:
    r"""Sends the workers' messages. Returns the memories, and the direction $\hat g$."""
    sizes = route.sizes(v)
    eta, lambda_, nu, beta = (
        value(sizes, round.workers) if callable(value) else value
        for value in (up.error, up.shift, up.gain, up.decay)
    )
    target = v if kept.shift is None else optax.tree.sub(v, kept.shift)
    sent = route.send(round, _plus(target, eta, kept.error), kept.last)
    m, mean = sent.decoded, _times(workers.share_delivered(), sent.received)
    direction = _plus(server.shift, nu, sent.received if up.over == "arrived" else mean)
    error = kept.error
    if error is not None:
        error = optax.tree.sub(_plus(target, beta, error), m)
    h, h_bar = kept.shift, server.shift
    if h is not None:
        h, h_bar = _plus(h, lambda_, m), _plus(h_bar, lambda_, mean)
    after = kept._replace(shift=h, error=error, last=sent.messages)
    return workers.where_delivered(after, kept), server._replace(shift=h_bar), direction


def _directions(
    optimizer: optax.GradientTransformation,
    route: Route,
    x: Model,
    server: Served,
    direction: Parts,
    round: Communicator,
) -> tuple[Model, Served]:
    """Sends the direction to the workers, with the server's error memory if it has one, and makes
    the step of all workers.
    """
    v = _plus(direction, 1.0, server.error)
    answer = route.reply(round, v, server.last)
    error = None if server.error is None else optax.tree.sub(v, answer.decoded)
    x = proximal_step(optimizer, x, route.whole(answer.received, x.params), round)
    return x, server._replace(error=error, last=answer.messages)


def _estimates(
    optimizer: optax.GradientTransformation,
    route: Route,
    x_hat: Params,
    server: Served,
    direction: Parts,
    round: Communicator,
) -> tuple[Params, Served]:
    r"""Makes the server's step, and sends the difference between its model and the workers'
    estimate $\hat x$ of it.
    """
    assert server.model is not None
    x = route.step(optimizer, server.model, direction, round)
    estimate = x_hat if server.estimate is None else server.estimate
    answer = route.reply(round, optax.tree.sub(x.params, estimate), server.last)
    if server.estimate is not None:
        estimate = optax.tree.add(estimate, answer.decoded)
        server = server._replace(estimate=estimate)
    x_hat = optax.tree.add(x_hat, route.whole(answer.received, x_hat))
    return x_hat, server._replace(model=x, last=answer.messages)


def _plus(tree: PyTree | None, factor: Any, memory: PyTree | None) -> PyTree:
    """Returns tree + factor memory; one that is None counts as 0."""
    if memory is None or tree is None:
        return tree if memory is None else _times(factor, memory)
    return optax.tree.add(tree, _times(factor, memory))


def _average(mean: PyTree, eta: Any, new: PyTree) -> PyTree:
    """Returns (1 - eta) mean + eta new."""
    return optax.tree.add(_times(1 - eta, mean), _times(eta, new))


def _times(factor: Any, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def validate(method: str, up: Up, down: Down | None) -> None:
    """Validates the numbers of both ends."""
    for name, interval in (
        ("error", "[0, inf)"),
        ("shift", "[0, 1]"),
        ("gain", "(0, inf)"),
        ("decay", "[0, 1]"),
    ):
        value = getattr(up, name)
        if value is not None and not callable(value):
            checks.number(f"{method}: {name} of up", value, interval)
    for end, given in (("up", up), ("down", down)):
        if given is not None and not isinstance(given.compressor, Compressor):
            raise ValueError(
                f"{method}: compressor of {end} = {checks.show(given.compressor)}; expected a "
                "compressor, such as compressors.sign"
            )
    if not isinstance(up.over, str) or up.over not in ("all", "arrived"):
        raise ValueError(
            f"{method}: over of up = {checks.show(up.over)}; expected 'all' or 'arrived'"
        )
    memory = None if down is None else down.memory
    if memory is not None and (
        not isinstance(memory, str) or memory not in ("error", "difference")
    ):
        raise ValueError(
            f"{method}: memory of down = {checks.show(memory)}; expected 'error', "
            "'difference' or None"
        )


signatures.simplify(__name__)
