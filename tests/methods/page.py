"""PAGE: Li, Bao, Zhang and Richtarik, 2021, with an estimate of each worker."""

import numpy as np

from algorithms import gradient_descent, page
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import SGD, Case, Given, Rounds


def coins(given: Given) -> np.ndarray:
    """Returns the rounds with an active last query, that for exact gradients, bool `[T]`."""
    return np.any(given.found.gradients[:, -given.N :] != 0, axis=(1, 2))


def recursion(given: Given) -> Rounds:
    V, before, x, step = np.zeros_like(given.X), given.x, given.x, given.step()
    for t, coin in enumerate(coins(given)):
        exact = given.exact(t, np.tile(x, (given.N, 1)))
        V = exact if coin else V + given.gradients_at(t, x) - given.gradients_at(t, before)
        before, x = x, x + step(V.mean(axis=0))
        yield {"x": x} | given.all_reduce(t, given.model)


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, d)


CASES = {
    "": Case(
        lambda given: page(given.optimizer, 0.4),
        recursion,
        optimizer="momentum",
        symbols={"x": "server.inner.params"},
    )
}
EQUALS = {
    "always exact": (lambda: page(SGD, 1.0), lambda: gradient_descent(SGD)),
}
