"""Kimad on a cluster. `theory_checks` compares its rounds with the recursion; here is how long they
take, and what they may not do.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import kimad, kimad_sgd
from dsgd import Loss, Problem, Result, clusters, problems, run, sweep
from tests.algorithms.kimad.networks import Sinusoids
from theory_checks.machinery.trajectories import D, tree

N, GAMMA = 4, 0.2
UP = Sinusoids((1.0, 0.5, 2.0, 0.8), 900.0, 0.9, 250.0)
DOWN = Sinusoids((1.0, 3.0, 0.7, 1.5), 4000.0, 0.5, 600.0)
COMPUTING = np.array([0.25, 0.5, 0.125, 0.25])
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
        loss=Loss(
            lambda params, batch: made.loss(whole(params), batch),
            lambda params, batch: tree(gradient(whole(params), batch)),
        ),
        evaluate=None,
    )


def test_local_steps_are_sent_as_one_update():
    """y <- y - alpha g from the estimate on, by each worker, and x_hat - y^H; each period begins at
    the new estimate.
    """
    update, rng = kimad.local_steps(optax.sgd(0.5), 2), np.random.default_rng(0)
    memory = update.start(jnp.zeros(D), N)
    for _ in range(2):
        x_hat, gradients = (
            rng.normal(size=D).astype(np.float32),
            rng.normal(size=(2, N, D)).astype(np.float32),
        )
        memory = update.begin(memory, jnp.asarray(x_hat))
        for g in gradients:
            asked = update.query(memory, jnp.asarray(x_hat)).params
            memory, sent = update.step(memory, jnp.asarray(x_hat), jnp.asarray(g))
        np.testing.assert_allclose(asked, x_hat - 0.5 * gradients[0], rtol=1e-5)
        np.testing.assert_allclose(sent, 0.5 * gradients.sum(axis=0), rtol=1e-4, atol=1e-5)
    assert (update.period, kimad.gradient.period) == (2, 1)


def test_with_an_oracle_no_uplink_takes_longer_than_its_share():
    """Where workers begin together, and take several steps: their links to the server are equal on
    the way back.
    """
    period, times, congestions = 2, np.array([1.5, 4.0]), np.array([0.5, 2.0])
    fast, back = (
        Sinusoids(UP.factors, 6 * UP.eta, UP.theta, 6 * UP.delta),
        Sinusoids((1.0,) * N, DOWN.eta, DOWN.theta, DOWN.delta),
    )
    cluster = clusters.Cluster(clusters.constant(COMPUTING / period), fast.quantity, back.quantity)

    def factory(round_time, congestion):
        options = {
            "monitor": kimad.oracle,
            "computation": COMPUTING,
            "update": kimad.local_steps(optax.sgd(0.1), period),
        }
        return kimad_sgd(
            optax.sgd(GAMMA),
            kimad.top_k(np.arange(0.05, 1.01, 0.05)),
            round_time,
            congestion=congestion,
            **options,
        )

    found = sweep(
        factory,
        problem(),
        steps=20 * period,
        key=KEY,
        cluster=cluster,
        mesh=1,
        round_time=times,
        congestion=congestions,
    ).history
    clock, sent = found["clock"][:, :, 0, ::period], found["message_up"][:, :, 0, period::period]
    assert not found["missing"][..., 1:].any()
    assert (np.diff(clock, axis=-1).max(axis=-1) <= times[:, None] * (1 + 1e-5)).all()
    shares = []
    for i, j, k, n in np.ndindex(sent.shape):
        took = fast.seconds(n, clock[i, j, k] + COMPUTING[n], sent[i, j, k, n])
        shares.append(took * (1 + congestions[j]) / (times[i] - COMPUTING[n]))
    assert 0.99 < max(shares) <= 1 + 1e-4


@pytest.mark.long
def test_estimates_are_wrong_by_what_changes_meanwhile():
    r"""$|d \ln B / dt| \le \theta \eta / \delta$, and from the beginning of a message to the end of
    the next it is two rounds at most.
    """
    change, slowest, round_time = 0.04, 900.0, 1.5
    slow = Sinusoids(UP.factors, slowest, change, slowest)
    cluster = clusters.Cluster(clusters.constant(COMPUTING), slow.quantity, slow.quantity)
    method = kimad_sgd(
        optax.sgd(GAMMA),
        kimad.top_k(np.arange(0.05, 1.01, 0.05)),
        round_time,
        monitor=kimad.last,
        computation=COMPUTING,
        congestion=1.0,
    )
    # before, estimates are none
    seconds = np.diff(
        run(method, problem(), steps=40, key=KEY, cluster=cluster, mesh=1).history["clock"][2:]
    )
    assert (seconds <= round_time * np.exp(2 * change * seconds.max())).all()
    assert (seconds > round_time).any(), "some are wrong"


def test_a_budget_that_is_too_small():
    """It has half a second, 50 bits; the smallest message has 32 of an element, and its place in a
    byte or two: once, and of 15 twice.
    """

    def small(too_small: Literal["wait", "error"]) -> Result:
        method = kimad_sgd(
            optax.sgd(GAMMA), kimad.top_k(RATIOS), 2.0, computation=1.0, too_small=too_small
        )
        return run(
            method,
            problem(),
            steps=4,
            key=KEY,
            cluster=clusters.Cluster(clusters.constant(1.0), clusters.constant(100.5)),
            mesh=1,
        )

    needed = (32 + 16) + 2 * 32 + 8 + 8
    history = small("wait").history
    np.testing.assert_array_equal(history["message_up"][2:], needed)
    # of the first, nobody knows
    np.testing.assert_array_equal(history["missing"][1:], [0, *[needed - 50] * 3])
    np.testing.assert_allclose(np.diff(history["clock"])[1:], 1 + 2 * needed / 100.5, rtol=1e-5)
    with pytest.raises(
        ValueError,
        match=f"a message has {needed - 50} bits more than round_time leaves for it; pass a longer",
    ):
        small("error")
