"""The number of arrays of a message, compared with that which compiled programs send, and the
latencies that they take.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters, compressors, problems
from dsgd.wire import traffic

N, SGD = 4, optax.sgd(0.1)
RING = topologies.ring(N)
LEAVES, FLOATS = 4, 64 * 5 + 5 + 5 * 10 + 10  # of the network
TOP, SIGN, WHOLE = (
    compressors.whole_model(each)
    for each in (compressors.top_k(0.1), compressors.sign, compressors.identity)
)


@cache
def problem() -> dsgd.Problem:
    return problems.neural_network(problems.MLP(10, (5,)), workers=N, batch_size=4)


ALL_REDUCES, PERMUTES = {"all-reduce": 1}, {"collective-permute": RING.degree}
SERVERS = {"all-to-all": 1, "all-gather": 1}
COUNTS: dict[str, tuple[dsgd.Algorithm, float, dict[str, int]]] = {
    "mean": (algorithms.minibatch_sgd(SGD), LEAVES, ALL_REDUCES),
    "joint": (algorithms.scaffold(SGD, 3), 2 * LEAVES, ALL_REDUCES),
    "push-sum weight": (
        algorithms.stochastic_gradient_push(SGD, topologies.one_peer_exponential(N)),
        LEAVES + 1,
        {"collective-permute": 1},
    ),
    "graph, joint": (algorithms.gradient_tracking(SGD, RING), 2 * LEAVES, PERMUTES),
    "servers": (algorithms.ef21(SGD, SIGN, WHOLE), (2 + 1) / 2, SERVERS),
    "ring": (
        algorithms.compressed_sgd(SGD, SIGN, ring=True, allow_biased=True),
        2,
        {"collective-permute": N - 1, "all-gather": 1},
    ),
    "to all": (algorithms.dgc(SGD, TOP), 3, {"all-gather": 1}),
}
"""Method, arrays of a message, and the collectives of each array."""


@pytest.mark.parametrize("name", COUNTS)
def test_a_message_has_the_arrays_that_the_program_sends(name):
    """Servers receive two arrays and reply with one: a message has 1.5 on average."""
    method, arrays, collectives = COUNTS[name]
    (found,) = dsgd.exchanges(method, problem())
    assert found.arrays == arrays
    program = traffic.arrays(dsgd.compile_round(method, problem(), mesh=N))
    assert set(program) == set(collectives)
    assert sum(program.values()) == arrays * sum(collectives.values())


BITS = 32 * FLOATS
TIMED: dict[str, dsgd.Algorithm] = {
    "all-reduce": algorithms.minibatch_sgd(SGD),
    "neighbours": algorithms.decentralized_sgd(SGD, RING),
    "one server": algorithms.parameter_server_sgd(SGD),
    "some rounds": algorithms.local_sgd(SGD, 3),
    "delayed": algorithms.delayed_diloco(SGD, 2),
}


def wait(latency: float, bucket: float = math.inf, **options) -> clusters.Cluster:
    """Returns a cluster on which the messages' latencies take most of the time."""
    compute, ports = clusters.constant([0.5, 1.75, 0.25, 3.0]), clusters.constant(BITS * 3.0)
    return clusters.Cluster(compute, ports, latency=latency, bucket=bucket, **options)


@pytest.mark.parametrize("name", TIMED)
def test_each_bucket_takes_a_latency(name):
    """A message of four arrays is sent in up to four buckets, on the clock of a run and of its
    replay.
    """
    options = {"steps": 4, "key": jax.random.key(0), "mesh": 1, "taped": True}
    result = dsgd.run(TIMED[name], problem(), cluster=wait(0.7, 0.0), **options)
    np.testing.assert_allclose(
        result.history["clock"], dsgd.replay(result, wait(LEAVES * 0.7)), rtol=1e-6
    )
    for bucket, messages in ((BITS, 1), (BITS - 1, 2), (BITS / 3, 3), (1.0, LEAVES)):
        found = dsgd.replay(result, wait(0.7, bucket))
        np.testing.assert_allclose(found, dsgd.replay(result, wait(messages * 0.7)), rtol=1e-6)


def test_the_last_bucket_of_an_overlap_has_a_share_of_the_arrays():
    """Of four arrays, 0.6 are three. They are sent when the slowest worker is done, after 3 s."""
    overlap = clusters.Overlap(clusters.constant(3.0), clusters.constant(0.0), 0.0, 0.6)
    method = TIMED["all-reduce"]
    result = dsgd.run(method, problem(), steps=1, key=jax.random.key(0), mesh=1, taped=True)
    found = dsgd.replay(result, wait(0.1, 0.0, overlap=overlap))
    assert found[-1] == pytest.approx(3 + 2 * (N - 1) * (3 * 0.1 + 0.6 / 3 / N), rel=1e-6)


def test_a_bucket_is_a_number_of_bits():
    for bucket in (-1.0, math.nan):
        with pytest.raises(ValueError, match=r"Cluster: bucket = .*; expected bits >= 0"):
            wait(0.7, bucket)
    assert wait(0.7, 2e8).name == f"{wait(0.7).name}; bucket 200000000"


@pytest.mark.parametrize(
    ("method", "factors"),
    [
        (TIMED["all-reduce"], (2.0, 3.0)),
        (TIMED["neighbours"], (4.0, 5.0)),
        (TIMED["one server"], (1.0, 1.0)),
        (algorithms.ef21(SGD, WHOLE, WHOLE), ((6.0 + 8.0) / 2, (7.0 + 11.0) / 2)),
        (algorithms.dgc(SGD, TOP), (8.0, 11.0)),
    ],
    ids=["all-reduce", "neighbours", "one server", "servers", "to all"],
)
def test_exchanges_take_multiples_of_the_latency_and_of_the_transfer_time(method, factors):
    """Messages to servers have the mean of the factors of the two collectives."""
    of_latency, of_bits = factors
    result = dsgd.run(method, problem(), steps=2, key=jax.random.key(0), mesh=1, taped=True)
    collectives = clusters.Collectives((2.0, 3.0), (8.0, 11.0), (6.0, 7.0), (4.0, 5.0))
    found = dsgd.replay(result, wait(0.7, collectives=collectives))
    like = replace(wait(0.7 * of_latency), up=clusters.constant(BITS * 3.0 / of_bits))
    np.testing.assert_allclose(found, dsgd.replay(result, like), rtol=1e-6)
    if factors != (1.0, 1.0):
        assert found[-1] > dsgd.replay(result, wait(0.7))[-1] + 0.7
    assert wait(0.7, collectives=collectives).name.endswith("; 8, 11; 6, 7; 4, 5)")
