"""SketchedSGD, with means instead of sums: Ivkin et al., 2019."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms import minibatch_sgd, sketched_sgd
from dsgd import compressors
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import SGD, Case, Given, Rounds, add
from theory_checks.machinery.trajectories import D

K, P, MU, ROWS, COLUMNS = 4, 2, 0.7, 3, 8


class Hashes(NamedTuple):
    """Hash functions of a count sketch.

    Args:
        h: counter of each element in each row, int `[r, d]`.
        s: its sign, `[r, d]`.
        columns: c.
    """

    h: np.ndarray
    s: np.ndarray
    columns: int

    def sketch(self, x: np.ndarray) -> np.ndarray:
        """Returns the counters, `[r, c]`, element by element."""
        S = np.zeros((len(self.h), self.columns))
        for j, (h, s) in enumerate(zip(self.h, self.s, strict=True)):
            for i, value in enumerate(x):
                S[j, h[i]] += s[i] * value
        return S

    def estimate(self, S: np.ndarray) -> np.ndarray:
        """Returns the median over the rows of each element's counters, `[d]`."""
        rows = [s * row[h] for h, s, row in zip(self.h, self.s, S, strict=True)]
        return np.median(rows, axis=0)


def hashes(given: Given, rows: int, columns: int) -> Hashes:
    """Returns the hash functions that the method drew, read from sketches of single elements;
    without collisions if no rounds of the method are given.
    """
    if given.found is None:
        return Hashes(np.tile(np.arange(given.d), (rows, 1)), np.ones((rows, given.d)), columns)
    with jax.enable_x64(True):
        key = jax.random.key(int(given.found.states.server.seed[-1]))
        encode = jax.vmap(partial(compressors.count_sketch(rows, columns).encode, key))
        counters = np.asarray(encode(np.eye(given.d))).swapaxes(0, 1)  # [rows, d, columns]
    return Hashes(np.abs(counters).argmax(axis=2), counters.sum(axis=2), columns)


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Returns the places of the k largest magnitudes."""
    return np.argsort(-np.abs(x), kind="stable")[:k]


def recursion(given: Given, k: int = K, rows: int = ROWS, columns: int = COLUMNS) -> Rounds:
    x, step, (u, v) = given.x, given.step(), np.zeros((2, given.N, given.d))
    hashed = hashes(given, rows, columns)
    for t in given.rounds:
        S = given.contributes(t)
        rows_of = np.flatnonzero(S)
        u[S] = MU * u[S] + given.gradients_at(t, x)[S]
        v[S] = v[S] + u[S]
        if S.any():
            sketch = np.mean([hashed.sketch(row) for row in v[S]], axis=0)
            asked = largest(hashed.estimate(sketch), P * k)
            exact = v[np.ix_(rows_of, asked)].mean(axis=0)
            chosen = asked[largest(exact, k)]
            delta = np.zeros(given.d)
            delta[chosen] = v[np.ix_(rows_of, chosen)].mean(axis=0)
            u[np.ix_(rows_of, chosen)] = v[np.ix_(rows_of, chosen)] = 0
            x = x + step(delta)
        sent = [given.all_reduce(t, given.word * n) for n in (rows * columns, P * k)]
        yield {"x": x, "u": u.copy(), "v": v.copy()} | add(*sent)


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, 5 * 32) + all_reduce(N, min(4 * -(-d // 10), d))


def _some(given: Given) -> Rounds:
    """One of two candidates; sketches of four elements in four counters are exact."""
    return recursion(given, 1, 1, given.d)


CASES: dict[str, Any] = {
    "": Case(
        lambda given: sketched_sgd(given.optimizer, K / D, COLUMNS, ROWS, P, MU),
        recursion,
    ),
    "absent": Case(
        lambda given: sketched_sgd(given.optimizer, 1 / 4, 4, 1, P, MU),
        _some,
        optimizer="momentum",
        absent=True,
    ),
}
EQUALS = {
    "all elements": (lambda: sketched_sgd(SGD, 1.0, 8, 3, 2, 0.9), lambda: minibatch_sgd(SGD)),
}
