"""Asynchronous methods: properties that their recursions in `tests/methods` do not show, compared
with the event simulation and with loops.

Seconds are dyadic and bandwidths powers of two, so that all times are exact in float32 and in
Python's floats. Iterates of cases are in float64.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from algorithms import (
    asynchronous_gossip_sgd,
    asynchronous_server,
    asynchronous_sgd,
    backup_workers_sgd,
    delays,
    fragile_sgd,
    random_walk_sgd,
    swarm_sgd,
)
from dsgd import clusters, network, problems
from tests.methods import asynchronous_sgd as papers
from tests.methods import given, graphs
from tests.methods.asynchronous_gossip_sgd import partners
from tests.methods.events import Numbers, Schedule, cluster, server_schedule
from theory_checks.machinery import trajectories
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.trajectories import Trajectory

N, D, GAMMA = 5, 8, 0.1
STEP = optax.sgd(GAMMA)
MOMENTUM = optax.sgd(GAMMA, momentum=0.5)
UNIT = clusters.Cluster(clusters.constant(1.0))


@cache
def noisy(N: int) -> dsgd.Problem:
    return problems.random_quadratic(N, D, heterogeneity=1.0 * (N > 1), noise=0.5, seed=3)


def history(
    method: dsgd.Algorithm, N: int, steps: int, cluster: clusters.Cluster | None = None
) -> dict[str, np.ndarray]:
    """Returns the history of all rounds, including the bits that each worker sent."""
    run = {"steps": steps, "key": jax.random.key(0), "mesh": 1, "cluster": cluster}
    found = dsgd.run(algorithms.with_diagnostics(method), noisy(N), **run).history
    return {name: values[1:] for name, values in found.items()}


# --- The schedule that emerges.


def from_simulation(
    numbers: Numbers, latency: float, convention: Any, servers: int, expected: list[int]
) -> Schedule:
    """Returns the schedule from `network.simulate`, in fractions, of workers with equal computation
    times in every lap, which make one lap more than needed.
    """
    workers, T = len(numbers.up), len(expected)
    messages = network.asynchronous_server_messages(
        [
            [Fraction(laps[0])] * (expected.count(n) + 1)
            for n, laps in enumerate(numbers.compute.tolist())
        ],
        servers,
    )
    nothing = [Fraction(0)] * servers  # the servers' own ports are infinitely fast
    up, down = (
        [Fraction(64 * D) / Fraction(port) for port in ports.tolist()] + nothing
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


def naive(numbers: Numbers, latency: float, convention: str, servers: int) -> Schedule:
    """The loop over updates, with which the methods are compared."""
    options = {"servers": servers, "updates": 60, "bits": 64 * D}
    return server_schedule(numbers, latency=latency, convention=convention, **options)


def random_cluster(seed: int) -> Numbers:
    """Returns a cluster whose workers compute for a long or for a short time, with many ties."""
    rng = np.random.default_rng(seed)
    up, down = (64.0 * D * 2.0 ** rng.integers(-1, 4, size=N) for _ in range(2))
    return Numbers((rng.integers(1, 41, size=(N, 1)) % rng.choice([3, 40]) + 1) / 8.0, up, down)


COMBINATIONS = [
    (1, "blocking", 0.75),
    (2, "blocking", 0.25),
    (4, "pipelined", 0.5),
    (1, "pipelined", 0.25),
    (4, "blocking", 0.0),
]


@pytest.mark.parametrize(("servers", "convention", "latency"), COMBINATIONS)
def test_the_loop_over_updates_is_the_event_simulation(servers, convention, latency):
    """The loop is the reference for cases that the simulation does not cover: seconds that change
    with time, and bounds.
    """
    for seed in range(4):
        numbers = random_cluster(seed)
        schedule = naive(numbers, latency, convention, servers)
        assert schedule == from_simulation(numbers, latency, convention, servers, schedule.worker)


UNEQUAL = np.array([[4, 0, 1], [2, 2, 2], [0, 0, 1], [4, 4, 4], [1, 3, 0]])


@pytest.mark.parametrize("seed", [2])
def test_gradients_of_unequal_work_arrive_when_they_are_computed(seed):
    """Worker, second and staleness of every update, with seconds for each micro-batch, and an
    eighth of them for each of its samples.
    """
    numbers = random_cluster(seed)
    compute, up, down = (clusters.constant(each) for each in (numbers.compute[:, 0], *numbers[1:]))
    there = {"latency": 0.5, "convention": "pipelined", "per_sample": 0.125 * compute}
    samples = dsgd.LocalWork(jnp.asarray(UNEQUAL, jnp.int32), jnp.ones(UNEQUAL.shape))
    with jax.enable_x64(True):
        problem = problems.random_quadratic(N, D)
        sampler = dsgd.Sampler(problem.sample, batch_size=4, truncate=lambda batch, samples: batch)
        found = dsgd.run(
            algorithms.with_local_work(asynchronous_sgd(STEP, servers=4), samples),
            problem._replace(sample=sampler),
            steps=60,
            key=jax.random.key(0),
            mesh=1,
            cluster=clusters.Cluster(compute, up, down, **there),
        ).history
    factors = ((UNEQUAL > 0) * (1 + UNEQUAL / 8)).sum(axis=1)
    charged = numbers._replace(compute=numbers.compute * factors[:, None])
    schedule = naive(charged, 0.5, "pipelined", 4)
    assert found["worker"][1:].tolist() == schedule.worker
    assert found["clock"][1:].tolist() == schedule.clock
    np.testing.assert_array_equal(found["staleness"][1:], schedule.staleness.max(axis=1))


def takes(bits: float, begin: float, speeds: tuple[float, ...]) -> float:
    """Returns the seconds of a message that starts then; each speed lasts one second, in turn."""
    now = begin
    while bits > 0:
        speed, left = speeds[int(now) % len(speeds)], int(now) + 1 - now
        sent = min(bits, speed * left)
        now, bits = (now + sent / speed if sent == bits else int(now) + 1), bits - sent
    return now - begin


UP, DOWN = (32.0 * D, 64.0 * D, 16.0 * D), (64.0 * D, 8.0 * D)
CHANGING = {
    "up": clusters.trace(np.array(UP), 1.0),
    "down": clusters.trace(np.array(DOWN), 1.0),
    "latency": 0.25,
}


def test_a_round_trip_takes_the_time_of_its_bits_at_changing_bandwidths():
    """The gradient takes the bandwidth from its departure on, the model from the start of its
    arrival on.
    """
    cluster = clusters.Cluster(clusters.constant(1.0), **CHANGING)
    ready, expected = 1.0, []
    for _ in range(20):
        clock = ready + 0.25 + takes(32 * D, ready, UP)
        ready = clock + 0.25 + takes(32 * D, clock + 0.25, DOWN) + 1
        expected.append(clock)
    found = history(asynchronous_sgd(STEP), 1, 20, cluster)
    np.testing.assert_allclose(found["clock"], expected, rtol=1e-6)


def test_an_exchange_takes_as_long_as_the_slowest_of_four_ports_while_bandwidths_change():
    """Two workers that compute for 1 and for 100 seconds: the first one exchanges repeatedly."""
    cluster = clusters.Cluster(clusters.constant([1.0, 100.0]), **CHANGING)
    ready, expected = 1.0, []
    for _ in range(12):
        end = ready + 0.25 + max(takes(32 * D, ready, UP), takes(32 * D, ready + 0.25, DOWN))
        ready = end + 1
        expected.append(end)
    found = history(asynchronous_gossip_sgd(STEP, topologies.ring(2)), 2, 12, cluster)
    np.testing.assert_allclose(found["clock"], expected, rtol=1e-6)


# --- Bounded staleness.


def test_bounded_staleness_takes_the_first_gradient_that_leaves_an_order_within_the_bound():
    """Two servers; a worker computes for 25 seconds."""

    def with_a_slow_worker(draws):
        numbers = cluster(draws)
        numbers.compute[1] = 25.0
        return numbers

    case = papers.cluster_case(2, "blocking", 12, more=with_a_slow_worker)
    for seed in range(3):
        given.compare(case, given.draws(seed))


# --- Random times.


def driven(
    method: dsgd.Algorithm, length: int, place: clusters.Cluster | None = None
) -> tuple[Instance, Trajectory]:
    """Returns rounds one by one, and their instance."""
    of = trajectories.instance(given.draws())
    options = {} if place is None else {"place": lambda of: place}
    return of, trajectories.run(lambda of: method, of, length=length, **options)


def apart(found: Trajectory) -> np.ndarray:
    """Returns the seconds between the updates of each worker."""
    clocks = [found.clock[found.metrics["worker"] == n] for n in range(trajectories.N)]
    return np.concatenate([np.diff(clock, prepend=0.0) for clock in clocks])


def test_no_model_in_use_by_a_worker_is_overwritten():
    """Over hundreds of updates with reads in every order, each gradient is that of the model given
    by its staleness. Gradients take independent times, for different gradients and for different
    workers. If models are read immediately, each of T updates makes N - 1 gradients older: those
    that are applied, and those on their way.
    """
    n, T, drawn = trajectories.N, 400, clusters.Cluster(clusters.lognormal(0.0, 1.0))
    of, found = driven(asynchronous_sgd(STEP), T, drawn)
    of = of._replace(learning_rate=np.float64(GAMMA))
    worker, staleness = found.metrics["worker"], found.metrics["staleness"]
    known = given.case_given(replace(papers.CASES[""], length=T), of, found)
    rounds = papers.recursion(known, worker, lambda t, x: staleness[t, None])
    x = [symbols["x"] for symbols in rounds]
    np.testing.assert_allclose(found.home, x, rtol=1e-9, atol=1e-9)
    assert len(set(staleness)) > 12
    # updates since each worker's last
    on_the_way = [np.argmax(worker[::-1] == i) for i in range(n)]
    assert staleness.sum() + sum(on_the_way) == (n - 1) * T
    assert (np.diff(found.clock) > 0).all()
    seconds = apart(found)
    assert len(np.unique(seconds.round(4))) > 0.95 * T
    assert np.log(seconds).mean() == pytest.approx(0, abs=4 / np.sqrt(T))


# --- Without a cluster, and with given delays.


@pytest.mark.parametrize(
    ("workers", "method"),
    [
        (8, asynchronous_sgd(MOMENTUM, delays.worst_case(0), servers=2)),
        (1, asynchronous_sgd(MOMENTUM)),
        (1, asynchronous_gossip_sgd(MOMENTUM, topologies.ring(1))),
    ],
    ids=["no delays", "one worker", "gossip of one"],
)
def test_without_staleness_it_is_sgd_to_the_bit(workers, method):
    """A worker without neighbours sends nothing, and its exchange takes no time."""
    latency = clusters.Cluster(clusters.constant(1.0), latency=0.5)
    place = latency if "gossip" in method.name else None
    found, expected = (
        dsgd.run(each, noisy(workers), steps=30, key=jax.random.key(2), mesh=1, cluster=place)
        for each in (method, algorithms.sgd(MOMENTUM))
    )
    np.testing.assert_array_equal(found.params, expected.params)
    np.testing.assert_array_equal(found.history["loss"], expected.history["loss"])
    assert (found.history["staleness"][1:] == 0).all()
    if place:
        assert (found.history["bits"] == 0).all()
        np.testing.assert_array_equal(found.history["clock"], np.arange(31))


# --- Custom steps of the server.


def test_results_of_a_custom_step_are_checked():
    wrong = asynchronous_server(
        "mine", STEP, lambda model, gradient, arrival, read: model._replace(params=read[:1])
    )
    with pytest.raises(ValueError, match=r"mine: step gives .*params"):
        history(wrong, 4, 1)
    with pytest.raises(ValueError, match=r"asynchronous_server: step = .*4 arguments"):
        asynchronous_server("mine", STEP, lambda model, gradient: model)


# --- Servers that make steps with some gradients, or choose who computes.


def test_a_server_that_waits_for_all_workers_makes_steps_of_mini_batch_sgd():
    N, T = 6, 7
    exact = problems.random_quadratic(N, D, heterogeneity=1.0, noise=0.0, seed=3)
    cluster = clusters.Cluster(clusters.slow(clusters.exponential(1.5), workers=[2], factor=5))
    found, expected = (
        dsgd.run(method, exact, steps=steps, key=jax.random.key(0), mesh=1, cluster=cluster)
        for method, steps in (
            (algorithms.as_grad(MOMENTUM, "pure", N), N * T),
            (algorithms.minibatch_sgd(MOMENTUM), T),
        )
    )
    np.testing.assert_allclose(found.params, expected.params, rtol=1e-5)
    assert (found.history["server_steps"][-1], found.history["delay"][1:].max()) == (T, 0)


@pytest.mark.parametrize(
    "method", [algorithms.ringmaster_sgd, algorithms.rennala_sgd], ids=["Ringmaster", "Rennala"]
)
def test_servers_step_with_muon(method):
    """A step of Muon from zero has nearly orthonormal rows, of the given size."""
    size, rng = 0.25, np.random.default_rng(0)
    problem = problems.finite_sum(
        problems.Model(lambda key: jnp.zeros((8, 3)), lambda kernel, inputs: inputs @ kernel),
        lambda outputs, targets: (outputs - targets) ** 2,
        (rng.normal(size=(40, 8)), rng.normal(size=(40, 3))),
        workers=5,
    )
    muon = method(optax.contrib.muon(size, weight_decay=0.0), 1)
    found = dsgd.run(muon, problem, steps=1, key=jax.random.key(0), mesh=1)
    singular = np.linalg.svd(found.params, compute_uv=False)
    assert singular.shape == (3,)
    np.testing.assert_allclose(singular, size, rtol=0.6)
    assert np.ptp(singular) < 0.5 * size


# --- Local runs.


def fresh_only(method: dsgd.Algorithm) -> dsgd.Algorithm:
    """Returns the method with workers that wait until all have sent."""

    def order(model, arrival, jobs, key):
        return jnp.where(jobs.waiting & jnp.all(jobs.waiting), jobs.worker, -1)

    rule: Any = method.init
    waiting = replace(rule.__self__, order=order)
    return method._replace(init=waiting.init, query=waiting.query, update=waiting.update)


def test_fed_buff_with_the_fresh_changes_of_all_workers_is_fed_opt():
    """The server makes a step after H gradients of each of N workers."""
    H, steps, inner, outer = 3, 5, optax.adam(GAMMA), optax.sgd(0.7, momentum=0.5)
    problem = problems.random_quadratic(N, D, heterogeneity=1.0)
    buffered = fresh_only(algorithms.fed_buff(inner, H, N, outer))
    options: Any = {"key": jax.random.key(0), "mesh": 1, "cluster": UNIT}
    with jax.enable_x64(True):
        found = dsgd.run(buffered, problem, steps=steps * H * N, record_every=H * N, **options)
        synchronous = algorithms.fed_opt(inner, H, outer)
        expected = dsgd.run(synchronous, problem, steps=steps * H, record_every=H, **options)
    assert (found.history["server_steps"][1:] == np.arange(1, steps + 1)).all()
    np.testing.assert_allclose(found.params, expected.params, rtol=1e-12)
    for name in ("loss", "bits", "clock"):
        np.testing.assert_allclose(found.history[name], expected.history[name], rtol=1e-12)


def test_random_numbers_of_local_runs_differ_between_runs_and_workers():
    noisy = optax.chain(optax.add_noise(1.0, 0.0, jax.random.key(5)), STEP)
    of, found = driven(algorithms.fed_buff(noisy, 1, 1, exponent=0.0), 3 * trajectories.N)
    change = np.diff(found.home, axis=0, prepend=np.asarray(of.start)[None])
    noise = -change / GAMMA - found.gradients[:, 0]
    apart = np.linalg.norm(noise[:, None] - noise[None], axis=2)
    assert np.sort(apart, axis=None)[len(noise)] > 1  # of 22 elements


# --- Asynchronous gossip.


def test_partners_are_neighbours_with_equal_probabilities():
    """On a star, the hub contacts all leaves equally often, and leaves contact the hub. Without a
    cluster, all workers compute for a second.
    """
    n, T = trajectories.N, 1_500
    found = driven(asynchronous_gossip_sgd(STEP, topologies.star(n)), T)[1]
    worker, partner = found.metrics["worker"], partners(found)
    assert (partner[worker != 0] == 0).all()
    counts = np.bincount(partner[worker == 0], minlength=n)
    assert counts[0] == 0
    # 0.999 quantile of chi-squared with 4 degrees of freedom
    assert ((counts[1:] - 50) ** 2 / 50).sum() < 18.5
    np.testing.assert_array_equal(worker, np.arange(T) % n)
    np.testing.assert_array_equal(found.clock, 1 + np.arange(T) // n)


def test_random_numbers_of_local_steps_are_geometric():
    """Each local step is the last one with probability 1/H."""
    n, T, H = trajectories.N, 1_500, 4
    found = driven(swarm_sgd(STEP, topologies.star(n), H, geometric=True), T)[1]
    worker, meets = found.metrics["worker"], partners(found) >= 0
    assert meets.mean() == pytest.approx(1 / H, abs=0.04)  # 3.6 standard deviations
    lengths = np.concatenate([np.diff(np.flatnonzero(meets[worker == i])) for i in range(n)])
    assert (lengths == 1).mean() == pytest.approx(1 / H, abs=0.08)
    assert (lengths > 2 * H).mean() == pytest.approx((1 - 1 / H) ** (2 * H), abs=0.06)


def test_a_walk_moves_with_metropolis_hastings_probabilities():
    """On a star, the model leaves the hub for each leaf with equal probability, and a leaf with
    probability 1/5, so that it is everywhere equally often.
    """
    n, T = trajectories.N, 3_000
    at = driven(random_walk_sgd(STEP, topologies.star(n)), T)[1].metrics["worker"]
    leaves, after = at[:-1] != 0, at[1:]
    moves = after[leaves] != at[:-1][leaves]
    assert (after[leaves][moves] == 0).all()
    assert moves.mean() == pytest.approx(1 / (n - 1), abs=0.03)  # 3.7 standard deviations
    counts = np.bincount(after[~leaves], minlength=n)
    assert counts[0] == 0
    expected = counts.sum() / (n - 1)
    # 0.999 quantile of chi-squared with 4 degrees of freedom
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 18.5
    assert (at == 0).mean() == pytest.approx(1 / n, abs=0.03)


# --- R-FAST.


def test_r_fast_reaches_the_optimum_at_unequal_speeds_and_with_messages_that_are_not_sent():
    """The slowest worker computes a sixteenth of the fastest one's gradients, and the slowest link
    takes as long as 18 of them.
    """
    n = trajectories.N
    pull, push = (graphs.topology(name, n) for name in ("directed, pull", "directed"))
    seconds = np.array([1, 2, 3, 5, 8, 16]) / 8.0
    ports = 64 * D * np.array([[1.0, 4, 2, 8, 16, 4], [4, 2, 8, 16, 4, 2]])
    compute, up, down = (clusters.trace(each[:, None], 1.0) for each in (seconds, *ports))
    cluster = clusters.Cluster(compute, up, down, latency=0.25)
    slopes, targets = np.random.default_rng(3).uniform(0.4, 1.6, (2, n, D))
    with jax.enable_x64(True):
        found = dsgd.run(
            algorithms.r_fast(optax.sgd(0.2), pull, push),
            problems.quadratic(slopes, targets, start=np.full(D, 3.0)),
            steps=20_000,
            key=jax.random.key(0),
            cluster=cluster,
            mesh=1,
        )
    history = found.history
    computed = np.bincount(history["worker"][1:].astype(int), minlength=n)
    assert 15 < computed[0] / computed[-1] < 17
    full = 2 * 64 * D * (computed * push.out_degrees[0]).sum() / n
    assert 0.2 * full < history["bits"][-1] < 0.8 * full
    first, last = history["grad_sqnorm"][[0, -1]]
    assert last < 1e-16 * first
    assert history["consensus"][-1] < 1e-16 * first


# --- Invalid arguments.

REFUSED = [
    (asynchronous_sgd, {"bound": 2}, None, "bound = 2 with 4 workers"),
    (asynchronous_sgd, {"delays": delays.constant(2)}, UNIT, r"delays.constant\(2\) on a cluster"),
    (asynchronous_sgd, {"delays": delays.uniform(2), "bound": 5}, None, "bound = 5 with"),
    (
        asynchronous_sgd,
        {"delays": delays.given(np.zeros((1, 2), int)), "servers": 3},
        None,
        "delays.given: D has 2 columns",
    ),
    (
        fragile_sgd,
        {"topology": topologies.ring(4), "batch": 3, "pivot": 4},
        None,
        r"fragile_sgd: pivot = 4 on ring\(4\), which has 4 workers; expected a number from 0 to 3",
    ),
    (
        fragile_sgd,
        {"topology": topologies.one_peer_exponential(4), "batch": 3},
        None,
        "fragile_sgd: .* is a schedule of 2 rounds",
    ),
    (
        algorithms.as_grad,
        {"order": "pure", "wait": 5},
        None,
        "as_grad: wait = 5 with 4 workers; expected at most 4",
    ),
    (
        algorithms.vecna_sgd,
        {"trials": [2, 1, 3], "timeouts": 2.0},
        None,
        "vecna_sgd: trials: 3 numbers for 4 workers",
    ),
    (
        algorithms.r_fast,
        {"pull": topologies.ring(4), "push": topologies.one_peer_exponential(4)},
        None,
        "r_fast: .* is a schedule of 2 rounds",
    ),
    (backup_workers_sgd, {"backups": 1}, None, "backup_workers_sgd: the run has no cluster"),
    (backup_workers_sgd, {"backups": 4}, UNIT, "backup_workers_sgd: backups = 4 with 4"),
]


@pytest.mark.parametrize(("method", "options", "place", "words"), REFUSED)
def test_invalid_arguments_are_refused(method, options, place, words):
    with pytest.raises(ValueError, match=words):
        history(method(STEP, **options), 4, 1, place)
