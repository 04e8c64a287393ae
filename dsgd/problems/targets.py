"""Checks that targets are valid for the loss: that they are indices of classes, or
probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dsgd.base import PyTree
from dsgd.problems.examples import Examples

Function = Callable[[PyTree, PyTree], jax.Array]

_DRAWS = 3  # number of outputs at which a loss is probed
_LABELS = 16  # the most labels for which a loss is compared between labels
_FAR = 50.0  # a logit for which the cross-entropy of a label outside [0, 1] is far below 0
_POINTS = np.array([-_FAR, -1.5, -0.4, 0.4, 1.5, _FAR])  # outputs, symmetric around 0


@dataclass(frozen=True)
class OfBatches:
    """Streamed batches on the host, leaves `[rounds, N, m, ...]` -> the reason why their targets
    are invalid for the loss, or "".

    Args:
        per_sample: the loss, (outputs, targets) -> `[m, ...]`.
        outputs: shape and type of the model's outputs.
    """

    per_sample: Function
    outputs: jax.ShapeDtypeStruct

    def __call__(self, batches: PyTree) -> str:
        targets = batches.targets if isinstance(batches, Examples) else ()
        return (
            refusal_of_loss(self.per_sample, self.outputs, targets.reshape(-1, *targets.shape[3:]))
            if isinstance(targets, np.ndarray)
            else ""
        )


def refusal_of_loss(loss: Function, outputs: PyTree, targets: PyTree) -> str:
    """Returns the reason why the targets are invalid for a loss, as `refusal` does. They are also
    invalid if the loss of a sample depends on targets of other samples, if it is the same for all
    outputs, or if no label asks for another output than the others: 0 and 1, or 1 and 2, in a hinge
    loss.

    Args:
        loss: (outputs, targets) -> `[m, ...]`.
        outputs, targets: see `refusal`.
    """
    if not _is_checked(outputs, targets) or _are_classes(outputs, targets):
        return ""
    labels = np.unique(targets)
    unequal = targets.shape[1:] != outputs.shape[1:]
    if unequal and _mixes_samples(loss, outputs, targets):
        return (
            f"outputs {_shape(outputs)} and targets {_shape(targets)}, for which the loss of a "
            "sample depends on targets of other samples; expected equal shapes, such as "
            f"{_shape(outputs)}; reshape the targets"
        )
    if why := refusal(loss, outputs, targets):
        return why
    if (
        unequal
        and targets.ndim == outputs.ndim
        and _are_factors(loss, outputs, labels, targets.shape[1:])
    ):
        K = outputs.shape[-1]
        return (
            f"targets {_shape(targets)} from {labels[0]} to {labels[-1]}, by which the loss "
            f"multiplies a function of all {K} outputs; expected probabilities of classes, such "
            f"as np.eye({K})[targets[..., 0]], or a loss of integer labels with targets[..., 0]"
        )
    return _refusal_of_labels(loss, outputs, targets.shape[1:], labels)


def _refusal_of_labels(
    loss: Function, outputs: jax.ShapeDtypeStruct, shape: tuple[int, ...], labels: np.ndarray
) -> str:
    """Returns the reason why a loss does not distinguish labels, found with equal elements of the
    outputs; "" if it does.

    Args:
        loss: (outputs, targets) -> `[m, ...]`.
        outputs: shape and type of the model's outputs.
        shape: of a sample's target.
        labels: the different elements of the targets, increasing.
    """
    rows = [np.full(shape, label, labels.dtype) for label in labels[:_LABELS]]
    points = np.broadcast_to(
        _POINTS.reshape(-1, *[1] * (outputs.ndim - 1)), (len(_POINTS), *outputs.shape[1:])
    )
    found = _values(loss, points, rows)
    if not len(found):
        return ""
    if outputs.shape[1:] == (1,) and not np.ptp(found):
        return (
            "the loss is the same for all outputs and targets, as that of a softmax of one output; "
            "expected a model with one output for each class, or a loss of one output"
        )
    if not 2 <= len(labels) <= _LABELS:
        return ""
    flat = [bool(np.ptp(row) == 0) for row in found]
    if len(labels) == 2 == sum(flat) + 1:
        why = f"the loss of {labels[flat.index(True)]} is the same for all outputs of the model"
    elif labels[0] >= 0 and _is_of_margins(loss, points, rows, found):
        why = "the loss depends on target times output, and is smallest at the same outputs for all"
    else:
        return ""
    given = " and ".join(map(str, labels)) if len(labels) == 2 else f"{labels[0]} to {labels[-1]}"
    high = labels[1 - flat.index(True)] if len(labels) == 2 and any(flat) else labels[-1]
    return (
        f"targets {given}, but {why}; expected labels that the loss distinguishes, such as -1 and "
        f"1 for a hinge loss; relabel them with np.where(targets == {high}, 1, -1)"
    )


def _is_checked(outputs: PyTree, targets: PyTree) -> bool:
    """Whether there is one array of outputs and one of targets."""
    return (
        isinstance(outputs, jax.ShapeDtypeStruct)
        and isinstance(targets, np.ndarray)
        and targets.size > 0
        and outputs.ndim > 0
        and jnp.issubdtype(outputs.dtype, jnp.floating)
    )


def _are_classes(outputs: jax.ShapeDtypeStruct, targets: np.ndarray) -> bool:
    """Whether the targets are classes, one for each row of outputs."""
    return (
        targets.dtype.kind in "iu"
        and targets.ndim < outputs.ndim
        and outputs.shape[-1] > 1
        and bool(0 <= targets.min() <= targets.max() < outputs.shape[-1])
    )


def _shape(array: jax.ShapeDtypeStruct | np.ndarray) -> str:
    return f"[{', '.join(['m', *map(str, array.shape[1:])])}]"


def _mixes_samples(loss: Function, outputs: jax.ShapeDtypeStruct, targets: np.ndarray) -> bool:
    """Whether a sample's loss changes with another sample."""
    at = np.unique(np.array([targets.argmin(), targets.argmax()]) // max(1, targets[0].size))
    if len(at) < 2:
        return False
    drawn = np.random.default_rng(0).uniform(-1, 1, (2, *outputs.shape[1:]))
    both = _values(lambda o, t: loss(o[0], t[0]), drawn[None], [targets[at]])
    alone = [_values(loss, drawn[k : k + 1], [np.asarray(targets[at[k]])]) for k in (0, 1)]
    if not len(both) or not all(map(len, alone)) or not np.isfinite([both, *alone]).all():
        return False
    return not np.allclose(both, np.mean(alone), rtol=1e-4, atol=1e-5)


def _are_factors(
    loss: Function, outputs: jax.ShapeDtypeStruct, labels: np.ndarray, shape: tuple[int, ...]
) -> bool:
    """Whether labels that are whole numbers are factors of one function of all outputs."""
    if not np.array_equal(labels, np.round(labels)) or not outputs.shape[-1] > shape[-1]:
        return False
    drawn = np.random.default_rng(0).uniform(-1, 1, (_DRAWS, *outputs.shape[1:]))
    found = _values(loss, drawn, [np.full(shape, label, labels.dtype) for label in (1, *labels)])
    return (
        len(found) > 0
        and bool(np.ptp(found[0]) > 0)
        and np.allclose(found[1:], labels[:, None] * found[0], rtol=1e-4)
    )


def _is_of_margins(
    loss: Function, points: np.ndarray, rows: list[np.ndarray], found: np.ndarray
) -> bool:
    """Whether the loss is a monotone function of target times output, bounded on one side."""
    one = np.ones_like(rows[0])
    first = _values(loss, points, [one])
    if not len(first):
        return False
    (of_one,) = first
    steps = np.diff(of_one)
    if not ((steps <= 0).all() or (steps >= 0).all()) or np.allclose(of_one, -of_one[::-1]):
        return False
    return bool(np.ptp(of_one) > 0) and all(
        np.allclose(row, _values(loss, points * target.flat[0], [one])[0], rtol=1e-4, atol=1e-6)
        for row, target in zip(found, rows, strict=True)
    )


def refusal(function: Function, outputs: PyTree, targets: PyTree) -> str:
    """Returns the reason why the targets are invalid for a loss or a metric; "" if they are valid.

    The function is probed only if a target lies outside the usual range, so valid data cost a
    minimum and a maximum. The check is needed because a function does not notice an index outside
    the classes: JAX returns NaN, another class, or a row of zeros.

    Args:
        function: (outputs, targets) -> `[m, ...]`.
        outputs: shapes and types of the model's outputs, leaves `[m, ...]`.
        targets: on the host, leaves `[M, ...]`. Several leaves, or outputs other than one array,
            are not checked.
    """
    if not _is_checked(outputs, targets) or _are_classes(outputs, targets):
        return ""
    low, high = targets.min(), targets.max()
    values = partial(_values, function)
    if outputs.ndim > 1 and targets.dtype.kind in "iu" and not 0 <= low <= high < outputs.shape[-1]:
        labels = np.unique(targets)
        if _are_indices(values, outputs, targets.shape[1:], labels):
            return _wrong_classes(labels, outputs.shape[-1])
    if not 0 <= low <= high <= 1 and _are_probabilities(values, outputs, targets):
        relabel = (
            "np.unique(targets, return_inverse=True)[1]"
            if len(np.unique(targets)) == 2
            else "a rescaling"
        )
        relabel = "(targets + 1) / 2" if (low, high) == (-1, 1) else relabel
        given = (
            f"targets from {low} to {high}, for which the loss is NaN or unbounded from below, as "
            "a cross-entropy of probabilities"
        )
        return f"{given}; expected targets in [0, 1]; relabel them with {relabel}"
    return ""


def _wrong_classes(labels: np.ndarray, K: int) -> str:
    low, high = labels[0], labels[-1]
    if (low, high) == (1, K):
        relabel = "targets - 1"
    elif K == 2 and set(labels.tolist()) == {-1, 1}:
        relabel = "(targets + 1) // 2"
    else:
        relabel = "np.unique(targets, return_inverse=True)[1]"
    alternative = f", or pass a model with {len(labels)} outputs" if len(labels) > K else ""
    given = (
        f"targets from {low} to {high}, used as indices of the model's {K} output{'s' * (K > 1)}"
    )
    return f"{given}; expected classes 0 to {K - 1}; relabel them with {relabel}{alternative}"


def _are_indices(
    values: Callable, outputs: jax.ShapeDtypeStruct, shape: tuple[int, ...], labels: np.ndarray
) -> bool:
    """Whether the function uses targets as indices into the last axis of the outputs, and returns a
    meaningless value for one outside of it.
    """
    K, kind = outputs.shape[-1], np.iinfo(labels.dtype)
    below, above = labels[labels < 0], labels[labels >= K]
    outside = {*map(int, below[-1:]), *map(int, above[:1])}  # the nearest on each side
    # The outputs lie in (0, 1) and above, so that they may be logits, probabilities or rates.
    drawn = np.random.default_rng(0).uniform(0.1, 0.9, (_DRAWS, *outputs.shape[1:]))
    drawn[0, ..., 0] += 1
    drawn[1, ..., K - 1] += 1
    adjacent = {label: label - 1 if label < 0 else label + 1 for label in outside}
    asked = {0, K - 1, *outside, *(label + K for label in outside if -K <= label < 0)}
    asked |= {other for other in adjacent.values() if kind.min <= other <= kind.max}
    found = values(drawn, [np.full(shape, label, labels.dtype) for label in asked])
    of = dict(zip(asked, found, strict=False))
    if not of or not all(np.isfinite(of[label]).all() for label in (0, K - 1)):
        return False
    depends = K == 1 or not np.array_equal(of[0], of[K - 1])
    # A single label outside the classes with a loss of 0 marks samples that are to be ignored.
    marker = (
        len(outside) == 1 == len(below) + len(above)
        and outside != {K}
        and set(labels.tolist()) != {-1, 1}
    )

    def is_lost(label: int) -> bool:
        found = of[label]
        if not np.isfinite(found).all():
            return True
        if not found.any():
            return not marker
        similar = (0 if label < 0 else K - 1, label + K if label < 0 else None, adjacent[label])
        return any(other in of and np.array_equal(found, of[other]) for other in similar)

    return depends and any(map(is_lost, outside))


def _are_probabilities(
    values: Callable, outputs: jax.ShapeDtypeStruct, targets: np.ndarray
) -> bool:
    """Whether the function is NaN or far below 0 for targets outside [0, 1], but not for the same
    targets clipped to [0, 1].
    """
    rows = targets.reshape(len(targets), -1)
    extreme = [
        np.asarray(targets[at]) for at in (rows.min(axis=1).argmin(), rows.max(axis=1).argmax())
    ]
    cut = [np.asarray(np.clip(row, 0, 1), targets.dtype) for row in extreme]
    signs = np.sign(np.random.default_rng(0).uniform(-1, 1, outputs.shape[1:]))
    drawn = _FAR * np.stack([signs, -signs, np.ones_like(signs), -np.ones_like(signs)])
    found = values(drawn, [*extreme, *cut])
    if not len(found) or not np.isfinite(found[2:]).all() or found[2:].min() < -1e-3:
        return False
    return bool(np.isnan(found[:2]).any() or found[:2].min() < -1)


def _values(function: Callable, outputs: np.ndarray, targets: list[np.ndarray]) -> np.ndarray:
    """Returns the function's means for each of the targets at each of the outputs, `[targets,
    outputs]`; `[0]` if the function does not accept such targets.
    """
    pairs = [(output, target) for target in targets for output in outputs]
    stacked, labels = (np.stack(each) for each in zip(*pairs, strict=True))
    try:
        with jax.debug_nans(False), jax.debug_infs(False):
            given = np.asarray(
                jax.jit(function)(jnp.asarray(stacked, jnp.result_type(float)), labels)
            )
    except Exception:
        # The function may raise any exception when it is probed. If it raises for valid arguments,
        # too, the error appears when it is traced for the run.
        return np.empty(0)
    return given.reshape(len(targets), len(outputs), -1).mean(axis=-1)
