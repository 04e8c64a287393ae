"""The finalists at their chosen settings, with seeds that did not choose them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from dsgd.planning import candidates as of_candidates
from dsgd.planning.candidates import RATE
from dsgd.planning.estimates import (
    Estimate,
    estimate,
    is_within_error,
    positive_estimate,
    share_estimate,
)
from dsgd.planning.goals import Goal, Scores, score
from dsgd.planning.halving import folder
from dsgd.planning.networks import Networks, vary
from dsgd.planning.training import Contender, Point, Setting, Trained, train
from dsgd.runs.history import mean_and_error

FRESH = 10  # seeds of a finalist for each seed by which its settings were chosen


class Planned(NamedTuple):
    """A method at its best settings on the plan's cluster.

    All numbers are those of ten times `seeds` runs with seeds by which no settings were chosen.

    Args:
        method: name of the candidate.
        settings: its topology and compressors.
        values: the step size and the candidate's hyperparameters by name.
        seconds: mean simulated seconds until the target is reached, infinite if a run does not
            reach it; with a budget, those of the last record within it. With a 95 % interval.
        rounds: mean number of rounds until then, or until the last exchange if the target is not
            reached; of N gradients each, so that N rounds of an asynchronous method count as one.
        bits: mean bits sent and received by a worker until then.
        metric: the metric then.
        reached: share of the runs that reach the target; with a budget, of those that do not
            diverge. With a 95 % interval.
        tied: places, from 0, of the rows that differ from this one by less than a 95 %
            interval.
        at_edge: whether the step size is the smallest or largest candidate, so that another one may
            be better.
        expression: Python expression that makes the method.
        elsewhere: on each of the plan's `networks`, the mean seconds to the target at the best
            settings there, infinite if they do not reach it; with a budget, the mean of the metric.
            NaN if the rounds depend on the cluster, so that the method would have to run there.
    """

    method: str
    settings: str
    values: Mapping[str, float]
    seconds: Estimate
    rounds: float
    bits: float
    metric: Estimate
    reached: Estimate
    tied: tuple[int, ...]
    at_edge: bool
    expression: str
    elsewhere: np.ndarray


class Run(NamedTuple):
    """Runs of a finalist at one of its points.

    Args:
        trained: the runs, also at other points.
        at: number of the point in `trained`.
        scores: arrays `[networks, seeds]`.
    """

    trained: Trained
    at: int
    scores: Scores


class Outcome(NamedTuple):
    """The results of a finalist on all networks, arrays `[networks]`.

    Args:
        mean: mean seconds to the target, or mean of the metric within the budget; the
            smallest is best.
        error: its standard error.
        point: number of the point.
    """

    mean: np.ndarray
    error: np.ndarray
    point: np.ndarray


class Final(NamedTuple):
    """A finalist.

    Args:
        contender: the candidate with its last points.
        best: number of its best point on each network, `[networks]`.
        runs: those of these points.
    """

    contender: Contender
    best: np.ndarray
    runs: Mapping[int, Run]

    @property
    def here(self) -> Run:
        """The runs at the best point on the plan's cluster."""
        return self.runs[int(self.best[0])]

    def place(self, goal: Goal) -> tuple[float, float]:
        """Returns the numbers by which finalists are sorted, the best first: the mean result on the
        plan's cluster, and the mean of the metric.
        """
        scores = self.here.scores
        return float(goal.result(scores)[0].mean()), float(scores.value[0].mean())

    def outcome(self, goal: Goal) -> Outcome:
        """Returns the outcome on all networks."""
        found = [goal.result(self.runs[int(p)].scores)[k] for k, p in enumerate(self.best)]
        mean, error = mean_and_error(np.stack(found, axis=1))
        return Outcome(mean, np.nan_to_num(error), self.best)


def final(
    setting: Setting,
    goal: Goal,
    networks: Networks,
    rounds: int,
    last: tuple[Trained, Scores, np.ndarray],
) -> Final:
    """Returns a finalist at its best points, with fresh seeds.

    A point at which a run does not reach the target, or diverges within the budget, is replaced by
    the next one, if there is one at which no run fails.

    Args:
        setting: what the runs of the plan share.
        goal: what is best.
        networks: the plan's cluster first.
        rounds: number of rounds.
        last: the runs of the last rung, by which the points are chosen, their scores, and the
            places of the points, `[networks, points]`.
    """
    trained, scores, places = last
    name = folder(trained.contender, "finalists")
    contender = trained.contender
    known = 1 if contender.on_cluster else len(networks)
    order = np.argsort(places[:known], axis=1).tolist()
    fails = ~np.isfinite(goal.result(scores)[0]).all(axis=-1)
    fresh = setting._replace(key=jax.random.fold_in(setting.key, 1), seeds=FRESH * setting.seeds)
    runs = dict[int, Run]()
    while True:
        best = [next((p for p in row if not fails[p]), row[0]) for row in order]
        missing = sorted(set(best) - set(runs))
        if not missing:
            return Final(contender, np.resize(best, len(networks)), runs)
        points, periods = (tuple(each[p] for p in missing) for each in contender[1:3])
        chosen = contender._replace(points=points, periods=periods)
        again = train(fresh, chosen, rounds, f"{name}-{len(runs)}")
        horizon = np.full(len(networks), goal.budget)
        found = score(goal, goal.values(again), goal.costs(again, networks), horizon)
        for at, p in enumerate(missing):
            runs[p] = Run(again, at, Scores(*(each[:, at] for each in found)))
            fails[p] |= not np.isfinite(goal.result(runs[p].scores)[0]).all()


def rows(
    setting: Setting, goal: Goal, finals: Sequence[Final], rates: Sequence[float]
) -> list[Planned]:
    """Returns the finalists as rows of the plan.

    Args:
        setting, goal: as in `final`.
        finals: the finalists, the best first.
        rates: all step sizes of candidates that have none of their own.
    """
    found, compared = zip(
        *(_row(setting, goal, each, each.contender.candidate.rates(rates)) for each in finals),
        strict=True,
    )

    def ties(i: int) -> tuple[int, ...]:
        (values, spacing), reaches = compared[i], found[i].reached.value
        return tuple(
            j
            for j, (others, their_spacing) in enumerate(compared)
            if j != i
            and (goal.target is None or (reaches == 1) == (found[j].reached.value == 1))
            and is_within_error(values, others, np.hypot(spacing, their_spacing))
        )

    return [row._replace(tied=ties(i)) for i, row in enumerate(found)]


def _row(
    setting: Setting, goal: Goal, finalist: Final, rates: Sequence[float]
) -> tuple[Planned, tuple[np.ndarray, np.ndarray]]:
    """Returns the row of a finalist, without ties; and the results by which it is compared with
    others, with their spacing, `[seeds]` each: seconds to the target, or the metric if a run does
    not reach it.
    """
    trained, at, scores = finalist.here
    record, point = scores.record[0], trained.contender.points[at]
    values, reaches = goal.values(trained)[at], np.isfinite(goal.result(scores)[0])
    seconds, bits = (
        goal._replace(bits=budget).costs(trained, vary(setting.cluster, 0))[0, at]
        for budget in (None, np.inf)
    )
    seeds = np.arange(len(record))
    until = seconds[seeds, record]
    # of the exchange before
    before = np.maximum(np.sum(seconds < until[:, None], axis=-1) - 1, 0)
    with np.errstate(invalid="ignore"):  # the difference of infinite values
        spacing, of_values = (
            np.abs(each[seeds, record] - each[seeds, before]) for each in (seconds, values)
        )
    if goal.target is not None:
        until = scores.cost[0]
    row = Planned(
        trained.contender.candidate.name,
        trained.contender.candidate.settings,
        point,
        positive_estimate(until, spacing),
        float(trained.rounds[at, record].mean()),
        float(bits[seeds, record].mean()),
        _apply_sign(goal.sign, estimate(scores.value[0], of_values)),
        share_estimate(reaches),
        (),
        len(rates) > 2 and point[RATE] in (min(rates), max(rates)),
        _expression(setting, trained, point),
        _elsewhere(finalist, goal),
    )
    if goal.target is not None and reaches.all():
        return row, (until, spacing)
    return row, (scores.value[0], of_values)


def _apply_sign(sign: int, found: Estimate) -> Estimate:
    """Returns the estimate of a metric; if the sign is -1, its largest value is best."""
    return found if sign > 0 else Estimate(-found.value, -found.high, -found.low)


def _expression(setting: Setting, trained: Trained, point: Point) -> str:
    others = {name: value for name, value in point.items() if name != RATE}
    candidate = trained.contender.candidate
    made_by = candidate.optimizer or setting.optimizer
    optimizer = of_candidates.call(made_by, repr(float(point[RATE])))
    return candidate.expression(optimizer, trained.workers, others)


def _elsewhere(finalist: Final, goal: Goal) -> np.ndarray:
    """Returns the means on all networks; NaN where they are not known."""
    mean = finalist.outcome(goal).mean
    known = (np.arange(len(mean)) == 0) | (not finalist.contender.on_cluster)
    return np.where(known, mean if goal.target is not None else goal.sign * mean, np.nan)
