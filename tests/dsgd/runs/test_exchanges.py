"""`exchanges`: the messages of a method's rounds, without running it."""

from __future__ import annotations

from fractions import Fraction

import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters, compressors, network, problems

N = 4
PROBLEM = problems.random_quadratic(N, 8)
SGD = optax.sgd(0.1)


def twice(topology, period):
    """Returns gossip in every round, and a mean in each period."""

    def update(state, gradients, round):
        x = round.mix(state.workers, topology)
        x = round.every(period, round.average, x)
        round.log(
            norm=optax.tree.norm(
                round.when(round.step > 2, round.mean, x, otherwise=lambda x: x[0])
            )
        )
        return dsgd.State(workers=x)

    def init(params, N):
        return dsgd.State(workers=dsgd.workers.replicate(params, N))

    return dsgd.Algorithm(
        "twice",
        init,
        lambda state, round: dsgd.Query(state.workers),
        update,
        lambda state: state.workers,
    )


def test_each_call_is_an_exchange_with_its_period_and_turns():
    found = dsgd.exchanges(twice(topologies.one_peer_exponential(N), 3), PROBLEM)
    assert [(each.call, each.period, each.turns, each.simulated) for each in found] == [
        ("mix on one_peer_exponential(4)", 1, 2, False),
        ("average via ring_all_reduce", 3, 1, False),
        ("mean via ring_all_reduce", 0, 1, False),
    ]


@pytest.mark.parametrize(
    ("method", "cost"),
    [
        (algorithms.local_sgd(SGD, 3), Fraction(2 * (N - 1), 3) * (1 + Fraction(10, N))),
        (algorithms.gradient_tracking(SGD, topologies.ring(N)), 2 * 11),
        (
            algorithms.ef21(SGD, compressors.sign, compressors.sign),
            2 * (N - 1) * (1 + Fraction(10, N)),
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_seconds_of_a_round_are_those_of_its_exchanges_over_their_periods(method, cost):
    latency, transfer = Fraction(1), Fraction(10)
    found = dsgd.exchanges(method, PROBLEM)
    assert (
        sum(network.cost(each.pattern, N, latency, transfer) / each.period for each in found)
        == cost
    )


def test_a_method_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"decentralized_sgd.*8 nodes.*4 workers"):
        dsgd.exchanges(algorithms.decentralized_sgd(SGD, topologies.ring(8)), PROBLEM)
    part = clusters.Cluster(clusters.constant(1.0), present=clusters.bernoulli(0.7, 1.0))
    with pytest.raises(ValueError, match="workers do not participate"):
        dsgd.exchanges(algorithms.compressed_sgd(SGD, compressors.qsgd(4)), PROBLEM, cluster=part)
