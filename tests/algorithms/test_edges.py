"""Methods with variables of the edges, the unweighted Laplacian or accelerated gossip: methods that
equal others, their limits, lost messages, and arguments that are refused.

Runs of six workers are in float64 (`theory_checks.machinery.trajectories`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
from budgets import sampled

import algorithms
import dsgd
import topologies
from dsgd import clusters, problems
from tests.algorithms import quadratics
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import D, N, Trajectory

GAMMA, RHO, L, MU = 0.1, 0.3, 2.0, 0.5
SGD = optax.sgd(GAMMA)
RING, STAR, CHAIN = topologies.ring(N), topologies.star(N), topologies.chain(N)
TREE = topologies.from_graph(nx.Graph([(0, 1), (0, 2), (2, 3), (2, 4), (4, 5)]), name="tree")
UNEVEN = topologies.from_graph(nx.Graph([*TREE.edges.tolist(), (1, 5)]), name="uneven")


def graph_laplacian(topology: dsgd.Topology) -> np.ndarray:
    """Returns the unweighted Laplacian matrix."""
    return nx.laplacian_matrix(nx.Graph(topology.edges.tolist()), range(topology.n)).toarray()


METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "DLM": lambda of: algorithms.dlm(SGD, UNEVEN, RHO),
    "EXTRA": lambda of: algorithms.extra(
        SGD, topologies.from_matrix(np.eye(N) - 2 * GAMMA * RHO * graph_laplacian(UNEVEN))
    ),
    "DLM, large penalty": lambda of: algorithms.dlm(SGD, STAR, 1.2),
    "LT-ADMM": lambda of: algorithms.lt_admm(
        optax.sgd(of.gamma), UNEVEN, of.period, penalty=of.penalty, correction_step=0.1
    ),
    "RelaySGD on a chain": lambda of: algorithms.relay_sgd(SGD, CHAIN),
    "RelaySGD on a tree": lambda of: algorithms.relay_sgd(SGD, TREE),
    "OPAPC": lambda of: algorithms.opapc(UNEVEN, L, MU),
    "OPAPC on the complete graph": lambda of: algorithms.opapc(topologies.complete(N), L, MU),
    "tracking, Chebyshev": lambda of: algorithms.gradient_tracking(
        SGD, topologies.chebyshev(RING, 3)
    ),
    "exact diffusion, FastMix": lambda of: algorithms.exact_diffusion(
        SGD, topologies.fast_mix(RING, 3)
    ),
}


class Numbers(NamedTuple):
    """Arguments of the methods; each method uses some of them."""

    gamma: float = GAMMA
    period: int = 1
    penalty: float = RHO


USUAL = Numbers()


build = quadratics.builders(METHODS)


@cache
def run(name: str, length: int, noise: float = 0.0, numbers: Numbers = USUAL) -> Trajectory:
    return quadratics.run(build(name), numbers, length, noise=noise, start=np.zeros(D))


def models(found: Trajectory) -> np.ndarray:
    """Returns the workers' models before and after each round, `[T + 1, N, d]`."""
    return trajectories.rows(found.states.workers.params)


# --- Identities.


def test_dlm_is_extra_with_another_W():
    """W = I - 2 gamma rho L. The gradients are noisy."""
    left, right = (models(run(name, 60, 0.5)) for name in ("DLM", "EXTRA"))
    assert np.ptp(left) > 0.1
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-13)


@pytest.mark.parametrize("on", ["chain", "tree"])
def test_relaysum_is_the_uniform_average_of_delayed_models(on):
    """After as many rounds as the diameter, with delays of max(0, dist - 1) rounds."""
    topology, found = {"chain": CHAIN, "tree": TREE}[on], run(f"RelaySGD on a {on}", 60, 0.5)
    paths = dict(nx.all_pairs_shortest_path_length(nx.Graph(topology.edges.tolist())))
    delay = np.array([[max(0, paths[i][j] - 1) for j in range(N)] for i in range(N)])
    diameter = delay.max() + 1
    X, counts = models(found), found.states.workers.counts.sum(axis=-1)
    Y = X[:-1] - GAMMA * found.gradients
    for t in range(diameter - 1, 60):
        expected = Y[t - delay, np.arange(N)].mean(axis=1)
        np.testing.assert_allclose(X[t + 1], expected, rtol=0, atol=1e-13)
        assert (counts[t + 1] == N - 1).all()
    assert (counts[diameter - 1] < N - 1).any()


# --- Limits with exact gradients.

LIMITS: dict[str, tuple[str, int, Numbers]] = {
    "DLM": ("DLM", 1_000, USUAL),
    "DLM, large penalty": ("DLM, large penalty", 1_000, USUAL),
    "LT-ADMM, every round": ("LT-ADMM", 6_000, USUAL),
    "LT-ADMM, five local steps": ("LT-ADMM", 6_000, Numbers(0.03, 5)),
    "LT-ADMM, large penalty": ("LT-ADMM", 6_000, Numbers(0.03, 5, 0.8)),
    "RelaySGD on a chain": ("RelaySGD on a chain", 1_000, USUAL),
    "RelaySGD on a tree": ("RelaySGD on a tree", 1_000, USUAL),
    "OPAPC": ("OPAPC", 120, USUAL),
    "OPAPC on the complete graph": ("OPAPC on the complete graph", 120, USUAL),
    "tracking, Chebyshev": ("tracking, Chebyshev", 1_000, USUAL),
    "exact diffusion, FastMix": ("exact diffusion, FastMix", 1_000, USUAL),
}


@pytest.mark.parametrize("name", sampled(LIMITS))
def test_the_limit_is_the_optimum(name):
    method, length, numbers = LIMITS[name]
    X = models(run(method, length, numbers=numbers))[-1]
    np.testing.assert_allclose(X, np.tile(quadratics.minimizer(), (N, 1)), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["DLM", "OPAPC"])
def test_dual_variables_are_the_negative_gradients_at_the_optimum(name):
    """Their sum is always that of the start, 0."""
    A, b, _ = quadratics.arrays()
    method, length, numbers = LIMITS[name]
    Y = trajectories.rows(run(method, length, numbers=numbers).states.workers.correction)
    np.testing.assert_allclose(Y[-1], b - A @ quadratics.minimizer(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(Y.sum(axis=1), 0, atol=1e-12)


def test_opapc_needs_as_many_gradients_as_the_root_of_the_condition_number():
    """The distance falls by at least 1 - 1 / (4 sqrt(kappa)) in each round."""
    distances = np.linalg.norm(models(run("OPAPC", 120)) - quadratics.minimizer(), axis=(1, 2))
    rate = (distances[60] / distances[10]) ** (1 / 50)
    assert rate < 1 - 1 / (4 * np.sqrt(L / MU))


def test_the_limit_is_the_optimum_with_single_samples_if_their_variance_is_reduced():
    """LT-ADMM with the same steps stays far from it."""
    rng = np.random.default_rng(0)
    inputs, classes = rng.normal(size=(40, 4)), rng.integers(2, size=40)
    sizes = np.split(np.arange(40), [5, 20, 24])
    model = problems.Model(lambda key: jnp.zeros(4), lambda w, inputs: inputs @ w)

    def loss(outputs, classes):
        return optax.sigmoid_binary_cross_entropy(outputs, classes.astype(outputs.dtype))

    def slope(method):
        with jax.enable_x64(True):
            of = problems.finite_sum(
                model, loss, (inputs, classes), batch_size=1, partition=sizes, l2=0.1, workers=4
            )
            options: Any = {"steps": 3_000, "key": jax.random.key(0), "record_every": 3_000}
            return dsgd.run(method, of, mesh=2, **options).history["grad_sqnorm"][-1]

    methods = [
        method(optax.sgd(0.1), topologies.chain(4), 3, correction_step=0.1)
        for method in (algorithms.lt_admm_vr, algorithms.lt_admm)
    ]
    reduced, plain = map(slope, methods)
    assert reduced < 1e-18
    assert plain > 1e-6


# --- Lost messages, on eight workers in float32.

PROBLEM = problems.random_quadratic(8, 4, heterogeneity=2.0, seed=1)
EIGHT = topologies.chain(8)


def through(method: dsgd.Algorithm, cluster: clusters.Cluster, steps: int) -> dsgd.Result:
    return dsgd.run(method, PROBLEM, steps=steps, key=jax.random.key(0), cluster=cluster, mesh=1)


def test_relayed_sums_of_bfloat16_models_are_rounded_once():
    """Without gradients, equal models stay equal to the start up to the rounding of messages. If
    each addition was rounded, they would move by 2^-7 on average.
    """
    start = jnp.asarray(np.random.default_rng(0).normal(size=64), jnp.bfloat16)
    still = dsgd.Problem(
        lambda key: start,
        lambda x, data: 0.0 * jnp.sum(x),
        data=jnp.zeros(12, jnp.bfloat16),
        sample=lambda key, data: data,
    )
    method = algorithms.relay_sgd(SGD, topologies.chain(12))
    found = dsgd.run(method, still, steps=50, key=jax.random.key(0), mesh=1).params
    assert found.dtype == jnp.bfloat16
    moved = np.asarray(found, float) / np.asarray(start, float) - 1
    assert np.abs(moved).mean() < 2**-8


def test_counts_recover_in_as_many_rounds_as_the_diameter():
    """Until second 9 no message arrives. A round takes a second."""
    lost = clusters.Quantity(
        lambda key, clock, link: jnp.where(clock < 9, 0.0, 1.0), "late", positive=False
    )
    cluster = clusters.Cluster(clusters.constant(1.0), delivered=lost)
    method, diameter = algorithms.relay_sgd(SGD, EIGHT), 7
    for rounds in (diameter - 1, diameter):
        counts = np.asarray(through(method, cluster, 9 + rounds).state.workers.counts)
        ends = np.minimum(np.arange(8), rounds) + np.minimum(np.arange(8)[::-1], rounds)
        np.testing.assert_array_equal(counts.sum(axis=1), ends)


@pytest.mark.parametrize(
    "method",
    [
        algorithms.relay_sgd(SGD, EIGHT),
        algorithms.lt_admm(optax.sgd(0.2), EIGHT, 2, penalty=0.8, correction_step=0.2),
    ],
    ids=["RelaySGD", "LT-ADMM"],
)
def test_the_limit_is_the_optimum_if_messages_are_lost(method):
    """Every third message is lost, at random."""
    cluster = clusters.Cluster(clusters.constant(1.0), delivered=clusters.bernoulli(0.67, 1.0))
    A, b = (np.asarray(leaf, float).mean(axis=0) for leaf in PROBLEM.data[:2])
    found = through(method, cluster, 4_000)
    np.testing.assert_allclose(
        found.state.workers.params, np.tile(np.linalg.solve(A, b), (8, 1)), rtol=0, atol=2e-5
    )


# --- One worker, and several devices.


def test_one_worker_sends_nothing():
    problem = problems.random_quadratic(1, 4, heterogeneity=0.0, seed=0)
    for method in (
        algorithms.dlm(SGD, topologies.ring(1)),
        algorithms.lt_admm(SGD, topologies.ring(1), 1),
        algorithms.relay_sgd(SGD, topologies.chain(1)),
        algorithms.opapc(topologies.ring(1), 1.0, 0.1),
        algorithms.decentralized_sgd(SGD, topologies.chebyshev(topologies.ring(1), 2)),
    ):
        history = dsgd.run(method, problem, steps=9, key=jax.random.key(0), mesh=1).history
        assert history["bits"][-1] == 0
        assert history["loss"][-1] < history["loss"][0]


@pytest.mark.long
@pytest.mark.parametrize("method", [algorithms.extra, algorithms.decentralized_sgd])
def test_accelerated_gossip_keeps_the_contract(method):
    """The bits of its exchanges are those that the compiled program sends between devices."""
    problem = problems.random_quadratic(8, 5, heterogeneity=1.0, seed=0)
    accelerated = method(SGD, topologies.chebyshev(topologies.ring(8), 2))
    dsgd.check(accelerated, problem, key=jax.random.key(0)).require()


# --- Arguments that are refused.

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a cycle": (
        lambda: algorithms.relay_sgd(SGD, topologies.ring(8)),
        r"relay_sgd: ring\(8\) has 8 workers and 8 edges; expected a tree, with 7 edges.*"
        r"pass topologies.spanning_tree\(topology\)",
    ),
    "no smoothness": (
        lambda: algorithms.opapc(RING, 0.1, 0.2),
        "opapc: strong_convexity = 0.2, smoothness = 0.1; expected 0 < strong_convexity <= smooth",
    ),
    "no penalty": (lambda: algorithms.dlm(SGD, RING, 0.0), "dlm: penalty = 0.0; expected"),
    "negative penalty": (
        lambda: algorithms.lt_admm(SGD, RING, penalty=-1.0),
        "lt_admm: penalty = -1.0; expected",
    ),
    "no correction": (
        lambda: algorithms.lt_admm(SGD, RING, correction_step=0.0),
        "lt_admm: correction_step = 0.0; expected",
    ),
    "no period": (lambda: algorithms.lt_admm(SGD, RING, 0), "lt_admm: period = 0; expected"),
}
ACCELERATED = topologies.chebyshev(CHAIN, 2)
REFUSED |= {
    f"accelerated, {method.__name__}": (
        lambda method=method: method(SGD, ACCELERATED),
        rf"{method.__name__} on chebyshev\(chain\(6\), 2\): a round has 2 exchanges; expected a t",
    )
    for method in (
        algorithms.dlm,
        algorithms.lt_admm,
        algorithms.relay_sgd,
        algorithms.stochastic_gradient_push,
        algorithms.asynchronous_gossip_sgd,
    )
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_do_not_fit_are_refused(name):
    make, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        make()
