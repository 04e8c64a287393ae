"""What users' models, targets and losses must be taken for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import problems

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
INTEGER_LABELS = optax.softmax_cross_entropy_with_integer_labels
HINGE = jax.vmap(optax.losses.multiclass_hinge_loss)


def linear(outputs: int) -> problems.Model:
    return problems.Model(lambda key: jnp.zeros((3, outputs)), lambda W, x: x @ W)


def classifier(targets, loss=INTEGER_LABELS, outputs=2, **options):
    return problems.finite_sum(linear(outputs), loss, (X, np.asarray(targets)), workers=2, batch_size=2, **options)


def one_hot_loss(logits, targets):
    return -jnp.sum(jax.nn.one_hot(targets, logits.shape[-1]) * jax.nn.log_softmax(logits), axis=-1)


def weighted_loss(logits, targets):
    return jnp.array([1.0, 2.0])[targets] * INTEGER_LABELS(logits, targets)


def smoothed_loss(logits, targets):
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(targets, logits.shape[-1]), 0.1))


CYCLE = np.arange(24)


@pytest.mark.parametrize("loss", [INTEGER_LABELS, one_hot_loss, weighted_loss, smoothed_loss, HINGE])
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (2 * (CYCLE % 2) - 1, r"targets from -1 to 1, .* indices of the model's 2 outputs; expected .* 0 to 1; .*\(targets \+ 1\) // 2"),
        (CYCLE % 2 + 1, "targets from 1 to 2.*relabel them with targets - 1"),
        (CYCLE % 3, "targets from 0 to 2.*or pass a model with 3 outputs"),
        ((CYCLE % 2 * 7).astype(np.uint8), r"targets from 0 to 7.*np.unique\(targets, return_inverse=True\)"),
    ],
)
def test_labels_outside_the_classes_are_refused(loss, targets, message):
    if loss is not INTEGER_LABELS and targets.dtype == np.uint8:
        return  # a label far from the classes, for which the loss is 0, may be a marker
    with pytest.raises(ValueError, match=message):
        classifier(targets, loss)


def test_labels_of_the_classes_and_a_marker_of_samples_that_do_not_count_are_accepted():
    def ignoring(logits, targets):
        return jnp.where(targets == -100, 0, INTEGER_LABELS(logits, jnp.maximum(targets, 0)))

    classifier(CYCLE % 2)
    classifier(np.where(CYCLE < 3, -100, CYCLE % 2), ignoring)


def test_integer_targets_that_are_no_classes_are_accepted():
    table = jnp.asarray(np.random.default_rng(1).normal(size=(24, 2)))
    classifier(CYCLE, lambda outputs, targets: jnp.sum((outputs - table[targets]) ** 2, axis=-1))
    classifier(CYCLE, lambda outputs, targets: (outputs[:, 0] - targets) ** 2)
    classifier(2 * (CYCLE % 2) - 1, lambda outputs, targets: optax.hinge_loss(outputs[:, 0], targets), outputs=1)


@pytest.mark.parametrize("loss", [optax.sigmoid_binary_cross_entropy, optax.sigmoid_focal_loss])
@pytest.mark.parametrize("dtype", [int, float])
def test_binary_labels_outside_0_and_1_are_refused(loss, dtype):
    model = problems.Model(lambda key: jnp.zeros(3), lambda w, x: x @ w)
    labels = (2 * (CYCLE % 2) - 1).astype(dtype)
    with pytest.raises(ValueError, match=r"targets from -1.* to 1.*expected targets in \[0, 1\]; relabel them with \(targets \+ 1\) / 2"):
        problems.finite_sum(model, loss, (X, labels), workers=2, batch_size=2)
    problems.finite_sum(model, loss, (X, (labels + 1) // 2), workers=2, batch_size=2)


@pytest.mark.parametrize("loss", [optax.squared_error, optax.hinge_loss, optax.huber_loss, lambda f, y: jnp.logaddexp(0, -f * y)])
def test_targets_of_regressions_and_margins_are_accepted(loss):
    model = problems.Model(lambda key: jnp.zeros(3), lambda w, x: x @ w)
    problems.finite_sum(model, loss, (X, 2.0 * (CYCLE % 2) - 1), workers=2, batch_size=2)


def test_labels_of_a_test_set_are_checked_for_loss_and_metrics():
    from dsgd.problems.finite_sum import right

    def accuracy(logits, targets):
        return jnp.argmax(logits, axis=-1) == targets

    good, bad = CYCLE % 2, CYCLE % 2 + 1
    for metric in (right, accuracy):
        with pytest.raises(ValueError, match=r"test set, .*: targets from 1 to 2"):
            classifier(good, HINGE, test=(X, bad), metrics={"accuracy": metric})
        classifier(good, test=(X, good), metrics={"accuracy": metric})


def test_labels_of_workers_data_and_of_batches_from_outside_are_checked(mesh, key):
    with pytest.raises(ValueError, match="targets from 0 to 2"):
        problems.finite_sum(linear(2), INTEGER_LABELS, problems.ByWorker(lambda n: (X, CYCLE % (2 + n))), workers=2, batch_size=2)
    inputs, weights = np.stack([X[:2]] * 2), np.ones((2, 2), np.float32)
    batches = [problems.Examples(inputs, np.full((2, 2), label, np.int32), weights) for label in (1, 2)]
    with pytest.raises(ValueError, match=r"batches of rounds 1 to 1: finite_sum: targets from 2 to 2.*classes 0 to 1"):
        dsgd.run(algorithms.minibatch_sgd(optax.sgd(0.1)), classifier(CYCLE % 2), steps=2, key=key, mesh=mesh, batches=batches)
