"""Computations whose power changes with the clock: seconds compared with a walk through the power's
pieces in float64, in rounds, micro-batches and events.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import Now, Round, clusters, problems
from dsgd.base import LocalWork

N, INTERVAL, H = 4, 0.75, np.array([0.5, 1.75, 0.25, 3.0])
POWERS = np.random.default_rng(2).choice([0.0, 0.25, 0.5, 2.0, 3.5], (N, 6))
POWERS[:, 0], POWERS[2, 1:4] = 2.0, 0.0
PROBLEM = problems.random_quadratic(N, 3, noise=0.3, seed=0)
GOSSIP = algorithms.decentralized_sgd(optax.sgd(0.05), topologies.ring(N))
CHANGING = clusters.Cluster(
    clusters.constant(H), power=clusters.trace(POWERS, INTERVAL), micro_batches=3
)


def seconds_needed(worker: int, start: float, work: float) -> float:
    """Returns the seconds from `start` on in which a worker does its work, piece by piece."""
    time, piece = start, math.floor(start / INTERVAL)
    while work > 0:
        power, end = POWERS[worker, piece % POWERS.shape[1]], INTERVAL * (piece + 1)
        if power * (end - time) >= work:
            return time + work / power - start
        work, time, piece = work - power * (end - time), end, piece + 1
    return time - start


def run(cluster, steps=12, method=GOSSIP, **options):
    return dsgd.run(method, PROBLEM, steps=steps, key=jax.random.key(3), cluster=cluster, **options)


def test_micro_batches_follow_each_other():
    """Each begins at the power at which the one before it ended; empty ones take no time."""
    samples = np.array([[2, 3, 5], [0, 4, 2], [7, 0, 3], [0, 0, 0]])
    cluster = replace(CHANGING, compute=clusters.constant(H), per_sample=clusters.constant(0.3))
    clock, after = 2.4, np.array([0.2, -0.9, 0.0, 0.5])
    now = Round(jnp.int32(0), N, jax.random.key(0), Now(cluster, jnp.float32(clock)))
    now = now._replace(work=LocalWork(jnp.asarray(samples), jnp.ones(samples.shape)))
    workers = np.array([3, 1, 0, 2])
    found = cluster.latencies(now, workers, after[workers], passes=1.5)
    expected = np.zeros((N, 3))
    for n in range(N):
        start = clock + after[n]
        for m in range(3):
            work = 1.5 * (H[n] + 0.3 * samples[n, m]) * (samples[n, m] > 0)
            expected[n, m] = seconds_needed(n, start, work)
            start += expected[n, m]
    np.testing.assert_allclose(found, expected[workers], rtol=1e-5, atol=1e-5)
    whole = cluster.seconds(now, workers, after[workers], passes=1.5)
    np.testing.assert_allclose(whole, expected[workers].sum(1), rtol=1e-5)


def test_rounds_of_gossip():
    """A worker begins its gradient when its neighbours are done, not when the last worker is."""
    cluster = replace(CHANGING, latency=0.125)
    done, clock = np.zeros(N), [0.0]
    for _ in range(12):
        finish = np.array([t + seconds_needed(n, t, 3 * H[n]) for n, t in enumerate(done)])
        ready = np.array([max(finish[[n - 1, n, (n + 1) % N]]) for n in range(N)])
        done = ready + 2 * 0.125
        clock.append(done.max())
    np.testing.assert_allclose(run(cluster).history["clock"], clock, rtol=2e-5)


def test_a_constant_power_divides_the_seconds():
    twice = replace(CHANGING, compute=clusters.constant(2 * H), power=clusters.constant(2.0))
    np.testing.assert_array_equal(
        run(twice).history["clock"], run(replace(CHANGING, power=None)).history["clock"]
    )


def test_powers_are_replayed():
    """A sequence of clusters with a traced factor has the clocks of runs on each of them."""
    taped = run(None, taped=True)
    factors = [0.5, 3.0]
    seconds = dsgd.replay(
        taped, lambda v: replace(CHANGING, power=v * CHANGING.power), v=np.array(factors)
    )
    for v, replayed in zip(factors, seconds, strict=True):
        clock = run(replace(CHANGING, power=v * CHANGING.power)).history["clock"]
        np.testing.assert_allclose(replayed, clock, rtol=1e-6)


def test_an_asynchronous_server():
    """The order and times of arrivals of an event loop, with a worker that stops for good."""
    ends = [math.inf, 2.6, math.inf, 4.0]
    power = clusters.lifetimes([0.3, 0.0, [0.0, 3.0], 0.1], [ends[0], ends[1], [1.0, 8.0], ends[3]])
    spells = [[(0.3, math.inf)], [(0.0, 2.6)], [(0.0, 1.0), (3.0, 8.0)], [(0.1, 4.0)]]

    def end(worker, start):
        left = H[worker]
        for first, last in spells[worker]:
            begin = max(first, start)
            if last - begin >= left:
                return begin + left
            left -= max(last - begin, 0)
        return math.inf

    heap, times = [(end(n, 0.0), n) for n in range(N)], [0.0]
    heapq.heapify(heap)
    while len(times) < 25:
        time, worker = heapq.heappop(heap)
        times.append(time)
        heapq.heappush(heap, (end(worker, time), worker))
    cluster = clusters.Cluster(clusters.constant(H), power=power)
    method = algorithms.asynchronous_sgd(optax.sgd(0.05))
    found = run(cluster, 24, method).history["clock"]
    np.testing.assert_allclose(found, times, rtol=1e-5)


def test_a_round_that_waits_for_a_stopped_worker_never_ends():
    """A replay returns inf from then on; a run is refused, and continues without that worker."""
    stops = clusters.lifetimes([0.0] * N, [math.inf, 7.3, math.inf, math.inf])
    cluster = clusters.Cluster(clusters.constant(H), latency=0.25, power=stops)
    taped = run(None, taped=True)
    for up in (None, clusters.sinusoid(300.0, 0.4, 50.0)):
        each = replace(cluster, up=up)
        clock = dsgd.replay(taped, each)
        assert np.isfinite(clock[:3]).all()
        assert (clock[5:] == np.inf).all()
        with pytest.raises(ValueError, match=r"clock is not finite .*present=clusters.lifetimes"):
            run(each)
        alone = run(replace(each, present=stops)).history
        np.testing.assert_array_equal(alone["clock"][:3], clock[:3])
        assert set(alone["present"][1:]) == {0.75, 1.0}


def test_the_clock_goes_on_if_nobody_participates():
    """A round without workers lasts as long as a gradient at power 1."""
    late = clusters.lifetimes([9.5] * N, [math.inf] * N)
    cluster = clusters.Cluster(clusters.constant(H), power=late, present=late)
    history = run(cluster, 5).history
    np.testing.assert_allclose(history["clock"], 3.0 * np.arange(6), rtol=1e-6)
    np.testing.assert_array_equal(history["present"][1:], [0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"overlap": clusters.Overlap(*[clusters.constant(0.2)] * 2, 0.5, 0.25)},
            r"Cluster: power = constant\(2\) with overlap = overlap\(.*; expected one of them",
        ),
        ({"power": clusters.cyclic(2, 3)}, "Cluster: power = cyclic.*, a selection by part"),
        ({"power": clusters.constant([2.0, 3.0])}, "quantities for different numbers of workers"),
        ({"power": 2.0}, "Cluster: power"),
    ],
)
def test_wrong_powers_are_refused(given, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        clusters.Cluster(
            **{"compute": clusters.constant(H), "power": clusters.constant(2.0)} | given
        )
