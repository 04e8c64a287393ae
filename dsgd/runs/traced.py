"""Hyperparameters of a sweep that are used as Python values, which traced values are not: for the
error message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import numpy as np

from dsgd.base import Algorithm
from dsgd.engine import loop
from dsgd.runs.jobs import Job
from dsgd.runs.plans import Always


def used_as_python_values(
    job: Job, factory: Callable[..., Algorithm], grid: dict[str, np.ndarray], error: Exception
) -> list[str]:
    """The hyperparameters with which alone the run cannot be traced, if it can be traced without
    any; by name.

    Args:
        job: the sweep that failed.
        factory, grid: of the sweep.
        error: with which it failed.
    """
    # our own refusals show the value that they were given
    if not (isinstance(error, TypeError) or "Tracer" in str(error)):
        return []
    if not _traces(
        job._replace(plan=job.plan._replace(build=Always(job.methods[0]), runs=1), points={})
    ):
        return []
    first = {name: values[0].item() for name, values in grid.items()}

    def alone(name: str) -> Job:
        others = {other: value for other, value in first.items() if other != name}
        plan = job.plan._replace(build=lambda point: factory(**others, **point))
        return job._replace(plan=plan, points={name: job.points[name]})

    return [name for name in grid if not _traces(alone(name))]


def _traces(job: Job) -> bool:
    try:
        jax.eval_shape(partial(loop.advance, job.plan), *job.shapes())
    except (TypeError, ValueError):
        return False
    return True
