"""`plan` ranks methods and their settings on a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import optax
from jax.sharding import Mesh

from dsgd import checks
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
from dsgd.runs.sweeps import largest_is_best

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
        seconds: simulated seconds until the target is reached, or of the budget; with a 95 %
            interval over the seeds. Infinite if the target is not reached.
        rounds: mean number of rounds until then; N updates of an asynchronous method count as one.
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
        horizon: seconds or bits at which the finalists were compared.
    """

    goal: Goal
    rows: list[Planned]
    eliminated: list[Eliminated]
    changes: list[Change]
    networks: Networks
    horizon: float


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
    metric: str = "loss",
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
    on until `steps`. Runs are compared at equal simulated seconds (or bits) on the cluster. Runs
    of synchronous methods are also replayed on networks with other bandwidths and latencies, and
    those that are best there are kept as well: `changes` says where the answer is another one.

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
        metric: name in the history, such as "loss" or "test_accuracy".
        largest: whether the largest value of the metric is best; None: as in `Sweep.best`.
        optimizer: step size -> optimizer of each method.
        learning_rates: step sizes.
        steps: largest number of rounds.
        finalists: number of candidates that run for all `steps` rounds at least.
        checkpoint: folder in which finished and interrupted runs are kept; the same call resumes
            from it.
        progress: whether to show a progress bar with the remaining time.

    Returns:
        The finalists as a list of `Planned`, the best first.

    Raises:
        ValueError: if not exactly one of `target`, `seconds` and `bits` is given; the candidates
            are not valid; every candidate diverges; or an argument is invalid as in `dsgd.sweep`.
        Interrupted, OSError: as in `dsgd.run`.
    """
    steps = checks.positive_int("plan: steps", steps)
    of_candidates.require(candidates)
    sign = -1 if largest_is_best(metric, largest) else 1
    goal = goals.goal_of(metric, sign, target, seconds, bits)
    setting = training.Setting(
        problem,
        cluster,
        key,
        checks.positive_int("plan: seeds", seeds),
        mesh,
        optimizer,
        max(1, steps // RECORDS),
        None if checkpoint is None else Path(checkpoint),
    )
    contenders = [training.all_points(each, learning_rates) for each in candidates]
    around = networks.around(cluster, 0 if goal.bits is not None else _FACTORS)
    last, eliminated = halving.halve(
        setting,
        contenders,
        around,
        goal,
        lengths(steps, of_candidates.longest_period(candidates)),
        checks.positive_int("plan: finalists", finalists),
        progress,
    )
    _require_comparable(goal, last)
    rates = [float(rate) for rate in learning_rates]
    found = [changes.outcome(goal, scores) for scores in last.scores]
    rows = [
        _row(setting, goal, rates, last, i, int(places[0].argmin()), found[i])
        for i, places in _by_place(last)
    ]
    other = changes.changes(goal, last, found, around)
    return Plan(goal, rows, eliminated, other, around, float(last.horizon[0]))


def lengths(steps: int, period: int) -> list[int]:
    """Returns the numbers of rounds of the rungs; also in the first one, a method with this period
    exchanges at least twice.
    """
    shortest = max(SHORTEST, 2 * period)
    every = itertools.takewhile(
        lambda rounds: rounds >= shortest, (steps // REDUCTION**k for k in itertools.count())
    )
    return [*every][::-1] or [steps]


def _by_place(rung: Rung) -> list[tuple[int, np.ndarray]]:
    """Returns the numbers of the contenders, the best first, with the places of their points."""
    places = halving.ranks(rung.scores)
    return sorted(enumerate(places), key=lambda each: each[1][0].min())


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
    cost = scores.cost[0, point]
    if goal.target is None:
        cost = np.full(len(record), rung.horizon[0] if goal.bits is None else np.nan)
    rate = float(values[RATE])
    step = f"{setting.optimizer.__module__.split('.')[0]}.{setting.optimizer.__name__}({rate:g})"
    return Planned(
        candidate.method,
        candidate.settings,
        values,
        positive_estimate(cost),
        float(trained.rounds[record].mean()),
        float(trained.history["bits"][point, seeds, record].mean()),
        estimate(goal.sign * scores.value[0, point]),
        len(rates) > 2 and rate in (min(rates), max(rates)),
        candidate.expression(
            step, trained.workers, {name: v for name, v in values.items() if name != RATE}
        ),
        _known(candidate, elsewhere.mean, 1 if goal.target is not None else goal.sign),
    )


def _known(candidate: Candidate, means: np.ndarray, sign: int) -> np.ndarray:
    """Returns the means on all networks; NaN where they are not known."""
    known = (np.arange(len(means)) == 0) | (not candidate.updates)
    return np.where(known, sign * means, np.nan)


def _require_comparable(goal: Goal, rung: Rung) -> None:
    """Raises ValueError if there is nothing to compare: every run diverges, or reaches the target
    before the first round.
    """
    costs, values = (np.concatenate([each.order[k][0] for each in rung.scores]) for k in (0, 1))
    if not np.isfinite(values).any():
        raise ValueError(
            "plan: every candidate diverges at every step size; expected a finite result; pass "
            "smaller learning_rates"
        )
    if (costs == 0).all():
        raise ValueError(
            f"plan: target = {goal.target} is reached before the first round; expected a "
            f"{'larger' if goal.sign < 0 else 'smaller'} value of {goal.metric}"
        )
