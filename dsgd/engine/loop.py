"""The compiled loop: `first_carry` makes the first state, `advance` runs rounds and records.

`programs` compiles both. They are `shard_map`s over the axis `"workers"`, with the independent runs
(`seeds`, and the grid of a sweep) as `vmap`s inside. The number of rounds is an argument, not a
shape: one compiled program serves every `steps`. The arrays of the problem are arguments too, so
that they are sharded and never constants of the program; everything else is in the static, hashable
`Plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dsgd import modes, workers, xla
from dsgd.base import Algorithm, Constants, Now, Params, Problem, PyTree, Round, State, Timings
from dsgd.clusters import Cluster, constant, presence
from dsgd.communication import Bits, Record, Sending, Statistics
from dsgd.engine import (
    clock,
    indices,
    leaves,
    measurements,
    oracle,
    participation,
    protocol,
    queries,
    randomness,
    tape,
)
from dsgd.engine.clock import Clock
from dsgd.engine.protocol import Method
from dsgd.engine.queries import AllAsked, Asked
from dsgd.engine.tape import Heard
from dsgd.wire import counts

Records = dict[str, jax.Array]
# Folded into a run's key for numbered draws; numbers of rounds are smaller.
_STREAM = np.uint32(2**32 - 1)
_BITS, _CLOCK, _TRAIN_LOSS, _EVALUATED, _SAMPLES, _PRESENT = (
    "bits",
    "clock",
    "train_loss",
    "evaluated",
    "samples",
    "present",
)
_ARRIVED = "arrived"
_COUNTED = (_BITS, _ARRIVED)  # counts that are summed over all rounds of a record


class Carry(NamedTuple):
    """State of the loop.

    Args:
        state: state of the method.
        clock: the simulated clock; () if the run has no cluster.
        drawn: number of batches that each worker has drawn, int32 `[N]`, for problems whose batches
            are numbered; () for others.
    """

    state: State
    clock: Clock | tuple[()]
    drawn: Any = ()


class Chunk(NamedTuple):
    """The rounds that one call of `advance` runs: int32 scalars, the same for all runs, so that
    conditions on the round are branches of the program.

    Args:
        done: number of rounds before these.
        rounds: number of rounds; at most those of `Plan.capacity` records.
        fresh: 1 if the run begins here, else 0.
        end: number of rounds done at the run's last record, which is always evaluated.
    """

    done: Any
    rounds: Any
    fresh: Any
    end: Any


class Plan(NamedTuple):
    """Everything that the compiled program depends on besides shapes.

    Args:
        build: hyperparameters -> Algorithm, called while the program is traced.
        problem: the problem's functions, without its arrays.
        mesh: mesh with the axis "workers".
        N: number of workers.
        runs: number of leading axes of independent runs: 0, 1 (seeds) or 2 (grid, seeds).
        record_every: rounds between records.
        capacity: number of records that one call of `advance` can make.
        cluster: cluster on which the run is simulated; None: the run has no clock.
        train_loss: whether records include the loss on the drawn batches.
        evaluate_every: records between evaluations of the problem.
        uses_timings: whether the method reads timings of the workers, which are then carried.
        weighs: whether the method's means are weighted by the workers' weights; otherwise gradients
            are multiplied by them.
        delayed: number of exchanges whose messages are delayed, which the clock carries.
        taped: whether the records include the tape, from which `dsgd.replay` computes seconds.
    """

    build: Callable[[dict[str, jax.Array]], Algorithm]
    problem: Problem
    mesh: Mesh
    N: int
    runs: int
    record_every: int
    capacity: int
    cluster: Cluster | None = None
    train_loss: bool = False
    evaluate_every: int = 1
    uses_timings: bool = False
    weighs: bool = False
    delayed: int = 0
    taped: bool = False


class Description(NamedTuple):
    """Properties of an update, found by tracing it.

    Args:
        sendings: its exchanges; their arrays belong to the trace.
        uses_timings, weighs: as in `Plan`.
        proximal: whether the update applies the proximal step of the problem's regularizer.
        asks_some: whether only some workers are asked for gradients, which the simulation then
            sends between devices.
        micro_batches: M, the number of micro-batches of a round's local work (of several queries,
            which draw the same batches, that of the query with the most); 1 without local work.
    """

    sendings: tuple[Sending, ...]
    uses_timings: bool
    weighs: bool
    proximal: bool
    asks_some: bool
    micro_batches: int


def without_arrays(problem: Problem) -> Problem:
    """Returns the problem's functions and its workers' weights, hashable and without arrays."""
    weights = None if problem.weights is None else tuple(map(float, problem.weights))
    # A tree of bools may not be hashable.
    init = replace(problem.parameters, trainable=leaves.Flags(leaves.flags(problem)))
    evaluation = replace(problem.evaluation, replicated=())
    return problem._replace(
        init=init, data=(), evaluate=evaluation, constants=Constants(), weights=weights
    )


def first_carry(plan: Plan, points: PyTree, keys: jax.Array) -> Carry:
    """Returns the state in which every run begins, leaves `[grid?, seeds?, ...]`.

    Args:
        plan: static.
        points: hyperparameters by name, `[grid]` each if `plan.runs` is 2.
        keys: one key per run, `[seeds]`.
    """

    def init(point, key):
        first, method = split(key)[0], _method(plan, point)
        state = randomness.of_run(method.init(plan.problem.init(first)), first, plan.N)
        initial_clock = (
            clock.at_zero(plan.N, _measured(plan, method, state, key), plan.delayed)
            if plan.cluster
            else ()
        )
        return Carry(state, initial_clock, _none_drawn(plan))

    return _placed(
        plan,
        _over_runs(plan, init, (0, None), (None, 0))(points, keys),
        lax.with_sharding_constraint,
    )


def shapes(plan: Plan, points: PyTree, keys: jax.Array) -> Carry:
    """Returns the shapes, types and shardings of the result of `first_carry`, without compiling."""
    carry = jax.eval_shape(partial(first_carry, plan), points, keys)
    return _placed(
        plan,
        carry,
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
    )


def _placed(plan: Plan, carry: Carry, place: Callable[[Any, NamedSharding], Any]) -> Carry:
    """Returns `place(leaf, sharding)` for each leaf."""

    def part(tree, spec):
        return jax.tree.map(lambda leaf: place(leaf, NamedSharding(plan.mesh, spec)), tree)

    spec = _carry_spec(plan)
    return Carry(
        State(*map(part, carry.state, spec.state)),
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
        shared: arguments of the problem's evaluation that all devices hold.
        batches: batches supplied by the user, leaves `[at least rounds, N, ...]`, or None.
        chunk: the rounds.

    Returns:
        The new carry; and records by name, `[grid?, seeds?, capacity, ...]`, of which the first
        ceil(rounds / record_every) are valid, and one more if the start is recorded.
    """

    def run(points, keys, carry, data, shared, batches, chunk):
        def one_run(point, key, carry):
            return _advance_one(
                plan, _method(plan, point), key, carry, data, shared, batches, chunk
            )

        return _over_runs(plan, one_run, (0, None, 0), (None, 0, 0))(points, keys, carry)

    specs = (P(), P(), _carry_spec(plan), P(workers.AXIS), P(), P(None, workers.AXIS), P())
    return _sharded(plan, run, specs, (_carry_spec(plan), P()))(
        points, keys, carry, data, shared, batches, chunk
    )


def models(plan: Plan, state: State, points: PyTree, data: PyTree) -> Params:
    """Returns the model that each run would return, including the statistics that are estimated
    from the data, leaves `[grid?, seeds?, ...]`.
    """

    def take_home(points, state, data):
        def one_run(point, state):
            params = leaves.joined(
                plan.problem, taken_home(plan, _method(plan, point), state), state.fixed
            )
            return oracle.with_statistics(plan.problem, params, data)

        return _over_runs(plan, one_run, (0, 0), (None, 0))(points, state)

    return _sharded(plan, take_home, (P(), _state_spec(plan), P(workers.AXIS)), P())(
        points, state, data
    )


def taken_home(plan: Plan, method: Method, state: State) -> Params:
    """Returns the method's model, or the mean of its local models."""
    params, stacked = method.models(state)
    with workers.weighted(_weights(plan)):
        return workers.mean(params) if stacked else params


def one_round(plan: Plan, state: State, key: jax.Array, data: PyTree) -> tuple[State, Statistics]:
    """Runs a single round: query, gradients, update. Returns the state and the communication
    statistics.

    Args:
        plan: static, without independent runs or hyperparameters.
        state, data: as in `advance`.
        key: key of the run's rounds.
    """

    def body(state, key, data):
        method = _method(plan, {})
        initial_clock = (
            clock.at_zero(plan.N, _nothing_measured(plan, method, state, key))
            if plan.cluster and plan.uses_timings
            else ()
        )
        state, record, *_ = _gradients_and_update(
            plan,
            method,
            key,
            Carry(state, initial_clock, _none_drawn(plan)),
            data,
            None,
            state.step,
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
    return _sharded(
        plan, body, (_state_spec(plan), everywhere, by_worker), (_state_spec(plan), statistics)
    )(state, key, data)


def describe(plan: Plan, algorithm: Algorithm) -> Description:
    """Traces one update of the method and returns its properties; nothing is compiled.

    Args:
        plan: plan of the run.
        algorithm: the method with its hyperparameters.

    Raises:
        ValueError: if the plan's cluster has workers that do not participate or messages that are
            lost, and the method cannot run without them; or for the same reasons as a run.
    """
    single, method = (
        plan._replace(runs=0, uses_timings=False),
        protocol.Method(algorithm, plan.problem, plan.N),
    )
    descriptions: list[Description] = []

    def trace_update(_, state, key):
        initial_clock = (
            clock.at_zero(plan.N, _nothing_measured(single, method, state, key))
            if plan.cluster
            else ()
        )
        traced: list[tuple[Record, AllAsked]] = []

        def one_round(timings):
            now = (
                initial_clock._replace(timings=timings) if isinstance(initial_clock, Clock) else ()
            )
            this_round = round_of(single, key, now, state.step)
            after, record, asked, work = _traced_round(single, method, state, this_round, key)
            traced[:] = [(record, asked)]
            return after, record.statistics(plan.N), work

        timings = initial_clock.timings if isinstance(initial_clock, Clock) else ()
        program = jax.make_jaxpr(one_round)(timings).jaxpr
        read = {id(atom) for equation in program.eqns for atom in equation.invars} | {
            id(atom) for atom in program.outvars
        }
        uses_timings = any(id(variable) in read for variable in program.invars)
        record, asked = traced[0]
        every = queries.each(asked)
        asks_some = any(query.workers is not None for query in every)
        M = max(queries.micro_batches(query, 1) for query in every)
        descriptions.append(
            Description(
                record.sendings(), uses_timings, record.weighs, record.proximal, asks_some, M
            )
        )

    _trace(single, lambda point: method, {}, trace_update)
    return descriptions[0]


def hear(plan: Plan, points: dict[str, jax.Array]) -> Heard:
    """Traces one round of the method, and returns what the clock reads of it.

    Args:
        plan: plan of a taped run.
        points: hyperparameters by name, `[grid]` each; {} without a grid.
    """
    single = plan._replace(runs=0)
    heard: list[Heard] = []

    def trace_round(method, state, key):
        now = clock.at_zero(plan.N) if plan.cluster else ()
        this_round = round_of(single, key, now, state.step)
        _, record, asked, _ = _traced_round(single, method, state, this_round, key)
        heard.append((asked, tape.transfers(record.sendings())))

    _trace(single, partial(_method, single), points, trace_round)
    return heard[0]


def reads_cluster(plan: Plan, algorithm: Algorithm) -> bool:
    """Whether a method's query or update reads the cluster, its clock or the workers' timings, so
    that its iterates may depend on them. One update is traced.
    """
    single, read = plan._replace(runs=0, cluster=None), []

    class Watched(Now):
        """Reports what is read of it."""

        __slots__ = ()

        def __getattribute__(self, name):
            if name in ("cluster", "clock", "timings"):
                read.append(name)
            return super().__getattribute__(name)

    def trace_round(method, state, key):
        this_round = round_of(single, key, (), state.step)
        this_round = this_round._replace(now=Watched(Cluster(constant(1.0))))
        _traced_round(single, method, state, this_round, key)

    _trace(single, lambda point: Method(algorithm, plan.problem, plan.N), {}, trace_round)
    return bool(read)


def _trace(plan: Plan, build: Callable[[Any], Method], points: Any, function: Callable) -> None:
    """Calls `function(method, state, key)` with the initial state of a single run, while it is
    traced; nothing is compiled.
    """
    point = jax.tree.map(lambda values: jax.ShapeDtypeStruct((), values.dtype), points)

    def init(point, key):
        return build(point).init(plan.problem.init(key))

    def traced(point, state, key):
        function(build(point), state, key)
        return state.step

    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(init, point, key)
    jax.eval_shape(_sharded(plan, traced, (P(), _state_spec(plan), P()), P()), point, state, key)


def _traced_round(plan: Plan, method: Method, state: State, round: Round, key: jax.Array) -> Any:
    """Returns the state after a round with gradients of zeros, the record, the query, and the local
    work.
    """
    asked = _query(plan, method, state, round)
    answer = queries.mapped(partial(_no_answer, plan), asked)
    work = queries.of_round(asked, plan.problem, plan.N)
    after, record = _update(plan, method, state, answer, round._replace(work=work), key)
    return after, record, asked, work


def _no_answer(plan: Plan, query: Asked) -> Any:
    """Returns zeros of the shapes and types of the oracle's answer."""
    rows = (_block(plan) if query.workers is None else len(query.workers),)
    gradients = jax.tree.map(
        lambda leaf: jnp.zeros((*rows, *leaf.shape), leaf.dtype),
        protocol.parameters(plan.problem),
    )
    losses = jnp.zeros(rows, queries.loss_type(query.params))
    return (losses, gradients) if query.loss else gradients


def _measured(plan: Plan, method: Method, state: State, key: jax.Array) -> Timings | tuple[()]:
    """Returns the initial timings of the workers, for a method that reads them; else (). `state` is
    that of one run, of all workers.
    """
    if not plan.uses_timings:
        return ()
    single = plan._replace(runs=0)
    blocks = _sharded(
        single, partial(_nothing_measured, single, method), (_state_spec(single), P()), P()
    )
    return jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, np.nan, leaf.dtype), jax.eval_shape(blocks, state, key)
    )


def _nothing_measured(plan: Plan, method: Method, state: State, key: jax.Array) -> Timings:
    """Returns the timings before the first round, for as many micro-batches as the method asks for
    (its query may read the timings).
    """
    assert plan.cluster is not None
    cluster, default = plan.cluster, plan.cluster.micro_batches

    def num_micro_batches(timings: int) -> int:
        now = clock.at_zero(plan.N, measurements.nothing(plan.N, timings, cluster))
        numbers: list[int] = []

        def query():
            asked = method.query(state, round_of(plan, key, now, state.step))
            numbers.append(queries.micro_batches(asked, default))

        jax.eval_shape(query)
        return numbers[0]

    M = num_micro_batches(default)
    if (reread := num_micro_batches(M)) != M:
        raise ValueError(
            f"{method.name}: query returns work in {M} micro-batches, but in {reread} if it reads "
            "that many timings; expected the same number of micro-batches"
        )
    return measurements.nothing(plan.N, M, cluster)


def _method(plan: Plan, point: dict[str, jax.Array]) -> Method:
    """Returns the method with the given hyperparameters."""
    return Method(plan.build(point), plan.problem, plan.N)


def _block(plan: Plan) -> int:
    return plan.N // plan.mesh.size


def _weights(plan: Plan) -> tuple[float, ...] | None:
    """Returns the weights of the means of local models."""
    return plan.problem.weights if plan.weighs else None


def _state_spec(plan: Plan) -> Any:
    replicated: Any = P()
    return State(
        server=replicated,
        workers=P(*[None] * plan.runs, workers.AXIS),
        step=replicated,
        fixed=replicated,
    )


def _carry_spec(plan: Plan) -> Any:
    replicated: Any = P()
    return Carry(_state_spec(plan), replicated, replicated)


def _sharded(plan: Plan, f, in_specs, out_specs):
    # Values that collectives make equal on every device (for example all-gathered averages) are not
    # recognised as such by the check of varying axes.
    return jax.shard_map(f, mesh=plan.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _over_runs(plan: Plan, f, grid_axes, seed_axes):
    """Returns `f` for every run: mapped over seeds, then over the grid."""
    if plan.runs >= 1:
        f = jax.vmap(f, seed_axes)
    if plan.runs == 2:
        f = jax.vmap(f, grid_axes)
    return f


def split(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the key of a run's start and the key of its rounds."""
    first, rounds = jax.random.split(key)
    return first, rounds


def _advance_one(
    plan: Plan, method: Method, key, carry: Carry, data, shared, batches, chunk: Chunk
):
    key, record_every = split(key)[1], plan.record_every
    done, rounds, fresh, end = chunk
    # Both are evaluated for their shapes first; with an inlined jit they are traced only once.
    run_round, measure = (
        jax.jit(partial(function, plan, method), inline=True) for function in (_round, _measure)
    )

    def one_round(i, carried):
        # The round's index is from the chunk, not from the state: it is the same for all runs, so
        # that the loops' conditions remain scalars under `vmap`.
        carry, sums = carried
        batch = jax.tree.map(
            lambda leaf: lax.dynamic_index_in_dim(leaf, i, keepdims=False), batches
        )
        carry, values = run_round(key, carry, data, batch, done + i)
        first_numbers = {
            name: indices.earlier(sums[name], values[name])
            for name in values
            if indices.is_kept(name)
        }
        counted = {
            name: counts.normalize(sums[name] + values[name]) for name in _COUNTED if name in values
        }
        return carry, {**values, **first_numbers, **counted}

    def record(carry, i):
        """Runs the rounds of record i and returns the record; record -1 is the start and has no
        rounds.
        """
        last = jnp.minimum((i + 1) * record_every, rounds)
        carry, values = lax.fori_loop(
            jnp.maximum(i, 0) * record_every, last, one_round, (carry, initial)
        )
        # Counts are summed over devices once per record: over a network, a sum takes a latency.
        totals = {name: workers.sum(values[name][None]) for name in _COUNTED if name in values}
        values = {**values, **{name: counts.normalize(each) for name, each in totals.items()}}
        at = done + last
        due = (i < 0) | (at % (record_every * plan.evaluate_every) == 0) | (at == end)
        evaluated = measure(key, carry, data, shared, at, due)
        if set(evaluated) & set(values) or "step" in values:
            raise ValueError(
                f"{method.name} logs metrics {sorted(values)}; expected names other than step, "
                f"{', '.join(evaluated)}"
            )
        return carry, jax.tree.map(_as_float, {**evaluated, **values})

    # Before the first round nothing is sent, no time has passed, and logged metrics are unknown.
    _, values = jax.eval_shape(run_round, key, carry, data, _first(batches), done)
    zeros = {_CLOCK, *_COUNTED}
    initial = {
        name: jnp.full(leaf.shape, 0 if name in zeros else np.nan, leaf.dtype)
        for name, leaf in values.items()
    }
    # A record is one row of one buffer, so that there is one write per record for any number of
    # scalars. Digits of counts are exact as floats.
    shapes = jax.eval_shape(record, carry, rounds)[1]
    empty, unravel = ravel_pytree(
        jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    )
    first = -fresh

    def body(i, carried):
        carry, rows = carried
        carry, values = record(carry, i)
        return carry, lax.dynamic_update_index_in_dim(rows, ravel_pytree(values)[0], i - first, 0)

    rows = jnp.zeros((plan.capacity, *empty.shape), empty.dtype)
    carry, rows = lax.fori_loop(
        first, lax.div(rounds + (record_every - 1), np.int32(record_every)), body, (carry, rows)
    )
    return carry, jax.vmap(unravel)(rows)


def _first(batches: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], batches)


def _as_float(leaf: jax.Array) -> jax.Array:
    return leaf.astype(modes.wide_type(leaf.dtype))


def _round(
    plan: Plan, method: Method, key, carry: Carry, data, batches, step
) -> tuple[Carry, Records]:
    """Runs one round. Returns the new carry and the round's numbers by name: counts of the device's
    workers (bits up and down together, and messages), the clock after the round, and the metrics
    that the method logs.
    """
    state, record, this_round, asked, oracle_values = _gradients_and_update(
        plan, method, key, carry, data, batches, step
    )
    statistics = record.statistics(plan.N)
    if reserved := {_CLOCK, _TRAIN_LOSS, _EVALUATED, _SAMPLES, _PRESENT, *_COUNTED} & set(
        statistics.metrics
    ):
        raise ValueError(
            f"{method.name} logs metrics {sorted(reserved)}; expected other names, since the "
            "history uses these itself"
        )
    values = jax.tree.map(_as_float, {**statistics.metrics, **oracle_values})
    if this_round.present is not None:
        values[_PRESENT] = workers.mean_rows(this_round.present)
    for kind, numbers in (
        (indices.REFUSED, statistics.refusals),
        (indices.WARNED, statistics.warnings),
    ):
        values |= {f"{kind}{words}": number for words, number in numbers.items()}
    for query in queries.each(asked):
        values |= _outside(plan, query)
    sent = statistics.bits
    values[_BITS] = counts.total(counts.normalize(sent.up + sent.down))
    if sent.messages is not None:
        values[_ARRIVED] = counts.from_bits(jnp.sum(sent.messages, axis=0, dtype=jnp.uint32), 2)
    exchanges = tape.transfers(record.sendings()) if plan.taped or plan.cluster else []
    if plan.taped:
        values |= tape.series((asked, exchanges))
    drawn = _drawn(carry.drawn, plan, asked, this_round)
    if not isinstance(carry.clock, Clock):
        return Carry(state, (), drawn), values
    with protocol.error_context(f"clock of the cluster ({this_round.cluster.name})"):
        after = clock.tick(
            carry.clock, method.name, plan.problem, this_round, asked, exchanges, statistics
        )
    return Carry(state, after, drawn), {**values, _CLOCK: clock.digits(after)}


def _outside(plan: Plan, query: Asked) -> Records:
    """Returns errors of a query that names workers or samples which do not exist."""
    errors = {}
    if query.workers is not None:
        words = (
            f"query asks worker {{}}; expected ids from 0 to {plan.N - 1} of the {plan.N} workers"
        )
        errors[f"{indices.REFUSED}{words}"] = indices.first_outside(query.workers, plan.N - 1)
    if query.samples is not None:
        last = np.asarray(plan.problem.local_samples)[:, None] - 1
        words = (
            "query chooses sample {}; expected numbers from 0 to m_n - 1 for a worker with m_n "
            "samples (Problem.local_samples); round.draw_samples draws such numbers"
        )
        last = np.broadcast_to(last, query.samples.shape).ravel()
        errors[f"{indices.REFUSED}{words}"] = indices.first_outside(query.samples, last)
    return errors


def _none_drawn(plan: Plan) -> Any:
    return jnp.zeros(plan.N, jnp.int32) if plan.problem.numbered else ()


def _drawn(before: Any, plan: Plan, asked: AllAsked, round: Round) -> Any:
    """Returns how many batches each worker has drawn by the end of the round. In a round it draws
    one, or as many as there are micro-batches with samples in its local work. Several queries draw
    the same batches.
    """
    if isinstance(before, tuple):
        return before

    def of_query(query: Asked) -> jax.Array:
        if query.exact or query.samples is not None:
            return jnp.zeros_like(before)
        work = queries.local_work(query, plan.problem, plan.N)
        if work is not None:
            each = jnp.sum(work.samples > 0, axis=1, dtype=jnp.int32)
        elif round.present is None:
            each = jnp.ones_like(before)
        else:
            each = round.present.astype(jnp.int32)
        if query.workers is None:
            return each
        return jnp.zeros_like(each).at[query.workers].set(each[query.workers])

    return before + reduce(jnp.maximum, map(of_query, queries.each(asked)))


def _gradients_and_update(
    plan: Plan, method: Method, key, carry: Carry, data, batches, step
) -> tuple[State, Record, Round, AllAsked, Records]:
    """Runs the method's query, the oracle and the update. Returns the new state, the record, the
    round as the update saw it, the query, and numbers of the oracle by name: the mean loss on the
    batches (of the first query), if requested, and each worker's number of samples, if the query
    has local work or there are several.
    """
    this_round = round_of(plan, key, carry.clock, step)
    asked = _query(plan, method, carry.state, this_round)
    this_round = this_round._replace(work=queries.of_round(asked, plan.problem, plan.N))
    problem, weigh = leaves.bound(plan.problem, carry.state.fixed), not plan.weighs
    oracle_values = {}
    if this_round.work is not None:
        oracle_values[_SAMPLES] = oracle.samples(asked, plan.problem, plan.N)

    def answer(query):
        if plan.problem.numbered and query.first_batch is None and batches is None:
            query = query._replace(first_batch=carry.drawn)
        sample_key = round_keys(key, step)[1] if query.first_batch is None else stream(key)
        arguments = (problem, query, sample_key, data, plan.N, batches)
        if not plan.train_loss or _TRAIN_LOSS in oracle_values:
            return oracle.gradients(*arguments, weigh=weigh)
        oracle_values[_TRAIN_LOSS], answered = oracle.loss_and_gradients(
            *arguments, this_round.present, weigh=weigh
        )
        return answered

    answers = queries.mapped(answer, asked)
    state, record = _update(plan, method, carry.state, answers, this_round, key)
    return (
        participation.state(method, carry.state, state, this_round),
        record,
        this_round,
        asked,
        oracle_values,
    )


def _query(plan: Plan, method: Method, state: State, round: Round) -> AllAsked:
    with workers.with_participation(_there(plan, round)):
        return participation.query(method.query(state, round), round)


def _update(
    plan: Plan, method: Method, state: State, answer: PyTree, round: Round, key: jax.Array
) -> tuple[State, Record]:
    with workers.with_participation(_there(plan, round)):
        return method.update(state, answer, round, round_keys(key, round.step)[2])


def _there(plan: Plan, round: Round) -> workers.Participation | None:
    if plan.cluster is None:
        return None
    with protocol.error_context(f"delivered of the cluster ({plan.cluster.name})"):
        return presence.participation(plan.cluster, round)


def round_keys(key: jax.Array, step: jax.Array) -> jax.Array:
    """Returns the keys of a round: those of the query, the samples and the update."""
    return jax.random.split(jax.random.fold_in(key, step), 3)


def stream(key: jax.Array) -> jax.Array:
    """Returns the key of numbered draws, derived from the key of the run's rounds."""
    return jax.random.fold_in(key, _STREAM)


def batch_of(
    problem: Problem, key: jax.Array, step: Any, n: int, data: PyTree, M: int = 1, m: Any = 0
) -> PyTree:
    """Returns the batch that one worker draws in a round, equal to its batch in the loop.

    Args:
        problem: the problem.
        key: key of the run's rounds.
        step: number of the round.
        n: number of the worker.
        data: the worker's data.
        M, m: number of micro-batches of a round, and index of this one. If batches are numbered,
            every round counts M of them.
    """
    if problem.numbered:
        return problem.sample(jax.random.fold_in(stream(key), n), data, jnp.int32(step * M + m))
    return problem.sample(
        jax.random.fold_in(oracle.microbatch_keys(round_keys(key, step)[1], M)[m], n), data
    )


def round_of(plan: Plan, key: jax.Array, clock: Clock | tuple[()], step: jax.Array) -> Round:
    """Returns the round as the method's query sees it.

    Args:
        plan: static.
        key: key of the run's rounds.
        clock: the clock before the round; (): no cluster, or the time is 0.
        step: number of the round.
    """
    this_round = Round(step, plan.N, round_keys(key, step)[0], problem=plan.problem)
    if plan.cluster is None:
        return this_round
    seconds, timings = (
        (clock.now, clock.timings or None) if isinstance(clock, Clock) else (0.0, None)
    )
    now = Now(plan.cluster, seconds, timings)
    this_round = this_round._replace(now=now)
    if plan.cluster.present is None:
        return this_round
    first = step - step % plan.cluster.participation_period
    with protocol.error_context(f"present of the cluster ({plan.cluster.name})"):
        present = presence.present(plan.cluster, this_round, round_keys(key, first)[0])
    return this_round._replace(now=now._replace(present=present))


def _measure(plan: Plan, method: Method, key, carry: Carry, data, shared, step, due) -> Records:
    """Returns the scalars of one record, which never count as traffic. Those of the evaluation are
    NaN if none is `due`.
    """
    params, consensus = _model_and_consensus(plan, method, key, carry, step)

    def evaluated():
        all_params = leaves.joined(plan.problem, params, carry.state.fixed)
        scalars, slope = oracle.evaluate(plan.problem, all_params, data, shared)
        unknown = jnp.full((), np.nan, jnp.result_type(scalars["loss"]))
        sqnorm = unknown if slope is None else xla.sqnorm(slope)
        return jax.tree.map(
            lambda scalar: _as_float(jnp.asarray(scalar)), {**scalars, "grad_sqnorm": sqnorm}
        )

    def not_evaluated():
        return jax.tree.map(
            lambda scalar: jnp.full((), np.nan, scalar.dtype), jax.eval_shape(evaluated)
        )

    scalars = (
        evaluated()
        if plan.evaluate_every == 1
        else {**lax.cond(due, evaluated, not_evaluated), _EVALUATED: due}
    )
    return {**scalars, "consensus": consensus.astype(scalars["loss"].dtype)}


def _model_and_consensus(
    plan: Plan, method: Method, key, carry: Carry, step
) -> tuple[Params, jax.Array]:
    """Returns the model that a run would return, and the mean squared distance of the local models
    from it; 0 if there is only one model.
    """
    params, stacked = method.models(carry.state)
    with workers.weighted(_weights(plan)):
        if stacked:
            return workers.mean_and_sqdist(params)
        asked = method.query(carry.state, round_of(plan, key, carry.clock, step))
        asked = queries.each(asked)[0]
        return params, jnp.zeros(()) if asked.axis is None else workers.mean_sqdist(
            asked.params, params
        )
