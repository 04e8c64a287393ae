r"""Coefficients of everything that a method computes, from its own `query` and `update` by forward
differentiation.

The inputs of a run are its start $x_0$, each gradient $g_{t,n}$ that the oracle returns, and each
error $e_{t,r}$ of a compressed message. If every quantity that a method carries is a linear
function of the inputs, the same in every coordinate, then a run with one coordinate has all
information. Let $s^0_t$ be its state for inputs of 0, and $S_t$ the derivative of the state with
respect to the inputs:

$$ S_0 = Ds_0\, e_{x_0}, \qquad S_{t+1} = D_s u\, S_t + D_g u\, E_t + D_e u\, F_t $$

Here u is a round of the method, and $E_t$, $F_t$ select the inputs of round t. The derivatives of
the queried points and of the models at $s^0_t$, applied to $S_t$, are their coefficients. The
expansion is about the run with inputs of 0, not about 0, since some states are not 0 in that run:
the weights of push-sum are 1.

Whether the quantities are affine functions of the inputs follows from the operations of the traced
run (`linearity`), of which the first that is not affine is reported. A run with inputs of 0 refuses
methods that add constants or noise. A *probe* then runs the method on random inputs, of the sizes
that the class has, in several dimensions, and compares all quantities with the coefficients times
the inputs. It refuses linear methods that differ between coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr

from dsgd import workers
from dsgd.base import Algorithm, Compressor, PyTree, Round, State
from dsgd.engine import queries, randomness, run_keys
from dsgd.engine.oracle import Oracle
from dsgd.engine.protocol import Method
from dsgd.engine.queries import AllAsked, Asked
from theory_checks.machinery import rounds
from theory_checks.machinery.rounds import place_on_one_device
from theory_checks.worst_cases import linearity, messages
from theory_checks.worst_cases.classes import Smooth

Values = dict[str, Any]
Build = Callable[[Values, Compressor], Algorithm]

_ROUNDING = 1e-9  # relative difference up to which the probe accepts coefficients
_PER_WORKER = 3  # number of elements in the probe, times N
_NOTHING = 1e-13  # coefficients below this are rounding errors


class Coefficients(NamedTuple):
    """Coefficients of a run's quantities with respect to its B inputs: the start, T Q N gradients,
    and T R errors of messages. Q is the number of queries of a round.

    Args:
        asked: whether a worker is queried, bool `[T, Q, N]`.
        points: where, `[T, Q, N, B]`; 0 if it is not queried.
        models: the model that a run would return before each round and after the last,
            `[T + 1, B]`.
        local_models: the workers' models in the history's consensus distance, `[T + 1, N, B]`.
        messages: the vectors that are compressed, `[T, R, B]`; 0 for messages of padding.
    """

    asked: Any
    points: Any
    models: Any
    local_models: Any
    messages: Any


class _Quantities(NamedTuple):
    """Quantities before a round: points `[Q, N, d]` (0 for workers that are not queried), model
    `[d]`, local models `[N, d]`.
    """

    points: jax.Array
    model: jax.Array
    local_models: jax.Array


class Reader:
    """Computes the coefficients of a method for any values of its hyperparameters. All rounds are
    one program, which is compiled once.

    Args:
        build: (hyperparameters, compressor) -> method.
        steps: T.
        N: number of workers.
        key: key of the run.
        delta: the contraction that the compressor states; None: no messages are compressed.
        values: hyperparameters at which the method is probed.
        of: the class of functions, which gives the sizes of the probe's inputs.

    Raises:
        ValueError: if the method is not linear in its inputs or differs between coordinates, or two
            messages have the same id.
    """

    def __init__(
        self,
        build: Build,
        steps: int,
        N: int,
        key: jax.Array,
        delta: float | None,
        values: Values,
        of: Smooth,
    ) -> None:
        self.steps: int = steps
        self.N: int = N
        self._delta, self._key, self._build, self._of = delta, key, build, of
        self.queries: int = self._count_queries(values)
        self.ids: np.ndarray = (
            np.zeros((steps, 0), np.int32) if delta is None else self._find_ids(values)
        )
        self._program = jax.jit(place_on_one_device(self._coefficients))
        self._require_linear(values)

    @property
    def inputs(self) -> int:
        """B, the number of inputs."""
        return 1 + self.steps * (self.queries * self.N + self.ids.shape[1])

    def gradient(self, t: int, q: int, n: int) -> int:
        """Returns the input that is worker n's answer to query q of round t."""
        return 1 + (t * self.queries + q) * self.N + n

    def error(self, t: int, r: int) -> int:
        """Returns the input that is the error of message r of round t."""
        return 1 + self.steps * self.queries * self.N + t * self.ids.shape[1] + r

    def __call__(self, values: Values) -> Coefficients:
        """Returns the coefficients for these hyperparameters, as NumPy arrays."""
        with jax.enable_x64(True):
            found = jax.tree.map(np.array, self._program(_floats(values)))
        return found._replace(messages=_drop_rounding(found.messages))

    def derivative(self, values: Values, name: str) -> Coefficients:
        """Returns the derivative of the coefficients by one hyperparameter; `asked` is zeros."""
        with jax.enable_x64(True):
            values = _floats(values)

            def coefficients_at(value):
                found = self._program({**values, name: value})
                return found._replace(asked=jnp.zeros(()))

            one = jnp.ones_like(values[name])
            return jax.tree.map(np.array, jax.jvp(coefficients_at, (values[name],), (one,))[1])

    # --- One round, for d coordinates.

    def _method(self, values: Values, compressor: Compressor, d: int) -> Method:
        problem = rounds.problem_of_gradients(d, lambda x, answer: answer)
        return Method(self._build(values, compressor), problem, self.N)

    def _exact(self) -> Compressor:
        nothing = jnp.zeros((0, 1))
        return messages.with_errors(jnp.zeros(0, jnp.int32), nothing, self._delta or 1.0)

    def _init(self, method: Method, x: jax.Array) -> State:
        return randomness.fold_run(method.init(x), run_keys.split(self._key)[0], self.N)

    def _round(self, method: Method, t: jax.Array) -> tuple[Round, jax.Array, jax.Array]:
        """Returns the round and the keys of its samples and of its update, as the engine does."""
        query, samples, update = run_keys.round_keys(run_keys.split(self._key)[1], t)
        return Round(t, self.N, query, problem=method.problem), samples, update

    def _query(self, method: Method, t: jax.Array, state: State) -> AllAsked:
        asked = method.query(state._replace(step=t), self._round(method, t)[0])
        if any(query.loss for query in queries.each(asked)):
            raise ValueError(
                f"worst_case: {method.name} asks for losses; expected a method that uses gradients "
                "only, since values of functions are not linear in the inputs"
            )
        return asked

    def _quantities(self, method: Method, t: jax.Array, state: State) -> _Quantities:
        N, asked = self.N, queries.each(self._query(method, t, state))
        model, local = method.models(state._replace(step=t))
        first = asked[0]
        if local:
            local_models, model = model, workers.mean(model)
        else:
            local_models = jnp.broadcast_to(
                first.params if first.axis == 0 else model, (N, model.shape[0])
            )
        return _Quantities(jnp.stack([_points(query, N) for query in asked]), model, local_models)

    def _queried_workers(self, method: Method, t: jax.Array, state: State) -> jax.Array:
        """Returns which workers each query asks, bool `[Q, N]`."""
        everyone, asked = jnp.ones(self.N, bool), queries.each(self._query(method, t, state))
        return jnp.stack([_points(query, self.N, everyone[:, None])[:, 0] for query in asked])

    def _next_state(self, method: Method, t: jax.Array, state: State, answers: jax.Array) -> State:
        """Returns the state after a round in which worker n's answer to query q is
        `answers[q, n]`.
        """
        this_round, samples, key = self._round(method, t)
        asked, answer = self._query(method, t, state), iter(answers)
        gradients = queries.map_each(
            lambda query: Oracle(method.problem, self.N, next(answer)).gradients(query, samples),
            asked,
        )
        work = queries.local_work(asked, method.problem, self.N)
        state, this_round = state._replace(step=t), this_round._replace(work=work)
        return method.update(state, gradients, this_round, key)[0]

    def _count_queries(self, values: Values) -> int:
        """Returns Q. Nothing is compiled."""
        counts: list[int] = []

        def first(x):
            method = self._method(values, self._exact(), 1)
            asked = self._query(method, jnp.int32(0), self._init(method, x))
            counts.append(len(queries.each(asked)))
            return x

        with jax.enable_x64(True):
            jax.eval_shape(place_on_one_device(first), jnp.zeros(1))
        return counts[0]

    # --- Coefficients.

    def _coefficients(self, values: Values) -> Coefficients:
        N, T, Q, B, R = self.N, self.steps, self.queries, self.inputs, self.ids.shape[1]
        exact = self._method(values, self._exact(), 1)

        def first(x):
            return _floats_of(self._init(exact, x))

        start, at_start = jax.jvp(first, (jnp.zeros(1),), (jnp.ones(1),))
        rest, whole = _rest(self._init(exact, jnp.zeros(1)))
        by_input = [
            jnp.zeros((B, *leaf.shape), leaf.dtype).at[0].set(change)
            for leaf, change in zip(start, at_start, strict=True)
        ]
        zeros, none = jnp.zeros((Q, N, 1)), jnp.zeros((R, 1))

        def quantities(t, floats, rest, by_input):
            def quantities_of(floats):
                return self._quantities(exact, t, whole(floats, rest))

            asked = self._queried_workers(exact, t, whole(floats, rest))
            derivative = jax.vmap(lambda change: jax.jvp(quantities_of, (floats,), (change,))[1])(
                by_input
            )
            points, model, local_models = jax.tree.map(
                lambda leaf: jnp.moveaxis(leaf[..., 0], 0, -1), derivative
            )
            return asked, points, model, local_models

        def turn(carry, round):
            (floats, rest, by_input), (t, ids) = carry, round

            def next_state(floats, answers, errors, gains):
                compressor = messages.with_errors(ids, errors, self._delta or 1.0, gains)
                method = self._method(values, compressor, 1)
                return self._next_state(method, t, whole(floats, rest), answers)

            def next_floats(floats, answers, errors, gains=None):
                return _floats_of(next_state(floats, answers, errors, gains))

            inputs = (
                by_input,
                _selection(B, 1 + t * Q * N, Q * N).reshape(B, Q, N, 1),
                _selection(B, 1 + T * Q * N + t * R, R)[..., None],
            )
            base = (floats, zeros, none)
            changed = jax.vmap(lambda *change: jax.jvp(next_floats, base, change)[1])(*inputs)
            compressed = _compressed_vectors(next_floats, base, inputs) if R else jnp.zeros((0, B))
            following = next_state(*base, None)
            return (
                (_floats_of(following), _rest(following)[0], changed),
                (*quantities(t, floats, rest, by_input), compressed),
            )

        rounds = jnp.arange(T, dtype=jnp.int32), jnp.asarray(self.ids)
        carry, found = lax.scan(turn, (start, rest, by_input), rounds)
        asked, points, models, local_models, compressed = found
        *_, model, local_model = quantities(jnp.int32(T), *carry)
        return Coefficients(
            asked,
            points,
            jnp.concatenate([models, model[None]]),
            jnp.concatenate([local_models, local_model[None]]),
            compressed,
        )

    # --- Messages.

    def _find_ids(self, values: Values) -> np.ndarray:
        """Returns the ids of each round's messages, int32 `[T, R]`: those with an effect on the
        next state. Rounds with fewer messages have ids that no message has.
        """
        with jax.enable_x64(True):
            effects = np.asarray(jax.jit(place_on_one_device(self._effects))(_floats(values)))
        found = [np.flatnonzero(row) for row in effects]
        everything = np.concatenate(found)
        if len(np.unique(everything)) < len(everything):
            raise ValueError(
                "worst_case: two of the run's messages have the same id; expected another key, "
                "such as key=jax.random.key(1)"
            )
        R = max(map(len, found))
        return np.stack([np.pad(row, (0, R - len(row)), constant_values=-1) for row in found])

    def _effects(self, values: Values) -> jax.Array:
        """Returns the ids of the errors that change the next state, bool `[T, ROWS]`."""
        exact = self._method(values, self._exact(), 1)
        start = self._init(exact, jnp.zeros(1))
        rest, whole = _rest(start)
        nothing = jnp.zeros((self.queries, self.N, 1))

        def turn(carry, t):
            def functional(errors):
                method = self._method(values, messages.from_table(errors, self._delta or 1.0), 1)
                after = self._next_state(method, t, whole(*carry), nothing)
                floats = _floats_of(after)
                generic = sum(jnp.sum(_generic(leaf.shape) * leaf) for leaf in floats)
                return generic, (floats, _rest(after)[0])

            effect, following = jax.grad(functional, has_aux=True)(jnp.zeros(messages.ROWS))
            return following, effect != 0

        return lax.scan(turn, (_floats_of(start), rest), jnp.arange(self.steps, dtype=jnp.int32))[1]

    # --- Linearity.

    def _require_linear(self, values: Values) -> None:
        coefficients = self(values)
        # Parts of a vector for N servers have several elements, so that a compressor, which may be
        # linear for one element, is recognised. With errors of messages there is one coordinate.
        self._probe(values, coefficients, _PER_WORKER * self.N, errors=False)
        if self.ids.shape[1]:
            self._probe(values, coefficients, 1, errors=True)

    def _probe(self, values: Values, coefficients: Coefficients, d: int, *, errors: bool) -> None:
        T, Q, N, R = self.steps, self.queries, self.N, self.ids.shape[1]
        rng, of = np.random.default_rng(0), self._of
        shapes = (d,), (T, Q, N, d), (T, R, d if errors else 0)
        slope = of.L * of.radius + of.heterogeneity
        start, answers, wrong = (
            size * rng.normal(size=shape)
            for size, shape in zip((of.radius, slope, slope), shapes, strict=True)
        )
        # Messages of padding have no errors.
        wrong = wrong * np.any(coefficients.messages, axis=-1)[..., None]
        of_messages = wrong if errors else np.zeros((T, R, d))
        inputs = np.concatenate([start[None], answers.reshape(-1, d), of_messages.reshape(-1, d)])
        with jax.enable_x64(True):
            known, *given = _floats(values), *map(jnp.asarray, (start, answers, wrong))
            traced = jax.jit(place_on_one_device(partial(self._run, d=d))).trace(known, *given)
            self._require_affine(values, traced.jaxpr.jaxpr)
            run = traced.lower().compile()
            for leaf in run(known, *map(jnp.zeros_like, given)):
                if not bool(jnp.all(leaf == 0)):
                    raise self._not_linear(values, "from a start and gradients of 0 it moves")
            seen = jax.tree.map(np.asarray, run(known, *given))
        for found, by_input in (
            (seen.points[:T], coefficients.points),
            (seen.model, coefficients.models),
            (seen.local_models, coefficients.local_models),
        ):
            expected = by_input @ inputs
            # The comparison is written such that NaN counts as large.
            if not np.abs(found - expected).max() <= _ROUNDING * np.abs(expected).max():
                raise self._not_linear(values, "a run on random inputs differs from its derivative")

    def _require_affine(self, values: Values, program: Jaxpr) -> None:
        """Refuses methods of which an operation on the inputs is not affine."""
        known = len(jax.tree.leaves(values))
        kinds = [False] * known + [True] * (len(program.invars) - known)
        for kind in linearity.outputs(program, kinds):
            if isinstance(kind, str):
                raise self._not_linear(values, f"its operation {kind} is not")

    def _not_linear(self, values: Values, reason: str) -> ValueError:
        name = self._build(values, self._exact()).name
        return ValueError(
            f"worst_case: {name} is not a linear function of the start, the gradients and the "
            f"errors of messages, the same in every coordinate and without noise: {reason}; "
            "expected such a method. Adam, normalised or clipped steps, projections, random noise, "
            "and delays or compressors that depend on the iterates are not covered"
        )

    def _run(self, values: Values, start, answers, errors, *, d: int) -> _Quantities:
        """Returns the quantities of a run with given inputs, `[T + 1, ...]`; points of round T are
        where the next round would query.
        """
        exact = self._method(values, self._exact(), d)
        rest, whole = _rest(self._init(exact, start))

        def turn(carry, round):
            (floats, rest), (t, answers, errors, ids) = carry, round
            compressor = messages.with_errors(ids, errors, self._delta or 1.0)
            method = self._method(values, compressor, d)
            state = whole(floats, rest)
            after = self._next_state(method, t, state, answers)
            return (_floats_of(after), _rest(after)[0]), self._quantities(exact, t, state)

        inputs = jnp.arange(self.steps, dtype=jnp.int32), answers, errors, jnp.asarray(self.ids)
        carry, seen = lax.scan(turn, (_floats_of(self._init(exact, start)), rest), inputs)
        last = self._quantities(exact, jnp.int32(self.steps), whole(*carry))
        return jax.tree.map(lambda some, one: jnp.concatenate([some, one[None]]), seen, last)


def _points(query: Asked, N: int, rows: jax.Array | None = None) -> jax.Array:
    """Returns the points of a query, or other rows `[N, d]`, with 0 for workers that it does not
    ask, `[N, d]`.
    """
    if rows is None:
        rows = jnp.broadcast_to(query.params, (N, query.params.shape[-1]))
    asked = jnp.ones(N, bool) if query.active is None else query.active
    if query.workers is not None:
        asked = asked & ~jnp.ones(N, bool).at[query.workers].set(False)
    return jnp.where(asked[:, None], rows, jnp.zeros_like(rows))


def _compressed_vectors(next_floats: Callable, base: tuple, inputs: tuple) -> jax.Array:
    r"""Returns the coefficients of the vectors that a round compresses, `[R, B]`.

    With $C(v) = (1 + a_r) v + b_r$, the state s after the round has $\partial s / \partial a_r =
    v_r J_r$ with $J_r = \partial s / \partial b_r$. The vector is therefore

    $$ v_r = \frac{\langle \partial s / \partial a_r, J_r \rangle}{\langle J_r, J_r \rangle}. $$
    """
    R = base[2].shape[0]
    units = jnp.eye(R)
    nothing = jax.tree.map(jnp.zeros_like, base)

    def change_by_error(unit):
        return _flat(jax.jvp(next_floats, base, (*nothing[:2], unit[:, None]))[1])

    def change_by_gain(floats, answers, errors):
        def state_of(gains):
            return _flat(next_floats(floats, answers, errors, gains))

        return jax.vmap(lambda unit: jax.jvp(state_of, (jnp.zeros(R),), (unit,))[1])(units)

    J = jax.vmap(change_by_error)(units)  # [R, S]
    by_input = jax.vmap(lambda *change: jax.jvp(change_by_gain, base, change)[1])(
        *inputs
    )  # [B, R, S]
    squares = jnp.sum(J * J, axis=1)
    return jnp.einsum("brs,rs->rb", by_input, J) / jnp.where(squares > 0, squares, 1)[:, None]


def _drop_rounding(coefficients: np.ndarray) -> np.ndarray:
    """Sets vectors to 0 if all their coefficients are rounding errors."""
    largest = np.abs(coefficients).max(axis=-1, keepdims=True, initial=0)
    return np.where(largest > _NOTHING, coefficients, 0)


def _floats_of(state: State) -> list[jax.Array]:
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(state) if rounds.floating(leaf)]


def _rest(state: State) -> tuple[list[Any], Callable[[list, list], State]]:
    """Returns the leaves of a state that are not floating-point numbers, and the function that
    reassembles a state from both kinds of leaves.
    """
    leaves, structure = jax.tree.flatten(state)
    kinds = [rounds.floating(leaf) for leaf in leaves]

    def whole(floats, rest):
        floats, rest = iter(floats), iter(rest)
        return structure.unflatten(next(floats) if kind else next(rest) for kind in kinds)

    rest = [jnp.asarray(leaf) for leaf, kind in zip(leaves, kinds, strict=True) if not kind]
    return rest, whole


def _flat(floats: PyTree) -> jax.Array:
    return jnp.concatenate([jnp.ravel(leaf).astype(float) for leaf in floats])


def _selection(B: int, first: jax.Array, count: int) -> jax.Array:
    """Returns the rows of the identity of B rows that select the inputs from `first` on,
    `[B, count]`.
    """
    return (jnp.arange(B)[:, None] == first + jnp.arange(count)[None]).astype(float)


def _generic(shape: tuple[int, ...]) -> jax.Array:
    """Returns generic numbers: a sum with these weights vanishes only if all its terms do."""
    size = int(np.prod(shape))
    return jnp.sin(2.0 + jnp.arange(size)).reshape(shape)


def _floats(values: Values) -> Values:
    return {name: jnp.asarray(value, float) for name, value in values.items()}
