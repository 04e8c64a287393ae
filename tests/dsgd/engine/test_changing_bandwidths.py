"""Rounds whose messages are under way while bandwidths change, against loops over absolute times in float64."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters, network
from tests.dsgd import by_hand
from tests.dsgd.engine.clocks import METHODS, OPTIMIZER, VECTOR, N

INTERVAL, LATENCY, STEPS = 0.5, 0.375, 24
DRAW = np.random.default_rng(0)
UP, DOWN = DRAW.integers(16, 200, (N, 7)).astype(float), DRAW.integers(16, 200, (N, 5)).astype(float)
COMPUTE = np.array([0.5, 1.75, 0.25, 1.0])
CHANGING = clusters.Cluster(
    clusters.constant(COMPUTE), up=clusters.trace(UP, INTERVAL), down=clusters.trace(DOWN, INTERVAL), latency=LATENCY
)
METHODS = {**METHODS, "servers": by_hand.method(lambda gradient, round: round.mean(gradient, network.multi_server))}


def takes(bits: float, begin: float, speeds: np.ndarray) -> float:
    """Seconds of so many bits from then on, interval by interval."""
    now, sample = begin, int(begin // INTERVAL)
    while True:
        speed, end = speeds[sample % len(speeds)], (sample + 1) * INTERVAL
        if bits <= speed * (end - now):
            return now + bits / speed - begin
        bits, now, sample = bits - speed * (end - now), end, sample + 1


def slowest(vectors: float, begin: float) -> float:
    """Of all ports, for so many vectors: received one latency after they are sent."""
    up = [takes(vectors * VECTOR, begin, UP[n]) for n in range(N)]
    return max(up + [takes(vectors * VECTOR, begin + LATENCY, DOWN[n]) for n in range(N)])


def round_ring(finish, convention):
    begin, rounds = finish.max(), 2 * (N - 1)
    return np.full(N, begin + rounds * LATENCY + slowest(rounds / N, begin))


def among_servers(finish, convention):
    begin, vectors = finish.max(), 2 * (N - 1) / N
    latencies = 2 * (N - 1) if convention == "blocking" else 2
    return np.full(N, begin + latencies * LATENCY + slowest(vectors, begin))


def through_server(finish, convention):
    """Message after message: in pipelined order the ports are free as soon as the bits have left them."""
    free, arrived, done = 0.0, 0.0, np.zeros(N)
    for n in np.argsort(finish, kind="stable"):
        start = max(free, finish[n])
        sent = start + takes(VECTOR, start, UP[n])
        arrived = sent + LATENCY
        free = arrived if convention == "blocking" else sent
    start = arrived
    for n in range(N):
        down = takes(VECTOR, start + LATENCY, DOWN[n])
        done[n] = start + LATENCY + down
        start = done[n] if convention == "blocking" else start + down
    return done


def to_neighbours(finish, convention):
    """Each port from when its own neighbourhood is ready; each message as long as the slower of its two needs."""
    near = [[(n - 1) % N, n, (n + 1) % N] for n in range(N)]
    ready = np.array([finish[group].max() for group in near])
    up = [takes(2 * VECTOR, ready[n], UP[n]) / 2 for n in range(N)]
    down = [takes(2 * VECTOR, ready[n] + LATENCY, DOWN[n]) / 2 for n in range(N)]
    held, once = (LATENCY, 0) if convention == "blocking" else (0, LATENCY)
    busy = np.zeros(N)
    for n in range(N):
        others = [(n - 1) % N, (n + 1) % N]
        sends, receives = (sum(max(own[n], other[j]) + held for j in others) for own, other in ((up, down), (down, up)))
        busy[n] = max(sends, receives) + once
    return np.array([ready[n] + busy[near[n]].max() for n in range(N)])


CASES = {
    "server": lambda t, *of: through_server(*of),
    "servers": lambda t, *of: among_servers(*of),
    "ring": lambda t, *of: to_neighbours(*of),
    "local": lambda t, finish, convention: round_ring(finish, convention) if t % 3 == 2 else finish,
}


@pytest.mark.parametrize(
    ("name", "convention"),
    [("local", "blocking"), ("server", "pipelined"), ("servers", "blocking"), ("ring", "pipelined"), ("ring", "blocking")],
)
def test_messages_take_what_their_bits_take_from_their_beginning(name, convention, problem):
    done, expected = np.zeros(N), [0.0]
    for t in range(STEPS):
        done = CASES[name](t, done + COMPUTE, convention)
        expected.append(done.max())
    options = {"steps": STEPS, "key": jax.random.key(0), "mesh": 1, "cluster": replace(CHANGING, convention=convention)}
    np.testing.assert_allclose(dsgd.run(METHODS[name], problem, **options).history["clock"], expected, rtol=2e-6)


def test_a_stars_links_go_side_by_side(problem):
    """Up from when each worker is ready, down from when the last has arrived; so are the seconds that workers measure."""
    method = algorithms.observed(by_hand.method(lambda gradient, round: round.mean(gradient, network.star)))
    history = dsgd.run(method, problem, steps=STEPS, key=jax.random.key(0), mesh=1, cluster=CHANGING).history
    done = np.zeros(N)
    for t in range(STEPS):
        finish = done + COMPUTE
        up = np.array([takes(VECTOR, finish[n], UP[n]) for n in range(N)])
        received = (finish + LATENCY + up).max()
        down = np.array([takes(VECTOR, received + LATENCY, DOWN[n]) for n in range(N)])
        done = received + LATENCY + down
        np.testing.assert_allclose(history["clock"][t + 1], done.max(), rtol=2e-6)
        if t < 3:  # as long as float32 holds the clock, where a message begins, well enough
            np.testing.assert_allclose([history[f"measured_{way}"][t + 2] for way in ("up", "down")], [up, down], rtol=1e-5)


def test_what_workers_measure_is_of_the_seconds_in_which_it_went(problem):
    """In gossip, from when the neighbourhood is ready, and not from when the worker is."""
    method = algorithms.observed(algorithms.decentralized_sgd(OPTIMIZER, topologies.ring(N)))
    history = dsgd.run(method, problem, steps=4, key=jax.random.key(0), mesh=1, cluster=CHANGING).history
    done = np.zeros(N)
    for t in range(3):
        finish = done + COMPUTE
        ready = np.array([finish[[(n - 1) % N, n, (n + 1) % N]].max() for n in range(N)])
        up = [takes(2 * VECTOR, ready[n], UP[n]) for n in range(N)]
        np.testing.assert_allclose(history["measured_up"][t + 2], up, rtol=1e-5)
        done = to_neighbours(finish, "blocking")
