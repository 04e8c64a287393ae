"""A user's own method, or problem, that returns something else than the protocol asks for: told at once, by name."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import problems
from dsgd.network import told
from tests.dsgd.by_hand import method

N, D = 4, 3


@pytest.fixture(scope="module")
def problem() -> dsgd.Problem:
    return problems.random_quadratic(N, D, noise=0.3, seed=0)


def updating(change) -> dsgd.Algorithm:
    """The method whose update gives `change(state, info)`."""

    def update(key, state, gradients, round):
        return change(*method().update(key, state, gradients, round))

    return method(update=update)


def with_info(**fields: Any) -> dsgd.Algorithm:
    return updating(lambda state, info: (state, info._replace(**fields)))


NOTHING = jnp.zeros((N, 4), jnp.uint32)
START = jnp.int32(0)
WRONG = {
    "init gives a tuple": (method(init=lambda params, N: (START, params)), "mine: init gives a tuple; need a dsgd.State"),
    "init gives a float step": (
        method(init=lambda params, N: dsgd.State(jnp.zeros(()), params)),
        "init gives State.step as float32[]; need an int32",
    ),
    "init leaves out the axis": (
        method(init=lambda params, N: dsgd.State(START, params, {"y": params})),
        r"mine: init gives State.workers['y'] of shape (3,); need the leading axis of the 4 workers",
    ),
    "query gives params": (method(query=lambda state, round: state.server), "mine: query gives float32[3]; need a dsgd.Query"),
    "query is of one axis too few": (
        method(query=lambda state, round: dsgd.Query(state.server, axis=0)),
        "mine: query (axis=0) gives params as float32[3]; need float32[4, 3]",
    ),
    "query has another axis": (method(query=lambda state, round: dsgd.Query(state.server, axis=1)), "query gives axis = 1; need None"),
    "query asks one worker": (
        method(query=lambda state, round: dsgd.Query(state.server, workers=jnp.int32(1))),
        "query gives workers as int32[]; need None, or int32 [k]",
    ),
    "update gives the state": (updating(lambda state, info: state), "mine: update gives a State; need a pair (State, Info)"),
    "update gives three": (updating(lambda state, info: (state, info, 1)), "mine: update gives a tuple; need a pair (State, Info)"),
    "update gives no state": (updating(lambda state, info: (state.server, info)), "mine: update gives float32[3]; need a dsgd.State"),
    "update changes a shape": (
        updating(lambda state, info: (state._replace(server=state.server[:2]), info)),
        "mine: update gives State.server as float32[2]; need float32[3]",
    ),
    "update changes a type": (
        updating(lambda state, info: (state._replace(server=state.server.astype(jnp.bfloat16)), info)),
        "mine: update gives State.server as bfloat16[3]; need float32[3]",
    ),
    "update adds a leaf": (
        updating(lambda state, info: (state._replace(workers={"y": NOTHING}), info)),
        r"mine: update gives State.workers with leaves ['y']; need the tree with leaves (none)",
    ),
    "update gives no info": (updating(lambda state, info: (state, {})), "mine: update gives a dict beside the state; need a dsgd.Info"),
    "bits are ints": (with_info(bits_up=0, bits_down=0), "Info.bits_up as 0; need uint32 [4, 4] of dsgd.counts: dsgd.network.told"),
    "bits are floats": (with_info(bits_down=jnp.zeros((N, 4))), "Info.bits_down as float32[4, 4]; need uint32 [4, 4]"),
    "bits are sums": (with_info(bits_up=jnp.zeros(N, jnp.uint32)), "Info.bits_up as uint32[4]; need uint32 [4, 4]"),
    "a metric is a vector": (
        with_info(metrics={"size": jnp.zeros(3)}),
        "update gives the metric 'size' as float32[3]; need a scalar, or [4]",
    ),
    "a metric is text": (with_info(metrics={"size": "large"}), "update gives the metric 'size' as 'large'; need a scalar"),
    "metrics are a list": (with_info(metrics=[1.0]), "Info.metrics as a list; need scalars, or [4], by name"),
    "compute is of a block": (with_info(compute=jnp.zeros(2)), "Info.compute as float32[2]; need seconds [4], or None"),
    "elapsed is one each": (with_info(elapsed=jnp.zeros(N)), "Info.elapsed as float32[4]; need a scalar"),
    "model gives the state": (
        method(model=lambda state: state),
        "mine: model gives params with leaves .step, .server; need the tree with leaves itself",
    ),
    "local gives one": (method(local=lambda state: state.server), "mine: local gives models as float32[3]; need float32[4, 3]"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_a_member_returns_is_refused_by_name(mistake, problem, key, mesh):
    wrong, message = WRONG[mistake]
    whole = mistake.startswith(("model", "local"))  # of which a single round does not ask
    with pytest.raises(ValueError) as caught:
        dsgd.run(wrong, problem, steps=2, key=key, mesh=mesh) if whole else dsgd.compile_round(wrong, problem, mesh)
    assert message in str(caught.value)


def test_runs_and_sweeps_refuse_as_single_rounds_do(problem, key, mesh):
    wrong, message = WRONG["update gives the state"]
    for refuse in (
        lambda: dsgd.sweep(lambda x: wrong, problem, steps=2, key=key, mesh=mesh, x=[1.0]),
        lambda: dsgd.run(wrong, problem, steps=2, key=key, mesh=mesh),
    ):
        with pytest.raises(ValueError) as caught:
            refuse()
        assert message in str(caught.value)


@pytest.mark.parametrize("seeds", [None, 2])
def test_rounds_that_are_not_counted_are_told_after_the_first(seeds, problem, key, mesh):
    forgetful = updating(lambda state, info: (state._replace(step=state.step - 1), info))
    with pytest.raises(ValueError, match=r"mine: State.step is 0 after 1 rounds; need state.step \+ 1"):
        dsgd.run(forgetful, problem, steps=10**9, key=key, seeds=seeds, mesh=mesh)


def test_an_error_inside_a_member_says_in_which(problem, key, mesh):
    def update(key, state, gradients, round):
        return state.server["weights"], told.nothing(round.workers)

    with pytest.raises(TypeError) as caught:
        dsgd.run(method(update=update), problem, steps=1, key=key, mesh=mesh)
    assert caught.value.__notes__[-1].startswith("dsgd: update of mine raised TypeError: ")


PROBLEMS = {
    "gradient": (
        {"loss": dsgd.Loss(lambda params, batch: params.sum(), lambda params, batch: jnp.zeros(()))},
        "gradient gives a tree as float32[]; need float32[3]",
    ),
    "loss": ({"loss": lambda params, batch: params}, "loss gives float32[3]; need one floating-point scalar"),
    "slope": (
        {"evaluate": lambda params, data, shared: ({"loss": jnp.zeros(())}, jnp.zeros((3, 1)))},
        "evaluate gives a slope as float32[3, 1]; need float32[3]",
    ),
    "scalars": (
        {"evaluate": lambda params, data, shared: ({"loss": params}, params)},
        "evaluate gives 'loss' as float32[3]; need a scalar",
    ),
    "scalars alone": (
        {"evaluate": lambda params, data, shared: {"loss": jnp.zeros(())}},
        "evaluate gives a dict; need a pair (scalars by name, gradient or None)",
    ),
}


@pytest.mark.parametrize("part", PROBLEMS)
def test_what_a_problems_functions_return_is_refused_by_name(part, problem, key, mesh):
    replaced, message = PROBLEMS[part]
    with pytest.raises(ValueError) as caught:
        dsgd.run(method(), problem._replace(**replaced), steps=1, key=key, mesh=mesh)
    assert message in str(caught.value)
    assert problem.name in str(caught.value)


def test_the_right_method_is_minibatch_sgd(problem, key, mesh):
    """None of what is refused above was wrong with the method itself."""
    mine, known = (dsgd.run(m, problem, steps=5, key=key, mesh=mesh) for m in (method(), algorithms.minibatch_sgd(optax.sgd(0.1))))
    np.testing.assert_allclose(mine.params, known.params, rtol=1e-6)
    np.testing.assert_array_equal(mine.history["bits"], known.history["bits"])
