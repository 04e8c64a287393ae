"""The compiled loop: `first_carry` makes the first state, `advance` runs rounds and records.

`programs` compiles both. They are `shard_map`s over the axis `"workers"`, with the independent runs
(`seeds`, and the grid of a sweep) as `vmap`s inside. The number of rounds is an argument, not a
shape: one compiled program serves every `steps`. The arrays of the problem are arguments too, so
that they are sharded and never constants of the program; everything else is in the static, hashable
`Plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dsgd import workers
from dsgd.base import Params, PyTree, State
from dsgd.communication import Bits, Statistics
from dsgd.engine import (
    clock,
    cohorts,
    columns,
    evaluation,
    indices,
    leaves,
    measurements,
    oracle,
    randomness,
    rounds,
    run_keys,
)
from dsgd.engine.clock import Clock
from dsgd.engine.cohorts import Clients
from dsgd.engine.plan import Carry, Chunk, Plan, Records
from dsgd.engine.protocol import Method
from dsgd.wire import counts


def first_carry(plan: Plan, points: PyTree, keys: jax.Array) -> Carry:
    """Returns the state in which every run begins, leaves `[grid?, seeds?, ...]`.

    Args:
        plan: static.
        points: hyperparameters by name, `[grid]` each if `plan.runs` is 2.
        keys: one key per run, `[seeds]`; or those of each point of the grid, `[grid, seeds]`.
    """

    def init(point, key):
        first, method = run_keys.split(key)[0], plan.method(point)
        state = randomness.fold_run(method.init(plan.problem.init(first)), first, plan.N)
        if plan.cohort:
            rows = cohorts.first(state.workers, plan.cohort, plan.N, plan.mesh.size)
            state = state._replace(workers=rows)
        return Carry(state, _first_clock(plan), rounds.first_draws(plan))

    return _place_carry(
        plan,
        plan.map_runs(init, (0, _grid_axis(keys)), (None, 0))(points, keys),
        lax.with_sharding_constraint,
    )


def _grid_axis(keys: jax.Array) -> int | None:
    """Returns the axis of the grid in the keys; None: all points of the grid have the same."""
    return 0 if keys.ndim == 2 else None


def _first_clock(plan: Plan) -> Clock | tuple[()]:
    if plan.cluster is None:
        return ()
    N, M = plan.N, plan.timings
    timings = measurements.initial_timings(N, M, plan.cluster) if M else ()
    return clock.start(N, timings, plan.delayed_exchanges)


def shapes(plan: Plan, points: PyTree, keys: jax.Array) -> Carry:
    """Returns the shapes, types and shardings of the result of `first_carry`, without compiling."""
    carry = jax.eval_shape(partial(first_carry, plan), points, keys)
    return _place_carry(
        plan,
        carry,
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
    )


def _place_carry(plan: Plan, carry: Carry, place: Callable[[Any, NamedSharding], Any]) -> Carry:
    """Returns `place(leaf, sharding)` for each leaf."""

    def part(tree, spec):
        return jax.tree.map(lambda leaf: place(leaf, NamedSharding(plan.mesh, spec)), tree)

    spec = plan.carry_spec
    state = State(*map(part, carry.state._replace(workers=()), spec.state._replace(workers=())))
    by_part = part if plan.cohort is None else lambda *pair: Clients(*map(part, *pair))
    return Carry(
        state._replace(workers=by_part(carry.state.workers, spec.state.workers)),
        part(carry.clock, spec.clock),
        part(carry.drawn, spec.drawn),
    )


def advance(
    plan: Plan,
    carry: Carry,
    points: PyTree,
    keys: jax.Array,
    data: PyTree,
    shared: PyTree,
    batches: PyTree,
    chunk: Chunk,
) -> tuple[Carry, Records]:
    """Runs the next rounds, with a record after every `plan.record_every` rounds and after the last
    one; if they are the first rounds, also a record of the start.

    Args:
        plan: static.
        carry: state of every run; donated.
        points, keys: as in `first_carry`.
        data: the problem's data, leaves `[N, ...]`.
        shared: arguments of evaluations that all devices hold, as in `RunSpec.shared`.
        batches: batches supplied by the user, leaves `[at least rounds, N, ...]`, or None.
        chunk: the rounds.

    Returns:
        The new carry; and records by name, `[grid?, seeds?, capacity, ...]`, of which the first
        ceil(rounds / record_every) are valid, and one more if the start is recorded.
    """

    def run(points, keys, carry, data, shared, batches, chunk):
        def one_run(point, key, carry):
            of_run, method = plan.at(point), plan.method(point)
            return _advance_one(of_run, method, key, carry, data, shared, batches, chunk)

        axes = (0, _grid_axis(keys), 0)
        return plan.map_runs(one_run, axes, (None, 0, 0))(points, keys, carry)

    specs = (P(), P(), plan.carry_spec, plan.data_spec, P(), P(None, workers.AXIS), P())
    return plan.shard(run, specs, (plan.carry_spec, P()))(
        points, keys, carry, data, shared, batches, chunk
    )


def models(plan: Plan, state: State, points: PyTree, data: PyTree) -> Params:
    """Returns the model that each run would return, including the statistics that are estimated
    from the data, leaves `[grid?, seeds?, ...]`.
    """

    def all_models(points, state, data):
        def one_run(point, state):
            trained = evaluation.final_model(plan, plan.method(point), state)
            params = leaves.join(plan.problem, trained, state.fixed)
            with workers.on_each_device(plan.cohort is not None):
                return oracle.add_statistics(plan.problem, params, data)

        return plan.map_runs(one_run, (0, 0), (None, 0))(points, state)

    return plan.shard(all_models, (P(), plan.state_spec, plan.data_spec), P())(points, state, data)


def one_round(plan: Plan, state: State, key: jax.Array, data: PyTree) -> tuple[State, Statistics]:
    """Runs a single round: query, gradients, update. Returns the state and the communication
    statistics.

    Args:
        plan: static, without independent runs or hyperparameters.
        state, data: as in `advance`.
        key: key of the run's rounds.
    """

    def body(state, key, data):
        before = Carry(state, _first_clock(plan) if plan.timings else (), rounds.first_draws(plan))
        state, record, *_ = rounds.query_and_update(
            plan, plan.method({}), key, before, data, None, state.step
        )
        return state, record.statistics(plan.N)

    everywhere: Any = P()
    by_worker: Any = P(workers.AXIS)
    statistics = Statistics(
        Bits(by_worker, by_worker, by_worker, by_worker),
        everywhere,
        everywhere,
        everywhere,
        everywhere,
        everywhere,
        by_worker,
    )
    return plan.shard(
        body, (plan.state_spec, everywhere, by_worker), (plan.state_spec, statistics)
    )(state, key, data)


def _advance_one(
    plan: Plan, method: Method, key, carry: Carry, data, shared, batches, chunk: Chunk
):
    """Returns the results of `advance` for one run of `method`."""
    key, record_every = run_keys.split(key)[1], plan.record_every
    # Both are evaluated for their shapes first; with an inlined jit they are traced only once.
    run_round, measure = (
        jax.jit(partial(function, plan, method), inline=True)
        for function in (rounds.run_round, evaluation.measure)
    )

    def one_round(i, carried):
        # The round's index is from the chunk, not from the state: it is the same for all runs, so
        # that the loops' conditions remain scalars under `vmap`.
        carry, sums = carried
        batch = jax.tree.map(
            lambda leaf: lax.dynamic_index_in_dim(leaf, i, keepdims=False), batches
        )
        begins = jnp.logical_and(chunk.fresh == 1, i == 0)
        carry, values = run_round(key, carry, data, batch, chunk.done + i, begins)
        first_numbers = {
            name: indices.choose_earlier(sums[name], values[name])
            for name in values
            if indices.is_kept(name)
        }
        counted = {
            name: counts.carry(sums[name] + values[name])
            for name in columns.COUNTED
            if name in values
        }
        return carry, {**values, **first_numbers, **counted}

    def record(carry, i):
        """Runs the rounds of record i and returns the record; record -1 is the start and has no
        rounds.
        """
        last = jnp.minimum((i + 1) * record_every, chunk.rounds)
        carry, values = lax.fori_loop(
            jnp.maximum(i, 0) * record_every, last, one_round, (carry, initial)
        )
        # Counts are summed over devices once per record: over a network, a sum takes a latency.
        totals = {
            name: workers.sum(values[name][None]) for name in columns.COUNTED if name in values
        }
        values = {**values, **{name: counts.carry(each) for name, each in totals.items()}}
        at = chunk.done + last
        due = (i < 0) | (at % (record_every * plan.evaluate_every) == 0) | (at == chunk.end)
        evaluated = measure(key, carry, data, shared, at, due)
        if set(evaluated) & set(values) or "step" in values:
            logged = values.keys() - columns.OF_ROUNDS - {columns.TOTALS}
            raise ValueError(
                f"{method.name} logs metrics {sorted(logged)}; expected names other than step, "
                f"{', '.join(evaluated)}"
            )
        totals = values.pop(columns.TOTALS)
        return carry, (jax.tree.map(rounds.to_history_type, {**evaluated, **values}), totals)

    # Before the first round nothing is sent, no time has passed, and logged metrics are unknown.
    _, values = jax.eval_shape(
        run_round, key, carry, data, _first(batches), chunk.done, chunk.fresh == 1
    )
    zeros = {columns.CLOCK, *columns.COUNTED}
    initial = {
        name: jnp.full(leaf.shape, 0 if name in zeros else np.nan, leaf.dtype)
        for name, leaf in values.items()
    }
    # A record is one row of two buffers, so that there are two writes per record for any number of
    # scalars. Digits of counts are exact as floats.
    shapes, totals = jax.eval_shape(record, carry, chunk.rounds)[1]
    empty, unravel = ravel_pytree(
        jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    )
    first = -chunk.fresh

    def body(i, carried):
        carry, rows = carried
        carry, (values, totals) = record(carry, i)
        new = ravel_pytree(values)[0], totals
        return carry, jax.tree.map(
            lambda buffer, row: lax.dynamic_update_index_in_dim(buffer, row, i - first, 0),
            rows,
            new,
        )

    rows = (
        jnp.zeros((plan.capacity, *empty.shape), empty.dtype),
        jnp.zeros((plan.capacity, *totals.shape), totals.dtype),
    )
    carry, rows = lax.fori_loop(
        first,
        lax.div(chunk.rounds + (record_every - 1), np.int32(record_every)),
        body,
        (carry, rows),
    )
    return carry, {**jax.vmap(unravel)(rows[0]), columns.TOTALS: rows[1]}


def _first(batches: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], batches)
