"""Kimad on a cluster compared with its algorithm in numpy: all that it carries, what it sends, how long that takes, and what it refuses."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import kimad, kimad_sgd
from dsgd import Algorithm, Loss, Problem, Result, clusters, compressors, problems, run, sweep
from tests.algorithms.kimad.networks import Monitor, Sinusoids, Star, budgets, exponential_average, last
from theory_checks.machinery.trajectories import LAYERS, D, rows, tree
from theory_checks.recursions import kimad as papers
from theory_checks.recursions.shared import plain

N, GAMMA, ROUNDS, WORD = 4, 0.2, 12, 64
UP = Sinusoids((1.0, 0.5, 2.0, 0.8), 900.0, 0.9, 250.0)
DOWN = Sinusoids((1.0, 3.0, 0.7, 1.5), 4000.0, 0.5, 600.0)
COMPUTING = np.array([0.25, 0.5, 0.125, 0.25])
WEIGHTS = np.array([0.4, 0.3, 0.2, 0.1])
RATIOS = (0.1, 0.3, 0.6, 1.0)
KEY = jax.random.key(0)


@cache
def problem() -> Problem:
    """Four quadratics that differ, with exact gradients, in two layers."""
    made = problems.random_quadratic(N, D, heterogeneity=2.0, seed=1)
    gradient = made.gradient
    assert gradient is not None

    def whole(params):
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])

    return made._replace(
        init=lambda key: tree(made.init(key) + 1.0),
        loss=Loss(lambda params, batch: made.loss(whole(params), batch), lambda params, batch: tree(gradient(whole(params), batch))),
        evaluate=None,
    )


class Setup(NamedTuple):
    """One way to call it, and the same in numpy."""

    options: dict[str, Any]
    monitor: Monitor
    rule: papers.Rule = papers.one_for_all
    down: tuple[float, ...] = RATIOS
    round_time: float = 1.5
    weights: np.ndarray = np.full(N, 1 / N)
    period: int = 1
    warm_up: int = 0
    latency: float = 0.0


SETUPS = {
    "Kimad, weights, the last message's rate": Setup({"monitor": kimad.last, "weights": WEIGHTS}, last, weights=WEIGHTS, latency=0.05),
    "Kimad+, an average of rates, another set down, two local steps, first as it is": Setup(
        {
            "monitor": kimad.exponential_average(0.3),
            "rule": kimad.allocate,
            "down": [compressors.top_k(0.3), compressors.identity],
            "update": kimad.local_steps(optax.sgd(0.1), 2),
            "warm_up": 2,
        },
        exponential_average(0.3),
        papers.allocate,
        down=(0.3, 1.0),
        round_time=2.5,
        period=2,
        warm_up=2,
    ),
}


@cache
def made(name: str) -> tuple[Algorithm, clusters.Cluster]:
    """One object for equal names, so that it is traced once."""
    setup = SETUPS[name]
    method = kimad_sgd(optax.sgd(GAMMA), kimad.top_k(RATIOS), setup.round_time, **setup.options)
    return method, clusters.Cluster(clusters.constant(COMPUTING), UP.quantity, DOWN.quantity, latency=setup.latency)


def on_cluster(name: str, mesh: int, rounds: int) -> Result:
    method, cluster = made(name)
    with jax.enable_x64(True):
        return run(method, problem(), steps=rounds * SETUPS[name].period, key=KEY, cluster=cluster, mesh=mesh)


class InNumpy(NamedTuple):
    rounds: list[dict[str, np.ndarray]]
    star: Star
    estimates: list[tuple[np.ndarray, np.ndarray]]


@cache
def in_numpy(name: str) -> InNumpy:
    setup, estimates = SETUPS[name], []
    A, b = (np.asarray(leaf, float) for leaf in problem().data[:2])
    star = Star(UP, DOWN, COMPUTING, setup.latency, setup.period)

    def updates(k, x_hat):
        y = np.tile(x_hat, (N, 1))
        if setup.period == 1:
            return np.einsum("nij,nj->ni", A, y) - b
        for _ in range(setup.period):
            y = y - 0.1 * (np.einsum("nij,nj->ni", A, y) - b)
        return x_hat - y

    up, down = (papers.selecting(LAYERS, papers.top_k(ratios, WORD), setup.rule, WORD, setup.warm_up) for ratios in (RATIOS, setup.down))
    bits = budgets(star, setup.monitor, setup.round_time, 1.0, "computation" in setup.options, estimates)
    rounds = papers.kimad(np.ones(D), updates, plain(GAMMA), up, down, bits, setup.weights)
    return InNumpy(list(islice(rounds, ROUNDS + 1))[:ROUNDS], star, estimates)


def carried(result: Result) -> dict[str, np.ndarray]:
    server = result.state.server
    return {
        "x": rows(server.model.params, 0),
        "x_hat": rows(server.estimate, 0),
        "sum of w u_hat": rows(server.updates, 0),
        "u_hat": rows(result.state.workers.estimate, 1),
    }


@pytest.mark.parametrize(("name", "mesh"), [*zip(SETUPS, (2, 1), strict=True)])
def test_every_round_is_the_papers(name, mesh):
    expected, period = in_numpy(name), SETUPS[name].period
    result = on_cluster(name, mesh, ROUNDS)
    for symbol, values in carried(result).items():
        np.testing.assert_allclose(values, expected.rounds[-1][symbol], rtol=0, atol=1e-9, err_msg=symbol)
    history = {key: values[period::period] for key, values in result.history.items()}  # of rounds that send, without the start
    for what in ("message_up", "message_down", "error_up", "error_down"):
        papers_own = np.array([one[what] for one in expected.rounds])
        np.testing.assert_allclose(history[what], papers_own, rtol=1e-5 if "error" in what else 0, atol=1e-9, err_msg=what)
    for direction, i in (("up", 0), ("down", 1)):
        estimates = np.array([one[i] for one in expected.estimates[:ROUNDS]])
        shown = np.nan_to_num(history[f"estimated_{direction}"], nan=np.inf)
        np.testing.assert_allclose(shown, estimates, rtol=1e-4, err_msg=direction)
    np.testing.assert_allclose(history["clock"], expected.star.ends[1 : ROUNDS + 1], rtol=1e-5)
    each_up = np.array([one["message_up"] for one in expected.rounds])
    each_down = np.array([one["message_down"] for one in expected.rounds])
    np.testing.assert_allclose(np.diff(result.history["bits"])[period - 1 :: period], each_up.mean(axis=1) + each_down)


@pytest.mark.parametrize("name", SETUPS)
def test_compressors_follow_the_bandwidth(name):
    """The comparison says something: choices change from round to round, and differ among workers and layers."""
    up, down = (np.array([one[f"choices_{direction}"] for one in in_numpy(name).rounds]) for direction in ("up", "down"))
    assert len(np.unique(up[SETUPS[name].warm_up :])) >= 3
    assert len(np.unique(down[SETUPS[name].warm_up :])) >= 2
    assert any(len(np.unique(of_round, axis=0)) > 1 for of_round in up)
    if SETUPS[name].rule is papers.allocate:
        assert any(len(set(of_worker)) > 1 for of_round in up for of_worker in of_round), "never more than one for all layers"


# --- How long rounds take.


def test_with_an_oracle_no_uplink_takes_longer_than_its_share():
    """Where workers begin together, and take several steps: their links to the server are equal on the way back."""
    period, times, congestions = 2, np.array([1.5, 4.0]), np.array([0.5, 2.0])
    fast, back = Sinusoids(UP.factors, 6 * UP.eta, UP.theta, 6 * UP.delta), Sinusoids((1.0,) * N, DOWN.eta, DOWN.theta, DOWN.delta)
    cluster = clusters.Cluster(clusters.constant(COMPUTING / period), fast.quantity, back.quantity)

    def factory(round_time, congestion):
        options = {"monitor": kimad.oracle, "computation": COMPUTING, "update": kimad.local_steps(optax.sgd(0.1), period)}
        return kimad_sgd(optax.sgd(GAMMA), kimad.top_k(np.arange(0.05, 1.01, 0.05)), round_time, congestion=congestion, **options)

    found = sweep(factory, problem(), steps=20 * period, key=KEY, cluster=cluster, mesh=1, round_time=times, congestion=congestions).history
    clock, sent = found["clock"][:, :, 0, ::period], found["message_up"][:, :, 0, period::period]
    assert not found["missing"][..., 1:].any()
    assert (np.diff(clock, axis=-1).max(axis=-1) <= times[:, None] * (1 + 1e-5)).all()
    shares = []
    for i, j, k, n in np.ndindex(sent.shape):
        took = fast.seconds(n, clock[i, j, k] + COMPUTING[n], sent[i, j, k, n])
        shares.append(took * (1 + congestions[j]) / (times[i] - COMPUTING[n]))
    assert 0.99 < max(shares) <= 1 + 1e-4


def test_a_budget_that_is_too_small():
    """It has half a second, 50 bits; the smallest message has 32 of an element, and its place in a byte or two: once, and of 15 twice."""

    def small(too_small: Literal["wait", "error"]) -> Result:
        method = kimad_sgd(optax.sgd(GAMMA), kimad.top_k(RATIOS), 2.0, computation=1.0, too_small=too_small)
        return run(method, problem(), steps=4, key=KEY, cluster=clusters.Cluster(clusters.constant(1.0), clusters.constant(100.5)), mesh=1)

    needed = (32 + 16) + 2 * 32 + 8 + 8
    history = small("wait").history
    np.testing.assert_array_equal(history["message_up"][2:], needed)
    np.testing.assert_array_equal(history["missing"][1:], [0, *[needed - 50] * 3])  # of the first, nobody knows
    np.testing.assert_allclose(np.diff(history["clock"])[1:], 1 + 2 * needed / 100.5, rtol=1e-5)
    with pytest.raises(ValueError, match=f"a message has {needed - 50} bits more than round_time leaves for it; pass more time"):
        small("error")
