"""Ringmaster: Maranjyan, Tyurin and Richtárik, 2025, algorithm 4."""

from algorithms import asynchronous_sgd, ringmaster_sgd
from tests.methods.given import SGD, Given
from tests.methods.server_events import Rule, bits, server_case

__all__ = ["bits"]
THRESHOLD = 3


def rule(given: Given) -> Rule:
    step = given.step()
    return lambda now: step(now.g) if now.delay < THRESHOLD else None


CASES = {
    "": server_case(
        lambda given: ringmaster_sgd(given.optimizer, THRESHOLD), rule, optimizer="momentum"
    )
}
EQUALS = {
    "no gradient is ignored": (lambda: ringmaster_sgd(SGD, 10**6), lambda: asynchronous_sgd(SGD))
}
