"""Decentralized methods: runs on schedules, rounding, types, warm starts, and invalid arguments,
which their recursions (`tests.methods`) do not show.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
from budgets import smoke_cases
from scipy.linalg import block_diag

import dsgd
import topologies
from algorithms import (
    asynchronous_gossip_sgd,
    atc_tracking,
    aug_dgm,
    beer,
    c_gt,
    choco_sgd,
    d2,
    dcd_sgd,
    decentlam,
    decentralized_sgd,
    deepsqueeze,
    dgd,
    dlm,
    ecd_sgd,
    exact_diffusion,
    extra,
    gradient_tracking,
    gt_hsgd,
    gt_saga,
    gt_sarah,
    gt_svrg,
    gt_vr,
    k_gt,
    lead,
    local_exact_diffusion,
    local_sgd,
    lt_admm,
    momentum_tracking,
    motef,
    nids,
    opapc,
    pg_extra,
    prox_skip,
    proximal_tracking,
    quasi_global_momentum,
    stochastic_gradient_push,
)
from algorithms.mechanisms.corrections import add_up, start_corrected
from algorithms.optimizers import Model
from dsgd import compressors, problems

N, D, GAMMA = 6, 6, 0.2
STEP = optax.sgd(GAMMA)
RING, ONE_PEER, MATCHINGS = (
    topologies.ring(N),
    topologies.one_peer_exponential(N),
    topologies.random_matchings(N, 5),
)


def quadratic(n: int = N, seed: int = 1) -> dsgd.Problem:
    return problems.random_quadratic(n, D, heterogeneity=2.0, seed=seed)


# --- Through `dsgd.run`: which matrix in which round.


def test_a_run_takes_each_rounds_matrix_between_records_and_after_a_stop(tmp_path, mesh):
    """Two seeds, records every 4 rounds, a stop after 5 (between two records), an end after 23;
    every other round averages. The result equals the run without a stop, which `tests.methods`
    compares with the recursion.
    """
    method, options = local_sgd(STEP, 2, ONE_PEER), {"key": jax.random.key(0), "seeds": 2}
    straight = dsgd.run(method, quadratic(), steps=23, mesh=mesh, **options)
    options |= {"record_every": 4, "checkpoint": tmp_path / "run"}
    for steps in (5, 23):
        result = dsgd.run(method, quadratic(), steps=steps, mesh=mesh, **options)
    np.testing.assert_allclose(result.state.workers.params, straight.state.workers.params, 1e-5)
    step = result.history["step"]
    for name in ("bits", "consensus", "loss"):
        expected = straight.history[name][:, step]
        np.testing.assert_allclose(result.history[name], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(result.history["bits"], [2 * 32 * D * (step // 2)] * 2)


# --- Rounding errors.


def side_by_side(many: list[dsgd.Problem]) -> dsgd.Problem:
    """Returns parameters side by side: one run is a run on each of them."""
    A = [
        block_diag(*hessians)
        for hessians in zip(
            *(np.asarray(problem.data.A, np.float64) for problem in many), strict=True
        )
    ]
    return problems.quadratic(
        np.stack(A), np.concatenate([problem.data.b for problem in many], axis=1)
    )


def led(optimizer: optax.GradientTransformation, topology: dsgd.Topology) -> dsgd.Algorithm:
    """Returns LED with beta = 1 / 3, which is rounded."""
    return local_exact_diffusion(optimizer, topology, 3)


def tracked(optimizer: optax.GradientTransformation, topology: dsgd.Topology) -> dsgd.Algorithm:
    """Returns K-GT."""
    return k_gt(optimizer, topology, 3)


@pytest.mark.parametrize("factory", [d2, extra, led, tracked])
def test_corrected_methods_do_not_drift_on_the_complete_graph_in_float32(factory):
    """Twelve workers: the mean of equal models is rounded, and the changes of all rounds
    accumulate.
    """
    three = side_by_side(
        [problems.random_quadratic(12, 10, heterogeneity=1.0, seed=seed) for seed in range(3)]
    )
    method = factory(optax.sgd(0.1), topologies.complete(12))
    history = dsgd.run(
        method, three, steps=20_000, key=jax.random.key(0), record_every=1_000, mesh=1
    ).history
    assert history["grad_sqnorm"][2:].max() < 1e-12


@pytest.mark.parametrize("factory", [gradient_tracking, atc_tracking, aug_dgm])
def test_in_float32_gradient_tracking_stays_at_the_optimum(factory, mesh):
    """The mean of its trackers is that of the gradients up to rounding, which must not accumulate:
    after 20,000 rounds a drift of a tenth of a rounding in each would be visible. Gradients are
    exact up to a few roundings of b, hence the optimum up to that over mu.
    """
    problem = quadratic()
    result = dsgd.run(
        factory(STEP, ONE_PEER),
        problem,
        steps=20_000,
        key=jax.random.key(0),
        mesh=mesh,
        record_every=1_000,
    )
    rounding = (
        np.finfo(np.float32).eps * np.abs(problem.data.b).max() / problem.constants.strong_convexity
    )
    np.testing.assert_allclose(
        result.state.workers.params,
        np.tile(problem.constants.minimizer, (N, 1)),
        rtol=0,
        atol=4 * rounding,
    )


def in_bfloat16(start: float = 0.0) -> dsgd.Problem:
    """Returns a problem in which worker n pulls towards n, in three dimensions."""

    def loss(x, target):
        return jnp.sum((x - target) ** 2) / 2

    def init(key):
        return jnp.full(3, start, jnp.bfloat16)

    return dsgd.Problem(
        init, loss, data=jnp.arange(8, dtype=jnp.bfloat16), sample=lambda key, mine: mine
    )


LAZY = topologies.ring(8, topologies.lazy)
SWEPT: dict[str, Callable[[float], dsgd.Algorithm]] = {
    "d2": lambda number: d2(optax.sgd(number), LAZY),
    "extra": lambda number: extra(optax.sgd(number), LAZY),
    "quasi-global momentum": lambda number: quasi_global_momentum(
        optax.sgd(0.1), LAZY, number, nesterov=True
    ),
    "decentlam": lambda number: decentlam(optax.sgd(0.1), LAZY, number),
    "momentum tracking": lambda number: momentum_tracking(optax.sgd(0.1), LAZY, number),
    "k_gt, consensus step": lambda number: k_gt(optax.sgd(0.1), LAZY, 2, number),
    "local_exact_diffusion, correction": lambda number: local_exact_diffusion(
        optax.sgd(0.1), LAZY, 2, number
    ),
    "prox_skip, probability": lambda number: prox_skip(optax.sgd(0.1), LAZY, number),
    "nids": lambda number: nids(number, LAZY),
    "nids, coupling": lambda number: nids(0.1, LAZY, number),
    "pg_extra": lambda number: pg_extra(number, LAZY),
    "proximal tracking": lambda number: proximal_tracking(number, LAZY),
    "push": lambda number: stochastic_gradient_push(optax.sgd(number), LAZY),
    "choco, consensus step": lambda number: choco_sgd(
        optax.sgd(0.1), LAZY, compressors.sign, number
    ),
    "lead, both steps": lambda number: lead(
        optax.sgd(0.1), LAZY, compressors.ternary, number, number
    ),
    "motef, both steps": lambda number: motef(
        optax.sgd(0.05), LAZY, compressors.sign, number, number
    ),
    "c_gt, both steps": lambda number: c_gt(
        optax.sgd(0.05), LAZY, compressors.ternary, number, number
    ),
    "deepsqueeze, consensus step": lambda number: deepsqueeze(
        optax.sgd(0.1), LAZY, compressors.sign, number
    ),
}


@pytest.mark.parametrize("factory", smoke_cases(SWEPT, {*list(SWEPT)[::4]}))
def test_a_swept_number_keeps_the_models_type_and_equals_a_single_run(factory, key):
    sweep = dsgd.sweep(SWEPT[factory], in_bfloat16(), steps=3, key=key, mesh=1, number=[0.125, 0.5])
    assert sweep.params.dtype == jnp.bfloat16
    alone = dsgd.run(SWEPT[factory](0.5), in_bfloat16(), steps=3, key=key, mesh=1).params
    np.testing.assert_allclose(
        np.asarray(sweep.params[1, 0], float), np.asarray(alone, float), rtol=0.02
    )


def test_ecd_in_float16_continues_after_more_rounds_than_float16_counts(key):
    """It is DGD with an identity compressor, up to rounding."""
    problem = in_bfloat16()._replace(
        init=lambda key: jnp.zeros(3, jnp.float16), data=jnp.arange(8, dtype=jnp.float16)
    )

    def after(method):
        run = {"steps": 3, "key": key, "mesh": 1}
        late = dsgd.run(method, problem, **run).state._replace(step=jnp.int32(140_000))
        return np.asarray(dsgd.run(method, problem, start=late, **run).params, float)

    found = after(ecd_sgd(STEP, LAZY, compressors.identity))
    np.testing.assert_allclose(found, after(dgd(STEP, LAZY)), rtol=0.01)


def test_push_sum_divides_by_the_actual_weights(key):
    """If rounding has changed the weights, here by a quarter, the models are those that workers
    query, not the sums.
    """
    method = stochastic_gradient_push(optax.sgd(0.05), topologies.star(8, topologies.uniform))
    first = dsgd.run(method, in_bfloat16(3.5), steps=20, key=key, mesh=1).state
    heavier = first._replace(
        workers=first.workers._replace(weight=first.workers.weight * jnp.bfloat16(1.25))
    )
    result = dsgd.run(method, in_bfloat16(3.5), steps=20, key=key, mesh=1, start=heavier)
    pushed = result.state.workers
    mass = np.asarray(pushed.weight, np.float64).sum()
    assert mass == pytest.approx(10, rel=0.01)
    np.testing.assert_allclose(
        np.asarray(result.params, np.float64),
        np.asarray(pushed.params, np.float64).sum(axis=0) / mass,
        rtol=0.02,
    )


# --- Invalid arguments.

DIRECTED = topologies.from_graph(
    nx.DiGraph([*((i, (i + 1) % N) for i in range(N)), (0, 2), (0, 3), (3, 1)]), name="directed"
)
ON_GRAPHS: dict[str, Callable[[dsgd.Topology], dsgd.Algorithm]] = {
    "decentralized_sgd": lambda graph: decentralized_sgd(STEP, graph),
    "dgd": lambda graph: dgd(STEP, graph),
    "quasi_global_momentum": lambda graph: quasi_global_momentum(STEP, graph),
    "decentlam": lambda graph: decentlam(STEP, graph),
    "local_sgd": lambda graph: local_sgd(STEP, 2, graph),
    "gradient_tracking": lambda graph: gradient_tracking(STEP, graph),
    "atc_tracking": lambda graph: atc_tracking(STEP, graph),
    "k_gt": lambda graph: k_gt(STEP, graph, 2),
    "local_exact_diffusion": lambda graph: local_exact_diffusion(STEP, graph, 2),
    "prox_skip": lambda graph: prox_skip(STEP, graph, 0.5),
    "aug_dgm": lambda graph: aug_dgm(STEP, graph),
    "gt_svrg": lambda graph: gt_svrg(STEP, graph, 2),
    "gt_vr": lambda graph: gt_vr(STEP, graph, 0.5),
    "gt_sarah": lambda graph: gt_sarah(STEP, graph, 2),
    "gt_hsgd": lambda graph: gt_hsgd(STEP, graph, 0.5),
    "gt_saga": lambda graph: gt_saga(STEP, graph, 1),
    "momentum_tracking": lambda graph: momentum_tracking(STEP, graph),
    "d2": lambda graph: d2(STEP, graph),
    "extra": lambda graph: extra(STEP, graph),
    "nids": lambda graph: nids(GAMMA, graph),
    "pg_extra": lambda graph: pg_extra(GAMMA, graph),
    "proximal_tracking": lambda graph: proximal_tracking(GAMMA, graph),
    "exact_diffusion": lambda graph: exact_diffusion(STEP, graph),
    "choco_sgd": lambda graph: choco_sgd(STEP, graph, compressors.sign, 0.1),
    "deepsqueeze": lambda graph: deepsqueeze(STEP, graph, compressors.sign, 0.1),
    "dcd_sgd": lambda graph: dcd_sgd(STEP, graph, compressors.identity),
    "ecd_sgd": lambda graph: ecd_sgd(STEP, graph, compressors.identity),
    "lead": lambda graph: lead(STEP, graph, compressors.identity),
    "beer": lambda graph: beer(STEP, graph, compressors.sign, 0.1),
    "c_gt": lambda graph: c_gt(STEP, graph, compressors.sign, 0.1, 0.5),
    "motef": lambda graph: motef(STEP, graph, compressors.sign, 0.1, 0.5),
    "dlm": lambda graph: dlm(STEP, graph),
    "lt_admm": lambda graph: lt_admm(STEP, graph),
    "opapc": lambda graph: opapc(graph, 1.0, 0.1),
    "asynchronous_gossip_sgd": lambda graph: asynchronous_gossip_sgd(STEP, graph),
}
ANY_DOUBLY_STOCHASTIC = (
    *("decentralized_sgd", "local_sgd", "gradient_tracking", "k_gt"),
    *("atc_tracking", "aug_dgm", "momentum_tracking", "proximal_tracking"),
    *("gt_svrg", "gt_vr", "gt_sarah", "gt_hsgd", "gt_saga"),
    *("dgd", "quasi_global_momentum", "decentlam"),
)
SCHEDULES = (*ANY_DOUBLY_STOCHASTIC, "deepsqueeze")


@pytest.mark.parametrize("name", ON_GRAPHS)
def test_a_graph_that_a_method_cannot_use_is_refused(name):
    """Rows that do not sum to 1, a W that is not symmetric, a schedule, and another number of
    workers.
    """
    symmetric, exponential = name not in ANY_DOUBLY_STOCHASTIC, topologies.exponential(N)
    rows = "W of directed is not symmetric" if symmetric else "rows of W of directed do not sum"
    refused = [(DIRECTED, rows)]
    if symmetric:
        refused.append((exponential, r"W of exponential\(6\) is not symmetric"))
    if name not in SCHEDULES:
        refused.append((MATCHINGS, r"random_matchings\(6, 5, 0\) .*schedule"))
    for graph, words in refused:
        with pytest.raises(ValueError, match=f"^{name}: .*{words}"):
            ON_GRAPHS[name](graph)
    with pytest.raises(ValueError, match=r"on ring\(7\): .* 7 nodes .* 6 workers"):
        ON_GRAPHS[name](topologies.ring(7)).init(jnp.zeros(D), N)


def test_factors_of_steps_are_one_positive_number_for_each_worker():
    for factors, words in (
        ([1.0] * 5, "but .* has 6 nodes; expected one number"),
        ([1.0] * 5 + [0.0], "0.0"),
    ):
        with pytest.raises(ValueError, match=f"^aug_dgm: step_factors .*{words}"):
            aug_dgm(STEP, RING, factors)
        with pytest.raises(ValueError, match=f"^aug_dgm: step_factors .*{words}"):
            aug_dgm(STEP, RING, np.array(factors))


COMPRESSED = ("choco_sgd", "deepsqueeze", "dcd_sgd", "ecd_sgd", "lead", "beer", "c_gt", "motef")


@pytest.mark.parametrize("name", COMPRESSED)
def test_accelerated_gossip_of_compressed_messages_is_refused(name):
    with pytest.raises(ValueError, match=rf"^{name} on chebyshev.*: a round has 2 exchanges"):
        ON_GRAPHS[name](topologies.chebyshev(RING, 2))


def test_d2_refuses_an_eigenvalue_at_or_below_minus_a_third():
    """At -1/3 one of the recursion's roots is -1."""
    for graph in (RING, topologies.ring(8), topologies.hypercube(3)):
        with pytest.raises(
            ValueError, match=r"^d2: W of .* has the eigenvalue -0\.\d+.*allow_unproven"
        ):
            d2(STEP, graph)
        d2(STEP, graph, allow_unproven=True)
    d2(STEP, LAZY)
    d2(STEP, topologies.ring(7))


@pytest.mark.parametrize(
    "method", [choco_sgd, deepsqueeze, beer], ids=lambda method: method.__name__
)
def test_a_consensus_step_or_a_compressor_that_does_not_contract_is_refused(method):
    """A layer of one element is sent whole."""
    for eta in (0.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"^{method.__name__}: consensus_step = {eta}"):
            method(STEP, RING, compressors.sign, eta)
    method(STEP, RING, compressors.sign, 1)
    qsgd, layers = compressors.qsgd(1), {"bias": jnp.zeros(1), "weights": jnp.zeros((3, 4))}
    words = rf"^{method.__name__}.*qsgd\(1\).*no contraction for vectors of {{}} elements"
    for compressor, elements in ((qsgd, 12), (compressors.whole_model(qsgd), 13)):
        with pytest.raises(ValueError, match=words.format(elements)):
            method(STEP, RING, compressor, 0.1).init(layers, N)
    method(STEP, RING, compressors.contraction(qsgd), 0.1).init(layers, N)
    method(STEP, RING, qsgd, 0.1).init({"bias": jnp.zeros(1)}, N)


@pytest.mark.parametrize("method", [lead, dcd_sgd, ecd_sgd], ids=lambda method: method.__name__)
def test_a_biased_compressor_is_refused_by_methods_that_need_an_unbiased_one(method):
    with pytest.raises(ValueError, match=f"^{method.__name__}: the compressor sign is biased"):
        method(STEP, RING, compressors.sign)


def test_a_damped_memory_takes_unbiased_compressors_and_contractions_only():
    neither = compressors.qsgd(1)._replace(omega=None, name="neither")
    with pytest.raises(ValueError, match=r"^c_gt: neither states no contraction"):
        c_gt(STEP, RING, neither, 0.1, 0.5).init(jnp.zeros(D), N)
    for compressor in (compressors.qsgd(1), compressors.sign):
        c_gt(STEP, RING, compressor, 0.1, 0.5).init(jnp.zeros(D), N)
    for wrong in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"^c_gt: memory_step = {wrong}"):
            c_gt(STEP, RING, compressors.sign, 0.1, wrong)
        with pytest.raises(ValueError, match=f"^lead: memory_step = {wrong}"):
            lead(STEP, RING, compressors.ternary, memory_step=wrong)
        with pytest.raises(ValueError, match=f"^motef: momentum_step = {wrong}"):
            motef(STEP, RING, compressors.sign, 0.1, wrong)


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
