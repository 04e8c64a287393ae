"""The finalists at their chosen settings, with seeds that did not choose them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from dsgd.planning import candidates as of_candidates
from dsgd.planning.candidates import RATE
from dsgd.planning.changes import Outcome
from dsgd.planning.estimates import (
    Estimate,
    estimate,
    positive_estimate,
    share_estimate,
    within_error,
)
from dsgd.planning.goals import Goal, Scores, score
from dsgd.planning.networks import Networks
from dsgd.planning.training import Contender, Point, Setting, Trained, train

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
            reached; N updates of an asynchronous method count as one.
        bits: mean bits sent and received by a worker until then.
        metric: the metric then.
        reached: share of the runs that reach the target; with a budget, of those that do not
            diverge. With a 95 % interval.
        tied: places, from 0, of the rows whose difference from this one is within its 95 %
            interval.
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

    def outcome(self, goal: Goal) -> Outcome:
        """Returns the outcome on all networks."""
        found = [goal.result(self.runs[int(p)].scores)[k] for k, p in enumerate(self.best)]
        values = np.stack(found)
        with np.errstate(invalid="ignore"):  # the deviation of infinite values is NaN
            error = values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
        return Outcome(values.mean(axis=1), np.nan_to_num(error), self.best)


def final(
    setting: Setting,
    goal: Goal,
    networks: Networks,
    chosen_by: tuple[Trained, Scores, np.ndarray],
    rounds: int,
    name: str,
) -> Final:
    """Returns a finalist at its best points, with fresh seeds.

    A point at which a run does not reach the target, or diverges within the budget, is replaced by
    the next one, if there is one at which no run fails.

    Args:
        setting: what the runs of the plan share.
        goal: what is best.
        networks: the plan's cluster first.
        chosen_by: the runs of the last rung, their scores, and the places of the points on all
            networks.
        rounds: number of rounds.
        name: of the checkpoints' folder.
    """
    (contender, *_), scores, places = chosen_by
    known = 1 if contender.candidate.updates else len(networks)
    order = np.argsort(places[:known], axis=1).tolist()
    fails = ~np.isfinite(goal.result(scores)[0]).all(axis=-1)
    fresh = setting._replace(
        key=jax.random.fold_in(setting.key, FRESH), seeds=FRESH * setting.seeds
    )
    runs = dict[int, Run]()
    while True:
        best = [next((p for p in row if not fails[p]), row[0]) for row in order]
        missing = sorted(set(best) - set(runs))
        if not missing:
            return Final(contender, np.resize(best, len(networks)), runs)
        points, periods = ([each[p] for p in missing] for each in contender[1:])
        trained = train(
            fresh,
            Contender(contender.candidate, tuple(points), tuple(periods)),
            rounds,
            f"{name}-{len(runs)}",
        )
        horizon = np.full(len(networks), goal.budget)
        found = score(goal, goal.values(trained), goal.costs(trained, networks), horizon)
        for at, p in enumerate(missing):
            runs[p] = Run(trained, at, Scores(*(each[:, at] for each in found)))
            fails[p] |= not np.isfinite(goal.result(runs[p].scores)[0]).all()


def rows(
    setting: Setting, goal: Goal, networks: Networks, finals: Sequence[Final], rates: list[float]
) -> list[Planned]:
    """Returns the finalists as rows of the plan.

    Args:
        setting, goal, networks: as in `final`.
        finals: the finalists, the best first.
        rates: all step sizes.
    """
    results, found = list[tuple[np.ndarray, np.ndarray]](), list[Planned]()
    for each in finals:
        (trained, at, scores), candidate = each.here, each.contender.candidate
        record, seeds = scores.record[0], np.arange(scores.record.shape[1])
        here = networks.first
        seconds, bits = (
            goal._replace(bits=budget).costs(trained, here)[0, at] for budget in (None, np.inf)
        )
        # the last record before, at the exchange before
        before = np.sum(seconds < seconds[seeds, record][:, None], axis=-1) - 1
        before = np.maximum(before, 0)
        value = goal.values(trained)[at]
        with np.errstate(invalid="ignore"):  # the difference of infinite values
            steps = [abs(one[seeds, record] - one[seeds, before]) for one in (seconds, value)]
        result = goal.result(scores)[0]
        reaches = np.isfinite(result)
        is_cost = goal.target is not None and reaches.all()
        results.append((result, steps[0]) if is_cost else (scores.value[0], steps[1]))
        found.append(
            Planned(
                candidate.method,
                candidate.settings,
                point := trained.contender.points[at],
                positive_estimate(
                    result if goal.target is not None else seconds[seeds, record], steps[0]
                ),
                float(trained.rounds[at, record].mean()),
                float(bits[seeds, record].mean()),
                _signed(goal.sign, estimate(scores.value[0], steps[1])),
                share_estimate(reaches),
                (),
                len(rates) > 2 and point[RATE] in (min(rates), max(rates)),
                _expression(setting, trained, point),
                _elsewhere(each, goal),
            )
        )
    reach = [goal.target is None or row.reached.value == 1 for row in found]
    for i, row in enumerate(found):
        tied = tuple(
            j
            for j in range(len(found))
            if j != i and reach[i] == reach[j] and within_error(results[i], results[j])
        )
        found[i] = row._replace(tied=tied)
    return found


def _signed(sign: int, found: Estimate) -> Estimate:
    """Returns the estimate of a metric of which the largest value is best, if the sign is -1."""
    return found if sign > 0 else Estimate(-found.value, -found.high, -found.low)


def _expression(setting: Setting, trained: Trained, point: Point) -> str:
    others = {name: value for name, value in point.items() if name != RATE}
    optimizer = of_candidates.call(setting.optimizer, repr(float(point[RATE])))
    return trained.contender.candidate.expression(optimizer, trained.workers, others)


def _elsewhere(finalist: Final, goal: Goal) -> np.ndarray:
    """Returns the means on all networks; NaN where they are not known."""
    mean = finalist.outcome(goal).mean
    known = (np.arange(len(mean)) == 0) | (not finalist.contender.candidate.updates)
    return np.where(known, mean if goal.target is not None else goal.sign * mean, np.nan)
