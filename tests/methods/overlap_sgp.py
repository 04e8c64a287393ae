"""Overlap SGP: Assran et al., 2019, algorithm 2."""

import numpy as np

from algorithms import overlap_sgp, stochastic_gradient_push
from tests.methods.given import MOMENTUM, Case, Given, Rounds
from tests.methods.graphs import topology
from tests.methods.stochastic_gradient_push import bits

__all__ = ["bits"]
APART = True


def recursion(given: Given, delay: int) -> Rounds:
    """A sender keeps its share at once; a receiver adds the others' shares a delay later."""
    X, w, step, N = given.X, np.ones(given.N), given.step(), given.N
    arriving, total = (np.zeros_like(X), np.zeros(N)), X.sum(axis=0)
    for t in given.rounds:
        change = step(given.G(t, X / w[:, None]))
        X, total, sent = X + change, total + change.sum(axis=0), given.nothing()
        if (t + 1) % delay == 0:
            P = given.P(t, t // delay)
            kept, others = np.diag(np.diag(P)), P - np.diag(np.diag(P))
            X, w, arriving = (
                kept @ X + arriving[0],
                kept @ w + arriving[1],
                (others @ X, others @ w),
            )
            sent = given.to_neighbours(t, given.model + given.word, t // delay)
        # what is on its way counts: the sum changes by the steps alone
        np.testing.assert_allclose(w.sum() + arriving[1].sum(), N, rtol=1e-12)
        yield {"params": X, "weight": w, "x": total / N} | sent


CASES = {
    title: Case(
        lambda given, delay=delay: overlap_sgp(given.optimizer, given.graph, delay),
        lambda given, delay=delay: recursion(given, delay),
        graph,
        "momentum",
        symbols={"x": lambda found: found.home},
        length=12,
    )
    for title, graph, delay in (("", "directed", 1), ("schedule", "ring, star", 2))
}
EQUALS = {
    "no delay": (
        lambda: overlap_sgp(MOMENTUM, topology("directed", 6), 0),
        lambda: stochastic_gradient_push(MOMENTUM, topology("directed", 6)),
    )
}
