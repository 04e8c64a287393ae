"""Training in epochs: its steps compared with those of one worker with all samples, its seconds
compared with the cluster model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import cannikin
from algorithms.cannikin import training
from dsgd import clusters
from dsgd.engine import programs

N, D, B, M = 4, 5, 4, 10  # up to 40 samples per node, in pieces of 4
TOTAL, ROUNDS, RATE = 64, 4, 0.02
Q, S, K, P = np.array(
    [
        [0.01, 0.02, 0.05, 0.03],
        [0.1, 0.2, 0.3, 0.1],
        [0.02, 0.05, 0.08, 0.06],
        [0.05, 0.2, 0.1, 0.1],
    ]
)
GAMMA, LAST, SPEED = 0.25, 0.125, 200.0
T_COMM = 2 * (N - 1) * 32 * D / N / SPEED  # time of a ring's messages
OVERLAP = clusters.Overlap(clusters.constant(P), clusters.constant(K), GAMMA, LAST)
CLUSTER = clusters.Cluster(
    clusters.constant(S + P),
    up=clusters.constant(SPEED),
    per_sample=clusters.constant(Q + K),
    single_batch=True,
    overlap=OVERLAP,
)
SGD = algorithms.minibatch_sgd(cannikin.scalable(optax.sgd(RATE, momentum=0.5)))
SIZES = np.array([25, 3, 0, 10])  # 38 samples in total
DRAW = np.random.default_rng(0)
A = DRAW.normal(size=(N, B, D))
Y = A @ np.arange(D) + DRAW.normal(size=(N, B))


class Batch(NamedTuple):
    """Samples `[m, d]` and `[m]`, and their mask, `[m]`."""

    a: jax.Array
    y: jax.Array
    counts: jax.Array


def loss(x: jax.Array, batch: Batch) -> jax.Array:
    return jnp.sum(batch.counts * (batch.a @ x - batch.y) ** 2) / jnp.sum(batch.counts)


# A node's b samples are its four in turn, so that numpy can compute them.
PROBLEM = dsgd.Problem(
    lambda key: jnp.zeros(D),
    loss,
    Batch(jnp.asarray(A, jnp.float32), jnp.asarray(Y, jnp.float32), jnp.ones((N, B))),
    dsgd.Sampler(
        lambda key, mine: mine,
        batch_size=B,
        truncate=lambda batch, samples: batch._replace(
            counts=jnp.where(jnp.arange(B) < samples, 1.0, 0.0)
        ),
    ),
)


def train(system: cannikin.System, seed: int = 0, **options: Any) -> cannikin.Training:
    given: dict[str, Any] = {
        "method": SGD,
        "problem": PROBLEM,
        "cluster": CLUSTER,
        "epochs": 5,
        "micro_batches": M,
        "samples": ROUNDS * TOTAL,
    }
    return cannikin.train(system=system, key=jax.random.key(seed), **given | options)


def always(batches: np.ndarray) -> cannikin.System:
    """A custom system with constant batches."""
    return cannikin.System(
        lambda cluster: (),
        lambda memory: (batches, ()),
        lambda memory, seen: (),
        lambda *args: (),
        "always",
    )


def model(nodes: Any = slice(None)) -> cannikin.ClusterModel:
    return cannikin.ClusterModel(
        Q[nodes],
        S[nodes],
        K[nodes],
        P[nodes],
        GAMMA,
        (1 - LAST) * T_COMM,
        LAST * T_COMM,
        np.full(N, B * M)[nodes],
    )


def slopes(x: np.ndarray, batches: np.ndarray) -> np.ndarray:
    """Returns the gradient of each node's loss, the mean over its samples, `[N, d]`; 0 for nodes
    without samples. Each node has its own model, or all have the same.
    """
    times = (batches[:, None] - np.arange(B) + B - 1) // B  # number of times that a sample is drawn
    residuals = np.einsum("nbd,nd->nb", A, np.broadcast_to(x, (N, D))) - Y
    return np.einsum("nb,nb,nbd->nd", times, 2 * residuals, A) / np.maximum(batches, 1)[:, None]


def replay(
    epochs: list[cannikin.Epoch], optimizer: optax.GradientTransformation
) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Returns the model of one worker with all samples, and the mean S and G over the rounds of
    each epoch.
    """
    x, seen = jnp.zeros(D), []
    memory = optimizer.init(x)
    for epoch in epochs:
        noises = []
        for _ in range(epoch.rounds):
            each, shares = slopes(np.asarray(x), epoch.batches), epoch.batches / epoch.total
            g = shares @ each
            noise = (
                epoch.batches @ np.sum((each - g) ** 2, axis=1) / (np.sum(epoch.batches > 0) - 1)
            )
            noises.append((noise, g @ g - noise / epoch.total))
            change, memory = optimizer.update(jnp.asarray(g, jnp.float32), memory, x)
            x = x + epoch.factor * jnp.asarray(change)
        seen.append(np.mean(noises, axis=0))
    return np.asarray(x), seen


# --- Steps.


def test_a_run_equals_that_of_one_worker_with_all_samples():
    """Steps (eq. 9), noise scale and AdaScale with total batches that change."""
    found = train(
        cannikin.cannikin([32, 48, 96], 32),
        epochs=6,
        scaling=cannikin.adascale,
        smoothing=0.4,
        samples=192,
    )
    x, seen = replay(found.epochs, optax.sgd(RATE, momentum=0.5))
    np.testing.assert_allclose(found.params, x, rtol=1e-4)
    assert [epoch.total for epoch in found.epochs[:2]] == [32, 32]
    assert len({epoch.total for epoch in found.epochs}) > 1
    assert [epoch.rounds for epoch in found.epochs] == [
        192 // epoch.total for epoch in found.epochs
    ]
    for i, epoch in enumerate(found.epochs):
        weights = 0.6 ** np.arange(i, -1, -1)
        noise, sqnorm = np.average(seen[: i + 1], axis=0, weights=weights)
        assert epoch.noise_scale == pytest.approx(noise / sqnorm, rel=1e-3)
        if i + 1 < len(found.epochs):
            B1, after = found.epochs[i + 1].total, found.epochs[i + 1].factor
            assert after == pytest.approx((noise / 32 + sqnorm) / (noise / B1 + sqnorm), rel=1e-3)
    assert max(epoch.factor for epoch in found.epochs) > 1.01


def test_optimizers_of_all_nodes_are_scaled():
    """In local SGD, nodes step along their own gradients, N b / B times the mean over their
    samples.
    """
    method = algorithms.local_sgd(cannikin.scalable(optax.sgd(RATE)), 2)
    options = {"epochs": 2, "scaling": lambda noise, total, first: 0.5, "samples": 4 * 38}
    found = train(always(SIZES), method=method, **options)
    x = np.zeros((N, D))
    for t in range(8):
        x = x - 0.5 * RATE * (N * SIZES / SIZES.sum())[:, None] * slopes(x, SIZES)
        x = np.broadcast_to(x.mean(axis=0), x.shape) if t % 2 else x
    np.testing.assert_allclose(found.params, x[0], rtol=1e-4)
    np.testing.assert_array_equal(found.state.workers.optimizer[1].factor, np.full(N, 0.5))


# --- Seconds.


def test_stages_continue_without_compiling_again():
    """The program is shared by other systems, seeds, totals, lengths and factors."""
    train(cannikin.equal_split(TOTAL), epochs=1)
    before = programs.count_compiled()
    for i, system in enumerate(
        (cannikin.cannikin([32, 64]), cannikin.lb_bsp(48), cannikin.adaptdl([32, 64], 32))
    ):
        train(system, seed=i, epochs=4, samples=100 + 50 * i, scaling=cannikin.adascale)
    assert programs.count_compiled() == before
    assert training.size_method(SGD, B, M) is training.size_method(SGD, B, M)  # not traced again


def test_the_third_epoch_is_at_optperf_of_the_model_of_the_cluster():
    """Without noise, two sizes of each node determine the model; the clock is that of the model for
    every system.
    """
    log, best, inner = [], model().optperf_integer(TOTAL), cannikin.cannikin(TOTAL)
    recorded = inner._replace(
        observe=lambda memory, seen: log.append(seen) or inner.observe(memory, seen)
    )
    found = train(recorded).epochs
    assert [epoch.total for epoch in found] == [TOTAL] * 5
    np.testing.assert_array_equal(found[0].batches, [16, 16, 16, 16])
    assert found[1].batch_time > best.seconds * 1.001
    for epoch in found[2:]:
        assert epoch.batch_time == pytest.approx(best.seconds, rel=1e-5)
    learner = cannikin.learner(N, LAST)
    for seen in log[:2]:
        learner = learner.observe(
            seen.batches, seen.compute, seen.backward, seen.first, seen.communication
        )
    learned = learner.model()
    for name in ("q", "s", "k", "m", "gamma", "t_overlap", "t_last"):
        np.testing.assert_allclose(
            getattr(learned, name), getattr(model(), name), rtol=1e-3, err_msg=name
        )
    for system in (cannikin.lb_bsp(TOTAL), cannikin.adaptdl([32, TOTAL, 96], TOTAL)):
        for epoch in train(system).epochs:
            assert epoch.batch_time == pytest.approx(model().batch_time(epoch.batches), rel=1e-5)


PLAIN = clusters.constant(1.0)
REFUSED = [
    ({"cluster": clusters.Cluster(PLAIN)}, "has no overlap"),
    ({"cluster": clusters.Cluster(PLAIN, overlap=OVERLAP)}, "10 micro-batches on a cluster"),
    ({"limits": [1, 2, 3]}, "cannikin.train: limits"),
    ({"limits": [10] * N}, "node 0 gets 16 but has memory for 10"),
    ({"smoothing": 0.0}, "cannikin.train: smoothing"),
    ({"present": lambda epoch: np.zeros(N, bool)}, r"present\(0\)"),
    ({"scaling": lambda *_: np.nan}, "cannikin.train: scaling returned nan"),
    (
        {"problem": PROBLEM._replace(sample=replace(PROBLEM.sampler, truncate=None))},
        "cannot truncate",
    ),
    (
        {"method": algorithms.minibatch_sgd(optax.sgd(RATE)), "scaling": lambda *_: 2.0},
        r"cannikin\.scalable",
    ),
]


def test_what_cannot_be_trained_is_refused():
    for wrong, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            train(cannikin.equal_split(TOTAL), **{"epochs": 1} | wrong)
