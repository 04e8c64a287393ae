"""The recorded bits of a method are the bytes that its compiled program sends.

N workers on D = N devices, so that every message between workers crosses devices. A round is
compiled as in the loop, and the collectives are read from XLA's optimized program
(`dsgd.workers.traffic`), independently of the library's own records.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil, log2

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rounds
from jax.sharding import PartitionSpec as P

import dsgd
import topologies
from algorithms import choco_sgd, compressed_sgd, deepsqueeze, ef21, error_compensated_sgd
from dsgd import compressors
from dsgd.compressors.sparsification import capacity

N, D = 8, 77
# messages that a worker sends in a round: one to every other server and one to every other worker;
# or one per hop
MESSAGES = 2 * (N - 1)
FLOAT = 4  # bytes of a float32
STEP = optax.sgd(0.1)

METHODS: dict[str, Callable[[dsgd.Compressor], dsgd.Algorithm]] = {
    "csgd": lambda Q: compressed_sgd(STEP, Q, allow_biased=True),
    "compressed_sgd_ring": lambda Q: compressed_sgd(STEP, Q, ring=True, allow_biased=True),
    "error_compensated_sgd": lambda Q: error_compensated_sgd(STEP, Q, Q, allow_expanding=True),
    "ef21": lambda Q: ef21(STEP, Q, Q),
}
SERVERS = {"all-to-all", "all-gather"}
COLLECTIVES = {
    "csgd": SERVERS,
    "compressed_sgd_ring": {"collective-permute", "all-gather"},
    "error_compensated_sgd": SERVERS,
    "ef21": SERVERS,
}


def code_bytes(codes: int, bits: int) -> int:
    """Returns the bytes of the given codes, in planes of 8, 4, 2 and 1 bits, each in whole
    bytes.
    """
    return bits // 8 * codes + sum(ceil(codes * width / 8) for width in (4, 2, 1) if bits & width)


def compiled_round(
    algorithm: dsgd.Algorithm, gradients: dsgd.Gradients, devices: int = N, step: int = 0
):
    """Returns round `step` (query, gradients, update) on these gradients `[N, ...]`, as a compiled
    program, and its arguments.
    """
    problem = dsgd.Problem(
        init=lambda key: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:]), gradients),
        # the gradient of any model is the worker's data
        loss=dsgd.Loss(lambda params, batch: jnp.zeros(()), lambda params, batch: batch),
        sample=lambda key, mine: mine,
        data=gradients,
    )

    count = problem.workers

    def one_round(state, data, key):
        after, _, statistics = rounds.one(
            algorithm, problem, state, dsgd.Round(state.step, count, key), data, key, key
        )
        return after, statistics

    out = (rounds.STATE, rounds.statistics_over())
    specs = {"in_specs": (rounds.STATE, P(dsgd.workers.AXIS), P()), "out_specs": out}
    spread = jax.shard_map(one_round, mesh=dsgd.workers.mesh(devices), check_vma=False, **specs)
    args = (
        algorithm.init(problem.init(jax.random.key(0)), count)._replace(step=jnp.int32(step)),
        gradients,
        jax.random.key(1),
    )
    return jax.jit(spread).lower(*args).compile(), args


@cache
def vector() -> jax.Array:
    return jax.random.normal(jax.random.key(2), (N, D))


def sent_and_recorded(
    algorithm: dsgd.Algorithm, gradients: dsgd.Gradients, devices: int = N, step: int = 0
):
    """Returns the bytes that cross devices, by collective; the state after the round; the bits that
    each worker sent, and received.
    """
    program, args = compiled_round(algorithm, gradients, devices, step)
    state, statistics = program(*args)
    up, down = (dsgd.wire.counts.to_int(np.asarray(bits)) for bits in statistics.bits[:2])
    return dsgd.workers.traffic(program), state, up, down


def assert_sent(
    method: dsgd.Algorithm,
    gradients: dsgd.Gradients,
    collectives: set[str],
    bits: int,
    devices: int = N,
) -> None:
    """Checks that each worker sends the given bits by these collectives and no others, so that no
    float gradient crosses devices.
    """
    traffic, _, up, down = sent_and_recorded(method, gradients, devices)
    assert set(traffic) == collectives
    if devices > 1:
        np.testing.assert_array_equal(8 * sum(traffic.values()), up)
    np.testing.assert_array_equal(up, bits)
    np.testing.assert_array_equal(down, up)


QUANTIZED = compressors.random_quantization(3)


@pytest.mark.parametrize("part", [1, 2])
def test_recorded_bits_of_the_shortest_parts_are_the_bytes_that_cross_devices(part):
    """The compiler removes nothing that is recorded, as a duplicate or as a constant."""
    for method in ("compressed_sgd_ring", "error_compensated_sgd"):
        assert_sent(
            METHODS[method](QUANTIZED),
            vector()[:, : N * part],
            COLLECTIVES[method],
            MESSAGES * 8 * part * FLOAT,
        )


def test_padded_messages_are_recorded_and_not_built_on_one_device():
    """With 100 workers and 9 elements 91 servers have no elements: all send them headers, and the
    cost of a round, including random numbers, is that of the elements.
    """
    workers, elements = 100, 9
    gradients = jax.random.normal(jax.random.key(5), (workers, elements))
    program, (state, *rest) = compiled_round(
        METHODS["error_compensated_sgd"](compressors.natural), gradients, devices=1
    )
    text = program.as_text()
    assert f"[{workers},{elements}" in text
    assert f"[{workers},{workers}" not in text
    recorded = dsgd.wire.counts.to_int(np.asarray(program(state, *rest)[1].bits.up))
    np.testing.assert_array_equal(recorded, 2 * (workers - 1) * 8 * code_bytes(1, 1 + 8))


@pytest.mark.parametrize("devices", [1, N])
def test_indices_are_computed_only_if_they_are_sent(devices):
    """On one device EF21 selects the largest of 16,384 elements by counting their bits, without
    computing indices; on several, the senders compute indices and do not count.
    """
    gradients = jax.random.normal(jax.random.key(5), (N, 1 << 14))
    program, _ = compiled_round(METHODS["ef21"](compressors.top_k(0.1)), gradients, devices=devices)
    assert ("TopK" in program.as_text()) == (devices > 1)
    assert ("bitcast-convert" in program.as_text()) == (devices == 1)


# share of each part's elements that are kept; the array of a message has fewer entries than the
# part
SHARE, LONG = 0.05, 77
RANDOM = compressors.random_sparsification(SHARE)
ELEMENT = 32 + ceil(log2(LONG))  # bits of a kept element: its value and its index


@cache
def long_vector() -> jax.Array:
    """Returns a vector without padding; padding is 0, so that it could not be distinguished from
    dropped elements.
    """
    return jax.random.normal(jax.random.key(5), (N, N * LONG))


def room() -> int:
    """Returns the bits of a message's arrays: the number of kept elements, and indices and values
    for the maximal number.
    """
    elements = capacity(SHARE, LONG)
    assert elements < LONG
    return 32 + 8 * code_bytes(elements, ceil(log2(LONG))) + 32 * elements


@pytest.mark.parametrize("method", ["compressed_sgd_ring", "ef21"])
def test_messages_of_random_size_are_sent_in_arrays_for_the_largest_and_count_the_used_bits(method):
    """All sent elements are received."""
    # with the same messages
    sparse = compressors.contraction(RANDOM) if method == "ef21" else RANDOM
    traffic, _, up, down = sent_and_recorded(METHODS[method](sparse), long_vector())
    assert set(traffic) == COLLECTIVES[method]
    assert 8 * sum(traffic.values()) == MESSAGES * room()
    assert (up < MESSAGES * room()).all()
    assert up.sum() == down.sum()
    assert len({*up.tolist()}) > 1  # bits of each worker, not a mean
    assert ((up - MESSAGES * 32) % ELEMENT == 0).all()
    # N (N - 1) messages go to one receiver, the N others to N - 1: a binomial share of all
    # elements, where the others count N - 1 times.
    kept = (int(up.sum()) - N * MESSAGES * 32) / ELEMENT
    variance = (N * (N - 1) + N * (N - 1) ** 2) * LONG * SHARE * (1 - SHARE)
    assert abs(kept - N * MESSAGES * LONG * SHARE) < 4.5 * np.sqrt(variance)


TELLING = dsgd.Compressor(
    compress=lambda key, x: x.astype(jnp.float32),
    decompress=lambda message, d: message,
    bits=lambda message: message[0].astype(jnp.uint32),
    omega=lambda d: 0.0,
    delta=lambda d: 1.0,
    name="telling",
)
"""Nothing is lost, and a message is as long as its first element says: who sent what to whom can be
read off the bits.
"""


def numbers() -> dict[str, np.ndarray]:
    """Returns numbers for two layers: part j of worker n is one number, a multiple of N so that
    means are integers. Sums are below 2^24, exact in float32.
    """
    rng = np.random.default_rng(0)
    return {name: N * rng.integers(1, 1 << 17, (N, N)) for name in ("biases", "weights")}


def server_bits(g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bits that each worker sends and receives if part j of worker n is g[n, j]."""
    up, down = np.zeros(N, int), np.zeros(N, int)
    for sender in range(N):
        for receiver in range(N):
            if sender == receiver:
                continue
            to_server, answer = g[sender, receiver], g[:, sender].sum() // N
            up[sender] += to_server + answer
            down[receiver] += to_server + answer
    return up, down


def ring_bits(g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same for a ring: every part starts at the worker of its number, is first
    accumulated, and then forwarded.
    """
    up, down = np.zeros(N, int), np.zeros(N, int)
    for part in range(N):
        message, at = g[part, part], part
        for hop in range(2 * (N - 1)):
            up[at] += message
            at = (at + 1) % N
            down[at] += message
            if hop < N - 1:
                message = message + g[at, part]
    return up, down


@pytest.mark.parametrize("method", ["compressed_sgd_ring", "error_compensated_sgd", "whole-model"])
def test_every_message_is_counted_where_it_leaves_and_where_it_arrives(method, any_mesh):
    build = {
        "compressed_sgd_ring": compressed_sgd(STEP, TELLING, ring=True),
        "error_compensated_sgd": error_compensated_sgd(STEP, TELLING, TELLING),
        "whole-model": compressed_sgd(STEP, compressors.whole_model(TELLING), ring=True),
    }
    layers = numbers() if method != "whole-model" else {"weights": numbers()["weights"]}
    gradients = {
        name: jnp.asarray(np.repeat(g, 3, axis=1), jnp.float32) for name, g in layers.items()
    }
    traffic, _, up, down = sent_and_recorded(build[method], gradients, any_mesh.size)
    assert (traffic == {}) == (any_mesh.size == 1)
    oracle = ring_bits if "ring" in method or method == "whole-model" else server_bits
    expected = [oracle(g) for g in layers.values()]
    np.testing.assert_array_equal(up, np.sum([sent for sent, _ in expected], axis=0))
    np.testing.assert_array_equal(down, np.sum([received for _, received in expected], axis=0))


# --- Graphs.

RING, STAR = topologies.ring(N), topologies.star(N)


@pytest.mark.parametrize(
    ("method", "graph"),
    [("choco_sgd", STAR), ("deepsqueeze", topologies.random_matchings(N, 3))],
    ids=["choco_sgd", "schedule"],
)
def test_every_message_to_neighbours_is_counted_where_it_leaves_and_where_it_arrives(
    method, graph, any_mesh
):
    """Two layers. With a step size of -1 from 0, the message is the gradient."""
    layers = {name: g[:, 0] for name, g in numbers().items()}
    gradients = {
        name: jnp.asarray(np.repeat(g[:, None], 3, axis=1), jnp.float32)
        for name, g in layers.items()
    }
    build = {"choco_sgd": choco_sgd, "deepsqueeze": deepsqueeze}[method]
    step = graph.period + 1
    _, _, up, down = sent_and_recorded(
        build(optax.sgd(-1.0), graph, TELLING, 0.5), gradients, any_mesh.size, step
    )
    own = sum(layers.values())
    W = graph.matrices[step % graph.period].toarray()
    sends = [[m for m in range(N) if m != n and W[m, n] != 0] for n in range(N)]
    np.testing.assert_array_equal(up, [len(sends[n]) * own[n] for n in range(N)])
    np.testing.assert_array_equal(
        down, [sum(own[m] for m in range(N) if n in sends[m]) for n in range(N)]
    )
