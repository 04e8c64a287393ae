"""SWARM-SGD: Nadiradze et al., 2021, with the partners that the method draws."""

from functools import partial

import numpy as np

from algorithms import swarm_sgd
from tests.methods.asynchronous_gossip_sgd import Meeting, pairs_case
from tests.methods.asynchronous_sgd import LENGTH, SYMBOLS
from tests.methods.given import Given
from theory_checks.machinery.trajectories import Trajectory, rows

H = 3


def meeting(given: Given, period: int | None = H) -> Meeting:
    """Makes local steps, and moves published models S, whose sum changes by local steps alone.

    Args:
        given: see `Given`.
        period: number of local steps between two averages; None: as many as the method made.
    """
    x, o, S = given.X.copy(), given.X.copy(), given.X.copy()
    steps, made = [given.step() for _ in range(given.N)], np.zeros(given.N, int)
    total = given.X.sum(axis=0)

    def meet(g, i, j):
        change = steps[i](g)
        x[i] += change
        total[:] += change
        made[i] += 1
        assert period is None or (j >= 0) == (made[i] % period == 0)
        if j >= 0:
            middle = (S[i] + S[j]) / 2
            S[j] = middle
            x[i] = S[i] = middle + x[i] - o[i]
            o[i] = x[i]
        return {"params": x.copy(), "shared": S.copy(), "total": total.copy()}

    return meet


def total(found: Trajectory) -> np.ndarray:
    """Returns the sum over workers of published models and local steps, `[T, d]`."""
    x, o, S = (rows(getattr(found.states.workers, name)) for name in ("params", "start", "shared"))
    return (S + x - o).sum(axis=1)


def bits(t: int, N: int, d: int) -> None:
    """No worker sends in the first rounds; the cases compare the later ones."""


CASES = {
    title: pairs_case(
        lambda given, geometric=geometric: swarm_sgd(
            given.optimizer, given.graph, H, geometric=geometric
        ),
        partial(meeting, period=None if geometric else H),
        length=3 * LENGTH,
        symbols=SYMBOLS | {"total": total},
    )
    for title, geometric in (("", False), ("geometric", True))
}
