"""`plan` ranks methods and their settings on a cluster."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import optax
from jax.sharding import Mesh

from dsgd import checks, records
from dsgd.base import Key, Problem, PyTree
from dsgd.clusters import Cluster
from dsgd.machines import executors, tasks
from dsgd.planning import candidates as of_candidates
from dsgd.planning import changes, finals, forecasts, goals, halving, networks, training
from dsgd.planning.candidates import Candidate
from dsgd.planning.changes import Change
from dsgd.planning.finals import Planned
from dsgd.planning.goals import Goal
from dsgd.planning.halving import Eliminated
from dsgd.planning.networks import Networks
from dsgd.planning.training import Contender
from dsgd.runs.sweeps import default_metric, grid_values, largest_is_best

REDUCTION = 4  # between two rungs, the rounds increase and the points decrease by this factor
SHORTEST = 10  # rounds of the first rung at least
RECORDS = 200  # approximate number of evaluations of the longest runs
_RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_FACTORS = 20  # of bandwidth and latency, on each side of 1


class Plan(NamedTuple):
    """Methods, ranked.

    Args:
        goal: what is best.
        rows: the finalists, the best first, in groups that do not differ: `Planned.rank`.
        eliminated: the other candidates, the last to leave first.
        refused: why candidates, or some of their hyperparameters, were left out before the first
            run, by name: the cluster excludes them, for example because workers are absent, or they
            exchange less often than every `steps` rounds.
        changes: the networks on which another method is better.
        networks: the cluster, and others with other bandwidths or latencies, on which the finalists
            are compared.
        rungs: numbers of rounds after which the candidates were compared, the last one for the
            finalists.
        remarks: sentences on what limits the plan: that it has one rung.
    """

    goal: Goal
    rows: list[Planned]
    eliminated: list[Eliminated]
    refused: dict[str, str]
    changes: list[Change]
    networks: Networks
    rungs: list[int]
    remarks: list[str]


@checks.arguments
def plan(
    candidates: Sequence[Candidate],
    problem: Problem,
    cluster: Cluster,
    *,
    key: Key,
    target: float | None = None,
    seconds: float | None = None,
    bits: float | None = None,
    metric: str | None = None,
    largest: bool | None = None,
    model: PyTree | None = None,
    optimizer: Callable[..., Any] = optax.sgd,
    learning_rates: Sequence[float] = _RATES,
    steps: int = 1000,
    seeds: int = 3,
    finalists: int = 8,
    mesh: Mesh | int | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
    on: Any = None,
    jobs: int | None = None,
) -> Plan:
    """Finds the method and the settings with the fewest seconds to a target, or with the best
    result within a budget, by successive halving.

    All candidates run with all settings for few rounds; the best run four times as many, and so
    on until `steps`. Settings with less than two exchanges in these rounds wait until they have
    two. Runs are compared at equal simulated seconds (or bits) on the cluster. A model that is the
    mean of the workers' models counts after their next exchange. Runs of synchronous methods are
    also replayed on networks with other bandwidths and latencies, and those that are best there are
    kept as well: `Plan.changes` has the networks on which the answer is another one. Methods whose
    rounds depend on the cluster, such as asynchronous ones, run on the cluster itself.

    A round is one gradient of each worker, on average: N rounds of an asynchronous method, of one
    gradient each, count as one. Gradients that its server ignores count as well.

    A grid of three or more values is extended, at most three times, until the best value of the
    finalist is inside; `Planned.at_edge` says why if it is not.

    All results are those of fresh seeds, ten for each of `seeds`, at the settings that the other
    seeds chose. A run that does not reach the target is followed by one with another seed, and the
    seconds of both count. If a fresh seed fails at the chosen settings, they are compared with the
    next best ones at which none does, and the better ones run again with other fresh seeds.

        plan = dsgd.plan(
            algorithms.CANDIDATES, problem, clusters.load("cluster.json").cluster,
            target=0.3, key=jax.random.key(0),
        )
        print(plan.rows[0].expression, plan.rows[0].seconds)

    Args:
        candidates: the methods, each with values of its hyperparameters; `algorithms.CANDIDATES` is
            a list of all families.
        problem, cluster, key, mesh: as in `dsgd.run`; all candidates have the same keys.
        target: value of the metric that is to be reached in the fewest seconds.
        seconds: budget of simulated seconds, within which the best value counts.
        bits: budget of bits that a worker sends and receives, within which the best value counts.
        metric: name in the history, such as "test_accuracy"; None: as in `Sweep.best`.
        largest: whether the largest value of the metric is best; None: as in `Sweep.best`.
        model: shapes of another model (as in `dsgd.forecast`). Its messages are sent in place of
            those of the problem: its seconds, and the rounds of the problem. `cluster.compute` is
            then the seconds of its gradients. Bits and budgets are those of its messages.
        optimizer: step size -> first argument of the function of each candidate that has no
            optimizer of its own: an optimizer; or, for proximal methods, the step size,
            `lambda learning_rate: learning_rate`.
        learning_rates: step sizes of the candidates that have none of their own.
        steps: largest number of rounds of N gradients.
        seeds: number of runs at all settings, by which settings are chosen.
        finalists: number of candidates that run for all `steps` rounds at least.
        checkpoint: folder in which finished and interrupted runs are kept; the same call resumes
            from it.
        progress: whether to show what runs, and the ranking after each rung: with a bar in a
            terminal, otherwise as lines on stderr. The first ranking, of the
            candidates that have run, comes after 20 seconds.
        on, jobs: where the candidates run, and how many at the same time, as in `parallel_map`.

    Returns:
        The finalists, ranked; the other candidates; and on which networks another method is better.
        If no finalist reaches the target with all seeds, a warning is issued.

    Raises:
        ValueError: if not exactly one of `target`, `seconds` and `bits` is given; the candidates
            are not valid, or the cluster excludes all of them; the target is below the problem's
            known minimum, or the budget below the first evaluated rounds; every candidate diverges;
            or an argument is invalid as in `dsgd.sweep`.
        Interrupted: with the ranking so far in its message; otherwise as in `dsgd.run`.
        ChildProcessError: as in `parallel_map`.
        OSError: as in `dsgd.run`.
    """
    steps = checks.positive_int("plan: steps", steps)
    finalists = checks.positive_int("plan: finalists", finalists)
    of_candidates.require(candidates)
    rates = grid_values("learning_rates", learning_rates).tolist()
    if metric is None:
        metric = default_metric(problem.regularizer is not None)
    sign = -1 if largest_is_best(metric, largest, "plan") else 1
    goal = goals.goal_of(metric, sign, target, seconds, bits)
    goal.require_reachable(problem)
    cluster.require_workers(problem.workers)
    checks.require_call("plan: optimizer", optimizer, "step size")
    executors.require("plan", on, jobs)
    setting = training.Setting(
        problem,
        cluster,
        key,
        checks.positive_int("plan: seeds", seeds),
        mesh,
        optimizer,
        max(1, steps // RECORDS),
        None if checkpoint is None else records.user_path("plan: checkpoint", checkpoint),
        None if model is None else forecasts.as_shapes("plan: model", model),
    )
    if model is not None and (cluster.present or cluster.delivered):
        raise ValueError(
            f"plan: model, on a cluster with absent workers or lost messages ({cluster.name}); "
            "expected a cluster on which all workers participate and all messages arrive"
        )
    # a method refuses its arguments before the first run
    each = [training.all_points(setting, candidate, rates, steps) for candidate in candidates]
    contenders = [contender for contender, _ in each if contender.points]
    refused = {name: reason for _, reasons in each for name, reason in reasons.items()}
    if not contenders:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise ValueError(f"plan: no candidate accepts the cluster and steps = {steps}: {reasons}")
    call_each = partial(tasks.completed, "plan", on=on, jobs=jobs, files=setting.folder)
    return _rank_candidates(
        setting, contenders, refused, goal, rates, steps, finalists, progress, call_each
    )


def _rank_candidates(
    setting: training.Setting,
    contenders: list[Contender],
    refused: dict[str, str],
    goal: Goal,
    rates: list[float],
    steps: int,
    finalists: int,
    progress: bool,
    call_each: halving.CallEach,
) -> Plan:
    """Returns the plan for valid arguments."""
    around = networks.vary(setting.cluster, 0 if goal.bits is not None else _FACTORS)
    rungs = halving.rungs(contenders, lengths(steps))
    with halving.display([*rungs, finals.FRESH * steps], progress) as display:
        last, eliminated = halving.halve(
            setting, contenders, around, goal, rungs, finalists, display, call_each
        )
        ranked = dict[int, finals.Final]()
        # most are trained at one point
        alone = [each.contender.take([0]) for each in last.trained]
        display.begin(len(rungs), alone, f"{steps} rounds with fresh seeds")
        finish = partial(finals.final, setting, goal, around, steps, rates)
        last_runs = [*zip(last.trained, last.scores, strict=True)]
        try:
            for at, each in call_each(finish, last_runs):
                ranked[at] = each
                display.advance(alone[at], finals.FRESH * steps)
        except KeyboardInterrupt as stopped:
            raise halving.describe_interrupt(stopped, last, goal, steps) from None
    ordered = sorted(halving.in_order(ranked), key=lambda each: each.place(goal))
    rows = finals.rows(setting, goal, ordered)
    if goal.target is not None and all(row.reached.value < 1 for row in rows):
        best = rows[0]
        warnings.warn(
            f"plan: no candidate reaches {goal.metric} = {goal.target:g} with every seed within "
            f"{steps} rounds; the best one, {best.method}, reaches it with a share of "
            f"{best.reached.value:g} of the seeds, and has {goal.metric} = "
            f"{best.metric.value:.4g}; "
            "expected another target, more steps or other learning_rates",
            stacklevel=4,
        )
    remarks = []
    if len(rungs) == 1:
        remarks.append(
            f"No candidate left before the last round, because steps = {steps} has one rung: "
            f"expected at least {REDUCTION * SHORTEST} rounds, and at least {2 * REDUCTION} "
            "exchanges of some candidates."
        )
    found = changes.changes(goal, ordered, around)
    return Plan(goal, rows, eliminated, refused, found, around, rungs, remarks)


def lengths(steps: int) -> list[int]:
    """Returns the numbers of rounds of the rungs."""
    every = itertools.takewhile(
        lambda rounds: rounds >= SHORTEST, (steps // REDUCTION**k for k in itertools.count())
    )
    return [*every][::-1] or [steps]
