"""DES-LOC: Iacob et al., 2025. Averages are made at the end of a round instead of the beginning of
the next. Absent workers adopt averaged models, and keep their moments.
"""

from collections.abc import Sequence

import numpy as np
import optax

from algorithms import des_loc, local_sgd, minibatch_sgd
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import GAMMA, MOMENTUM, Case, Given, Rounds, add

APART, ADAM, BETA = True, (2, 3, 4), (3, 2)


def recursion(given: Given, periods: Sequence[int]) -> Rounds:
    """Yields rounds of Adam, with periods K_x, K_u and K_v, or of momentum, with K_x and K_u."""
    X, u, v, own = given.X, np.zeros_like(given.X), np.zeros_like(given.X), np.zeros((given.N, 1))
    for t in given.rounds:
        g, here, S = given.G(t, X), given.present(t), given.contributes(t)
        own, v = own + here, np.where(here, 0.999 * v + 0.001 * g**2, v)
        u = np.where(here, 0.9 * u + (1 if given.optimizer == "momentum" else 0.1) * g, u)
        change = u
        if given.optimizer == "adam":
            count = np.maximum(own, 1)
            change = (u / (1 - 0.9**count)) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8)
        X = X - given.gamma * here * change
        due = [(t + 1) % period == 0 and S.any() for period in periods]
        X = np.tile(X[S].mean(axis=0), (given.N, 1)) if due[0] else X
        u = np.where(here, u[S].mean(axis=0), u) if due[1] else u
        v = np.where(here, v[S].mean(axis=0), v) if due[-1] else v
        averages = [given.all_reduce(t, given.model) for period in periods if (t + 1) % period == 0]
        moments = {"mu": u, "nu": v} if given.optimizer == "adam" else {"trace": u}
        yield {"params": X} | moments | add(given.nothing(), *averages)


def bits(t: int, N: int, d: int) -> Bits:
    return 0 if (t + 1) % 2 else all_reduce(N, d)


CASES = {
    title: Case(
        lambda given, periods=periods: des_loc(given.optimizer, *periods),
        lambda given, periods=periods: recursion(given, periods),
        optimizer=optimizer,
        absent="absent" in title,
        symbols={name: f"workers.optimizer.{name}" for name in ("mu", "nu", "trace")},
    )
    for title, optimizer, periods in (
        ("", "adam", ADAM),
        ("absent", "adam", ADAM),
        ("momentum, absent", "momentum", BETA),
    )
}
EQUALS = {
    "all periods 1": (lambda: des_loc(MOMENTUM, 1, 1), lambda: minibatch_sgd(MOMENTUM)),
    "moments never averaged": (
        lambda: des_loc(optax.adam(GAMMA), 4, 10**6, 10**6),
        lambda: local_sgd(optax.adam(GAMMA), 4),
    ),
}
