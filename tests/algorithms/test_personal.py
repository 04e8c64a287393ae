"""Methods with personal models on sampled clients of a problem with weights, positive losses and a
model of two leaves; and on networks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import clusters, problems
from tests.methods import apfl, ditto, fed_per, fed_rep, given, q_fed_avg

N, M, PERIODS, H = 5, 2, 4, fed_per.H  # two of five clients in each of four periods
BODY, HEAD, GAMMA, LEAST = 3, 2, 0.07, 4.0
RANDOM = np.random.default_rng(5)
ROOTS = RANDOM.normal(size=(N, BODY + HEAD, BODY + HEAD))
A = ROOTS @ ROOTS.swapaxes(1, 2) / 4
TARGETS, START = RANDOM.normal(size=(N, BODY + HEAD)), RANDOM.normal(size=BODY + HEAD)
SHARES = np.array([0.4, 1.9, 0.7, 1.3, 0.7])
SGD = optax.sgd(GAMMA)
LOCAL = {"body": False, "head": True}
IS_HEAD = np.arange(BODY + HEAD) >= BODY


def tree(x: Any) -> dict[str, Any]:
    return {"body": x[:BODY], "head": x[BODY:]}


def flat(rows: Any) -> np.ndarray:
    return np.concatenate([rows["body"], rows["head"]], axis=-1)


def loss(params: Any, batch: Any) -> jax.Array:
    (A, b), x = batch, jnp.concatenate([params["body"], params["head"]])
    return x @ (A @ x / 2 - b) + LEAST


def problem() -> dsgd.Problem:
    b = np.einsum("nij,nj->ni", A, TARGETS)
    return dsgd.Problem(
        lambda key: tree(jnp.asarray(START)), loss, (A, b), lambda key, data: data, weights=SHARES
    )


def with_participants(method: dsgd.Algorithm) -> dsgd.Algorithm:
    """Returns the method that logs who participates."""

    def update(state, answer, round):
        round.log(who=jnp.asarray(round.present, float))
        return method.update(state, answer, round)

    return method._replace(update=update)


def personal_models(method: dsgd.Algorithm, state: dsgd.State) -> Any:
    return (method.personal or method.model)(dsgd.all_rows(state))


CASES: dict[str, tuple[dsgd.Algorithm, Callable[[given.Given], given.Rounds]]] = {
    "fed_per": (
        algorithms.fed_per(SGD, H, LOCAL),
        lambda given: fed_per.local_leaves(given, IS_HEAD),
    ),
    "fed_rep": (
        algorithms.fed_rep(SGD, H, fed_rep.TAU, LOCAL),
        lambda given: fed_per.local_leaves(
            given,
            IS_HEAD,
            lambda given, t, steps: (
                np.where(IS_HEAD, steps < fed_rep.TAU, steps >= fed_rep.TAU) & given.present(t)
            ),
        ),
    ),
    "ditto": (algorithms.ditto(SGD, H, ditto.LAMBDA), ditto.recursion),
    "apfl": (algorithms.apfl(SGD, H, apfl.ALPHA, apfl.STEP), apfl.recursion),
    "q_fed_avg": (
        algorithms.q_fed_avg(SGD, H, 1.7),
        lambda given: q_fed_avg.recursion(given, 1.7, LEAST),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sampled_clients_have_the_weights_of_the_problem(name):
    method, recursion = CASES[name]
    cluster = clusters.Cluster(
        clusters.constant(1.0), present=clusters.sampled(M, of=N), participation_period=H
    )
    with jax.enable_x64(True):
        result = dsgd.run(
            with_participants(method),
            problem(),
            steps=PERIODS * H,
            key=jax.random.key(1),
            cluster=cluster,
            mesh=1,
        )
        who = np.asarray(result.history["who"][1:]) > 0
        found = flat(jax.tree.map(np.asarray, personal_models(method, result.state)))
    np.testing.assert_array_equal(who.sum(axis=1), M)
    assert who.any(axis=0).sum() > M
    b = np.asarray(problem().data[1])
    known = given.quadratic_given(
        A, b, START, GAMMA, PERIODS * H, (), participates=who, weights=SHARES
    )
    *_, last = recursion(known)
    expected = last["personal"] if "personal" in last else last["params"]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    size = HEAD if name in ("fed_per", "fed_rep") else 0
    sent = PERIODS * M * (64 * (BODY + HEAD - size) + 64 * (name == "q_fed_avg"))
    assert result.history["bits"][-1] * N == 2 * sent


def test_a_larger_power_makes_losses_more_equal():
    """Of two clients with different minima and curvatures; with power 0 the mean is least."""
    of, losses = problem(), {}
    for q in (0.0, 2.5):
        with jax.enable_x64(True):
            method = algorithms.q_fed_avg(optax.sgd(0.05), 2, q)
            x = dsgd.run(method, of, steps=1500, key=0, mesh=1, record_every=1500).params
            losses[q] = np.asarray(jax.vmap(loss, (None, 0))(x, of.data))
    assert np.std(losses[2.5]) < 0.9 * np.std(losses[0.0])
    assert losses[2.5] @ SHARES > losses[0.0] @ SHARES


def test_personal_models_of_ditto_solve_the_proximal_problem():
    """If the common model is at rest: (A_n + lambda) v_n = A_n z_n + lambda x."""
    penalty = 0.6
    with jax.enable_x64(True):
        method = algorithms.ditto(SGD, H, penalty)
        state = dsgd.run(method, problem(), steps=3000, key=0, mesh=1, record_every=3000).state
        x, v = flat(state.server.params), flat(personal_models(method, state))
    b = np.einsum("nij,nj->ni", A, TARGETS)
    solved = np.linalg.solve(A + penalty * np.eye(len(x)), (b + penalty * x)[..., None])[..., 0]
    np.testing.assert_allclose(v, solved, rtol=1e-7, atol=1e-7)


def test_the_last_layer_of_a_network_stays_with_its_clients():
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    y = np.arange(24) % 2
    of = problems.neural_network(problems.MLP(classes=2), (x, y), 4, batch_size=2)
    params = of.parameters.init(jax.random.key(0))

    def last(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, leaf: "Dense_1" in str(path), params)

    method = algorithms.fed_per(SGD, 2, last)
    assert {True, False} == {*jax.tree.leaves(last(params))}
    result = dsgd.run(method, of, steps=4, key=0, mesh=1)
    rows = personal_models(method, result.state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
        equal = bool((leaf == leaf[:1]).all())
        assert equal != ("Dense_1" in str(path)), path
    shared = sum(
        leaf.size
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if "Dense_1" not in str(path)
    )
    assert result.history["bits"][-1] == 2 * 2 * 32 * shared
    with pytest.raises(ValueError, match=r"fed_per: local.*expected a prefix of the parameters"):
        dsgd.run(algorithms.fed_per(SGD, 2, {"head": True}), of, steps=1, key=0, mesh=1)
