"""Step sizes as papers choose them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import dsgd

REFINEMENTS = 2  # of a grid, around its best step size


def fewest_steps(
    build: Callable[..., dsgd.Algorithm],
    problem: dsgd.Problem,
    needed: Callable[[dict[str, np.ndarray]], Any],
    rates: np.ndarray,
    steps: int,
) -> tuple[float, float]:
    """Returns the fewest rounds to a goal over the step sizes of a grid, which is refined around
    the best one, and this step size; infinite if none reaches it.

    Args:
        build: (learning_rate) -> method.
        problem: the problem.
        needed: history of a step size, `[1, rounds + 1]` -> rounds to the goal; infinite if it is
            not reached.
        rates: increasing step sizes.
        steps: largest number of rounds. Shorter runs are tried first.
    """
    best, most = (np.inf, np.nan), min(256, steps)
    for _ in range(1 + REFINEMENTS):
        while True:
            found = _run(build, problem, needed, rates, most)
            if min(found)[0] < np.inf or most == steps:
                break
            most = min(4 * most, steps)
        best = min(best, *found)
        if best[0] == np.inf:
            break
        i = found.index(min(found))
        most = min(most, int(best[0]))
        rates = np.geomspace(rates[max(i - 1, 0)], rates[min(i + 1, len(rates) - 1)], len(rates))
    return best


def _run(build, problem, needed, rates, steps) -> list[tuple[float, float]]:
    sweep = dsgd.sweep(build, problem, steps=steps, key=jax.random.key(0), learning_rate=rates)
    return [(float(needed(sweep.at((i,)))), float(rate)) for i, rate in enumerate(rates)]
