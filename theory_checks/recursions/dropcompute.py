"""DropCompute: workers stop computing when their time is up; one worker and one micro-batch at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from theory_checks.recursions.shared import Rounds, Step

# (worker, round, micro-batch, model [d]) -> its gradient [d]
Gradient = Callable[[int, int, int, np.ndarray], np.ndarray]


class Rule(NamedTuple):
    """When workers stop, and how their sums are corrected.

    Args:
        threshold: tau, seconds of a period.
        micro_batches: M.
        stop: "preempt": at tau; "between": before the next micro-batch after tau.
        correction: divisor of the sums: "none": M; "stochastic": the mean count of all workers;
            "local": the worker's own count; or a number c: M / c.
        period: H, number of rounds.
        resample_dropped: whether a worker continues in the next round with the micro-batches that
            it dropped.
    """

    threshold: float
    micro_batches: int
    stop: str = "preempt"
    correction: str | float = "none"
    period: int = 1
    resample_dropped: bool = False


class Worked(NamedTuple):
    """Numbers of micro-batches and seconds that the workers computed in a round, `[N]`."""

    counts: np.ndarray
    seconds: np.ndarray


def until(rule: Rule, takes: Iterable[float], spent: float) -> tuple[int, float]:
    """Returns how many micro-batches a worker computes, and for how long, after it has spent a part
    of its time.

    Source: Giladi et al., "DropCompute", Algorithm 1, lines 4 to 9.
    """
    clock, count = spent, 0
    for one in takes:
        if rule.stop == "between" and clock > rule.threshold:
            break
        if rule.stop == "preempt" and clock + one >= rule.threshold:
            clock = rule.threshold
            break
        clock, count = clock + one, count + 1
    return count, clock - spent


def sums(
    rule: Rule, G: Gradient, t: int, X: np.ndarray, counts: np.ndarray, drawn: np.ndarray
) -> np.ndarray:
    """Returns the gradients of all workers, `[N, d]`: the sum over the computed micro-batches,
    divided as the correction specifies.
    """
    M, found = rule.micro_batches, np.zeros_like(X)
    for n, count in enumerate(counts):
        numbers = [
            divmod(int(drawn[n]) + m, M) if rule.resample_dropped else (t, m) for m in range(count)
        ]
        total = sum((G(n, *number, X[n]) for number in numbers), np.zeros_like(X[n]))
        if not isinstance(rule.correction, str):
            found[n] = rule.correction * total / M
        elif count:
            found[n] = (
                total / {"none": M, "stochastic": counts.mean(), "local": count}[rule.correction]
            )
    return found


def minibatch(
    x: np.ndarray, G: Gradient, N: int, step: Step, rule: Rule, seconds: np.ndarray
) -> Rounds:
    """Algorithm 1: a step along the mean of all gradients.

    Args:
        x: the model, `[d]`.
        G: gradients.
        N: number of workers.
        step: from the mean gradient to the change of the model.
        rule: when workers stop.
        seconds: seconds of each micro-batch, `[T, N, M]`.
    """
    drawn = np.zeros(N, int)
    for t, takes in enumerate(seconds):
        worked = Worked(
            *map(np.array, zip(*(until(rule, each, 0.0) for each in takes), strict=True))
        )
        x = x + step(sums(rule, G, t, np.tile(x, (N, 1)), worked.counts, drawn).mean(axis=0))
        drawn = drawn + worked.counts
        yield {"x": x, **_recorded(rule, worked, np.zeros(N), drawn)}


def local(
    X: np.ndarray, G: Gradient, steps: Sequence[Step], rule: Rule, seconds: np.ndarray
) -> Rounds:
    """Local SGD (appendix B.3): a worker that has computed at least one micro-batch makes a local
    step; models are averaged at the end of a period.

    Args:
        X: the models, `[N, d]`.
        G: gradients.
        steps: each worker's step function.
        rule: when workers stop.
        seconds: seconds of each micro-batch, `[T, N, M]`.
    """
    drawn, spent = np.zeros(len(X), int), np.zeros(len(X))
    for t, takes in enumerate(seconds):
        worked = Worked(
            *map(
                np.array,
                zip(*(until(rule, each, spent[n]) for n, each in enumerate(takes)), strict=True),
            )
        )
        gradients = sums(rule, G, t, X, worked.counts, drawn)
        X = np.array(
            [X[n] + (steps[n](gradients[n]) if worked.counts[n] else 0) for n in range(len(X))]
        )
        drawn, spent = drawn + worked.counts, spent + worked.seconds
        if (t + 1) % rule.period == 0:
            X, spent = np.tile(X.mean(axis=0), (len(X), 1)), np.zeros(len(X))
        yield {"params": X, **_recorded(rule, worked, spent, drawn)}


def _recorded(
    rule: Rule, worked: Worked, spent: np.ndarray, drawn: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the metrics that the method records in a round, and the state that it carries to the
    next one.
    """
    recorded = {
        "seconds": worked.seconds,
        "dropped": np.array(1 - worked.counts.sum() / (len(worked.counts) * rule.micro_batches)),
    }
    return (
        recorded
        | ({"spent": spent} if rule.period > 1 else {})
        | ({"drawn": drawn} if rule.resample_dropped else {})
    )
