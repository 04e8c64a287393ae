"""Successive halving of methods and their settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from dsgd.planning.goals import Goal, Scores, score
from dsgd.planning.networks import Networks
from dsgd.planning.training import Contender, Setting, Trained, train

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
    progress: bool,
) -> tuple[Rung, list[Eliminated]]:
    """Returns the last rung, and the candidates that left before.

    On each rung, all contenders run the same number of rounds, from the start. They are compared
    twice: early, when the first of them has finished, which favours cheap rounds; and later, when
    half of the candidates have finished at one of their points (with a budget, at the same share of
    it), which favours progress per round, since runs that have ended count as they ended. A point
    survives if it is among the best of its candidate in one of the comparisons on one of the
    networks, and a candidate if it is among the best candidates.

    Args:
        setting: what all runs share.
        contenders: the candidates at all their points.
        networks: the plan's cluster first.
        goal: what is best.
        lengths: numbers of rounds, increasing; the number of survivors decreases by the same
            factors.
        finalists: number of candidates that reach the last rung at least.
        progress: whether to show a progress bar.
    """
    alive, eliminated = list(contenders), list[Eliminated]()
    with _bar(lengths, progress) as (begin, advance):
        for i, rounds in enumerate(lengths):
            begin(i, alive)
            trained = []
            for each in alive:
                trained.append(train(setting, each, rounds, f"{rounds}-rounds/{_folder(each)}"))
                advance(each, rounds)
            rung = _compared(trained, networks, goal, rounds / lengths[-1])
            if i + 1 == len(lengths):
                return rung, eliminated[::-1]
            share = rounds / lengths[i + 1]
            alive, left = _survivors(rung, goal, share, finalists)
            eliminated += [each._replace(rounds=rounds) for each in left]
    raise AssertionError("lengths are not empty")


def _compared(trained: list[Trained], networks: Networks, goal: Goal, share: float) -> Rung:
    """Scores runs with the given share of the rounds. On the last rung (share 1) there is one
    horizon for each network, before there are two.
    """
    costs = [goal.costs(each, networks) for each in trained]
    horizon = np.full(len(networks), share * goal.budget)
    if share < 1:
        ends = [each[..., -1].mean(axis=-1).min(axis=-1) for each in costs]
        if goal.target is not None:
            horizon = np.median(ends, axis=0)
        horizon = np.concatenate([horizon, np.minimum(np.min(ends, axis=0), horizon)])
        costs = [np.concatenate([each, each]) for each in costs]
    scores = [
        score(goal, goal.values(each), cost, horizon)
        for each, cost in zip(trained, costs, strict=True)
    ]
    _require_comparable(goal, scores)
    return Rung(trained, scores)


def _require_comparable(goal: Goal, scores: Sequence[Scores]) -> None:
    """Raises ValueError if there is nothing to compare: every run diverges, or reaches the target
    before the first round.
    """
    if not any(np.isfinite(each.last[0]).any() for each in scores):
        raise ValueError(
            "plan: every candidate diverges at every step size; expected a finite result; pass "
            "smaller learning_rates"
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
        candidate, points, periods = trained.contender
        if stays[i]:
            kept = (_places(found) < np.ceil(share * len(points))).any(axis=0)
            points = tuple(itertools.compress(points, kept))
            alive.append(Contender(candidate, points, tuple(itertools.compress(periods, kept))))
        else:
            at = int(found[0].argmin())
            value = goal.sign * rung.scores[i].value[0, at].mean()
            left.append(Eliminated(candidate.method, candidate.settings, 0, float(value)))
    return alive, left


def _places(numbers: np.ndarray) -> np.ndarray:
    """Returns the place of each number among those of its row, from 0."""
    return np.argsort(np.argsort(numbers, axis=1), axis=1)


def _folder(contender: Contender) -> str:
    """Returns the name of a candidate as that of a folder."""
    return "".join(letter if letter.isalnum() else "-" for letter in str(contender.candidate))


Begin = Callable[[int, Sequence[Contender]], None]
Advance = Callable[[Contender, int], None]


@contextmanager
def _bar(lengths: Sequence[int], shown: bool) -> Iterator[tuple[Begin, Advance]]:
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
