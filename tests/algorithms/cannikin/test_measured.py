"""What a run has in its history is what a cluster and the noise of its gradients are learned from."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import cannikin
from dsgd import clusters, work

N, D, B, M, STEPS = 4, 3, 4, 3, 24
SIZES = np.array([[12, 2, 5, 7], [6, 4, 9, 1]])  # in turn
ITEMS = np.random.default_rng(0).normal(1.0, 2.0, (N, M * B, D))
Q, S, K, F = np.random.default_rng(1).uniform(0.1, 1.0, (4, N))
FIRST, LAST = 0.25, 0.125
BANDWIDTH = 100.0


class Batch(NamedTuple):
    """Samples of one worker `[m, d]`, with the weights of their losses; a sample is its gradient."""

    a: jax.Array
    weights: jax.Array


def in_turn(state: dsgd.State, round: dsgd.Round) -> dsgd.Work:
    return work.local_batches(jnp.asarray(SIZES)[round.step % 2], batch_size=B, micro_batches=M)


@pytest.fixture(scope="module")
def histories() -> list[dict[str, Any]]:
    """By clocks that are exact, and by others."""
    overlap = clusters.Overlap(clusters.constant(F), clusters.constant(K), FIRST, LAST)
    items = Batch(jnp.asarray(ITEMS, jnp.float32), jnp.full((N, M * B), 1 / M / B))
    problem = dsgd.Problem(
        lambda key: jnp.zeros(D),
        lambda x, batch: jnp.sum(batch.weights * (batch.a @ x)),
        items,
        dsgd.Sampler(
            lambda key, mine: mine,
            batch_size=B,
            take=lambda batch, samples: batch._replace(weights=jnp.where(jnp.arange(B) < samples, 1.0, 0.0) / samples),
        ),
    )
    method = algorithms.observed(algorithms.unequal_work(algorithms.minibatch_sgd(optax.sgd(0.1)), in_turn))
    found = []
    for noise in (0.0, 0.02):
        cluster = clusters.Cluster(
            clusters.constant(S + F),
            up=clusters.constant(BANDWIDTH),
            per_sample=clusters.constant(Q + K),
            at_once=True,
            overlap=overlap,
            noise=noise,
        )
        found.append(
            dsgd.run(method, problem, steps=STEPS, key=jax.random.key(0), batches=[items] * STEPS, mesh=1, cluster=cluster).history
        )
    return found


def learned(history: dict[str, Any]) -> cannikin.ClusterModel:
    """Of two epochs, the rounds of one size and those of the other; a record has what was measured in the round before its last one."""
    learner = cannikin.learner(N, LAST)
    for turn in (0, 1):
        rows = slice(2 + turn, None, 2)
        times = (history[f"measured_{name}"][rows] for name in ("compute", "backward", "first", "up"))
        learner = learner.observed(SIZES[turn], *times)
    model = learner.model()
    assert model is not None
    return model


@pytest.mark.parametrize(("which", "tolerance"), [(0, 2e-4), (1, 0.15)])
def test_the_simulated_cluster_is_learned(histories, which, tolerance):
    """Exactly, or nearly; and so is the time of a round, which is the clock's."""
    found = learned(histories[which])
    true = cannikin.ClusterModel(Q, S, K, F, FIRST, *(share * 2 * (N - 1) * D * 32 / N / BANDWIDTH for share in (1 - LAST, LAST)))
    if not which:
        for name in ("q", "s", "k", "m", "gamma", "t_overlap", "t_last"):
            np.testing.assert_allclose(getattr(found, name), getattr(true, name), rtol=tolerance, err_msg=name)
    for turn in (0, 1):
        took = np.diff(histories[which]["clock"])[turn::2]
        np.testing.assert_allclose(found.batch_time(SIZES[turn]), took, rtol=tolerance / 10)
        np.testing.assert_allclose(true.batch_time(SIZES[turn]), took, rtol=1e-5)


def test_the_noise_of_a_round_is_what_its_gradients_differ_by(histories):
    for step in (1, 2):
        b = SIZES[(step - 1) % 2]
        each = np.array([rows[:size].mean(axis=0) for rows, size in zip(ITEMS, b, strict=True)])
        whole = b @ each / b.sum()
        noise = (((each - whole) ** 2).sum(axis=1) * b).sum() / (N - 1)
        found = cannikin.gradient_noise_scale(*(histories[0][name][step] for name in ("local_sqnorms", "global_sqnorm")), b)
        np.testing.assert_allclose(found[:2], [noise, whole @ whole - noise / b.sum()], rtol=1e-4)
