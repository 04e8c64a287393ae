"""A round's messages in numpy, by absolute times: the reference for the clock of a run, on clusters
of four workers.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import optax

import algorithms
import dsgd
import topologies
from dsgd import clusters, network
from tests.dsgd import by_hand

N, VECTOR = 4, 96.0  # bits of a model
OPTIMIZER = optax.sgd(0.05)
METHODS = {
    "minibatch_sgd": algorithms.minibatch_sgd(OPTIMIZER),
    "server": algorithms.parameter_server_sgd(OPTIMIZER),
    "servers": by_hand.method(lambda gradient, round: round.mean(gradient, network.multi_server)),
    "star": by_hand.method(lambda gradient, round: round.mean(gradient, network.star)),
    "ring": algorithms.decentralized_sgd(OPTIMIZER, topologies.ring(N)),
    "local": algorithms.local_sgd(OPTIMIZER, 3),
    "schedule": algorithms.decentralized_sgd(OPTIMIZER, topologies.one_peer_exponential(N)),
    "local schedule": algorithms.local_sgd(OPTIMIZER, 2, topologies.one_peer_exponential(N)),
}
EQUAL = clusters.Cluster(clusters.constant(0.5), up=clusters.constant(64.0), latency=0.25)
UP, DOWN = np.array([64.0, 16.0, 128.0, 32.0]), np.array([128.0, 96.0, 24.0, 64.0])
UNEQUAL = clusters.Cluster(
    clusters.constant([0.5, 1.75, 0.25, 3.0]),
    up=clusters.constant(UP),
    down=clusters.constant(DOWN),
    latency=0.375,
    convention="pipelined",
    micro_batches=2,
)
HETEROGENEOUS = clusters.Cluster(UNEQUAL.compute, UNEQUAL.up, UNEQUAL.down, latency=0.375)
DRAW, INTERVAL = np.random.default_rng(0), 0.5
UPS, DOWNS = (
    DRAW.integers(16, 200, (N, 7)).astype(float),
    DRAW.integers(16, 200, (N, 5)).astype(float),
)
CHANGING = clusters.Cluster(
    clusters.constant([0.5, 1.75, 0.25, 1.0]),
    up=clusters.trace(UPS, INTERVAL),
    down=clusters.trace(DOWNS, INTERVAL),
    latency=0.375,
)
CLUSTERS = {
    "equal": EQUAL,
    "unequal": UNEQUAL,
    "unequal, blocking": HETEROGENEOUS,
    "changing": replace(CHANGING, convention="pipelined"),
    "changing, blocking": CHANGING,
}
COMPUTE = {
    "equal": np.full(N, 0.5),
    "unequal": np.array([1.0, 3.5, 0.5, 6.0]),
    "unequal, blocking": np.array([0.5, 1.75, 0.25, 3.0]),
    "changing": np.array([0.5, 1.75, 0.25, 1.0]),
    "changing, blocking": np.array([0.5, 1.75, 0.25, 1.0]),
}


def run(method, problem, cluster, *, steps, **options):
    return dsgd.run(
        method,
        problem,
        steps=steps,
        cluster=cluster,
        **({"key": jax.random.key(0), "mesh": 1} | options),
    )


def bandwidths(cluster: clusters.Cluster) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bandwidths by worker and interval, up and down; on machines with several workers,
    those of their cards.
    """
    if cluster is EQUAL:
        return np.full((N, 1), 64.0), np.full((N, 1), 64.0)
    size = cluster.nodes.size if cluster.nodes else 1
    up, down = (UPS, DOWNS) if cluster.up is CHANGING.up else (UP[:, None], DOWN[:, None])
    return up[np.arange(N) // size * size], down[np.arange(N) // size * size]


def takes(bits: float, begin: float, speeds: np.ndarray) -> float:
    """Returns the seconds of the given bits from then on, interval by interval."""
    now, sample = begin, int(begin // INTERVAL)
    while True:
        speed, end = speeds[sample % len(speeds)], (sample + 1) * INTERVAL
        if bits <= speed * (end - now):
            return now + bits / speed - begin
        bits, now, sample = bits - speed * (end - now), end, sample + 1


def server_exchange(finish, cluster, bits=VECTOR):
    """Processes message after message: in pipelined order the ports are free as soon as the bits
    have left them.
    """
    (up, down), latency, blocking = (
        bandwidths(cluster),
        cluster.latency,
        cluster.convention == "blocking",
    )
    free, arrived, done = 0.0, 0.0, np.zeros(N)
    for n in np.argsort(finish, kind="stable"):
        start = max(free, finish[n])
        sent = start + takes(bits, start, up[n])
        arrived = sent + latency
        free = arrived if blocking else sent
    start = arrived
    for n in range(N):
        received = takes(bits, start + latency, down[n])
        done[n] = start + latency + received
        start = done[n] if blocking else start + received
    return done


def star_exchange(finish, cluster):
    """Messages on independent links: up when each worker is ready, down when the last message has
    arrived.
    """
    (up, down), latency = bandwidths(cluster), cluster.latency
    received = max(finish[n] + latency + takes(VECTOR, finish[n], up[n]) for n in range(N))
    begin = received + latency
    return np.array([begin + takes(VECTOR, begin, down[n]) for n in range(N)])


def among_all(finish, cluster, bits=VECTOR, latencies=2 * (N - 1)):
    """An all-reduce: each worker starts with the last one; each port carries 2 (N - 1) / N of the
    bits.
    """
    up, down = bandwidths(cluster)
    begin, each = finish.max(), 2 * (N - 1) / N * bits
    busy = [takes(each, begin, up[n]) for n in range(N)] + [
        takes(each, begin + cluster.latency, down[n]) for n in range(N)
    ]
    return np.full(N, begin + latencies * cluster.latency + max(busy))


def to_neighbours(finish, cluster, links, bits=VECTOR):
    """Each port starts when its neighbourhood is ready; each message takes the time of the slower
    of its two ports.
    """
    (up, down), held = (
        bandwidths(cluster),
        cluster.latency if cluster.convention == "blocking" else 0,
    )
    near = [sorted({i, *links[links[:, 0] == i, 1], *links[links[:, 1] == i, 0]}) for i in range(N)]
    ready = np.array([finish[group].max() for group in near])
    out, into = (np.bincount(links[:, end], minlength=N) for end in (0, 1))
    each_up = [takes(out[n] * bits, ready[n], up[n]) / max(out[n], 1) for n in range(N)]
    each_down = [
        takes(into[n] * bits, ready[n] + cluster.latency, down[n]) / max(into[n], 1)
        for n in range(N)
    ]
    sends, receives = np.zeros(N), np.zeros(N)
    for sender, receiver in links:
        sends[sender] += max(each_up[sender], each_down[receiver]) + held
        receives[receiver] += max(each_up[sender], each_down[receiver]) + held
    busy = np.maximum(sends, receives) + (0 if held else cluster.latency) * np.isin(
        np.arange(N), links
    )
    return np.array([ready[n] + busy[near[n]].max() for n in range(N)])


def exchange(name, finish, cluster, t, bits=VECTOR):
    """Returns the times at which each worker has finished the messages of round t, each of the
    given bits.
    """
    if name == "server":
        return server_exchange(finish, cluster, bits)
    if name == "star":
        return star_exchange(finish, cluster)
    if name == "servers":
        return among_all(
            finish, cluster, bits, 2 * (N - 1) if cluster.convention == "blocking" else 2
        )
    if name == "minibatch_sgd" or (name == "local" and t % 3 == 2):
        return among_all(finish, cluster, bits)
    if name == "ring":
        return to_neighbours(finish, cluster, topologies.ring(N).links[0], bits)
    schedule = topologies.one_peer_exponential(N).links
    if name == "schedule":
        return to_neighbours(finish, cluster, schedule[t % 2], bits)
    if name == "local schedule" and t % 2:
        return to_neighbours(finish, cluster, schedule[t // 2 % 2], bits)
    return finish
