"""MindFlayer: Maranjyan, Shaikh Omar and Richtárik, 2024."""

from collections.abc import Callable, Sequence

import numpy as np

from algorithms import as_grad, mind_flayer_sgd
from tests.methods.given import MOMENTUM, Given
from tests.methods.server_events import Options, Order, Rule, server_case
from theory_checks.machinery.trajectories import N

TRIALS, TIMEOUTS = (1, 2, 3, 2, 0, 2), (0.25, 1.0, 3.0, 0.5, 2.0, 0.375)
PROBABILITY = (0.9, 0.5, 0.7, 0.3, 0.6, 0.8)
OPTIONS = Options(timeouts=TIMEOUTS)


def bits(t: int, N: int, d: int) -> None:
    """They depend on the trials; the cases compare them."""


def rule(given: Given, trials: Sequence[int], weight: Callable[[int], float]) -> tuple[Rule, Order]:
    """Returns the rule with a weight of each worker's gradients."""
    step, total, made = given.step(), np.zeros(given.d), np.zeros(given.N, int)

    def arrive(now):
        n = now.worker
        if made[n] == trials[n]:
            return None
        assert now.delay == 0
        made[n] += 1
        if now.g is not None:
            total[:] += weight(n) * now.g
        if np.any(made < trials):
            return None
        change = step(total.copy())
        total[:], made[:] = 0, 0
        return change

    def order(now, jobs):
        left = [job.waiting and made[job.worker] < trials[job.worker] for job in jobs]
        return {j: jobs[j].worker for j, may in enumerate(left) if may}

    return arrive, order


CASES = {
    "": server_case(
        lambda given: mind_flayer_sgd(given.optimizer, TRIALS, TIMEOUTS, PROBABILITY),
        lambda given: rule(given, TRIALS, lambda n: 1 / np.dot(PROBABILITY, TRIALS)),
        optimizer="momentum",
        options=OPTIONS,
        length=90,
    )
}
EQUALS = {
    "one trial that is not cut": (
        lambda: mind_flayer_sgd(MOMENTUM, 1, 10.0),
        lambda: as_grad(MOMENTUM, "pure", N),
    )
}
