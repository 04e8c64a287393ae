"""Methods on events: whose turn it is, how old its model is, and what it makes of it, against the event simulation and readable loops.

Seconds are dyadic and bandwidths powers of two, so that float32 has every time exactly, and Python's floats too. Iterates are in float64.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
import rounds
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
import topologies
from algorithms import (
    asynchronous_gossip_sgd,
    asynchronous_server,
    asynchronous_sgd,
    backup_workers_sgd,
    delays,
    minibatch_sgd,
    optimizers,
    sgd,
)
from dsgd import clusters, network, problems
from dsgd.communication import Statistics
from tests.algorithms import layers
from theory_checks.machinery.trajectories import rows
from theory_checks.recursions import shared
from theory_checks.recursions.asynchronous import Numbers, Schedule, gossip_schedule, pairwise_steps, server_schedule, stale_steps
from theory_checks.recursions.compressed import cut
from theory_checks.statements.recursions.shared import cluster_of

N, D, GAMMA, STEPS = 5, 8, 0.1, 60
STEP = optax.sgd(GAMMA)
MOMENTUM = optax.sgd(GAMMA, momentum=0.5)
UNIT = clusters.Cluster(clusters.constant(1.0))


# --- The problem.


def numbers(N: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return layers.numbers(N, D, heterogeneity=2.0 * (N > 1))


def quadratic(N: int = N) -> dsgd.Problem:
    return layers.quadratic(N, D, heterogeneity=2.0 * (N > 1))


def in_samples() -> dsgd.Problem:
    """Its batches have 4 samples, of which some may count."""
    problem = quadratic()
    return problem._replace(sample=dsgd.Sampler(problem.sample, batch_size=4, take=lambda batch, samples: batch))


def g(worker: int, x: np.ndarray, N: int = N) -> np.ndarray:
    A, b, _ = numbers(N)
    return A[worker] @ x - b[worker]


# --- Rounds one by one, with all that the loop of `dsgd.run` does not show.


class Trajectory(NamedTuple):
    """The states `[B, steps + 1, ...]` before, between and after, and of each round what it sent and when it was, `[B, steps, ...]`."""

    states: dsgd.State
    statistics: Statistics
    clock: np.ndarray

    @property
    def worker(self) -> np.ndarray:
        return self.statistics.metrics["worker"]

    @property
    def staleness(self) -> np.ndarray:
        return self.statistics.metrics["staleness"]

    @property
    def sent(self) -> np.ndarray:
        return dsgd.counts.to_int(self.statistics.bits.up)

    @property
    def received(self) -> np.ndarray:
        return dsgd.counts.to_int(self.statistics.bits.down)

    @property
    def model(self) -> np.ndarray:
        """Of methods with a server, `[B, steps + 1, d]`."""
        server = self.states.server
        return rows((server.model if hasattr(server, "model") else server).params, 2)

    @property
    def models(self) -> np.ndarray:
        """Of methods without, `[B, steps + 1, N, d]`."""
        return rows(self.states.workers.params, 3)


def drive(
    algorithm: dsgd.Algorithm,
    problem: dsgd.Problem,
    cluster: Callable[[Any], clusters.Cluster | None] = lambda numbers: None,
    each: Any = np.zeros(1),  # noqa: B008
    *,
    steps: int = STEPS,
    devices: int = 1,
    seed: int = 1,
) -> Trajectory:
    """One run on each of the B clusters, in float64, the times in float32. A round that does not keep its time takes a second."""
    N = problem.workers

    def run(state, data, keys, numbers):
        def one_round(carry, this):
            (state, clock), (step, key) = carry, this
            here = cluster(numbers)
            this = dsgd.Round(step, N, key, None if here is None else dsgd.Now(here, clock))
            after, _, statistics = rounds.one(algorithm, problem, state, this, data, key, key)
            clock = clock + (1 if statistics.elapsed is None else statistics.elapsed)
            return (after, clock), (after, statistics, clock)

        return jax.lax.scan(one_round, (state, jnp.float32(0)), (jnp.arange(steps, dtype=jnp.int32), keys))[1]

    out = (rounds.states_over(None, None), rounds.statistics_over(None, None), P())
    with jax.enable_x64(True):
        mapped = jax.vmap(run, (None, None, None, 0))
        spread = jax.shard_map(
            mapped, mesh=dsgd.workers.mesh(devices), check_vma=False, in_specs=(rounds.STATE, P("workers"), P(), P()), out_specs=out
        )

        def everything(data, key, each):
            first = algorithm.init(problem.init(jax.random.key(0)), N)
            return first, spread(first, data, jax.random.split(key, steps), each)

        first, (states, statistics, clock) = jax.tree.map(np.asarray, jax.jit(everything)(problem.data, jax.random.key(seed), each))
    states = jax.tree.map(lambda start, rest: np.concatenate([np.broadcast_to(start, rest[:, :1].shape), rest], 1), first, states)
    return Trajectory(states, statistics, clock)


# --- The oracles of an asynchronous server: its schedule, event by event, and the iterates that follow.


def from_simulation(numbers: Numbers, latency: float, convention: Any, servers: int, expected: list[int]) -> Schedule:
    """From `network.simulate`, in fractions, of workers that compute as long in every lap, and make one lap more than is expected."""
    workers, T = len(numbers.up), len(expected)
    bits = 64 * D
    messages = network.asynchronous_server_messages(
        [[Fraction(laps[0])] * (expected.count(n) + 1) for n, laps in enumerate(numbers.compute.tolist())], servers
    )
    nothing = [Fraction(0)] * servers  # the servers' own ports are as fast as it takes
    up, down = ([Fraction(bits) / Fraction(port) for port in ports.tolist()] + nothing for ports in (numbers.up, numbers.down))
    passages = network.simulate(messages, Fraction(latency), up, convention, receive=down).passages
    into = [sorted((p for p in passages if p.message.receiver == workers + s), key=lambda p: p.arrived) for s in range(servers)]
    order = [p.message.sender for p in into[0]][:T]
    starts = {(s, n): [] for s in range(servers) for n in range(workers)}
    for p in passages:
        if p.message.sender >= workers:
            starts[p.message.sender - workers, p.message.receiver].append(p.start)
    version = []
    for t, worker in enumerate(order):
        mine = [i for i in range(t) if order[i] == worker]
        each = []
        for s in range(servers):
            arrived = sum(p.arrived < starts[s, worker][len(mine) - 1] for p in into[s]) if mine else 0
            each.append(max(mine[-1] + 1, arrived) if mine else 0)
        version.append(each)
    return Schedule(order, [float(p.arrived) for p in into[-1][:T]], version)


def naive(numbers: Numbers, latency: float, convention: str, servers: int, T: int, bound: float = np.inf) -> Schedule:
    """The loop over updates, of this model's bits."""
    return server_schedule(numbers, latency=latency, convention=convention, servers=servers, updates=T, bits=64 * D, bound=bound)


def G(t: int, X: np.ndarray) -> np.ndarray:
    """Everybody's gradient at its own model, `[N, d]`."""
    A, b, _ = numbers(len(X))
    return shared.quadratic(A, b)(t, X)


def iterates(worker: Any, staleness: np.ndarray, N: int = N, aware: bool = False) -> np.ndarray:
    """x_{t+1} = x_t - gamma g(x_D(t)), where each of P parts has its own D(t), `[T, P]`: `[T + 1, d]`."""
    return stale_steps(numbers(N)[2], G, N, shared.plain(GAMMA), worker, staleness, aware=aware)


# --- The schedule that emerges.

COMBINATIONS = [(1, "blocking", 0.75), (2, "blocking", 0.25), (4, "pipelined", 0.5), (1, "pipelined", 0.25), (4, "blocking", 0.0)]


@cache
def random_clusters(N: int = N, B: int = 12, laps: int = 1, seed: int = 0) -> Numbers:
    """Some that compute long and some that compute short, with many ties."""
    rng = np.random.default_rng(seed)
    most = rng.choice([3, 40], size=(B, 1, 1))
    up, down = (64.0 * D * 2.0 ** rng.integers(-1, 4, size=(B, N)) for _ in range(2))
    return Numbers((rng.integers(1, 41, size=(B, N, laps)) % most + 1) / 8.0, up, down)


@cache
def emergent(servers: int, convention: Any, latency: float, laps: int = 1) -> Trajectory:
    algorithm = asynchronous_sgd(STEP, servers=servers)
    cluster = partial(cluster_of, latency=latency, convention=convention)
    return drive(algorithm, quadratic(), cluster, random_clusters(laps=laps))


def each(numbers: Numbers, b: int) -> Numbers:
    return Numbers(*(values[b] for values in numbers))


def assert_schedule(found: Trajectory, b: int, schedule: Schedule) -> None:
    """The same worker, the same second and the same staleness in every update, and so the same iterates."""
    assert found.worker[b].tolist() == schedule.worker
    assert found.clock[b].tolist() == schedule.clock
    np.testing.assert_array_equal(found.staleness[b], schedule.staleness.max(axis=1))
    np.testing.assert_allclose(found.model[b], iterates(schedule.worker, schedule.staleness), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("servers", "convention", "latency"), COMBINATIONS)
def test_what_emerges_is_what_the_event_simulation_says(servers, convention, latency):
    many = random_clusters()
    found = emergent(servers, convention, latency)
    for b in range(len(many.up)):
        assert_schedule(found, b, from_simulation(each(many, b), latency, convention, servers, found.worker[b].tolist()))


@pytest.mark.parametrize(("servers", "convention", "latency"), COMBINATIONS)
def test_the_loop_over_updates_is_the_event_simulation(servers, convention, latency):
    """The oracle of what the simulation does not know: seconds that change with the time, and bounds."""
    many = random_clusters(seed=1)
    for b in range(len(many.up)):
        schedule = naive(each(many, b), latency, convention, servers, STEPS)
        assert schedule == from_simulation(each(many, b), latency, convention, servers, schedule.worker)


@pytest.mark.parametrize(("servers", "convention", "latency"), COMBINATIONS[1:3])
def test_seconds_that_change_are_those_of_the_time_when_a_worker_begins(servers, convention, latency):
    many = random_clusters(laps=7)
    found = emergent(servers, convention, latency, laps=7)
    for b in range(len(many.up)):
        assert_schedule(found, b, naive(each(many, b), latency, convention, servers, STEPS))


def takes(bits: float, begin: float, speeds: tuple[float, ...]) -> float:
    """Seconds of a message from then on, where each speed is that of a second, in turn."""
    now = begin
    while bits > 0:
        speed, left = speeds[int(now) % len(speeds)], int(now) + 1 - now
        sent = min(bits, speed * left)
        now, bits = (now + sent / speed if sent == bits else int(now) + 1), bits - sent
    return now - begin


@pytest.mark.parametrize("latency", [0.0, 0.25])
def test_a_trip_takes_what_its_bits_take_while_bandwidths_change(latency):
    """The gradient from when it leaves, the model from when it begins to arrive."""
    speeds = (64.0 * D, 128.0 * D, 32.0 * D)
    cluster = clusters.Cluster(clusters.constant(1.0), up=clusters.trace(np.array(speeds), 1.0), latency=latency)
    found = drive(asynchronous_sgd(STEP), quadratic(1), lambda numbers: cluster, steps=20)
    ready, expected = 1.0, []
    for _ in range(20):
        clock = ready + latency + takes(64 * D, ready, speeds)
        ready = clock + latency + takes(64 * D, clock + latency, speeds) + 1
        expected.append(clock)
    np.testing.assert_allclose(found.clock[0], expected, rtol=1e-6)


def test_an_exchange_takes_as_long_as_the_slowest_of_four_ports_while_bandwidths_change():
    """Two workers, who compute for 1 and for 100 seconds: the first one exchanges, again and again."""
    up, down = (64.0 * D, 128.0 * D, 32.0 * D), (128.0 * D, 16.0 * D)
    ports = {"up": clusters.trace(np.array(up), 1.0), "down": clusters.trace(np.array(down), 1.0)}
    cluster = clusters.Cluster(clusters.constant([1.0, 100.0]), **ports, latency=0.25)
    found = drive(asynchronous_gossip_sgd(STEP, topologies.ring(2)), quadratic(2), lambda numbers: cluster, steps=12)
    ready, expected = 1.0, []
    for _ in range(12):
        end = ready + 0.25 + max(takes(64 * D, ready, up), takes(64 * D, ready + 0.25, down))
        ready = end + 1
        expected.append(end)
    np.testing.assert_allclose(found.clock[0], expected, rtol=1e-6)


def working(method: dsgd.Algorithm, samples: np.ndarray) -> dsgd.Algorithm:
    """The method whose workers' gradients are of so many samples, `[N, M]`, in every round."""
    work = dsgd.Work(jnp.asarray(samples, jnp.int32), jnp.ones(samples.shape))

    def query(state, round):
        return method.query(state, round._replace(work=work))._replace(work=work)

    return method._replace(query=query)


UNEQUAL = np.array([[4, 0, 1], [2, 2, 2], [0, 0, 1], [4, 4, 4], [1, 3, 0]])


def by_the_sample(numbers: Numbers, **options: Any) -> clusters.Cluster:
    """Lap by lap: seconds of a micro-batch, and an eighth of them for each of its samples."""
    plain = cluster_of(numbers, **options)
    return dataclasses.replace(plain, per_sample=0.125 * plain.compute)


def charged(numbers: Numbers) -> Numbers:
    """The same cluster for the loops: seconds of whole gradients."""
    factors = ((UNEQUAL > 0) * (1 + UNEQUAL / 8)).sum(axis=1)
    return numbers._replace(compute=numbers.compute * factors[:, None])


@pytest.mark.parametrize(("servers", "convention", "latency"), COMBINATIONS[1:3])
def test_unequal_work_arrives_when_it_is_done(servers, convention, latency):
    """Worker, second and staleness of every update are the event simulation's, with each worker's own seconds, sample by sample."""
    many, problem = random_clusters(), in_samples()
    method = working(asynchronous_sgd(STEP, servers=servers), UNEQUAL)
    found = drive(method, problem, partial(by_the_sample, latency=latency, convention=convention), many)
    for b in range(len(many.up)):
        numbers, order = charged(each(many, b)), found.worker[b].tolist()
        schedule = from_simulation(numbers, latency, convention, servers, order)
        assert schedule == naive(numbers, latency, convention, servers, STEPS)
        assert order == schedule.worker
        assert found.clock[b].tolist() == schedule.clock
        np.testing.assert_array_equal(found.staleness[b], schedule.staleness.max(axis=1))


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.long), 8])
def test_the_schedule_does_not_depend_on_the_number_of_devices(devices):
    alone, many = (
        drive(
            asynchronous_sgd(MOMENTUM, servers=2, bound=12, staleness_aware=True),
            quadratic(8),
            partial(cluster_of, latency=0.25),
            random_clusters(N=8, B=2),
            steps=30,
            devices=devices,
        )
        for devices in (1, devices)
    )
    for name in ("worker", "staleness", "clock", "sent", "received"):
        np.testing.assert_array_equal(getattr(many, name), getattr(alone, name))
    np.testing.assert_allclose(many.model, alone.model, rtol=1e-11, atol=1e-11)


# --- Bounded staleness.

BOUNDS = [(1, "blocking", 0.25, N - 1), (2, "pipelined", 0.5, N - 1), (1, "pipelined", 0.0, N + 1), (2, "blocking", 0.25, 2 * N)]


def with_a_slow_worker(**options: Any) -> Numbers:
    """Random clusters where the second worker computes for 25 seconds."""
    many = random_clusters(**options)
    compute = many.compute.copy()
    compute[:, 1] = 25.0
    return many._replace(compute=compute)


@pytest.mark.parametrize(("servers", "convention", "latency", "bound"), BOUNDS)
def test_bounded_staleness_takes_the_first_gradient_that_leaves_an_order_within_the_bound(servers, convention, latency, bound):
    many = with_a_slow_worker(laps=3)
    algorithm = asynchronous_sgd(STEP, servers=servers, bound=bound)
    found = drive(algorithm, quadratic(), partial(cluster_of, latency=latency, convention=convention), many)
    free = [naive(each(many, b), latency, convention, servers, STEPS) for b in range(len(many.up))]
    assert max(schedule.staleness.max() for schedule in free) > bound
    assert found.staleness.max() == bound
    for b in range(len(many.up)):
        assert_schedule(found, b, naive(each(many, b), latency, convention, servers, STEPS, bound))


def test_who_was_held_goes_in_the_order_in_which_they_were_ready():
    """Three gradients wait for a slow worker's: of worker 3 since 6.87, of 2 since 6.95, of 1 since 9.35."""
    cluster = clusters.Cluster(clusters.constant([100.0, 3.1, 2.3, 1.7]), latency=0.01)
    history = dsgd.run(asynchronous_sgd(STEP, bound=7), noisy(4), steps=20, key=jax.random.key(0), cluster=cluster, mesh=1).history
    worker, clock = history["worker"][1:].astype(int).tolist(), history["clock"][1:]
    slow = worker.index(0)
    assert clock[slow] - clock[slow - 1] > 50
    assert worker[slow + 1 : slow + 4] == [3, 2, 1]


def test_a_bound_that_is_never_reached_changes_nothing():
    servers, convention, latency = COMBINATIONS[1]
    free = emergent(servers, convention, latency)
    algorithm = asynchronous_sgd(STEP, servers=servers, bound=10 * STEPS)
    bounded = drive(algorithm, quadratic(), partial(cluster_of, latency=latency, convention=convention), random_clusters())
    jax.tree.map(np.testing.assert_array_equal, bounded, free)


def test_the_least_bound_is_a_round_robin_in_the_order_of_the_first_lap():
    """Where models are read at once, nobody may be overtaken any more."""
    cluster = clusters.Cluster(clusters.lognormal(0.0, 1.0))
    (worker,) = drive(asynchronous_sgd(STEP, bound=N - 1), quadratic(), lambda numbers: cluster).worker
    np.testing.assert_array_equal(worker, np.tile(worker[:N], STEPS // N))
    assert sorted(worker[:N]) == list(range(N))
    assert worker[:N].tolist() != list(range(N))


# --- Times that are drawn.


@cache
def drawn(N: int = 8, steps: int = 400, quantity: clusters.Quantity = clusters.lognormal(0.0, 1.0)) -> Trajectory:  # noqa: B008
    cluster = clusters.Cluster(quantity)
    return drive(asynchronous_sgd(STEP), quadratic(N), lambda numbers: cluster, steps=steps)


def test_no_model_that_somebody_computes_at_is_ever_overwritten():
    """Over hundreds of updates with reads in every order, each gradient is of the model that its staleness says."""
    found = drawn()
    assert len(set(found.staleness[0])) > 15
    np.testing.assert_allclose(found.model[0], iterates(found.worker[0], found.staleness[0, :, None], 8), rtol=1e-9, atol=1e-9)


def test_staleness_is_n_minus_1_on_average():
    """Each update makes every other worker's gradient one update older: the sums of ages before and after can only differ by what is
    still on its way."""
    N, found = 8, drawn()
    T = found.worker.shape[1]
    before = [[i for i in range(t) if found.worker[0, i] == n] for t, n in enumerate(found.worker[0])]
    np.testing.assert_array_equal(found.staleness[0], [t - (mine[-1] + 1 if mine else 0) for t, mine in enumerate(before)])
    last = [found.worker[0].tolist()[::-1].index(n) for n in range(N)]  # how old what is on its way is now
    assert found.staleness.sum() == (N - 1) * T - (sum(last) - sum(range(N))) - sum(range(N))
    assert abs(found.staleness.mean() - (N - 1)) < 0.5


def test_every_gradient_takes_its_own_time():
    """The second is not the first again, and no two workers draw the same."""
    found = drawn()
    seconds = [np.diff(found.clock[0][found.worker[0] == n], prepend=0.0) for n in range(8)]
    assert len(np.unique(np.concatenate(seconds).round(4))) > 0.95 * found.worker.size
    assert all(abs(mine[1] / mine[0] - 1) > 1e-3 for mine in seconds)
    assert np.log(np.concatenate(seconds)).mean() == pytest.approx(0, abs=4 / np.sqrt(found.worker.size))


def test_staleness_does_not_grow_with_a_share_that_is_slow():
    """One slow worker is late itself; the others' gradients are hardly older."""
    found = drawn(4, 200, clusters.slow(clusters.lognormal(0.0, 0.2), [2], 20.0))
    mine = found.worker[0] == 2
    assert 0 < mine.sum() < 8
    assert found.staleness[0, mine][1:].mean() > 40
    assert found.staleness[0, ~mine].mean() < 3.2


# --- Without a cluster, and given delays.


def test_without_a_cluster_everybody_computes_for_a_second():
    """Round robin, with a staleness of N - 1 from the second lap on; there is no clock. The same cluster made explicit has one."""
    problem = problems.random_quadratic(N, D, noise=0.5, seed=3)
    method = asynchronous_sgd(STEP)
    alone, explicit = (dsgd.run(method, problem, steps=4 * N, key=jax.random.key(0), mesh=1, cluster=cluster) for cluster in (None, UNIT))
    assert "clock" not in alone.history
    t = np.arange(4 * N)
    np.testing.assert_array_equal(alone.history["worker"], [np.nan, *(t % N)])
    np.testing.assert_array_equal(alone.history["staleness"], [np.nan, *np.minimum(t, N - 1)])
    np.testing.assert_array_equal(explicit.history["clock"], [0, *(1 + t // N)])
    for name, values in alone.history.items():
        np.testing.assert_array_equal(explicit.history[name], values)
    np.testing.assert_array_equal(explicit.params, alone.params)


OPTIMIZERS = {"sgd": optax.sgd(0.1), "momentum": optax.sgd(0.1, momentum=0.9), "adam": optax.adam(0.1)}
NO_DELAY = {
    "constant": (8, lambda optimizer: asynchronous_sgd(optimizer, delays.constant(0))),
    "worst-case": (8, lambda optimizer: asynchronous_sgd(optimizer, delays.worst_case(0), servers=2)),
    "one-worker": (1, asynchronous_sgd),
}


@cache
def noisy(N: int) -> dsgd.Problem:
    return problems.random_quadratic(N, D, heterogeneity=1.0 * (N > 1), noise=0.5, seed=3)


@cache
def plain(optimizer: str, N: int, devices: int) -> dsgd.Result:
    return dsgd.run(sgd(OPTIMIZERS[optimizer]), noisy(N), steps=30, key=jax.random.key(2), mesh=devices)


@pytest.mark.parametrize(
    ("rule", "optimizer", "devices"),
    [
        ("constant", "sgd", 1),
        pytest.param("constant", "sgd", 2, marks=pytest.mark.long),
        ("constant", "sgd", 8),
        ("constant", "adam", 1),
        ("worst-case", "momentum", 1),
        ("one-worker", "adam", 1),
    ],
)
def test_without_staleness_it_is_sgd_to_the_bit(rule, optimizer, devices):
    N, method = NO_DELAY[rule]
    found = dsgd.run(method(OPTIMIZERS[optimizer]), noisy(N), steps=30, key=jax.random.key(2), mesh=devices)
    expected = plain(optimizer, N, devices)
    np.testing.assert_array_equal(found.params, expected.params)
    np.testing.assert_array_equal(found.history["loss"], expected.history["loss"])
    assert (found.history["staleness"][1:] == 0).all()


PARTS = np.random.default_rng(5).integers(0, 9, size=(STEPS, 3))
GIVEN = {
    "constant": (delays.constant(4), 1),
    "uniform": (delays.uniform(6), 1),
    "worst-case": (delays.worst_case(5), 1),
    "given": (delays.given(np.maximum(0, np.arange(STEPS) - PARTS[:, 0])), 1),
    "two parts": (delays.given(np.maximum(0, np.arange(STEPS)[:, None] - PARTS[:, :2])), 2),
    "three parts, of which the last is filled up": (delays.given(np.maximum(0, np.arange(STEPS)[:, None] - PARTS), bound=30), 3),
}


@pytest.mark.parametrize("aware", [False, True], ids=["", "staleness-aware"])
@pytest.mark.parametrize("rule", GIVEN)
def test_with_given_delays_each_gradient_is_of_the_model_that_they_say(rule, aware):
    D_of_t, servers = GIVEN[rule]
    found = drive(asynchronous_sgd(STEP, D_of_t, servers=servers, staleness_aware=aware), quadratic())
    worker, staleness = found.worker[0], found.staleness[0]
    each = np.minimum(np.arange(STEPS)[:, None], PARTS[:, :servers]) if servers > 1 else staleness[:, None]
    np.testing.assert_array_equal(staleness, each.max(axis=1))
    assert 0 < staleness.max() <= D_of_t.bound
    np.testing.assert_allclose(found.model[0], iterates(worker, each, aware=aware), rtol=1e-11, atol=1e-11)
    assert found.statistics.elapsed is None


@pytest.mark.parametrize("servers", [1, 2])
def test_the_worst_case_is_the_farthest_of_the_last_models(servers):
    """The loop finds it on its own, part by part."""
    bound = 5
    found = drive(asynchronous_sgd(STEP, delays.worst_case(bound), servers=servers), quadratic())
    x, ages = [numbers()[2]], []
    for t, n in enumerate(found.worker[0]):
        now, earlier = cut(x[t], servers), [cut(x[t - age], servers) for age in range(min(t, bound) + 1)]
        ages.append(np.argmax([((now - then) ** 2).sum(axis=1) for then in earlier], axis=0))
        read = np.concatenate([earlier[age][part] for part, age in enumerate(ages[-1])])
        x.append(x[t] - GAMMA * g(n, read))
    np.testing.assert_array_equal(found.staleness[0], np.max(ages, axis=1))
    np.testing.assert_allclose(found.model[0], np.stack(x), rtol=1e-11, atol=1e-11)
    assert (np.stack(ages)[bound:] < bound).any()


def test_with_given_delays_each_worker_is_asked_as_often():
    found = drive(asynchronous_sgd(STEP, delays.constant(3)), quadratic(), steps=1_000)
    counts = np.bincount(found.worker[0], minlength=N)
    assert ((counts - 200) ** 2 / 200).sum() < 18.5  # of chi-squared with 4 degrees of freedom, 0.999


def test_each_parts_step_is_divided_by_its_own_staleness():
    """As it emerges, with two servers of which the second has the older parts."""
    many = random_clusters(B=6, seed=2)
    found = drive(
        asynchronous_sgd(STEP, servers=2, staleness_aware=True), quadratic(), partial(cluster_of, latency=0.5, convention="blocking"), many
    )
    differ = 0
    for b in range(6):
        schedule = naive(each(many, b), 0.5, "blocking", 2, STEPS)
        differ += (schedule.staleness[:, 0] != schedule.staleness[:, 1]).sum()
        assert found.worker[b].tolist() == schedule.worker
        np.testing.assert_allclose(found.model[b], iterates(schedule.worker, schedule.staleness, aware=True), rtol=1e-11, atol=1e-11)
    assert differ > 10


def test_staleness_aware_adam_goes_its_way_in_shorter_steps():
    """What is divided is the step that the optimiser makes, not the gradient, of which Adam would not see the size."""
    aware, plain = (
        drive(asynchronous_sgd(optax.adam(GAMMA), delays.constant(4), staleness_aware=aware), quadratic(), steps=6).model[0]
        for aware in (True, False)
    )
    first = np.abs(plain[1] - plain[0])
    np.testing.assert_allclose(first, GAMMA, rtol=1e-6)
    for t, x in enumerate(aware[1:5]):  # all at the first model, but of other workers
        np.testing.assert_allclose(x - aware[t], (plain[t + 1] - plain[t]) / max(1, t), rtol=1e-9)


# --- Custom steps of the server.


class Compensated(NamedTuple):
    """A model, its optimizer's state, and the mean square of gradients."""

    params: Any
    optimizer: Any
    mean_square: Any


def delay_compensated_sgd(optimizer: optax.GradientTransformation, weight: float, **options: Any) -> dsgd.Algorithm:
    """DC-ASGD-c of Zheng et al., 2017, equation 10."""

    def step(model, gradient, arrival, read):
        gradient = jax.tree.map(lambda g, x, old: g + weight * g * g * (x - old), gradient, model.params, read)
        return optimizers.step(optimizer, model, gradient)

    return asynchronous_server("delay_compensated_sgd", optimizer, step, **options)


def adaptive_compensated_sgd(optimizer: optax.GradientTransformation, weight: float, decay: float, **options: Any) -> dsgd.Algorithm:
    """DC-ASGD-a, equation 14, whose weight is divided by the root of the mean square."""

    def start(model):
        return Compensated(*model, optax.tree.zeros_like(model.params))

    def step(model, gradient, arrival, read):
        squares = jax.tree.map(lambda mean, g: decay * mean + (1 - decay) * g * g, model.mean_square, gradient)
        scaled = jax.tree.map(lambda g, mean: weight * g * g / jnp.sqrt(mean + 1e-7), gradient, squares)
        gradient = jax.tree.map(lambda g, scale, x, old: g + scale * (x - old), gradient, scaled, model.params, read)
        return Compensated(*optimizers.step(optimizer, optimizers.Model(model.params, model.optimizer), gradient), squares)

    return asynchronous_server(f"adaptive_compensated_sgd({decay})", optimizer, step, start=start, **options)


WEIGHT, DECAY = 0.5, 0.9


@pytest.mark.parametrize(
    ("method", "adaptive", "servers"),
    [(delay_compensated_sgd(STEP, WEIGHT), False, 1), (adaptive_compensated_sgd(STEP, WEIGHT, DECAY, servers=2), True, 2)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_custom_step_gets_the_model_that_the_gradient_was_computed_at(method, adaptive, servers):
    many = random_clusters(B=2, seed=2)
    found = drive(method, quadratic(), partial(cluster_of, latency=0.25), many, steps=30)
    for b in range(2):
        schedule = server_schedule(each(many, b), latency=0.25, convention="blocking", servers=servers, updates=30, bits=64 * D)
        assert (found.worker[b].tolist(), found.clock[b].tolist()) == (schedule.worker, schedule.clock)
        x, mean, weight = [numbers()[2]], np.zeros(D), WEIGHT
        for t, n in enumerate(schedule.worker):
            read = np.concatenate([cut(x[t - age], servers)[part] for part, age in enumerate(schedule.staleness[t])])
            slope = g(n, read)
            if adaptive:
                mean = DECAY * mean + (1 - DECAY) * slope**2
                weight = WEIGHT / np.sqrt(mean + 1e-7)
            x.append(x[t] - GAMMA * (slope + weight * slope**2 * (x[t] - read)))
        np.testing.assert_allclose(found.model[b], x, rtol=1e-11, atol=1e-11)


def test_without_compensation_it_is_asynchronous_sgd_to_the_bit():
    cluster = clusters.Cluster(clusters.lognormal(0.0, 1.0), up=clusters.constant(256.0))
    found, expected = (
        dsgd.run(method, noisy(4), steps=20, key=jax.random.key(0), mesh=1, cluster=cluster)
        for method in (delay_compensated_sgd(MOMENTUM, 0.0, servers=2, bound=5), asynchronous_sgd(MOMENTUM, servers=2, bound=5))
    )
    for name, values in expected.history.items():
        np.testing.assert_array_equal(found.history[name], values, err_msg=name)
    np.testing.assert_array_equal(found.params, expected.params)


def test_a_custom_step_keeps_the_contract():
    cluster = clusters.Cluster(clusters.exponential(1.0), up=clusters.constant(1e3))
    dsgd.check(adaptive_compensated_sgd(STEP, WEIGHT, DECAY), noisy(4), key=jax.random.key(1), cluster=cluster).require()


def test_what_a_custom_step_gives_is_checked():
    wrong = asynchronous_server("mine", STEP, lambda model, gradient, arrival, read: model._replace(params=read[:1]))
    with pytest.raises(ValueError, match=r"mine: step gives .*params"):
        run(wrong)
    with pytest.raises(ValueError, match=r"asynchronous_server: step = .*4 arguments \(model, gradient, arrival, read\)"):
        asynchronous_server("mine", STEP, lambda model, gradient: model)


# --- Asynchronous gossip.


def gossip_iterates(workers: Any, partners: Any, N: int, share: float) -> np.ndarray:
    """From the common start, each with a memory of its own."""
    steps = [shared.momentum(GAMMA, share) for _ in range(N)]
    return pairwise_steps(np.tile(numbers(N)[2], (N, 1)), G, steps, workers, partners)


@cache
def gossiping(devices: int) -> Trajectory:
    """Eight workers on a torus, and for each device count the same clusters."""
    many = random_clusters(N=8, B=8, laps=3)
    cluster = partial(cluster_of, latency=0.25, convention="blocking")
    return drive(asynchronous_gossip_sgd(MOMENTUM, topologies.torus(2, 4)), quadratic(8), cluster, many, devices=devices)


def partners_of(found: Trajectory, b: int) -> np.ndarray:
    """The other one who sends."""
    return np.array([next(int(n) for n in np.flatnonzero(sent) if n != i) for i, sent in zip(found.worker[b], found.sent[b], strict=True)])


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.long), 8])
def test_gossip_takes_the_exchange_that_can_begin_first(devices):
    """Whose partners are whose is read from who sends; order, clock, staleness and iterates follow."""
    many, found = random_clusters(N=8, B=8, laps=3), gossiping(devices)
    for b in range(len(many.up)):
        worker, partner = found.worker[b], partners_of(found, b)
        schedule = gossip_schedule(each(many, b), 0.25, [partner[worker == n].tolist() for n in range(8)], STEPS, 64 * D)
        assert worker.tolist() == schedule.worker
        assert found.clock[b].tolist() == schedule.clock
        own = [max((i + 1 for i in range(t) if worker[i] == n), default=0) for t, n in enumerate(worker)]
        np.testing.assert_array_equal(found.staleness[b], np.arange(STEPS) - own)
        np.testing.assert_allclose(found.models[b], gossip_iterates(worker, partner, 8, 0.5), rtol=1e-11, atol=1e-11)
        for held in schedule.held:
            assert all(end <= begin for (_, end), (begin, _) in zip(sorted(held), sorted(held)[1:], strict=False))


def test_gossip_with_unequal_work_exchanges_what_is_done():
    many, problem = random_clusters(), in_samples()
    method = working(asynchronous_gossip_sgd(STEP, topologies.ring(N)), UNEQUAL)
    found = drive(method, problem, partial(by_the_sample, latency=0.25), many)
    for b in range(len(many.up)):
        worker, partner = found.worker[b], partners_of(found, b)
        partners = [partner[worker == n].tolist() for n in range(N)]
        schedule = gossip_schedule(charged(each(many, b)), 0.25, partners, STEPS, 64 * D)
        assert (worker.tolist(), found.clock[b].tolist()) == (schedule.worker, schedule.clock)


def test_the_consensus_of_gossip_is_that_of_the_models():
    """Not of those that gradients are computed at."""
    method = asynchronous_gossip_sgd(STEP, topologies.ring(4))
    result = dsgd.run(method, noisy(4), steps=11, key=jax.random.key(0), mesh=1)
    models = rows(result.state.workers.params, 1)
    expected = np.mean(np.sum((models - models.mean(axis=0)) ** 2, axis=1))
    assert expected > 0
    np.testing.assert_allclose(result.history["consensus"][-1], expected, rtol=1e-5)


def test_gossip_of_two_has_no_choice():
    many = random_clusters(N=2, B=6, laps=3, seed=4)
    found = drive(asynchronous_gossip_sgd(STEP, topologies.ring(2)), quadratic(2), partial(cluster_of, latency=0.5), many)
    for b in range(6):
        schedule = gossip_schedule(each(many, b), 0.5, [[1] * STEPS, [0] * STEPS], STEPS, 64 * D)
        assert (found.worker[b].tolist(), found.clock[b].tolist()) == (schedule.worker, schedule.clock)
        np.testing.assert_allclose(found.models[b], gossip_iterates(schedule.worker, schedule.partner, 2, 0), rtol=1e-11, atol=1e-11)


def test_gossip_of_one_is_sgd():
    found = drive(asynchronous_gossip_sgd(STEP, topologies.ring(1)), quadratic(1), partial(cluster_of, latency=0.5), random_clusters(N=1))
    np.testing.assert_allclose(found.models[0, :, 0], iterates(found.worker[0], found.staleness[0, :, None], 1), rtol=1e-11, atol=1e-11)
    assert found.staleness.max() == found.sent.max() == found.received.max() == 0
    compute = random_clusters(N=1).compute[:, 0, 0]
    np.testing.assert_array_equal(found.clock[:, -1], STEPS * compute)


def test_gossip_keeps_the_mean_up_to_the_steps():
    """W_t is doubly stochastic: the mean moves by a worker's step over N, at the model that it had after its last one."""
    many = random_clusters(N=8, B=2)
    found = drive(asynchronous_gossip_sgd(STEP, topologies.ring(8)), quadratic(8), cluster_of, many)
    for b in range(2):
        mean = found.models[b].mean(axis=1)
        for t, (i, old) in enumerate(zip(found.worker[b], found.staleness[b], strict=True)):
            np.testing.assert_allclose(mean[t + 1] - mean[t], -GAMMA * g(i, found.models[b, t - old, i], 8) / 8, atol=1e-14)


def test_in_gossip_the_two_partners_send_and_receive_a_model():
    found = gossiping(1)
    assert ((found.sent > 0).sum(axis=2) == 2).all()
    assert set(found.sent.ravel()) == {0, 64 * D}
    np.testing.assert_array_equal(found.received, found.sent)


def test_partners_are_neighbours_each_as_likely():
    """On a star, the hub asks each leaf as often, and leaves ask the hub."""
    found = drive(asynchronous_gossip_sgd(STEP, topologies.star(N)), quadratic(), steps=1_500)
    worker, partner = found.worker[0], partners_of(found, 0)
    assert (partner[worker != 0] == 0).all()
    counts = np.bincount(partner[worker == 0], minlength=N)
    assert counts[0] == 0
    assert ((counts[1:] - 75) ** 2 / 75).sum() < 16.3  # of chi-squared with 3 degrees of freedom, 0.999
    np.testing.assert_array_equal(worker, np.arange(1_500) % N)  # without a cluster, everybody computes for a second
    assert (found.clock[0] == 1 + np.arange(1_500) // N).all()


def test_who_has_fewer_neighbours_asks_each_as_often_too():
    graph = topologies.from_graph(nx.Graph([(0, 1), (0, 2), (0, 3), (1, 2)]))
    found = drive(asynchronous_gossip_sgd(STEP, graph), quadratic(4), steps=1_200)
    counts = np.bincount(partners_of(found, 0)[found.worker[0] == 1], minlength=4)
    assert counts[[1, 3]].sum() == 0
    assert abs(counts[0] - counts[2]) < 4 * np.sqrt(300)


def test_everybodys_first_partner_is_its_own_draw():
    """One update of each, before anybody's second."""
    found = drive(asynchronous_gossip_sgd(STEP, topologies.complete(8)), quadratic(8), steps=8)
    assert sorted(found.worker[0]) == list(range(8))
    assert len({(j - i) % 8 for i, j in zip(found.worker[0], partners_of(found, 0), strict=True)}) > 2


def test_in_gossip_every_gradient_takes_its_own_time():
    cluster = clusters.Cluster(clusters.exponential(1.0))
    found = drive(asynchronous_gossip_sgd(STEP, topologies.ring(2)), quadratic(2), lambda numbers: cluster, steps=200)
    seconds = [np.diff(found.clock[0][found.worker[0] == n], prepend=0.0) for n in range(2)]
    assert len(np.unique(np.concatenate(seconds).round(4))) > 190
    assert all(abs(mine[1] / mine[0] - 1) > 1e-3 for mine in seconds)
    assert np.concatenate(seconds).mean() == pytest.approx(1, abs=4 / np.sqrt(200))


# --- Backup workers.


@pytest.mark.parametrize("devices", [1, 8])
def test_backup_workers_drop_the_slowest_gradients_of_each_round(devices):
    """Of equally slow ones, the last."""
    many, k = random_clusters(N=8, B=4, laps=7), 3
    found = drive(backup_workers_sgd(STEP, k), quadratic(8), cluster_of, many, devices=devices, steps=20)
    part = 64 * D // 8
    for b in range(4):
        x = numbers(8)[2]
        for t in range(20):
            seconds = many.compute[b, :, 8 * t % 7]
            first = sorted(range(8), key=lambda n: (seconds[n], n))[: 8 - k]
            x = x - GAMMA * sum(g(n, x, 8) for n in first) / (8 - k)
            np.testing.assert_allclose(found.model[b, t + 1], x, rtol=1e-11, atol=1e-11)
            np.testing.assert_array_equal(found.statistics.compute[b, t], np.minimum(seconds, sorted(seconds)[8 - k - 1]))
            # Each is a server: it sends its sum to 7 others, and has a part from each other one that counts.
            counts = np.isin(np.arange(8), first)
            np.testing.assert_array_equal(found.sent[b, t], part * (7 + 7 * counts))
            np.testing.assert_array_equal(found.received[b, t], part * (7 + (8 - k) - counts))


def test_a_round_with_backups_takes_as_long_as_the_last_gradient_that_counts():
    seconds, problem = [3.0, 1.0, 2.0, 5.0], problems.random_quadratic(4, 8, seed=1)
    cluster = clusters.Cluster(clusters.constant(seconds), up=clusters.constant(256.0), latency=0.5)
    messages = network.cost(network.multi_server, 4, 0.5, 1.0)
    for k, longest in [(1, 3.0), (2, 2.0)]:
        history = dsgd.run(backup_workers_sgd(STEP, k), problem, steps=3, key=jax.random.key(0), mesh=1, cluster=cluster).history
        np.testing.assert_allclose(history["clock"], (longest + messages) * np.arange(4))


def test_parts_that_do_not_come_out_even_are_rounded_up():
    """128 bits in three parts, of which two gradients go to two other servers, and three sums to two others."""
    np.testing.assert_allclose(run(backup_workers_sgd(STEP, 1), UNIT, N=3).history["bits"][1], 2 * 43 * (2 * 2 + 3 * 2) / 3)


def test_without_backups_it_is_minibatch_sgd():
    found, expected = (
        dsgd.run(method, noisy(8), steps=20, key=jax.random.key(0), mesh=1, cluster=UNIT)
        for method in (backup_workers_sgd(OPTIMIZERS["adam"], 0), minibatch_sgd(OPTIMIZERS["adam"]))
    )
    np.testing.assert_allclose(found.params, expected.params, rtol=1e-5)
    np.testing.assert_array_equal(found.history["bits"], expected.history["bits"])


# --- Where they end.


@pytest.mark.parametrize("method", ["asgd", "ad-psgd"])
def test_equal_workers_on_data_that_differ_end_near_the_minimum(method):
    """On exact gradients, the nearer the shorter the steps."""
    problem = problems.random_quadratic(N, D, heterogeneity=1.0, seed=3)
    gaps = [
        dsgd.run(algorithms.make(method, optax.sgd(rate), N), problem, steps=4_000, record_every=4_000, key=jax.random.key(0), mesh=1)
        for rate in (0.08, 0.02)
    ]
    far, near = (result.history["loss"][-1] - problem.constants.minimum for result in gaps)
    assert near < far / 4
    assert far < 0.02 * (gaps[0].history["loss"][0] - problem.constants.minimum)


# --- What is sent, and what is refused.


def test_only_the_worker_that_arrives_sends_and_receives_a_model():
    found = emergent(*COMBINATIONS[1])
    expected = np.where(found.worker[:, :, None] == np.arange(N), 64 * D, 0)
    np.testing.assert_array_equal(found.sent, expected)
    np.testing.assert_array_equal(found.received, expected)


def run(method: dsgd.Algorithm, cluster: clusters.Cluster | None = None, N: int = 4) -> dsgd.Result:
    return dsgd.run(method, problems.random_quadratic(N, 4), steps=2, key=jax.random.key(0), mesh=1, cluster=cluster)


REFUSED = {
    "bound = 2 with 4 workers, who all read the first model: need at least 3": lambda: run(asynchronous_sgd(STEP, bound=2)),
    "asynchronous_sgd with delays.constant(2) on a cluster: D(t) is given and has no time; need a run without a cluster, or delays=None": (
        lambda: run(asynchronous_sgd(STEP, delays.constant(2)), UNIT)
    ),
    "bound = 5 with delays.uniform(2), which has its own: need one of the two": lambda: asynchronous_sgd(STEP, delays.uniform(2), bound=5),
    "servers = 0: need an integer, at least 1": lambda: asynchronous_sgd(STEP, servers=0),
    "bound = -1: need an integer, at least 0": lambda: asynchronous_sgd(STEP, bound=-1),
    "delays.given: D for 2 parts, but the model has 3: need the same number, or one D for all": (
        lambda: run(asynchronous_sgd(STEP, delays.given(np.zeros((1, 2), int)), servers=3))
    ),
    "asynchronous_gossip_sgd on one_peer_exponential(4), a schedule of 2 rounds: need one mixing matrix for all rounds": (
        lambda: asynchronous_gossip_sgd(STEP, topologies.one_peer_exponential(4))
    ),
    "asynchronous_gossip_sgd on exponential(8), whose W is not symmetric: need an undirected graph": (
        lambda: asynchronous_gossip_sgd(STEP, topologies.exponential(8))
    ),
    "backup_workers_sgd without a cluster, on which workers would differ; pass run(..., cluster=...)": lambda: run(
        backup_workers_sgd(STEP, 1)
    ),
    "backup_workers_sgd: backups = 4 of 4 workers; expected at most 3": lambda: run(backup_workers_sgd(STEP, 4), UNIT),
    "backup_workers_sgd: backups = -1: need an integer, at least 0": lambda: backup_workers_sgd(STEP, -1),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        REFUSED[message]()


def test_names_have_the_options():
    names = [
        asynchronous_sgd(STEP).name,
        asynchronous_sgd(STEP, delays.constant(3), servers=2, staleness_aware=True).name,
        asynchronous_sgd(STEP, bound=7).name,
        adaptive_compensated_sgd(STEP, WEIGHT, DECAY, servers=2).name,
        asynchronous_gossip_sgd(STEP, topologies.ring(4)).name,
        backup_workers_sgd(STEP, 2).name,
    ]
    assert names == [
        "asynchronous_sgd",
        "asynchronous_sgd(constant(3), servers=2, staleness_aware)",
        "asynchronous_sgd(bound=7)",
        "adaptive_compensated_sgd(servers=2, 0.9)",
        "asynchronous_gossip_sgd(ring(4))",
        "backup_workers_sgd(2)",
    ]
