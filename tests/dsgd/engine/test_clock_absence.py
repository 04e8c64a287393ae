"""The clock of rounds with partial participation, compared with the event simulation among the
participating workers.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import topologies
from dsgd import clusters, network, problems
from tests.dsgd.by_hand import method, run

N, LATENCY = 6, 0.375
DRAW = np.random.default_rng(0)
UP, DOWN = DRAW.uniform(0.5, 4, (2, N)).astype(np.float32)
FINISH = DRAW.uniform(0, 3, N).astype(np.float32)
SOME = [
    np.array([True, False, True, True, False, True]),
    np.arange(N) == 2,
    np.arange(N) != 0,
    np.ones(N, bool),
]


@partial(jax.jit, static_argnums=(0, 1, 2))
def elapse(pattern, convention, asked, here, up, down):
    """If ports are `asked`, each message reads its bandwidth at its start; they do not change."""
    ports = network.Ports(
        LATENCY,
        up,
        down,
        (lambda begin, workers: (up[workers], down[workers])) if asked else None,
        here,
    )
    return network.elapse(pattern, jnp.asarray(FINISH), ports, convention, jnp.int32(0))


RING = network.gossip(topologies.ring(N))


def elapsed_seconds(pattern, here, convention, up=UP, down=DOWN, asked=False):
    """Returns the absolute times of the participating workers."""
    done = np.asarray(elapse(pattern, convention, asked, here, up, down))
    assert (done[~here] == done[here].max()).all()
    return done[here]


@pytest.mark.parametrize("convention", ["blocking", "pipelined"])
@pytest.mark.parametrize("here", SOME, ids=["four", "one", "five", "all"])
@pytest.mark.parametrize(
    "pattern", [network.parameter_server, network.star], ids=lambda pattern: pattern.name
)
def test_a_server_exchanges_messages_only_with_participating_workers(pattern, here, convention):
    m, ids = int(here.sum()), np.flatnonzero(here)
    messages = [
        message._replace(compute=FINISH[ids[message.sender]]) if message.sender < m else message
        for message in pattern.messages(m)
    ]
    server = [0.0] * m
    passages = network.simulate(
        messages, LATENCY, [*UP[here], *server], convention, receive=[*DOWN[here], *server]
    ).passages
    expected = [passage.arrived for passage in passages[m:]]
    np.testing.assert_allclose(elapsed_seconds(pattern, here, convention), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "pattern", [network.ring_all_reduce, network.multi_server], ids=lambda pattern: pattern.name
)
@pytest.mark.parametrize("here", SOME, ids=["four", "one", "five", "all"])
def test_an_all_reduce_has_the_participating_workers_as_members(pattern, here):
    """Each worker sends its share of a vector that takes 2 s, and starts with the last one."""
    m = int(here.sum())
    seconds = (
        network.simulate(pattern.messages(m), LATENCY, 2.0, "blocking").seconds if m > 1 else 0
    )
    # the other workers' ports must not be read
    port = np.where(here, pattern.volume(m) * 2.0, 100.0)
    np.testing.assert_allclose(
        elapsed_seconds(pattern, here, "blocking", port, port),
        FINISH[here].max() + seconds,
        rtol=1e-6,
    )


@pytest.mark.parametrize("convention", ["blocking", "pipelined"])
@pytest.mark.parametrize("here", SOME, ids=["four", "one", "five", "all"])
def test_gossip_waits_only_for_participating_neighbours(here, convention):
    near = [[j for j in ((i - 1) % N, (i + 1) % N) if here[j]] for i in range(N)]
    port = np.array([2.0 * len(near[i]) for i in range(N)], np.float32)  # 2 s for each message
    once = 1 if convention == "pipelined" else 0
    busy = [
        len(near[i]) * (2.0 + (0 if once else LATENCY)) + once * LATENCY * bool(near[i])
        for i in range(N)
    ]
    expected = [
        max(FINISH[[i, *near[i]]]) + max(busy[j] for j in (i, *near[i]))
        for i in range(N)
        if here[i]
    ]
    np.testing.assert_allclose(
        elapsed_seconds(RING, here, convention, port, port), expected, rtol=1e-6
    )


PROBLEM = problems.random_quadratic(N, 3, seed=0)


def test_the_clock_never_decreases_when_workers_do_not_participate():
    """Worker 0 and its neighbours finish at 10 s, the others at 1 s; only the others participate in
    the next rounds, and catch up in nine.
    """
    here = np.ones((N, 20))
    here[[0, 1, 5], 1:] = 0
    cluster = clusters.Cluster(
        clusters.constant([10.0, *[1.0] * (N - 1)]), present=clusters.trace(here, 10.0)
    )
    ring = algorithms.decentralized_sgd(optax.sgd(0.05), topologies.ring(N))
    clock = run(ring, PROBLEM, 12, cluster=cluster).history["clock"]
    np.testing.assert_allclose(clock, [0, *[10] * 10, 11, 12])


def test_the_number_of_sampled_clients_is_constant_and_the_sample_is_kept_for_a_period():
    cluster = clusters.Cluster(
        clusters.constant(0.0), present=clusters.sampled(2, of=N), participation_period=4
    )

    def update(state, gradients, round):
        round.log(who=jnp.float32(round.present))
        return state

    history = run(method(update=update), PROBLEM, 12, cluster=cluster).history
    np.testing.assert_allclose(history["present"][1:], 2 / N)
    drawn = history["who"][1:].reshape(3, 4, N)
    np.testing.assert_array_equal(drawn, drawn[:, :1].repeat(4, axis=1))
    assert (drawn.sum(axis=2) == 2).all()
    assert len(np.unique(drawn[:, 0], axis=0)) > 1
