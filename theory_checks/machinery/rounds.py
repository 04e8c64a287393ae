"""A round of one of the project's methods on a quadratic, as a function of vectors: what `moments`
differentiates, and `probes` tries.
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
from dsgd.engine import oracle
from dsgd.engine.protocol import Method
from dsgd.engine.queries import Asked
from dsgd.problems.quadratic import Quadratic


class Instance(NamedTuple):
    """The numbers of a quadratic problem and of a method on it; arguments of the compiled program.

    Args:
        A: `[N, d, d]`.
        b: `[N, d]`.
        root: R, where the noise of a stochastic gradient is R z, E z z^T = I, `[d, d]`.
        start: x_1, `[d]`.
        learning_rate: gamma.
        compression: s', where each message of a whole vector has an error of mean square s'^2.
        more: what else the method is made of, arrays.
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
    """A cluster of which nothing is left to chance.

    Args:
        seconds: of each worker's micro-batches in each round, over and over, `[T, N, M]`.
    """

    seconds: jax.Array
    at_once = False

    def latencies(self, round: Round, workers: jax.Array) -> jax.Array:
        """As a cluster's."""
        return jnp.asarray(self.seconds, jnp.float32)[round.step % self.seconds.shape[0]][workers]


def additive(rows: jax.Array) -> Compressor:
    """A compressor whose error is noise, added: unbiased, of one mean square for every vector.
    Which row a message takes, its key decides.

    Args:
        rows: the noise, `[rows, part]`.
    """

    def compress(key, x):
        return x + rows[_row(key, rows.shape[0]), : x.shape[0]]

    return fixed_size(compress, lambda message, d: message, "additive", omega=lambda d: None)


def _row(key: jax.Array, rows: int) -> jax.Array:
    return (jax.random.key_data(key)[-1] % rows).astype(jnp.int32)


class Rounds(NamedTuple):
    """One method on one instance as functions of vectors, inside the trace."""

    build: Build
    gradient: Callable | None
    of: Instance
    key: jax.Array
    quantities: Callable[[State], dict[str, jax.Array]] | None

    @property
    def shape(self) -> tuple[int, int]:
        """N, d."""
        N, d = self.of.b.shape
        return N, d

    @property
    def part(self) -> int:
        """Elements of a worker's part of the vector, with padding."""
        N, d = self.shape
        return -(-d // N)

    def silence(self, rows: int) -> jax.Array:
        """A table of no noise."""
        return jnp.zeros((rows, self.part))

    def method(self, rows: jax.Array) -> Method:
        """As the engine runs it; rows are the noise of its messages, of unit variance."""
        N, d = self.shape
        algorithm = self.build(self.of, additive(rows * self.of.compression / jnp.sqrt(d)))
        return Method(algorithm, _problem(d, self.gradient), N)

    def first(self) -> jax.Array:
        """The state at the start, as a vector."""
        return vector(self.method(self.silence(1)).init(self.of.start))

    def after(self, t: jax.Array, s: jax.Array, z: jax.Array, rows: jax.Array) -> jax.Array:
        """The state after round t: of s, the gradients' noise z `[N, d]`, or that of micro-batches
        `[N, M, d]` where the method says which are computed, and the messages' `[rows, part]`, both
        of unit variance."""
        return vector(self._round(t, s, z, rows))

    def _round(self, t: jax.Array, s: jax.Array, z: jax.Array, rows: jax.Array) -> State:
        return _round(self.of, self.key, t, s, z, rows, build=self.build, gradient=self.gradient)

    def state(self, t: jax.Array, s: jax.Array) -> State:
        """The state of round t that is this vector."""
        return _state(self.method(self.silence(1)), s, t, self.of.start)

    def asks(self, s: jax.Array) -> jax.Array:
        """The one worker whose gradient the first round asks for."""
        state = self.state(jnp.int32(0), s)
        query = self.method(self.silence(1)).query(
            state, Round(jnp.int32(0), self.shape[0], self.key)
        )
        if query.workers is None or query.workers.shape != (1,):
            raise ValueError(
                "one_worker=True for a method that does not ask one worker at a time: need "
                "one_worker=False"
            )
        return query.workers[0]

    def keeps_counters(self, silence: jax.Array) -> jax.Array:
        """Whether what is not floating point, besides the number of the round, stays as it is:
        nothing else may tell rounds apart.
        """
        before = self.method(silence).init(self.of.start)
        after = self._round(jnp.int32(0), self.first(), jnp.zeros(self.shape), silence)
        pairs = zip(
            *(jax.tree.leaves((state.server, state.workers)) for state in (before, after)),
            strict=True,
        )
        return jnp.all(
            jnp.array([True, *(jnp.all(old == new) for old, new in pairs if not _floating(old))])
        )

    def seen(self, t: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
        """The quantities whose mean squares are wanted."""
        return _seen(self.of, self.key, t, s, build=self.build, quantities=self.quantities)


# Both are asked for in many places, as they are, differentiated, and mapped over: traced once for
# all of them, and inlined.


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
    """The state after it."""
    N, method = of.b.shape[0], Rounds(build, gradient, of, key, None).method(rows)
    state, this = _state(method, s, t, of.start), Round(t, N, key)
    asked = method.query(state, this)
    gradients = _gradients(of, key, z, asked, method.problem)
    return method.update(state, gradients, this._replace(work=asked.work), key)[0]


def _problem(d: int, gradient: Callable | None) -> Problem:
    """Of d parameters, of which only gradients are asked for."""
    loss = _nothing if gradient is None else Loss(_nothing, gradient)
    return Problem(init=lambda key: jnp.zeros(d), loss=loss, data=(), sample=lambda key, mine: mine)


def _gradients(
    of: Instance, key: jax.Array, z: jax.Array, asked: Asked, problem: Problem
) -> PyTree:
    """The oracle's, with this noise."""
    N, noise, gradient = of.b.shape[0], None if asked.exact else z @ of.root.T, problem.gradient
    if asked.work is None:
        return oracle.gradients(problem, asked, key, Quadratic(of.A, of.b, jnp.zeros(N), noise), N)
    assert gradient is not None
    M = asked.work.samples.shape[1]
    # Each micro-batch has a noise of its own: they come as batches from outside, one after the
    # other.
    batches = jax.tree.map(
        lambda leaf: jnp.repeat(leaf[:, None], M, axis=1), Quadratic(of.A, of.b, jnp.zeros(N))
    )._replace(noise=noise)
    one = problem._replace(
        loss=Loss(_nothing, lambda x, batch: gradient(x, jax.tree.map(lambda leaf: leaf[0], batch)))
    )
    return oracle.gradients(one, asked, key, of.b, N, batches)


@partial(jax.jit, static_argnames=("build", "quantities"), inline=True)
def _seen(
    of: Instance, key: jax.Array, t: jax.Array, s: jax.Array, *, build, quantities
) -> dict[str, jax.Array]:
    """The quantities whose mean squares are wanted."""
    N, rounds = of.b.shape[0], Rounds(build, None, of, key, quantities)
    state = rounds.state(t, s)
    method = rounds.method(rounds.silence(1))
    query = method.query(state, Round(t, N, key))
    x, stacked = method.models(state)
    x = workers.mean(x) if stacked else x
    asked = query.params if query.axis == 0 else jnp.broadcast_to(query.params, of.b.shape)
    mean_A, mean_b = of.A.mean(axis=0), of.b.mean(axis=0)
    slope = mean_A @ x - mean_b
    local = jnp.einsum("nij,nj->ni", of.A, asked) - of.b
    center = asked.mean(axis=0)
    there = of.A @ center - of.b
    half = jnp.linalg.cholesky(mean_A) / jnp.sqrt(2)
    return {
        "slope": slope,
        "gap": half.T @ (x - jnp.linalg.solve(mean_A, mean_b)),
        "consensus": (asked - center[None]) / jnp.sqrt(N),
        "spread": (there - there.mean(axis=0, keepdims=True)) / jnp.sqrt(N),
        "asked": local.mean(axis=0),
        "stale": slope - local.mean(axis=0),
        "local": local / jnp.sqrt(N),
        "around": (local - slope[None]) / jnp.sqrt(N),
        **(quantities(state) if quantities else {}),
    }


def on_one_device(f: Callable) -> Callable:
    """f, with one device that holds all workers: where collectives of `dsgd.workers` mean
    something.
    """
    everywhere: Any = P()
    return jax.shard_map(
        f, mesh=workers.mesh(1), in_specs=everywhere, out_specs=everywhere, check_vma=False
    )


def _floating(leaf: jax.Array) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def vector(state: State) -> jax.Array:
    """The floating-point part of a state."""
    return jnp.concatenate(
        [jnp.ravel(leaf).astype(float) for leaf in jax.tree.leaves(state) if _floating(leaf)]
    )


def _state(method: Method, vector: jax.Array, t: jax.Array, start: jax.Array) -> State:
    """The state of round t with this floating-point part."""
    leaves, structure = jax.tree.flatten(method.init(start))
    at, filled = 0, []
    for leaf in leaves:
        if _floating(leaf):
            filled.append(vector[at : at + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
            at += leaf.size
        else:
            filled.append(leaf)
    return structure.unflatten(filled)._replace(step=t)


def _nothing(*args: Any) -> None:
    raise NotImplementedError("only gradients are asked for")
