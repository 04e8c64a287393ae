"""One round of a run: the method's query, the oracle's answer, the update, and the clock."""

from __future__ import annotations

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import modes, workers
from dsgd.base import Now, PyTree, Round, State
from dsgd.clusters import presence
from dsgd.communication import Bits, Record
from dsgd.engine import (
    clock,
    cohorts,
    columns,
    indices,
    leaves,
    participation,
    protocol,
    queries,
    run_keys,
    tape,
)
from dsgd.engine.clock import Clock
from dsgd.engine.oracle import Oracle
from dsgd.engine.plan import Carry, Plan, Records
from dsgd.engine.protocol import Method
from dsgd.engine.queries import AllAsked, Asked
from dsgd.wire import counts


def run_round(
    plan: Plan,
    method: Method,
    key: jax.Array,
    carry: Carry,
    data: PyTree,
    batches: Any,
    step: Any,
    begins: Any,
) -> tuple[Carry, Records]:
    """Runs one round. Returns the new carry and the round's numbers by name: counts of the device's
    workers (bits, exchanges, gradients and messages), the clock after the round, and the metrics
    that the method logs.

    Args:
        plan: static.
        method: the method.
        key: key of the run's rounds.
        carry: the state before the round, a block.
        data: data of the problem, a block.
        batches: batches of this round that the user supplies, a block, or None.
        step: number of the round.
        begins: whether this is the first round of the run, bool scalar.
    """
    if plan.cohort is None:
        return _run_round(plan, method, key, carry, data, batches, step)
    layout, state = plan.cohort, carry.state

    def draw(clients):
        present = make_round(plan, key, carry.clock, step).present
        assert present is not None
        following = step - step % layout.period + layout.period
        then = make_round(plan, key, carry.clock, following).present if layout.hosted else None
        return cohorts.exchange(layout, clients, present, then)

    clients = lax.cond(
        (step % layout.period == 0) | begins, draw, lambda clients: clients, state.workers
    )
    carry = carry._replace(state=state._replace(workers=clients.rows))
    with workers.with_cohort(workers.Cohort(clients.ids, plan.N)):
        carry, values = _run_round(plan, method, key, carry, data, batches, step, clients.present)
        clients, differ = cohorts.end_round(
            layout, clients._replace(rows=carry.state.workers), step
        )
    errors = cohorts.errors(layout, method.name, clients, differ)
    values |= {f"{indices.REFUSED}{words}": number for words, number in errors.items()}
    return carry._replace(state=carry.state._replace(workers=clients)), values


def _run_round(
    plan: Plan,
    method: Method,
    key: jax.Array,
    carry: Carry,
    data: PyTree,
    batches: Any,
    step: Any,
    present: jax.Array | None = None,
) -> tuple[Carry, Records]:
    """Returns the result of `run_round` for the rows of the block.

    Args:
        present: participation in this round, bool `[N]`; None: it is drawn if the cluster has any.
    """
    state, record, this_round, asked, oracle_values = query_and_update(
        plan, method, key, carry, data, batches, step, present
    )
    statistics = record.statistics(plan.N)
    if reserved := columns.OF_ROUNDS & set(statistics.metrics):
        raise ValueError(
            f"{method.name} logs metrics {sorted(reserved)}; expected other names, since the "
            "history uses these itself"
        )
    values = jax.tree.map(to_history_type, {**statistics.metrics, **oracle_values})
    if this_round.present is not None:
        values[columns.PRESENT] = workers.mean_rows(this_round.present)
    for kind, numbers in (
        (indices.REFUSED, statistics.refusals),
        (indices.WARNED, statistics.warnings),
    ):
        values |= {f"{kind}{words}": number for words, number in numbers.items()}
    for query in queries.each(asked):
        values |= _invalid_indices(plan, query)
    values[columns.TOTALS] = _count_totals(plan, statistics.bits, record, asked, this_round)
    if statistics.bits.messages is not None:
        arrived = jnp.sum(statistics.bits.messages, axis=0, dtype=jnp.uint32)
        values[columns.ARRIVED] = counts.from_bits(arrived, 2)
    exchanges = tape.transfers(record.sendings()) if plan.taped or plan.cluster else []
    if plan.taped:
        values |= tape.series((asked, exchanges))
    drawn = _count_draws(carry.drawn, plan, asked, this_round)
    if not isinstance(carry.clock, Clock):
        return Carry(state, (), drawn), values
    with protocol.error_context(f"clock of the cluster ({this_round.cluster.name})"):
        after = clock.tick(
            carry.clock, method.name, plan.problem, this_round, asked, exchanges, statistics
        )
    return Carry(state, after, drawn), {**values, columns.CLOCK: clock.digits(after)}


def query_and_update(
    plan: Plan,
    method: Method,
    key: jax.Array,
    carry: Carry,
    data: PyTree,
    batches: Any,
    step: Any,
    drawn: jax.Array | None = None,
) -> tuple[State, Record, Round, AllAsked, Records]:
    """Runs the method's query, the oracle and the update; arguments as in `run_round`. `drawn` is
    the participation, bool `[N]`, if it was drawn before.

    Returns:
        The new state, the record of what was sent, the round as the update saw it, the query, and
        numbers of the oracle by name: the mean loss on the batches (of the first query), if
        requested, and each worker's number of samples, if the query has local work or there are
        several.
    """
    this_round = make_round(plan, key, carry.clock, step, drawn)
    present = participation_of(plan, this_round, key)
    asked = ask(method, carry.state, this_round, present)
    this_round = this_round._replace(work=queries.local_work(asked, plan.problem, plan.N))
    problem = leaves.bind(plan.problem, carry.state.fixed)
    oracle = Oracle(problem, plan.N, data, batches, weigh=not plan.weighs)
    oracle_values = {}
    if this_round.work is not None:
        oracle_values[columns.SAMPLES] = queries.count_samples(asked, problem, plan.N)

    def answer(query):
        if problem.sampler.numbered and query.first_batch is None and batches is None:
            query = query._replace(first_batch=carry.drawn)
        numbered = query.first_batch is not None
        sample_key = run_keys.stream(key) if numbered else run_keys.round_keys(key, step)[1]
        if not plan.train_loss or columns.TRAIN_LOSS in oracle_values:
            return oracle.gradients(query, sample_key)
        oracle_values[columns.TRAIN_LOSS], answered = oracle.loss_and_gradients(
            query, sample_key, this_round.present
        )
        return answered

    answers = queries.map_each(answer, asked)
    state, record = update(method, carry.state, answers, this_round, key, present)
    after = participation.state(method, carry.state, state, this_round)
    return after, record, this_round, asked, oracle_values


def make_round(
    plan: Plan,
    key: jax.Array,
    before: Clock | tuple[()],
    step: Any,
    drawn: jax.Array | None = None,
) -> Round:
    """Returns the round as the method's query sees it.

    Args:
        plan: static.
        key: key of the run's rounds.
        before: the clock before the round; (): no cluster, or the time is 0.
        step: number of the round.
        drawn: participation, bool `[N]`, if it was drawn before; None: it is drawn here.
    """
    this_round = Round(step, plan.N, run_keys.round_keys(key, step)[0], problem=plan.problem)
    if plan.cluster is None:
        return this_round
    seconds, timings = (
        (before.now, before.timings or None) if isinstance(before, Clock) else (0.0, None)
    )
    cluster = plan.cluster.with_levels(plan.N)
    now = Now(cluster, seconds, timings, message_noise=cluster.message_noise)
    this_round = this_round._replace(now=now)
    if plan.cluster.present is None or plan.own_time:
        return this_round
    if drawn is not None:
        return this_round._replace(now=now._replace(present=drawn))
    first = step - step % plan.cluster.participation_period
    with protocol.error_context(f"present of the cluster ({plan.cluster.name})"):
        of_period = run_keys.round_keys(key, first)[0]
        present = presence.present(plan.cluster, this_round, of_period, key)
    return this_round._replace(now=now._replace(present=present))


def participation_of(plan: Plan, round: Round, key: jax.Array) -> workers.Participation | None:
    """Returns the participation and delivery of a round, which `ask` and `update` receive; None:
    all workers participate and all messages arrive; `key` is that of the run's rounds.
    """
    if plan.cluster is None:
        return None
    with protocol.error_context(f"delivered of the cluster ({plan.cluster.name})"):
        return presence.participation(plan.cluster, round, key)


def ask(
    method: Method, state: State, round: Round, present: workers.Participation | None
) -> AllAsked:
    """Returns the method's queries, with no work for workers that do not participate."""
    with workers.with_participation(present):
        return participation.query(method.query(state, round), round)


def update(
    method: Method,
    state: State,
    answer: PyTree,
    round: Round,
    key: jax.Array,
    present: workers.Participation | None,
) -> tuple[State, Record]:
    """Returns the state after the method's update, and the record of what was sent; `key` is that
    of the run's rounds.
    """
    with workers.with_participation(present):
        return method.update(state, answer, round, run_keys.round_keys(key, round.step)[2])


def first_draws(plan: Plan) -> Any:
    """Returns `Carry.drawn` before the first round."""
    return jnp.zeros(plan.N, jnp.int32) if plan.problem.sampler.numbered else ()


def to_history_type(leaf: jax.Array) -> jax.Array:
    """Returns a number of the history in its floating-point type."""
    return leaf.astype(modes.wide_type(leaf.dtype))


def _count_totals(
    plan: Plan, sent: Bits, record: Record, asked: AllAsked, round: Round
) -> jax.Array:
    """Returns what the device's workers add to `columns.OF_TOTALS` in a round, uint32 `[4, 4]`.
    Exchanges, and gradients of samples, which all devices know, are those of the first device.
    """
    samples = [
        queries.each_samples(query, plan.problem, plan.N, round.present)
        for query in queries.each(asked)
    ]
    samples = jnp.concatenate(samples).astype(jnp.uint32)
    known = jnp.stack(
        [
            counts.from_bits(record.count_exchanges()[None], 1)[0],
            counts.total(counts.from_bits(samples, len(samples))),
        ]
    )
    known = jnp.where(workers.is_first_device(), known, jnp.uint32(0))
    return jnp.concatenate([counts.total(jnp.stack([sent.up, sent.down], axis=1)), known])


def _invalid_indices(plan: Plan, query: Asked) -> Records:
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


def _count_draws(before: Any, plan: Plan, asked: AllAsked, round: Round) -> Any:
    """Returns how many batches each worker has drawn by the end of the round. In a round it draws
    one, or as many as there are micro-batches with samples in its local work. Several queries draw
    the same batches.
    """
    if isinstance(before, tuple):
        return before

    def count(query: Asked) -> jax.Array:
        if query.exact or query.samples is not None:
            return jnp.zeros_like(before)
        if query.work is not None:
            each = jnp.sum(query.work.samples > 0, axis=1, dtype=jnp.int32)
        elif round.present is None:
            each = jnp.ones_like(before)
        else:
            each = round.present.astype(jnp.int32)
        if query.workers is None:
            return each
        return jnp.zeros_like(each).at[query.workers].set(each[query.workers])

    return before + reduce(jnp.maximum, map(count, queries.each(asked)))
