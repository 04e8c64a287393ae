"""A round's messages in numpy, by absolute times: what the clock of a run is held against, on clusters of four workers."""

from __future__ import annotations

import jax
import numpy as np
import optax

import algorithms
import dsgd
import topologies
from dsgd import clusters, network

N, VECTOR = 4, 96.0  # bits of a model
OPTIMIZER = optax.sgd(0.05)
METHODS = {
    "mb-sgd": algorithms.minibatch_sgd(OPTIMIZER),
    "server": algorithms.parameter_server_sgd(OPTIMIZER),
    "ring": algorithms.decentralized_sgd(OPTIMIZER, topologies.ring(N)),
    "local": algorithms.local_sgd(OPTIMIZER, 3),
    "schedule": algorithms.decentralized_sgd(OPTIMIZER, topologies.one_peer_exponential(N)),
    "local schedule": algorithms.local_sgd(OPTIMIZER, 2, topologies.one_peer_exponential(N)),
}
EQUAL = clusters.Cluster(clusters.constant(0.5), up=clusters.constant(64.0), latency=0.25)
UNEQUAL = clusters.Cluster(
    clusters.constant([0.5, 1.75, 0.25, 3.0]),
    up=clusters.constant([64.0, 16.0, 128.0, 32.0]),
    down=clusters.constant([128.0, 96.0, 24.0, 64.0]),
    latency=0.375,
    convention="pipelined",
    micro_batches=2,
)
HETEROGENEOUS = clusters.Cluster(UNEQUAL.compute, UNEQUAL.up, UNEQUAL.down, latency=0.375)
CLUSTERS = {"equal": EQUAL, "unequal": UNEQUAL, "unequal, blocking": HETEROGENEOUS}
COMPUTE = {"equal": np.full(N, 0.5), "unequal": np.array([1.0, 3.5, 0.5, 6.0]), "unequal, blocking": np.array([0.5, 1.75, 0.25, 3.0])}


def run(method, problem, cluster, *, steps, **options):
    return dsgd.run(method, problem, steps=steps, cluster=cluster, **({"key": jax.random.key(0), "mesh": 1} | options))


def bandwidths(cluster: clusters.Cluster) -> tuple[np.ndarray, np.ndarray]:
    if cluster is EQUAL:
        return np.full(N, 64.0), np.full(N, 64.0)
    return np.array([64.0, 16.0, 128.0, 32.0]), np.array([128.0, 96.0, 24.0, 64.0])


def through_server(finish, cluster, bits=VECTOR):
    """As the event simulation has it."""
    up, down = (bits / speed for speed in bandwidths(cluster))
    messages = [message._replace(compute=finish[message.sender]) if message.sender < N else message for message in SERVER]
    passages = network.simulate(messages, cluster.latency, [*up, 0.0], cluster.convention, receive=[*down, 0.0]).passages
    return np.array([passage.arrived for passage in passages[N:]])


SERVER = network.parameter_server.messages(N)


def around_ring(finish, cluster, bits=VECTOR):
    """All-reduce: everybody waits for the last."""
    slowest = bits / min(speed.min() for speed in bandwidths(cluster))
    return np.full(N, finish.max() + 2 * (N - 1) * (cluster.latency + slowest / N))


def to_neighbours(finish, cluster, links, bits=VECTOR):
    """Everybody waits for those with whom it exchanges messages, and for their busiest port."""
    up, down = (bits / speed for speed in bandwidths(cluster))
    sends, receives = np.zeros(N), np.zeros(N)
    for sender, receiver in links:
        takes = max(up[sender], down[receiver]) + (cluster.latency if cluster.convention == "blocking" else 0)
        sends[sender] += takes
        receives[receiver] += takes
    once = cluster.latency * np.isin(np.arange(N), links) if cluster.convention == "pipelined" else 0
    busy = np.maximum(sends, receives) + once
    near = [sorted({i, *links[links[:, 0] == i, 1], *links[links[:, 1] == i, 0]}) for i in range(N)]
    return np.array([finish[group].max() + busy[group].max() for group in near])


def exchange(name, finish, cluster, t, bits=VECTOR):
    """When everybody is done with the messages of round t, each of so many bits."""
    if name == "server":
        return through_server(finish, cluster, bits)
    if name == "mb-sgd" or (name == "local" and t % 3 == 2):
        return around_ring(finish, cluster, bits)
    if name == "ring":
        return to_neighbours(finish, cluster, topologies.ring(N).links[0], bits)
    schedule = topologies.one_peer_exponential(N).links
    if name == "schedule":
        return to_neighbours(finish, cluster, schedule[t % 2], bits)
    if name == "local schedule" and t % 2:
        return to_neighbours(finish, cluster, schedule[t // 2 % 2], bits)
    return finish
