"""Ringmaster: Maranjyan, Tyurin and Richtárik, 2025, algorithms 4 and 5."""

from algorithms import asynchronous_sgd, ringmaster_sgd
from tests.methods.given import SGD, Given
from tests.methods.server_events import Order, Rule, bits, server_case

__all__ = ["bits"]
THRESHOLD = 3


def rule(given: Given) -> Rule:
    step = given.step()
    return lambda now: step(now.g) if now.delay < THRESHOLD else None


def with_stops(given: Given) -> tuple[Rule, Order]:
    step = given.step()

    def arrive(now):
        assert now.delay < THRESHOLD
        return step(now.g)

    def order(now, jobs):
        late = [job.waiting or job.delay >= THRESHOLD for job in jobs]
        return {j: jobs[j].worker for j, begins in enumerate(late) if begins}

    return arrive, order


def bits_stops(t: int, N: int, d: int) -> None:
    """They depend on the stops; the cases compare them."""


CASES = {
    "": server_case(
        lambda given: ringmaster_sgd(given.optimizer, THRESHOLD), rule, optimizer="momentum"
    ),
    "Lion": server_case(
        lambda given: ringmaster_sgd(given.optimizer, THRESHOLD), rule, optimizer="lion"
    ),
    "stops": server_case(
        lambda given: ringmaster_sgd(given.optimizer, THRESHOLD, stops=True),
        with_stops,
        optimizer="momentum",
    ),
}
EQUALS = {
    "no gradient is ignored": (lambda: ringmaster_sgd(SGD, 10**6), lambda: asynchronous_sgd(SGD)),
    "no computation is stopped": (
        lambda: ringmaster_sgd(SGD, 10**6, stops=True),
        lambda: asynchronous_sgd(SGD),
    ),
}
