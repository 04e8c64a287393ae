"""A round of one of the project's methods on a quadratic as a function of vectors, which `moments`
differentiates and `probes` probes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from dsgd import workers
from dsgd.base import Algorithm, Compressor, Loss, Problem, PyTree, Round, State
from dsgd.compressors.sizes import fixed_size
from dsgd.engine import queries
from dsgd.engine.oracle import Oracle
from dsgd.engine.protocol import Method
from dsgd.engine.queries import Asked
from dsgd.problems.quadratic import Quadratic


class Instance(NamedTuple):
    """The numbers of a quadratic problem and of a method on it, which are arguments of the compiled
    program.

    Args:
        A: `[N, d, d]`.
        b: `[N, d]`.
        root: R, `[d, d]`: the noise of a stochastic gradient is R z with E z z^T = I.
        start: x_1, `[d]`.
        learning_rate: gamma.
        compression: s', if each message of a whole vector has an error of mean square s'^2.
        more: additional arrays from which the method is built.
    """

    A: jax.Array
    b: jax.Array
    root: jax.Array
    start: jax.Array
    learning_rate: jax.Array
    compression: jax.Array
    more: Any = ()


Build = Callable[[Instance, Compressor], Algorithm]


class Timetable(NamedTuple):
    """A deterministic cluster.

    Args:
        seconds: seconds of each worker's micro-batches in each round, `[T, N, M]`, repeated with
            period T.
    """

    seconds: jax.Array
    single_batch = False

    def latencies(self, round: Round, workers: jax.Array) -> jax.Array:
        """Returns the seconds of the round, as the method of a cluster does."""
        return jnp.asarray(self.seconds, jnp.float32)[round.step % self.seconds.shape[0]][workers]


def additive(rows: jax.Array) -> Compressor:
    """Returns an unbiased compressor whose error is additive noise, of the same mean square for
    every vector. The key of a message selects its row.

    Args:
        rows: the noise, `[rows, part]`.
    """

    def compress(key, x):
        return x + rows[row(key, rows.shape[0]), : x.shape[0]]

    return fixed_size(compress, lambda message, d: message, "additive", omega=lambda d: None)


def row(key: jax.Array, rows: int) -> jax.Array:
    """Returns which of so many rows the message with this key selects."""
    return (jax.random.key_data(key)[-1] % rows).astype(jnp.int32)


class Rounds(NamedTuple):
    """A method on an instance as functions of vectors, inside a trace."""

    build: Build
    gradient: Callable | None
    of: Instance
    key: jax.Array
    quantities: Callable[[State], dict[str, jax.Array]] | None

    @property
    def shape(self) -> tuple[int, int]:
        """Returns (N, d), the number of workers and of elements."""
        N, d = self.of.b.shape
        return N, d

    @property
    def part(self) -> int:
        """Number of elements of a worker's part of the vector, with padding."""
        N, d = self.shape
        return -(-d // N)

    def silence(self, rows: int) -> jax.Array:
        """Returns a noise table of zeros."""
        return jnp.zeros((rows, self.part))

    def method(self, rows: jax.Array) -> Method:
        """Returns the method as the engine runs it; `rows` are the noise of its messages, with unit
        variance.
        """
        N, d = self.shape
        algorithm = self.build(self.of, additive(rows * self.of.compression / jnp.sqrt(d)))
        return Method(algorithm, problem_of_gradients(d, self.gradient), N)

    def first(self) -> jax.Array:
        """Returns the initial state as a vector."""
        return vector(self.method(self.silence(1)).init(self.of.start))

    def next_state(self, t: jax.Array, s: jax.Array, z: jax.Array, rows: jax.Array) -> jax.Array:
        """Returns the state after round t.

        Args:
            t: number of the round.
            s: the state before it.
            z: noise of the gradients `[N, d]`, or of micro-batches `[N, M, d]` if the method
                selects micro-batches; unit variance.
            rows: noise of the messages `[rows, part]`, unit variance.
        """
        return vector(self._round(t, s, z, rows))

    def _round(self, t: jax.Array, s: jax.Array, z: jax.Array, rows: jax.Array) -> State:
        return _round(self.of, self.key, t, s, z, rows, build=self.build, gradient=self.gradient)

    def state(self, t: jax.Array, s: jax.Array) -> State:
        """Returns the state of round t with this vector as its floating-point part."""
        return _state(self.method(self.silence(1)), s, t, self.of.start)

    def asks(self, s: jax.Array) -> jax.Array:
        """Returns the worker whose gradient the first round queries."""
        state = self.state(jnp.int32(0), s)
        asked = self.method(self.silence(1)).query(
            state, Round(jnp.int32(0), self.shape[0], self.key)
        )
        query = queries.each(asked)[0]
        if query.workers is None or query.workers.shape != (1,):
            raise ValueError(
                "one_worker=True, but the method does not query one worker at a time; expected "
                "one_worker=False"
            )
        return query.workers[0]

    def keeps_counters(self, silence: jax.Array) -> jax.Array:
        """Whether everything but floating-point numbers and the number of the round stays constant,
        so that rounds cannot differ otherwise.
        """
        before = self.method(silence).init(self.of.start)
        after = self._round(jnp.int32(0), self.first(), jnp.zeros(self.shape), silence)
        pairs = zip(
            *(jax.tree.leaves((state.server, state.workers)) for state in (before, after)),
            strict=True,
        )
        return jnp.all(
            jnp.array([True, *(jnp.all(old == new) for old, new in pairs if not floating(old))])
        )

    def quantities_at(self, t: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
        """Returns the quantities whose mean squares are computed."""
        return _quantities_at(self.of, self.key, t, s, build=self.build, quantities=self.quantities)


# The functions `_round` and `_quantities_at` are called, differentiated and mapped in many places.
# As inlined jitted functions they are traced once.


@partial(jax.jit, static_argnames=("build", "gradient"), inline=True)
def _round(
    of: Instance,
    key: jax.Array,
    t: jax.Array,
    s: jax.Array,
    z: jax.Array,
    rows: jax.Array,
    *,
    build,
    gradient,
) -> State:
    """Returns the state after a round."""
    N, method = of.b.shape[0], Rounds(build, gradient, of, key, None).method(rows)
    state, current = _state(method, s, t, of.start), Round(t, N, key)
    asked = method.query(state, current)
    answer = queries.map_each(lambda query: _gradients(of, key, z, query, method.problem), asked)
    work = queries.local_work(asked, method.problem, N)
    return method.update(state, answer, current._replace(work=work), key)[0]


def problem_of_gradients(d: int, gradient: Callable | None) -> Problem:
    """Returns a problem of d parameters of which only gradients can be computed."""
    loss = _nothing if gradient is None else Loss(_nothing, gradient)
    return Problem(init=lambda key: jnp.zeros(d), loss=loss, data=(), sample=lambda key, mine: mine)


def _gradients(
    of: Instance, key: jax.Array, z: jax.Array, asked: Asked, problem: Problem
) -> PyTree:
    """Returns the oracle's gradients with the given noise."""
    N, noise, gradient = of.b.shape[0], None if asked.exact else z @ of.root.T, problem.gradient
    if asked.work is None or asked.whole:
        return Oracle(problem, N, Quadratic(of.A, of.b, jnp.zeros(N), noise)).gradients(asked, key)
    assert gradient is not None
    M = asked.work.samples.shape[1]
    # Each micro-batch has its own noise, so micro-batches are passed as streamed batches.
    batches = jax.tree.map(
        lambda leaf: jnp.repeat(leaf[:, None], M, axis=1), Quadratic(of.A, of.b, jnp.zeros(N))
    )._replace(noise=noise)
    single = problem._replace(
        loss=Loss(_nothing, lambda x, batch: gradient(x, jax.tree.map(lambda leaf: leaf[0], batch)))
    )
    return Oracle(single, N, of.b, batches).gradients(asked, key)


@partial(jax.jit, static_argnames=("build", "quantities"), inline=True)
def _quantities_at(
    of: Instance, key: jax.Array, t: jax.Array, s: jax.Array, *, build, quantities
) -> dict[str, jax.Array]:
    """Returns the quantities whose mean squares are computed."""
    N, rounds = of.b.shape[0], Rounds(build, None, of, key, quantities)
    state = rounds.state(t, s)
    method = rounds.method(rounds.silence(1))
    query = queries.each(method.query(state, Round(t, N, key)))[0]
    x, stacked = method.models(state)
    x = workers.mean(x) if stacked else x
    asked = query.params if query.axis == 0 else jnp.broadcast_to(query.params, of.b.shape)
    mean_A, mean_b = of.A.mean(axis=0), of.b.mean(axis=0)
    slope = mean_A @ x - mean_b
    local = jnp.einsum("nij,nj->ni", of.A, asked) - of.b
    center = asked.mean(axis=0)
    at_center = of.A @ center - of.b
    half = jnp.linalg.cholesky(mean_A) / jnp.sqrt(2)
    return {
        "slope": slope,
        "gap": half.T @ (x - jnp.linalg.solve(mean_A, mean_b)),
        "consensus": (asked - center[None]) / jnp.sqrt(N),
        "spread": (at_center - at_center.mean(axis=0, keepdims=True)) / jnp.sqrt(N),
        "asked": local.mean(axis=0),
        "stale": slope - local.mean(axis=0),
        "local": local / jnp.sqrt(N),
        "around": (local - slope[None]) / jnp.sqrt(N),
        **(quantities(state) if quantities else {}),
    }


def place_on_one_device(f: Callable) -> Callable:
    """Returns f on a mesh of one device that holds all workers, so that the collectives of
    `dsgd.workers` are defined.
    """
    everywhere: Any = P()
    return jax.shard_map(
        f, mesh=workers.mesh(1), in_specs=everywhere, out_specs=everywhere, check_vma=False
    )


def floating(leaf: jax.Array) -> bool:
    """Whether a leaf of a state holds floating-point numbers."""
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def vector(state: State) -> jax.Array:
    """Returns the floating-point part of a state as a vector."""
    return jnp.concatenate(
        [jnp.ravel(leaf).astype(float) for leaf in jax.tree.leaves(state) if floating(leaf)]
    )


def _state(method: Method, vector: jax.Array, t: jax.Array, start: jax.Array) -> State:
    """Returns the state of round t with this floating-point part."""
    leaves, structure = jax.tree.flatten(method.init(start))
    at, filled = 0, []
    for leaf in leaves:
        if floating(leaf):
            filled.append(vector[at : at + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
            at += leaf.size
        else:
            filled.append(leaf)
    return structure.unflatten(filled)._replace(step=t)


def _nothing(*args: Any) -> None:
    raise NotImplementedError("only gradients are computed")
