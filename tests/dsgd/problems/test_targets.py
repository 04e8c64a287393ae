"""Targets are interpreted as in the loss: indices of classes, or probabilities."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import problems

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
CYCLE = np.arange(24)
ALTERNATING, SIGNS, ONE_OFF, THREE = CYCLE % 2, 2 * (CYCLE % 2) - 1, CYCLE % 2 + 1, CYCLE % 3
INTEGER_LABELS = optax.softmax_cross_entropy_with_integer_labels
HINGE = jax.vmap(optax.losses.multiclass_hinge_loss)


def classifier(targets: Any, loss: Any = INTEGER_LABELS, outputs: Any = 2, **options: Any):
    """Returns a linear classifier with the given outputs; () for one without an axis."""
    shape = (3, outputs) if outputs else (3,)
    model = problems.Model(lambda key: jnp.zeros(shape), lambda W, x: x @ W)
    return problems.finite_sum(model, loss, (X, targets), workers=2, batch_size=2, **options)


def one_hot_loss(logits, targets):
    return -jnp.sum(jax.nn.one_hot(targets, logits.shape[-1]) * jax.nn.log_softmax(logits), axis=-1)


def cut(logits, targets):
    return INTEGER_LABELS(logits, jnp.clip(targets, 0, logits.shape[-1] - 1))


def smoothed_loss(logits, targets):
    return optax.softmax_cross_entropy(
        logits, optax.smooth_labels(jax.nn.one_hot(targets, logits.shape[-1]), 0.1)
    )


def ignoring(logits, targets):
    return jnp.where(targets == -100, 0, INTEGER_LABELS(logits, jnp.maximum(targets, 0)))


def rejecting(logits, targets):
    """-k rejects the outputs with weight k."""
    rejected = -0.3 * targets * jnp.sum(logits**2, axis=-1)
    return jnp.where(targets < 0, rejected, INTEGER_LABELS(logits, jnp.maximum(targets, 0)))


def nearest(outputs, targets):
    return jnp.sum((outputs - jnp.asarray(X)[targets, :2]) ** 2, axis=-1)


@pytest.mark.parametrize(
    ("loss", "targets", "words"),
    [
        *(
            (loss, ONE_OFF, r"1 to 2.*targets - 1")
            for loss in (INTEGER_LABELS, one_hot_loss, smoothed_loss, HINGE)
        ),
        (HINGE, SIGNS, "-1 to 1"),
        (INTEGER_LABELS, SIGNS, r"-1 to 1, .* 0 to 1; .*\(targets \+ 1\) // 2"),
        (INTEGER_LABELS, THREE, "0 to 2.*3 outputs"),
        # only one of three signs: that -1 wraps around; that -128, which has no predecessor, is cut
        (INTEGER_LABELS, -ALTERNATING, "-1 to 0"),
        (cut, (-128 * ALTERNATING).astype(np.int8), "-128 to 0"),
        (one_hot_loss, THREE, "0 to 2"),
        (rejecting, CYCLE - 1, "-1 to 22, used as"),  # the loss defines -1, but not the other one
        (INTEGER_LABELS, (7 * ALTERNATING).astype(np.uint8), r"0 to 7.*np\.unique"),
    ],
)
def test_labels_outside_the_classes_are_refused(loss, targets, words):
    with pytest.raises(ValueError, match=f"targets from {words}"):
        classifier(targets, loss)


@pytest.mark.parametrize(
    ("loss", "targets", "outputs"),
    [
        (INTEGER_LABELS, ALTERNATING, 2),
        (ignoring, np.where(CYCLE < 3, -100, ALTERNATING), 2),
        (nearest, CYCLE, 2),
        (lambda outputs, targets: (outputs[:, 0] - targets) ** 2, CYCLE, 2),
        (lambda outputs, targets: optax.hinge_loss(outputs[:, 0], targets), SIGNS, 1),
        (optax.squared_error, 1.0 * SIGNS, ()),
        (lambda f, y: jnp.logaddexp(0, -f * y), 1.0 * SIGNS, ()),
    ],
    ids=["classes", "a marker", "indices", "numbers", "hinge", "squares", "margins"],
)
def test_targets_that_the_loss_defines_are_accepted(loss, targets, outputs):
    classifier(targets, loss, outputs)


@pytest.mark.parametrize(
    ("loss", "dtype"),
    [(optax.sigmoid_binary_cross_entropy, int), (optax.sigmoid_focal_loss, float)],
)
def test_binary_labels_outside_0_and_1_are_refused(loss, dtype):
    labels = SIGNS.astype(dtype)
    with pytest.raises(ValueError, match=r"targets from -1.* to 1.*\[0, 1\].*\(targets \+ 1\) / 2"):
        classifier(labels, loss, ())
    classifier((labels + 1) // 2, loss, ())


def test_labels_of_workers_data_and_of_streamed_batches_are_checked(key):
    model = problems.Model(lambda key: jnp.zeros((3, 2)), lambda W, x: x @ W)
    data = problems.ByWorker(lambda n: (X, CYCLE % (2 + n)))
    with pytest.raises(ValueError, match="targets from 0 to 2"):
        problems.finite_sum(model, INTEGER_LABELS, data, workers=2)
    inputs, weights = np.stack([X[:2]] * 2), jnp.ones((2, 2))
    batches = [
        problems.Examples(inputs, np.full((2, 2), label, np.int32), weights) for label in (1, 2)
    ]
    options: dict[str, Any] = {"key": key, "mesh": 1, "steps": 2}
    method = algorithms.minibatch_sgd(optax.sgd(0.1))
    words = r"batches of rounds 1 to 1: .* targets from 2 to 2.*0 to 1"
    with pytest.raises(ValueError, match=words):
        dsgd.run(method, classifier(ALTERNATING), batches=batches, **options)
