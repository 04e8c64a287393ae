"""Vecna: Maranjyan, Shaikh Omar and Richtárik, 2024."""

from algorithms import mind_flayer_sgd, vecna_sgd
from tests.methods.given import MOMENTUM
from tests.methods.mind_flayer_sgd import OPTIONS, PROBABILITY, TIMEOUTS, bits, rule
from tests.methods.server_events import server_case

__all__ = ["bits"]
TRIALS = (1, 2, 3, 2, 4, 2)
# The server waits for all workers.
CONTRACT_ROUNDS, EXACT_RATE = 60, 0.2

CASES = {
    "": server_case(
        lambda given: vecna_sgd(given.optimizer, TRIALS, TIMEOUTS, PROBABILITY),
        lambda given: rule(given, TRIALS, lambda n: 1 / (given.N * PROBABILITY[n] * TRIALS[n])),
        options=OPTIONS,
        length=90,
    )
}
EQUALS = {
    "equal numbers of trials": (
        lambda: vecna_sgd(MOMENTUM, 2, 10.0),
        lambda: mind_flayer_sgd(MOMENTUM, 2, 10.0),
    )
}
