"""The loop that a run compiles, traced for shapes alone: nothing is compiled, and no state is made."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import dsgd
from dsgd.engine import loop, programs
from dsgd.runs import plans


def traced(algorithm: dsgd.Algorithm, problem: dsgd.Problem, devices: int, cluster: dsgd.clusters.Cluster | None = None) -> Any:
    """What `dsgd.run` compiles for its rounds, whose state is donated.

    Args:
        algorithm, problem, cluster: as in `dsgd.run`; shapes will do for the problem's data.
        devices: how many.
    """
    plan = plans.make_plan(plans.Always(algorithm), problem, devices, runs=0, size=1, record_every=1, cluster=cluster)
    key, number = jax.random.key(0), jax.ShapeDtypeStruct((), jnp.int32)
    carry = loop.shapes(plan, {}, key)
    advance = programs.traceable(loop.advance, plan, (0,))
    return advance.trace(carry, {}, key, problem.data, problem.shared, None, loop.Chunk(*[number] * 4))
