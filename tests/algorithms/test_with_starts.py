"""Starts that differ between workers: the limits from random starts. (`tests/methods` says which
methods need a common start.)

All runs have six workers, in float64, with exact gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import sampled

import algorithms
import dsgd
import topologies
from dsgd import problems
from tests.algorithms import quadratics
from tests.methods import graphs
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import D, N

T, STEP, SMALL = 2_500, optax.sgd(0.1), optax.sgd(0.02)
LAZY, DIRECTED = graphs.topology("lazy", N), graphs.topology("directed", N)
PULL = topologies.star(N, topologies.pull)
STARTS = 3 * np.random.default_rng(1).normal(size=(N, D))

EXACT: dict[str, Callable[[], dsgd.Algorithm]] = {
    "gradient_tracking": lambda: algorithms.gradient_tracking(STEP, LAZY),
    "atc_tracking": lambda: algorithms.atc_tracking(STEP, LAZY),
    "aug_dgm": lambda: algorithms.aug_dgm(STEP, LAZY),
    "momentum_tracking": lambda: algorithms.momentum_tracking(SMALL, LAZY, 0.8),
    "extra": lambda: algorithms.extra(STEP, LAZY),
    "exact_diffusion": lambda: algorithms.exact_diffusion(STEP, LAZY),
    "d2": lambda: algorithms.d2(STEP, LAZY),
    "nids": lambda: algorithms.nids(0.1, LAZY),
    "k_gt": lambda: algorithms.k_gt(optax.sgd(0.01), LAZY, 2),
    "local_exact_diffusion": lambda: algorithms.local_exact_diffusion(SMALL, LAZY, 3),
    "push_diging": lambda: algorithms.push_diging(SMALL, DIRECTED),
    "push_pull": lambda: algorithms.push_pull(SMALL, PULL, DIRECTED),
    "ab": lambda: algorithms.ab(SMALL, PULL, DIRECTED),
    "pg_extra": lambda: algorithms.pg_extra(0.1, LAZY),
    "proximal_tracking": lambda: algorithms.proximal_tracking(0.1, LAZY),
    "prox_skip": lambda: algorithms.prox_skip(STEP, LAZY, 0.5),
    "dlm": lambda: algorithms.dlm(SMALL, LAZY),
    "lt_admm": lambda: algorithms.lt_admm(STEP, LAZY, 3),
    "relay_sgd": lambda: algorithms.relay_sgd(STEP, topologies.chain(N)),
    "gt_svrg": lambda: algorithms.gt_svrg(STEP, LAZY, 3),
    "gt_hsgd": lambda: algorithms.gt_hsgd(STEP, LAZY, 0.3),
    "lt_admm_vr": lambda: algorithms.lt_admm_vr(STEP, LAZY, 3),
}
BIASED: dict[str, Callable[[], dsgd.Algorithm]] = {
    "decentralized_sgd": lambda: algorithms.decentralized_sgd(STEP, LAZY),
    "dgd": lambda: algorithms.dgd(STEP, LAZY),
    "quasi_global_momentum": lambda: algorithms.quasi_global_momentum(STEP, LAZY, 0.5),
    "decentlam": lambda: algorithms.decentlam(STEP, LAZY, 0.5),
    "stochastic_gradient_push": lambda: algorithms.stochastic_gradient_push(STEP, DIRECTED),
    "noloco": lambda: algorithms.noloco(SMALL, graphs.topology("matchings", N), 2),
    "sparta": lambda: algorithms.sparta(SMALL, 0.3),
}


def as_tree(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Converts models `[N, d]` to the layers of the trajectories' parameters."""
    return jax.vmap(trajectories.tree)(rows)


@cache
def models(make: Callable[[], dsgd.Algorithm], apart: bool) -> np.ndarray:
    """Returns the workers' models before the first round and after each, `[T + 1, N, d]`."""

    def build(of: Any) -> dsgd.Algorithm:
        return algorithms.with_starts(make(), as_tree(STARTS)) if apart else make()

    with jax.enable_x64(True):
        states = quadratics.run(build, (), T).states.workers
    states = getattr(states, "inner", states)  # of variance reduction
    x = trajectories.rows(states.params)
    return x / states.weight[..., None] if hasattr(states, "weight") else x  # of push-sum


@pytest.mark.parametrize("name", sampled(EXACT))
def test_exact_methods_are_exact_from_random_starts(name):
    found = models(EXACT[name], True)
    np.testing.assert_array_equal(found[0], STARTS)
    np.testing.assert_allclose(found[-1], np.tile(quadratics.minimizer(), (N, 1)), atol=1e-9)


@pytest.mark.parametrize("name", sampled(BIASED))
def test_the_limits_of_other_methods_do_not_depend_on_the_starts(name):
    common, found = (models(BIASED[name], apart)[-1] for apart in (False, True))
    np.testing.assert_allclose(found, common, rtol=0, atol=1e-11)


def test_a_run_starts_from_the_given_models(mesh):
    """With two seeds; a function of the parameters gives the same as the models themselves."""
    problem = problems.random_quadratic(8, 3, noise=0.1)
    rows = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    options: Any = {"steps": 3, "key": jax.random.key(0), "seeds": 2, "mesh": mesh}
    given, computed = (
        dsgd.run(
            algorithms.with_starts(algorithms.make("decentralized_sgd", STEP, 8), models),
            problem,
            **options,
        )
        for models in (rows, lambda params: params[None] + jnp.asarray(rows))
    )
    spread = ((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()
    np.testing.assert_allclose(given.history["consensus"][:, 0], spread, rtol=1e-5)
    np.testing.assert_array_equal(given.params, computed.params)
    rows[:] = 0  # the method has its own copy
    assert not np.array_equal(given.params[0], given.params[1])


def test_models_of_other_shapes_are_refused():
    method = algorithms.with_starts(algorithms.make("decentralized_sgd", STEP, 8), np.zeros((7, 3)))
    with pytest.raises(ValueError, match=r"^with_starts: decentralized_sgd.* expected .*\[8, 3\]"):
        method.init(jnp.zeros(3), 8)
