"""MARINA, and with clients PP-MARINA: Gorbunov et al., 2021; clients without replacement."""

import numpy as np

from algorithms import gradient_descent, marina
from dsgd import compressors
from tests.methods.bits import FLOAT, Bits, largest, with_reply
from tests.methods.compressors import HALF, HALVES, declare_unbiased
from tests.methods.ef_bv import RANDOM
from tests.methods.given import SGD, Case, Given, Gradients, Rounds

DRAWS = True  # gradients are exact, but coins and compressors are drawn
P, CLIENTS, Q = 0.4, 4, declare_unbiased(HALF)


def recursion(given: Given, G: Gradients, r: int | None = None) -> Rounds:
    """The rounds with whole gradients, and the r clients that send in the others, are the method's.

    Args:
        given: see `Given`.
        G: has draw t, the same at both models; exact in MARINA.
        r: number of clients; None: all.
    """
    sent = given.found.sent
    coins, drawn = np.all(sent == given.model, axis=1), sent > 0
    g, before, x, step = np.zeros(given.d), given.x, given.x, given.step()
    for t in given.rounds:
        up = np.full(given.N, given.model)
        tiled, last = (np.tile(model, (given.N, 1)) for model in (x, before))
        if coins[t]:
            g = given.exact(t, tiled).mean(axis=0)
        else:
            g = g + HALVES(given, G(t, tiled) - G(t, last))[drawn[t]].mean(axis=0)
            up = HALVES.bits(given) * drawn[t] if drawn[t].sum() == (r or given.N) else -up
        before, x = x, x + step(g)
        yield {"x": x, "estimate": g} | given.to_server(t, up, given.model)


def bits(t: int, N: int, d: int) -> Bits:
    """By chance, whole gradients."""
    whole = with_reply(d * FLOAT, d)
    return [whole, with_reply(largest(-(-d // 4), d), d)] if t else whole


CASES = {
    "": Case(
        lambda given: marina(given.optimizer, Q, P),
        lambda given: recursion(given, given.exact),
        optimizer="momentum",
        length=15,
    ),
    "clients": Case(
        lambda given: marina(given.optimizer, Q, P, clients=CLIENTS),
        lambda given: recursion(given, given.exact, CLIENTS),
        length=15,
    ),
}
EQUALS = {
    "identity": (lambda: marina(SGD, compressors.identity, 0.3), lambda: gradient_descent(SGD)),
    "always exact": (lambda: marina(SGD, RANDOM, 1.0), lambda: gradient_descent(SGD)),
    "all clients": (
        lambda: marina(SGD, compressors.identity, 0.3, clients=6),
        lambda: gradient_descent(SGD),
    ),
}
