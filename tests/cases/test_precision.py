"""Reductions have the precision of the run: in float64, limits are exact to 1e-12 and shares and
means of booleans and integers to 1e-15.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import sampled
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
import topologies
from algorithms.mechanisms import three_points
from dsgd import clusters, compressors, network, problems, workers
from tests.algorithms import quadratics
from tests.dsgd.by_hand import method, run

float64 = quadratics.float64
N, D = 5, 6
DRAW = np.random.default_rng(1)
A, B = DRAW.uniform(0.5, 1.5, (N, D)), DRAW.normal(size=(N, D))
SGD, TOP = optax.sgd(0.2), compressors.top_k(0.5)
ACCEPTED = TOP._replace(omega=lambda d: 1.0)  # DIANA then accepts this deterministic compressor
ABSENT = clusters.Cluster(clusters.constant(1.0), present=clusters.bernoulli(0.7, 1.0))
LOST = clusters.Cluster(clusters.constant(1.0), delivered=clusters.bernoulli(0.7, 1.0))
METHODS: dict[str, Callable[[], dsgd.Algorithm]] = {
    "EF-BV": lambda: algorithms.ef_bv(SGD, TOP),
    "DIANA": lambda: algorithms.diana(SGD, ACCEPTED),
    "EF21": lambda: algorithms.ef21(SGD, TOP, None, via=network.star),
    "EF21-SGDM": lambda: algorithms.ef21_sgdm(SGD, TOP, 0.7),
    "EControl": lambda: algorithms.econtrol(SGD, TOP, 0.3),
    "3PCv2": lambda: algorithms.three_point(SGD, three_points.v2(TOP, compressors.random_k(0.5))),
    "CLAG": lambda: algorithms.clag(SGD, TOP, 4.0),
    "LT-ADMM": lambda: algorithms.lt_admm(
        SGD, topologies.chain(N), 2, penalty=0.8, correction_step=0.2
    ),
    "K-GT": lambda: algorithms.k_gt(SGD, topologies.ring(N), 1),
    "RelaySGD": lambda: algorithms.relay_sgd(SGD, topologies.chain(N)),
}


@cache
def problem() -> dsgd.Problem:
    return problems.quadratic(A, B, start=np.ones(D))


@pytest.mark.parametrize("name", sampled(METHODS))
def test_the_limit_without_some_workers_is_exact(name):
    """Means of estimates and corrections stay exact if workers are absent, or, for every second
    method, if messages are lost.
    """
    cluster = (ABSENT, LOST)[list(METHODS).index(name) % 2]
    result = run(METHODS[name](), problem(), 4_000, cluster=cluster, record_every=4_000)
    np.testing.assert_allclose(result.params, B.sum(axis=0) / A.sum(axis=0), rtol=0, atol=1e-12)


ROWS = np.array([[True, False], [False, False], [True, True], [True, False], [True, True]])
NUMBERS = np.array([[2**24 + 1], [3], [5], [2], [7]])
WEIGHTS, COUNTED = (0.5, 1.0, 0.25, 2.25, 1.0), np.array([True, True, False, True, True])
# `[T, N]`: three and then four of five workers
PRESENT = np.array([[1, 0, 1, 1, 0], [1, 1, 0, 1, 1]])


@pytest.mark.parametrize("rows", [ROWS, NUMBERS, NUMBERS.astype(np.int32)])
def test_means_of_booleans_and_integers_are_floating_point_numbers(rows):
    """Of the run's precision, and the same as those of the same numbers as floats."""
    some = workers.Participation(jnp.asarray(COUNTED), jnp.asarray(COUNTED), lambda i, j: i == j)

    def means(x):
        with workers.with_weights(WEIGHTS):
            weighted = workers.mean(x), workers.weighted_sum(x)
        with workers.with_participation(some):
            partly = workers.mean(x), workers.share_delivered()
        plain = workers.mean(x), workers.mean_and_sqdist(x)[0], workers.mean_rows(workers.gather(x))
        return *weighted, *partly, *plain

    spread = jax.shard_map(
        means, mesh=workers.mesh(5), in_specs=P(workers.AXIS), out_specs=P(), check_vma=False
    )
    found = jax.jit(spread)(rows)
    total = np.asarray(WEIGHTS) @ rows
    expected = total / N, total, rows[COUNTED].mean(axis=0), 4 / 5, *[rows.mean(axis=0)] * 3
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == np.float64
        np.testing.assert_allclose(one, other, rtol=1e-15)


def test_numbers_of_the_history_have_the_precision_of_the_run():
    """Shares, and integers beyond those that float32 represents, also in some rounds only."""

    def update(state, gradients, round):
        def send(x):
            round.log(sometimes=jnp.int32(2**24 + 1))
            return x

        round.log(large=jnp.int32(2**24 + 3), share=round.mean(jnp.arange(N) < 4))
        round.every(2, send, gradients)
        return dsgd.State(state.server)

    there = clusters.trace(PRESENT.T.astype(float), 1.0)
    cluster = clusters.Cluster(clusters.constant(1.0), present=there)
    history = run(method(update=update), problem(), 2, cluster=cluster).history
    np.testing.assert_allclose(history["present"][1:], [3 / 5, 4 / 5], rtol=1e-15)
    np.testing.assert_allclose(history["share"][1:], [1.0, 3 / 4], rtol=1e-15)
    assert history["large"][1:].tolist() == [2**24 + 3] * 2
    assert int(history["sometimes"][2]) == 2**24 + 1
