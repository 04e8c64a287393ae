"""Decentralized methods: biased limits, rates, rounding, types, and arguments that are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
from budgets import sampled
from scipy.linalg import block_diag

import algorithms
import dsgd
import theory_checks
import topologies
from algorithms.mechanisms.corrections import add_up, start_corrected
from algorithms.optimizers import Model
from dsgd import clusters, compressors, problems
from tests.algorithms import quadratics
from tests.methods import graphs, local_exact_diffusion
from tests.methods.given import quadratic, quadratic_given
from tests.methods.graphs import COMPLETE, LAZY
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import D, N

GAMMA, BETA, T = 0.05, 0.6, 1_500
STEP, EYE, W = optax.sgd(GAMMA), np.eye(N), np.asarray(LAZY.W)
PULL, UNBALANCED = graphs.topology("directed, pull", N), graphs.topology("directed", N)
FINE, COARSE = map(
    compressors.whole_model, (compressors.random_quantization(3), compressors.random_k(0.1))
)


def models(make: Callable[[], dsgd.Algorithm]) -> np.ndarray:
    """Returns the workers' models after each round, with exact gradients, `[T, N, d]`."""
    of = quadratics.instance(0.0, quadratics.arrays()[2])
    states = trajectories.run(lambda of: make(), of, length=T).states
    return trajectories.rows(states.workers.params)[1:]


# --- Limits of methods that are not exact.


@cache
def fixed_point(shape: str, gamma: float = GAMMA) -> np.ndarray:
    """Returns the X `[N, d]` with (I - W) X + P G(X) = 0. P is gamma, which gives the fixed point
    of DGD; gamma W, that of X <- W (X - gamma G(X)); or gamma W (I - beta W)^-1, that of
    X <- W (X - gamma M), M = beta W M + G(X).
    """
    P = {"I": EYE, "W": W, "averaged": W @ np.linalg.inv(EYE - BETA * W)}[shape]
    A, b, _ = quadratics.arrays()
    apart, steps = (np.kron(matrix, np.eye(D)) for matrix in (EYE - W, gamma * P))
    return np.linalg.solve(apart + steps @ block_diag(*A), steps @ b.ravel()).reshape(N, D)


HEAVY_BALL = optax.sgd(GAMMA, momentum=BETA)
LIMITS: dict[str, tuple[Callable[[], dsgd.Algorithm], str, float]] = {
    "DGD": (lambda: algorithms.dgd(STEP, LAZY), "I", GAMMA),
    "DmSGD": (lambda: algorithms.decentralized_sgd(HEAVY_BALL, LAZY), "W", GAMMA / (1 - BETA)),
    "averaged momenta": (
        lambda: algorithms.decentralized_sgd(HEAVY_BALL, LAZY, average_momentum=True),
        "averaged",
        GAMMA,
    ),
    "QG-DSGDm": (lambda: algorithms.quasi_global_momentum(STEP, LAZY, BETA, 0.8), "W", GAMMA),
    "QG-DSGDm-N": (
        lambda: algorithms.quasi_global_momentum(STEP, LAZY, BETA, 0.8, nesterov=True),
        "W",
        (1 + BETA) * GAMMA,
    ),
    "DecentLaM": (lambda: algorithms.decentlam(STEP, LAZY, BETA), "W", GAMMA),
    "DCD": (lambda: algorithms.dcd_sgd(STEP, LAZY, FINE), "I", GAMMA),
}


@pytest.mark.parametrize("name", sampled(LIMITS, "DCD"))
def test_the_limit_is_the_fixed_point(name):
    make, shape, gamma = LIMITS[name]
    expected = fixed_point(shape, gamma)
    assert np.linalg.norm(expected - quadratics.minimizer()) > 1e-3
    np.testing.assert_allclose(models(make)[-1], expected, rtol=0, atol=1e-9)


def test_ecd_approaches_the_limit_of_dgd_and_dcd_diverges_if_the_compression_is_coarse():
    """The variance of ECD is a constant divided by the number of rounds."""
    X = models(lambda: algorithms.ecd_sgd(STEP, LAZY, FINE))
    errors = np.mean((X - fixed_point("I")) ** 2, axis=(1, 2))
    assert 2.5 < errors[T // 8 : T // 4].mean() / errors[T // 2 :].mean() < 6.5
    coarse = models(lambda: algorithms.dcd_sgd(STEP, LAZY, COARSE))
    assert not np.abs(coarse[-1]).max() < 1e9


# --- Rates.


def iteration(name: str) -> np.ndarray:
    """Returns the matrix that maps (x, y) of a round to those of the next one, where y is the
    tracker before its message; for Push-DIGing with the limit of its weights.
    """
    A = block_diag(*quadratics.arrays()[0])
    P, R = (np.kron(one.W, np.eye(D)) for one in (UNBALANCED, PULL))
    if name == "push_diging":
        weights = np.linalg.matrix_power(UNBALANCED.W, 1_000) @ np.ones(N)
        v = np.repeat(weights, D)
        # X = U / v: the rows of the matrix for X sum to 1, and the step is divided by v.
        R = P * v / v[:, None]
        step = -GAMMA * P / v[:, None]
    else:
        step = -GAMMA * (R if name == "push_pull" else np.eye(N * D))
    return np.block([[R, step], [A @ (R - np.eye(N * D)), P + A @ step]])


@pytest.mark.parametrize("name", sampled(["ab", "push_diging", "push_pull"]))
def test_the_rate_on_a_directed_graph_is_the_spectral_radius_of_the_iteration(name):
    """The eigenvalue 1 belongs to the difference of the trackers' and the gradients' sums, which is
    0.
    """
    eigenvalues = np.linalg.eigvals(iteration(name))
    rates = np.sort(np.abs(eigenvalues))[::-1]
    np.testing.assert_allclose(rates[:D], 1, atol=1e-9)
    on = (UNBALANCED,) if name == "push_diging" else (PULL, UNBALANCED)
    A, b, _ = quadratics.arrays()
    with jax.enable_x64(True):
        computed = theory_checks.linear_rate(
            lambda step: getattr(algorithms, name)(optax.sgd(step), *on),
            problems.quadratic(A, b),
            GAMMA,
        )
    assert computed == pytest.approx(rates[D], rel=1e-9)


@pytest.mark.parametrize(
    ("tau", "beta", "grows"), [(4, 1.0, True), (4, 0.52, True), (4, 0.48, False)]
)
def test_a_correction_step_that_is_too_large_diverges_and_is_refused(tau, beta, grows):
    """With W of smallest eigenvalue 0, disagreement contracts if beta tau < 2."""
    W = graphs.matrices("lazy", N)(0)
    smallest = np.linalg.eigvalsh(W)[0]
    shifted = (W - smallest * np.eye(N)) / (1 - smallest)
    topology = topologies.from_matrix(shifted, "shifted")
    given = quadratic_given(*quadratics.arrays(), 1e-3, 1_200, [lambda number: shifted])
    last = list(local_exact_diffusion.recursion(given, tau, beta))[-1]["params"]
    assert (np.abs(last).max() > 1e3) == grows
    if grows:
        with pytest.raises(ValueError, match=r"correction_step = .* with period = 4.*below 0\.5"):
            algorithms.local_exact_diffusion(optax.sgd(0.1), topology, tau, beta)
    else:
        algorithms.local_exact_diffusion(optax.sgd(0.1), topology, tau, beta)


def test_local_sgd_on_a_schedule_of_groups_is_hierarchical():
    """Groups average every four rounds, all workers every twelve."""
    groups = np.kron(np.eye(2), np.full((3, 3), 1 / 3))
    hierarchy = topologies.from_matrix([groups, groups, COMPLETE.W], "hierarchy")
    found = models(lambda: algorithms.local_sgd(STEP, 4, hierarchy))
    A, b, start = quadratics.arrays()
    G, x = quadratic(A, b), np.tile(start, (N, 1))
    for t in range(1, 37):
        x = x - GAMMA * G(t, x)
        if t % 12 == 0:
            x = np.tile(x.mean(axis=0), (N, 1))
        elif t % 4 == 0:
            x = np.repeat(x.reshape(2, 3, -1).mean(axis=1), 3, axis=0)
        np.testing.assert_allclose(found[t - 1], x, rtol=0, atol=1e-12)


# --- Rounding errors.

CORRECTED: dict[str, Callable[..., dsgd.Algorithm]] = {
    "d2": algorithms.d2,
    "extra": algorithms.extra,
    # beta = 1 / 3 is rounded
    "led": lambda step, graph: algorithms.local_exact_diffusion(step, graph, 3),
    "k_gt": lambda step, graph: algorithms.k_gt(step, graph, 3),
}


@pytest.mark.parametrize("name", sampled(CORRECTED))
def test_corrected_methods_do_not_drift_on_the_complete_graph_in_float32(name):
    """Twelve workers: the mean of equal models is rounded, and the changes of all rounds
    accumulate.
    """
    problem = problems.random_quadratic(12, 30, heterogeneity=1.0, seed=0)
    method = CORRECTED[name](optax.sgd(0.1), topologies.complete(12))
    history = dsgd.run(
        method, problem, steps=20_000, key=jax.random.key(0), record_every=1_000, mesh=1
    ).history
    assert history["grad_sqnorm"][2:].max() < 1e-12


ONE_PEER, PULLS, PUSHES = (
    graphs.topology(name, N) for name in ("one peer", "pushes, pull", "pushes")
)
TERNARY = compressors.whole_model(compressors.qsgd(1, "linf"))
TRACKING: dict[str, Callable[[], dsgd.Algorithm]] = {
    "gradient_tracking": lambda: algorithms.gradient_tracking(STEP, ONE_PEER),
    "atc_tracking": lambda: algorithms.atc_tracking(STEP, ONE_PEER),
    "aug_dgm": lambda: algorithms.aug_dgm(STEP, ONE_PEER),
    "push_diging": lambda: algorithms.push_diging(STEP, PUSHES),
    "push_pull": lambda: algorithms.push_pull(STEP, PULLS, PUSHES),
    "lead": lambda: algorithms.lead(STEP, LAZY, TERNARY, 0.4, 0.5),
    "c_gt": lambda: algorithms.c_gt(STEP, LAZY, TERNARY, 0.4, 0.5),
}


@pytest.mark.parametrize("name", sampled(TRACKING, "push_pull"))
def test_in_float32_the_models_stay_at_the_minimizer(name):
    """The sum of the trackers is that of the gradients up to rounding, which must not accumulate.
    The minimizer is 0, and gradients near it have no other rounding errors. On a schedule the
    models never come to rest, so that each of 20,000 rounds has new errors.
    """
    A, b, _ = quadratics.arrays()
    b = np.round(1024 * (b - b.mean(axis=0))) / 1024
    b[-1] = -b[:-1].sum(axis=0)
    run: Any = {"steps": 20_000, "key": jax.random.key(0), "record_every": 20_000, "mesh": 1}
    found = dsgd.run(TRACKING[name](), problems.quadratic(A, b, start=np.ones(D)), **run).params
    compressed = 100 if name in ("lead", "c_gt") else 1
    assert np.abs(found).max() < compressed * np.finfo(np.float32).eps * np.abs(b).max()


def pulls(dtype: Any, start: float = 0.0) -> dsgd.Problem:
    """Returns a problem in which worker n pulls towards n, in three dimensions."""
    return dsgd.Problem(
        lambda key: jnp.full(3, start, dtype),
        lambda x, target: jnp.sum((x - target) ** 2) / 2,
        data=jnp.arange(8, dtype=dtype),
        sample=lambda key, mine: mine,
    )


def test_ecd_in_float16_continues_after_more_rounds_than_float16_counts(key):
    """It is DGD with an identity compressor, up to rounding."""
    ring, problem = topologies.ring(8, topologies.lazy), pulls(jnp.float16)

    def run_late(method):
        run = {"steps": 3, "key": key, "mesh": 1}
        late = dsgd.run(method, problem, **run).state._replace(step=jnp.int32(140_000))
        return np.asarray(dsgd.run(method, problem, start=late, **run).params, float)

    found = run_late(algorithms.ecd_sgd(optax.sgd(0.2), ring, compressors.identity))
    np.testing.assert_allclose(found, run_late(algorithms.dgd(optax.sgd(0.2), ring)), rtol=0.01)


def test_push_sum_divides_by_the_actual_weights(key):
    """If rounding has changed the weights, here by a quarter, the models are those that workers
    query, not the sums.
    """
    star, problem = topologies.star(8, topologies.uniform), pulls(jnp.bfloat16, 3.5)
    method = algorithms.stochastic_gradient_push(STEP, star)
    first = dsgd.run(method, problem, steps=20, key=key, mesh=1).state
    heavier = first._replace(
        workers=first.workers._replace(weight=first.workers.weight * jnp.bfloat16(1.25))
    )
    result = dsgd.run(method, problem, steps=20, key=key, mesh=1, start=heavier)
    pushed = result.state.workers
    mass = np.asarray(pushed.weight, np.float64).sum()
    assert mass == pytest.approx(10, rel=0.01)
    sums = np.asarray(pushed.params, np.float64).sum(axis=0)
    np.testing.assert_allclose(np.asarray(result.params, float), sums / mass, rtol=0.02)


def test_a_correction_loses_nothing_to_rounding():
    """The sum in float32 over 4,000 rounds has an error of one rounding instead of one in each
    round, because rounding errors are compensated.
    """
    more = np.random.default_rng(0).uniform(0.5, 1, (4_000, 8)).astype(np.float32) / 1000
    start = start_corrected(Model(jnp.zeros(8, jnp.float32), ()))

    def add(models, more):
        total, lost = add_up(models, more)
        return models._replace(correction=total, lost=lost), ()

    total = jax.jit(lambda more: jax.lax.scan(add, start, more)[0].correction)(more)
    exact = more.astype(np.float64).sum(axis=0)
    assert np.abs(total - exact).max() <= np.spacing(np.float32(exact.max()))


@pytest.mark.parametrize(("bandwidth", "seconds"), [(1e6, 1.0), (32.0, 6.0)])
def test_the_messages_of_dgd_can_overlap_with_the_gradient(bandwidth, seconds):
    """A gradient takes a second. A worker of a ring sends two models of three elements."""
    always = clusters.Overlap(clusters.constant(1.0), clusters.constant(0.0), first=0.0, last=0.0)
    cluster = clusters.Cluster(
        clusters.constant(1.0), up=clusters.constant(bandwidth), overlap=always
    )
    method = algorithms.dgd(STEP, topologies.ring(8))
    options: Any = {"steps": 3, "key": jax.random.key(0), "cluster": cluster, "mesh": 1}
    found = dsgd.run(method, problems.random_quadratic(8, 3), **options).history["clock"]
    np.testing.assert_allclose(np.diff(found), seconds, rtol=1e-3)


@pytest.mark.parametrize(
    ("delay", "message", "clock"),
    [
        (0, 0.75, [1.75, 3.5, 5.25, 7.0, 8.75, 10.5]),
        (1, 0.75, [1, 2, 3, 4, 5, 6]),
        (1, 1.5, [1, 2.5, 4, 5.5, 7, 8.5]),
        # sent after rounds 1 and 3, and needed in rounds 3 and 5
        (2, 1.5, [1, 2, 3, 4, 5, 6]),
        (2, 2.5, [1, 2, 3, 4.5, 5.5, 7]),
    ],
)
def test_messages_of_overlap_sgp_are_sent_during_later_gradients(delay, message, clock):
    """A gradient takes a second; a message is a model of three elements and a weight."""
    bandwidth = clusters.constant(4 * 32 / message)
    cluster = clusters.Cluster(clusters.constant(1.0), up=bandwidth)
    method = algorithms.overlap_sgp(STEP, topologies.one_peer_exponential(8), delay)
    options: Any = {"steps": 6, "key": jax.random.key(0), "cluster": cluster, "mesh": 1}
    found = dsgd.run(method, problems.random_quadratic(8, 3), **options).history["clock"]
    np.testing.assert_allclose(found[1:], clock, rtol=1e-6)


# --- Arguments that are refused.

RING, DOWN = topologies.ring(N), graphs.topology("tree, pull", N)
UP = graphs.topology("tree, push", N)
OTHER_NAMES = topologies.from_graph(nx.cycle_graph(["a", "b", "c", "d", "e", "f"], nx.DiGraph))
TO_FIVE = topologies.from_graph(nx.DiGraph([(n, 5) for n in range(5)]), topologies.push, "in")
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "rows": (
        lambda: algorithms.push_pull(STEP, UNBALANCED, UNBALANCED),
        "push_pull: pull: the rows of W of directed do not sum to 1.*topologies.pull",
    ),
    "columns": (
        lambda: algorithms.ab(STEP, PULL, PULL),
        "ab: push: the columns of W of directed, pull do not sum to 1.*topologies.push",
    ),
    "numbers of workers": (
        lambda: algorithms.push_pull(STEP, PULL, topologies.ring(7)),
        r"directed, pull has 6 workers, push = ring\(7\) has 7 workers",
    ),
    "names": (
        lambda: algorithms.push_pull(STEP, PULL, OTHER_NAMES),
        "has 6 workers, push = from_graph has the workers .*'a', 'b'",
    ),
    "roots": (
        lambda: algorithms.push_pull(STEP, DOWN, TO_FIVE),
        r"reach all others on tree, pull are \[2\], those that all .* on in, push are \[5\]",
    ),
    "a method of gossip": (
        lambda: algorithms.push_diging(STEP, PULL),
        "push_diging: directed, pull is a topology for 'pull', which only algorithms.push_pull",
    ),
    "nothing kept": (
        lambda: algorithms.overlap_sgp(STEP, dsgd.Topology("others", (1 - EYE) / (N - 1))),
        r"overlap_sgp: W\[0, 0\] of others is 0 in round 0; expected a positive number",
    ),
    "a tree for push-sum": (
        lambda: algorithms.stochastic_gradient_push(STEP, UP),
        "tree, push is a topology for 'push'",
    ),
    "factors": (
        lambda: algorithms.aug_dgm(STEP, RING, [1.0] * 5),
        "^aug_dgm: step_factors .*but .* has 6 nodes; expected one number",
    ),
    "a factor of 0": (
        lambda: algorithms.aug_dgm(STEP, RING, np.array([1.0] * 5 + [0.0])),
        "^aug_dgm: step_factors .*0.0",
    ),
    "step sizes": (
        lambda: algorithms.nids([0.1, 0.2], RING),
        r"nids: step_sizes = \[0.1, 0.2\]; .* 6 nodes",
    ),
    "coupling": (lambda: algorithms.nids(0.1, RING, 20.0), r"nids: coupling = 20.0; .* \(0, 7\."),
    # W of this ring has the smallest eigenvalue -1/3
    "consensus step": (
        lambda: algorithms.prox_skip(STEP, RING, 0.5, 0.76),
        r"consensus_step = 0.76 on ring\(6\).*at most 0.75",
    ),
    "momentum": (
        lambda: algorithms.decentralized_sgd(STEP, LAZY, average_momentum=True).init(np.ones(3), N),
        r"average_momentum = True, but .* no field mu or trace",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_a_method_cannot_use_are_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_doubly_stochastic_topology_has_every_role():
    """Also if it was made with other weights."""
    ring = topologies.ring(N, topologies.pull)
    algorithms.push_pull(STEP, RING, ring)
    algorithms.stochastic_gradient_push(STEP, topologies.ring(N, topologies.push))
    algorithms.extra(STEP, ring)
    algorithms.prox_skip(STEP, RING, 0.5, 0.75)
