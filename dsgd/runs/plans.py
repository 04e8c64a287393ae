"""Argument validation and static planning for `run`, `sweep` and `compile_round`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dsgd import array_likes, causes, checks, sameness, workers
from dsgd.base import Algorithm, Problem, State
from dsgd.clusters import Cluster, presence
from dsgd.engine import leaves
from dsgd.engine.plan import Plan, drop_arrays
from dsgd.engine.probe import Probe, probe
from dsgd.machines import forks
from dsgd.runs import layouts, stalls
from dsgd.runs.results import Result
from dsgd.runs.run_spec import RunSpec
from dsgd.workers.axis import automatic

_log = logging.getLogger(__name__)
_ROOM = 1 << 14  # capacity of one chunk in records, over all runs
MOST_ROUNDS = (1 << 31) - 1  # `State.step` is an int32
_MEAN = 1e-5  # tolerance of the mean of the weights, for rounding in float32
_PROXIMAL = "algorithms.proximal_gradient, proximal_sgd, nids, pg_extra or proximal_tracking"
MOST_IN_CHUNK = 1 << 30  # rounds; the sum of two such numbers still fits int32


@dataclass(frozen=True, eq=False)
class ConstantFactory(sameness.Compared):
    """A factory without hyperparameters, of an algorithm or a cluster.

    Factories of equal values are equal, so a second run does not compile again.
    """

    value: Any

    def __call__(self, point: dict[str, jax.Array]) -> Any:
        return self.value


def make_plan(
    build: Any,
    example: Algorithm,
    problem: Problem,
    mesh: Mesh | int | None,
    *,
    runs: int,
    size: int,
    record_every: int,
    cluster: Cluster | None = None,
    train_loss: bool = False,
    evaluate_every: int = 1,
    taped: bool = False,
    methods: Sequence[Algorithm] = (),
    start: State | None = None,
    streamed: bool = False,
    folder: Path | None = None,
) -> Plan:
    """Returns the static description of a run of `size` independent runs.

    Args:
        build: hyperparameters -> Algorithm.
        example: the method for one choice of the hyperparameters.
        problem, mesh, record_every, cluster, train_loss, evaluate_every, taped: as in `dsgd.run`.
        runs: number of leading axes of independent runs.
        size: total number of independent runs.
        methods: the methods of a run or sweep, which may compute the rows of a cohort only; ():
            the rows of all workers are computed.
        start: the state from which the run continues, or None.
        streamed: whether the user supplies the batches.
        folder: folder for what workers keep while they do not participate; None: memory.

    Raises:
        ValueError: as in `dsgd.run`. On a cluster, or with weights or a regularizer, one update is
            traced, which also raises its errors.
    """
    check_runnable(problem, cluster)
    record_every = checks.positive_int("record_every", record_every, most=None)
    if record_every > MOST_IN_CHUNK:
        raise ValueError(f"record_every = {record_every}; expected at most 2^30")
    evaluate_every = checks.positive_int("evaluate_every", evaluate_every, most=None)
    if record_every * evaluate_every > MOST_IN_CHUNK:
        raise ValueError(
            f"evaluate_every = {evaluate_every}, record_every = {record_every}; expected at most "
            "2^30 rounds between evaluations"
        )
    N = problem.workers
    capacity = max(1 << 8, _ROOM // (1 << (size - 1).bit_length()))
    functions = drop_arrays(problem)
    plan = Plan(
        build,
        functions,
        workers.mesh(1),
        N,
        runs,
        record_every,
        capacity,
        cluster,
        bool(train_loss),
        evaluate_every,
        taped=bool(taped),
    )
    if cluster is not None and cluster.spells is not None:
        plan = plan._replace(own_time=probe(plan, example).own_time)
    sampled = bool(methods and cluster and cluster.present and not plan.own_time)
    plan = plan if sampled else plan._replace(mesh=_mesh(mesh, N))
    if sampled:
        plan = _with_layout(plan, methods, mesh, size, start, streamed, folder)
    elif folder is not None:
        raise ValueError(
            f"run: store = {str(folder)!r}, but all workers participate in every round; expected a "
            "cluster with a selection of workers, such as present=clusters.sampled(10, of=1000)"
        )
    if taped:
        _require_replayable(plan, example)
    if cluster is None and problem.weights is None and problem.regularizer is None:
        return plan
    found = probe(plan, example)
    if problem.regularizer is not None and not found.proximal:
        raise ValueError(
            f"{example.name} does not use the regularizer of {problem.name}, so it would "
            f"minimize f alone; expected a method that calls round.prox, such as {_PROXIMAL}"
        )
    return plan._replace(
        timings=found.timings, weighs=found.weighs, delayed_exchanges=found.delayed_exchanges
    )


def probe_on(algorithm: Algorithm, problem: Problem, cluster: Cluster | None) -> Probe:
    """Returns the properties of a method's rounds on a problem and a cluster, as in `probe`."""
    return probe(plan_one(algorithm, problem, cluster), algorithm)


def plan_one(algorithm: Algorithm, problem: Problem, cluster: Cluster | None) -> Plan:
    """Returns the plan of one run on one device, with a record after every round."""
    return make_plan(
        ConstantFactory(algorithm),
        algorithm,
        problem,
        1,
        runs=0,
        size=1,
        record_every=1,
        cluster=cluster,
    )


def _require_replayable(plan: Plan, method: Algorithm) -> None:
    """Raises ValueError if the rounds of a taped run may differ on another cluster, or not every
    round is recorded.
    """
    cluster = plan.cluster
    if plan.record_every != 1:
        raise ValueError(
            f"run: taped, with record_every = {plan.record_every}; expected record_every = 1, "
            "since the tape has every round; pass evaluate_every to evaluate the problem less often"
        )
    for quantity in (cluster.present, cluster.delivered) if cluster else ():
        if quantity is not None and not quantity.time_invariant:
            raise ValueError(
                f"run: taped, but participation or message loss, {quantity.name}, depends on the "
                "clock; expected a quantity that does not, such as clusters.sampled or "
                "clusters.bernoulli"
            )
    if probe(plan, method).reads:
        raise ValueError(
            f"run: taped, but {method.name} reads the cluster, its clock or measured times, on "
            "which its iterates depend; expected a method that does not; run this one on each "
            "cluster"
        )


def _with_layout(
    plan: Plan,
    methods: Sequence[Algorithm],
    mesh: Mesh | int | None,
    size: int,
    start: State | None,
    streamed: bool,
    folder: Path | None,
) -> Plan:
    """Returns the plan with the devices and the rows of its rounds; arguments as in `make_plan`."""

    def devices(most: int) -> Mesh:
        return _mesh(mesh, most, divides=False)

    name = methods[0].name
    layout = layouts.choose(plan, methods, lambda most: devices(most).size, start, streamed)
    if isinstance(layout, str):
        if folder is not None:
            raise ValueError(
                f"run: store = {str(folder)!r}, but the rows of all workers are computed: "
                f"{layout}; expected no store"
            )
        _log.info("%s: the rows of all %d workers are computed: %s", name, plan.N, layout)
        return plan._replace(mesh=_mesh(mesh, plan.N))
    plan = plan._replace(mesh=devices(layout.most), cohort=layout)
    layout, words = layouts.place_store(plan, methods[0], layout, size, folder)
    _log.info("%s: %s", name, words)
    return plan._replace(cohort=layout)


def _mesh(given: Mesh | int | None, rows: int, *, divides: bool = True) -> Mesh:
    """Returns the mesh of a run whose rounds have so many rows; by default it has as many devices
    as possible.

    Args:
        given: the mesh or the number of devices that the user passes.
        rows: number of rows, N for all workers.
        divides: whether the number of devices must divide that of the rows.
    """
    if given is None and jax.process_count() == 1:
        return workers.mesh(max(d for d in range(1, jax.device_count() + 1) if rows % d == 0))
    if isinstance(given, Mesh):
        mesh = automatic(given)
    else:
        mesh = workers.mesh(None if given is None else checks.positive_int("mesh", given))
    if divides and rows % mesh.size:
        largest = max(d for d in range(1, mesh.size + 1) if rows % d == 0)
        raise ValueError(
            f"mesh has {mesh.size} devices for {rows} workers; expected a number of devices that "
            f"divides {rows}; pass mesh={largest}"
        )
    return mesh


def check_steps(steps: Any, before: int = 0) -> int:
    """Returns the number of rounds as a Python int.

    Args:
        steps: the number given by the user.
        before: rounds completed before.

    Raises:
        ValueError: if `steps` is not a positive integer, or the total does not fit `State.step`, an
            int32.
    """
    steps = checks.positive_int("steps", steps, most=None)
    if before + steps > MOST_ROUNDS:
        after = f" after round {before}" if before else ""
        raise ValueError(
            f"steps = {steps}{after}; expected fewer than 2^31 rounds in total, which are counted "
            "in int32"
        )
    return steps


def check_runnable(problem: Problem, cluster: Cluster | None = None) -> None:
    """Validates that a problem can be run, and that the cluster fits it.

    Raises:
        ValueError: if the cluster is for another N, leaves of the data differ in N, the weights are
            not one per worker, nonnegative and of mean 1, or no parameter can be trained.
        RuntimeError: if JAX cannot compute in this process.
    """
    forks.require_threads()
    N = problem.workers
    if N == 0:
        raise ValueError(
            f"{problem.name}: data have 0 workers; expected arrays [N, ...] with N >= 1"
        )
    if cluster is not None:
        cluster.require_workers(N)
    checks.require_workers_axis(f"{problem.name}: data", problem.data, N)
    _require_kept(problem)
    _require_weights(problem, N)
    with causes.error_context(f"init of {problem.name}"):
        leaves.flags(problem)


def warn_if_drawn_again(job: RunSpec) -> None:
    """Warns if participation is drawn again between two rounds with messages, or only once in the
    run.
    """
    cluster = job.plan.cluster
    if (
        cluster is None
        or cluster.present is None
        or not presence.is_drawn(cluster.present, job.plan.N)
    ):
        return
    rounds = cluster.participation_period
    others = {period: name for period, name in _periods(job).items() if period not in (1, rounds)}
    for period, name in others.items():
        _warn(
            f"{name} sends messages every {period} rounds, but participation is drawn every "
            f"participation_period = {rounds} rounds, so it changes between two exchanges; pass "
            f"Cluster(..., participation_period={period})"
        )
    if not job.before and job.steps < rounds and not others:
        _warn(
            f"participation is drawn every participation_period = {rounds} rounds, so the same "
            "workers "
            f"participate in all steps = {job.steps} rounds; pass a smaller participation_period"
        )


def warn_if_silent(job: RunSpec, bits: np.ndarray) -> None:
    """Warns if a run of methods that send messages every few rounds ended before the first message.

    Args:
        job: the run.
        bits: `bits` of the history; its last axis is the records.
    """
    if job.before or not bits.size or (bits[..., -1] > 0).all():
        return
    for period, name in _periods(job).items():
        if period > job.steps:
            _warn(
                f"{name} sends messages every {period} rounds, but the run has steps = "
                f"{job.steps}, so nothing is sent; pass steps >= {period}"
            )


def warn_if_stalled(job: RunSpec, result: Result) -> None:
    """Warns if runs in float32 ended at the resolution of float32."""
    if words := stalls.warning(job.name, result.history, result.params):
        _warn(words)


def warn_of_evaluations(job: RunSpec, share: float, seconds: float) -> None:
    """Warns that evaluations of the problem take most of the time of a run.

    Args:
        job: the run.
        share: their share of the time.
        seconds: of one evaluation.
    """
    warnings.warn(
        f"{job.name}: {share:.0%} of the run's time is spent evaluating {job.problem.name} for the "
        f"history ({seconds:.2g} s each); pass a larger record_every or evaluate_every, or a "
        "problem with a cheaper evaluation (evaluation_size in finite_sum and language_model)",
        stacklevel=2,
    )


def _periods(job: RunSpec) -> dict[int, str]:
    """Returns the periods of the exchanges that have one, in rounds, each with the name of a method
    that has it.
    """
    periods = {
        int(sending.period): method.name
        for method in job.methods
        for sending in probe(job.plan, method).sendings
    }
    return {period: name for period, name in periods.items() if period}


def _warn(words: str) -> None:
    warnings.warn(words, stacklevel=6)  # points to the caller of `run` or `sweep`


def _require_kept(problem: Problem) -> None:
    """Raises ValueError if JAX would change values of the data when they are placed on the devices,
    or does not accept them.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        {"data": problem.data, "replicated": problem.evaluation.replicated}
    ):
        where = f"{problem.name}: {path[0].key}{jax.tree_util.keystr(path[1:])}"
        if isinstance(leaf, jax.Array):
            continue
        numbers = array_likes.numbers(where, leaf)
        array_likes.narrow(where, numbers)
        kind = getattr(leaf, "dtype", numbers.dtype)
        if not isinstance(leaf, np.ndarray | np.generic | bool | int | float) or (
            kind != numbers.dtype
        ):
            raise ValueError(
                f"{where} is {checks.kind(leaf)}; expected an array of numpy or JAX in a type of "
                f"JAX; pass numpy.asarray(..., numpy.{numbers.dtype})"
            )


def _require_weights(problem: Problem, N: int) -> None:
    """Raises ValueError if the workers' weights are not N numbers, at least 0 and with mean 1."""
    if problem.weights is None:
        return
    given = np.asarray(problem.weights) if checks.is_numeric(problem.weights) else np.empty(0)
    numbers = given.astype(float) if given.dtype.kind in "iuf" else np.empty(0)
    if (
        numbers.shape != (N,)
        or not np.isfinite(numbers).all()
        or (numbers < 0).any()
        or abs(numbers.mean() - 1) > _MEAN
    ):
        shown = checks.show(problem.weights)
        raise ValueError(
            f"{problem.name}: weights = {shown}; expected {N} finite numbers, at least 0, with "
            "mean 1; pass w / w.mean()"
        )
