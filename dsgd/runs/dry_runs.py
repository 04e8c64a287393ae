"""Dry runs: what a method sends, and the seconds of its rounds, for a model of any size.

A dry run has gradients of zeros, and keeps only the bits and the clock. The sizes of most messages
depend on shapes alone, so that the compiled program contains neither the model nor its gradients: a
round for a model of billions of parameters takes microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from dsgd import sameness
from dsgd.base import Algorithm, Evaluation, Loss, Params, Problem, PyTree, Sampler
from dsgd.clusters import Cluster
from dsgd.engine import clock, columns, loop, rounds, run_keys, tape
from dsgd.engine.plan import Plan
from dsgd.engine.probe import probe
from dsgd.runs import plans
from dsgd.runs.run_spec import Tape
from dsgd.wire import counts

# Length of the vector of each worker on which all gradients depend. If messages depend on the
# gradients, it is an argument of the compiled program; otherwise it is not.
_LENGTH = 1 << 12


class Records(NamedTuple):
    """The rounds of a dry run, arrays `[steps]`.

    Args:
        seconds: the clock after each round, float64; 0 without a cluster.
        up, down: mean bits that a worker sends and receives in each round.
        messages: number of exchanges of each round.
        gradients: number of samples in the gradients of all workers; without samples, of gradients.
        tape: what `dsgd.replay` reads; None if the rounds depend on the cluster.
    """

    seconds: np.ndarray
    up: np.ndarray
    down: np.ndarray
    messages: np.ndarray
    gradients: np.ndarray
    tape: Tape | None


@dataclass(frozen=True, eq=False)
class _Start(sameness.Compared):
    """key -> a model of these shapes."""

    shapes: Any

    def __call__(self, key: jax.Array) -> Params:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.shapes)


def on_model(problem: Problem, shapes: PyTree, N: int) -> Problem:
    """Returns a problem of N workers with a model of the given shapes and a loss of 0, which has
    the weights, the regularizer and the sizes of the batches of another problem.

    Args:
        problem: the other problem.
        shapes: pytree of `jax.ShapeDtypeStruct`.
        N: number of workers.
    """
    sampler = replace(
        problem.sampler,
        draw=_all_data,
        truncate=_same_batch,
        choose=_same_batch,
        numbered=False,
        keyed=None,
        read=None,
        batch_error=None,
    )
    return Problem(
        _Start(shapes),
        Loss(_loss, _gradient),
        np.zeros((N, _LENGTH), np.float32),
        sampler,
        Evaluation(_evaluate),
        problem.weights,
        name="the model",
        regularizer=problem.regularizer,
    )


def of_workers(shapes: PyTree, N: int) -> Problem:
    """Returns a problem of N workers with a model of the given shapes and a loss of 0."""
    return on_model(Problem(_all_data, _loss, (), Sampler(_all_data)), shapes, N)


def _loss(params: Params, batch: jax.Array) -> jax.Array:
    return jnp.float32(0)


def _gradient(params: Params, batch: jax.Array) -> Params:
    value = jnp.sum(batch)
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, value, leaf.dtype), params)


def _evaluate(params: Params, data: PyTree, shared: PyTree) -> tuple[dict[str, Any], None]:
    return {"loss": jnp.float32(0)}, None


def _all_data(key: jax.Array, data: PyTree) -> PyTree:
    return data


def _same_batch(batch: PyTree, which: jax.Array) -> PyTree:
    return batch


def record(
    algorithm: Algorithm, problem: Problem, cluster: Cluster, key: jax.Array, steps: int
) -> Records:
    """Returns what the rounds of a method send, and their seconds on a cluster.

    Args:
        algorithm: the method.
        problem: of `on_model`.
        cluster: the cluster.
        key: of the run.
        steps: number of rounds.

    Raises:
        ValueError: if the method refuses the model or the cluster, or sizes of messages depend on
            the gradients.
    """
    plan = plans.plan_one(algorithm, problem, cluster)
    found = probe(plan, algorithm)
    is_taped = not (found.reads or found.own_time)
    arguments = key, problem.data
    traced = partial(_records, plan._replace(taped=is_taped), steps)
    program = jax.jit(traced).lower(*arguments).compile()
    sizes = program.memory_analysis()
    if sizes is not None and sizes.argument_size_in_bytes >= problem.data.nbytes:
        raise ValueError(
            f"{algorithm.name}: the sizes of its messages depend on the gradients, and not only on "
            "the shapes of the model; expected a method with messages of known sizes; run this one "
            "on the model itself"
        )
    records = jax.device_get(program(*arguments))
    totals = counts.to_int(records.pop(columns.TOTALS)).astype(float)
    up, down, messages, gradients = totals.T
    seconds = clock.to_seconds(records.pop(columns.CLOCK))
    taped = Tape(plan, {}, key, 0, (), steps, records) if is_taped else None
    return Records(seconds, up / plan.N, down / plan.N, messages, gradients, taped)


def _records(plan: Plan, steps: int, key: jax.Array, data: PyTree) -> dict[str, jax.Array]:
    """Returns the records of all rounds by name, `[steps, ...]`."""

    def block(carry, key, data):
        method, of_rounds = plan.method({}), run_keys.split(key)[1]

        def one_round(carry, step):
            carry, values = rounds.run_round(
                plan, method, of_rounds, carry, data, None, step, step == 0
            )
            return carry, {name: values[name] for name in values if _is_read(name)}

        return lax.scan(one_round, carry, jnp.arange(steps))[1]

    specs = plan.carry_spec, P(), plan.data_spec
    return plan.shard(block, specs, P())(loop.first_carry(plan, {}, key), key, data)


def _is_read(name: str) -> bool:
    return name in (columns.CLOCK, columns.TOTALS) or tape.is_series(name)
