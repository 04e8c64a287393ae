"""Partial participation and lost messages: what holds for all methods, and which are refused.
`tests/methods` compares methods with recursions that have the same masks.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from algorithms import registry
from dsgd import clusters, compressors, network, problems
from dsgd.communication.calls.sender import GOES_ON
from tests.methods.files import CASES
from tests.methods.given import CLUSTER, DELIVERED, DRAW, ELEMENTS, PARTICIPATES, WORKERS, T

N, D, H, GAMMA = WORKERS, ELEMENTS, 3, 0.1
PROBLEM = problems.random_quadratic(N, D, heterogeneity=2.0, seed=1)
A, B = (np.asarray(leaf, float) for leaf in PROBLEM.data[:2])
SGD = optax.sgd(GAMMA)
RING, COMPLETE, PUSH = (
    topologies.ring(N),
    topologies.complete(N),
    topologies.one_peer_exponential(N),
)


def slopes(X: np.ndarray) -> np.ndarray:
    """Returns every worker's gradient at its own model."""
    return np.einsum("nij,nj->ni", A, X) - B


def run(
    method: dsgd.Algorithm, cluster: clusters.Cluster | None = CLUSTER, **options: Any
) -> dsgd.Result:
    return dsgd.run(
        method,
        PROBLEM,
        **({"steps": T, "key": jax.random.key(0), "cluster": cluster, "mesh": 1} | options),
    )


def test_the_training_loss_is_that_of_the_workers_that_participate():
    found = run(algorithms.local_sgd(SGD, H), train_loss=True).history["train_loss"]
    X = np.zeros((N, D))
    for t in range(T):
        losses = 0.5 * np.einsum("ni,nij,nj->n", X, A, X) - (B * X).sum(axis=1)
        expected = losses[PARTICIPATES[t]].mean() if PARTICIPATES[t].any() else np.nan
        np.testing.assert_allclose(found[t + 1], expected, rtol=1e-5, atol=1e-6)
        X, S = (
            np.where(PARTICIPATES[t][:, None], X - GAMMA * slopes(X), X),
            PARTICIPATES[t] & DELIVERED[t, :N],
        )
        if (t + 1) % H == 0 and S.any():
            X = np.tile(X[S].mean(axis=0), (N, 1))


def test_a_worker_that_does_not_participate_has_no_work():
    """With weighted micro-batches, the mean is over those of the participating workers."""
    weights = DRAW.random((N, 2)).astype(np.float32)
    method = algorithms.with_local_work(algorithms.minibatch_sgd(SGD), dsgd.work.weighted(weights))
    cluster = clusters.Cluster(
        clusters.constant(0.5), present=clusters.trace(PARTICIPATES.T.astype(float), 1.0)
    )
    history = run(algorithms.with_diagnostics(method), cluster, steps=4).history
    np.testing.assert_array_equal(history["samples"][1:], 2 * PARTICIPATES[:4])
    np.testing.assert_allclose(history["clock"], np.arange(5))
    np.testing.assert_array_equal(np.isnan(history["local_sqnorms"][1:]), ~PARTICIPATES[:4])
    x, sums = np.zeros(D), weights.sum(axis=1)
    for t in range(4):
        g = (sums[:, None] * slopes(np.tile(x, (N, 1))))[PARTICIPATES[t]].mean(axis=0)
        np.testing.assert_allclose(history["global_sqnorm"][t + 1], g @ g, rtol=1e-4)
        x = x - GAMMA * g


REFUSED = [name for name in algorithms.ALGORITHMS if "all workers" in registry.find(name).needs]
COMPARED = {name.partition(",")[0] for name, case in CASES.items() if case.absent}
# the others are compared with a recursion
TRIED = [name for name in algorithms.ALGORITHMS if name in REFUSED or name not in COMPARED]


@pytest.mark.parametrize("name", TRIED)
def test_methods_that_need_all_workers_are_refused_and_the_error_names_others(name):
    method = algorithms.make(name, SGD, N)
    if name not in REFUSED:
        assert dsgd.exchanges(method, PROBLEM, cluster=CLUSTER)
        return
    with pytest.raises(ValueError, match="workers do not participate") as error:
        dsgd.exchanges(method, PROBLEM, cluster=CLUSTER)
    assert str(error.value).startswith(method.name)
    assert str(error.value).endswith(GOES_ON)


def test_the_methods_that_errors_name_support_partial_participation():
    named = {
        algorithms.ALGORITHMS[name](SGD, N).name.partition("(")[0]
        for name in algorithms.ALGORITHMS.keys() - REFUSED
    }
    assert set(re.findall(r"\w+_\w+|scaffold", GOES_ON)) <= named


KIMAD = algorithms.kimad_sgd(SGD, algorithms.kimad.top_k([0.3]), 2.0)
CERTAIN, HALF = clusters.bernoulli(1.0, 1.0), clusters.bernoulli(0.5, 1.0)
NEGATIVE = topologies.from_matrix(
    1.1 * topologies.ring(N, topologies.lazy).W - 0.1 * topologies.complete(N).W, "mine"
)
ONE_SIDED = r"W of one_peer_exponential\(8\) is not symmetric"
UNFIT = [
    # a worker that misses a message of the server no longer has its estimate of the model
    (KIMAD, {"present": CERTAIN}, "misses a message of the server"),
    (KIMAD, {"delivered": CERTAIN}, "misses a message of the server"),
    (
        algorithms.ef21(SGD, *[compressors.sign] * 2, via=network.star),
        {"present": CERTAIN},
        "each worker's model is made of all replies of the server",
    ),
    # directed graphs are for push-sum, whose weights must remain positive
    *(
        (registry.METHODS[name].instance(SGD, PUSH), {"delivered": HALF}, ONE_SIDED)
        for name in ("decentralized_sgd", "atc_tracking", "k_gt", "proximal_tracking")
    ),
    (algorithms.local_sgd(SGD, H, PUSH), {"delivered": HALF}, ONE_SIDED),
    (
        algorithms.stochastic_gradient_push(SGD, NEGATIVE),
        {"present": CERTAIN},
        "W of mine has negative weights",
    ),
    (
        algorithms.decentralized_sgd(SGD, RING)._replace(
            absent=lambda before, after: before.params
        ),
        {"present": CERTAIN},
        "absent .* State.workers",
    ),
]


@pytest.mark.parametrize(("method", "missing", "words"), UNFIT)
def test_methods_that_do_not_fit_the_cluster_are_refused(method, missing, words):
    with pytest.raises(ValueError, match=words):
        run(method, clusters.Cluster(clusters.constant(1.0), **missing))


def test_states_are_kept_without_participation_unless_the_method_says_otherwise():
    """In a method that counts rounds, a worker counts the rounds in which it participates, and the
    server those in which any worker participates.
    """
    counting = dsgd.Algorithm(
        "counting",
        init=lambda params, N: dsgd.State((params, jnp.int32(0)), jnp.zeros(N, jnp.int32)),
        query=lambda state, round: dsgd.Query(state.server[0]),
        update=lambda state, gradients, round: state._replace(
            server=(state.server[0], state.server[1] + 1), workers=state.workers + 1
        ),
        model=lambda state: state.server[0],
    )
    found = run(counting).state
    np.testing.assert_array_equal(found.workers, PARTICIPATES.sum(axis=0))
    assert found.server[1] == PARTICIPATES.any(axis=1).sum() < T
    twice = counting._replace(absent=lambda before, after: before + 2 * (after - before))
    np.testing.assert_array_equal(run(twice).state.workers, 2 * T - PARTICIPATES.sum(axis=0))
