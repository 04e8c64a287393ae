"""Methods on graphs, each against a readable numpy loop straight from its paper; where they end; what they must keep, count or refuse.

Models are the rows of X `[N, d]`, so that gossip, x_i <- sum_j W_ij x_j, is W @ X. (The papers have a column for each worker.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
import rounds
from jax.sharding import PartitionSpec as P
from scipy.linalg import block_diag

import algorithms
import dsgd
import topologies
from algorithms import (
    choco_sgd,
    d2,
    decentralized_sgd,
    deepsqueeze,
    exact_diffusion,
    extra,
    gradient_tracking,
    local_sgd,
    minibatch_sgd,
    model_averaging_sgd,
    stochastic_gradient_push,
)
from dsgd import compressors, problems
from tests.algorithms import layers
from theory_checks.machinery.trajectories import rows
from theory_checks.recursions import shared
from theory_checks.recursions.compressed import Q, largest_half, mean_size_times_sign
from theory_checks.recursions.decentralized import by_layers, choco, d_squared, decentralized, nids, push, shi, squeeze, tracking
from theory_checks.recursions.shared import Matrices, Rounds, Step, Steps, adam, momentum, plain
from theory_checks.recursions.synchronous import local

N, GAMMA, LONG, SHORT = 6, 0.2, 1_500, 12  # rounds: until exact methods have converged; where small differences would grow
D = 6


# --- The problem.


def numbers(equal_hessians: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return layers.numbers(N, D, heterogeneity=2.0, equal_hessians=equal_hessians)


def quadratic(equal_hessians: bool = False) -> dsgd.Problem:
    return layers.quadratic(N, D, heterogeneity=2.0, equal_hessians=equal_hessians)


class Trajectory(NamedTuple):
    """Every round's gradients `[steps, N, d]` and bits `[steps, N]`, and the states `[steps + 1, ...]` before, between and after."""

    states: dsgd.State
    gradients: np.ndarray
    sent: np.ndarray
    received: np.ndarray

    @property
    def models(self) -> np.ndarray:
        """`[steps + 1, N, d]`."""
        return rows(self.states.workers.params)


def drive(algorithm: dsgd.Algorithm, problem: dsgd.Problem, *, steps: int = SHORT, devices: int = 1) -> Trajectory:
    """The rounds one by one, with all that the loop of `dsgd.run` does not show. In float64."""
    N = problem.workers

    def several(state, data, keys):
        def one_round(state, this):
            step, key = this
            after, gradients, statistics = rounds.one(algorithm, problem, state, dsgd.Round(step, N, key), data, key, key)
            return after, (after, gradients, statistics)

        return jax.lax.scan(one_round, state, (jnp.arange(steps, dtype=jnp.int32), keys))[1]

    out = (rounds.states_over(None), P(None, "workers"), rounds.statistics_over(None))
    specs = {"in_specs": (rounds.STATE, P("workers"), P()), "out_specs": out}
    with jax.enable_x64(True):
        spread = jax.shard_map(several, mesh=dsgd.workers.mesh(devices), check_vma=False, **specs)

        def everything(data):
            first = algorithm.init(problem.init(jax.random.key(0)), N)
            return first, spread(first, data, jax.random.split(jax.random.key(1), steps))

        first, (states, gradients, statistics) = jax.tree.map(np.asarray, jax.jit(everything)(problem.data))
        states = jax.tree.map(lambda start, rest: np.concatenate([start[None], rest]), first, states)
    return Trajectory(states, rows(gradients), *map(dsgd.counts.to_int, statistics.bits[:2]))


# --- The papers' recursions on this problem. `W(t)` is the matrix of round t; a step makes of gradients the change of models, -gamma G.

I = np.eye(N)


def matrices(topology: dsgd.Topology) -> Matrices:
    dense = [W.toarray() for W in topology.matrices]
    return lambda t: dense[t % len(dense)]


def G(X: np.ndarray, equal_hessians: bool = False) -> np.ndarray:
    A, b, _ = numbers(equal_hessians)
    return shared.quadratic(A, b)(0, X)


def X_0() -> np.ndarray:
    return np.tile(numbers()[2], (N, 1))


def from_start(recursion: Callable[..., Rounds], *arguments: Any) -> Rounds:
    return recursion(X_0(), lambda t, X: G(X), *arguments)


OPTIMIZERS: dict[str, tuple[optax.GradientTransformation, Steps]] = {
    "sgd": (optax.sgd(GAMMA), partial(plain, GAMMA)),
    "momentum": (optax.sgd(GAMMA / 4, momentum=0.9), partial(momentum, GAMMA / 4)),
    "adam": (optax.adam(0.02), partial(adam, 0.02)),
}


def in_layers(q: Q) -> Q:
    return by_layers(q, (layers.BIASES, D - layers.BIASES))


LOSSY: dict[str, tuple[dsgd.Compressor, Q]] = {
    "identity": (compressors.identity, lambda x: x),
    "top_k": (compressors.top_k(0.5), in_layers(largest_half)),
    "top_k-whole": (compressors.whole_model(compressors.top_k(0.5)), largest_half),
    "sign": (compressors.sign, in_layers(mean_size_times_sign)),
    "sign-whole": (compressors.whole_model(compressors.sign), mean_size_times_sign),
}


def directed() -> dsgd.Topology:
    """A cycle and three arrows across: no two kinds of workers send, or receive, equally often. Only columns sum to 1."""
    graph = nx.DiGraph([(i, (i + 1) % N) for i in range(N)])
    graph.add_edges_from([(0, 2), (0, 3), (3, 1)])
    return topologies.from_graph(graph, name="directed")


RING, TORUS, RANDOM = topologies.ring(N), topologies.torus(2, 3), topologies.erdos_renyi(N, 0.5, seed=1)
STAR, COMPLETE, DIRECTED = topologies.star(N), topologies.complete(N), directed()
LAZY = {
    graph.name: make(topologies.lazy)
    for graph, make in [
        (RING, lambda weights: topologies.ring(N, weights)),
        (TORUS, lambda weights: topologies.torus(2, 3, weights)),
        (RANDOM, lambda weights: topologies.erdos_renyi(N, 0.5, seed=1, weights=weights)),
    ]
}
ONE_PEER, MATCHINGS = topologies.one_peer_exponential(N), topologies.random_matchings(N, 5)


class Case(NamedTuple):
    """A method (optimiser -> Algorithm), what it should be (step -> rounds), and for how many rounds the two are compared."""

    method: Callable[[optax.GradientTransformation], dsgd.Algorithm]
    rounds: Callable[[Step], Rounds]
    steps: int = SHORT


def on(method: Callable, oracle: Callable, topology: dsgd.Topology, steps: int = SHORT, **options: Any) -> Case:
    return Case(
        lambda optimizer: method(optimizer, topology=topology, **options), lambda step: from_start(oracle, matrices(topology), step), steps
    )


def locally(H: int, topology: dsgd.Topology | None) -> Case:
    W = matrices(COMPLETE if topology is None else topology)
    return Case(lambda optimizer: local_sgd(optimizer, H, topology), lambda step: from_start(local, W, step, H), 5 * H * 2)


def compressed(method: Callable, oracle: Callable, topology: dsgd.Topology, name: str, eta: float) -> Case:
    compressor, q = LOSSY[name]
    return Case(
        lambda optimizer: method(optimizer, topology, compressor, eta),
        lambda step: from_start(oracle, matrices(topology), step, q, eta),
        SHORT,
    )


CASES: dict[str, Case] = {
    **{f"dsgd-{graph.name}": on(decentralized_sgd, decentralized, graph, LONG) for graph in (RING, TORUS, RANDOM)},
    **{f"dsgd-{graph.name}": on(decentralized_sgd, decentralized, graph) for graph in (STAR, COMPLETE, ONE_PEER, MATCHINGS)},
    "local-3": locally(3, None),
    "local-3-star": locally(3, STAR),
    "local-2-schedule": locally(2, ONE_PEER),
    **{f"d2-{name}": on(d2, d_squared, graph, LONG) for name, graph in LAZY.items()},
    "d2-negative-eigenvalue": on(d2, d_squared, TORUS),
    **{f"extra-{graph.name}": on(extra, shi, graph, LONG) for graph in (RING, TORUS, RANDOM)},
    **{f"diffusion-{graph.name}": on(exact_diffusion, nids, graph, LONG) for graph in (RING, TORUS, RANDOM)},
    **{f"tracking-{graph.name}": on(gradient_tracking, tracking, graph, LONG) for graph in (RING, TORUS, RANDOM, ONE_PEER)},
    "sgp-directed": on(stochastic_gradient_push, push, DIRECTED, LONG),
    "sgp-schedule": on(stochastic_gradient_push, push, ONE_PEER),
    "choco-top_k": compressed(choco_sgd, choco, RANDOM, "top_k", 0.3),
    "choco-top_k-whole": compressed(choco_sgd, choco, RING, "top_k-whole", 0.5),
    "choco-sign": compressed(choco_sgd, choco, STAR, "sign", 0.2),
    "choco-complete": compressed(choco_sgd, choco, COMPLETE, "top_k", 0.3),
    "squeeze-top_k": compressed(deepsqueeze, squeeze, RANDOM, "top_k", 0.3),
    "squeeze-schedule": compressed(deepsqueeze, squeeze, MATCHINGS, "top_k-whole", 0.5),
    "squeeze-sign": compressed(deepsqueeze, squeeze, STAR, "sign-whole", 0.2),
}
SPREAD = [  # over devices; in float32, `test_contract` has all registered ones
    ("dsgd-star(6)", 2),
    ("dsgd-star(6)", N),
    ("local-2-schedule", 2),
    ("d2-negative-eigenvalue", N),
    ("sgp-directed", 2),
    ("sgp-schedule", N),
    ("choco-top_k", 2),
    ("choco-complete", N),
    ("squeeze-schedule", 2),
    ("squeeze-schedule", N),
]


@cache
def driven(name: str, optimizer: str = "sgd", devices: int = 1) -> Trajectory:
    case = CASES[name]
    steps = case.steps if optimizer == "sgd" and devices == 1 else min(case.steps, 2 * SHORT)
    return drive(case.method(OPTIMIZERS[optimizer][0]), quadratic(), steps=steps, devices=devices)


def check_rounds(name: str, optimizer: str = "sgd", devices: int = 1) -> None:
    """All that the oracle has, round by round."""
    case, run = CASES[name], driven(name, optimizer, devices)
    rounds = case.rounds(OPTIMIZERS[optimizer][1]())
    np.testing.assert_array_equal(run.models[0], X_0())
    got: dict[str, np.ndarray] = {}
    for t in range(1, len(run.models)):
        expected = next(rounds)
        got = got or {symbol: _of(run.states.workers, symbol, values) for symbol, values in expected.items()}
        for symbol, values in expected.items():
            np.testing.assert_allclose(got[symbol][t], values, rtol=0, atol=1e-12, err_msg=f"{symbol} of round {t}")
    assert np.abs(run.models - run.models.mean(axis=1, keepdims=True)).max() > 1e-3 or name == "dsgd-complete(6)"  # workers differ


def _of(workers: Any, symbol: str, like: np.ndarray) -> np.ndarray:
    value = getattr(workers, symbol)
    return np.asarray(value) if like.ndim == 1 else rows(value)


@pytest.mark.parametrize("name", CASES)
def test_every_round_is_the_papers(name):
    check_rounds(name)


@pytest.mark.parametrize(("name", "devices"), SPREAD)
def test_every_round_is_the_papers_on_any_number_of_devices(name, devices):
    check_rounds(name, devices=devices)
    one, many = driven(name), driven(name, devices=devices)
    for alone, spread in ((one.sent, many.sent), (one.received, many.received)):
        np.testing.assert_array_equal(spread, alone[: len(spread)])


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *(("dsgd-star(6)", optimizer) for optimizer in ("momentum", "adam")),
        ("local-3", "momentum"),
        ("d2-negative-eigenvalue", "momentum"),
        ("extra-ring(6)", "momentum"),
        ("tracking-ring(6)", "momentum"),
        ("sgp-directed", "momentum"),
        ("choco-top_k", "momentum"),
        ("squeeze-top_k", "momentum"),
    ],
)
def test_optimisers_keep_their_memories_locally(name, optimizer):
    """Another one's change stands for -gamma G; gradient tracking's sees the tracker for a gradient."""
    check_rounds(name, optimizer)


# --- Through `dsgd.run`: which matrix in which round, where rounds come in chunks, between records, and after a stop.


def after(name: str, rounds: int) -> np.ndarray:
    oracle = CASES[name].rounds(plain(GAMMA))
    return [next(oracle) for _ in range(rounds)][-1]["params"]


@pytest.mark.parametrize("name", ["dsgd-random_matchings(6, 5, 0)", "local-2-schedule"])
def test_a_run_takes_each_rounds_matrix_between_records_and_after_a_stop(name, tmp_path, mesh):
    """Two seeds, records every 4 rounds, a stop after 5 (between two records), an end after 23."""
    method = CASES[name].method(optax.sgd(GAMMA))
    with jax.enable_x64(True):
        for steps in (5, 23):
            options = {"steps": steps, "key": jax.random.key(0), "seeds": 2, "mesh": mesh, "record_every": 4}
            result = dsgd.run(method, quadratic(), checkpoint=tmp_path / name[:4], **options)
            X = after(name, steps)
            for seed in range(2):
                np.testing.assert_allclose(rows(result.state.workers.params)[seed], X, rtol=0, atol=1e-12)
                np.testing.assert_allclose(rows(result.params, 1)[seed], X.mean(axis=0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.history["consensus"][:, -1], np.mean(np.sum((X - X.mean(axis=0)) ** 2, axis=1)), rtol=1e-9)
    message = 64 * D  # one in a round, or in every other, there and back
    rounds = np.array([0, 4, 5, 8, 12, 16, 20, 23]) if 5 in result.history["step"] else np.array([0, 4, 8, 12, 16, 20, 23])
    np.testing.assert_array_equal(result.history["step"], rounds)
    np.testing.assert_array_equal(result.history["bits"], [2 * message * (rounds // 2 if "local" in name else rounds)] * 2)


def test_the_step_of_the_consensus_can_be_swept(mesh):
    """It is a number of the trace then, which nobody can compare with 1."""
    with jax.enable_x64(True):
        for oracle, method, name in ((choco, choco_sgd, "top_k"), (squeeze, deepsqueeze, "top_k-whole")):
            compressor, q = LOSSY[name]

            def factory(consensus_step, method=method, compressor=compressor):
                return method(optax.sgd(GAMMA), RING, compressor, consensus_step)

            swept = dsgd.sweep(factory, quadratic(), steps=6, key=jax.random.key(0), mesh=mesh, consensus_step=[0.25, 1.0])
            for i, eta in enumerate((0.25, 1.0)):
                rounds = from_start(oracle, matrices(RING), plain(GAMMA), q, eta)
                X = [next(rounds) for _ in range(6)][-1]["params"]
                np.testing.assert_allclose(rows(swept.state.workers.params, 3)[i, 0], X, rtol=0, atol=1e-12)


# --- Identities.


@cache
def optimum(equal_hessians: bool = False) -> np.ndarray:
    """Of the average."""
    A, b, _ = numbers(equal_hessians)
    return np.linalg.solve(A.mean(axis=0), b.mean(axis=0))


def gradient_descent(steps: int, equal_hessians: bool = False) -> np.ndarray:
    """On the average, `[steps + 1, d]`: mini-batch SGD with exact gradients."""
    x = [numbers()[2]]
    for _ in range(steps):
        x.append(x[-1] - GAMMA * G(np.tile(x[-1], (N, 1)), equal_hessians).mean(axis=0))
    return np.array(x)


def same(run: Trajectory, other: Trajectory) -> None:
    np.testing.assert_allclose(run.models, other.models[: len(run.models)], rtol=0, atol=1e-12)


STEP = optax.sgd(GAMMA)


@pytest.mark.parametrize(
    "method",
    [decentralized_sgd(STEP, COMPLETE), local_sgd(STEP, 1), local_sgd(STEP, 1, COMPLETE), d2(STEP, COMPLETE)],
    ids=lambda method: method.name,
)
def test_on_the_complete_graph_it_is_minibatch_sgd(method):
    """What averages last: all models are equal after every round, and gradients are of that model. (D2, by induction, is then
    x + (x - x_before) - gamma (g - g_before) in the mean, x - gamma g.)"""
    models = drive(method, quadratic()).models
    np.testing.assert_allclose(models, np.tile(gradient_descent(SHORT)[:, None], (1, N, 1)), rtol=0, atol=1e-13)
    together = drive_server(minibatch_sgd(STEP))
    np.testing.assert_allclose(models[:, 0], together, rtol=0, atol=1e-13)
    np.testing.assert_allclose(drive_server(model_averaging_sgd(STEP)), together, rtol=0, atol=1e-13)


@cache
def drive_server(method: dsgd.Algorithm) -> np.ndarray:
    """The models `[steps + 1, d]` of a method that has one."""
    states = drive(method, quadratic()).states
    params = states.server.params if jax.tree.leaves(states.server) else jax.tree.map(lambda leaf: leaf[:, 0], states.workers.params)
    return rows(params, 1)


def test_gradient_tracking_on_the_complete_graph_steps_from_the_mean_along_mean_gradient_and_own_news():
    """It averages before it steps: x_n = mean x - gamma y_n with y_n = mean of the last gradients + what g_n has changed since. So its
    first step is everybody's own, in the mean mini-batch SGD's; then models differ by gamma times the differences in news."""
    run = drive(gradient_tracking(STEP, COMPLETE), quadratic())
    x, g = run.models, run.gradients
    np.testing.assert_allclose(x[1], x[0] - GAMMA * g[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(x[1].mean(axis=0), gradient_descent(1)[1], rtol=0, atol=1e-13)
    for t in range(1, SHORT):
        news = g[t] - g[t - 1]
        np.testing.assert_allclose(x[t + 1], x[t].mean(axis=0) - GAMMA * (g[t - 1].mean(axis=0) + news), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("method", "other"),
    [
        (lambda: choco_sgd(STEP, RANDOM, compressors.identity, 1.0), RANDOM),
        (lambda: choco_sgd(STEP, RING, compressors.whole_model(compressors.identity), 1.0), RING),
        (lambda: deepsqueeze(STEP, RANDOM, compressors.identity, 1.0), RANDOM),
        (lambda: deepsqueeze(STEP, MATCHINGS, compressors.identity, 1.0), MATCHINGS),
        (lambda: stochastic_gradient_push(STEP, RANDOM), RANDOM),
        (lambda: stochastic_gradient_push(STEP, ONE_PEER), ONE_PEER),
        (lambda: local_sgd(STEP, 1, RANDOM), RANDOM),
        (lambda: local_sgd(STEP, 1, ONE_PEER), ONE_PEER),
    ],
    ids=["choco", "choco-whole", "deepsqueeze", "deepsqueeze-schedule", "sgp", "sgp-schedule", "local", "local-schedule"],
)
def test_it_is_decentralized_sgd(method, other):
    """Nothing lost and a full step to the consensus; or rows that sum to 1, so that no mass moves; or averaging in every round."""
    run = drive(method(), quadratic())
    same(run, driven({RANDOM: "dsgd-" + RANDOM.name, RING: "dsgd-ring(6)"}.get(other, f"dsgd-{other.name}")))
    if hasattr(run.states.workers, "weight"):
        np.testing.assert_allclose(run.states.workers.weight, 1, rtol=0, atol=1e-14)


def test_exact_diffusion_is_d2_on_the_lazy_graph():
    for graph in (RING, TORUS, RANDOM):
        same(driven(f"diffusion-{graph.name}"), driven(f"d2-{graph.name}"))


@pytest.mark.parametrize(
    "name", [*(name for name in CASES if CASES[name].steps < LONG), "extra-ring(6)", "tracking-ring(6)", "sgp-directed"]
)
def test_the_mean_model_moves_by_the_mean_gradient(name):
    """Gossip keeps the mean, whatever is lost or corrected. Where they are asked at z, gradients are of z."""
    run = driven(name)
    mean, slope = run.models.mean(axis=1), run.gradients.mean(axis=1)
    np.testing.assert_allclose(mean[1:] - mean[:-1], -GAMMA * slope, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["tracking-ring(6)", "tracking-one_peer_exponential(6)"])
def test_the_mean_of_the_trackers_is_that_of_the_gradients(name):
    run = driven(name)
    trackers = rows(run.states.workers.tracker)[1:]
    np.testing.assert_allclose(trackers.mean(axis=1), run.gradients.mean(axis=1), rtol=0, atol=1e-13)
    assert np.abs(trackers[:SHORT] - run.gradients[:SHORT]).max() > 1e-2


@pytest.mark.parametrize("method", [d2, extra, gradient_tracking], ids=lambda method: method.__name__)
def test_with_equal_hessians_the_mean_model_is_minibatch_sgds(method):
    """Gradients are then affine with one slope, so that their mean is that at the mean model."""
    models = drive(method(STEP, TORUS), quadratic(True)).models
    np.testing.assert_allclose(models.mean(axis=1), gradient_descent(SHORT, True), rtol=0, atol=1e-12)
    assert np.abs(models - models.mean(axis=1, keepdims=True)).max() > 1e-2


@pytest.mark.parametrize("name", ["sgp-directed", "sgp-schedule"])
def test_pushed_mass_adds_up_to_the_number_of_workers(name):
    mass = driven(name).states.workers.weight
    np.testing.assert_allclose(mass.sum(axis=1), N, rtol=0, atol=1e-12)
    assert mass.min() > 0
    assert (np.ptp(mass[-1]) > 0.1) == (name == "sgp-directed")


@pytest.mark.parametrize("method", [choco_sgd, deepsqueeze], ids=lambda method: method.__name__)
def test_low_rank_messages_start_from_the_last_right_factor(method):
    """One step of power iteration on what is sent, of 2 x 3 elements, up to a sign: a cold start's factor would point elsewhere."""
    run = drive(method(STEP, RING, compressors.whole_model(compressors.low_rank(1)), 0.1), quadratic())
    workers = run.states.workers
    (last,) = workers.last
    half = run.models[:-1] - GAMMA * run.gradients
    sent = half - rows(workers.x_hat)[:-1] if method is choco_sgd else half + rows(workers.error)[:-1]
    left = sent.reshape(SHORT, N, 2, 3) @ last.right[:-1]
    left = left[1:] / np.linalg.norm(left[1:], axis=-2, keepdims=True)
    np.testing.assert_allclose(np.abs(np.sum(left * last.left[2:], axis=(-2, -1))), 1, rtol=0, atol=1e-5)
    cold = compressors.low_rank(1).compress(jax.random.key(5), jnp.asarray(sent[1, 0])).left
    assert np.abs(np.sum(left[0, 0] * cold)) < 1 - 1e-3


# --- Where they end.


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.split("-")[0] in ("d2", "extra", "diffusion", "tracking") and CASES[name].steps == LONG]
)
def test_corrected_methods_reach_the_optimum_of_the_average(name):
    off = np.linalg.norm(driven(name).models[-1] - optimum(), axis=-1)
    assert off.max() < 1e-8


@pytest.mark.parametrize(
    "method",
    [d2(STEP, LAZY["ring(6)"]), extra(STEP, RING), exact_diffusion(STEP, RING), gradient_tracking(STEP, ONE_PEER)],
    ids=lambda method: method.name,
)
def test_in_float32_they_stay_there(method, mesh):
    """What they add up has mean 0 up to rounding, which must not add up as well: after 20,000 rounds a drift of a tenth of a rounding in
    each would show. Gradients are known up to a few roundings of b, hence the optimum to that over mu."""
    problem = problems.random_quadratic(N, D, heterogeneity=2.0, seed=1)
    result = dsgd.run(method, problem, steps=20_000, key=jax.random.key(0), mesh=mesh, record_every=1_000)
    rounding = np.finfo(np.float32).eps * np.abs(problem.data.b).max() / problem.constants.strong_convexity
    np.testing.assert_allclose(result.state.workers.params, np.tile(problem.constants.minimizer, (N, 1)), rtol=0, atol=4 * rounding)


def fixed_point(W: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The X with X = W (X - gamma (A Z - b)), Z = X / weights: a linear system of N d equations."""
    A, b, _ = numbers()
    gossip = np.kron(W, np.eye(D))
    slopes = np.zeros((N * D, N * D))
    for n in range(N):
        slopes[n * D : (n + 1) * D, n * D : (n + 1) * D] = A[n] / weights[n]
    system = np.eye(N * D) - gossip @ (np.eye(N * D) - GAMMA * slopes)
    return np.linalg.solve(system, GAMMA * gossip @ b.ravel()).reshape(N, D)


@pytest.mark.parametrize("graph", [RING, TORUS, RANDOM], ids=lambda graph: graph.name)
def test_decentralized_sgd_stalls_at_the_fixed_point_of_its_recursion(graph):
    X = fixed_point(graph.W, np.ones(N))
    np.testing.assert_allclose(driven(f"dsgd-{graph.name}").models[-1], X, rtol=0, atol=1e-10)
    assert np.linalg.norm(X - optimum(), axis=-1).min() > 1e-3
    assert np.linalg.norm(X.mean(axis=0) - optimum()) > 1e-3


def test_push_stalls_at_the_fixed_point_of_its_recursion():
    """Where the mass is N times the eigenvector of W for 1."""
    values, vectors = np.linalg.eig(DIRECTED.W)
    mass = np.real(vectors[:, np.argmax(np.real(values))])
    mass *= N / mass.sum()
    run = driven("sgp-directed")
    X = fixed_point(DIRECTED.W, mass)
    np.testing.assert_allclose(run.states.workers.weight[-1], mass, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.models[-1], X, rtol=0, atol=1e-10)
    assert np.linalg.norm(X / mass[:, None] - optimum(), axis=-1).min() > 1e-3


@pytest.mark.parametrize("graph", [RING, TORUS], ids=lambda graph: graph.name)
def test_the_consensus_error_of_decentralized_sgd_is_within_its_bound(graph):
    """4 rho^2 gamma^2 varsigma^2 / (1 - rho)^2 of the mean along the path, for gamma rho <= (1 - rho) / (2 L)."""
    A, _, _ = numbers()
    smoothness, rho = np.abs(np.linalg.eigvalsh(A)).max(), graph.rho
    assert GAMMA * rho <= (1 - rho) / (2 * smoothness)
    X = driven(f"dsgd-{graph.name}").models[:-1]
    middle = X.mean(axis=1)
    off = np.mean(np.sum((X - middle[:, None]) ** 2, axis=-1), axis=-1)
    slopes = np.array([G(np.tile(x, (N, 1))) for x in middle])
    different = np.mean(np.sum((slopes - slopes.mean(axis=1, keepdims=True)) ** 2, axis=-1), axis=-1)
    factor = 4 * rho**2 * GAMMA**2 / (1 - rho) ** 2
    assert 0.01 * factor * different.mean() < off.mean() <= factor * different.mean()
    assert off[-1] <= factor * different[-1]  # at the end, where it stays


# --- What is counted: messages times their size, worker by worker and round by round.


def links(topology: dsgd.Topology, t: int) -> tuple[np.ndarray, np.ndarray]:
    """To how many others each sends, and from how many it receives, in round t."""
    W = matrices(topology)(t) - np.diag(np.diag(matrices(topology)(t)))
    return (W != 0).sum(axis=0), (W != 0).sum(axis=1)


MODEL = 64 * D  # float64
HALVES = 3 * 64 + 8 * (1 + 1)  # of two and of four elements, half: values, and places of one and of two bits each in whole bytes
SIGNS = 8 + 64


@pytest.mark.parametrize(
    ("name", "topology", "message"),
    [
        ("dsgd-star(6)", STAR, MODEL),
        ("dsgd-complete(6)", COMPLETE, MODEL),
        ("dsgd-one_peer_exponential(6)", ONE_PEER, MODEL),
        ("d2-" + RANDOM.name, RANDOM, MODEL),
        ("extra-" + RANDOM.name, RANDOM, MODEL),
        ("diffusion-" + RANDOM.name, RANDOM, MODEL),
        ("tracking-" + RANDOM.name, RANDOM, 2 * MODEL),
        ("sgp-directed", DIRECTED, MODEL + 64),
        ("choco-top_k", RANDOM, HALVES),
        ("choco-sign", STAR, 2 * SIGNS),
        ("squeeze-sign", STAR, SIGNS),
    ],
)
def test_everybody_sends_its_own_neighbours_one_message(name, topology, message):
    run = driven(name)
    for t in range(SHORT):
        up, down = links(topology, t)
        np.testing.assert_array_equal(run.sent[t], message * up)
        np.testing.assert_array_equal(run.received[t], message * down)


def test_on_a_schedule_that_is_not_the_same_for_all_everybody_counts_its_rounds():
    """An odd one out in each round; local SGD goes through the schedule by averagings."""
    odd = topologies.random_matchings(5, 4)
    problem = problems.random_quadratic(5, D, seed=1)
    up = np.array([links(odd, t)[0] for t in range(4)])
    assert up.sum() == 4 * 4
    every = drive(decentralized_sgd(STEP, odd), problem, steps=8)
    np.testing.assert_array_equal(every.sent, MODEL * np.tile(up, (2, 1)))
    np.testing.assert_array_equal(every.received, every.sent)
    second = drive(local_sgd(STEP, 2, odd), problem, steps=16)
    expected = np.zeros((16, 5))
    expected[1::2] = MODEL * np.tile(up, (2, 1))
    np.testing.assert_array_equal(second.sent, expected)
    np.testing.assert_array_equal(second.received, expected)
    assert (up[[0, 1, 2, 3]] != up[[1, 3, 1, 3]]).any()  # other rounds have others out


# --- Refusals.

ON_GRAPHS: dict[str, Callable[[dsgd.Topology], dsgd.Algorithm]] = {
    "decentralized_sgd": lambda graph: decentralized_sgd(STEP, graph),
    "local_sgd": lambda graph: local_sgd(STEP, 2, graph),
    "d2": lambda graph: d2(STEP, graph),
    "extra": lambda graph: extra(STEP, graph),
    "exact_diffusion": lambda graph: exact_diffusion(STEP, graph),
    "gradient_tracking": lambda graph: gradient_tracking(STEP, graph),
    "choco_sgd": lambda graph: choco_sgd(STEP, graph, compressors.sign, 0.1),
    "deepsqueeze": lambda graph: deepsqueeze(STEP, graph, compressors.sign, 0.1),
}
SYMMETRIC = ["d2", "extra", "exact_diffusion", "choco_sgd", "deepsqueeze"]


@pytest.mark.parametrize("name", ON_GRAPHS)
def test_a_graph_on_which_only_sums_are_kept_is_for_push_sum(name):
    need = "symmetric: need an undirected graph" if name in SYMMETRIC else "rows of W do not sum to 1: need a doubly stochastic W"
    with pytest.raises(ValueError, match=rf"^{name} on directed, .*{need}"):
        ON_GRAPHS[name](DIRECTED)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_methods_whose_proofs_need_symmetry_refuse_a_doubly_stochastic_directed_graph(name):
    with pytest.raises(ValueError, match=rf"^{name} on exponential\(6\), whose W is not symmetric: need an undirected graph"):
        ON_GRAPHS[name](topologies.exponential(N))


@pytest.mark.parametrize("name", ["d2", "extra", "exact_diffusion", "choco_sgd"])
def test_methods_that_remember_what_gossip_did_refuse_a_schedule(name):
    with pytest.raises(ValueError, match=rf"^{name} on random_matchings\(6, 5, 0\), a schedule of 5 rounds: need one mixing matrix"):
        ON_GRAPHS[name](MATCHINGS)


def test_d2_refuses_an_eigenvalue_at_or_below_minus_a_third():
    """At -1/3 one of the recursion's roots is -1."""
    for graph in (RING, topologies.ring(8), topologies.hypercube(3)):
        need = r"whose W has the eigenvalue -0\.\d+, for which .*: need all above -1/3, .*weights=topologies\.lazy, or allow_unproven=True"
        with pytest.raises(ValueError, match=rf"^d2 on .*, {need}"):
            d2(STEP, graph)
    d2(STEP, topologies.ring(8, topologies.lazy))
    d2(STEP, topologies.ring(7))


def test_d2_at_minus_a_third_goes_on_below_it_diverges(mesh):
    """Curvature pulls the root -1 into the unit circle; below, it is outside where the curvature is small."""
    graphs = {"at": RING, "below": topologies.hypercube(3)}
    cases = {name: d2(STEP, graph, allow_unproven=True) for name, graph in graphs.items()}
    on = {name: problems.random_quadratic(graph.n, D, heterogeneity=2.0, seed=1) for name, graph in graphs.items()}
    result = dsgd.run(cases["at"], on["at"], steps=2_000, key=jax.random.key(0), mesh=mesh, record_every=500)
    np.testing.assert_allclose(result.params, on["at"].constants.minimizer, rtol=0, atol=1e-4)
    assert result.history["consensus"][-1] < 1e-6
    with pytest.raises(dsgd.Diverged):
        dsgd.run(cases["below"], on["below"], steps=2_000, key=jax.random.key(0), mesh=mesh, record_every=500)


def test_a_graph_in_two_parts_is_refused_before_any_method_sees_it():
    with pytest.raises(ValueError, match=r"two pairs: the graph falls into 2 components, one of them workers \{0, 1\}; need a connected"):
        decentralized_sgd(STEP, topologies.from_matrix(np.kron(np.eye(2), np.full((2, 2), 0.5)), name="two pairs"))


@pytest.mark.parametrize("method", [choco_sgd, deepsqueeze], ids=lambda method: method.__name__)
def test_a_step_of_the_consensus_outside_0_to_1_is_refused(method):
    for eta in (0.0, -1.0, 1.5, float("nan"), 0):
        with pytest.raises(ValueError, match=rf"^{method.__name__}: consensus_step = {eta}: need a number in \(0, 1\]"):
            method(STEP, RING, compressors.sign, eta)
    method(STEP, RING, compressors.sign, 1)


@pytest.mark.parametrize("method", [choco_sgd, deepsqueeze], ids=lambda method: method.__name__)
def test_a_compressor_that_is_no_contraction_of_the_models_layers_is_refused_at_the_start(method, mesh):
    """A layer of one element is sent whole."""
    qsgd = compressors.qsgd(1)
    need = r"^{} with qsgd\(1\), which states no contraction for vectors of {} elements: need one that does; compressors\.contraction"
    with pytest.raises(ValueError, match=need.format(method.__name__, 12)):
        dsgd.run(method(STEP, RING, qsgd, 0.1), problems.random_quadratic(N, 12), steps=1, key=jax.random.key(0), mesh=mesh)
    layers = {"bias": jnp.zeros(1), "weights": jnp.zeros((3, 4))}
    with pytest.raises(ValueError, match=need.format(method.__name__, 12)):
        method(STEP, RING, qsgd, 0.1).init(layers, N)
    with pytest.raises(ValueError, match=r"which states no contraction for vectors of 13 elements"):
        method(STEP, RING, compressors.whole_model(qsgd), 0.1).init(layers, N)
    method(STEP, RING, compressors.contraction(qsgd), 0.1).init(layers, N)
    method(STEP, RING, qsgd, 0.1).init({"bias": jnp.zeros(1)}, N)


@pytest.mark.parametrize("period", [0, -3])
def test_a_period_of_no_rounds_is_refused(period):
    with pytest.raises(ValueError, match=rf"^local_sgd: period = {period}: need an integer, at least 1"):
        local_sgd(STEP, period)


def test_as_many_workers_as_the_graph_has():
    for method in ON_GRAPHS.values():
        with pytest.raises(ValueError, match=r"on ring\(7\): the topology has 7 nodes but the problem has 6 workers; need the same number"):
            dsgd.run(method(topologies.ring(7)), problems.random_quadratic(N, 3), steps=1, key=jax.random.key(0), mesh=1)


def test_registered_defaults_are_the_methods_of_these_files():
    """Names, since two functions that do the same are not equal."""
    for name in ("d2", "extra", "exact-diffusion", "gradient-tracking", "sgp", "choco-sgd", "deepsqueeze", "local-sgd"):
        assert algorithms.make(name, STEP, 8).name.startswith({"sgp": "stochastic_gradient_push"}.get(name, name.replace("-", "_")))


# --- What a coarse type does.


def side_by_side(many: list[dsgd.Problem]) -> dsgd.Problem:
    """Parameters one after another: one run is a run on each."""
    A = [block_diag(*hessians) for hessians in zip(*(np.asarray(problem.data.A, np.float64) for problem in many), strict=True)]
    return problems.quadratic(np.stack(A), np.concatenate([problem.data.b for problem in many], axis=1))


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.long)])
def test_corrected_methods_do_not_drift_on_the_complete_graph_in_float32(devices):
    """Twelve workers: the mean of equal models is rounded, and what a round changes is added up for ever."""
    three = side_by_side([problems.random_quadratic(12, 10, heterogeneity=1.0, seed=seed) for seed in range(3)])
    for factory in (d2, extra, exact_diffusion):
        method = factory(optax.sgd(0.1), topologies.complete(12))
        history = dsgd.run(method, three, steps=20_000, key=jax.random.key(0), record_every=1_000, mesh=devices).history
        assert history["grad_sqnorm"][2:].max() < 1e-12, method.name


def in_bfloat16(start: float = 0.0) -> dsgd.Problem:
    """Worker n pulls towards n, in three dimensions."""

    def loss(x, target):
        return jnp.sum((x - target) ** 2) / 2

    def init(key):
        return jnp.full(3, start, jnp.bfloat16)

    return dsgd.Problem(init, loss, data=jnp.arange(8, dtype=jnp.bfloat16), sample=lambda key, mine: mine)


@pytest.mark.parametrize("factory", [d2, extra, exact_diffusion, gradient_tracking, stochastic_gradient_push])
def test_a_swept_step_size_leaves_the_models_their_type(factory, key):
    graph = topologies.ring(8, topologies.lazy)
    sweep = dsgd.sweep(lambda gamma: factory(optax.sgd(gamma), graph), in_bfloat16(), steps=3, key=key, mesh=1, gamma=[0.1, 0.2])
    assert sweep.params.dtype == jnp.bfloat16


@pytest.mark.parametrize("factory", [choco_sgd, deepsqueeze])
def test_a_swept_consensus_step_leaves_the_models_their_type(factory, key):
    graph = topologies.ring(8)
    sweep = dsgd.sweep(
        lambda eta: factory(optax.sgd(0.1), graph, compressors.sign, eta), in_bfloat16(), steps=3, key=key, mesh=1, eta=[0.1, 0.2]
    )
    assert sweep.params.dtype == jnp.bfloat16


def test_push_divides_by_the_mass_that_there_is(key):
    """Mass that rounding has changed, here by a quarter: the model is that of what the workers query, not of sums."""
    method = stochastic_gradient_push(optax.sgd(0.05), topologies.star(8, topologies.uniform))
    first = dsgd.run(method, in_bfloat16(3.5), steps=20, key=key, mesh=1).state
    heavier = first._replace(workers=first.workers._replace(weight=first.workers.weight * jnp.bfloat16(1.25)))
    result = dsgd.run(method, in_bfloat16(3.5), steps=20, key=key, mesh=1, start=heavier)
    pushed = result.state.workers
    mass = np.asarray(pushed.weight, np.float64).sum()
    assert mass == pytest.approx(10, rel=0.01)
    np.testing.assert_allclose(np.asarray(result.params, np.float64), np.asarray(pushed.params, np.float64).sum(axis=0) / mass, rtol=0.02)
