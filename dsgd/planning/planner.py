"""`plan` ranks methods and their settings on a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import optax
from jax.sharding import Mesh

from dsgd import checks, records
from dsgd.base import Key, Problem
from dsgd.clusters import Cluster
from dsgd.planning import candidates as of_candidates
from dsgd.planning import changes, goals, halving, networks, training
from dsgd.planning.candidates import RATE, Candidate
from dsgd.planning.changes import Change
from dsgd.planning.estimates import Estimate, estimate, positive_estimate
from dsgd.planning.goals import Goal
from dsgd.planning.halving import Eliminated, Rung
from dsgd.planning.networks import Networks
from dsgd.planning.training import Contender
from dsgd.runs.sweeps import default_metric, grid_values, largest_is_best

REDUCTION = 4  # between two rungs, the rounds increase and the points decrease by this factor
SHORTEST = 10  # rounds of the first rung at least
RECORDS = 200  # approximate number of evaluations of the longest runs
_RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_FACTORS = 20  # of bandwidth and latency, on each side of 1


class Planned(NamedTuple):
    """A method at its best settings on the plan's cluster.

    Args:
        method: name of the candidate.
        settings: its topology and compressors.
        values: the step size and the candidate's hyperparameters by name.
        seconds: simulated seconds until the target is reached, infinite if it is not; with a
            budget, those of the last record within it. With a 95 % interval over the seeds, which
            are also those by which the settings were chosen.
        rounds: mean number of rounds until then, or of the whole run if the target is not reached;
            N updates of an asynchronous method count as one.
        bits: mean bits sent and received by a worker until then.
        metric: the metric then.
        at_edge: whether the step size is the smallest or largest candidate, so that another one may
            be better.
        expression: Python expression that makes the method.
        elsewhere: on each of the plan's `networks`, the mean seconds to the target at the best
            settings there, infinite if they do not reach it; with a budget, the mean of the metric.
            NaN if the method reads the clock, so that it would have to run there.
    """

    method: str
    settings: str
    values: Mapping[str, float]
    seconds: Estimate
    rounds: float
    bits: float
    metric: Estimate
    at_edge: bool
    expression: str
    elsewhere: np.ndarray


class Plan(NamedTuple):
    """Methods, ranked.

    Args:
        goal: what is best.
        rows: the finalists, the best first.
        eliminated: the other candidates, the last to leave first.
        changes: the networks on which another method is better.
        networks: the cluster, and others with other bandwidths or latencies, on which the finalists
            are compared.
    """

    goal: Goal
    rows: list[Planned]
    eliminated: list[Eliminated]
    changes: list[Change]
    networks: Networks


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
    optimizer: Callable[..., optax.GradientTransformation] = optax.sgd,
    learning_rates: Sequence[float] = _RATES,
    steps: int = 1000,
    seeds: int = 3,
    finalists: int = 8,
    mesh: Mesh | int | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> Plan:
    """Finds the method and the settings with the fewest seconds to a target, or with the best
    result within a budget, by successive halving.

    All candidates run with all settings for few rounds; the best run four times as many, and so
    on until `steps`. The first runs have at least two exchanges of every candidate. Runs are
    compared at equal simulated seconds (or bits) on the cluster. A model that is the mean of the
    workers' models counts after their next exchange. Runs of synchronous methods are also replayed
    on networks with other bandwidths and latencies, and those that are best there are kept as well:
    `Plan.changes` has the networks on which the answer is another one.

        plan = dsgd.plan(
            algorithms.CANDIDATES, problem, clusters.load("cluster.json").cluster,
            target=0.3, key=jax.random.key(0),
        )
        print(plan.rows[0].expression, plan.rows[0].seconds)

    Args:
        candidates: the methods, each with values of its hyperparameters; `algorithms.CANDIDATES` is
            a list of all families.
        problem, cluster, key, seeds, mesh: as in `dsgd.run`; all candidates have the same keys.
        target: value of the metric that is to be reached in the fewest seconds.
        seconds: budget of simulated seconds, within which the best value counts.
        bits: budget of bits that a worker sends and receives, within which the best value counts.
        metric: name in the history, such as "test_accuracy"; None: as in `Sweep.best`.
        largest: whether the largest value of the metric is best; None: as in `Sweep.best`.
        optimizer: step size -> optimizer of each method.
        learning_rates: step sizes.
        steps: largest number of rounds.
        finalists: number of candidates that run for all `steps` rounds at least.
        checkpoint: folder in which finished and interrupted runs are kept; the same call resumes
            from it.
        progress: whether to show a progress bar with the remaining time.

    Returns:
        The finalists, ranked; the other candidates; and on which networks another method is better.

    Raises:
        ValueError: if not exactly one of `target`, `seconds` and `bits` is given; the candidates
            are not valid; every candidate diverges; or an argument is invalid as in `dsgd.sweep`.
        Interrupted, OSError: as in `dsgd.run`.
    """
    steps = checks.positive_int("plan: steps", steps)
    finalists = checks.positive_int("plan: finalists", finalists)
    of_candidates.require(candidates)
    rates = grid_values("learning_rates", learning_rates).tolist()
    if metric is None:
        metric = default_metric(problem.regularizer is not None)
    sign = -1 if largest_is_best(metric, largest, "plan") else 1
    goal = goals.goal_of(metric, sign, target, seconds, bits)
    cluster.require_workers(problem.workers)
    checks.require_call("plan: optimizer", optimizer, "step size")
    setting = training.Setting(
        problem,
        cluster,
        key,
        checks.positive_int("plan: seeds", seeds),
        mesh,
        optimizer,
        max(1, steps // RECORDS),
        None if checkpoint is None else records.expanded("plan: checkpoint", checkpoint),
    )
    # a method refuses its arguments before the first run
    contenders = [training.all_points(setting, each, rates) for each in candidates]
    return _ranked(setting, contenders, goal, rates, steps, finalists, progress)


def _ranked(
    setting: training.Setting,
    contenders: list[Contender],
    goal: Goal,
    rates: list[float],
    steps: int,
    finalists: int,
    progress: bool,
) -> Plan:
    """Returns the plan for valid arguments."""
    around = networks.around(setting.cluster, 0 if goal.bits is not None else _FACTORS)
    longest = max(period for each in contenders for period in each.periods)
    last, eliminated = halving.halve(
        setting, contenders, around, goal, lengths(steps, longest), finalists, progress
    )
    found = [changes.outcome(goal, scores) for scores in last.scores]
    places = [each[0] for each in halving.ranks(last.scores)]
    order = sorted(range(len(places)), key=lambda i: places[i].min())
    rows = [_row(setting, goal, rates, last, i, int(places[i].argmin()), found[i]) for i in order]
    other = changes.changes(goal, last, order, found, around)
    return Plan(goal, rows, eliminated, other, around)


def lengths(steps: int, period: int) -> list[int]:
    """Returns the numbers of rounds of the rungs; also in the first one, a method with this period
    exchanges at least twice.
    """
    shortest = max(SHORTEST, 2 * period)
    every = itertools.takewhile(
        lambda rounds: rounds >= shortest, (steps // REDUCTION**k for k in itertools.count())
    )
    return [*every][::-1] or [steps]


def _row(
    setting: training.Setting,
    goal: Goal,
    rates: list[float],
    rung: Rung,
    i: int,
    point: int,
    elsewhere: changes.Outcome,
) -> Planned:
    """Returns the finalist i at one of its points."""
    trained, scores = rung.trained[i], rung.scores[i]
    candidate, values = trained.contender.candidate, trained.contender.points[point]
    record = scores.record[0, point]
    seeds = np.arange(len(record))
    here = networks.around(setting.cluster, 0)
    cost = scores.cost[0, point]
    if goal.target is None:
        cost = here.seconds(trained)[0, point, seeds, record]
    sent = goal._replace(bits=np.inf).costs(trained, here)[0, point, seeds, record]
    rate = float(values[RATE])
    others = {name: value for name, value in values.items() if name != RATE}
    return Planned(
        candidate.method,
        candidate.settings,
        values,
        positive_estimate(cost),
        float(trained.rounds[point, record].mean()),
        float(sent.mean()),
        estimate(goal.sign * scores.value[0, point]),
        len(rates) > 2 and rate in (min(rates), max(rates)),
        candidate.expression(
            of_candidates.call(setting.optimizer, f"{rate:g}"), trained.workers, others
        ),
        _known(candidate, elsewhere.mean, 1 if goal.target is not None else goal.sign),
    )


def _known(candidate: Candidate, means: np.ndarray, sign: int) -> np.ndarray:
    """Returns the means on all networks; NaN where they are not known."""
    known = (np.arange(len(means)) == 0) | (not candidate.updates)
    return np.where(known, sign * means, np.nan)
