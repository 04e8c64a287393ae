"""Variance reduction with a server and in gradient tracking: limits with single samples, the
recursions of SAGA in numpy, and methods that coincide.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import sampled, smoke_cases

import algorithms
import dsgd
import topologies
from algorithms import memories
from dsgd import Query, State, compressors, network, problems

N, D, T = 5, 3, 40
KEY, RING = jax.random.key(3), topologies.ring(N)
GAMMA, STEP = 0.05, optax.sgd(0.05)
TWO = compressors.random_k(0.6)  # two of three elements
SHRUNK = compressors.contraction(TWO)
SIZES = (4, 6, 3, 5, 6)
PARTS = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
RNG = np.random.default_rng(2)
INPUTS, TARGETS = RNG.normal(size=(sum(SIZES), D)), RNG.normal(size=sum(SIZES))
MODEL = problems.Model(lambda key: jnp.zeros(D), lambda params, inputs: inputs @ params)


@cache
def regression(batch_size: int = 1) -> dsgd.Problem:
    """Returns least squares of single samples, of workers with different numbers of samples."""
    return problems.finite_sum(
        MODEL,
        lambda outputs, targets: (outputs - targets) ** 2 / 2,
        (INPUTS, TARGETS),
        workers=N,
        partition=PARTS,
        batch_size=batch_size,
    )


def sample_gradient(n: int, sample: int, x: np.ndarray) -> np.ndarray:
    row = PARTS[n][sample]
    return (INPUTS[row] @ x - TARGETS[row]) * INPUTS[row]


def run(method: dsgd.Algorithm, *, mesh: int, steps: int = T) -> dsgd.Result:
    """Returns a run in float64."""
    with jax.enable_x64(True):
        of = regression.__wrapped__()
        return dsgd.run(method, of, steps=steps, key=KEY, record_every=steps, mesh=mesh)


METHODS = {
    "gt_svrg": algorithms.gt_svrg(STEP, RING, 6),
    "gt_vr": algorithms.gt_vr(STEP, RING, 0.2),
    "gt_sarah": algorithms.gt_sarah(STEP, RING, 6),
    "gt_saga": algorithms.gt_saga(STEP, RING, max(SIZES)),
    "lt_admm_vr": algorithms.lt_admm_vr(STEP, RING, 3, correction_step=0.1),
    "page": algorithms.page(STEP, 0.2),
    "loopless_svrg": algorithms.loopless_svrg(STEP, 0.2),
    "saga": algorithms.saga(STEP, max(SIZES)),
    "vr_marina": algorithms.vr_marina(STEP, TWO, 0.2),
    "VR-DIANA": algorithms.with_loopless_svrg(
        algorithms.error_feedback(STEP, memories.Up(TWO, shift=0.5)), 0.2
    ),
    "EF21-PAGE": algorithms.with_page(
        algorithms.ef21(STEP, compressors.top_k(0.4), compressors.identity), 0.2
    ),
    "3PC on SAGA": algorithms.with_saga(
        algorithms.three_point(STEP, algorithms.three_points.v2(SHRUNK, TWO)), max(SIZES)
    ),
}


@pytest.mark.parametrize("name", sampled(METHODS))
def test_single_samples_lead_to_the_optimum(name):
    found = run(METHODS[name], steps=4_000, mesh=1)
    assert found.history["grad_sqnorm"][-1] < 1e-20
    assert found.history.get("consensus", [0])[-1] < 1e-20


def test_without_variance_reduction_the_same_steps_do_not():
    history = run(algorithms.aug_dgm(STEP, RING), steps=4_000, mesh=1).history
    assert history["grad_sqnorm"][-1] > 1e-6


SOME_COMPUTE = {
    "gt_svrg": algorithms.gt_svrg(STEP, RING, 5),
    "gt_sarah": algorithms.gt_sarah(STEP, RING, 5),
    "lt_admm_vr": algorithms.lt_admm_vr(STEP, RING, 5),
    "page": algorithms.page(STEP, 0.2),
    "loopless_svrg": algorithms.loopless_svrg(STEP, 0.2),
}


@pytest.mark.parametrize("name", smoke_cases(SOME_COMPUTE, {"gt_sarah", "page"}))
def test_a_worker_that_computes_nothing_keeps_what_its_estimate_is_computed_from(name):
    """In every fourth round, and thus in every fourth that computes exact gradients, one of the
    workers computes nothing. The first exact gradients are computed by all.
    """

    def given(state: State, round: dsgd.Round) -> dsgd.LocalWork:
        away = (jnp.arange(N) == 1) & (round.step % 4 == 1)
        samples = jnp.where(away, 0, 1)[:, None]
        return dsgd.LocalWork(samples, jnp.ones((N, 1)))

    found = run(algorithms.with_local_work(SOME_COMPUTE[name], given), steps=4_000, mesh=1)
    assert found.history["grad_sqnorm"][-1] < 1e-20


def draws(steps: int, count: int) -> np.ndarray:
    """Returns the samples that methods draw in a run with the same key, int `[steps, N, count]`."""
    recorder = dsgd.Algorithm(
        "recorder",
        lambda params, N: State((params, jnp.zeros((steps, N, count), jnp.int32))),
        lambda state, round: Query(state.server[0]),
        lambda state, gradients, round: State(
            (state.server[0], state.server[1].at[round.step].set(round.draw_samples(count)))
        ),
        lambda state: state.server[0],
    )
    return np.asarray(run(recorder, steps=steps, mesh=1).state.server[1])


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.long), 5])
def test_gt_saga_follows_its_recursion(devices):
    """Xin, Khan and Kar: one gradient of the table is renewed in every round."""
    W, X, Y, last = RING.W, np.zeros((N, D)), np.zeros((N, D)), np.zeros((N, D))
    tables = [np.stack([sample_gradient(n, l, X[n]) for l in range(SIZES[n])]) for n in range(N)]
    drawn, models = draws(T, 2), []
    for tau, s in drawn.transpose(0, 2, 1):
        V = np.stack(
            [
                sample_gradient(n, tau[n], X[n]) - tables[n][tau[n]] + tables[n].mean(axis=0)
                for n in range(N)
            ]
        )
        for n in range(N):
            tables[n][s[n]] = sample_gradient(n, s[n], X[n])
        Y, last = W @ (Y + V - last), V
        X = W @ (X - GAMMA * Y)
        models.append(X)
    found = run(METHODS["gt_saga"], mesh=devices).state
    np.testing.assert_allclose(found.workers.inner.params, X, atol=1e-13)
    np.testing.assert_allclose(found.workers.inner.tracker, Y, atol=1e-13)
    np.testing.assert_allclose(
        found.workers.memory.mean, [table.mean(axis=0) for table in tables], atol=1e-13
    )


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.long), 5])
def test_saga_follows_its_recursion(devices):
    x = np.zeros(D)
    tables = [np.stack([sample_gradient(n, l, x) for l in range(SIZES[n])]) for n in range(N)]
    for tau in draws(T, 1)[..., 0]:
        g = [sample_gradient(n, tau[n], x) for n in range(N)]
        v = [g[n] - tables[n][tau[n]] + tables[n].mean(axis=0) for n in range(N)]
        for n in range(N):
            tables[n][tau[n]] = g[n]
        x = x - GAMMA * np.mean(v, axis=0)
    found = run(METHODS["saga"], mesh=devices)
    np.testing.assert_allclose(found.params, x, atol=1e-13)
    np.testing.assert_allclose(
        found.state.workers.memory.mean, [table.mean(axis=0) for table in tables], atol=1e-13
    )


def test_a_table_with_too_few_rows_is_refused():
    with pytest.raises(ValueError, match=r"gt_saga.*: samples = 5, .* has 6 samples; expected at"):
        dsgd.run(algorithms.gt_saga(STEP, RING, 5), regression(), steps=1, key=KEY)


def test_a_problem_without_samples_is_refused():
    quadratic = problems.random_quadratic(N, D)
    with pytest.raises(ValueError, match="numbers of samples are not known"):
        dsgd.run(METHODS["gt_saga"], quadratic, steps=1, key=KEY)


BY_SAGA = {
    "gt_saga": METHODS["gt_saga"],
    "saga": algorithms.saga(STEP, max(SIZES), via=network.star),
}


@pytest.mark.parametrize("name", smoke_cases(BY_SAGA, {"saga"}))
def test_saga_satisfies_the_contract(name):
    dsgd.check(BY_SAGA[name], regression(), key=KEY).require()


def test_a_method_that_queries_exact_gradients_is_refused():
    method = algorithms.with_page(algorithms.gradient_descent(STEP), 0.5)
    with pytest.raises(ValueError, match=r"gradient_descent with PAGE: gradient_descent queries s"):
        dsgd.run(method, regression(), steps=1, key=KEY)
