"""Why a loss is not finite, where it is no step size's fault: numbers that were not finite when they came."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dsgd.base import PyTree
from dsgd.engine import loop
from dsgd.machines import arrays
from dsgd.runs.jobs import Job


def of(job: Job, at_start: bool) -> str:
    """What of the job's data, batches and start is not finite, for people; empty where it is none of them.

    Args:
        job: that diverged.
        at_start: whether the loss was so before the first round.
    """
    named = [*_named(f"{job.problem.name}: data", job.problem.data), *_named(f"{job.problem.name}: shared", job.problem.shared)]
    if job.feed and job.feed.not_finite is not None:
        named += [f"batch {job.feed.not_finite} is not finite"]
    if at_start and not named:
        named = _named("start: state", job.start) if job.start else _named(f"{job.problem.name}: the start", _first_models(job))
        named = named or ["it was so before the first round, from finite data and a finite start"]
    return ", ".join(named[:3])


def _named(where: str, tree: PyTree) -> list[str]:
    return [f"{where}{jax.tree_util.keystr(path)} is not finite" for path, leaf in jax.tree_util.tree_leaves_with_path(tree) if _bad(leaf)]


def _bad(leaf: Any) -> bool:
    array = arrays.on_host(leaf)
    return jnp.issubdtype(array.dtype, jnp.inexact) and not bool(jnp.isfinite(array).all())


def _first_models(job: Job) -> PyTree:
    """Of every seed."""
    keys = job.keys if job.plan.runs else job.keys[None]
    return jax.vmap(lambda key: job.problem.init(loop.split(key)[0]))(keys)
