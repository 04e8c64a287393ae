"""The clock of a run on machines with several workers, compared with a loop in numpy over absolute
times; bandwidths of the cards change with the clock.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters
from tests.dsgd.communication import test_arrays
from tests.dsgd.engine import clocks
from tests.dsgd.engine.clocks import CLUSTERS, COMPUTE, METHODS, OPTIMIZER, VECTOR, N, takes

K, M = 2, 2
NODES = clusters.Nodes(K, 512.0, 0.0625)
WITHIN = VECTOR / NODES.bandwidth  # seconds of a vector on a port within a machine
STEPS = 7
run = partial(clocks.run, steps=STEPS)


def on_card(cluster, machine, bits, begin):
    """Returns the seconds of bits that leave, and of bits that arrive one latency later."""
    up, down = clocks.bandwidths(cluster)
    n = machine * K
    return takes(bits, begin, up[n]), takes(bits, begin + cluster.latency, down[n])


def all_reduce(finish, cluster):
    """Half of the time within machines comes first."""
    begin, half = finish.max(), (K - 1) * (NODES.latency + WITHIN / K)
    share = 2 * (M - 1) / M * VECTOR
    busy = max(max(on_card(cluster, m, share, begin + half)) for m in range(M))
    return np.full(N, begin + 2 * half + 2 * (M - 1) * cluster.latency + busy)


def servers(finish, cluster):
    """The parts of a quarter of the vector for the server of the other worker, and for the servers
    of the other machine, and back.
    """
    begin, blocking = finish.max(), cluster.convention == "blocking"
    messages, part = K * (N - K), VECTOR / N
    busy = max(max(on_card(cluster, m, 2 * messages * part, begin)) for m in range(M))
    inner = 2 * (K - 1) * (NODES.latency + WITHIN / N)
    cards = (2 * messages if blocking else 2) * cluster.latency + busy
    return np.full(N, begin + max(inner, cards))


def ring(finish, cluster):
    """Each machine has two links to the other one, over which one message passes in each
    direction.
    """
    begin, held = finish.max(), 2 if cluster.convention == "blocking" else 1
    ups, downs = np.transpose([on_card(cluster, m, 2 * VECTOR, begin) for m in range(M)])
    cards = begin + held * cluster.latency + max(*np.maximum(ups, downs[::-1]))
    inner = finish.reshape(M, K).max(axis=1) + NODES.latency + WITHIN
    return np.maximum(np.repeat(inner, K), cards)


def star(finish, cluster):
    """The workers of a machine take turns at its card."""
    latency, blocking = cluster.latency, cluster.convention == "blocking"
    (up, down), last, done = clocks.bandwidths(cluster), 0.0, np.zeros(N)
    for m in range(M):
        free = 0.0
        for n in m * K + np.argsort(finish[m * K : m * K + K], kind="stable"):
            start = max(free, finish[n])
            sent = start + takes(VECTOR, start, up[m * K])
            free = sent + latency if blocking else sent
            last = max(last, sent + latency)
    for m in range(M):
        start = last
        for n in range(m * K, m * K + K):
            received = takes(VECTOR, start + latency, down[m * K])
            done[n] = start + latency + received
            start = done[n] if blocking else start + received
    return done


AFTER = {
    "minibatch_sgd": all_reduce,
    "servers": servers,
    "ring": ring,
    "star": star,
    "server": clocks.server_exchange,
}


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("minibatch_sgd", "changing"),
        ("servers", "changing"),
        ("servers", "changing, blocking"),
        ("ring", "changing"),
        ("ring", "unequal, blocking"),
        ("star", "changing, blocking"),
        ("star", "unequal"),
        ("server", "changing"),
    ],
)
def test_the_clock_is_that_of_the_loop(name, of, problem):
    cluster = replace(CLUSTERS[of], nodes=NODES)
    done, expected = np.zeros(N), [0.0]
    for _ in range(STEPS):
        done = AFTER[name](done + COMPUTE[of], cluster)
        expected.append(done.max())
    history = run(METHODS[name], problem, cluster).history
    np.testing.assert_allclose(history["clock"], expected, rtol=2e-6)


def test_one_machine_and_machines_of_one_worker_have_one_level(problem):
    cluster = CLUSTERS["unequal, blocking"]
    port = clusters.constant(NODES.bandwidth)
    inner = replace(cluster, up=port, down=None, latency=NODES.latency)
    for size, one_level in ((1, cluster), (N, inner)):
        on_nodes = replace(cluster, nodes=replace(NODES, size=size))
        assert on_nodes.with_levels(N).name == one_level.name
        found, expected = (
            run(METHODS["ring"], problem, each).history["clock"] for each in (on_nodes, one_level)
        )
        np.testing.assert_array_equal(found, expected)


def test_replays_equal_runs(problem):
    """Also on machines whose numbers are traced."""
    method = METHODS["local schedule"]
    taped = dsgd.run(method, problem, steps=STEPS, key=jax.random.key(0), mesh=1, taped=True)

    def on(bandwidth, latency):
        nodes = clusters.Nodes(K, bandwidth, latency)
        return replace(CLUSTERS["changing"], nodes=nodes)

    seconds = dsgd.replay(taped, on, bandwidth=[256.0, 1024.0], latency=[0.5])
    assert (seconds[0] >= seconds[1]).all()
    found = run(method, problem, on(1024.0, 0.5)).history["clock"]
    np.testing.assert_array_equal(seconds[1, 0], found)


def test_overlapped_messages_pass_both_levels(problem):
    """With half of the message in the last bucket: it is sent when the gradient is computed."""
    overlap = clusters.Overlap(clusters.constant(0.25), clusters.constant(0.0), 0.5, 0.5)
    cluster = replace(clocks.EQUAL, overlap=overlap, nodes=NODES)
    seconds = run(METHODS["minibatch_sgd"], problem, cluster).history["clock"][1]
    latencies = 2 * (K - 1) * NODES.latency + 2 * (M - 1) * cluster.latency
    transfers = 2 * (K - 1) / K * WITHIN + 2 * (M - 1) / M * VECTOR / 64
    first = 0.5 - 0.5 * 0.25 + latencies + transfers
    assert seconds == pytest.approx(max(first, 0.5 + latencies + transfers / 2), rel=1e-6)


def test_an_asynchronous_servers_messages_pass_the_cards(problem):
    method = algorithms.asynchronous_sgd(OPTIMIZER)
    cluster = CLUSTERS["unequal, blocking"]
    firsts = np.arange(N) // K * K
    up, down = (clusters.constant(each[firsts]) for each in (clocks.UP, clocks.DOWN))
    ports = replace(cluster, up=up, down=down)
    found, expected = (
        run(method, problem, each).history["clock"]
        for each in (replace(cluster, nodes=NODES), ports)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            algorithms.asynchronous_gossip_sgd(OPTIMIZER, topologies.ring(N)),
            "keeps its own time, but the cluster has machines",
        ),
        (algorithms.random_walk_sgd(OPTIMIZER, topologies.ring(N)), "expected a method with a"),
        (algorithms.asynchronous_sgd(OPTIMIZER, servers=3), "over one network card"),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_events_that_would_share_cards_are_refused(method, words, problem):
    with pytest.raises(ValueError, match=words):
        run(method, problem, replace(clocks.EQUAL, nodes=NODES))


def test_clusters_refuse_machines_that_do_not_fit(problem):
    with pytest.raises(ValueError, match="nodes of 3 workers but the problem has 4 workers"):
        run(METHODS["ring"], problem, replace(clocks.EQUAL, nodes=replace(NODES, size=3)))
    with pytest.raises(ValueError, match=r"nodes = nodes\(2; 512; 0.0625\) with present"):
        replace(clocks.EQUAL, nodes=NODES, present=clusters.sampled(2, N))
    for numbers, words in (
        ((0, 1.0, 0.0), "Nodes: size = 0"),
        ((2, 0.0, 0.0), "Nodes: bandwidth = 0"),
        ((2, 1.0, -0.5), "Nodes: latency = -0.5"),
        ((2, float("nan"), 0.5), "Nodes: bandwidth = nan"),
    ):
        with pytest.raises(ValueError, match=words):
            clusters.Nodes(*numbers)


def test_the_name_contains_all_parameters():
    name = replace(clocks.EQUAL, nodes=NODES).name
    assert name == f"{clocks.EQUAL.name}; nodes(2; 512; 0.0625)"


def test_averages_within_machines_take_no_time_on_the_cards(problem):
    """Blocks of the workers of a machine: rounds of a gradient, of an average within machines, and
    of one over all workers.
    """
    method = algorithms.hierarchical_local_sgd(OPTIMIZER, K, 2, 3)
    cluster = replace(CLUSTERS["unequal, blocking"], nodes=NODES)
    done, expected = np.zeros(N), [0.0]
    for t in range(STEPS):
        done = done + COMPUTE["unequal, blocking"]
        if (t + 1) % 6 == 0:
            done = all_reduce(done, cluster)
        elif t % 2:
            last = np.repeat(done.reshape(M, K).max(axis=1), K)
            done = last + 2 * (K - 1) * (NODES.latency + WITHIN / K)
        expected.append(done.max())
    np.testing.assert_allclose(run(method, problem, cluster).history["clock"], expected, rtol=2e-6)


def test_each_bucket_takes_the_latency_of_its_level():
    """A message of four arrays."""
    cluster = test_arrays.wait(0.75, 0.0, nodes=NODES)
    whole = replace(cluster, bucket=math.inf, latency=4 * 0.75)
    slow = replace(whole, nodes=NODES.scale(1.0, 4.0))
    method, problem = test_arrays.TIMED["all-reduce"], test_arrays.problem()
    taped = dsgd.run(method, problem, steps=2, key=jax.random.key(0), mesh=1, taped=True)
    found = dsgd.replay(taped, cluster)
    np.testing.assert_allclose(found, dsgd.replay(taped, slow), rtol=1e-6)
    assert (found > dsgd.replay(taped, whole))[1:].all()
