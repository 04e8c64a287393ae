"""GT-SVRG: Xin, Khan and Kar, 2020. In a round, models and snapshots have the same draw."""

import numpy as np

from algorithms import gt_svrg
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import Case, Given, Rounds
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import Trajectory

CANCELS = True  # differences of two gradients of a draw have no noise on quadratics

APART, PERIOD = True, 3
INNER = {name: f"workers.inner.{name}" for name in ("params", "tracker", "gradient")}
# The noise does not depend on the model, so that the snapshots are not seen in the other symbols.
SYMBOLS = INNER | {"snapshot": lambda found: found.states.workers.memory[0]}


def recursion(given: Given, renewed: np.ndarray) -> Rounds:
    """Yields the rounds; `renewed` says which workers renew their snapshots, bool `[T, N, 1]`."""
    X, step = given.X, given.step()
    S, Y, V = X, np.zeros_like(X), np.zeros_like(X)
    for t in given.rounds:
        S, last, W = np.where(renewed[t], X, S), V, given.W(t)
        V = given.G(t, X) - given.G(t, S) + given.exact(t, S)
        Y = W @ (Y + V - last)
        X = W @ (X + step(Y))
        symbols = {"params": X, "tracker": Y, "gradient": V, "snapshot": S}
        yield symbols | given.to_neighbours(t, 2 * given.model)


def every_third(given: Given) -> np.ndarray:
    return np.arange(given.length)[:, None, None] % PERIOD == 0


def exact(found: Trajectory) -> np.ndarray:
    """Returns which workers compute exact gradients, their last query, bool `[T, N]`."""
    return np.any(found.gradients[:, -trajectories.N :] != 0, axis=2)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d, 2)


CASES = {
    "": Case(
        lambda given: gt_svrg(given.optimizer, given.graph, PERIOD),
        lambda given: recursion(given, every_third(given)),
        "one peer",
        "momentum",
        symbols=SYMBOLS,
    )
}
