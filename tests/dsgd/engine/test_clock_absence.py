"""The clock of rounds from which workers are away, against the event simulation among those that
are there.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters, network, problems

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
SGD = optax.sgd(0.05)


@partial(jax.jit, static_argnums=(0, 1, 2))
def elapse(pattern, convention, asked, here, up, down):
    """Where ports are `asked`, each message says when it begins; they do not change."""
    ports = network.Ports(
        LATENCY,
        up,
        down,
        (lambda begin, workers: (up[workers], down[workers])) if asked else None,
        here,
    )
    return network.elapse(pattern, jnp.asarray(FINISH), ports, convention, jnp.int32(0))


RING = network.gossip(topologies.ring(N))


def elapsed(pattern, here, convention, up=UP, down=DOWN, asked=False):
    """Of those who are there, absolute."""
    done = np.asarray(elapse(pattern, convention, asked, here, up, down))
    assert (done[~here] == done[here].max()).all()
    return done[here]


@pytest.mark.parametrize("convention", ["blocking", "pipelined"])
@pytest.mark.parametrize("here", SOME, ids=["four", "one", "five", "all"])
@pytest.mark.parametrize(
    "pattern", [network.parameter_server, network.star], ids=lambda pattern: pattern.name
)
def test_a_server_hears_and_tells_only_those_who_are_there(pattern, here, convention):
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
    np.testing.assert_allclose(elapsed(pattern, here, convention), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "pattern", [network.ring_all_reduce, network.multi_server], ids=lambda pattern: pattern.name
)
@pytest.mark.parametrize("here", SOME, ids=["four", "one", "five", "all"])
def test_an_all_reduce_has_as_many_members_as_are_there(pattern, here):
    """Each sends its share of a vector that takes 2 s, and begins with the last."""
    m = int(here.sum())
    seconds = (
        network.simulate(pattern.messages(m), LATENCY, 2.0, "blocking").seconds if m > 1 else 0
    )
    port = np.where(here, pattern.vectors(m) * 2.0, 100.0)  # nobody asks how slow the others are
    np.testing.assert_allclose(
        elapsed(pattern, here, "blocking", port, port), FINISH[here].max() + seconds, rtol=1e-6
    )


@pytest.mark.parametrize("convention", ["blocking", "pipelined"])
@pytest.mark.parametrize("here", SOME[:1], ids=["four"])
def test_ports_that_are_asked_when_each_message_begins_are_those_of_the_others_too(
    here, convention
):
    """Their seconds do not change: so both ways are one."""
    for pattern in (network.parameter_server, network.star, network.ring_all_reduce, RING):
        np.testing.assert_allclose(
            elapsed(pattern, here, convention, asked=True),
            elapsed(pattern, here, convention),
            rtol=1e-6,
        )


@pytest.mark.parametrize("convention", ["blocking", "pipelined"])
@pytest.mark.parametrize("here", SOME, ids=["four", "one", "five", "all"])
def test_gossip_waits_for_the_neighbours_that_are_there(here, convention):
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
    np.testing.assert_allclose(elapsed(RING, here, convention, port, port), expected, rtol=1e-6)


def run(method, cluster, steps=12):
    problem = problems.random_quadratic(N, 3, seed=0)
    return dsgd.run(
        method, problem, steps=steps, key=jax.random.key(0), cluster=cluster, mesh=1
    ).history


def test_nobody_waits_for_who_is_away():
    """Worker 0 takes 10 s, the others 1 s: on a ring its neighbours wait for it in the first round,
    and then it is away.
    """
    here = np.ones((N, 20))
    here[0, 1:] = 0
    cluster = clusters.Cluster(
        clusters.constant([10.0, *[1.0] * (N - 1)]), present=clusters.trace(here, 10.0)
    )
    clock = run(algorithms.decentralized_sgd(SGD, topologies.ring(N)), cluster)["clock"]
    np.testing.assert_allclose(clock, [0, *range(10, 22)])


def test_the_clock_does_not_go_back_to_those_who_are_ahead_of_who_is_away():
    """Worker 0 and its neighbours are done at 10 s, the others at 1 s; only those are there in the
    next rounds, and catch up in nine.
    """
    here = np.ones((N, 20))
    here[[0, 1, 5], 1:] = 0
    cluster = clusters.Cluster(
        clusters.constant([10.0, *[1.0] * (N - 1)]), present=clusters.trace(here, 10.0)
    )
    clock = run(algorithms.decentralized_sgd(SGD, topologies.ring(N)), cluster)["clock"]
    np.testing.assert_allclose(clock, [0, *[10] * 10, 11, 12])


def test_sampled_clients_are_as_many_in_every_round_and_stay_for_a_period():
    problem = problems.random_quadratic(N, 3, seed=0)
    method = algorithms.local_sgd(SGD, 4)
    cluster = clusters.Cluster(
        clusters.constant(0.0), present=clusters.sampled(2, of=N), present_for=4
    )
    before, result = np.zeros((N, 3)), None
    moved: list[set[frozenset[int]]] = [set() for _ in range(3)]
    for t in range(12):
        with pytest.warns(UserWarning, match="steps = 1") if t == 0 else nullcontext():
            result = dsgd.run(
                method,
                problem,
                steps=1,
                key=jax.random.key(0),
                cluster=cluster,
                mesh=1,
                start=result,
            )
        assert result.history["present"][1] == pytest.approx(2 / N)
        params = np.asarray(result.state.workers.params)
        if t % 4 < 3:  # those who are drawn make a step of their own
            moved[t // 4].add(frozenset(np.flatnonzero((params != before).any(axis=1)).tolist()))
        before = params
    assert [len(chosen) for period in moved for chosen in period] == [2] * 3
    assert len(set.union(*moved)) > 1
