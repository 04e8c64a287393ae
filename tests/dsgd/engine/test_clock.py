"""The simulated clock of a run, compared with a loop in numpy over absolute times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import dsgd
import topologies
from dsgd import (
    LocalWork,
    Now,
    Problem,
    Round,
    Timings,
    clusters,
    communication,
    network,
    problems,
    workers,
)
from dsgd.communication import transports
from dsgd.engine import clock, measurements, tape
from dsgd.engine.queries import Asked
from dsgd.wire import counts
from tests.dsgd.engine import clocks
from tests.dsgd.engine.clocks import (
    CLUSTERS,
    COMPUTE,
    DOWN,
    METHODS,
    UP,
    VECTOR,
    N,
    among_all,
    exchange,
    server_exchange,
    to_neighbours,
)

run = partial(clocks.run, steps=24)


def expected_clock(name, of, steps):
    """Returns the expected clock: worker n starts again when it has finished; the clock is that of
    the last worker.
    """
    done, clocks = np.zeros(N), [0.0]
    for t in range(steps):
        done = exchange(name, done + COMPUTE[of], CLUSTERS[of], t)
        clocks.append(done.max())
    return np.array(clocks)


@pytest.mark.parametrize(
    ("name", "of", "every"),
    [
        ("minibatch_sgd", "unequal", 1),
        ("local schedule", "unequal", 5),
        ("schedule", "unequal, blocking", 1),
        ("server", "unequal, blocking", 1),
        ("server", "changing", 1),
        ("servers", "changing, blocking", 1),
        ("star", "changing, blocking", 1),
        ("ring", "changing", 1),
        ("ring", "changing, blocking", 1),
        ("local", "changing, blocking", 5),
    ],
)
def test_the_clock_is_that_of_the_loop(name, of, every, problem):
    """Sparse records show the clock of every round."""
    history = run(METHODS[name], problem, CLUSTERS[of], record_every=every).history
    assert history["clock"].dtype == np.float64
    steps = history["step"]
    np.testing.assert_allclose(history["clock"], expected_clock(name, of, 24)[steps], rtol=2e-6)


# --- Several exchanges in a round, one after the other, in some rounds only, and joint.

RING, SCHEDULE = topologies.ring(N), topologies.one_peer_exponential(N)
LINKS = RING.links[0]


def local(send: Callable) -> dsgd.Algorithm:
    """Returns a method that makes a step of each worker, and then applies `send(round, x)` to the
    models.
    """

    def init(params, workers):
        return dsgd.State(workers=dsgd.workers.replicate(params, workers))

    def update(state, gradients, round):
        return dsgd.State(workers=send(round, state.workers - 0.05 * gradients))

    return dsgd.Algorithm(
        "mine",
        init,
        lambda state, round: dsgd.Query(state.workers),
        update,
        lambda state: state.workers,
    )


def server(round, x):
    return jnp.broadcast_to(round.mean(x, network.parameter_server), x.shape)


def joint(round, x):
    with round.joint():
        return round.mix(x, RING) + round.laplacian(2 * x, RING)


def nest(round, x):
    return round.every(
        2, lambda x: round.mix(round.every(3, round.average, round.mix(x, RING)), RING), x
    )


def from_rounds(t, done, cluster):
    """Round 5 of every 6 has three exchanges, rounds 1 and 3 have two."""
    if t % 2:
        done = to_neighbours(done, cluster, LINKS)
        done = among_all(done, cluster) if t % 6 == 5 else done
        done = to_neighbours(done, cluster, LINKS)
    return done


def advance_schedule(round, x):
    """A schedule advances with its exchange: one turn every third round."""
    return round.every(3, lambda x: round.mix(x, SCHEDULE), server(round, x))


def microbatch_keys(t, ready, cluster):
    done = server_exchange(ready, cluster)
    return to_neighbours(done, cluster, SCHEDULE.links[t // 3 % 2]) if t % 3 == 2 else done


SENDS: dict[str, tuple[Callable, str, Callable]] = {
    # Messages of a round; the cluster; (round, when each worker is ready, cluster) -> when it has
    # finished.
    "server, then ring": (
        lambda round, x: round.mix(server(round, x), RING),
        "unequal",
        lambda t, ready, cluster: to_neighbours(server_exchange(ready, cluster), cluster, LINKS),
    ),
    "joint": (
        joint,
        "unequal, blocking",
        lambda t, ready, cluster: to_neighbours(ready, cluster, LINKS, 2 * VECTOR),
    ),
    "server in three of four rounds": (
        lambda round, x: round.when(round.step % 4 != 1, lambda x: server(round, x), x),
        "unequal, blocking",
        lambda t, ready, cluster: server_exchange(ready, cluster) if t % 4 != 1 else ready,
    ),
    "nested": (nest, "unequal", from_rounds),
    "a schedule every third round": (advance_schedule, "unequal", microbatch_keys),
}
BITS = {"server, then ring": 6, "joint": 8}  # up and down, in vectors per round


@pytest.mark.parametrize("name", SENDS)
def test_exchanges_of_a_round_follow_each_other(name, problem):
    """Each worker starts the next exchange when it has finished the previous one."""
    send, of, after = SENDS[name]
    history = clocks.run(local(send), problem, CLUSTERS[of], steps=12).history
    done, expected = np.zeros(N), [0.0]
    for t in range(12):
        done = after(t, done + COMPUTE[of], CLUSTERS[of])
        expected.append(done.max())
    np.testing.assert_allclose(history["clock"], expected, rtol=2e-6)
    if name in BITS:
        np.testing.assert_array_equal(history["bits"], np.arange(13) * BITS[name] * VECTOR)


# --- A single tick, of constructed rounds: seconds, measurements, and the start of each worker.

M = 2
EACH = np.array([0.5, 1.75, 0.25, 3.0])

CLUSTER = clusters.Cluster(
    clusters.constant(EACH),
    up=clusters.constant(UP),
    down=clusters.constant(DOWN),
    latency=0.25,
    micro_batches=M,
)
PROBLEM = problems.random_quadratic(N, 3, seed=0)


def a_round(
    cluster: clusters.Cluster = CLUSTER,
    samples: Any = None,
    present: np.ndarray | None = None,
    problem: Problem | None = None,
) -> Round:
    work = (
        None
        if samples is None
        else LocalWork(jnp.asarray(samples, jnp.int32), jnp.ones(np.shape(samples)))
    )
    now = Now(cluster, jnp.float32(0), present=None if present is None else jnp.asarray(present))
    return Round(jnp.int32(0), N, jax.random.key(0), now, work, problem)


class Sent(NamedTuple):
    """Record of an update: one gossip round of these bits, and the computation time of each
    worker.
    """

    bits: communication.Bits
    compute: jax.Array | None = None

    def record(self) -> communication.Record:
        record = communication.Record("mine", jax.random.key(0), jnp.int32(0))
        graph = topologies.ring(N)
        record.add("mix", transports.to_neighbours(graph, jnp.int32(0)), self.bits)
        if self.compute is not None:
            record.time("computed", "compute", self.compute)
        return record


def make_sent(
    up: Any = (0,) * N, down: Any = (0,) * N, lost: Any = None, compute: Any = None
) -> Sent:
    bits = [
        None if each is None else counts.from_bits(jnp.asarray(each, jnp.uint32), N)
        for each in (up, down, lost)
    ]
    assert bits[0] is not None
    assert bits[1] is not None
    return Sent(
        communication.Bits(bits[0], bits[1], bits[2]),
        None if compute is None else jnp.asarray(compute, jnp.float32),
    )


def tick(
    before: clock.Clock,
    round: Round,
    sent: Sent,
    query: Asked | None = None,
    problem: Problem = PROBLEM,
) -> clock.Clock:
    asked = Asked(()) if query is None else query

    def one(before, present, sent):
        now = round._replace(now=round.now._replace(present=present))
        record = sent.record()
        exchanges = tape.transfers(record.sendings())
        return clock.tick(
            before, "mine", problem, now, asked, exchanges, record.statistics(now.workers)
        )

    return jax.jit(jax.shard_map(one, mesh=workers.mesh(1), in_specs=P(), out_specs=P()))(
        before, round.present, sent
    )


def start_clock(*lead: float) -> clock.Clock:
    """Returns the state at 10 s, in which workers had finished the given seconds before."""
    start = clock.start(N, measurements.initial_timings(N, M, CLUSTER))
    return start._replace(lead=jnp.asarray(lead or [0.0] * N, jnp.float32), now=jnp.float32(10))


def timings_of(of: clock.Clock) -> Timings:
    assert isinstance(of.timings, Timings)
    return of.timings


def test_lost_bits_occupy_the_port_and_are_not_measured():
    """Received bits are those that arrived."""
    up, down, lost = [100, 200, 300, 400], [50, 60, 70, 80], [10, 0, 30, 1000]
    seen = timings_of(tick(start_clock(), a_round(), make_sent(up, down, lost)))
    np.testing.assert_array_equal(seen.bits_up, up)
    np.testing.assert_array_equal(seen.bits_down, down)
    np.testing.assert_allclose(seen.up, up / UP)
    np.testing.assert_allclose(seen.down, np.add(down, lost) / DOWN)
    np.testing.assert_allclose(seen.compute, np.tile(EACH[:, None], (1, M)))
    without = timings_of(tick(start_clock(), a_round(), make_sent(up, down)))
    np.testing.assert_array_equal(without.bits_down, down)
    np.testing.assert_allclose(without.down, down / DOWN)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("computed", "cut"),
    [
        ([0.5, 0.25, 0.0, 0.125], [[False, True], [True, True], [True, True], [True, True]]),
        (M * EACH * (1 - 1e-7), np.zeros((N, M))),  # all of it, up to rounding
        (M * EACH * (1 - 1e-4), [[False, True]] * N),
    ],
)
def test_seconds_that_a_method_states_are_charged(computed, cut, exact):
    """Incomplete computations are not measured."""
    now, query = a_round(replace(CLUSTER, latency=0.0)), Asked((), exact=exact)
    found = tick(start_clock(), now, make_sent(compute=computed), query)
    np.testing.assert_allclose(found.now, 10 + np.max(computed), rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(timings_of(found).compute), cut)


@pytest.mark.parametrize(
    ("of", "samples", "seconds"),
    [
        ((40, 10), None, 12.0),
        ((40, 10), [[10, 10]] * N, 12.0),
        ((40, 10), [[3, 0], [1, 0], [0, 2], [0, 0]], 7.0),
        ((40, 10), [[0, 0]] * 3 + [[1, 1]], 12.0),
        ((40, 10), [[10, 10, 10]] * N, 12.0),
        ((10, 10), [[10]] * N, 3.0),
        ((None, 10), None, 6.0),
        ((40, None), None, 0.6),
    ],
)
def test_an_exact_gradient_of_any_samples_is_charged_as_all_samples(of, samples, seconds):
    """40 samples are four batches, that is two micro-batches twice. Without sizes the gradient
    takes as long as the micro-batches.
    """
    per_sample = clusters.Cluster(
        clusters.constant(0.0), per_sample=clusters.constant(EACH / 10), micro_batches=M
    )
    problem = PROBLEM._replace(
        sample=replace(PROBLEM.sampler, local_samples=of[0] and (of[0],) * N, batch_size=of[1])
    )
    now = a_round(per_sample, samples=samples, problem=problem)
    found = tick(start_clock(), now, make_sent(), Asked((), exact=True), problem)
    np.testing.assert_allclose(found.now, 10 + seconds, rtol=1e-6)


def test_of_queried_workers_the_slowest_counts_and_only_they_measure():
    """They compute one after the other, and no worker is ahead."""
    query = Asked((), workers=jnp.array([2, 1]))
    found = tick(
        start_clock(*[1.0] * N), a_round(replace(CLUSTER, latency=0.0)), make_sent(), query
    )
    np.testing.assert_allclose(found.now, 10 + M * 1.75)
    np.testing.assert_array_equal(
        np.isnan(timings_of(found).compute).all(axis=1), [True, False, False, True]
    )


def test_seconds_lost_to_rounding_are_compensated():
    """The sum of a hundred thousand tenths, in which float32 alone would lose seconds."""

    def later(i, at):
        return clock._add_seconds(at, jnp.float32(0.1), at.lead, ())

    found = jax.jit(lambda start: jax.lax.fori_loop(0, 100_000, later, start))(clock.start(N))
    np.testing.assert_allclose(found.now, 10_000, rtol=1e-6)
    seconds = clock.to_seconds(np.asarray(clock.digits(found))[None])
    np.testing.assert_allclose(seconds, 100_000 * float(np.float32(0.1)), rtol=1e-9)
