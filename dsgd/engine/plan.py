"""The static plan of a run, the state that its loop carries, and their layout on the devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from dsgd import workers
from dsgd.base import Algorithm, Constants, Problem, State
from dsgd.clusters import Cluster
from dsgd.engine import leaves
from dsgd.engine.clock import Clock
from dsgd.engine.cohorts import Clients, Layout
from dsgd.engine.protocol import Method

Records = dict[str, jax.Array]


class Carry(NamedTuple):
    """State of the loop.

    Args:
        state: state of the method; with `Plan.cohort`, `state.workers` is a `Clients`.
        clock: the simulated clock; () if the run has no cluster.
        drawn: number of batches that each worker has drawn, int32 `[N]`, for problems whose batches
            are numbered; () for others.
    """

    state: State
    clock: Clock | tuple[()]
    drawn: Any = ()


class Chunk(NamedTuple):
    """The rounds that one call of `advance` runs: int32 scalars, the same for all runs, so that
    conditions on the round are branches of the program.

    Args:
        done: number of rounds before these.
        rounds: number of rounds; at most those of `Plan.capacity` records.
        fresh: 1 if the run begins here, else 0.
        end: number of rounds done at the run's last record, which is always evaluated.
    """

    done: Any
    rounds: Any
    fresh: Any
    end: Any


class Plan(NamedTuple):
    """Everything that the compiled program depends on besides shapes.

    Args:
        build: hyperparameters -> Algorithm, called while the program is traced.
        problem: the problem's functions, without its arrays.
        mesh: mesh with the axis "workers".
        N: number of workers.
        runs: number of leading axes of independent runs: 0, 1 (seeds) or 2 (grid, seeds).
        record_every: rounds between records.
        capacity: number of records that one call of `advance` can make.
        cluster: cluster on which the run is simulated; None: the run has no clock. With `place`,
            that of one point.
        train_loss: whether records include the loss on the drawn batches.
        evaluate_every: records between evaluations of the problem.
        timings: number of micro-batches of a round, if their timings are carried for a method that
            reads them; 0: it does not.
        weighs: whether the method's means are weighted by the workers' weights; otherwise gradients
            are multiplied by them.
        delayed_exchanges: number of exchanges with delayed messages, which the clock carries.
        taped: whether the records include the tape, from which `dsgd.replay` computes seconds.
        cohort: which rows a round has; None: those of all workers.
        own_time: whether the method keeps its own time, and itself reads when workers are there.
        place: hyperparameters -> Cluster, called while the program is traced; None: all runs have
            the same cluster.
    """

    build: Callable[[dict[str, jax.Array]], Algorithm]
    problem: Problem
    mesh: Mesh
    N: int
    runs: int
    record_every: int
    capacity: int
    cluster: Cluster | None = None
    train_loss: bool = False
    evaluate_every: int = 1
    timings: int = 0
    weighs: bool = False
    delayed_exchanges: int = 0
    taped: bool = False
    cohort: Layout | None = None
    own_time: bool = False
    place: Callable[[dict[str, jax.Array]], Cluster] | None = None

    def at(self, point: dict[str, jax.Array]) -> Plan:
        """Returns the plan with the cluster of a run with the given hyperparameters."""
        return self if self.place is None else self._replace(cluster=self.place(point))

    def method(self, point: dict[str, jax.Array]) -> Method:
        """Returns the method with the given hyperparameters."""
        return Method(self.build(point), self.problem, self.N)

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Weights of the means of local models."""
        return self.problem.weights if self.weighs else None

    @property
    def state_spec(self) -> Any:
        """Partition of the state over the devices."""
        replicated: Any = P()
        rows: Any = P(*[None] * self.runs, workers.AXIS)
        return State(
            server=replicated,
            workers=Clients(rows, replicated, replicated, rows, replicated, replicated)
            if self.cohort
            else rows,
            step=replicated,
            fixed=replicated,
        )

    @property
    def carry_spec(self) -> Any:
        """Partition of the carry over the devices."""
        replicated: Any = P()
        return Carry(self.state_spec, replicated, replicated)

    @property
    def data_spec(self) -> Any:
        """Partition of the problem's data over the devices. Since any worker may be in a cohort,
        each device then has the data of all of them.
        """
        return P() if self.cohort else P(workers.AXIS)

    def shard(self, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """Returns the function of blocks as a function of the arrays of all devices."""
        # Values that collectives make equal on every device (for example all-gathered averages) are
        # not recognised as such by the check of varying axes.
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )

    def map_runs(self, function: Callable, grid_axes: Any, seed_axes: Any) -> Callable:
        """Returns the function of one run for every run: mapped over seeds, then over the grid."""
        if self.runs >= 1:
            function = jax.vmap(function, seed_axes)
        if self.runs == 2:
            function = jax.vmap(function, grid_axes)
        return function


def drop_arrays(problem: Problem) -> Problem:
    """Returns the problem's functions and its workers' weights, hashable and without arrays."""
    weights = None if problem.weights is None else tuple(map(float, problem.weights))
    # A tree of bools may not be hashable.
    init = replace(problem.parameters, trainable=leaves.Flags(leaves.flags(problem)))
    evaluation = replace(problem.evaluation, replicated=())
    return problem._replace(
        init=init, data=(), evaluate=evaluation, constants=Constants(), weights=weights
    )
