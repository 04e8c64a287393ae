"""Successive halving of methods and their settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dsgd.planning.goals import Goal, Scores, score
from dsgd.planning.networks import Networks
from dsgd.planning.training import Contender, Setting, Trained, train
from dsgd.runs.interrupts import Interrupted

ELSEWHERE = 3  # number of candidates that survive on each network besides the plan's cluster


class Eliminated(NamedTuple):
    """A candidate that left the halving, with its best settings on the plan's cluster.

    Args:
        method, settings: of the candidate.
        rounds: number of rounds after which it left.
        value: mean of the metric when the candidates were compared.
    """

    method: str
    settings: str
    rounds: int
    value: float


Begin = Callable[[int, Sequence[Contender]], None]
Advance = Callable[[Contender, int], None]
# (function, items) -> index and result of each item, as soon as it is known
CallEach = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[tuple[int, Any]]]
T = TypeVar("T")


class Rung(NamedTuple):
    """The contenders after a number of rounds.

    Args:
        trained: their runs.
        scores: of each.
    """

    trained: list[Trained]
    scores: list[Scores]


def halve(
    setting: Setting,
    contenders: Sequence[Contender],
    networks: Networks,
    goal: Goal,
    lengths: Sequence[int],
    finalists: int,
    begin: Begin,
    advance: Advance,
    call_each: CallEach,
) -> tuple[Rung, list[Eliminated]]:
    """Returns the last rung, and the candidates that left before.

    On each rung, all contenders run the same number of rounds, from the start. They are compared
    twice: early, when the first of them has finished, which favours cheap rounds; and later, when
    half of the candidates have finished at one of their points (with a budget, at the same share of
    it), which favours progress per round, since runs that have ended count as they ended. A point
    survives if it is among the best of its candidate, at least two, in one of the comparisons on
    one of the networks, and a candidate if it is among the best candidates.

    Args:
        setting: what all runs share.
        contenders: the candidates at all their points.
        networks: the plan's cluster first.
        goal: what is best.
        lengths: numbers of rounds, increasing; the number of survivors decreases by the same
            factors.
        finalists: number of candidates that reach the last rung at least.
        begin, advance: the functions of `bar`.
        call_each: calls a function with each item.

    Raises:
        Interrupted: with the ranking so far in its message.
    """
    alive, eliminated, rung = list(contenders), list[Eliminated](), Rung([], [])
    for i, rounds in enumerate(lengths):
        begin(i, alive)
        found, share = dict[int, Trained](), rounds / lengths[-1]
        named = [(each, folder(each, f"{rounds}-rounds")) for each in alive]
        try:
            for at, trained in call_each(partial(_train, setting, rounds), named):
                found[at] = trained._replace(contender=alive[at])  # itself, not a copy
                advance(alive[at], rounds)
            rung = score_runs(in_order(found), networks, goal, share)
        except KeyboardInterrupt as stopped:
            if i > 0:
                raise describe_interrupt(stopped, rung, goal, lengths[i - 1]) from None
            rung = score_runs(in_order(found), networks, goal, share) if found else rung
            raise describe_interrupt(stopped, rung, goal, rounds) from None
        if i + 1 < len(lengths):
            alive, left = _survivors(rung, goal, rounds / lengths[i + 1], finalists)
            eliminated += [each._replace(rounds=rounds) for each in left]
    return rung, eliminated[::-1]


def _train(setting: Setting, rounds: int, named: tuple[Contender, str]) -> Trained:
    contender, name = named
    return train(setting, contender, rounds, name)


def in_order(found: dict[int, T]) -> list[T]:
    """Returns results by their number, which may have arrived in another order."""
    return [found[i] for i in sorted(found)]


def describe_interrupt(
    stopped: KeyboardInterrupt, rung: Rung, goal: Goal, rounds: int
) -> Interrupted:
    """Returns the error for a plan that was interrupted, with the ranking of the last rung, after
    this number of rounds.
    """
    ranked = []
    for each, scores, places in zip(rung.trained, rung.scores, ranks(rung.scores), strict=True):
        point = int(places[0].argmin())
        values = ", ".join(f"{n} = {x:g}" for n, x in each.contender.points[point].items())
        cost, value = scores.cost[0, point].mean(), goal.sign * scores.value[0, point].mean()
        result = f"{goal.metric} {value:.4g}" + f" after {cost:.4g} s" * bool(np.isfinite(cost))
        ranked.append((places[0].min(), f"{each.contender.candidate} ({values}): {result}"))
    lines = [f"{i}. {text}" for i, (_, text) in enumerate(sorted(ranked), 1)]
    if lines:
        lines.insert(0, f"ranking after {rounds} rounds:")
    words = "\n".join([f"plan: {str(stopped) or 'interrupted'}", *lines])
    return Interrupted(words, getattr(stopped, "history", {}))


def score_runs(trained: list[Trained], networks: Networks, goal: Goal, share: float) -> Rung:
    """Scores runs with the given share of the rounds. On the last rung (share 1) there is one
    horizon for each network, before there are two.
    """
    costs = [goal.costs(each, networks) for each in trained]
    horizon = np.full(len(networks), share * goal.budget)
    if share < 1:
        ends = [_last_exchange(each).mean(axis=-1).min(axis=-1) for each in costs]
        if goal.target is not None:
            horizon = np.median(ends, axis=0)
        horizon = np.concatenate([horizon, np.minimum(np.min(ends, axis=0), horizon)])
        costs = [np.concatenate([each, each]) for each in costs]
    scores = [
        score(goal, goal.values(each), cost, horizon)
        for each, cost in zip(trained, costs, strict=True)
    ]
    _require_comparable(goal, trained, scores, min(each[0, ..., 1:].min() for each in costs))
    return Rung(trained, scores)


def _last_exchange(costs: np.ndarray) -> np.ndarray:
    """Returns the cost until the last exchange of each run, `[..., records]` to `[...]`; infinite
    if no cost is known.
    """
    known = np.isfinite(costs)
    return np.where(known.any(axis=-1), np.where(known, costs, 0).max(axis=-1), np.inf)


def _require_comparable(
    goal: Goal, trained: Sequence[Trained], scores: Sequence[Scores], least: float
) -> None:
    """Raises ValueError if there is nothing to compare: every run diverges, its metric is not
    finite, or it reaches the target before the first round; or the budget is below `least`, the
    cost of the first record after the start.
    """
    if not any(np.isfinite(each.last[0]).any() for each in scores):
        if any(np.isfinite(each.history["loss"][..., -1]).any() for each in trained):
            raise ValueError(
                f"plan: metric = {goal.metric!r} is NaN or infinite at the end of every run, but "
                "the loss is finite; expected a finite metric"
            )
        raise ValueError(
            "plan: every candidate diverges at every step size; expected a finite result; pass "
            "smaller learning_rates"
        )
    if least > goal.budget:
        name, unit = ("seconds", " s") if goal.seconds is not None else ("bits", " bits")
        raise ValueError(
            f"plan: {name} = {goal.budget:g} is less than the first evaluated rounds of every "
            f"candidate; expected at least {least:.4g}{unit}"
        )
    if all((np.isfinite(each.cost[0]) & (each.record[0] == 0)).all() for each in scores):
        raise ValueError(
            f"plan: target = {goal.target} is reached before the first round; expected a "
            f"{'larger' if goal.sign < 0 else 'smaller'} value of {goal.metric}"
        )


def ranks(scores: Sequence[Scores]) -> list[np.ndarray]:
    """Returns the places of all points among those of all contenders, from 0, `[networks, points]`
    for each contender.
    """
    orders = zip(*(each.order for each in scores), strict=True)
    keys = [np.concatenate(each, axis=1) for each in orders]
    places = np.argsort(np.lexsort(keys[::-1], axis=1), axis=1)
    ends = np.cumsum([each.cost.shape[1] for each in scores])
    return np.split(places, ends[:-1], axis=1)


def _survivors(
    rung: Rung, goal: Goal, share: float, finalists: int
) -> tuple[list[Contender], list[Eliminated]]:
    places = ranks(rung.scores)
    place = _places(np.stack([each.min(axis=1) for each in places], axis=1))
    count = np.full(len(place), ELSEWHERE)
    here = [0, len(place) // 2]  # the plan's cluster in both comparisons
    count[here] = max(finalists, np.ceil(share * place.shape[1]))
    stays = np.any(place < count[:, None], axis=0)
    alive, left = [], []
    for i, (trained, found) in enumerate(zip(rung.trained, places, strict=True)):
        candidate, points, periods, *_ = trained.contender
        if stays[i]:
            most = max(2, int(np.ceil(share * len(points))))
            kept = np.any(_places(found) < most, axis=0)
            points = tuple(itertools.compress(points, kept))
            periods = tuple(itertools.compress(periods, kept))
            alive.append(trained.contender._replace(points=points, periods=periods))
        else:
            at = int(found[0].argmin())
            value = goal.sign * rung.scores[i].value[0, at].mean()
            left.append(Eliminated(candidate.name, candidate.settings, 0, float(value)))
    return alive, left


def _places(numbers: np.ndarray) -> np.ndarray:
    """Returns the place of each number among those of its row, from 0."""
    return np.argsort(np.argsort(numbers, axis=1), axis=1)


def folder(contender: Contender, runs: str) -> str:
    """Returns the name of the folder of a candidate's runs."""
    name = "".join(letter if letter.isalnum() else "-" for letter in str(contender.candidate))
    return f"{runs}/{name}"


@contextmanager
def bar(lengths: Sequence[int], shown: bool) -> Iterator[tuple[Begin, Advance]]:
    """Shows the rung and the remaining time, and yields two functions: one to be called when a rung
    begins, the other after each contender. The work of later rungs is estimated.
    """
    if not shown:
        yield lambda i, alive: None, lambda each, rounds: None
        return
    import rich.progress as rich  # noqa: PLC0415 (imported only if a bar is shown)

    done = 0.0
    with rich.Progress(*rich.Progress.get_default_columns(), transient=True) as bar:
        task = bar.add_task("", total=None)

        def begin(i: int, alive: Sequence[Contender]) -> None:
            points = sum(len(each.points) for each in alive)
            # points decrease as rounds increase, so that all rungs take about equal time
            left = points * lengths[i] * (len(lengths) - i)
            words = f"{len(alive)} candidates, {lengths[i]} rounds ({i + 1} of {len(lengths)})"
            bar.update(task, description=words, total=done + left)

        def advance(each: Contender, rounds: int) -> None:
            nonlocal done
            done += len(each.points) * rounds
            bar.update(task, completed=done)

        yield begin, advance
