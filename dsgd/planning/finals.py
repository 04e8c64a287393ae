"""The finalists at their chosen settings, with seeds that did not choose them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from dsgd.planning import candidates as of_candidates
from dsgd.planning.candidates import RATE
from dsgd.planning.estimates import (
    Estimate,
    estimate,
    group,
    is_within_error,
    positive_estimate,
    restart_estimate,
    share_estimate,
)
from dsgd.planning.goals import Goal, Scores, score
from dsgd.planning.halving import folder, ranks
from dsgd.planning.networks import Networks, vary
from dsgd.planning.training import Contender, Point, Setting, Trained, find_rounds, train_in_blocks
from dsgd.runs.history import mean_and_error

FRESH = 10  # seeds of a finalist for each seed by which its settings were chosen
EXTENSIONS = 3  # of a candidate's grids at most


class Planned(NamedTuple):
    """A method at its best settings on the plan's cluster.

    All numbers are those of ten times `seeds` runs with seeds by which no settings were chosen.

    Args:
        method: name of the candidate.
        settings: its topology and compressors.
        values: the step size and the candidate's hyperparameters by name.
        seconds: expected simulated seconds until the target is reached. A run that does not reach
            it within the plan's `steps` is followed by one with another seed, and its seconds
            count: if a share p of the runs arrives after T seconds on average, and the others end
            after F seconds, they are T + F (1 - p) / p; infinite if no run arrives. With a budget,
            those of the last record within it. With a 95 % interval.
        rounds: mean number of rounds of a run until it reaches the target or ends; of N gradients
            each, so that N rounds of an asynchronous method count as one.
        bits: mean bits sent and received by a worker until then.
        metric: the metric then.
        reached: share of the runs that reach the target; with a budget, of those that do not
            diverge. With a 95 % interval.
        rank: place, from 1, of the first row of its group. A group is a row and all those below
            that do not differ from it: the 95 % interval of the mean difference over the seeds
            contains 0. The rows of a group are next to each other.
        at_edge: "" if the step size and the hyperparameters are inside their grids, which are
            extended until they are; otherwise which of them is at an edge, and why the grid is not
            extended further.
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
    rank: int
    at_edge: str
    expression: str
    elsewhere: np.ndarray


class Run(NamedTuple):
    """Runs of a finalist at one of its points.

    Args:
        trained: the runs, also at other points.
        at: number of the point in `trained`.
        scores: arrays `[networks, seeds]`.
        seconds: those on the plan's cluster until each record, `[seeds, records]`.
    """

    trained: Trained
    at: int
    scores: Scores
    seconds: np.ndarray


class Outcome(NamedTuple):
    """The results of a finalist on all networks, arrays `[networks]`.

    Args:
        mean: expected seconds to the target, or mean of the metric within the budget; the
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
        ends: the smallest and the largest value of each grid that is extended, by name, with the
            reason why it is not extended further.
    """

    contender: Contender
    best: np.ndarray
    runs: Mapping[int, Run]
    ends: Mapping[str, tuple[tuple[float, str], tuple[float, str]]]

    @property
    def here(self) -> Run:
        """The runs at the best point on the plan's cluster."""
        return self.runs[int(self.best[0])]

    @property
    def at_edge(self) -> str:
        """As in `Planned`."""
        point = self.contender.points[int(self.best[0])]
        return "; ".join(
            f"{name} = {end:g} is the {which} value, {reason}"
            for name, both in self.ends.items()
            for which, (end, reason) in zip(("smallest", "largest"), both, strict=True)
            if point[name] == end
        )

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
    rates: Sequence[float],
    last: tuple[Trained, Scores],
) -> Final:
    """Returns a finalist at its best points, with fresh seeds.

    If a run fails at the best point, because it does not reach the target or diverges within the
    budget, the next ones run, too, up to one at which none fails. The best of them on these seeds
    runs once more, with others, so that the choice does not bias its results.

    Args:
        setting: what the runs of the plan share.
        goal: what is best.
        networks: the plan's cluster first.
        rounds: number of rounds.
        rates: step sizes of candidates that have none of their own.
        last: the runs of the last rung, by which the points are chosen, and their scores.
    """
    candidate = last[0].contender.candidate
    grids = {RATE: candidate.rates(rates), **candidate.swept}
    contender, scores, ends = _extend(setting, goal, networks, rounds, grids, last)
    known = 1 if contender.on_cluster else len(networks)
    order = np.argsort(ranks([scores])[0][:known], axis=1).tolist()
    fails = ~goal.reached(scores)[0].all(axis=-1)
    run = functools.partial(_run_fresh, setting, goal, networks, rounds, contender)
    runs = dict[int, Run]()
    while missing := _missing(order, fails, runs):
        for p, each in run(missing, 1, f"{len(runs)}").items():
            runs[p], fails[p] = each, not goal.reached(each.scores)[0].all()
    best = [_choose(goal, k, row, fails, runs) for k, row in enumerate(order)]
    if set(runs) != {row[0] for row in order}:
        runs = run(set(best), 2, "chosen")
    return Final(contender, np.resize(best, len(networks)), runs, ends)


def _missing(order: Sequence[list[int]], fails: np.ndarray, runs: Mapping[int, Run]) -> set[int]:
    """Returns the points that are still to run: of each network the best one, or, if a run of it
    failed, the next one at which no run has failed.

    Args:
        order: points of each network, the best first.
        fails: whether a run fails, `[points]`.
        runs: those with fresh seeds.
    """
    found = set[int]()
    for row in order:
        if row[0] not in runs:
            found.add(row[0])
        elif fails[row[0]]:
            found |= {p for p in [next((p for p in row if not fails[p]), row[0])] if p not in runs}
    return found


def _choose(
    goal: Goal, network: int, row: list[int], fails: np.ndarray, runs: Mapping[int, Run]
) -> int:
    """Returns the first point of a row; or, if a run of it failed, the best one of those that
    ran.
    """
    if not fails[row[0]]:
        return row[0]

    def result(point):
        return float(goal.result(runs[point].scores)[network].mean())

    return min((p for p in row if p in runs), key=result)


def _run_fresh(
    setting: Setting,
    goal: Goal,
    networks: Networks,
    rounds: int,
    contender: Contender,
    points: set[int],
    number: int,
    name: str,
) -> dict[int, Run]:
    """Returns runs of some points with fresh seeds.

    Args:
        setting, goal, networks, rounds: as in `final`.
        contender: the candidate with all its points.
        points: the numbers of those that run.
        number: of the seeds, above 0.
        name: of the folder of checkpoints.
    """
    key, seeds = jax.random.fold_in(setting.key, number), FRESH * setting.seeds
    fresh, chosen = setting._replace(key=key, seeds=seeds), sorted(points)
    where = f"{folder(contender, 'finalists')}-{name}"
    again = train_in_blocks(fresh, contender.take(chosen), rounds, where)
    costs = goal.costs(again, networks)
    found = _score(goal, again, costs)
    seconds = costs[0] if goal.bits is None else vary(setting.cluster, 0).seconds(again)[0]
    return {
        p: Run(again, at, Scores(*(x[:, at] for x in found)), seconds[at])
        for at, p in enumerate(chosen)
    }


def _score(goal: Goal, trained: Trained, costs: np.ndarray) -> Scores:
    """Scores runs of all rounds."""
    return score(goal, goal.values(trained), costs, np.full(len(costs), goal.budget))


def _extend(
    setting: Setting,
    goal: Goal,
    networks: Networks,
    rounds: int,
    grids: Mapping[str, Sequence[float]],
    last: tuple[Trained, Scores],
) -> tuple[Contender, Scores, dict[str, tuple[tuple[float, str], tuple[float, str]]]]:
    """Returns a contender and its scores, with further points until its best one on the plan's
    cluster is not at an edge of a grid; and the ends of the grids, as in `Final`. Grids of one or
    two values are taken as they are.

    Args:
        grids: the values of all hyperparameters by name, `[at least 1]` each; otherwise as in
            `final`.
    """
    trained, scores = last
    contender, refused = trained.contender, dict[tuple[str, int], str]()
    values = {name: sorted(each) for name, each in grids.items() if len(each) > 2}
    for count in itertools.count():
        at = int(ranks([scores])[0][0].argmin())
        best, added = contender.points[at], list[Contender]()
        for name, each in values.items():
            side = int(best[name] == each[-1]) - int(best[name] == each[0])
            if not side or (name, side) in refused or not np.isfinite(scores.value[0, at]).all():
                continue
            if count == EXTENSIONS:
                refused[name, side] = f"after {count} extensions of the grid"
                continue
            found = beyond(each, side)
            if not isinstance(found, str):
                found = _points_at(setting, contender, rounds, values, {**best, name: found}, name)
            if isinstance(found, str):
                refused[name, side] = found
            else:
                added.append(found)
        if not added:
            return contender, scores, {name: _ends(name, x, refused) for name, x in values.items()}
        new = functools.reduce(Contender.add, added)
        for name, each in values.items():
            values[name] = sorted({*each, *(point[name] for point in new.points)})
        where = f"{folder(contender, f'{rounds}-rounds')}-{count}"
        again = train_in_blocks(setting, new, rounds, where)
        found = _score(goal, again, goal.costs(again, networks))
        scores = Scores(*(np.concatenate(pair, axis=1) for pair in zip(scores, found, strict=True)))
        contender = contender.add(new)
    raise AssertionError("the extensions are limited")


def _ends(
    name: str, values: Sequence[float], refused: Mapping[tuple[str, int], str]
) -> tuple[tuple[float, str], tuple[float, str]]:
    inside = "not extended since the first seeds chose a value inside, at which other seeds fail"
    smallest, largest = (refused.get((name, side), inside) for side in (-1, 1))
    return (values[0], smallest), (values[-1], largest)


def beyond(values: Sequence[float], side: int) -> float | str:
    """Returns the number that continues a grid, or why there is none. It is further from the second
    number by the factor between the third and the first: 1, 3, 10 is continued by 30, and 4, 16, 64
    by 256.

    Args:
        values: at least three increasing numbers.
        side: 1: beyond the largest one; -1: below the smallest.
    """
    if values[0] <= 0:
        return "since the grid has no factor: its values are not positive"
    third, second, first = values[-3:] if side > 0 else values[2::-1]
    found = float(f"{second * (first / third):.6g}")
    if not all(isinstance(each, int | np.integer) for each in values):
        return found
    whole = max(1, round(found))
    return whole if whole not in values else "since no positive whole number is smaller"


def _points_at(
    setting: Setting,
    contender: Contender,
    rounds: int,
    values: Mapping[str, Sequence[float]],
    point: Point,
    name: str,
) -> Contender | str:
    """Returns a contender at a point with a new value of one hyperparameter, and at the step sizes
    next to its own if another one is new; or why it cannot run there.
    """
    others = {each: x for each, x in point.items() if each != RATE}
    try:
        found = find_rounds(setting, contender.candidate, point[RATE], others, rounds)
    except ValueError as error:
        return f"since {name} = {point[name]:g} is refused: {error}"
    if isinstance(found, str):
        return f"since with {name} = {point[name]:g} {found}"
    rates = [point[RATE]]
    if name != RATE and RATE in values:
        at = values[RATE].index(point[RATE])
        rates = values[RATE][max(at - 1, 0) : at + 2]
    points = tuple({**point, RATE: rate} for rate in rates)
    return contender._replace(points=points, periods=(found.period,) * len(points))


def rows(setting: Setting, goal: Goal, finals: Sequence[Final]) -> list[Planned]:
    """Returns the finalists as rows of the plan, in groups.

    Args:
        setting, goal: as in `final`.
        finals: the finalists, the best first.
    """
    found, compared = zip(*(_row(setting, goal, each) for each in finals), strict=True)

    def differ(i: int, j: int) -> bool:
        arrives = [found[at].reached.value > 0 for at in (i, j)]
        if goal.target is not None and arrives[0] != arrives[1]:
            return True
        (one, spacing), (other, its_spacing) = compared[i], compared[j]
        return not is_within_error(one, other, np.hypot(spacing, its_spacing))

    groups = group(len(found), differ)
    before = np.cumsum([0, *map(len, groups)]).tolist()
    return [
        found[i]._replace(rank=1 + first)
        for first, each in zip(before, groups, strict=False)
        for i in each
    ]


def _row(
    setting: Setting, goal: Goal, finalist: Final
) -> tuple[Planned, tuple[np.ndarray, np.ndarray]]:
    """Returns the row of a finalist, without its rank; and the results by which it is compared with
    others, with their spacing, `[seeds]` each: seconds to the target, or the metric if no run
    reaches it.
    """
    trained, at, scores, seconds = finalist.here
    record, point = scores.record[0], trained.contender.points[at]
    values, reaches = goal.values(trained)[at], goal.reached(scores)[0]
    bits = trained.take_ends(trained.bits)[at]
    seeds = np.arange(len(record))
    until = seconds[seeds, record]
    # of the exchange before
    before = np.maximum(np.sum(seconds < until[:, None], axis=-1) - 1, 0)
    with np.errstate(invalid="ignore"):  # the difference of infinite values
        spacing, of_values = (
            np.abs(each[seeds, record] - each[seeds, before]) for each in (seconds, values)
        )
    expected = positive_estimate(until, spacing)
    if goal.target is not None:
        expected = restart_estimate(scores.cost[0], scores.spent[0], spacing)
    row = Planned(
        trained.contender.candidate.name,
        trained.contender.candidate.settings,
        point,
        expected,
        float(trained.rounds[at, record].mean()),
        float(bits[seeds, record].mean()),
        _apply_sign(goal.sign, estimate(scores.value[0], of_values)),
        share_estimate(reaches),
        0,
        finalist.at_edge,
        _expression(setting, trained, point),
        _elsewhere(finalist, goal),
    )
    if goal.target is not None and reaches.any():
        return row, (goal.result(scores)[0], spacing)
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
