"""Hand-written versions for `benchmark rounds`: each is written for one method and problem, as a
JAX scan and as a numpy loop.

Each computes the registered method on a quadratic with diagonal Hessians and exact gradients, and
records f, |f'|^2 and the consensus distance in every round. Nothing is packed, and no bits are
counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import dsgd

LEARNING_RATE = 0.1
FRACTION = 0.1  # share of the elements that EF21 keeps
STEPS = 15  # number of levels of a four-bit quantization, without 0

Run = Callable[[int], Any]


class Mean(Protocol):
    """A mean over the leading axis, or over the last one."""

    def __call__(self, x: jax.Array, axis: int = 0) -> jax.Array: ...


def reduce_mean(x: jax.Array, axis: int = 0) -> jax.Array:
    """Returns the mean with `jnp.mean`."""
    return x.mean(axis=axis)


def mean_by_product(x: jax.Array, axis: int = 0) -> jax.Array:
    """Returns the mean as a product with ones; over the last axis if that is faster."""
    n = x.shape[axis]
    if axis == -1:
        return (
            jnp.matmul(x, jnp.ones(n), precision=lax.Precision.HIGHEST) / n
            if n >= 10_000
            else reduce_mean(x, axis)
        )
    rows = x.reshape(n, -1)
    return (jnp.matmul(jnp.ones((1, n)), rows, precision=lax.Precision.HIGHEST) / n).reshape(
        x.shape[1:]
    )


def mean_by_blocks(x: jax.Array, axis: int = 0) -> jax.Array:
    """Returns the mean as additions of eight blocks, which XLA fuses with the computation of x, and
    a product for the remaining block.
    """
    if x.shape[axis] % 8:
        return mean_by_product(x, axis)
    return mean_by_product(reduce(jnp.add, jnp.split(x, 8, axis)), axis) / 8


def scan(name: str, problem: dsgd.Problem, mean: Mean = reduce_mean) -> Run:
    """Returns the method of that name, one of `SCANS`: rounds -> (state, history)."""
    start, step, model = SCANS[name](*problem.data.b.shape, mean)
    first = start()

    def one_round(state, key, data, average):
        state = step(state, key, data)
        x = model(state)
        middle = mean(x) if x.ndim == 2 else x
        away = middle - average.minimizer
        slope = average.A * away
        spread = jnp.sum(mean((x - middle[None]) ** 2)) if x.ndim == 2 else jnp.zeros(())
        return state, (average.minimum + away @ slope / 2, slope @ slope, spread)

    @jax.jit(static_argnames="rounds")
    def run(state, data, average, rounds):
        keys = jax.random.split(jax.random.key(0), rounds)
        return lax.scan(lambda state, key: one_round(state, key, data, average), state, keys)

    return lambda rounds: jax.block_until_ready(
        run(first, problem.data, problem.evaluation.replicated, rounds)
    )


def _minibatch_sgd(N: int, d: int, mean: Mean):
    def step(x, key, data):
        return x - LEARNING_RATE * mean(data.A * x[None] - data.b)

    return lambda: jnp.zeros(d), step, lambda x: x


def _ring_sgd(N: int, d: int, mean: Mean):
    def step(x, key, data):
        half = x - LEARNING_RATE * (data.A * x - data.b)
        return (half + jnp.roll(half, 1, axis=0) + jnp.roll(half, -1, axis=0)) / 3

    return lambda: jnp.zeros((N, d)), step, lambda x: x


def _parts(N: int, d: int):
    """Returns the shape of the parts of a vector for N servers, only those that have elements, and
    functions that split vectors `[..., d]` into them and join them.
    """
    part = math.ceil(d / N)
    servers = math.ceil(d / part)

    def cut(g):
        return jnp.pad(g, [*[(0, 0)] * (g.ndim - 1), (0, servers * part - d)]).reshape(
            *g.shape[:-1], servers, part
        )

    return (servers, part), cut, lambda parts: parts.ravel()[:d]


def _compressed_sgd(N: int, d: int, mean: Mean):
    shape, cut, join = _parts(N, d)

    def quantize(key, x):
        if shape[1] <= 2:  # both values are ends of a range, which are sent unchanged
            return x
        low, high = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
        place = STEPS * jnp.where(high > low, (x - low) / (high - low), 0)
        floor = jnp.floor(place)
        return low + (high - low) / STEPS * (
            floor + (jax.random.uniform(key, x.shape) < place - floor)
        )

    def step(x, key, data):
        up, down = jax.random.split(key)
        received = mean(quantize(up, cut(data.A * x[None] - data.b)))
        return x - LEARNING_RATE * join(quantize(down, received))

    return lambda: jnp.zeros(d), step, lambda x: x


def _error_compensated_sgd(N: int, d: int, mean: Mean):
    shape, cut, join = _parts(N, d)

    def sign(v):
        scale = mean(jnp.abs(v), axis=-1)[..., None]
        return jnp.where(v < 0, -scale, scale)

    def step(state, key, data):
        x, worker, server = state
        v = cut(data.A * x[None] - data.b) + worker
        sent = sign(v)
        w = mean(sent) + server
        answer = sign(w)
        return x - LEARNING_RATE * join(answer), v - sent, w - answer

    return (
        lambda: (jnp.zeros(d), jnp.zeros((N, *shape)), jnp.zeros(shape)),
        step,
        lambda state: state[0],
    )


def _sorted_out(rows: jax.Array, k: int) -> jax.Array:
    """Returns rows with only their k largest elements, by `jax.lax.top_k`."""
    _, places = lax.top_k(jnp.abs(rows), k)
    at = jnp.arange(len(rows))[:, None]
    return jnp.zeros_like(rows).at[at, places].set(rows[at, places])


def _counted_out(rows: jax.Array, k: int) -> jax.Array:
    """Returns the same if no two elements are equal, from the bits of the k-th largest element,
    which are determined byte by byte from counts.
    """
    if rows.size < 10_000:
        return _sorted_out(rows, k)
    n, d = rows.shape
    ranks = lax.bitcast_convert_type(jnp.abs(rows), jnp.uint32)
    blocks = jnp.pad(ranks, ((0, 0), (0, -d % 12))).reshape(n, 12, -1)
    least = jnp.zeros(n, jnp.uint32)
    for shift in (24, 16, 8, 0):
        low = least[:, None, None]
        digits = jnp.where(blocks < low, 0, jnp.minimum((blocks - low) >> shift, 255)).astype(
            jnp.uint8
        )

        def bit(i, found, digits=digits):
            tried = found + (jnp.uint8(128) >> i.astype(jnp.uint8))
            few = reduce(
                jnp.add,
                [(digits[:, block] >= tried[:, None]).astype(jnp.uint8) for block in range(12)],
            )
            return jnp.where(few.sum(axis=1, dtype=jnp.uint32) >= k, tried, found)

        least += lax.fori_loop(0, 8, bit, jnp.zeros(n, jnp.uint8)).astype(jnp.uint32) << shift
    return jnp.where(ranks >= least[:, None], rows, 0)


def _ef21(N: int, d: int, mean: Mean):
    shape, cut, join = _parts(N, d)
    k = math.ceil(FRACTION * shape[1])
    # XLA's own forms
    best = _sorted_out if mean is reduce_mean else _counted_out

    def largest(x):
        return best(x.reshape(-1, shape[1]), k).reshape(x.shape)

    def step(state, key, data):
        x, estimate, gradients, total = state
        news = largest(cut(data.A * estimate[None] - data.b) - gradients)
        total = total + mean(news)
        x = x - LEARNING_RATE * join(total)
        estimate = estimate + join(largest(cut(x - estimate)))
        return x, estimate, gradients + news, total

    def start():
        return jnp.zeros(d), jnp.zeros(d), jnp.zeros((N, *shape)), jnp.zeros(shape)

    return start, step, lambda state: state[0]


# By the registered name: (N, d, mean) -> start, step, and the models of a state, `[N, d]` or `[d]`.
SCANS: dict[str, Callable[..., Any]] = {
    "minibatch_sgd": _minibatch_sgd,
    "decentralized_sgd": _ring_sgd,
    "compressed_sgd": _compressed_sgd,
    "error_compensated_sgd": _error_compensated_sgd,
    "ef21": _ef21,
}
# Number of arrays of N d float32 that a round must read or write: A, b; for DSGD the models, for
# EC-SGD and EF21 the workers' memories.
MOVED = {
    "minibatch_sgd": 2,
    "decentralized_sgd": 4,
    "compressed_sgd": 2,
    "error_compensated_sgd": 4,
    "ef21": 4,
}


def loop(name: str, problem: dsgd.Problem) -> Run | None:
    """Returns mini-batch SGD or ring DSGD in numpy: rounds -> (model, history); None for other
    methods.
    """
    if name not in ("minibatch_sgd", "decentralized_sgd"):
        return None
    A, b = np.asarray(problem.data.A), np.asarray(problem.data.b)
    average = jax.tree.map(np.asarray, problem.evaluation.replicated)
    rate = np.float32(LEARNING_RATE)

    def step(x):
        if name == "minibatch_sgd":
            return x - rate * (A * x - b).mean(axis=0)
        half = x - rate * (A * x - b)
        return (half + np.roll(half, 1, axis=0) + np.roll(half, -1, axis=0)) / np.float32(3)

    def run(rounds):
        x, history = np.zeros_like(b if name == "decentralized_sgd" else b[0]), []
        for _ in range(rounds):
            x = step(x)
            middle = x.mean(axis=0) if x.ndim == 2 else x
            away = middle - average.minimizer
            slope = average.A * away
            history.append(
                (
                    average.minimum + away @ slope / 2,
                    slope @ slope,
                    np.sum((x - middle) ** 2) / len(x) if x.ndim == 2 else 0,
                )
            )
        return x, history

    return run


def copies(arrays: int, N: int, d: int) -> Run:
    """Returns a function that copies, reading and writing together as many bytes as the given
    number of float32 arrays `[N, d]`: in numpy if the device is a CPU, otherwise on the device.
    """
    if jax.default_backend() != "cpu":
        return _copies_on_device(jnp.ones(arrays * N * d // 2, jnp.float32))
    source, target = (
        np.ones(arrays * N * d // 2, np.float32),
        np.empty(arrays * N * d // 2, np.float32),
    )

    def run(rounds):
        for _ in range(rounds):
            np.copyto(target, source)

    return run


def _copies_on_device(x: jax.Array) -> Run:
    """Returns a program in which each round reads and writes the array once: it replaces the array
    with its negative.
    """
    negated = jax.jit(lambda rounds, x: lax.fori_loop(0, rounds, lambda _, x: -x, x))
    return lambda rounds: jax.block_until_ready(negated(rounds, x))
