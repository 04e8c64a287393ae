"""Shadowheart SGD: Tyurin, Pozzi, Ilin and Richtárik, 2024; the equilibrium time as in their public
code.
"""

import numpy as np
from scipy import optimize

from algorithms import minibatch_sgd, shadowheart_sgd
from dsgd import compressors
from tests.methods.compressors import HALF, HALVES, declare_unbiased
from tests.methods.given import MOMENTUM, Case, Given, Rounds

# HALF is stated to be unbiased with omega = 1.
OMEGA, NOISE, BUDGET = 1.0, 0.75, 3.0
COMPUTE, SEND = (0.7, 3.0, 1.5, 4.0, 0.9, 2.0), (1.25, 0.5, 2.0, 0.5, 3.5, 3.0)


def equilibrium(h: np.ndarray, tau: np.ndarray, omega: float, noise: float) -> float:
    """Returns t*, with a general solver for its equation."""
    order, budgets = np.argsort(np.maximum(h, tau)), list[float]()
    for k in range(1, len(h) + 1):
        a, c = h[order[:k]], tau[order[:k]]

        def excess(s, a=a, c=c):
            each = 2 * c * omega + 4 * c * a * noise * omega / s + 2 * a * noise
            return s * np.sum(1 / each) - 1

        budgets.append(max(a[-1], c[-1], optimize.brentq(excess, 1e-9, 1e4, xtol=1e-12)))
    return min(budgets)


def recursion(given: Given, budget: float) -> Rounds:
    x, step, noise = given.x, given.step(), given.found.noise
    b, m = np.floor(budget / np.array(COMPUTE)), np.floor(budget / np.array(SEND))
    active = (b > 0) & (m > 0)
    w = active / (b * OMEGA + OMEGA * NOISE + m * NOISE)
    for t in given.rounds:
        exact = given.exact(t, np.tile(x, (given.N, 1)))
        sums = np.array(
            [
                active[n] * (b[n] * exact[n] + noise[t, n, : int(b[n])].sum(axis=0))
                for n in range(given.N)
            ]
        )
        total = (w * m) @ HALVES(given, sums)
        x = x + step(total / np.sum(w * m * b))
        yield {"x": x} | given.to_server(t, HALVES.bits(given) * m * active, given.model)


def case(budget: float | None) -> Case:
    used = (
        equilibrium(np.array(COMPUTE), np.array(SEND), OMEGA, NOISE) if budget is None else budget
    )
    return Case(
        lambda given: shadowheart_sgd(
            given.optimizer, declare_unbiased(HALF), COMPUTE, SEND, NOISE, budget
        ),
        lambda given: recursion(given, used),
        optimizer="momentum",
    )


def bits(t: int, N: int, d: int) -> None:
    """They depend on the budget; the cases compare them."""


CASES = {"": case(BUDGET), "equilibrium time": case(None)}
EQUALS = {
    "one gradient and one message": (
        lambda: shadowheart_sgd(MOMENTUM, compressors.identity, 0.7, 0.6, NOISE, 0.9),
        lambda: minibatch_sgd(MOMENTUM),
    )
}
