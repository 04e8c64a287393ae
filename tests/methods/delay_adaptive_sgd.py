"""Delay-adaptive asynchronous SGD: Mishchenko et al., 2022, and Koloskova et al., 2022."""

from collections.abc import Callable

import numpy as np

from algorithms import asynchronous_sgd, delay_adaptive_sgd
from tests.methods.events import BITS, Numbers
from tests.methods.given import SGD, Given
from tests.methods.server_events import Rule, bits, server_case
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import N

__all__ = ["bits"]
LATE = 4.5


def rule(factor: Callable[[int, int], float]) -> Callable[[Given], Rule]:
    """Returns the rule with a factor of the step, (delay, N) -> number."""

    def make(given: Given) -> Rule:
        step = given.step()
        return lambda now: step(now.g) * factor(now.staleness, given.N)

    return make


def cluster(draws: Draws) -> Numbers:
    """Draws a cluster with delays on both sides of 2 N: half of the workers compute for four to
    seven seconds, in which the server receives about as many gradients.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    compute = rng.integers(1, 4, size=(N, 3)) / 8
    compute[: N // 2] = rng.integers(32, 57, size=(N // 2, 3)) / 8
    return Numbers(compute, *2 * [np.full(N, BITS * 8.0)])


def shrink_late(delay: int, N: int) -> float:
    return 1.0 if delay <= 2 * N else LATE / delay


CASES = {
    "": server_case(
        lambda given: delay_adaptive_sgd(given.optimizer),
        rule(lambda delay, N: N / max(N, delay)),
        optimizer="momentum",
    ),
    "late": server_case(
        lambda given: delay_adaptive_sgd(given.optimizer, LATE),
        rule(shrink_late),
        more=cluster,
        length=90,
    ),
    "late ones are ignored": server_case(
        lambda given: delay_adaptive_sgd(given.optimizer, 0.0),
        rule(lambda delay, N: delay <= 2 * N),
        more=cluster,
        length=90,
    ),
}
EQUALS = {
    "full steps": (lambda: delay_adaptive_sgd(SGD, 10.0**6), lambda: asynchronous_sgd(SGD)),
    "delays below N": (lambda: delay_adaptive_sgd(SGD), lambda: asynchronous_sgd(SGD)),
}
