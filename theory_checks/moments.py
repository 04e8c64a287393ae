r"""Exact moments, without sampling noise, of the project's own methods on quadratics.

On a quadratic, a round of SGD, of gossip, of a stale or of a compressed step with additive noise is affine in all that is carried and
in the noise. Its matrices are taken from the method's own `query` and `update`, by differentiation (exact, since they are affine):

$$ s_{t+1} = M_t s_t + c_t + B_t \xi_t, \qquad E \xi_t = 0,\ E \xi_t \xi_t^T = I $$

so that mean and covariance of the state follow

$$ m_{t+1} = M_t m_t + c_t, \qquad S_{t+1} = M_t S_t M_t^T + B_t B_t^T, $$

and any affine quantity $P s + q$ (a gradient, a distance between models) has $E|Ps + q|^2 = |Pm + q|^2 + \mathrm{tr}(P S P^T)$.

A round must be the same affine map at every t (or `varying`) and for every key, but for who is asked, which must be uniform; nothing but
the round's number and what is floating point may change. That is probed, and the result is NaN where it is not so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from dsgd import checks, oracle, workers
from dsgd.base import Algorithm, Compressor, Problem, Round, State
from dsgd.compressors.sizes import fixed_size
from dsgd.problems.quadratic import Quadratic

_SHORTEST = 9  # log2 of the fewest rounds that a program is compiled for
_TIMES = (0, 1, 2, 3, 7, 64)  # at which a round is probed
_ASKED = 4096  # draws of the worker who is asked
_ROUNDING = 1e-9
_KEYS = 32  # that are tried for one with which no two messages share a row


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


@cache
def with_step(method: Callable[..., Algorithm], *arguments: Any) -> Build:
    """method(optax.sgd(gamma), *arguments): one object for equal arguments, so that it is compiled once."""
    return lambda of, compressor: method(optax.sgd(of.learning_rate), *arguments)


@cache
def with_compressor(method: Callable[..., Algorithm], *arguments: Any) -> Build:
    """method(optax.sgd(gamma), compressor, *arguments), likewise."""
    return lambda of, compressor: method(optax.sgd(of.learning_rate), compressor, *arguments)


@cache
def with_compressors(method: Callable[..., Algorithm]) -> Build:
    """method(optax.sgd(gamma), up, down) with the same compressor in both directions, likewise."""
    return lambda of, compressor: method(optax.sgd(of.learning_rate), compressor, compressor)


def second_moments(
    build: Build,
    problem: Problem,
    learning_rate: float,
    *,
    steps: int,
    one_worker: bool = False,
    varying: bool = False,
    compression: float = 0.0,
    messages: int = 0,
    more: Any = (),
    quantities: Callable[[State], dict[str, jax.Array]] | None = None,
) -> dict[str, np.ndarray]:
    r"""Mean squares of what theorems speak of, before each of the rounds and after the last, `[steps + 1]`, in float64.

    Args:
        build: of `with_step`, `with_compressor` or the like.
        problem: of `problems.quadratic`.
        learning_rate: gamma.
        steps: T. Programs are compiled for powers of two, from 512 on.
        one_worker: the method asks one worker, drawn uniformly: what workers differ in is then noise. Their Hessians must be equal.
        varying: the round's matrices depend on t.
        compression: s', where each message of a whole vector has an error of mean square s'^2, see `additive`.
        messages: how many messages a round compresses.
        more: what else the method is made of, arrays.
        quantities: the method's own, affine in its state.

    Returns:
        `slope` $E|f'(\bar x_t)|^2$, `gap` $E f(\bar x_t) - f^\star$, `consensus` $\frac1N \sum E|x_n - \bar x|^2$, `spread`
        $\frac1N \sum E|f_n' - f'|^2$ at the mean of the models that are asked at; of the gradients there `asked`
        $E|\frac1N \sum_n f_n'|^2$, `stale` $E|f'(\bar x_t) - \frac1N \sum_n f_n'|^2$, `local` $\frac1N \sum E|f_n'|^2$, `around`
        $\frac1N \sum E|f_n' - f'(\bar x_t)|^2$; and the method's own.

    Raises:
        ValueError: another problem, or another noise; Hessians that differ where one worker is asked; a round of other than
            `messages` messages.
    """
    checks.positive_int("steps", steps)
    messages = messages if compression else 0
    of = _instance(problem, learning_rate, compression, more, one_worker)
    with jax.enable_x64(True):
        key = _key_without_collisions(build, of, problem.gradient, messages) if messages else jax.random.key(0)
        found = _second_moments(
            of,
            key,
            build=build,
            gradient=problem.gradient,
            length=1 << max(_SHORTEST, steps.bit_length()),
            varying=varying,
            rows=_rows_for(messages),
            quantities=quantities,
        )
        fair = not one_worker or _asks_uniformly(build, of, problem.gradient)
        return {name: np.where(fair, np.asarray(values, np.float64)[: steps + 1], np.nan) for name, values in found.items()}


def _instance(problem: Problem, learning_rate: float, compression: float, more: Any, one_worker: bool) -> Instance:
    data = problem.data
    if not isinstance(data, Quadratic):
        raise ValueError(f"{problem.name}: exact moments are of quadratics; need a problem of problems.quadratic")
    if problem.sample.__module__ != Quadratic.__module__:
        raise ValueError(f"{problem.name} has a sampler of its own: exact moments are of equal Gaussian noise in all directions")
    A, b = np.asarray(data.A, np.float64), np.asarray(data.b, np.float64)
    if A.ndim == 2:
        A = A[:, :, None] * np.eye(A.shape[1])
    N, d = b.shape
    covariance = (problem.constants.noise or 0.0) ** 2 / d * np.eye(d)
    if one_worker:
        if np.abs(A - A[0]).max() > 1e-12 * np.abs(A).max():
            raise ValueError(f"{problem.name}: exact moments of methods that ask one worker need equal Hessians; these differ")
        away = b - b.mean(axis=0)
        covariance = covariance + away.T @ away / N
        b = np.broadcast_to(b.mean(axis=0), b.shape)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))
    with jax.enable_x64(True):
        start = problem.init(jax.random.key(0))
        arrays = (jnp.asarray(x, float) for x in (A, b, root, start, learning_rate, compression))
        return Instance(*arrays, more=jax.tree.map(jnp.asarray, more))


def additive(rows: jax.Array) -> Compressor:
    """A compressor whose error is noise, added: unbiased, of one mean square for every vector. Which row a message takes, its key decides.

    Args:
        rows: the noise, `[rows, part]`.
    """

    def compress(key, x):
        return x + rows[_row(key, rows.shape[0]), : x.shape[0]]

    return fixed_size(compress, lambda message, d: message, "additive", unbiased=True, omega=lambda d: None)


def _row(key: jax.Array, rows: int) -> jax.Array:
    return (jax.random.key_data(key)[-1] % rows).astype(jnp.int32)


class _Rounds(NamedTuple):
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

    def method(self, rows: jax.Array) -> Algorithm:
        d = self.shape[1]
        return self.build(self.of, additive(rows * self.of.compression / jnp.sqrt(d)))

    def first(self) -> jax.Array:
        """The state at the start, as a vector."""
        return _vector(self.method(self.silence(1)).init(self.of.start, self.shape[0]))

    def after(self, t: jax.Array, s: jax.Array, z: jax.Array, rows: jax.Array) -> jax.Array:
        """The state after round t: of s, the gradients' noise z `[N, d]` and the messages' `[rows, part]` of unit variance."""
        return _vector(self._round(t, s, z, rows))

    def _round(self, t: jax.Array, s: jax.Array, z: jax.Array, rows: jax.Array) -> State:
        N = self.shape[0]
        method = self.method(rows)
        state = _state(method, s, t, self.of.start, N)
        this = Round(t, N, self.key)
        query = method.query(state, this)
        noise = None if query.exact else z @ self.of.root.T
        data = Quadratic(self.of.A, self.of.b, jnp.zeros(N), noise)
        problem = Problem(init=_nothing, loss=_nothing, data=(), sample=lambda key, mine: mine, gradient=self.gradient)
        gradients = oracle.gradients(problem, query, self.key, data, N)
        return method.update(self.key, state, gradients, this)[0]

    def asks(self, s: jax.Array) -> jax.Array:
        """The one worker whose gradient the first round asks for."""
        state = _state(self.method(self.silence(1)), s, jnp.int32(0), self.of.start, self.shape[0])
        query = self.method(self.silence(1)).query(state, Round(jnp.int32(0), self.shape[0], self.key))
        if query.workers is None or query.workers.shape != (1,):
            raise ValueError("one_worker=True for a method that does not ask one worker at a time: need one_worker=False")
        return query.workers[0]

    def keeps_counters(self, silence: jax.Array) -> jax.Array:
        """Whether what is not floating point, besides the number of the round, stays as it is: nothing else may tell rounds apart."""
        before = self.method(silence).init(self.of.start, self.shape[0])
        after = self._round(jnp.int32(0), self.first(), jnp.zeros(self.shape), silence)
        pairs = zip(*(jax.tree.leaves((state.server, state.workers)) for state in (before, after)), strict=True)
        return jnp.all(jnp.array([True, *(jnp.all(old == new) for old, new in pairs if not _floating(old))]))

    def seen(self, t: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
        """The quantities whose mean squares are wanted."""
        N = self.shape[0]
        method = self.method(self.silence(1))
        state = _state(method, s, t, self.of.start, N)
        query = method.query(state, Round(t, N, self.key))
        x = method.model(state)
        asked = query.params if query.axis == 0 else jnp.broadcast_to(query.params, self.of.b.shape)
        mean_A, mean_b = self.of.A.mean(axis=0), self.of.b.mean(axis=0)
        slope = mean_A @ x - mean_b
        local = jnp.einsum("nij,nj->ni", self.of.A, asked) - self.of.b
        center = asked.mean(axis=0)
        there = self.of.A @ center - self.of.b
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
            **(self.quantities(state) if self.quantities else {}),
        }


@partial(jax.jit, static_argnames=("build", "gradient", "length", "varying", "rows", "quantities"))
def _second_moments(of, key, *, build, gradient, length, varying, rows, quantities):
    def everything(of, key):
        rounds = _Rounds(build, gradient, of, key, quantities)
        first, silence = rounds.first(), rounds.silence(rows)

        def matrices(t):
            zero, z = jnp.zeros_like(first), jnp.zeros(rounds.shape)
            M, c = jax.jacfwd(lambda s: rounds.after(t, s, z, silence))(zero), rounds.after(t, zero, z, silence)
            B = jax.jacfwd(lambda z: rounds.after(t, zero, z, silence))(z).reshape(first.size, -1)
            noise = B @ B.T
            if rows > 1:
                C = jax.jacrev(lambda table: rounds.after(t, zero, z, table))(silence).reshape(first.size, -1)
                noise = noise + C @ C.T
            seen = rounds.seen(t, zero)
            jacobians = jax.jacfwd(lambda s: rounds.seen(t, s))(zero)
            squares = {name: (jacobians[name].reshape(-1, first.size), seen[name].ravel()) for name in seen}
            return M, c, noise, squares

        fixed = None if varying else matrices(jnp.int32(0))

        def step(carry, t):
            m, S = carry
            M, c, noise, squares = matrices(t) if fixed is None else fixed
            news = {name: jnp.sum((J @ m + q) ** 2) + jnp.sum((J @ S) * J) for name, (J, q) in squares.items()}
            return (M @ m + c, M @ S @ M.T + noise), news

        start = (first, jnp.zeros((first.size, first.size)))
        sound = _is_as_assumed(rounds, first, silence, varying)
        found = lax.scan(step, start, jnp.arange(length, dtype=jnp.int32))[1]
        return {name: jnp.where(sound, values, jnp.nan) for name, values in found.items()}

    return _on_one_device(everything)(of, key)


def _is_as_assumed(rounds: _Rounds, first: jax.Array, silence: jax.Array, varying: bool) -> jax.Array:
    """Whether a round is one affine map, probed: along two directions, at three sizes, at several t and with several keys."""
    N, d = rounds.shape
    keys = jnp.stack([rounds.key, *jax.random.split(rounds.key, 2)])
    times = jnp.asarray(_TIMES, jnp.int32)
    sizes = jnp.array([1e-3, 1.0, 1e3]) * (1 + jnp.max(jnp.abs(first)))

    def at(t, key, size, turn):
        there = rounds._replace(key=key)
        s = size * jnp.sin(turn + jnp.arange(first.size))
        z = size * jnp.broadcast_to(jnp.cos(turn + jnp.arange(d)), (N, d))  # of all workers alike: it may be any of them who is asked
        seen = there.seen(t, s)
        return jnp.concatenate([there.after(t, s, z, silence), *(seen[name].ravel() for name in sorted(seen))])

    points = jnp.meshgrid(
        jnp.array([1.0, 2.5]), jnp.concatenate([jnp.zeros(1), sizes, 2 * sizes]), times, jnp.arange(len(keys)), indexing="ij"
    )
    found = jax.vmap(lambda turn, size, t, key: at(t, keys[key], size, turn))(*(axis.ravel() for axis in points))
    found = found.reshape(*points[0].shape, -1)  # [turns, sizes, times, keys, values]
    none, one, two = found[:, :1], found[:, 1 : 1 + len(sizes)], found[:, 1 + len(sizes) :]
    room = _ROUNDING * (1 + jnp.max(jnp.abs(two), axis=(0, 2, 3, 4), keepdims=True))
    bends = jnp.abs(two - 2 * one + none)
    by_key = jnp.abs(one - one[:, :, :, :1])
    by_time = jnp.where(varying, 0.0, jnp.abs(one - one[:, :, :1]))
    return rounds.keeps_counters(silence) & jnp.all((bends <= room) & (by_key <= room) & (by_time <= room))


@partial(jax.jit, static_argnames=("build", "gradient"))
def _shares(of, key, *, build, gradient):
    """How often each worker is asked by a method that asks one at a time, over many keys, `[N]`."""

    def asked(of, key):
        rounds = _Rounds(build, gradient, of, key, None)
        keys = jax.random.split(key, _ASKED)
        chosen = jax.vmap(lambda key: rounds._replace(key=key).asks(rounds.first()))(keys)
        return jnp.mean(chosen[:, None] == jnp.arange(rounds.shape[0])[None], axis=0)

    return _on_one_device(asked)(of, key)


def _asks_uniformly(build: Build, of: Instance, gradient: Callable | None) -> bool:
    """Whether no worker is asked more often than chance explains."""
    shares, N = np.asarray(_shares(of, jax.random.key(0), build=build, gradient=gradient)), of.b.shape[0]
    return bool(np.abs(shares - 1 / N).max() <= 5 * np.sqrt((1 - 1 / N) / N / _ASKED) + 1e-12)


@partial(jax.jit, static_argnames=("build", "gradient", "rows"))
def _rows_hit(of, key, *, build, gradient, rows):
    """How many rows of the table the messages of a round take."""

    def count(of, key):
        rounds = _Rounds(build, gradient, of, key, None)
        zero, z = rounds.first() * 0, jnp.zeros(rounds.shape)
        weights = jnp.cos(1.0 + jnp.arange(zero.size))
        C = jax.grad(lambda table: weights @ rounds.after(jnp.int32(0), zero, z, table))(rounds.silence(rows))
        return jnp.sum(jnp.any(C != 0, axis=1))

    return _on_one_device(count)(of, key)


def _rows_for(messages: int) -> int:
    """Of the table of noise: so many that most keys give each message a row of its own; 1 where nothing is compressed."""
    return 1 << max(13, (messages**2).bit_length()) if messages else 1


def _key_without_collisions(build: Build, of: Instance, gradient: Callable | None, messages: int) -> jax.Array:
    """A key with which every message of a round takes a row of its own."""
    of = of._replace(compression=jnp.ones_like(of.compression))  # a message without noise would take none
    found = []
    for seed in range(_KEYS):
        key = jax.random.key(seed)
        hit = int(_rows_hit(of, key, build=build, gradient=gradient, rows=_rows_for(messages)))
        if hit == messages:
            found.append(key)
            if len(found) == 2:  # one may be a collision of more messages
                return key
        if hit > messages:
            raise ValueError(f"a round compresses at least {hit} messages, not {messages}")
    raise ValueError(f"no key of {_KEYS} with which {messages} messages take as many rows: are there fewer messages in a round?")


def _on_one_device(f: Callable) -> Callable:
    everywhere: Any = P()
    return jax.shard_map(f, mesh=workers.mesh(1), in_specs=everywhere, out_specs=everywhere, check_vma=False)


def _floating(leaf: jax.Array) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _vector(state: State) -> jax.Array:
    """The floating-point part of a state."""
    return jnp.concatenate([jnp.ravel(leaf).astype(float) for leaf in jax.tree.leaves(state) if _floating(leaf)])


def _state(method: Algorithm, vector: jax.Array, t: jax.Array, start: jax.Array, N: int) -> State:
    """The state of round t with this floating-point part."""
    leaves, structure = jax.tree.flatten(method.init(start, N))
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
