"""Largest stable steps and linear rates, compared with closed forms and with runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import networkx
import numpy as np
import optax
import pytest
from budgets import smoke_cases

import algorithms
import dsgd
import topologies
from dsgd import problems
from theory_checks import linear_rate, stable_step

N, D = 8, 2
L, MU = 2.0, 0.5
RING = topologies.ring(N)
LEAST = RING.smallest_eigenvalue  # -1/3


@cache
def equal() -> dsgd.Problem:
    """Returns workers with equal Hessians diag(L, mu) and different minima."""
    b = np.random.default_rng(0).normal(size=(N, D))
    return problems.quadratic(np.tile([L, MU], (N, 1)), b)


@cache
def different() -> dsgd.Problem:
    return problems.random_quadratic(
        N, D, smoothness=L, strong_convexity=MU, heterogeneity=1.0, seed=1
    )


def ring_factory(method: Callable) -> Callable[[float], dsgd.Algorithm]:
    return lambda step: method(optax.sgd(step), RING)


# Disagreement along an eigenvector of W with the eigenvalue l follows z^2 = s z - m. The first root
# to leave the unit circle is -1, where 1 + s + m = 0, at the smallest l and the largest curvature.
CLOSED = {
    "gradient descent": (lambda step: algorithms.gradient_descent(optax.sgd(step)), 2 / L),
    "heavy ball": (
        lambda step: algorithms.gradient_descent(optax.sgd(step, momentum=0.6)),
        2 * (1 + 0.6) / L,
    ),
    "local SGD": (lambda step: algorithms.local_sgd(optax.sgd(step), 3), 2 / L),
    "exact diffusion": (ring_factory(algorithms.exact_diffusion), 2 / L),
    # With four local steps, m = l (1 - gamma h)^4, and the root 1 is met at gamma h = 2.
    "LED": (
        lambda step: algorithms.local_exact_diffusion(
            optax.sgd(step), topologies.ring(N, topologies.lazy), 4
        ),
        2 / L,
    ),
    "decentralized SGD": (ring_factory(algorithms.decentralized_sgd), 2 / L),
    # s = 1 + l - gamma h, m = (1 + l) / 2 - gamma h
    "EXTRA": (ring_factory(algorithms.extra), (2 + LEAST + (1 + LEAST) / 2) / (2 * L)),
    # s = 2 l - gamma h, m = l^2 - gamma h
    "DIGing": (ring_factory(algorithms.gradient_tracking), (1 + LEAST) ** 2 / (2 * L)),
}


@pytest.mark.parametrize("name", CLOSED)
def test_the_stable_step_with_equal_hessians_has_its_closed_form(name):
    method, expected = CLOSED[name]
    assert stable_step(method, equal()) == pytest.approx(expected, rel=1e-6)


def test_the_rate_of_heavy_ball_is_the_root_of_its_momentum():
    def method(step):
        return algorithms.gradient_descent(optax.sgd(step, momentum=0.64))

    assert linear_rate(method, equal(), 0.5) == pytest.approx(0.8, rel=1e-9)


def test_the_rate_is_per_round_although_models_are_averaged_in_every_third_one():
    rate = linear_rate(lambda step: algorithms.local_sgd(optax.sgd(step), 3), equal(), 0.1)
    assert rate == pytest.approx(1 - 0.1 * MU, rel=1e-9)


def directed_graph() -> dsgd.Topology:
    """Returns a graph in which some workers send to more workers than others."""
    links = [(n, (n + k) % N) for n in range(N) for k in (1, 2, 5)[: 1 + n % 3]]
    return topologies.from_graph(networkx.DiGraph(links), topologies.uniform)


SCHEDULE = topologies.one_peer_exponential(N)
METHODS = {
    "fixed graph": ring_factory(algorithms.gradient_tracking),
    "schedule": lambda step: algorithms.gradient_tracking(optax.sgd(step), SCHEDULE),
    "local steps": lambda step: algorithms.scaffold(optax.sgd(step), 4),
    "push-sum": lambda step: algorithms.stochastic_gradient_push(optax.sgd(step), directed_graph()),
}


NAMED = (
    *("decentralized_sgd", "dgd", "d2", "extra", "exact_diffusion", "nids", "pg_extra"),
    *("gradient_tracking", "atc_tracking", "aug_dgm", "proximal_tracking", "momentum_tracking"),
    *(
        "k_gt",
        "local_exact_diffusion",
        "lt_admm",
        "dlm",
        "quasi_global_momentum",
        "decentlam",
        "push_diging",
        "push_pull",
        "ab",
    ),
    *("gt_svrg", "gt_sarah", "gt_hsgd", "lt_admm_vr", "scaffold", "fed_dyn", "mime"),
)


def method(name: str) -> Callable[[float], dsgd.Algorithm]:
    return METHODS.get(name) or (lambda step: algorithms.make(name, optax.sgd(step), N))


@pytest.mark.parametrize("name", smoke_cases((*METHODS, *NAMED), {*METHODS, "lt_admm"}))
def test_runs_converge_below_the_stable_step_and_diverge_above_it(name):
    steps = stable_step(method(name), different()) * np.array([0.9, 1.1])
    found = dsgd.sweep(method(name), different(), steps=800, key=jax.random.key(0), step=steps)
    size = np.abs(found.history["loss"]) + found.history["consensus"]
    (below, above) = size[:, 0]
    assert below[800] < 2 * below[400]
    assert not above[800] < 100 * above[400]


def test_the_rate_is_that_of_a_run():
    step = 0.05
    rate = linear_rate(METHODS["schedule"], different(), step)
    with jax.enable_x64(True):
        found = dsgd.run(METHODS["schedule"](step), different(), steps=450, key=jax.random.key(0))
    slopes = found.history["grad_sqnorm"]
    measured = (slopes[450] / slopes[300]) ** (1 / 300)  # of squares
    assert measured == pytest.approx(rate, rel=1e-3)


def changed_descent(step: float, change: Callable) -> dsgd.Algorithm:
    """Returns gradient descent with changed gradients."""
    of_gradients = optax.stateless(lambda g, x: jax.tree.map(change, g))
    return algorithms.gradient_descent(optax.chain(of_gradients, optax.sgd(step)))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        # Affine at two of the three sizes that are probed.
        (
            lambda step: changed_descent(step, lambda g: jnp.clip(g, -30, 30)),
            "not affine in the start",
        ),
        (
            lambda step: changed_descent(step, lambda g: jnp.where(jnp.abs(g) < 1e-3, 0, g)),
            "not affine in the start",
        ),
        # One round in 50 differs.
        (lambda step: algorithms.scaffnew(optax.sgd(step), 0.02), "draws random numbers"),
        (
            lambda step: algorithms.gradient_descent(optax.sgd(lambda count: step)),
            "states contain numbers other than floating-point ones that change",
        ),
        (
            lambda step: algorithms.local_sgd(optax.sgd(step), 65),
            "do not repeat within 64 rounds",
        ),
    ],
)
def test_a_method_that_is_not_a_linear_iteration_is_refused(method, message):
    with pytest.raises(ValueError, match=message):
        stable_step(method, different())


def test_a_method_that_does_not_converge_is_refused():
    W = topologies.from_matrix(1.4 * RING.W - 0.4 * np.eye(N), "far_from_lazy")
    with pytest.raises(ValueError, match=r"does not converge with the step 0\.001 / L"):
        stable_step(
            lambda step: algorithms.d2(optax.sgd(step), W, allow_unproven=True), different()
        )
