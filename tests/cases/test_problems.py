"""Problems whose data, weights, labels or numbers are at an edge; oracles are in numpy."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse

import algorithms
import dsgd
from dsgd import problems

X = np.random.default_rng(0).normal(size=(100, 2))
LINEAR = problems.Model(
    lambda key: {"w": jnp.zeros(2), "b": jnp.zeros(())}, lambda w, x: x @ w["w"] + w["b"]
)
LABELS = X[:, 0] > 0.3
METRICS = {"hits": lambda o, t: (o > 0) * t}


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(1)(nn.BatchNorm(use_running_average=not train, name="bn")(x))[:, 0]


def test_running_averages_are_means_with_the_workers_weights(key):
    """90 and 10 samples, which differ by 10: the mean of the workers' means is 4.8."""
    far = X + 10 * (np.arange(100) >= 90)[:, None]
    parts = [np.arange(90), np.arange(90, 100)]
    problem = problems.finite_sum(
        Net(), optax.squared_error, (far, far[:, 0]), 2, parts, weights="samples", batch_size=None
    )
    result = dsgd.run(
        algorithms.fed_avg(optax.sgd(0.05), 2), problem, steps=200, key=key, record_every=200
    )
    mean = result.params["batch_stats"]["bn"]["mean"]
    np.testing.assert_allclose(mean, far.mean(axis=0), rtol=1e-4)
    assert result.history["loss"][-1] < 0.01


@pytest.mark.parametrize(
    ("dtype", "slope"), [(jnp.float16, 257.0), (jnp.bfloat16, 3e19), (jnp.float32, 3e19)]
)
def test_large_gradients_are_clipped_to_the_norm(dtype, slope, key):
    """The square of the slope overflows; the clipped gradient is a unit vector."""
    model = problems.Model(lambda key: jnp.zeros(2, dtype), lambda w, x: x @ w.astype(jnp.float32))
    data = np.eye(2)[[0, 0]], np.zeros(2)
    problem = problems.finite_sum(model, lambda o, t: slope * o, data, 2, batch_size=None)
    clipped = problems.per_sample(problem, problems.clipped(0.5))
    result = dsgd.run(algorithms.minibatch_sgd(optax.sgd(1.0)), clipped, steps=1, key=key)
    np.testing.assert_allclose(np.asarray(result.params, float), [-0.5, 0], atol=1e-6)


def test_the_best_point_has_the_smallest_objective_not_the_smallest_loss(key):
    """f = |x - 1|^2 / 2 and r = 0.9 |x|_1: from x = 1, where f is smallest, to 0.1 in each."""
    problem = problems.regularized(
        problems.quadratic(np.ones((2, 3)), np.ones((2, 3)), start=np.ones(3)), problems.l1(0.9)
    )
    swept = dsgd.sweep(
        algorithms.proximal_gradient,
        problem,
        steps=100,
        key=key,
        step_size=[1e-6, 0.1],
    )
    assert swept.best() == (1,)
    first, second = swept.history["loss"].reshape(2, -1)[:, -1]
    assert first < second


# --- Labels.


@pytest.mark.parametrize("loss", [optax.hinge_loss, optax.losses.perceptron_loss])
@pytest.mark.parametrize("dtype", [int, float])
def test_margin_losses_refuse_labels_without_effect(loss, dtype):
    signs = np.where(LABELS, 1, -1).astype(dtype)
    problems.finite_sum(LINEAR, loss, (X, signs), 2)
    with pytest.raises(ValueError, match=r"loss of 0\S* is the same .* np\.where\(targets == 1"):
        problems.finite_sum(LINEAR, loss, (X, LABELS.astype(dtype)), 2)
    with pytest.raises(ValueError, match=r"test set, loss: targets 0"):
        problems.finite_sum(
            LINEAR, loss, (X, signs), 2, test=(X, LABELS.astype(dtype)), metrics=METRICS
        )


ORDER = np.arange(100)
ONE_HOT = np.eye(3)[ORDER % 3]


def linear(*outputs):
    return problems.Model(lambda key: jnp.zeros((2, *outputs)), lambda w, x: x @ w)


@pytest.mark.parametrize("loss", [optax.hinge_loss, optax.losses.perceptron_loss])
@pytest.mark.parametrize(
    ("targets", "outputs", "words"),
    [
        (1 + LABELS, (), r"targets 1 and 2, but .* target times output, .*targets == 2, 1, -1\)"),
        (1.0 * (ORDER % 3), (), r"targets 0\.0 to 2\.0, but"),
        (ONE_HOT, (3,), r"targets 0\.0 and 1\.0, but the loss of 0\.0 is the same"),
        (1 + ONE_HOT, (3,), r"targets 1\.0 and 2\.0, but"),
    ],
)
def test_margin_losses_refuse_labels_of_one_sign(loss, targets, outputs, words):
    with pytest.raises(ValueError, match=words):
        problems.finite_sum(linear(*outputs), loss, (X, targets), 2)
    problems.finite_sum(linear(*outputs), loss, (X, 2.0 * (targets > 1) - 1), 2)


@pytest.mark.parametrize("kind", [int, float])
def test_a_softmax_refuses_a_column_of_classes(kind):
    column, loss = (ORDER % 3)[:, None], optax.softmax_cross_entropy
    with pytest.raises(
        ValueError, match=r"targets \[m, 1\] from 0\S* to 2.* all 3 outputs.*np\.eye\(3"
    ):
        problems.finite_sum(linear(3), loss, (X, column.astype(kind)), 2)
    problems.finite_sum(linear(3), loss, (X, np.eye(3)[column[:, 0]]), 2)


def test_a_softmax_of_one_output_is_refused():
    with pytest.raises(ValueError, match=r"same for all outputs and targets, as that of a softmax"):
        problems.finite_sum(
            linear(1), optax.softmax_cross_entropy, (X, LABELS[:, None].astype(float)), 2
        )


def mean_cross_entropy(outputs, targets):
    return optax.sigmoid_binary_cross_entropy(outputs, targets).mean(-1)


def test_a_loss_of_pairs_of_samples_is_refused():
    labels = LABELS.astype(float)
    for outputs, targets, shapes in (
        ((1,), labels, r"outputs \[m, 1\] and targets \[m\]"),
        ((1,), labels.astype(int), r"outputs \[m, 1\] and targets \[m\]"),
        ((), labels[:, None], r"outputs \[m\] and targets \[m, 1\]"),
    ):
        with (
            jax.numpy_rank_promotion("allow"),
            pytest.raises(ValueError, match=f"{shapes}, .* depends on targets of other samples"),
        ):
            problems.finite_sum(linear(*outputs), mean_cross_entropy, (X, targets), 2)
    problems.finite_sum(linear(1), mean_cross_entropy, (X, labels[:, None]), 2)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: -o * t,  # linear
        lambda o, t: (o * t) ** 2,  # targets are weights
        lambda o, t: jnp.exp(o) - t * o,  # counts
        lambda o, t: jnp.maximum(t - o, 0) ** 2,  # inequalities
    ],
)
def test_targets_of_one_sign_are_accepted_by_losses_without_margins(loss):
    problems.finite_sum(LINEAR, loss, (X, 1 + LABELS), 2)


@pytest.mark.parametrize(
    "loss", [optax.sigmoid_binary_cross_entropy, optax.sigmoid_focal_loss, optax.squared_error]
)
def test_labels_with_effect_are_accepted(loss):
    problems.finite_sum(LINEAR, loss, (X, LABELS.astype(float)), 2)


# --- Sparse matrices and regularizers.


@pytest.mark.parametrize(
    ("data", "indices", "pointers"),
    [
        ([1.0], [7], [0, 1]),
        ([1.0], [-1], [0, 1]),
        ([1.0, 2.0], [0, 1], [0, 3]),
    ],
)
def test_malformed_sparse_rows_are_refused(data, indices, pointers):
    matrix = scipy.sparse.csr_matrix((1, 3))
    matrix.data, matrix.indices, matrix.indptr = map(np.array, (data, indices, pointers))
    with pytest.raises(ValueError, match=r"sparse_rows: matrix: .*malformed"):
        problems.sparse_rows(matrix)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (dsgd.Regularizer(lambda x: 0.0, lambda x: x, "m"), "prox"),
        (dsgd.Regularizer(lambda x: "text", lambda x, step: x, "m"), "value"),
        (dsgd.Regularizer(lambda x: None, lambda x, step: x, "m"), "value"),
    ],
)
def test_regularizers_that_do_not_fit_are_refused(made, words, key):
    quadratic = problems.quadratic(np.ones((2, 3)), 2 * np.ones((2, 3)))

    def run():
        problem = problems.regularized(quadratic, made)
        dsgd.run(algorithms.proximal_gradient(0.1), problem, steps=1, key=key)

    with pytest.raises(ValueError, match=words):
        run()
