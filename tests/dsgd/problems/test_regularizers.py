"""Regularizers: their proximal steps, the history of a problem that has one, and which methods are
refused on it.
"""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import smoke_cases

import algorithms
import dsgd
import topologies
from algorithms import registry
from dsgd import problems
from dsgd.engine import leaves

KEY = jax.random.key(0)
STEP, PENALTY = 0.7, 0.4
SHAPES = {"kernel": (4, 3), "bias": (3,)}
REGULARIZERS = {
    "l1": problems.l1(PENALTY),
    "rows": problems.group_lasso(PENALTY),
    "leaves": problems.group_lasso(PENALTY, "leaves"),
    "box": problems.box(-0.5, 0.25),
    "nonnegative": problems.nonnegative(),
}


def tree(rng: np.random.Generator, scale: float = 1.0) -> dict[str, jax.Array]:
    return {name: jnp.asarray(scale * rng.normal(size=shape)) for name, shape in SHAPES.items()}


def sqnorm(tree) -> float:
    return sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", REGULARIZERS)
def test_the_proximal_step_minimizes_its_strongly_convex_objective(name):
    r"""At p, the minimizer of the 1/s-strongly convex $\phi(z) = r(z) + |z - x|^2 / (2s)$, $\phi(z)
    \ge \phi(p) + |z - p|^2 / (2s)$ for all z. Points z are near and far, and some are feasible.
    """
    r, rng = REGULARIZERS[name], np.random.default_rng(1)
    with jax.enable_x64(True):
        x = tree(rng)
        p = r.prox(x, STEP)

        def phi(z):
            return float(r.value(z)) + sqnorm(optax.tree.sub(z, x)) / (2 * STEP)

        assert np.isfinite(phi(p))
        assert sqnorm(optax.tree.sub(p, x)) > 1e-3
        finite = 0
        for scale in np.logspace(-4, 0, 12):
            z = optax.tree.add(p, tree(rng, scale))
            along = [
                jax.tree.map(lambda a, b, by=by: a + by * (b - a), p, x) for by in (scale, -scale)
            ]
            for other in (z, r.prox(z, STEP), jax.tree.map(lambda a: 0 * a, z), *along):
                distance = sqnorm(optax.tree.sub(other, p)) / (2 * STEP)
                assert phi(other) >= phi(p) + distance - 1e-13
                finite += np.isfinite(phi(other))
        assert finite >= 24


def test_values_are_those_of_the_formulas():
    x = {"kernel": jnp.array([[3.0, -4.0], [0.0, 0.0]]), "bias": jnp.array([-2.0, 0.5])}
    expected = {
        "l1": PENALTY * 9.5,
        "rows": PENALTY * (2**0.5 * 5 + 2.5),
        "leaves": PENALTY * (2 * 5 + 2**0.5 * 4.25**0.5),
        "box": np.inf,
        "nonnegative": np.inf,
    }
    for name, r in REGULARIZERS.items():
        np.testing.assert_allclose(r.value(x), expected[name], rtol=1e-6)
        zero = r.prox(jax.tree.map(jnp.zeros_like, x), STEP)
        assert not any(leaf.any() for leaf in jax.tree.leaves(zero))
        assert float(r.value(zero)) == 0


# --- Smooth regularizers.


def test_curvature_of_the_nonconvex_regularizer_is_attained():
    r = problems.nonconvex(PENALTY)
    x, step = np.linspace(-4, 4, 80_001, retstep=True)
    curvature = np.diff(PENALTY * x**2 / (1 + x**2), 2) / step**2
    bounds = r.strong_convexity, r.smoothness
    np.testing.assert_allclose(bounds, (curvature.min(), curvature.max()), rtol=1e-5)
    values = {"kernel": jnp.array([[3.0, -4.0]]), "bias": jnp.array([0.5])}
    np.testing.assert_allclose(r.value(values), PENALTY * (9 / 10 + 16 / 17 + 1 / 5), rtol=1e-6)


def test_a_smooth_regularizer_is_part_of_every_f_n():
    """One that is a squared norm has the effect of l2: in stochastic gradients, in losses of
    clients, and in the history.
    """

    def norm(params):
        return 0.35 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))

    data = problems.load("breast-cancer")
    make = partial(problems.logistic_regression, data, 4, "dirichlet", batch_size=3)
    smooth = make(l2=0.0, regularizer=problems.SmoothRegularizer(norm, 0.7, 0.7, "norm"))
    same = make(l2=0.7)
    assert smooth.constants.smoothness == pytest.approx(same.constants.smoothness)
    assert smooth.constants.strong_convexity == 0.7
    found, expected = (
        dsgd.run(
            algorithms.local_sgd(optax.sgd(0.1), 2),
            problems.with_client_metrics(each, clients=4),
            steps=6,
            key=KEY,
            mesh=1,
        ).history
        for each in (smooth, same)
    )
    assert expected["loss"][-1] < 0.6
    for column in set(expected):
        np.testing.assert_allclose(found[column], expected[column], rtol=1e-5, atol=1e-6)


def test_finite_sum_adds_a_regularizer_with_a_proximal_step():
    data = problems.load("breast-cancer")
    problem = problems.logistic_regression(data, 4, regularizer=REGULARIZERS["l1"])
    assert problem.regularizer is REGULARIZERS["l1"]
    assert problem.name.endswith(" + l1(0.4)")
    assert (
        problem.constants.smoothness == problems.logistic_regression(data, 4).constants.smoothness
    )


def test_a_smooth_regularizer_that_is_not_a_scalar_is_refused():
    r = problems.SmoothRegularizer(lambda params: params.kernel, 2.0, 0.0, "kernel")
    with pytest.raises(ValueError, match=r"value of kernel.* expected a floating-point scalar"):
        problems.logistic_regression("digits", regularizer=r)


# --- The history.


@cache
def quadratic(**options) -> dsgd.Problem:
    return problems.random_quadratic(4, 5, heterogeneity=2.0, seed=3, **options)


def test_the_history_has_the_composite_objective_and_the_prox_gradient(mesh):
    problem = problems.regularized(quadratic(), REGULARIZERS["l1"])
    assert problem.name == "quadratic(4 workers, d = 5) + l1(0.4)"
    known = problem.constants
    assert (known.minimum, known.minimizer, known.heterogeneity) == (None, None, None)
    assert problem.constants.smoothness == quadratic().constants.smoothness
    method = algorithms.proximal_gradient(0.3)
    found = dsgd.run(method, problem, steps=5, key=KEY, mesh=mesh)
    A, b = (np.asarray(leaf, float) for leaf in (problem.data.A, problem.data.b))
    A, b, x = A.mean(axis=0), b.mean(axis=0), np.zeros(5)
    for t in range(6):
        slope = A @ x - b
        f = 0.5 * x @ A @ x - b @ x
        shrunk = np.sign(x - slope) * np.maximum(np.abs(x - slope) - PENALTY, 0)
        expected = {
            "loss": f,
            "objective": f + PENALTY * np.abs(x).sum(),
            "grad_sqnorm": slope @ slope,
            "prox_grad_sqnorm": (x - shrunk) @ (x - shrunk),
        }
        for column, value in expected.items():
            np.testing.assert_allclose(found.history[column][t], value, rtol=1e-4, atol=1e-6)
        x = x - 0.3 * slope
        x = np.sign(x) * np.maximum(np.abs(x) - 0.3 * PENALTY, 0)
    plain = dsgd.run(method, quadratic(), steps=5, key=KEY, mesh=mesh).history
    assert set(found.history) - set(plain) == {"objective", "prox_grad_sqnorm"}


def test_parameters_that_are_not_trained_are_not_regularized():
    def loss(params, target):
        return jnp.sum((params["x"] - target) ** 2) / 2 + params["fixed"]

    init = dsgd.Parameters(
        lambda key: {"x": jnp.zeros(2), "fixed": jnp.float32(7)}, {"x": True, "fixed": False}
    )
    problem = dsgd.Problem(init, loss, jnp.arange(4.0), lambda key, mine: mine)
    problem = problems.regularized(problem, problems.l1(1.0))
    found = dsgd.run(algorithms.proximal_gradient(1.0), problem, steps=2, key=KEY, mesh=1)
    np.testing.assert_allclose(found.params["x"], 0.5)  # the mean, 1.5, minus the penalty
    assert found.params["fixed"] == 7
    np.testing.assert_allclose(found.history["objective"][-1], found.history["loss"][-1] + 1.0)


def test_weights_apply_to_f_and_not_to_the_regularizer():
    weights = (0.0, 3.0, 0.5, 0.5)
    centers = np.array([5.0, 1.0, 2.0, -2.0])
    problem = dsgd.Problem(
        lambda key: jnp.zeros(()),
        lambda x, c: (x - c) ** 2 / 2,
        centers.astype(np.float32),
        lambda key, mine: mine,
        weights=weights,
    )
    problem, ring = problems.regularized(problem, problems.l1(0.25)), topologies.ring(4)
    for method in (
        algorithms.proximal_gradient(0.3),
        algorithms.nids(0.3, ring),
        algorithms.proximal_tracking(0.2, ring),
    ):
        found = dsgd.run(method, problem, steps=200, key=KEY, record_every=50, mesh=1)
        np.testing.assert_allclose(found.params, np.dot(weights, centers) / 4 - 0.25, rtol=1e-5)


# --- What is refused.


@pytest.mark.parametrize(
    "name",
    smoke_cases(
        sorted(algorithms.ALGORITHMS.keys() - {"dist_ef_sgd"}),
        {"minibatch_sgd", "decentralized_sgd", "proximal_sgd", "nids", "lead", "fed_avg"},
    ),
)
def test_methods_that_do_not_use_the_regularizer_are_refused(name):
    problem = problems.regularized(quadratic(), problems.l1(0.1))
    method = algorithms.make(name, optax.sgd(0.1), 4)
    if registry.find(name).regularizer:
        assert dsgd.exchanges(method, problem)
        return
    with pytest.raises(ValueError, match=r"does not use the regularizer of .* round\.prox") as e:
        dsgd.exchanges(method, problem)
    assert str(e.value).startswith(method.name)


def test_methods_on_real_processes_are_refused():
    problem = problems.regularized(quadratic(), problems.l1(0.1))
    with pytest.raises(ValueError, match=r"^mine: .* has the regularizer l1\(0.1\)"):
        leaves.require_all("mine", problem)
