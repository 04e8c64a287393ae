"""The compiled loop of a run, traced only for shapes: nothing is compiled, and no state is
allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

import dsgd
from dsgd.engine import leaves, literals, loop, programs
from dsgd.engine.plan import Chunk, Plan
from dsgd.runs import plans, sweeps


def traced(
    algorithm: dsgd.Algorithm,
    problem: dsgd.Problem,
    devices: int,
    cluster: dsgd.clusters.Cluster | None = None,
) -> Any:
    """Returns the program that `dsgd.run` compiles for its rounds, whose state is donated.

    Args:
        algorithm, problem, cluster: as in `dsgd.run`; shapes suffice for the problem's data.
        devices: number of devices.
    """
    plan = plans.make_plan(
        plans.ConstantFactory(algorithm),
        algorithm,
        problem,
        devices,
        runs=0,
        size=1,
        record_every=1,
        cluster=cluster,
    )
    return _traced(plan, problem, {}, jax.random.key(0))


def swept(
    factory: Callable[..., dsgd.Algorithm],
    problem: dsgd.Problem,
    devices: int,
    cluster: dsgd.clusters.Cluster | None = None,
    **grid: Any,
) -> Any:
    """Returns the program of `dsgd.sweep` with two seeds.

    Args:
        factory, problem, cluster, grid: as in `dsgd.sweep`.
        devices: number of devices.
    """
    points = {name: jnp.asarray(values) for name, values in grid.items()}
    size = 2 * prod(map(len, grid.values()))
    example = factory(**{name: values[0] for name, values in grid.items()})
    plan = plans.make_plan(
        sweeps.FromPoint("sweep: factory", factory, dsgd.Algorithm),
        example,
        problem,
        devices,
        runs=2,
        size=size,
        record_every=1,
        cluster=cluster,
    )
    return _traced(plan, problem, points, jax.random.split(jax.random.key(0), 2))


def _traced(
    plan: Plan, problem: dsgd.Problem, points: dict[str, jax.Array], keys: jax.Array
) -> Any:
    carry, number = loop.shapes(plan, points, keys), jax.ShapeDtypeStruct((), jnp.int32)
    advance = programs.traceable(loop.advance, plan, (0,))
    return advance.trace(
        carry,
        points,
        keys,
        problem.data,
        (problem.evaluation.replicated, leaves.minimizer(problem)),
        None,
        Chunk(*[number] * 4),
        literals.shape(),
    )
