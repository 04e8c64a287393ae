"""Distributed Lion, MaVo and Avg: Liu et al., 2024."""

from algorithms import distributed_lion
from tests.methods import majority_vote
from tests.methods.given import Case
from tests.methods.majority_vote import SYMBOLS, recursion

LEARNING_RATE, BETA1, BETA2 = 0.02, 0.8, 0.95

bits = majority_vote.bits
CASES = {
    title: Case(
        lambda given: distributed_lion(given.optimizer, beta1=BETA1, beta2=BETA2),
        lambda given: recursion(given, BETA1, BETA2),
        optimizer="momentum",
        absent=bool(title),
        symbols=SYMBOLS,
    )
    for title in ("", "absent")
} | {
    "mean": Case(
        lambda given: distributed_lion(given.optimizer, aggregate="mean"),
        lambda given: recursion(given, 0.9, 0.99, lambda sums: sums / given.N, width=3),
        symbols=SYMBOLS,
    ),
}
