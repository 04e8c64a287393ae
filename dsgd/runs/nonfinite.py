"""Diagnoses non-finite losses that are caused by non-finite inputs or gradients rather than by the
step size.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import keystr, tree_leaves_with_path

from dsgd.base import Params, PyTree
from dsgd.engine import leaves, oracle, run_keys
from dsgd.machines import arrays
from dsgd.runs.run_spec import RunSpec

_CAUSES = (
    "as for sqrt or norms at 0, log of 0, or a branch that jnp.where does not select; change the "
    "loss there"
)


def report(job: RunSpec, history: dict[str, np.ndarray], before: int, run: int) -> str:
    """Returns which of the run's data, batches, start and first gradients are not finite, as text;
    "" if none of them is.

    Args:
        job: the run that diverged.
        history: its evaluated records.
        before: number of evaluated records before the first non-finite one; 0: the loss was not
            finite before the first round.
        run: index of the run (seed) that diverged.
    """
    named = [
        *_nonfinite_leaves(f"{job.problem.name}: data", job.problem.data),
        *_nonfinite_leaves(f"{job.problem.name}: replicated", job.problem.evaluation.replicated),
    ]
    if job.feed and job.feed.not_finite is not None:
        named += [f"batch {job.feed.not_finite} is not finite"]
    if not named and before == 0:
        named = _start_reasons(job, run)
    if not named and before == 1 and not job.start and not job.plan.mesh.is_multi_process:
        named = _first_gradients(job, run)
    if not named and before:
        named = _gradient(history, run, before - 1)
    return ", ".join(named[:3])


def _gradient(history: dict[str, np.ndarray], run: int, at: int) -> list[str]:
    """Reports the gradient if it was not finite at record `at`, the last one with a finite loss,
    and that loss was not much larger than the initial one.
    """
    loss, sqnorm = (
        history[name].reshape(-1, history["loss"].shape[-1])[run]
        for name in ("loss", "grad_sqnorm")
    )
    if (
        not np.isfinite(sqnorm[at])
        and np.isfinite(sqnorm[0])
        and abs(loss[at]) <= 1e3 * max(1, abs(loss[0]))
    ):
        return [
            f"the gradient is not finite after round {history['step'][at]}, although the loss is "
            f"{loss[at]:g} ({_CAUSES})"
        ]
    return []


def _start_reasons(job: RunSpec, run: int) -> list[str]:
    """Returns what is not finite at the start; if nothing is, the ranges of the data, the start and
    the model's outputs.
    """
    start, where = (
        (job.start, "start: state")
        if job.start
        else (_first_models(job), f"{job.problem.name}: the start")
    )
    if named := _nonfinite_leaves(where, start):
        return named
    ranges = _ranges("data", job.problem.data) + ([] if job.start else _ranges("start", start))
    if not job.start and not job.plan.mesh.is_multi_process:
        ranges += _outputs(job, run)
    return [
        "it was not finite before the first round, with finite data and a finite start "
        f"({', '.join(ranges)})"
    ]


def _nonfinite_leaves(where: str, tree: PyTree) -> list[str]:
    """Returns a text for each leaf with an infinite or NaN element."""
    return [
        f"{where}{keystr(path)} is not finite"
        for path, leaf in tree_leaves_with_path(tree)
        if _is_nonfinite(leaf)
    ]


def _is_nonfinite(leaf: Any) -> bool:
    array = arrays.fetch(leaf)
    return jnp.issubdtype(array.dtype, jnp.inexact) and not bool(jnp.isfinite(array).all())


def _ranges(where: str, tree: PyTree) -> list[str]:
    """Returns the smallest and the largest number of each leaf, as text."""
    numbers = [
        (path, arrays.fetch(leaf))
        for path, leaf in tree_leaves_with_path(tree)
        if jnp.issubdtype(leaf.dtype, jnp.number)
    ]
    return [
        f"{where}{keystr(path)} from {array.min():g} to {array.max():g}"
        for path, array in numbers
        if array.size
    ]


def _first_models(job: RunSpec) -> PyTree:
    """Returns the initial parameters of every seed."""
    keys = job.keys if job.plan.runs else job.keys[None]
    return jax.vmap(lambda key: job.problem.init(run_keys.split(key)[0]))(keys)


def _first_model(job: RunSpec, run: int) -> Params:
    return jax.tree.map(lambda leaf: leaf[run], _first_models(job))


def _outputs(job: RunSpec, run: int) -> list[str]:
    """Returns the range of the model's outputs on all data, if the problem's loss provides them
    (attribute `outputs`).
    """
    outputs = getattr(job.problem.loss, "outputs", None)
    if outputs is None:
        return []
    params = _first_model(job, run)
    return _ranges("outputs", lax.map(lambda data: outputs(params, data), job.problem.data))


def _first_gradients(job: RunSpec, run: int) -> list[str]:
    """Reports which leaves of the exact gradient at the start are not finite, with the first such
    worker.
    """
    trained, fixed = leaves.split(leaves.flags(job.problem), _first_model(job, run))
    loss_and_gradient = oracle.value_and_grad(leaves.bind(job.problem, fixed))

    def finite(data):
        return jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), loss_and_gradient(trained, data))

    try:
        losses, slopes = jax.jit(lambda data: lax.map(finite, data))(job.problem.data)
    except ValueError:  # the loss has no exact gradient
        return []
    at = [
        (keystr(path), np.flatnonzero(np.asarray(losses) & ~np.asarray(leaf)))
        for path, leaf in tree_leaves_with_path(slopes)
    ]
    return [
        f"the gradient{f' in {path}' if path else ''} of worker {workers[0]} is not finite at the "
        f"start, although its loss is ({_CAUSES})"
        for path, workers in at
        if len(workers)
    ]
