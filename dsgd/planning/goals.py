"""What a plan compares: the cost of reaching a target, or the result within a budget."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dsgd import checks
from dsgd.base import Problem
from dsgd.planning.estimates import with_restarts
from dsgd.planning.networks import Networks
from dsgd.planning.training import Trained
from dsgd.runs.sweeps import default_metric


class Goal(NamedTuple):
    """What is best.

    Args:
        metric: name in the history.
        sign: -1 if the largest value is best, else 1.
        target: value to be reached in the fewest seconds; None: the best value counts.
        seconds, bits: budget in which the best value counts; one of the three is given.
    """

    metric: str
    sign: int
    target: float | None = None
    seconds: float | None = None
    bits: float | None = None

    @property
    def budget(self) -> float:
        """The budget in seconds or bits; infinite if there is a target."""
        return next((each for each in (self.seconds, self.bits) if each is not None), np.inf)

    def require_reachable(self, problem: Problem) -> None:
        """Raises ValueError if the target is below the known minimum of the problem."""
        minimum = problem.constants.minimum
        if self.metric != default_metric(problem.regularizer is not None):
            return
        if minimum is not None and self.target is not None and self.target < minimum:
            raise ValueError(
                f"plan: target = {self.target:g} is below the minimum {minimum:.6g} of "
                f"{problem.name}; expected a larger value of {self.metric}"
            )

    def result(self, scores: Scores) -> np.ndarray:
        """Returns what is best if its mean over the seeds is small, `[networks, ..., seeds]`: the
        cost to the target, with restarts if runs fail, or the metric within the budget.
        """
        return scores.value if self.target is None else scores.with_restarts

    def reached(self, scores: Scores) -> np.ndarray:
        """Returns whether runs reach the target, or do not diverge within the budget,
        `[networks, ..., seeds]`.
        """
        return np.isfinite(scores.value if self.target is None else scores.cost)

    def values(self, trained: Trained) -> np.ndarray:
        """Returns the metric in all records, `[points, seeds, records]`; the smallest value is
        best, and diverged runs are infinite.
        """
        history = trained.history
        if self.metric not in history:
            raise ValueError(
                f"plan: metric = {self.metric!r} is not in the history of "
                f"{trained.contender.candidate}; expected one of {', '.join(history)}"
            )
        found, loss = history[self.metric], history["loss"]
        if found.shape != loss.shape:
            raise ValueError(
                f"plan: metric = {self.metric!r} has one number per worker; expected a metric with "
                "one number per record, such as the loss"
            )
        return np.where(np.isfinite(found) & np.isfinite(loss), self.sign * found, np.inf)

    def costs(self, trained: Trained, networks: Networks) -> np.ndarray:
        """Returns the seconds or bits until the workers have the model of each record,
        `[networks, points, seeds, records]`.
        """
        if self.bits is None:
            return networks.seconds(trained)
        found = trained.take_ends(trained.bits)
        return np.broadcast_to(found, (len(networks), *found.shape))


class Scores(NamedTuple):
    """The outcomes of a contender's runs, arrays `[networks, points, seeds]`.

    Args:
        cost: seconds or bits until the target is reached; inf if it is not, or there is none.
        record: the record in which it is reached, or else the last one within the horizon.
        value: the metric in that record (the smallest value is best).
        last: the metric in the last record of the run.
        spent: seconds or bits until `record`.
    """

    cost: np.ndarray
    record: np.ndarray
    value: np.ndarray
    last: np.ndarray
    spent: np.ndarray

    @property
    def with_restarts(self) -> np.ndarray:
        """The costs, with those of failed runs; see `estimates.with_restarts`."""
        return with_restarts(self.cost, self.spent)

    @property
    def order(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means over the seeds, `[networks, points]`, in the order of importance: the cost to the
        target, with that of failed runs; the metric; and the metric at the end, if the horizon is
        too short to differ.
        """
        return tuple(each.mean(axis=-1) for each in (self.with_restarts, self.value, self.last))  # pyright: ignore[reportReturnType] (three)


def score(goal: Goal, values: np.ndarray, costs: np.ndarray, horizon: np.ndarray) -> Scores:
    """Scores runs by what they reach within a horizon.

    Args:
        goal: what is best.
        values: `Goal.values`, `[points, seeds, records]`.
        costs: `Goal.costs`, `[networks, points, seeds, records]`.
        horizon: seconds or bits on each network, `[networks]`.
    """
    within = (costs <= horizon[:, None, None, None]) & np.isfinite(costs)
    target = -np.inf if goal.target is None else goal.sign * goal.target
    reached = within & (values <= target)
    last = np.maximum(within.sum(axis=-1) - 1, 0)
    record = np.where(reached.any(axis=-1), reached.argmax(axis=-1), last)

    def take(array: np.ndarray) -> np.ndarray:
        return np.take_along_axis(array, record[..., None], axis=-1)[..., 0]

    cost = np.where(reached.any(axis=-1), take(costs), np.inf)
    everywhere = np.broadcast_to(values, costs.shape)
    return Scores(cost, record, take(everywhere), everywhere[..., -1], take(costs))


def goal_of(
    metric: str, sign: int, target: float | None, seconds: float | None, bits: float | None
) -> Goal:
    """Returns the goal, after validation of its numbers.

    Raises:
        ValueError: if not exactly one of the three numbers is given, or a budget is not positive.
    """
    given = {
        name: number
        for name, number in (("target", target), ("seconds", seconds), ("bits", bits))
        if number is not None
    }
    if len(given) != 1:
        raise ValueError(
            f"plan: {', '.join(given) or 'none of target, seconds and bits'} given; expected "
            "exactly one: a target of the metric, or a budget of seconds or of bits per worker"
        )
    for name, number in given.items():
        if not np.isfinite(number) or (name != "target" and number <= 0):
            raise ValueError(
                f"plan: {name} = {checks.show(number)}; expected a finite number"
                f"{' > 0' * (name != 'target')}"
            )
    return Goal(metric, sign, target, seconds, bits)
