"""Methods with a mistake, one at a time: the rows on which every round is the paper's, and what holds in every round, find each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import optax
import pytest
from budgets import briefly

import algorithms
import topologies
from algorithms import methods, optimizers
from dsgd import workers
from dsgd.base import Query
from dsgd.graphs.topology import Topology
from tests.theory_checks.mistakes import Method, edited, forgotten, in_server, in_workers, of_one_key, ruled, scaled, stays
from theory_checks.machinery import registry
from theory_checks.machinery.trajectories import N
from theory_checks.statements import bits, dropcompute_noise, events, loop, recursions, staleness_aware

FAMILIES = (recursions, events, loop, staleness_aware, dropcompute_noise)
ROWS = {statement.name: statement for family in FAMILIES for statement in family.STATEMENTS}
# What holds of several methods, of the one that is spoilt.
ROWS["D2, dual sums"] = ROWS["dual sums vanish"]._replace(trial=partial(events.trial, events.sums_vanish, ("D2",)))
ROWS["CHOCO, mean"] = ROWS["mean of the models"]._replace(trial=partial(events.trial, events.mean_moves, ("CHOCO",)))
ROWS |= {f"{name}, numbers": ROWS["numbers of every message"]._replace(trial=partial(events.keys_differ, name)) for name in events.DRAWS}
TRIALS = 3


# --- How they are spoilt.


def averaged(before, after):
    """By all, as if it were sent with the models."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.mean(leaf, axis=0), leaf.shape).astype(leaf.dtype), after)


def asking(method: Method, query: Callable) -> Method:
    """That asks for other gradients: (method, state, query) -> query."""

    def build(*arguments, **options):
        inner = method(*arguments, **options)
        return inner._replace(query=lambda state, round: query(inner, state, inner.query(state, round)))

    return build


def in_round(method: Method, turn: Callable) -> Method:
    """That takes every round for another one: step -> step."""

    def build(*arguments, **options):
        inner = method(*arguments, **options)

        def update(state, gradients, round):
            return inner.update(state, gradients, round._replace(step=turn(round.step)))

        return inner._replace(update=update)

    return build


def on(method: Method, change: Callable[[Topology], Topology]) -> Method:
    """On another graph than it is given."""
    return lambda optimizer, topology, *arguments: method(optimizer, change(topology), *arguments)


@cache
def turned(topology: Topology) -> Topology:
    """Messages go the other way."""
    return Topology("turned", [W.T for W in topology.matrices])


@cache
def still(topology: Topology) -> Topology:
    """The first matrix of a schedule in all rounds."""
    return Topology("still", topology.matrices[:1])


@cache
def late(topology: Topology) -> Topology:
    """Of a schedule, the matrix of the round before."""
    return Topology("late", [topology.matrices[-1], *topology.matrices[:-1]])


@cache
def ring(topology: Topology) -> Topology:
    return topologies.ring(topology.n)


# --- Mistakes that take more than a line.


def pushed_backwards(optimizer, topology):
    """Stochastic gradient push with W for its transpose."""
    inner = algorithms.stochastic_gradient_push(optimizer, topology)
    W = jnp.asarray(topology.matrices[0].toarray().T)

    def update(state, gradients, round):
        after = inner.update(state, gradients, round)
        change = optimizers.change_local(optimizer, state.workers, gradients)[0]
        both = optax.apply_updates(state.workers.params, change), state.workers.weight
        params, weight = jax.tree.map(lambda leaf: jnp.tensordot(W, leaf, 1), both)
        return after._replace(workers=after.workers._replace(params=params, weight=weight))

    return inner._replace(update=update)


def momentum_by_gossip(optimizer, topology):
    """Decentralized SGD whose memories travel with the models."""
    inner = algorithms.decentralized_sgd(optimizer, topology)

    def update(state, gradients, round):
        after = inner.update(state, gradients, round)
        return after._replace(workers=after.workers._replace(optimizer=workers.mix(after.workers.optimizer, topology, round.step)))

    return inner._replace(update=update)


def last_rounds_mean(optimizer, up, down):
    """EF21 whose servers step on the mean that they had before this round's messages."""

    def edit(before, after):
        model = optimizers.step_local(optimizer, before.workers.model, before.workers.mean)
        return after._replace(workers=after.workers._replace(model=model))

    return edited(algorithms.ef21, edit)(optimizer, up, down)


def not_tracked(optimizer, topology):
    """Gradient tracking whose trackers are not averaged."""
    inner = algorithms.gradient_tracking(optimizer, topology)

    def update(state, gradients, round):
        after = inner.update(state, gradients, round)
        known = state.workers
        tracker = jax.tree.map(lambda y, new, old: y + new - old, known.tracker, gradients, known.gradient)
        return after._replace(workers=after.workers._replace(tracker=tracker))

    return inner._replace(update=update)


def alone(optimizer, topology):
    """AD-PSGD whose partner keeps its model."""
    inner = algorithms.asynchronous_gossip_sgd(optimizer, topology)

    def update(state, gradients, round):
        after = inner.update(state, gradients, round)
        mine = jnp.arange(N) == inner.query(state, round).workers
        kept = jax.tree.map(
            lambda old, new: jnp.where(mine.reshape(-1, *[1] * (new.ndim - 1)), new, old), state.workers.params, after.workers.params
        )
        return after._replace(workers=after.workers._replace(params=kept))

    return inner._replace(update=update)


def without_control(before, after):
    return after._replace(server=jax.tree.map(jnp.zeros_like, after.server))


def not_exact(inner, state, query):
    return query._replace(exact=False)


def another_worker(inner, state, query):
    return query._replace(workers=(query.workers + 1) % N)


def at_the_present_model(inner, state, query):
    return query._replace(params=inner.model(state))


def at_the_present_models(inner, state, query):
    return query._replace(params=state.workers.params)


def at_x(inner, state, query):
    return Query(state.workers.params)


def no_estimate_of_the_model(before, after):
    return after._replace(server=after.server._replace(estimate=after.server.model.params))


def without_weights(optimizer, compressors, round_time, *, weights, **options):
    return algorithms.kimad_sgd(optimizer, compressors, round_time, **options)


def dropping(query: Callable) -> Method:
    """DropCompute that asks for other work: (method, its arguments, state, round) -> work."""

    def build(method, threshold, micro_batches, **rule):
        inner = algorithms.drop_compute(method, threshold, micro_batches, **rule)

        def asked(state, round):
            return inner.query(state, round)._replace(work=query(inner, (method, threshold, micro_batches), state, round))

        return inner._replace(query=asked)

    return build


def with_what_is_cut_short(inner, arguments, state, round):
    return algorithms.drop_compute(*arguments, stop="between").query(state, round).work


def the_last_first(inner, arguments, state, round):
    work = inner.query(state, round).work
    return work._replace(samples=work.samples[:, ::-1])


def each_on_its_own(inner, arguments, state, round):
    work, (_, threshold, M) = inner.query(state, round).work, arguments
    whole = work._replace(samples=jnp.ones((round.workers, M), jnp.int32))
    return work._replace(samples=round.cluster.latencies(round._replace(work=whole), jnp.arange(round.workers)) < threshold)


def of_all(before, after):
    """As many as if nothing had been dropped."""
    return before + dropcompute_noise.M


def never_shortened(optimizer, rule, *, staleness_aware=True, **options):
    return algorithms.asynchronous_sgd(optimizer, rule, **options)


def in_turns(optimizer):
    """Emergent asynchrony that holds who is fast."""
    return algorithms.asynchronous_sgd(optimizer, bound=N - 1)


_EC, _EF, _ASGD, _SGP = (
    algorithms.error_compensated_sgd,
    algorithms.ef21,
    algorithms.asynchronous_sgd,
    algorithms.stochastic_gradient_push,
)
_GOSSIP = algorithms.asynchronous_gossip_sgd

# The row that finds it, and the method that is put into it.
MUTANTS: dict[str, tuple[str, Method]] = {
    "GD on noisy gradients": ("GD, every round", asking(algorithms.gradient_descent, not_exact)),
    "mb-SGD, 1/(N - 1)": ("mb-SGD, every round", scaled(algorithms.minibatch_sgd, N / (N - 1))),
    "model averaging, of Adam's memories, too": (
        "mb-SGD, model averaging, every round",
        in_workers(algorithms.model_averaging_sgd, optimizer=averaged),
    ),
    "local SGD averages in every round": ("local SGD, every round", lambda optimizer, H: algorithms.local_sgd(optimizer, 1)),
    "local SGD averages one round late": ("local SGD, every round", in_round(algorithms.local_sgd, lambda step: step - 1)),
    "SCAFFOLD without the server's control variate": ("SCAFFOLD, every round", edited(algorithms.scaffold, without_control)),
    "SCAFFOLD's control variates stay": ("SCAFFOLD, every round", in_workers(algorithms.scaffold, control=stays)),
    "backup workers, 1/N": ("backup workers, every round", scaled(algorithms.backup_workers_sgd, 1 - recursions.synchronous.BACKUPS / N)),
    "CSGD through servers for a ring": (
        "CSGD, ring, every round",
        lambda optimizer, Q, via, allow_biased: algorithms.compressed_sgd(optimizer, Q, "server", allow_biased),
    ),
    "DropCompute divides by M": ("DropCompute, stochastic, every round", ruled(correction="none")),
    "DropCompute counts what is cut short": ("DropCompute, every round", dropping(with_what_is_cut_short)),
    "DropCompute drops the first": ("DropCompute, every round", dropping(the_last_first)),
    "DropCompute, each micro-batch has tau": ("DropCompute, every round", dropping(each_on_its_own)),
    "DropCompute forgets the period's time": ("DropCompute, local SGD, every round", in_server(algorithms.drop_compute, spent=forgotten)),
    "DropCompute's constant is forgotten": ("DropCompute, local SGD, redrawn, every round", ruled(correction="none")),
    "DropCompute draws the same again": ("DropCompute, local SGD, redrawn, every round", in_server(algorithms.drop_compute, drawn=stays)),
    "DropCompute never draws again": ("no bias of what is drawn again", in_server(algorithms.drop_compute, drawn=of_all)),
    "DropCompute, no stopping times": ("noise of stopping times", ruled(stop="preempt")),
    "DropCompute without preemption": ("bias of preemption, and of means", ruled(stop="between")),
    "DropCompute ends without a bias": ("where biased SGD ends", ruled(stop="between")),
    "EC-SGD's server memory is lost": ("EC-SGD, every round", in_workers(_EC, server=forgotten)),
    "EC-SGD's worker memory is lost": ("EC-SGD, whole model, every round", in_workers(_EC, worker=forgotten)),
    "EC-SGD, up and down exchanged": ("EC-SGD, every round", lambda optimizer, up, down: _EC(optimizer, down, up)),
    "EF21 steps on the last round's mean": ("EF21, every round", last_rounds_mean),
    "EF21 asks at x for x-hat": ("EF21, every round", asking(_EF, at_the_present_model)),
    "EF21's estimates of gradients stay": ("EF21, whole model, every round", in_workers(_EF, gradient=stays)),
    "Kimad asks at x for x-hat": ("Kimad, every round", asking(algorithms.kimad_sgd, at_the_present_model)),
    "Kimad's estimates of updates stay": ("Kimad, every round", in_workers(algorithms.kimad_sgd, estimate=stays)),
    "Kimad's estimate of the model is the model": (
        "Kimad, every round",
        edited(algorithms.kimad_sgd, no_estimate_of_the_model),
    ),
    "Kimad's weights are forgotten": ("Kimad, every round", without_weights),
    "Kimad for Kimad+": (
        "Kimad+, every round",
        lambda *arguments, rule, **options: algorithms.kimad_sgd(*arguments, rule=algorithms.kimad.one_for_all, **options),
    ),
    "EC-SGD, all messages draw the same": (
        "EC-SGD, numbers",
        lambda optimizer, up, down: _EC(optimizer, of_one_key(up), of_one_key(down)),
    ),
    "CHOCO, neighbours draw the same": (
        "CHOCO, numbers",
        lambda optimizer, topology, C, eta: algorithms.choco_sgd(optimizer, topology, of_one_key(C), eta),
    ),
    "CHOCO, the mean moves": (
        "CHOCO, mean",
        in_workers(algorithms.choco_sgd, laplacian=lambda before, after: jax.tree.map(jnp.abs, after)),
    ),
    "DSGD, W transposed": ("DSGD, every round", on(algorithms.decentralized_sgd, turned)),
    "DSGD, momentum by gossip": ("DSGD, every round", momentum_by_gossip),
    "DSGD, a schedule that stands still": ("DSGD, schedule, every round", on(algorithms.decentralized_sgd, still)),
    "DSGD, a schedule transposed": ("DSGD, schedule, every round", on(algorithms.decentralized_sgd, turned)),
    "DSGD, a run whose schedule stands still": ("a run is its rounds", on(algorithms.decentralized_sgd, still)),
    "local SGD, a schedule transposed": (
        "local SGD, schedule, every round",
        lambda optimizer, H, topology: algorithms.local_sgd(optimizer, H, turned(topology)),
    ),
    "D2 combines by (I + W) / 2": ("D2, every round", algorithms.exact_diffusion),
    "D2 forgets its correction": (
        "D2, dual sums",
        in_workers(algorithms.d2, correction=lambda before, after: jax.tree.map(jnp.abs, after)),
    ),
    "EXTRA forgets its correction": ("EXTRA, every round", in_workers(algorithms.extra, correction=forgotten)),
    "exact diffusion combines by W": ("exact diffusion, every round", lambda optimizer, topology: algorithms.d2(optimizer, topology, True)),
    "gradient tracking, trackers alone": ("gradient tracking, every round", not_tracked),
    "gradient tracking adds all of the gradient": ("mean of the trackers", in_workers(algorithms.gradient_tracking, gradient=forgotten)),
    "gradient tracking, the last round's W": (
        "gradient tracking, schedule, every round",
        on(algorithms.gradient_tracking, late),
    ),
    "SGP, W transposed": ("SGP, every round", pushed_backwards),
    "SGP asks at x for z": ("SGP, every round", asking(_SGP, at_x)),
    "SGP, a schedule transposed": ("SGP, schedule, every round", on(_SGP, turned)),
    "CHOCO's estimates are never updated": ("CHOCO, every round", in_workers(algorithms.choco_sgd, x_hat=stays)),
    "CHOCO's sums begin anew": ("CHOCO, whole model, every round", in_workers(algorithms.choco_sgd, laplacian=forgotten)),
    "DeepSqueeze's errors are lost": ("DeepSqueeze, every round", in_workers(algorithms.deepsqueeze, error=forgotten)),
    "ASGD asks at the present model": ("ASGD on a cluster, every round", asking(_ASGD, at_the_present_model)),
    "ASGD asks another worker": ("ASGD on a cluster, every round", asking(_ASGD, another_worker)),
    "ASGD waits for who is slow": ("ages of gradients", in_turns),
    "staleness-aware steps as long as others": ("ASGD, given delays, staleness-aware, every round", never_shortened),
    "AD-PSGD asks at the present model": ("AD-PSGD, every round", asking(_GOSSIP, at_the_present_models)),
    "AD-PSGD's partner stays": ("AD-PSGD, one exchange", alone),
    "AD-PSGD, partners who are no neighbours": ("AD-PSGD, partners", on(_GOSSIP, ring)),
}


# Of each kind of row, and of edit, one: the rows themselves, which find mistakes in methods, all run (`test_statements`).
BRIEFLY = {
    "mb-SGD, 1/(N - 1)",
    "SCAFFOLD's control variates stay",
    "CSGD through servers for a ring",
    "DropCompute drops the first",
    "DropCompute without preemption",
    "EC-SGD's worker memory is lost",
    "EF21 asks at x for x-hat",
    "Kimad's estimates of updates stay",
    "CHOCO, neighbours draw the same",
    "DSGD, W transposed",
    "DSGD, a schedule that stands still",
    "D2 forgets its correction",
    "SGP, W transposed",
    "ASGD asks another worker",
}


@pytest.mark.parametrize("name", briefly(MUTANTS, BRIEFLY))
def test_the_row_finds_the_mistake(name):
    """By random instances alone; the row holds without it, as all rows do."""
    statement, mutant = ROWS[MUTANTS[name][0]], MUTANTS[name][1]
    finding = registry.hold(statement._replace(trial=partial(statement.trial, method=mutant), extremes=()), TRIALS)
    assert not finding.holds
    raised = [outcome.case for outcome in finding.violations if outcome.case.startswith("raised")]
    assert not raised, "a mistake is found by what it does, not by what it breaks"


def test_the_built_instance_finds_steps_that_are_not_shortened():
    """They grow without bound, where the theorem's do not."""
    (sound,), (broken,) = staleness_aware.later_and_later(), staleness_aware.later_and_later(method=never_shortened)
    assert sound.holds
    assert broken.measured > 10 * broken.bound, "not by a hair's breadth"


def without_downlink(name, optimizer, N):
    """Half of what is received is not recorded."""
    method = algorithms.make(name, optimizer, N)

    def update(state, gradients, round):
        after, sendings = method.update(state, gradients, round), round.record.frame.sendings
        sendings[:] = [sending._replace(bits=sending.bits._replace(down=sending.bits.down // 2)) for sending in sendings]
        return after

    return method._replace(update=update)


def without_calls(name, optimizer, N):
    """Mini-batch SGD that averages without a call of the round."""
    return methods.one_model(name, optimizer, lambda x, gradients, round: optimizers.step(optimizer, x, workers.mean(gradients)))


def always_sending(name, optimizer, N):
    """Local SGD, SCAFFOLD: bits in every round."""
    method = algorithms.make(name, optimizer, N)
    return method._replace(update=lambda state, gradients, round: method.update(state, gradients, round._replace(step=0 * round.step + 3)))


@pytest.mark.parametrize(
    ("make", "name"),
    [(without_downlink, "csgd"), (without_downlink, "ec-sgd"), (always_sending, "local-sgd"), (without_calls, "mb-sgd")],
    ids=["CSGD, half of the downlink", "EC-SGD, half of the downlink", "local SGD, in every round", "mb-SGD, a mean without a call"],
)
def test_bits_that_are_not_sent_are_found(make, name):
    assert all(outcome.holds for outcome in bits.of(name, 6, 40))
    assert not all(outcome.holds for outcome in bits.of(name, 6, 40, make))
