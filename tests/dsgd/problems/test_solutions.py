"""Minima computed in float64, and sparse logistic regression. The duality gap
certifies them independently.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file

import algorithms
import dsgd
from dsgd import problems

N, FEATURES, PENALTY = 4, 7, 0.04
SIZES = (5, 9, 12, 14)


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs that float32 represents exactly, and labels 1 and 3."""
    rng = np.random.default_rng(2)
    inputs = np.round(8 * rng.normal(size=(sum(SIZES), FEATURES))) / 8
    labels = np.where(inputs[:, 0] - inputs[:, 1] + rng.normal(size=sum(SIZES)) > 0, 3, 1)
    return inputs * (rng.random(inputs.shape) < 0.6), labels


def duality_gap(
    rows: np.ndarray, signs: np.ndarray, shares: np.ndarray, x: np.ndarray, penalty: float
) -> tuple[float, float]:
    r"""Returns $\sum_i s_i \log(1 + e^{-y_i a_i x}) + \lambda |x|_1$ and its distance from a lower
    bound: the dual objective $-\sum_i s_i (u_i \log u_i + (1 - u_i) \log(1 - u_i))$ at a feasible
    u, for which $|\sum_i s_i u_i y_i a_i|_\infty \le \lambda$.
    """
    margins = signs * (rows @ x)
    u = 1 / (1 + np.exp(margins))
    u = u * min(1, penalty / np.abs(rows.T @ (shares * u * signs)).max())
    primal = shares @ np.logaddexp(0, -margins) + penalty * np.abs(x).sum()
    return primal, primal + shares @ (u * np.log(u) + (1 - u) * np.log1p(-u))


def sparse(data, **options) -> dsgd.Problem:
    return problems.sparse_logistic_regression(data, N, penalty=PENALTY, **options)


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_the_minimum_of_sparse_logistic_regression_has_no_duality_gap(weights, tmp_path):
    """From a file in LIBSVM's format with labels 1 and 3, on workers with different numbers of
    samples; a fifth of the samples is for testing.
    """
    dump_svmlight_file(*samples(), str(tmp_path / "small"), zero_based=False)
    problem = sparse("small", partition="dirichlet", weights=weights, data_dir=tmp_path)
    dataset = problems.load("small", tmp_path)
    rows, signs = np.asarray(dataset.train_inputs, float), 2.0 * dataset.train_targets - 1
    parts = problems.split(dataset.train_targets, N, "dirichlet", alpha=0.5, seed=0)
    shares = np.full(len(rows), 1 / len(rows))
    if weights == "equal":
        for part in parts:
            shares[part] = 1 / (N * len(part))
    found = problems.solved(problem).constants
    minimum, gap = duality_gap(rows, signs, shares, found.minimizer, PENALTY)
    assert -1e-15 < gap < 1e-12
    assert found.minimum == pytest.approx(minimum, rel=0, abs=1e-13)
    assert 0 < (found.minimizer == 0).sum() < FEATURES
    assert found.smoothness == problem.constants.smoothness


def test_the_smoothness_of_sparse_logistic_regression_is_attained_at_zero():
    inputs, labels = samples()
    dataset = problems.load((inputs, labels))
    problem = sparse((inputs, labels), l2=0.1)
    rows = dataset.train_inputs
    parts = problems.split(dataset.train_targets, N, "iid", seed=0)
    largest = max(np.linalg.norm(rows[part], 2) ** 2 / len(part) for part in parts)
    assert problem.constants.smoothness == pytest.approx(largest / 4 + 0.1, rel=1e-6)
    assert problem.constants.strong_convexity == 0.1


@pytest.mark.parametrize(
    "regularizer",
    [problems.group_lasso(0.03), problems.box(-0.1, 0.05), problems.nonnegative(), None],
    ids=lambda r: str(r and r.name),
)
def test_the_solution_of_a_regularized_problem_is_a_fixed_point(regularizer):
    """Of proximal gradient steps in float64; their objective is not below the minimum."""
    with jax.enable_x64(True):
        inputs, labels = samples()
        problem = problems.logistic_regression((inputs, labels), N, l2=0.01)
        if regularizer is not None:
            problem = problems.regularized(problem, regularizer)
        solution = problems.solved(problem)
        x = jax.tree.map(jnp.asarray, solution.constants.minimizer)
        moved = problem._replace(init=lambda key: x)
        run = dsgd.run(
            algorithms.proximal_gradient(1.0), moved, steps=1, key=jax.random.key(0), mesh=1
        )
        history = run.history
    residual = history["grad_sqnorm" if regularizer is None else "prox_grad_sqnorm"]
    assert residual.max() < 1e-24
    objective = history["loss" if regularizer is None else "objective"]
    np.testing.assert_allclose(objective, solution.constants.minimum, rtol=0, atol=1e-14)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(x)) > 0.01


# --- What is refused.


def test_data_with_more_than_two_classes_are_refused():
    with pytest.raises(ValueError, match=r"^sparse_logistic_regression: digits has 10 classes"):
        sparse("digits")


def test_a_problem_without_a_minimizer_or_with_fixed_leaves_is_refused():
    def loss(x, slope):
        return jnp.sum(x) * slope

    problem = dsgd.Problem(lambda key: jnp.zeros(2), loss, jnp.ones(2), lambda key, mine: mine)
    with pytest.raises(
        ValueError, match=r"^solved: problem: the norm .* is 1.41 .* above 1.41e-12"
    ):
        problems.solved(problem)
    init = dsgd.Parameters(
        lambda key: {"a": jnp.zeros(2), "b": jnp.zeros(1)}, {"a": True, "b": False}
    )
    with pytest.raises(ValueError, match=r"^solved: parameters of problem include .* not trained"):
        problems.solved(problem._replace(init=init, loss=lambda x, slope: jnp.sum(x["a"])))
