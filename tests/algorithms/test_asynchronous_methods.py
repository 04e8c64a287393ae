"""Methods on events: what their recursions (`theory_checks`) do not show, compared with the event
simulation and with loops.

Seconds are dyadic and bandwidths powers of two, so that float32 has every time exactly, and
Python's floats too. Iterates are in float64.
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
import numpy as np
import optax
import pytest
import rounds
from jax.flatten_util import ravel_pytree
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
    optimizers,
)
from dsgd import clusters, network, problems
from dsgd.communication import Statistics
from theory_checks.machinery.trajectories import rows
from theory_checks.recursions import shared
from theory_checks.recursions.asynchronous import Numbers, Schedule, server_schedule, stale_steps
from theory_checks.recursions.compressed import cut
from theory_checks.statements.recursions.shared import cluster_of

N, D, GAMMA, STEPS = 5, 8, 0.1, 60
STEP = optax.sgd(GAMMA)
MOMENTUM = optax.sgd(GAMMA, momentum=0.5)
UNIT = clusters.Cluster(clusters.constant(1.0))


# --- The problem.


class Data(NamedTuple):
    A: jax.Array
    b: jax.Array


@cache
def numbers(N: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of f_n(x) = x^T A_n x / 2 - b_n^T x, in float64: A `[N, d, d]`, b `[N, d]`, and a start that
    is not 0.
    """
    with jax.enable_x64(True):
        data = problems.random_quadratic(N, D, heterogeneity=2.0 * (N > 1), seed=1).data
    return np.asarray(data.A), np.asarray(data.b), np.random.default_rng(7).normal(size=D)


@cache
def quadratic(N: int = N) -> dsgd.Problem:
    """Of two leaves."""
    A, b, start = numbers(N)

    def loss(params, batch):
        x = ravel_pytree(params)[0]
        return x @ batch.A @ x / 2 - batch.b @ x

    def init(key):
        x = jnp.asarray(start)
        return {"biases": x[:2], "weights": x[2:].reshape(2, -1)}

    with jax.enable_x64(True):
        data = Data(jnp.asarray(A), jnp.asarray(b))
    return dsgd.Problem(init, loss, data, sample=lambda key, mine: mine)


def in_samples() -> dsgd.Problem:
    """Its batches have 4 samples, of which some may count."""
    problem = quadratic()
    return problem._replace(
        sample=dsgd.Sampler(problem.sample, batch_size=4, take=lambda batch, samples: batch)
    )


def g(worker: int, x: np.ndarray, N: int = N) -> np.ndarray:
    A, b, _ = numbers(N)
    return A[worker] @ x - b[worker]


# --- Rounds one by one, with all that the loop of `dsgd.run` does not show.


class Trajectory(NamedTuple):
    """The states `[B, steps + 1, ...]` before, between and after, and of each round what it sent
    and when it was, `[B, steps, ...]`.
    """

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
    """One run on each of the B clusters, in float64, the times in float32. A round that does not
    keep its time takes a second.
    """
    N = problem.workers

    def run(state, data, keys, numbers):
        def one_round(carry, this):
            (state, clock), (step, key) = carry, this
            here = cluster(numbers)
            this = dsgd.Round(step, N, key, None if here is None else dsgd.Now(here, clock))
            after, _, statistics = rounds.one(algorithm, problem, state, this, data, key, key)
            clock = clock + (1 if statistics.elapsed is None else statistics.elapsed)
            return (after, clock), (after, statistics, clock)

        return jax.lax.scan(
            one_round, (state, jnp.float32(0)), (jnp.arange(steps, dtype=jnp.int32), keys)
        )[1]

    out = (rounds.states_over(None, None), rounds.statistics_over(None, None), P())
    with jax.enable_x64(True):
        mapped = jax.vmap(run, (None, None, None, 0))
        spread = jax.shard_map(
            mapped,
            mesh=dsgd.workers.mesh(devices),
            check_vma=False,
            in_specs=(rounds.STATE, P("workers"), P(), P()),
            out_specs=out,
        )

        def everything(data, key, each):
            first = algorithm.init(problem.init(jax.random.key(0)), N)
            return first, spread(first, data, jax.random.split(key, steps), each)

        first, (states, statistics, clock) = jax.tree.map(
            np.asarray, jax.jit(everything)(problem.data, jax.random.key(seed), each)
        )
    states = jax.tree.map(
        lambda start, rest: np.concatenate([np.broadcast_to(start, rest[:, :1].shape), rest], 1),
        first,
        states,
    )
    return Trajectory(states, statistics, clock)


# --- The oracles of an asynchronous server: its schedule, event by event, and the iterates that
# follow.


def from_simulation(
    numbers: Numbers, latency: float, convention: Any, servers: int, expected: list[int]
) -> Schedule:
    """From `network.simulate`, in fractions, of workers that compute as long in every lap, and make
    one lap more than is expected.
    """
    workers, T = len(numbers.up), len(expected)
    bits = 64 * D
    messages = network.asynchronous_server_messages(
        [
            [Fraction(laps[0])] * (expected.count(n) + 1)
            for n, laps in enumerate(numbers.compute.tolist())
        ],
        servers,
    )
    nothing = [Fraction(0)] * servers  # the servers' own ports are as fast as it takes
    up, down = (
        [Fraction(bits) / Fraction(port) for port in ports.tolist()] + nothing
        for ports in (numbers.up, numbers.down)
    )
    passages = network.simulate(messages, Fraction(latency), up, convention, receive=down).passages
    into = [
        sorted((p for p in passages if p.message.receiver == workers + s), key=lambda p: p.arrived)
        for s in range(servers)
    ]
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
            arrived = (
                sum(p.arrived < starts[s, worker][len(mine) - 1] for p in into[s]) if mine else 0
            )
            each.append(max(mine[-1] + 1, arrived) if mine else 0)
        version.append(each)
    return Schedule(order, [float(p.arrived) for p in into[-1][:T]], version)


def naive(
    numbers: Numbers, latency: float, convention: str, servers: int, T: int, bound: float = np.inf
) -> Schedule:
    """The loop over updates, of this model's bits."""
    return server_schedule(
        numbers,
        latency=latency,
        convention=convention,
        servers=servers,
        updates=T,
        bits=64 * D,
        bound=bound,
    )


def G(t: int, X: np.ndarray) -> np.ndarray:
    """Everybody's gradient at its own model, `[N, d]`."""
    A, b, _ = numbers(len(X))
    return shared.quadratic(A, b)(t, X)


def iterates(worker: Any, staleness: np.ndarray, N: int = N, aware: bool = False) -> np.ndarray:
    """x_{t+1} = x_t - gamma g(x_D(t)), where each of P parts has its own D(t), `[T, P]`:
    `[T + 1, d]`.
    """
    return stale_steps(numbers(N)[2], G, N, shared.plain(GAMMA), worker, staleness, aware=aware)


# --- The schedule that emerges.

COMBINATIONS = [
    (1, "blocking", 0.75),
    (2, "blocking", 0.25),
    (4, "pipelined", 0.5),
    (1, "pipelined", 0.25),
    (4, "blocking", 0.0),
]


@cache
def random_clusters(N: int = N, B: int = 12, laps: int = 1, seed: int = 0) -> Numbers:
    """Some that compute long and some that compute short, with many ties."""
    rng = np.random.default_rng(seed)
    most = rng.choice([3, 40], size=(B, 1, 1))
    up, down = (64.0 * D * 2.0 ** rng.integers(-1, 4, size=(B, N)) for _ in range(2))
    return Numbers((rng.integers(1, 41, size=(B, N, laps)) % most + 1) / 8.0, up, down)


def each(numbers: Numbers, b: int) -> Numbers:
    return Numbers(*(values[b] for values in numbers))


def assert_times(found: Trajectory, b: int, schedule: Schedule) -> None:
    """The same worker, the same second and the same staleness in every update."""
    assert found.worker[b].tolist() == schedule.worker
    assert found.clock[b].tolist() == schedule.clock
    np.testing.assert_array_equal(found.staleness[b], schedule.staleness.max(axis=1))


def assert_schedule(found: Trajectory, b: int, schedule: Schedule) -> None:
    """And so the same iterates."""
    assert_times(found, b, schedule)
    np.testing.assert_allclose(
        found.model[b], iterates(schedule.worker, schedule.staleness), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize(("servers", "convention", "latency"), COMBINATIONS)
def test_the_loop_over_updates_is_the_event_simulation(servers, convention, latency):
    """The oracle of what the simulation does not know: seconds that change with the time, and
    bounds.
    """
    many = random_clusters(seed=1)
    for b in range(4):
        schedule = naive(each(many, b), latency, convention, servers, STEPS)
        assert schedule == from_simulation(
            each(many, b), latency, convention, servers, schedule.worker
        )


def takes(bits: float, begin: float, speeds: tuple[float, ...]) -> float:
    """Seconds of a message from then on, where each speed is that of a second, in turn."""
    now = begin
    while bits > 0:
        speed, left = speeds[int(now) % len(speeds)], int(now) + 1 - now
        sent = min(bits, speed * left)
        now, bits = (now + sent / speed if sent == bits else int(now) + 1), bits - sent
    return now - begin


def test_a_trip_takes_what_its_bits_take_while_bandwidths_change():
    """The gradient from when it leaves, the model from when it begins to arrive."""
    speeds, latency = (64.0 * D, 128.0 * D, 32.0 * D), 0.25
    cluster = clusters.Cluster(
        clusters.constant(1.0), up=clusters.trace(np.array(speeds), 1.0), latency=latency
    )
    found = drive(asynchronous_sgd(STEP), quadratic(1), lambda numbers: cluster, steps=20)
    ready, expected = 1.0, []
    for _ in range(20):
        clock = ready + latency + takes(64 * D, ready, speeds)
        ready = clock + latency + takes(64 * D, clock + latency, speeds) + 1
        expected.append(clock)
    np.testing.assert_allclose(found.clock[0], expected, rtol=1e-6)


def test_an_exchange_takes_as_long_as_the_slowest_of_four_ports_while_bandwidths_change():
    """Two workers, who compute for 1 and for 100 seconds: the first one exchanges, again and
    again.
    """
    up, down = (64.0 * D, 128.0 * D, 32.0 * D), (128.0 * D, 16.0 * D)
    ports = {"up": clusters.trace(np.array(up), 1.0), "down": clusters.trace(np.array(down), 1.0)}
    cluster = clusters.Cluster(clusters.constant([1.0, 100.0]), **ports, latency=0.25)
    found = drive(
        asynchronous_gossip_sgd(STEP, topologies.ring(2)),
        quadratic(2),
        lambda numbers: cluster,
        steps=12,
    )
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


def test_unequal_work_arrives_when_it_is_done():
    """Worker, second and staleness of every update are the event simulation's, with each worker's
    own seconds, sample by sample.
    """
    many, problem, (servers, convention, latency) = random_clusters(), in_samples(), COMBINATIONS[2]
    method = working(asynchronous_sgd(STEP, servers=servers), UNEQUAL)
    found = drive(
        method, problem, partial(by_the_sample, latency=latency, convention=convention), many
    )
    for b in range(len(many.up)):
        numbers, order = charged(each(many, b)), found.worker[b].tolist()
        assert_times(found, b, from_simulation(numbers, latency, convention, servers, order))


# --- Bounded staleness.


def with_a_slow_worker(**options: Any) -> Numbers:
    """Random clusters where the second worker computes for 25 seconds."""
    many = random_clusters(**options)
    compute = many.compute.copy()
    compute[:, 1] = 25.0
    return many._replace(compute=compute)


def test_bounded_staleness_takes_the_first_gradient_that_leaves_an_order_within_the_bound():
    servers, convention, latency, bound = 2, "blocking", 0.25, 2 * N
    many = with_a_slow_worker(laps=3)
    algorithm = asynchronous_sgd(STEP, servers=servers, bound=bound)
    found = drive(
        algorithm, quadratic(), partial(cluster_of, latency=latency, convention=convention), many
    )
    free = [naive(each(many, b), latency, convention, servers, STEPS) for b in range(len(many.up))]
    assert max(schedule.staleness.max() for schedule in free) > bound
    assert found.staleness.max() == bound
    for b in range(len(many.up)):
        assert_schedule(found, b, naive(each(many, b), latency, convention, servers, STEPS, bound))


def test_who_was_held_goes_in_the_order_in_which_they_were_ready():
    """Three gradients wait for a slow worker's: of worker 3 since 6.87, of 2 since 6.95, of 1 since
    9.35.
    """
    cluster = clusters.Cluster(clusters.constant([100.0, 3.1, 2.3, 1.7]), latency=0.01)
    history = dsgd.run(
        asynchronous_sgd(STEP, bound=7),
        noisy(4),
        steps=20,
        key=jax.random.key(0),
        cluster=cluster,
        mesh=1,
    ).history
    worker, clock = history["worker"][1:].astype(int).tolist(), history["clock"][1:]
    slow = worker.index(0)
    assert clock[slow] - clock[slow - 1] > 50
    assert worker[slow + 1 : slow + 4] == [3, 2, 1]


# --- Times that are drawn.


def test_no_model_that_somebody_computes_at_is_ever_overwritten():
    """Over hundreds of updates with reads in every order, each gradient is of the model that its
    staleness says. Every gradient takes its own time: the second is not the first again, and no two
    workers draw the same. Where models are read at once, each of T updates makes N - 1 gradients
    older: those that are applied, and those on their way."""
    cluster = clusters.Cluster(clusters.lognormal(0.0, 1.0))
    found = drive(asynchronous_sgd(STEP), quadratic(8), lambda numbers: cluster, steps=400)
    assert len(set(found.staleness[0])) > 15
    # updates since the worker's last
    on_the_way = [np.argmax(found.worker[0][::-1] == n) for n in range(8)]
    assert found.staleness.sum() + sum(on_the_way) == 7 * 400
    assert (np.diff(found.clock[0]) > 0).all()
    np.testing.assert_allclose(
        found.model[0],
        iterates(found.worker[0], found.staleness[0, :, None], 8),
        rtol=1e-9,
        atol=1e-9,
    )
    seconds = [np.diff(found.clock[0][found.worker[0] == n], prepend=0.0) for n in range(8)]
    assert len(np.unique(np.concatenate(seconds).round(4))) > 0.95 * found.worker.size
    assert np.log(np.concatenate(seconds)).mean() == pytest.approx(
        0, abs=4 / np.sqrt(found.worker.size)
    )


# --- Without a cluster, and given delays.


def test_without_a_cluster_everybody_computes_for_a_second():
    """Round robin, with a staleness of N - 1 from the second lap on; there is no clock."""
    history = dsgd.run(
        asynchronous_sgd(STEP), noisy(N), steps=4 * N, key=jax.random.key(0), mesh=1
    ).history
    assert "clock" not in history
    t = np.arange(4 * N)
    np.testing.assert_array_equal(history["worker"], [np.nan, *(t % N)])
    np.testing.assert_array_equal(history["staleness"], [np.nan, *np.minimum(t, N - 1)])


@cache
def noisy(N: int) -> dsgd.Problem:
    return problems.random_quadratic(N, D, heterogeneity=1.0 * (N > 1), noise=0.5, seed=3)


@pytest.mark.parametrize(
    ("workers", "method"),
    [
        (8, asynchronous_sgd(MOMENTUM, delays.worst_case(0), servers=2)),
        (1, asynchronous_sgd(MOMENTUM)),
    ],
    ids=["no delays", "one worker"],
)
def test_without_staleness_it_is_sgd_to_the_bit(workers, method):
    found, expected = (
        dsgd.run(each, noisy(workers), steps=30, key=jax.random.key(2), mesh=1)
        for each in (method, algorithms.sgd(MOMENTUM))
    )
    np.testing.assert_array_equal(found.params, expected.params)
    np.testing.assert_array_equal(found.history["loss"], expected.history["loss"])
    assert (found.history["staleness"][1:] == 0).all()


def test_the_worst_case_is_the_farthest_of_the_last_models():
    """The loop finds it on its own, part by part."""
    bound, servers = 5, 2
    found = drive(asynchronous_sgd(STEP, delays.worst_case(bound), servers=servers), quadratic())
    x, ages = [numbers()[2]], []
    for t, n in enumerate(found.worker[0]):
        now, earlier = (
            cut(x[t], servers),
            [cut(x[t - age], servers) for age in range(min(t, bound) + 1)],
        )
        ages.append(np.argmax([((now - then) ** 2).sum(axis=1) for then in earlier], axis=0))
        read = np.concatenate([earlier[age][part] for part, age in enumerate(ages[-1])])
        x.append(x[t] - GAMMA * g(n, read))
    np.testing.assert_array_equal(found.staleness[0], np.max(ages, axis=1))
    np.testing.assert_allclose(found.model[0], np.stack(x), rtol=1e-11, atol=1e-11)
    assert (np.stack(ages)[bound:] < bound).any()


# --- Custom steps of the server.


class Compensated(NamedTuple):
    """A model, its optimizer's state, and the mean square of gradients."""

    params: Any
    optimizer: Any
    mean_square: Any


def adaptive_compensated_sgd(
    optimizer: optax.GradientTransformation, weight: float, decay: float, **options: Any
) -> dsgd.Algorithm:
    """DC-ASGD-a of Zheng et al., 2017, equation 14: its weight is divided by the root of the mean
    square.
    """

    def start(model):
        return Compensated(*model, optax.tree.zeros_like(model.params))

    def step(model, gradient, arrival, read):
        squares = jax.tree.map(
            lambda mean, g: decay * mean + (1 - decay) * g * g, model.mean_square, gradient
        )
        scaled = jax.tree.map(
            lambda g, mean: weight * g * g / jnp.sqrt(mean + 1e-7), gradient, squares
        )
        gradient = jax.tree.map(
            lambda g, scale, x, old: g + scale * (x - old), gradient, scaled, model.params, read
        )
        return Compensated(
            *optimizers.step(optimizer, optimizers.Model(model.params, model.optimizer), gradient),
            squares,
        )

    return asynchronous_server(
        f"adaptive_compensated_sgd({decay})", optimizer, step, start=start, **options
    )


WEIGHT, DECAY = 0.5, 0.9


def test_a_custom_step_gets_the_model_that_the_gradient_was_computed_at():
    many, method = (
        random_clusters(B=2, seed=2),
        adaptive_compensated_sgd(STEP, WEIGHT, DECAY, servers=2),
    )
    found = drive(method, quadratic(), partial(cluster_of, latency=0.25), many, steps=30)
    for b in range(2):
        schedule = naive(each(many, b), 0.25, "blocking", 2, 30)
        assert (found.worker[b].tolist(), found.clock[b].tolist()) == (
            schedule.worker,
            schedule.clock,
        )
        x, mean = [numbers()[2]], np.zeros(D)
        for t, n in enumerate(schedule.worker):
            read = np.concatenate(
                [cut(x[t - age], 2)[part] for part, age in enumerate(schedule.staleness[t])]
            )
            slope = g(n, read)
            mean = DECAY * mean + (1 - DECAY) * slope**2
            x.append(
                x[t] - GAMMA * (slope + WEIGHT / np.sqrt(mean + 1e-7) * slope**2 * (x[t] - read))
            )
        np.testing.assert_allclose(found.model[b], x, rtol=1e-11, atol=1e-11)


def test_what_a_custom_step_gives_is_checked():
    wrong = asynchronous_server(
        "mine", STEP, lambda model, gradient, arrival, read: model._replace(params=read[:1])
    )
    with pytest.raises(ValueError, match=r"mine: step gives .*params"):
        run(wrong)
    with pytest.raises(
        ValueError,
        match=r"asynchronous_server: step = .*4 arguments \(model, gradient, arrival, read\)",
    ):
        asynchronous_server("mine", STEP, lambda model, gradient: model)


# --- Asynchronous gossip.


def test_gossip_of_one_is_sgd():
    """A worker without neighbours sends nothing, and its exchange takes no time."""
    found = drive(
        asynchronous_gossip_sgd(STEP, topologies.ring(1)),
        quadratic(1),
        partial(cluster_of, latency=0.5),
        random_clusters(N=1),
    )
    np.testing.assert_allclose(
        found.models[0, :, 0],
        iterates(found.worker[0], found.staleness[0, :, None], 1),
        rtol=1e-11,
        atol=1e-11,
    )
    assert found.staleness.max() == found.sent.max() == 0
    np.testing.assert_array_equal(found.clock[:, -1], STEPS * random_clusters(N=1).compute[:, 0, 0])


def partners_of(found: Trajectory, b: int) -> np.ndarray:
    """The other one who sends."""
    return np.array(
        [
            next(int(n) for n in np.flatnonzero(sent) if n != i)
            for i, sent in zip(found.worker[b], found.sent[b], strict=True)
        ]
    )


def test_partners_are_neighbours_each_as_likely():
    """On a star, the hub asks each leaf as often, and leaves ask the hub. Without a cluster,
    everybody computes for a second.
    """
    found = drive(asynchronous_gossip_sgd(STEP, topologies.star(N)), quadratic(), steps=1_500)
    worker, partner = found.worker[0], partners_of(found, 0)
    assert (partner[worker != 0] == 0).all()
    counts = np.bincount(partner[worker == 0], minlength=N)
    assert counts[0] == 0
    # of chi-squared with 3 degrees of freedom, 0.999
    assert ((counts[1:] - 75) ** 2 / 75).sum() < 16.3
    np.testing.assert_array_equal(worker, np.arange(1_500) % N)
    assert (found.clock[0] == 1 + np.arange(1_500) // N).all()


def test_in_gossip_every_first_partner_is_a_draw_and_every_gradient_takes_its_own_time():
    cluster = clusters.Cluster(clusters.exponential(1.0))
    found = drive(
        asynchronous_gossip_sgd(STEP, topologies.complete(8)),
        quadratic(8),
        lambda numbers: cluster,
        steps=200,
    )
    worker, partner = found.worker[0].tolist(), partners_of(found, 0)
    assert len({(int(partner[worker.index(n)]) - n) % 8 for n in range(8)}) > 2
    seconds = [np.diff(found.clock[0][found.worker[0] == n], prepend=0.0) for n in range(8)]
    assert len(np.unique(np.concatenate(seconds).round(4))) > 190
    assert np.concatenate(seconds).mean() == pytest.approx(1, abs=4 / np.sqrt(200))


# --- Backup workers.


def test_backup_workers_drop_the_slowest_gradients_of_each_round():
    """Of equally slow ones, the last. Each worker is a server, too: it sends its sum to 7 others,
    and gets a part of each other gradient that counts. A round takes as long as the last of them,
    and the messages. On eight devices."""
    k, seconds, problem = (
        3,
        np.array([3.0, 1.0, 2.0, 5.0, 2.0, 1.5, 2.0, 4.0]),
        problems.random_quadratic(8, D, heterogeneity=1.0, seed=1),
    )
    counts = np.isin(np.arange(8), sorted(range(8), key=lambda n: (seconds[n], n))[: 8 - k])
    cluster = clusters.Cluster(
        clusters.constant(seconds), up=clusters.constant(32.0 * D), latency=0.5
    )
    result = dsgd.run(
        algorithms.observed(backup_workers_sgd(STEP, k)),
        problem,
        steps=3,
        key=jax.random.key(0),
        mesh=8,
        cluster=cluster,
    )
    x = np.zeros(D)
    for _ in range(3):
        x = x - GAMMA * (problem.data.A @ x - problem.data.b)[counts].mean(axis=0)
    np.testing.assert_allclose(result.params, x, rtol=1e-5, atol=1e-6)
    part = 32 * D // 8
    np.testing.assert_array_equal(result.history["measured_bits_up"][-1], part * (7 + 7 * counts))
    np.testing.assert_array_equal(
        result.history["measured_bits_down"][-1], part * (7 + (8 - k) - counts)
    )
    messages = network.cost(network.multi_server, 8, 0.5, 1.0)
    np.testing.assert_allclose(result.history["clock"], (2.0 + messages) * np.arange(4), rtol=1e-6)


def test_parts_that_do_not_come_out_even_are_rounded_up():
    """128 bits in three parts, of which two gradients go to two other servers, and three sums to
    two others.
    """
    np.testing.assert_allclose(
        run(backup_workers_sgd(STEP, 1), UNIT, N=3).history["bits"][1], 2 * 43 * (2 * 2 + 3 * 2) / 3
    )


# --- Refusals.


def run(method: dsgd.Algorithm, cluster: clusters.Cluster | None = None, N: int = 4) -> dsgd.Result:
    return dsgd.run(
        method,
        problems.random_quadratic(N, 4),
        steps=2,
        key=jax.random.key(0),
        mesh=1,
        cluster=cluster,
    )


REFUSED = {
    "bound = 2 with 4 workers; expected at least N - 1 = 3, because all": lambda: run(
        asynchronous_sgd(STEP, bound=2)
    ),
    "asynchronous_sgd: delays.constant(2) on a cluster, but given delays have no times; expected": (
        lambda: run(asynchronous_sgd(STEP, delays.constant(2)), UNIT)
    ),
    "bound = 5 with delays.uniform(2), which has its own bound; expected one of the two": lambda: (
        asynchronous_sgd(STEP, delays.uniform(2), bound=5)
    ),
    "delays.given: D has 2 columns, but the model has 3 parts; expected 3 columns, or one D": (
        lambda: run(asynchronous_sgd(STEP, delays.given(np.zeros((1, 2), int)), servers=3))
    ),
    (
        "backup_workers_sgd: the run has no cluster, so that all workers are equally fast; "
        "expected one"
    ): lambda: run(backup_workers_sgd(STEP, 1)),
    "backup_workers_sgd: backups = 4 with 4 workers; expected at most 3": lambda: run(
        backup_workers_sgd(STEP, 4), UNIT
    ),
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
