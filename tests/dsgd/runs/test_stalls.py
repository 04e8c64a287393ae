"""Runs in float32 that end at the resolution of float32, and runs that end elsewhere."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import problems
from dsgd.runs import stalls

EPS = 2.0**-23
RNG = np.random.default_rng(3)
START = 7.0


def history(norms: Any, losses: Any = 0.6, kind: type = np.float32) -> dict[str, np.ndarray]:
    """Returns a history of 80 records that ends with these gradient norms and losses."""
    sqnorm, loss = np.geomspace(START, 1e-2, 80) ** 2, np.linspace(5, 0.6, 80)
    sqnorm[-20:], loss[-20:] = np.square(norms), losses
    return {"step": np.arange(80), "loss": loss.astype(kind), "grad_sqnorm": sqnorm.astype(kind)}


FLOOR = 40 * EPS * START
NOISE = FLOOR * RNG.uniform(0.5, 1.5, 20)
STALLED = {
    "constant": history(FLOOR),
    "a minimum of 0": history(NOISE, 8e-10 * RNG.uniform(0.1, 5, 20)),
    "varying": history(NOISE, 0.6 * (1 + EPS * RNG.integers(-4, 4, 20))),
}
OTHER = {
    "a biased limit": history(800 * EPS * START),
    "noise of samples": history(NOISE, 0.6 * (1 + 40 * EPS * RNG.integers(-4, 4, 20))),
    "slow convergence": history(FLOOR * np.linspace(1.1, 1, 20)),
    "fast convergence": history(NOISE * np.geomspace(1, 0.05, 20)),
    "an exact solution": history(np.tile([FLOOR, FLOOR, 0.0, FLOOR], 5)),
    "divergence": history(np.inf, np.nan),
    "no gradient": history(np.nan),
    "float64": history(FLOOR, kind=np.float64),
    "few records": {
        name: np.r_[values[:8], values[-20:]] for name, values in history(FLOOR).items()
    },
}


@pytest.mark.parametrize("case", STALLED)
def test_a_gradient_at_the_resolution_of_float32_is_noticed(case):
    assert stalls.stalled(STALLED[case])


@pytest.mark.parametrize("case", OTHER)
def test_other_ends_of_runs_are_not(case):
    assert not stalls.stalled(OTHER[case])


def test_each_run_of_a_sweep_counts_and_other_types_do_not():
    both = {
        name: np.stack([values, OTHER["a biased limit"][name]]) if name != "step" else values
        for name, values in STALLED["constant"].items()
    }
    np.testing.assert_array_equal(stalls.stalled(both), [True, False])
    params = {"w": jnp.ones(2, jnp.float32), "n": jnp.ones(2, jnp.int32)}
    assert "of 1 of 2 runs" in stalls.warning("gd", both, params)
    assert not stalls.warning("gd", both, {**params, "v": jnp.ones(2, jnp.bfloat16)})


def test_the_evaluated_records_and_the_regularized_objective_count():
    spaced = {name: np.repeat(values, 2) for name, values in STALLED["varying"].items()}
    spaced["evaluated"] = np.arange(160) % 2 == 0
    spaced["loss"][1::2] = spaced["grad_sqnorm"][1::2] = np.nan
    assert stalls.stalled(spaced)
    composite = {"objective": spaced["loss"], "prox_grad_sqnorm": spaced["grad_sqnorm"]}
    assert stalls.stalled({**spaced, **composite, "grad_sqnorm": np.full(160, 2, np.float32)})


def test_a_run_warns_and_names_float64():
    problem = problems.random_quadratic(2, 3, heterogeneity=1.0)
    method = algorithms.gradient_descent(optax.sgd(0.5 / float(problem.constants.smoothness or 1)))
    with pytest.warns(UserWarning, match="gradient_descent.*resolution of float32.*x64") as caught:
        dsgd.run(method, problem, steps=400, key=jax.random.key(2), record_every=4, mesh=1)
    assert len(caught) == 1
    with warnings.catch_warnings(action="error"), jax.enable_x64(True):
        exact = problems.random_quadratic(2, 3, heterogeneity=1.0)
        dsgd.run(method, exact, steps=400, key=jax.random.key(2), record_every=4, mesh=1)
