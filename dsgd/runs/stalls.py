"""Runs in float32 whose gradient no longer decreases because of rounding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dsgd.base import PyTree
from dsgd.runs.history import History, evaluated_records

_FEWEST = 8  # records that are compared
_TAIL = 4  # the last quarter of the evaluated records
# Gradient norms after runs in float32 that no longer decreased were up to 44 epsilons of those at
# the start, for step sizes from 1/(64 L) on; biased methods and noise left more than 800.
_GRADIENT = 256  # epsilons of the gradient norm at the start
_LOSS = 16  # epsilons of the loss, by which the rounded loss varies
_RISES = 0.25  # share of the records from which on the gradient norm does not decrease


def stalled(history: History) -> np.ndarray:
    r"""Returns which runs end at the resolution of float32, bool `[runs ...]`.

    Over the last quarter of the evaluated records, of such a run

    - the gradient norm is at most 256 epsilons of that at the start, and not 0;
    - the loss changes by at most 16 epsilons, or, at a minimum of 0, by the square of 256 epsilons
      of that at the start;
    - the gradient norm does not decrease in a quarter of the records, and its median in the second
      half is more than half of that in the first half.

    The problem's regularizer, if it has one, is part of both.

    Args:
        history: as in `dsgd.Result` or `dsgd.Sweep`.
    """
    evaluated = evaluated_records(history)
    names = ("objective", "prox_grad_sqnorm")
    if not set(names) <= evaluated.keys():
        names = ("loss", "grad_sqnorm")
    loss, sqnorm = (np.asarray(evaluated[name]) for name in names)
    records = loss.shape[-1] // _TAIL
    if records < _FEWEST or loss.dtype != np.float32:
        return np.zeros(loss.shape[:-1], bool)
    eps = float(np.finfo(np.float32).eps)
    with np.errstate(all="ignore"):  # NaN, if there is no gradient, and runs that diverge
        norm = np.sqrt(sqnorm.astype(float))
        tail, losses = norm[..., -records:], loss[..., -records:].astype(float)
        before, after = (
            np.median(half, axis=-1)
            for half in (tail[..., : records // 2], tail[..., records // 2 :])
        )
        resolved = np.maximum(
            _LOSS * eps * np.abs(losses).max(axis=-1), (_GRADIENT * eps) ** 2 * abs(loss[..., 0])
        )
        rises = (np.diff(tail, axis=-1) >= 0).mean(axis=-1)
        return np.asarray(
            (tail.min(axis=-1) > 0)
            & (tail.max(axis=-1) <= _GRADIENT * eps * norm[..., 0])
            & (np.ptp(losses, axis=-1) <= resolved)
            & (rises >= _RISES)
            & (after > before / 2)
        )


def warning(name: str, history: History, params: PyTree) -> str:
    """Returns the warning about a run, or a sweep, of which a part ends at the resolution of
    float32; "" if none does, or some parameters have another type.

    Args:
        name: name of the method.
        history: as in `stalled`.
        params: the final models.
    """
    kinds = {
        leaf.dtype for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.floating)
    }
    found = stalled(history) if kinds == {np.dtype(np.float32)} else np.zeros((), bool)
    if not found.any():
        return ""
    some = f" of {found.sum()} of {found.size} runs" if found.size > 1 else ""
    return (
        f"{name}: the gradient norm{some} has stopped decreasing at the resolution of float32, so "
        "its last values depend on rounding; to reach smaller ones, run in float64: "
        "jax.config.update('jax_enable_x64', True) before the problem is constructed"
    )
