"""Searches of step sizes as papers make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

import dsgd
from dsgd.runs.history import History

TRIES = 30  # most step sizes of a bisection


def best_histories(
    builds: Mapping[str, Callable[..., dsgd.Algorithm]],
    problem: dsgd.Problem,
    steps: int,
    rates: Sequence[float],
    quick: bool,
) -> dict[str, History]:
    """Returns the history of each method at the step size with the smallest loss at the end, arrays
    `[seeds, records]`.

    Args:
        builds: (learning_rate) -> method, by name.
        problem, steps: as in `dsgd.sweep`.
        rates: the step sizes.
        quick: whether there are 2 seeds in place of 5.
    """
    found = {}
    for name, build in builds.items():
        swept = dsgd.sweep(
            build,
            problem,
            steps=steps,
            key=jax.random.key(0),
            seeds=2 if quick else 5,
            record_every=10,
            learning_rate=rates,
        )
        found[name] = swept.at(swept.best())
    return found


class Bisection(NamedTuple):
    """The searches of RelaySGD's code (paper-figures/tuning.py). A step size is rejected if the gap
    rises while it is above the target.

    Args:
        start: the largest step size.
        rounds: the largest number of rounds. The gap is read at about 1,000 of them, equally spaced
            on a logarithmic axis.
        target: gap f(x) - f*.
    """

    start: float
    rounds: int
    target: float

    def fewest(
        self, build: Callable[..., dsgd.Algorithm], problem: dsgd.Problem
    ) -> tuple[float, float]:
        """Returns the fewest rounds to the target, and their step size; infinite and NaN if there
        are none. `start` is halved until a smaller step size takes more rounds, then bisected
        towards the largest that is accepted.

        Args:
            build: (learning_rate) -> method.
            problem: a problem with known minimum.
        """
        low, high, rate, best = None, self.start, self.start, (np.inf, np.nan)
        for _ in range(TRIES):
            if low is not None:
                if high - low <= 1e-4:
                    break
                rate = (low + high) / 2
            steps, _ = self._run(build, problem, rate, lambda gap: gap <= self.target)
            if steps is None:
                high = rate if low is None else max(low, rate)
            else:
                if low is not None or steps >= best[0]:
                    low, high = min(rate, high), min(4 * rate, high)
                best = (steps, rate) if steps < best[0] else best
            rate /= 2
        return best

    def steps(
        self, build: Callable[..., dsgd.Algorithm], problem: dsgd.Problem, rate: float
    ) -> float:
        """Returns the rounds to the target with a step size, infinite if it is rejected or does
        not reach it.
        """
        steps, _ = self._run(build, problem, rate, lambda gap: gap <= self.target)
        return np.inf if steps is None else steps

    def plateau(
        self, build: Callable[..., dsgd.Algorithm], problem: dsgd.Problem
    ) -> tuple[float, float]:
        """Returns the rounds to a plateau of the gap between the target and 1/1.1 of it, and its
        step size; if there is none, those of the fastest lower plateau. Arguments as for `fewest`.
        """

        def is_flat(gap):
            middle = np.convolve(gap, np.ones(3) / 3, "valid")
            apart = np.abs(np.lib.stride_tricks.sliding_window_view(gap, 3) - middle[:, None])
            return np.append([False, False], (apart < self.target / 100).all(axis=1))

        low, high, best = None, self.start, (np.inf, np.nan)
        for _ in range(TRIES):
            rate = high / 2 if low is None else (low + high) / 2
            steps, gap = self._run(build, problem, rate, is_flat)
            if steps is None or (steps < np.inf and gap >= self.target):
                high = rate if low is None else max(low, rate)
                continue
            low = min(rate, high)
            if steps < np.inf:
                best = min(best, (steps, rate))
                if gap > self.target / 1.1:
                    break
        return best

    def _run(self, build, problem, rate, ends) -> tuple[float | None, float]:
        """Returns the rounds to the first read gap at which the run ends, infinite if there is
        none, and this gap; None instead of the rounds if the step size is rejected.
        """
        read = np.unique(np.geomspace(1, self.rounds, 1_000).round().astype(int))
        most = 256
        while True:
            most = min(4 * most, self.rounds)
            swept = dsgd.sweep(
                build, problem, steps=most, key=jax.random.key(0), learning_rate=[float(rate)]
            )
            gap = swept.history["gap"][0, 0, read[read <= most]]
            found = np.flatnonzero(ends(gap))
            last = found[0] if found.size else len(gap) - 1
            seen = gap[: last + 1]
            rises = (np.diff(seen) > 0) & (seen[1:] > self.target)
            if not np.isfinite(seen).all() or rises.any():
                return None, np.inf
            if found.size or most == self.rounds:
                return (float(read[last]) if found.size else np.inf), float(gap[last])
