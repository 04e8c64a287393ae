"""What patterns carry: each argument `via` of each method with each pattern, and each call of a
round, is refused or costs what the pattern costs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from algorithms import memories, registry
from dsgd import clusters, communication, compressors, network, problems
from dsgd.wire import counts
from tests.dsgd.by_hand import method, run

N, D, PERIOD = 4, 18, 2
SGD, BITS = optax.sgd(0.1), 32 * D
ROWS = np.random.default_rng(0).normal(size=(3 * N, D + 1))
PROBLEM = problems.finite_sum(
    problems.Model(lambda key: jnp.zeros(D), lambda w, a: a @ w),
    optax.squared_error,
    (ROWS[:, :D], ROWS[:, D]),
    N,
    batch_size=1,
)
SERVERS = {"star", "parameter_server"}
MEANS = {*SERVERS, "multi_server", "ring_all_reduce", "ring_all_reduce_unpartitioned", "all_gather"}
PATTERNS: dict[str, dsgd.Pattern] = {
    **{name: each for name, each in vars(network).items() if isinstance(each, dsgd.Pattern)},
    "gossip": network.gossip(topologies.ring(N)),
    "custom": dsgd.Pattern("custom", network.star.seconds, network.star.volume),
}


def kinds(name: str) -> list[type[dsgd.Pattern]]:
    """Returns the kinds of patterns that a method accepts as `via`, from its annotation."""
    via = inspect.signature(registry.METHODS[name].function).parameters.get("via")
    every = (network.AllReduce, network.OneServer, network.NServers)
    return [kind for kind in every if kind.__name__ in str(getattr(via, "annotation", ""))]


METHODS = [name for name in registry.METHODS if kinds(name)]
# arguments with which all messages of a method use the pattern, and those that it has no default of
SPECIAL: dict[str, dict[str, Any]] = {
    "des_loc": {"first": 4, "second": 6},
    "fed_opt": {"period": PERIOD, "outer": SGD},
    "fed_per": {"period": PERIOD, "local": False},
    "fed_rep": {"period": PERIOD, "head_steps": 1, "local": False},
    "q_fed_avg": {"period": PERIOD, "q": 0.5},
    "ef21": {"down": None},
    "saga": {"samples": 3},
    "streaming_diloco": {"compressor": None},
    "error_feedback": {"up": memories.Up(compressors.sign, error=1.0)},
}


def build(name: str, via: Any) -> dsgd.Algorithm:
    optimizer = optax.adam(0.1) if name == "des_loc" else SGD  # with moments to send
    return registry.METHODS[name].instance(optimizer, N, **SPECIAL.get(name, {}), via=via)


def accepted_patterns(name: str) -> set[str]:
    """Returns the names of the patterns with which a method is constructed."""
    names = set()
    for label, pattern in PATTERNS.items():
        given = f"{name}: via = the {type(pattern).__name__} {pattern.name}; expected"
        try:
            build(name, pattern)
            names.add(label)
        except ValueError as error:
            if given not in str(error):
                raise
    return names


ACCEPTED = {
    network.AllReduce: MEANS,
    network.OneServer: SERVERS,
    network.NServers: {"multi_server"},
}


def test_all_methods_with_a_mean_are_here():
    assert len(METHODS) >= 43
    assert {"fed_avg", "scaffold", "diloco", "sparta", "saga", "page"} < set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_accepts_the_patterns_that_carry_what_it_sends(name):
    """A custom pattern of the right type is that of all its exchanges."""
    assert accepted_patterns(name) == set().union(*(ACCEPTED[kind] for kind in kinds(name)))
    for kind in kinds(name):
        mine = kind("mine", network.star.seconds, network.star.volume)
        found = dsgd.exchanges(build(name, mine), PROBLEM)
        assert {each.pattern for each in found} == {mine}


def test_clients_that_are_drawn_average_by_the_pattern():
    mine = network.AllReduce("mine", network.star.seconds, network.star.volume)
    drawn = clusters.bernoulli(0.7, 1.0)
    found = dsgd.exchanges(
        algorithms.fed_avg(SGD, PERIOD, inclusion=0.7, via=mine),
        PROBLEM,
        cluster=clusters.Cluster(clusters.constant(1.0), present=drawn),
    )
    assert [each.pattern for each in found] == [mine]


def test_a_pattern_that_a_compressor_replaces_is_refused():
    """Messages with a compressor are gathered by all workers."""
    for via in (None, network.all_gather):
        (found,) = dsgd.exchanges(algorithms.streaming_diloco(SGD, 1, 4, via=via), PROBLEM)
        assert found.pattern == network.all_gather
    with pytest.raises(ValueError, match="via = the OneServer star with the compressor"):
        algorithms.streaming_diloco(SGD, 1, 4, via=network.star)


def send(round: communication.Communicator, g: Any, pattern: Any) -> None:
    zeros = counts.from_bits(0, N)
    unchecked(communication.Communicator.sent)(round, zeros, zeros, pattern)


def event(round: communication.Communicator, g: Any, pattern: Any) -> None:
    unchecked(communication.Communicator.event)(round, g, jnp.array([1]), None, pattern)


def to_servers(round: communication.Communicator, g: Any, via: Any) -> None:
    sign = compressors.sign
    shards = communication.shards(g, N, sign)
    unchecked(communication.Communicator.to_servers)(round, sign, shards, via=via)


def calling(name: str, *before: Any) -> Callable:
    """Returns the call of the communicator's function with a tree and a pattern."""
    function = unchecked(getattr(communication.Communicator, name))
    return lambda round, g, via: function(round, *before, g, via=via)


# Under pytest, annotations would refuse patterns of other types; users have only the checks inside.
unchecked = inspect.unwrap
ASYNCHRONOUS = {"asynchronous_server", "asynchronous_gossip"}
CALLS: dict[str, tuple[Callable, set[str]]] = {
    **{name: (calling(name), MEANS) for name in ("mean", "sum", "weighted_mean", "average")},
    "aggregate": (
        lambda round, g, via: unchecked(communication.Communicator.aggregate)(round, g, g, via=via),
        MEANS,
    ),
    "mean_of_codes": (calling("mean_of_codes", compressors.random_places(0.5)), MEANS),
    "to_server": (calling("to_server", compressors.sign), SERVERS),
    "to_servers": (to_servers, {"multi_server"}),
    "event": (event, ASYNCHRONOUS),
    "sent": (send, set(PATTERNS) - {"local", "custom"}),
}


def round_of(call: Callable[[communication.Communicator, Any], Any]) -> None:
    """Traces a round with this call."""

    def update(state, gradients, round):
        call(round, gradients)
        return dsgd.State(state.server)

    dsgd.exchanges(method(update=update), PROBLEM)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_accepts_the_patterns_that_carry_what_it_sends(name):
    """All patterns that it refuses, and in one round all that it accepts."""
    call, expected = CALLS[name]
    for label in set(PATTERNS) - expected:
        said = (
            rf"mine: round.{name}.*: (via|pattern) = the \w+ {re.escape(PATTERNS[label].name)}; ex"
        )
        with pytest.raises(ValueError, match=said):
            round_of(lambda round, g, label=label: call(round, g, PATTERNS[label]))
    round_of(lambda round, g: [call(round, g, PATTERNS[label]) for label in sorted(expected)])


@pytest.mark.parametrize("volume", [0.0, 1 / N, 0.99, np.nan])
def test_a_mean_needs_a_vector_of_each_worker(volume):
    def average(volume):
        pattern = network.AllReduce("free", network.star.seconds, lambda N: volume)
        round_of(lambda round, g: round.mean(g, pattern))

    average(1.0)
    with pytest.raises(ValueError, match=r"mine: round.mean: volume of free returns .*at least 1"):
        average(volume)


def test_averages_cost_what_their_pattern_costs():
    """The bits that each worker sends and receives in a round, from the patterns' definitions."""
    vectors = dict.fromkeys(MEANS - SERVERS, 2 * (N - 1) / N) | dict.fromkeys(SERVERS, 1)
    vectors["all_gather"] = N - 1
    names = sorted(MEANS)

    def update(state, gradients, round):
        for name in names:
            round.mean(gradients, PATTERNS[name])
        return dsgd.State(state.server)

    result = run(method(update=update), PROBLEM, steps=1)
    assert result.history["bits"][-1] == 2 * sum(round(vectors[name] * BITS) for name in names)
