"""A user's method or problem that returns invalid results: reported immediately, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import dsgd
import topologies
from dsgd import compressors, problems
from dsgd.engine.protocol import Method
from tests.dsgd.by_hand import method
from theory_checks.machinery.rounds import place_on_one_device

N, D = 4, 3


@pytest.fixture(scope="module")
def problem() -> dsgd.Problem:
    return problems.random_quadratic(N, D, noise=0.3, seed=0)


def updating(change: Callable) -> dsgd.Algorithm:
    """Returns the method whose update returns `change(state)`."""
    return method(
        update=lambda state, gradients, round: change(method().update(state, gradients, round))
    )


def calling(call: Callable) -> dsgd.Algorithm:
    """Returns the method whose update also calls `call(round, gradients)`."""

    def update(state, gradients, round):
        call(round, gradients)
        return method().update(state, gradients, round)

    return method(update=update)


def two_patterns(round: dsgd.Communicator, gradients: Any) -> None:
    with round.joint():
        round.mean(gradients)
        round.mix(gradients, RING)


RING = topologies.ring(N)
WRONG = {
    "init gives a tuple": (
        method(init=lambda params, N: (0, params)),
        "mine: init returns a tuple; expected a dsgd.State",
    ),
    "init leaves out the axis": (
        method(init=lambda params, N: dsgd.State(params, {"y": params})),
        r"mine: init returns State.workers['y'] of shape (3,); expected a leading axis of the 4 "
        r"workers",
    ),
    "query returns params": (
        method(query=lambda state, round: state.server),
        "mine: query returns float32[3]; expected a dsgd.Query",
    ),
    "query is of other models than the workers'": (
        method(query=lambda state, round: dsgd.Query(jnp.zeros((3, 3)))),
        "mine: query returns params as float32[3, 3]; expected float32[4, 3]",
    ),
    "query asks one worker": (
        method(query=lambda state, round: dsgd.Query(state.server, workers=jnp.int32(1))),
        "query returns workers = int32[]; expected None, or int32 [k]",
    ),
    "query asks for exact gradients now and then": (
        method(query=lambda state, round: dsgd.Query(state.server, exact=round.step > 3)),
        "query returns exact = a traced bool[]; expected True or False",
    ),
    "query sends": (
        method(query=lambda state, round: dsgd.Query(round.mean(state.server))),
        "mine: query calls round.mean; expected this call in update",
    ),
    "update returns no state": (
        updating(lambda state: state.server),
        "mine: update returns float32[3]; expected a dsgd.State",
    ),
    "update changes a shape": (
        updating(lambda state: state._replace(server=state.server[:2])),
        "mine: update returns State.server as float32[2]; expected float32[3]",
    ),
    "update adds a leaf": (
        updating(lambda state: state._replace(workers={"y": jnp.zeros((N, 4))})),
        r"mine: update returns State.workers with leaves ['y']; expected the tree with",
    ),
    "a metric is a vector": (
        calling(lambda round, g: round.log(size=jnp.zeros(3))),
        "mine: round.log gets 'size' as float32[3]; expected a scalar, or [4]",
    ),
    "computed of a block": (
        calling(lambda round, g: round.computed(jnp.zeros(2))),
        "mine: round.computed: seconds = float32[2]; expected an array of shape [4]",
    ),
    "computed in a branch": (
        calling(
            lambda round, g: round.when(
                round.step > 1, lambda g: (round.computed(jnp.zeros(N)), g)[1], g
            )
        ),
        "mine: round.computed is called inside round.when",
    ),
    "a refusal of many": (
        calling(lambda round, g: round.refuse_if(jnp.zeros(N, bool), "wrong")),
        "mine: round.refuse_if gets a condition as bool[4]; expected a scalar",
    ),
    "a topology for others": (
        calling(lambda round, g: round.mix(g, topologies.ring(5))),
        "mine on ring(5): the topology has 5 nodes but the problem has 4 workers",
    ),
    # Under pytest, annotations would refuse these; users have only the checks inside.
    "no topology": (
        calling(lambda round, g: inspect.unwrap(dsgd.Communicator.mix)(round, g, "ring")),
        "mine: round.mix: topology = 'ring'; expected a dsgd.Topology",
    ),
    "no pattern": (
        calling(lambda round, g: inspect.unwrap(dsgd.Communicator.mean)(round, g, "ring")),
        "mine: round.mean: via = 'ring'; expected a pattern that carries a mean over all workers",
    ),
    "an answer without a question": (
        calling(lambda round, g: round.from_servers(compressors.sign, g)),
        "mine: round.from_servers is called without a preceding round.to_servers",
    ),
    "an answer of another server": (
        calling(
            lambda round, g: (
                round.to_servers(
                    compressors.sign, dsgd.communication.shards(g, N, compressors.sign)
                ),
                round.from_server(g, compressors.sign),
            )
        ),
        "mine: round.from_server is called without a preceding round.to_server to reply to",
    ),
    "a server among the workers": (
        calling(
            lambda round, g: inspect.unwrap(dsgd.Communicator.to_server)(
                round, compressors.sign, g, via=dsgd.network.ring_all_reduce
            )
        ),
        "mine: round.to_server: via = the AllReduce ring_all_reduce; expected a pattern with one",
    ),
    "a branch with another result": (
        calling(lambda round, g: round.when(round.step > 1, round.mean, g)),
        "mine: round.when: without messages as float32[4, 3]; expected float32[3]",
    ),
    "a condition for each worker": (
        calling(lambda round, g: round.when(jnp.zeros(N, bool), round.average, g)),
        "mine: round.when gets a condition as bool[4]; expected a scalar",
    ),
    "two patterns in one message": (
        calling(two_patterns),
        "mine: round.joint contains exchanges of different patterns, gossip(ring(4)) and",
    ),
    "gradient": (
        {
            "loss": dsgd.Loss(
                lambda params, batch: params.sum(), lambda params, batch: jnp.zeros(())
            )
        },
        "gradient returns a tree as float32[]; expected float32[3]",
    ),
    "loss": (
        {"loss": lambda params, batch: params},
        "loss returns float32[3]; expected one floating-point scalar",
    ),
    "slope": (
        {"evaluate": lambda params, data, shared: ({"loss": jnp.zeros(())}, jnp.zeros((3, 1)))},
        "evaluate returns a gradient as float32[3, 1]; expected float32[3]",
    ),
    "scalars": (
        {"evaluate": lambda params, data, shared: ({"loss": params}, params)},
        "evaluate returns 'loss' as float32[3]; expected a scalar",
    ),
    "scalars alone": (
        {"evaluate": lambda params, data, shared: {"loss": jnp.zeros(())}},
        "evaluate returns a dict; expected a pair (scalars by name, gradient or None)",
    ),
    "model gives the state": (
        method(model=lambda state: state),
        "mine: model returns params with leaves .server, .step",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_invalid_results_of_members_are_refused_by_name(mistake, problem, key, mesh):
    """Members of the method, or of the problem."""
    wrong, message = WRONG[mistake]
    given = (method(), problem._replace(**wrong)) if isinstance(wrong, dict) else (wrong, problem)
    with pytest.raises(ValueError) as caught:
        dsgd.run(*given, steps=2, key=key, mesh=mesh)
    assert message in str(caught.value)
    assert ("mine" if given[1] is problem else problem.name) in str(caught.value)


@pytest.mark.parametrize("seeds", [None, 2])
def test_the_engine_counts_rounds(seeds, problem, key, mesh):
    """Also if a method changes the count, and leaves that are not trained."""
    forgetful = updating(lambda state: state._replace(step=state.step - 7, fixed=("mine",)))
    result = dsgd.run(forgetful, problem, steps=3, key=key, seeds=seeds, mesh=mesh)
    np.testing.assert_array_equal(result.state.step, 3)
    assert result.state.fixed in ((), None)


def test_personal_models_have_a_row_for_each_worker(problem):
    state = dsgd.State(jnp.zeros(D), jnp.ones((N, D)))

    def personal(**member):
        return place_on_one_device(Method(method(**member), problem, N).personal)(state)

    with pytest.raises(ValueError, match=r"^mine: personal returns models"):
        personal(personal=lambda state: state.server)
    rows = personal(personal=lambda state: state.workers)
    np.testing.assert_array_equal(rows, state.workers)
    assert personal() is None
