"""Successive halving of methods and their settings."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dsgd.planning.candidates import Candidate
from dsgd.planning.goals import Goal, Scores, score
from dsgd.planning.networks import Networks
from dsgd.planning.training import Contender, Setting, Trained, train_in_blocks
from dsgd.runs.interrupts import Interrupted

FIRST = 20.0  # seconds after which the first ranking is shown
MOST_LINES = 10  # of a ranking that is shown
ELSEWHERE = 2  # number of candidates that survive on each network besides the plan's cluster


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
    display: Display,
    call_each: CallEach,
) -> tuple[Rung, list[Eliminated]]:
    """Returns the last rung, and the candidates that left before.

    On each rung, all contenders run the same number of rounds, from the start. They are compared
    twice: early, when the first of them has finished, which favours cheap rounds; and later, when
    half of the candidates have finished at one of their points (with a budget, at the same share of
    it), which favours progress per round, since runs that have ended count as they ended. A point
    survives if it is among the best of its candidate, at least two, in one of the comparisons on
    one of the networks, and a candidate if it is among the best candidates. Points that exchange
    less than twice on a rung wait for the first one on which they do, also if their candidate
    leaves with its other points.

    Args:
        setting: what all runs share.
        contenders: the candidates at all their points.
        networks: the plan's cluster first.
        goal: what is best.
        lengths: numbers of rounds, increasing; the number of survivors decreases by the same
            factors.
        finalists: number of candidates that reach the last rung at least.
        display: shows what runs.
        call_each: calls a function with each item.

    Raises:
        Interrupted: with the ranking so far in its message.
    """
    alive, eliminated, rung = list(contenders), list[Eliminated](), Rung([], [])
    for i, rounds in enumerate(lengths):
        is_last = i + 1 == len(lengths)
        alive, waiting = (alive, []) if is_last else _split(alive, rounds)
        display.begin(i, alive, f"{rounds} rounds")
        found = dict[int, tuple[Trained, np.ndarray]]()
        rank = partial(_rank, found, networks, goal, rounds / lengths[-1])
        named = [(each, folder(each, f"{rounds}-rounds")) for each in alive]

        try:
            for at, each in call_each(partial(_train, setting, rounds), named):
                trained = each._replace(contender=alive[at])  # itself, not a copy
                found[at] = trained, goal.costs(trained, networks)
                display.advance(alive[at], rounds)
                if display.is_due():
                    display.show(describe(rank(), goal, rounds, len(alive)))
            rung = rank()
        except KeyboardInterrupt as stopped:
            if i == 0 and found:
                rung = rank()
            after = rounds if i == 0 else lengths[i - 1]
            raise describe_interrupt(stopped, rung, goal, after) from None
        display.show(describe(rung, goal, rounds))
        if not is_last:
            alive, left = _survivors(rung, goal, rounds / lengths[i + 1], finalists)
            alive = _join(contenders, alive, waiting)
            stay = {id(each.candidate) for each in alive}
            eliminated += [
                each._replace(rounds=rounds) for one, each in left if id(one) not in stay
            ]
    return rung, eliminated[::-1]


def _rank(
    found: dict[int, tuple[Trained, np.ndarray]], networks: Networks, goal: Goal, share: float
) -> Rung:
    """Returns the rung of the runs that are known, with their costs."""
    trained, costs = zip(*in_order(found), strict=True)
    return score_runs(trained, costs, networks, goal, share)


def rungs(contenders: Sequence[Contender], lengths: Sequence[int]) -> list[int]:
    """Returns the numbers of rounds on which at least two points can be compared, and the last."""
    return [
        rounds
        for rounds in lengths
        if rounds == lengths[-1]
        or sum(len(each.points) for each in _split(contenders, rounds)[0]) > 1
    ]


def _split(contenders: Sequence[Contender], rounds: int) -> tuple[list[Contender], list[Contender]]:
    """Returns the contenders with the points that exchange at least twice within a number of
    rounds, and those with the other points.
    """
    parts = [], []
    for each in contenders:
        waits = [2 * period > rounds * each.times for period in each.periods]
        for part, of in zip(parts, (False, True), strict=True):
            if of in waits:
                part.append(each.take(p for p, one in enumerate(waits) if one == of))
    return parts


def _join(
    contenders: Sequence[Contender], alive: Sequence[Contender], waiting: Sequence[Contender]
) -> list[Contender]:
    """Returns the surviving points and those that wait, in the order of the contenders."""
    joined = dict[int, Contender]()
    for each in (*alive, *waiting):
        before = joined.get(id(each.candidate))
        joined[id(each.candidate)] = before.add(each) if before else each
    return [joined[at] for each in contenders if (at := id(each.candidate)) in joined]


def _train(setting: Setting, rounds: int, named: tuple[Contender, str]) -> Trained:
    contender, name = named
    return train_in_blocks(setting, contender, rounds, name)


def in_order(found: dict[int, T]) -> list[T]:
    """Returns results by their number, which may have arrived in another order."""
    return [found[i] for i in sorted(found)]


def describe(rung: Rung, goal: Goal, rounds: int, count: int | None = None) -> list[str]:
    """Returns the ranking of a rung after this number of rounds, one line for each contender below
    a heading; [] if it is empty.

    Args:
        rung: the rung.
        goal: what is best.
        rounds: number of rounds.
        count: number of contenders if the rung is not finished.
    """
    ranked = []
    for each, scores, places in zip(rung.trained, rung.scores, ranks(rung.scores), strict=True):
        point = int(places[0].argmin())
        values = ", ".join(f"{n} = {x:g}" for n, x in each.contender.points[point].items())
        value = goal.sign * scores.value[0, point].mean()
        result = f"{goal.metric} {value:.4g}"
        if goal.target is not None and np.isfinite(scores.cost[0, point]).any():
            result += f" after {goal.result(scores)[0, point].mean():.4g} s"
        ranked.append((places[0].min(), f"{each.contender.candidate} ({values}): {result}"))
    lines = [f"{i}. {text}" for i, (_, text) in enumerate(sorted(ranked), 1)]
    known = f", {len(lines)} of {count} candidates" if count else ""
    return [f"ranking after {rounds} rounds{known}:", *lines] if lines else []


def describe_interrupt(
    stopped: KeyboardInterrupt, rung: Rung, goal: Goal, rounds: int
) -> Interrupted:
    """Returns the error for a plan that was interrupted, with the ranking of the last rung, after
    this number of rounds.
    """
    words = "\n".join([f"plan: {str(stopped) or 'interrupted'}", *describe(rung, goal, rounds)])
    return Interrupted(words, getattr(stopped, "history", {}))


def score_runs(
    trained: Sequence[Trained],
    costs: Sequence[np.ndarray],
    networks: Networks,
    goal: Goal,
    share: float,
) -> Rung:
    """Scores runs, of which `costs` are `Goal.costs`, with the given share of the rounds. On the
    last rung (share 1) there is one horizon for each network, before there are two.
    """
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
    return Rung(list(trained), scores)


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
) -> tuple[list[Contender], list[tuple[Candidate, Eliminated]]]:
    places = ranks(rung.scores)
    place = _places(np.stack([each.min(axis=1) for each in places], axis=1))
    count = np.full(len(place), ELSEWHERE)
    here = [0, len(place) // 2]  # the plan's cluster in both comparisons
    count[here] = max(finalists, np.ceil(share * place.shape[1]))
    stays = np.any(place < count[:, None], axis=0)
    alive, left = [], []
    for i, (trained, found) in enumerate(zip(rung.trained, places, strict=True)):
        candidate, points, *_ = trained.contender
        if stays[i]:
            most = max(2, int(np.ceil(share * len(points))))
            kept = np.any(_places(found) < most, axis=0)
            alive.append(trained.contender.take(np.flatnonzero(kept).tolist()))
        else:
            at = int(found[0].argmin())
            value = goal.sign * rung.scores[i].value[0, at].mean()
            one = Eliminated(candidate.name, candidate.settings, 0, float(value))
            left.append((candidate, one))
    return alive, left


def _places(numbers: np.ndarray) -> np.ndarray:
    """Returns the place of each number among those of its row, from 0."""
    return np.argsort(np.argsort(numbers, axis=1), axis=1)


def folder(contender: Contender, runs: str) -> str:
    """Returns the name of the folder of a candidate's runs."""
    name = "".join(letter if letter.isalnum() else "-" for letter in str(contender.candidate))
    return f"{runs}/{name}"


class Display:
    """Shows what runs, and rankings: with a bar in a terminal, otherwise as lines on stderr.

    Args:
        lengths: numbers of rounds of the rungs, and of the finalists' runs.
        bar: a `rich.progress.Progress`; None: there are lines.
        shown: whether anything is shown.
    """

    def __init__(self, lengths: Sequence[int], bar: Any = None, shown: bool = True) -> None:
        self._lengths, self._bar, self._shown = lengths, bar, shown
        self._task: Any = None if bar is None else bar.add_task("", total=None)
        self._done = 0.0
        self._words = ""
        self._alive: list[Contender] = []
        self._ended = list[Contender]()
        self._begun, self._next = time.monotonic(), FIRST

    def begin(self, i: int, alive: Sequence[Contender], what: str) -> None:
        """To be called when a rung begins."""
        self._alive, self._ended = list(alive), []
        self._words = f"{what} ({i + 1} of {len(self._lengths)})"
        if self._bar is not None:
            # The work of later rungs is estimated: points decrease as rounds increase, so that all
            # rungs take about equal time.
            points = sum(len(each.points) for each in alive)
            left = points * self._lengths[i] * (len(self._lengths) - i)
            self._bar.update(self._task, total=self._done + left)
        self._update()

    def advance(self, each: Contender, rounds: int) -> None:
        """To be called after each contender."""
        self._ended.append(each)
        self._done += len(each.points) * rounds
        self._update()

    def _update(self) -> None:
        running = next((each for each in self._alive if each not in self._ended), None)
        if running is None:
            return
        place = f"candidate {len(self._ended) + 1} of {len(self._alive)}"
        words = f"{self._words}, {place}: {running.candidate}"
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=words)
        else:
            self.show([words])

    def is_due(self) -> bool:
        """Returns whether a ranking of an unfinished rung is to be shown: after `FIRST` seconds,
        and then whenever the time has doubled.
        """
        return self._shown and len(self._ended) < len(self._alive) and self._seconds() > self._next

    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def show(self, lines: Sequence[str]) -> None:
        """Shows a ranking."""
        if not self._shown:
            return
        if len(lines) > 1:
            self._next = max(self._next, 2 * self._seconds())
        first, *others = lines
        lines = [f"plan: {first}", *others[:MOST_LINES]]
        if self._bar is not None:
            self._bar.console.print("\n".join(lines), highlight=False)
        else:
            print("\n".join(lines), file=sys.stderr, flush=True)


@contextmanager
def display(lengths: Sequence[int], shown: bool) -> Iterator[Display]:
    """Yields what shows the progress of a plan.

    Args:
        lengths: as in `Display`.
        shown: whether anything is shown.
    """
    if not shown:
        yield Display(lengths, shown=False)
        return
    import rich.console  # noqa: PLC0415 (imported only if progress is shown)
    import rich.progress  # noqa: PLC0415

    console = rich.console.Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield Display(lengths)
        return
    columns = rich.progress.Progress.get_default_columns()
    with rich.progress.Progress(*columns, console=console, transient=True) as bar:
        yield Display(lengths, bar)
