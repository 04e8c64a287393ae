"""Delay-adaptive asynchronous SGD: Mishchenko et al., 2022, and Koloskova et al., 2022."""

from collections.abc import Callable

from algorithms import asynchronous_sgd, delay_adaptive_sgd
from tests.methods.given import SGD, Given
from tests.methods.server_events import Rule, bits, server_case

__all__ = ["bits"]
LATE = 4.5


def rule(factor: Callable[[int, int], float]) -> Callable[[Given], Rule]:
    """Returns the rule with a factor of the step, (delay, N) -> number."""

    def make(given: Given) -> Rule:
        step = given.step()
        return lambda now: step(now.g) * factor(now.staleness, given.N)

    return make


def shrink_late(delay: int, N: int) -> float:
    return 1.0 if delay <= 2 * N else LATE / delay


CASES = {
    "": server_case(
        lambda given: delay_adaptive_sgd(given.optimizer),
        rule(lambda delay, N: N / max(N, delay)),
        optimizer="momentum",
    ),
    "late": server_case(
        lambda given: delay_adaptive_sgd(given.optimizer, LATE), rule(shrink_late), length=90
    ),
    "late ones are ignored": server_case(
        lambda given: delay_adaptive_sgd(given.optimizer, 0.0),
        rule(lambda delay, N: delay <= 2 * N),
        length=90,
    ),
}
EQUALS = {
    "full steps": (lambda: delay_adaptive_sgd(SGD, 10.0**6), lambda: asynchronous_sgd(SGD)),
    "delays below N": (lambda: delay_adaptive_sgd(SGD), lambda: asynchronous_sgd(SGD)),
}
