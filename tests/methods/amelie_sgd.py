"""Amelie SGD: Tyurin and Richtárik, 2024."""

from functools import partial

from algorithms import amelie_sgd, malenia_sgd
from tests.methods.fragile_sgd import bits, pivot_case, without_network
from tests.methods.malenia_sgd import CONTRACT_ROUNDS, EXACT_RATE, rule

__all__ = ["CONTRACT_ROUNDS", "EXACT_RATE", "bits"]
S = 9.5

CASES = {
    "": pivot_case(
        lambda given: amelie_sgd(given.optimizer, given.graph, S, pivot=3),
        partial(rule, S=S),
        "irregular",
        3,
    )
}
EQUALS = {"messages that take no time": without_network(amelie_sgd, malenia_sgd, S)}
