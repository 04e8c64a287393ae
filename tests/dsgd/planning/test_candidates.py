"""`dsgd.Candidate`: methods with settings, as calls and as text."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import networkx as nx
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import Candidate, clusters, compressors, problems
from dsgd.planning import candidates

N, SGD = 8, optax.sgd(0.1)
SIGN, TENTH = compressors.sign, compressors.top_k(0.1)


@pytest.mark.parametrize("candidate", algorithms.CANDIDATES, ids=str)
def test_the_expression_makes_the_same_method(candidate):
    values = {name: grid[0] for name, grid in candidate.swept.items()}
    built = candidate.build(optax.sgd(0.3), N, **values)
    text = candidate.expression("optax.sgd(0.3)", N, values)
    names = {"algorithms": algorithms, "topologies": topologies, "optax": optax}
    read = eval(text, {**names, "compressors": compressors})
    assert read.name == built.name
    for value in values.values():
        assert f"{value}" in text


def test_names_of_candidates_are_distinct_and_describe_them():
    candidates.require(algorithms.CANDIDATES)
    lazy = partial(topologies.ring, weights=topologies.lazy)
    each = Candidate("x", algorithms.choco_sgd, (lazy, compressors.whole_model(SIGN), 0.5))
    assert str(each) == "x, ring, sign"
    other = each.substitute(topology=topologies.complete, compressor=TENTH)
    assert str(other) == "x, complete, top_k(0.1)"
    # weights belong to the candidate, not to the graph
    assert "chain(8, lazy)" in each.substitute(topology=topologies.chain).build(SGD, N).name
    assert "complete(8)" in other.build(SGD, N).name


def test_a_plan_needs_distinct_candidates():
    each = Candidate("x", algorithms.minibatch_sgd)
    with pytest.raises(ValueError, match="plan: several candidates have the name x; expected"):
        candidates.require([each, each])
    with pytest.raises(ValueError, match="plan: no candidates; expected at least one"):
        candidates.require([])


def mine(optimizer, topology, share=0.5):
    return algorithms.decentralized_sgd(optimizer, topology)


def test_expressions_of_functions_of_users_name_their_module_and_keywords():
    """A graph that is not one of `topologies`, and a partial function."""

    def graph(workers):
        return topologies.from_graph(nx.path_graph(workers))

    each = Candidate("mine", partial(mine, share=0.2), (graph,))
    text = each.expression("SGD", N, {})
    assert text == f"{__name__}.mine(SGD, {__name__}.graph(8), share=0.2)"
    assert candidates.call(partial(optax.adamw, weight_decay=0.1), "0.3") == (
        "optax.adamw(0.3, weight_decay=0.1)"
    )


def test_candidates_may_have_optimizers_and_step_sizes_of_their_own():
    """They are used in place of those of the plan, in runs and in the expression."""
    mine, rates = partial(optax.sgd, momentum=0.5), (0.1, 0.7, 4.0)
    bare = Candidate("a", algorithms.minibatch_sgd)
    own = dataclasses.replace(bare, optimizer=mine, learning_rates=rates)
    plan = partial(
        dsgd.plan,
        problem=problems.random_quadratic(4, 12, noise=0.1),
        cluster=clusters.Cluster(clusters.constant(0.01)),
        key=jax.random.key(3),
        steps=8,
        seeds=2,
        bits=1e6,
        mesh=1,
    )
    (found,) = plan([own], learning_rates=(0.3,)).rows
    (same,) = plan([bare], optimizer=mine, learning_rates=rates).rows
    assert (found.values, found.metric, found.at_edge) == (same.values, same.metric, same.at_edge)
    rate = found.values["learning_rate"]
    assert rate in rates
    assert found.expression == f"algorithms.minibatch_sgd(optax.sgd({rate}, momentum=0.5))"
    assert same.expression == found.expression
