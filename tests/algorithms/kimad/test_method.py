"""Kimad on a cluster: durations of rounds, and invalid arguments. `theory_checks` compares its
rounds with the recursion.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import kimad, kimad_sgd
from dsgd import Algorithm, clusters, problems, run
from tests.algorithms.kimad.networks import Sinusoids

N, D, GAMMA = 4, 22, 0.2
UP = Sinusoids((1.0, 0.5, 2.0, 0.8), 900.0, 0.9, 250.0)
DOWN = Sinusoids((1.0, 3.0, 0.7, 1.5), 4000.0, 0.5, 600.0)
COMPUTING = np.array([0.25, 0.5, 0.125, 0.25])
RATIOS = (0.1, 0.3, 0.6, 1.0)
KEY = jax.random.key(0)


PROBLEM = problems.random_quadratic(N, D, heterogeneity=2.0, seed=1)


def test_local_steps_are_sent_as_one_update():
    """Each worker computes y <- y - alpha g, starting from the estimate, and sends x_hat - y^H;
    each period starts at the new estimate.
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


def test_missing_is_the_most_bits_by_which_a_message_exceeded_its_budget():
    """Over all workers' messages and the server's answers so far; each direction has the largest
    excess at some time.
    """
    slow = Sinusoids(UP.factors, 90.0, 0.9, 20.0), Sinusoids(DOWN.factors, 150.0, 0.5, 5.0)
    cluster = clusters.Cluster(clusters.constant(COMPUTING), *(each.quantity for each in slow))

    def method(too_small: Literal["wait", "error"]) -> Algorithm:
        options = {"computation": COMPUTING, "monitor": kimad.oracle, "too_small": too_small}
        return kimad_sgd(optax.sgd(GAMMA), kimad.top_k(RATIOS), 2.0, **options)

    options = {"steps": 12, "key": KEY, "cluster": cluster, "mesh": 1}
    history = {k: v[1:] for k, v in run(method("wait"), PROBLEM, **options).history.items()}
    room = np.floor(history["estimated_up"] * (2.0 - COMPUTING) / 2)
    answer = np.floor(history["estimated_down"].min(axis=1) * (2.0 - COMPUTING.max()) / 2)
    over = np.stack([(history["message_up"] - room).max(axis=1), history["message_down"] - answer])
    np.testing.assert_array_equal(history["missing"], np.maximum.accumulate(over.max(axis=0)))
    ends = over.argmax(axis=0)[np.diff(history["missing"], prepend=0) > 0]
    assert set(ends) == {0, 1}
    assert (over.max(axis=0) < history["missing"]).any()
    with pytest.raises(ValueError, match=r"bits more than round_time leaves for it; pass a longer"):
        run(method("error"), PROBLEM, **options)
