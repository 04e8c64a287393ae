"""Finds the swept hyperparameters that a factory uses as Python values, for an error message."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np

from dsgd.engine import loop
from dsgd.runs.plans import ConstantFactory
from dsgd.runs.run_spec import RunSpec


def used_as_python_values(job: RunSpec, grid: dict[str, np.ndarray], error: Exception) -> list[str]:
    """Returns the names of the hyperparameters that alone prevent the run from being traced.

    The list is empty if the run cannot be traced even without traced hyperparameters.

    Args:
        job: the sweep that failed.
        grid: the grid of the sweep.
        error: the error with which it failed.
    """
    # Errors of our own argument checks say whether the value is traced.
    if not (isinstance(error, TypeError) or "traced" in str(error)):
        return []
    if not _traces(
        job._replace(
            plan=job.plan._replace(build=ConstantFactory(job.methods[0]), runs=1), points={}
        )
    ):
        return []
    first = {name: values[0].item() for name, values in grid.items()}

    def alone(name: str) -> RunSpec:
        others = {other: value for other, value in first.items() if other != name}
        plan = job.plan._replace(build=lambda point: job.plan.build({**others, **point}))
        return job._replace(plan=plan, points={name: job.points[name]})

    return [name for name in grid if not _traces(alone(name))]


def _traces(job: RunSpec) -> bool:
    try:
        jax.eval_shape(partial(loop.advance, job.plan), *job.shapes())
    except (TypeError, ValueError):
        return False
    return True
