from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import logsumexp

from dsgd import problems
from dsgd.problems.finite_sum import right

L2 = 0.01


@pytest.fixture(scope="module")
def problem():
    return problems.logistic_regression("digits", 6, "by-label", batch_size=1, l2=L2)


@pytest.fixture(scope="module")
def unravel(problem):
    return ravel_pytree(problem.init(jax.random.key(0)))[1]


def dimension(problem) -> int:
    return ravel_pytree(problem.init(jax.random.key(0)))[0].size


def test_loss_and_accuracy_are_those_of_numpy(problem, unravel):
    params = unravel(
        jnp.asarray(0.3 * np.random.default_rng(0).normal(size=dimension(problem)), jnp.float32)
    )
    mine = jax.tree.map(lambda leaf: leaf[1], problem.data)
    inputs, real = (
        np.asarray(mine.inputs, float).reshape(len(mine.targets), -1),
        np.asarray(mine.weights) > 0,
    )
    logits = (inputs @ np.asarray(params.kernel, float) + np.asarray(params.bias))[real]
    targets = np.asarray(mine.targets)[real]
    losses = logsumexp(logits, axis=1) - logits[np.arange(len(logits)), targets]
    norm = np.sum(np.square(params.kernel)) + np.sum(np.square(params.bias))
    assert float(jax.jit(problem.loss)(params, mine)) == pytest.approx(
        losses.mean() + L2 / 2 * norm, rel=1e-5
    )
    np.testing.assert_array_equal(
        right(jnp.asarray(logits), jnp.asarray(targets)), logits.argmax(axis=1) == targets
    )


def test_smoothness_is_the_steepest_curvature_of_the_steepest_worker(problem, unravel):
    """Where two classes share all probability, the softmax's Hessian has the eigenvalue 1/2, the
    largest that it has anywhere.
    """
    params = problem.init(jax.random.key(0))
    params = params._replace(bias=params.bias.at[:2].set(50.0))

    def curvature(mine):
        def product(v):
            return jax.jvp(
                lambda x: ravel_pytree(jax.grad(problem.loss)(unravel(x), mine))[0],
                (ravel_pytree(params)[0],),
                (v,),
            )[1]

        start = jax.random.normal(jax.random.key(1), (dimension(problem),))
        v = jax.lax.fori_loop(
            0,
            200,
            lambda i, v: product(v) / jnp.linalg.norm(product(v)),
            start / jnp.linalg.norm(start),
        )
        return v @ product(v)

    largest = float(jax.jit(jax.vmap(curvature))(problem.data).max())
    assert largest == pytest.approx(problem.constants.smoothness, rel=1e-4)


def test_strong_convexity_is_known_with_l2_only(problem):
    assert problem.constants.strong_convexity == L2
    assert (
        problems.logistic_regression("breast-cancer", 4, l2=0.0).constants.strong_convexity is None
    )


def test_start_is_zero_where_every_class_is_equally_likely(problem):
    start = problem.init(jax.random.key(0))
    classes = start.bias.size
    assert start.kernel.shape == (problem.data.inputs[0, 0].size, classes)
    losses = jax.jit(jax.vmap(problem.loss, (None, 0)))(start, problem.data)
    np.testing.assert_allclose(losses, np.log(classes), rtol=1e-5)


@pytest.mark.parametrize(("samples", "features"), [(300, 280), (300, 5), (40, 300)])
def test_smoothness_of_large_data_is_that_of_a_full_decomposition(samples, features):
    """Beyond 256 x 256 the largest singular value is found iteratively."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(samples, features)), np.arange(samples) % 3
    problem = problems.logistic_regression(
        problems.Dataset("normal", inputs, targets, inputs, targets, 3), 1, l2=0.0
    )
    with_bias = np.column_stack([inputs, np.ones(samples)])
    assert problem.constants.smoothness == pytest.approx(
        np.linalg.eigvalsh(with_bias.T @ with_bias)[-1] / (2 * samples), rel=1e-5
    )


def test_partition_and_seed_reach_the_data():
    inputs, classes = np.ones((400, 1)), np.arange(400) % 10

    def targets(**options):
        small = problems.Dataset("small", inputs, classes, inputs[:10], classes[:10], 10)
        return np.asarray(problems.logistic_regression(small, 10, **options).data.targets)

    assert max(len(np.unique(row)) for row in targets(partition="by-label")) <= 3
    assert min(len(np.unique(row)) for row in targets(partition="iid")) == 10
    assert not np.array_equal(targets(seed=0), targets(seed=1))
    assert (
        targets(partition="dirichlet", alpha=0.1, batch_size=1).shape[1]
        > targets(partition="dirichlet", alpha=100.0).shape[1]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digit", 4), "load: data = 'digit'; expected one of digits"),
        (
            (
                problems.Dataset(
                    "short",
                    np.zeros((20, 3)),
                    np.arange(20) % 4,
                    np.zeros((20, 3)),
                    np.arange(20) % 4,
                    3,
                ),
                2,
            ),
            "3 classes",
        ),
        (("breast-cancer", 569), "without samples"),
    ],
)
def test_problem_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        problems.logistic_regression(*arguments)
