from __future__ import annotations

import importlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from scipy import sparse
from scipy.special import logsumexp

import algorithms
import dsgd
from dsgd import problems
from dsgd.problems import curvature as curvatures
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


def test_strong_convexity_is_the_weight_of_the_squared_norm(problem):
    assert problem.constants.strong_convexity == L2
    assert problems.logistic_regression("breast-cancer", 4, l2=0.0).constants.strong_convexity == 0


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
    compute = curvatures.squared_norm
    monkeypatch.setattr(curvatures, "squared_norm", lambda rows: taken.append(1) or compute(rows))
    inputs = np.random.default_rng(0).normal(size=(20, 4))
    problem = problems.logistic_regression((inputs, np.arange(20) % 2), 3, l2=0.5)
    others = problem._replace(constants=problem.constants._replace(noise=2.5))
    assert not taken
    L = problem.constants.smoothness
    assert repr(others.constants).startswith(f"Constants(smoothness={L}, strong_convexity=0.5, ")
    assert others.constants.smoothness == L > 0.5
    assert len(taken) == 3  # one for each worker


# --- Two classes.

LAMBDA, BINARY_L2 = 0.3, 0.07


def labelled(samples: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(samples)
    return rng.normal(size=(samples, features)), rng.choice([-3, 5], samples)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("loss", ["log", "squared"])
def test_loss_and_gradient_of_two_classes_are_those_of_numpy(loss, bias):
    """On workers with 5 and 4 samples, with l2 and a smooth regularizer; also per sample, and in
    the history.
    """
    inputs, labels = labelled(9, 3)
    signs, matrix = np.sign(labels), np.column_stack([inputs, np.ones(9)])[:, : 3 + bias]
    x = np.random.default_rng(1).normal(size=3 + bias)

    def value_and_slope(part):
        u = signs[part] * (matrix[part] @ x)
        s = 1 / (1 + np.exp(u))
        values, slopes = (
            (np.log1p(np.exp(-u)), -s) if loss == "log" else (s**2, -2 * s**2 * (1 - s))
        )
        value = values.mean() + BINARY_L2 / 2 * x @ x + LAMBDA * np.sum(x**2 / (1 + x**2))
        slope = matrix[part].T @ (slopes * signs[part]) / len(u)
        return value, slope + BINARY_L2 * x + LAMBDA * 2 * x / (1 + x**2) ** 2

    with jax.enable_x64(True):
        problem = problems.binary_logistic_regression(
            problems.load((inputs, labels), hold_out=False),
            2,
            "blocks",
            loss=loss,
            bias=bias,
            l2=BINARY_L2,
            regularizer=problems.nonconvex(LAMBDA),
        )
        assert problem.name.endswith(" + nonconvex(0.3)")
        assert problem.local_samples == (5, 4)
        assert problem.evaluation.replicated == ()
        same = problems.per_sample(problem, lambda slope: slope)
        means = []
        for n, part in enumerate((np.arange(5), np.arange(5, 9))):
            mine = jax.tree.map(lambda leaf, n=n: leaf[n], problem.data)
            found = jax.value_and_grad(problem.loss)(jnp.asarray(x), mine)
            expected = value_and_slope(part)
            means.append(expected)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)
            np.testing.assert_allclose(same.gradient(jnp.asarray(x), mine), expected[1], rtol=1e-12)
        start = problem._replace(init=lambda key: jnp.asarray(x))
        method = algorithms.gradient_descent(optax.sgd(0.1))
        history = dsgd.run(method, start, steps=1, key=jax.random.key(0), mesh=1).history
        value, slope = (np.mean(each, axis=0) for each in zip(*means, strict=True))
        np.testing.assert_allclose(history["loss"][0], value, rtol=1e-12)
        np.testing.assert_allclose(history["grad_sqnorm"][0], slope @ slope, rtol=1e-12)


def test_smoothness_of_two_classes_is_attained_at_zero():
    """There the second derivatives of all losses and of the regularizer are largest."""
    inputs, labels = labelled(23, 4)
    problem = problems.binary_logistic_regression(
        problems.load((inputs, labels), hold_out=False),
        2,
        "blocks",
        bias=True,
        l2=BINARY_L2,
        weights=[0.5, 1.5],
        regularizer=problems.nonconvex(LAMBDA),
    )
    matrix = np.column_stack([inputs, np.ones(23)])
    largest = [
        np.linalg.norm(part, 2) ** 2 / (4 * len(part)) + BINARY_L2 + 2 * LAMBDA
        for part in (matrix[:12], matrix[12:])
    ]
    expected = max(largest[0], 1.5 * largest[1])
    assert problem.constants.smoothness == pytest.approx(expected, rel=1e-6)
    assert problem.constants.strong_convexity is None


def test_strong_convexity_of_two_classes_is_l2_less_the_curvature_of_the_regularizer():
    data = labelled(40, 3)
    binary, r = problems.binary_logistic_regression, problems.nonconvex(0.2)
    constants = binary(data, 2, l2=0.3, regularizer=r).constants
    assert constants.strong_convexity == pytest.approx(0.3 - 0.2 / 2)
    assert binary(data, 2, loss="squared", l2=0.3).constants.strong_convexity is None
    smooth = problems.logistic_regression(data, 2, l2=0.3, regularizer=r).constants
    plain = problems.logistic_regression(data, 2, l2=0.3).constants
    assert smooth.smoothness == pytest.approx(plain.smoothness + 2 * 0.2)
    assert smooth.strong_convexity == constants.strong_convexity


def test_curvature_of_the_squared_loss_is_attained():
    """With all margins equal, L times the squared length of a sample is the largest second
    derivative of the loss on the line.
    """
    inputs, labels = np.full((8, 1), 3.0), np.array([0, 1] * 4)
    data = problems.load((inputs * (2 * labels[:, None] - 1), labels), hold_out=False)
    problem = problems.binary_logistic_regression(data, 2, "blocks", loss="squared")
    u, step = np.linspace(-8, 8, 200_001, retstep=True)
    curvature = np.diff((1 / (1 + np.exp(u))) ** 2, 2) / step**2
    assert problem.constants.smoothness == pytest.approx(9 * curvature.max(), rel=1e-5)
    least = module._LOSSES["squared"].curvature[0]
    assert least == pytest.approx(curvature.min(), rel=1e-5)


def test_two_classes_without_a_penalty_need_no_proximal_step():
    sparse_problem = partial(problems.sparse_logistic_regression, labelled(40, 3), 2)
    assert sparse_problem(penalty=0.0).regularizer is None
    assert sparse_problem(penalty=0.2).regularizer.name == "l1(0.2)"


def test_more_than_two_classes_and_unknown_losses_are_refused():
    with pytest.raises(ValueError, match=r"^binary_logistic_regression: digits has 10 classes"):
        problems.binary_logistic_regression("digits")
    with pytest.raises(ValueError, match=r"loss = 'hinge'; expected one of log, squared"):
        problems.binary_logistic_regression(loss="hinge")
