from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import sparse
from scipy.special import logsumexp

from dsgd import problems
from dsgd.problems.finite_sum import right

L2 = 0.01
module = importlib.import_module("dsgd.problems.logistic_regression")


@pytest.fixture(scope="module")
def problem():
    return problems.logistic_regression("digits", 6, "by-label", batch_size=1, l2=L2)


def test_loss_and_accuracy_are_those_of_numpy(problem):
    rng, start = np.random.default_rng(0), problem.init(jax.random.key(0))
    assert not any(leaf.any() for leaf in start)
    params = jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape)), start)
    mine = jax.tree.map(lambda leaf: leaf[1], problem.data)
    real = np.asarray(mine.weights) > 0
    inputs, targets = np.asarray(mine.inputs, float)[real], np.asarray(mine.targets)[real]
    logits = inputs.reshape(len(targets), -1) @ np.asarray(params.kernel, float) + np.asarray(
        params.bias
    )
    losses = logsumexp(logits, axis=1) - logits[np.arange(len(logits)), targets]
    norm = np.sum(np.square(params.kernel)) + np.sum(np.square(params.bias))
    expected = losses.mean() + L2 / 2 * norm
    assert float(jax.jit(problem.loss)(params, mine)) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_array_equal(
        right(jnp.asarray(logits), jnp.asarray(targets)), logits.argmax(axis=1) == targets
    )


def test_smoothness_is_the_steepest_curvature_of_the_steepest_worker(problem):
    """If two classes share all probability, the softmax's Hessian has the eigenvalue 1/2, its
    global maximum.
    """
    params = problem.init(jax.random.key(0))
    x, unravel = ravel_pytree(params._replace(bias=params.bias.at[:2].set(50.0)))

    def curvature(mine):
        def product(v):
            slope = jax.grad(lambda x: problem.loss(unravel(x), mine))
            return jax.jvp(slope, (x,), (v,))[1]

        def power(i, v):
            return product(v) / jnp.linalg.norm(product(v))

        v = jax.lax.fori_loop(0, 200, power, jax.random.normal(jax.random.key(1), x.shape))
        return v @ product(v)

    largest = float(jax.jit(jax.vmap(curvature))(problem.data).max())
    assert largest == pytest.approx(problem.constants.smoothness, rel=1e-4)


def test_strong_convexity_is_known_with_l2_only(problem):
    assert problem.constants.strong_convexity == L2
    assert (
        problems.logistic_regression("breast-cancer", 4, l2=0.0).constants.strong_convexity is None
    )


def sparse_rows(inputs: np.ndarray) -> problems.SparseRows:
    return problems.sparse_rows(sparse.csr_array(inputs))


@pytest.mark.parametrize(("samples", "features"), [(300, 280), (300, 5), (40, 300)])
@pytest.mark.parametrize("stored", [np.asarray, sparse_rows])
def test_smoothness_of_large_data_is_that_of_a_full_decomposition(samples, features, stored):
    """Above 256 x 256 the largest eigenvalue is computed iteratively."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(samples, features)), np.arange(samples) % 3
    rows = stored(inputs)
    data = problems.Dataset("normal", rows, targets, rows, targets, 3)
    problem = problems.logistic_regression(data, 1, l2=0.25)
    given = np.column_stack([inputs.astype(np.float32), np.ones(samples)])
    largest = np.linalg.norm(given, 2) ** 2
    assert problem.constants.smoothness == pytest.approx(largest / (2 * samples) + 0.25, rel=1e-12)


def test_smoothness_is_computed_once_and_when_it_is_read(monkeypatch):
    taken = []
    compute = module._squared_norm
    monkeypatch.setattr(module, "_squared_norm", lambda rows: taken.append(1) or compute(rows))
    inputs = np.random.default_rng(0).normal(size=(20, 4))
    problem = problems.logistic_regression((inputs, np.arange(20) % 2), 3, l2=0.5)
    others = problem._replace(constants=problem.constants._replace(noise=2.5))
    assert not taken
    L = problem.constants.smoothness
    assert repr(others.constants).startswith(f"Constants(smoothness={L}, strong_convexity=0.5, ")
    assert others.constants.smoothness == L > 0.5
    assert len(taken) == 3  # one for each worker
