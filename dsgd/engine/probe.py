"""What a method does, found by tracing one of its rounds. Nothing is compiled."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from dsgd import sameness, workers
from dsgd.base import Algorithm, Now, State
from dsgd.clusters import Cluster, constant
from dsgd.communication import Sending
from dsgd.engine import clock, measurements, protocol, queries, rounds, tape
from dsgd.engine.plan import Plan
from dsgd.engine.protocol import Method
from dsgd.engine.queries import AllAsked, Asked
from dsgd.engine.tape import ClockInputs, Transfer

_TIMINGS = "timings"
_OF_CLUSTER = ("cluster", "clock", _TIMINGS)


class Probe(NamedTuple):
    """Properties of a method's rounds. Traced arrays are replaced by their shapes and types.

    Args:
        asked: the queries of a round.
        sendings: the exchanges of an update.
        transfers: the same, as the clock sees them.
        reads: which of the cluster, its clock and the workers' timings the query or the update
            reads.
        rows: number of micro-batches of a round on the cluster, of which each has a timing.
        weighs: whether means are weighted by the workers' weights.
        proximal: whether the update applies the proximal step of the problem's regularizer.
        own_time: whether the method is event-driven and keeps its own time.
    """

    asked: AllAsked
    sendings: list[Sending]
    transfers: list[Transfer]
    reads: set[str]
    rows: int
    weighs: bool
    proximal: bool
    own_time: bool

    @property
    def clock_inputs(self) -> ClockInputs:
        """What the clock reads of a round."""
        return self.asked, self.transfers

    @property
    def timings(self) -> int:
        """As in `Plan`."""
        return self.rows if _TIMINGS in self.reads else 0

    @property
    def delayed_exchanges(self) -> int:
        """Number of exchanges with delayed messages."""
        return sum(not sending.waits for sending in self.sendings)

    @property
    def asks_some(self) -> bool:
        """Whether only some workers are asked for gradients, which the simulation then sends
        between devices.
        """
        return any(query.workers is not None for query in queries.each(self.asked))

    @property
    def draws(self) -> int:
        """Number of batches that a worker draws in a round, at most. Several queries draw the same
        ones.
        """
        return max(queries.micro_batches(query, 1) for query in queries.each(self.asked))


def probe(plan: Plan, algorithm: Algorithm) -> Probe:
    """Returns the properties of a method. Each method is traced once for a problem and a cluster.

    Args:
        plan: plan of the run.
        algorithm: the method with its hyperparameters.

    Raises:
        ValueError: if the plan's cluster has workers that do not participate or messages that are
            lost, and the method cannot run without them; or for the same reasons as a run.
    """
    mesh = _mesh(plan)
    given = (plan.problem, mesh, plan.N, plan.cluster, plan.taped, algorithm)
    return _probe(sameness.Key(given))


@lru_cache(maxsize=64)
def _probe(given: sameness.Key) -> Probe:
    problem, mesh, N, cluster, taped, algorithm = given.value
    plan = Plan(lambda points: algorithm, problem, mesh, N, 0, 1, 1, cluster, taped=taped)
    return probe_at(plan, {})


def probe_at(plan: Plan, points: dict[str, jax.Array]) -> Probe:
    """Returns the properties of the plan's method, with traced hyperparameters.

    Args:
        plan: plan of the run.
        points: hyperparameters by name, `[grid]` each; {} without a grid.
    """
    plan, probes = plan._replace(runs=0, mesh=_mesh(plan), cohort=None), list[Probe]()

    def init(point, key):
        return plan.method(point).init(plan.problem.init(key))

    def trace(point, state, key):
        probes.append(_probe_round(plan, plan.method(point), state, key))
        return state.step

    point = {name: jax.ShapeDtypeStruct((), values.dtype) for name, values in points.items()}
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(init, point, key)
    traced = plan.shard(trace, (P(), plan.state_spec, P()), P())
    jax.eval_shape(traced, point, state, key)
    return probes[0]


def _mesh(plan: Plan) -> Mesh:
    """Returns a mesh on which the rows of all workers can be spread equally."""
    return workers.mesh(1) if plan.cohort else plan.mesh


def _probe_round(plan: Plan, method: Method, state: State, key: jax.Array) -> Probe:
    """Traces a round with gradients of zeros."""
    reads = set[str]()

    class Watched(Now):
        """The state of the cluster, which notes what the method reads."""

        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name in _OF_CLUSTER:
                reads.add(name)
            return super().__getattribute__(name)

    def query(M: int):
        before = ()
        if plan.cluster:
            before = clock.start(plan.N, measurements.initial_timings(plan.N, M, plan.cluster))
        this_round = rounds.make_round(plan, key, before, state.step)
        present = rounds.participation_of(plan, this_round, key)
        if this_round.now or plan.taped:
            now = this_round.now or Now(Cluster(constant(1.0)))
            this_round = this_round._replace(now=Watched(*now))
        return this_round, present, rounds.ask(method, state, this_round, present)

    default = plan.cluster.micro_batches if plan.cluster else 1
    this_round, present, asked = query(default)
    M = queries.micro_batches(asked, default)
    if plan.cluster and default != M:  # the query may read the timings of M micro-batches
        this_round, present, asked = query(M)
        if (again := queries.micro_batches(asked, default)) != M:
            raise ValueError(
                f"{method.name}: query returns work in {M} micro-batches, but in {again} if it "
                "reads that many timings; expected the same number of micro-batches"
            )
    answer = queries.map_each(partial(_zeros, plan), asked)
    this_round = this_round._replace(work=queries.local_work(asked, plan.problem, plan.N))
    _, record = rounds.update(method, state, answer, this_round, key, present)
    sendings = record.sendings()
    asked, sendings, transfers = jax.tree.map(_shape, (asked, sendings, tape.transfers(sendings)))
    own_time = record.statistics(plan.N).elapsed is not None
    return Probe(asked, sendings, transfers, reads, M, record.weighs, record.proximal, own_time)


def _shape(leaf: Any) -> Any:
    """Returns the shape and type of a traced array; other values are returned unchanged."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, Tracer) else leaf


def _zeros(plan: Plan, query: Asked) -> Any:
    """Returns zeros of the shapes and types of the oracle's answer."""
    count = plan.N // plan.mesh.size if query.workers is None else len(query.workers)
    gradients = jax.tree.map(
        lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype),
        protocol.parameters(plan.problem),
    )
    losses = jnp.zeros(count, queries.loss_type(query.params))
    return (losses, gradients) if query.loss else gradients
