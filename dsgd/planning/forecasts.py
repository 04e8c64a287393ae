"""The cost of a method's rounds for a model of given shapes on a cluster."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks, modes
from dsgd.base import Algorithm, Key, Problem, PyTree
from dsgd.clusters import Cluster, Quantity, constant
from dsgd.clusters.quantity import require_numbers
from dsgd.engine import queries
from dsgd.engine.probe import Probe
from dsgd.engine.protocol import Method
from dsgd.runs import dry_runs, plans, replays
from dsgd.runs.driver import Exchange, exchanges_of

_LEAST = 64  # least number of rounds of a mean, for random times
_BEFORE = 1024  # rounds before these at least, for methods that begin with other rounds
_MOST = 4096  # rounds of one cycle of periods and schedules
_FREE = 1e9  # factor of bandwidths that makes transfers free


class Memory(NamedTuple):
    """Bytes of a worker, without the activations of its model.

    Args:
        own: what differs between workers: local models, moments, error memories.
        common: what all workers have, or one server: the model, moments of the common step.
        gradient: the gradients of a round.
        messages: what the worker sends, or receives if that is more, in the round with the most.
    """

    own: int
    common: int
    gradient: int
    messages: int

    @property
    def total(self) -> int:
        """The sum, the bytes of a worker that has the common part as well."""
        return sum(self)


class Forecast(NamedTuple):
    """The cost of a round of a method, on average.

    Args:
        method: name of the method.
        seconds: of a round: of one gradient of each worker; of one event in a method of events.
        compute: seconds of the same round if messages took no time.
        latency: seconds that the round would be shorter if messages had no latency.
        transfer: seconds that it would be shorter if bandwidths were infinite.
        up, down: bits that a worker sends and receives.
        messages: number of exchanges.
        gradients: number of gradients that all workers compute together: N, or one in a round that
            is an event.
        memory: of a worker, in bytes.
        exchanges: how the messages flow.
    """

    method: str
    seconds: float
    compute: float
    latency: float
    transfer: float
    up: float
    down: float
    messages: float
    gradients: float
    memory: Memory
    exchanges: tuple[Exchange, ...]

    @property
    def communication(self) -> float:
        """The share of the seconds that the workers wait for messages."""
        return 1 - self.compute / self.seconds if self.seconds else 0.0

    @property
    def dominant(self) -> str:
        """What takes most of the time: "computation", "transfer" or "latency"."""
        parts = {
            "computation": self.compute,
            "transfer": self.transfer,
            "latency": self.latency,
        }
        return max(parts, key=lambda name: parts[name])


@checks.arguments
@modes.outermost
def forecast(
    algorithm: Algorithm,
    shapes: PyTree,
    cluster: Cluster,
    *,
    workers: int,
    update: float = 0.0,
    key: Key = 0,
) -> Forecast:
    """Returns the seconds, bits and memory of a method's rounds for a model of given shapes.

    The method's rounds are traced with these shapes, and its messages pass through the cluster's
    network; no model is allocated, so that shapes may be those of any model:

        shapes = jax.eval_shape(model.init, key, tokens)
        found = dsgd.forecast(
            algorithms.diloco(optax.adamw(1e-4), 100), shapes, cluster, workers=8
        )
        print(found.seconds, found.dominant, found.memory.total)

    The means are over at least 64 rounds, and over whole cycles of the method's periods and graphs
    of up to 4,096 rounds. 1,024 or more rounds before are left out: methods with a warm-up end it
    there.

    Args:
        algorithm: the method.
        shapes: pytree of arrays, or of their shapes and types (`jax.ShapeDtypeStruct`). Messages
            and memories have these types: pass bfloat16 for a model of this type.
        cluster: `compute` is the seconds of a gradient of the model, and `per_sample` is counted
            for one sample.
        workers: N.
        update: seconds of a round besides the gradient and the messages: the optimizer, compression
            and decompression, as `dsgd.planning.update_seconds` measures them.
        key: as in `dsgd.run`, of random computation times and bandwidths.

    Raises:
        ValueError: if there are no floating-point shapes, the method refuses them or the cluster,
            or sizes of its messages depend on the gradients.
    """
    N = checks.positive_int("forecast: workers", workers)
    require_numbers("forecast: update", update, least=0)
    if update:
        cluster = replace(cluster, compute=cluster.compute + constant(update))
    problem = dry_runs.of_workers(as_shapes("forecast: shapes", shapes), N)
    found = plans.probe_on(algorithm, problem, cluster)
    cycle = _cycle(found)
    before, counted = (cycle * -(-least // cycle) for least in (_BEFORE, _LEAST))
    of_run = checks.typed_key(key)
    runs = dry_runs.record(algorithm, problem, cluster, of_run, before + counted)

    def mean(series: np.ndarray) -> float:
        return float(series[before:].mean())

    def rate(seconds: np.ndarray) -> float:
        return float(seconds[-1] - seconds[before - 1]) / counted

    # without latencies, without transfers, without both
    others = (1.0, 0.0), (_FREE, 1.0), (_FREE, 0.0)
    if runs.tape is None:
        each = [
            dry_runs.record(
                algorithm, problem, scale(cluster, *factors), of_run, before + counted
            ).seconds
            for factors in others
        ]
    else:
        grid = dict(zip(("bandwidth", "latency"), np.transpose(others), strict=True))
        clocks = replays.seconds_of(runs.tape, partial(scale, cluster), **grid)
        each = np.diagonal(clocks[..., 1:]).T
    seconds = rate(runs.seconds)
    no_latency, no_transfer, compute = map(rate, each)
    up, down = runs.up, runs.down
    memory = state_memory(algorithm, problem)
    memory = memory._replace(
        gradient=len(queries.each(found.asked)) * memory.gradient,
        messages=math.ceil(max(up[before:].max(), down[before:].max()) / 8),
    )
    return Forecast(
        algorithm.name,
        seconds,
        compute,
        seconds - no_latency,
        seconds - no_transfer,
        mean(up),
        mean(down),
        mean(runs.messages),
        mean(runs.gradients),
        memory,
        exchanges_of(found),
    )


def as_shapes(where: str, given: PyTree) -> PyTree:
    """Returns the shapes and types of a pytree of arrays or of shapes.

    Raises:
        ValueError: if a leaf is neither, or none is of floating point.
    """

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise ValueError(
                f"{where}: a leaf is {checks.kind(leaf)}; expected arrays, or shapes and types as "
                "jax.eval_shape returns them"
            )
        try:
            return jax.eval_shape(
                lambda: jnp.zeros(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
            )
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{where}: a leaf has the type {leaf.dtype}; expected a type of JAX"
            ) from error

    shapes = jax.tree.map(shape, given)
    if not any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(shapes)):
        raise ValueError(f"{where}: no leaf has a floating-point type; expected those of a model")
    return shapes


def count_elements(shapes: PyTree) -> int:
    """Returns the number of elements of a pytree of arrays or of shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def scale(cluster: Cluster, bandwidth: Any, latency: Any = 1.0) -> Cluster:
    """Returns a cluster with multiples of all its bandwidths and latencies."""

    def ports(quantity: Quantity | None) -> Quantity | None:
        return None if quantity is None else bandwidth * quantity

    return replace(
        cluster,
        up=ports(cluster.up),
        down=ports(cluster.down),
        latency=latency * cluster.latency,
        nodes=cluster.nodes and cluster.nodes.scale(bandwidth, latency),
    )


def _cycle(found: Probe) -> int:
    """Returns the number of rounds after which all periods and schedules repeat; 1 for periods that
    the method decides upon.
    """
    cycles = [int(each.period) * each.turns for each in found.sendings if each.period]
    return min(_MOST, math.lcm(*cycles)) if cycles else 1


def state_memory(algorithm: Algorithm, problem: Problem) -> Memory:
    """Returns the memory of a method's state and of one gradient, without messages."""

    def size(tree: PyTree) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    def init(key: jax.Array) -> tuple[PyTree, PyTree, PyTree]:
        model = problem.init(key)
        state = Method(algorithm, problem, problem.workers).init(model)
        return state.workers, state.server, model

    own, common, model = jax.eval_shape(init, jax.random.key(0))
    return Memory(size(own) // problem.workers, size(common), size(model), 0)
