r"""Streaming DiLoCo: Douillard et al., 2025, algorithm 2. After inner step t, fragment p with
$(t - t_p) \bmod H = 0$ is sent; the mean arrives $\tau$ steps later, and only then is the outer
step made.
"""

from collections.abc import Callable

import numpy as np
import optax

from algorithms import diloco, local_sgd, streaming_diloco
from dsgd import Algorithm
from tests.methods.bits import FLOAT, Bits, packed_bits, period_end
from tests.methods.diloco import nesterov
from tests.methods.given import MOMENTUM, SGD, Case, Given, Rounds, Setting, add

H, TAU, ALPHA, ETA, MU = 4, 3, 0.25, 0.6, 0.8


def recursion(
    given: Given,
    fragments: int,
    H: int,
    tau: int,
    C: Callable[[np.ndarray], np.ndarray],
    exchange: Callable[[int, int], dict],
) -> Rounds:
    r"""Yields the rounds; the layers are the fragments.

    Args:
        exchange: (t, number of elements) -> the bits of a fragment.
    """
    x, X, step = given.x.copy(), given.X, given.step()
    ends = np.cumsum([0, *given.layers])
    outers = [nesterov(ETA, MU) for _ in range(fragments)]
    flying: dict[tuple[int, int], np.ndarray | None] = {}
    for t in given.rounds:
        X, S, sent = (
            X + step(given.G(t, X), given.present(t)),
            given.contributes(t),
            given.nothing(),
        )
        for p in range(fragments):
            part = slice(ends[p], ends[p + 1])
            if (t + 1 - (p + 1) * H // fragments) % H == 0:
                changes = [C(x[part] - y[part]) for y in X[S]]
                flying[p, t + tau] = np.mean(changes, axis=0) if S.any() else None
                sent = add(sent, exchange(t, given.layers[p]))
            if (p, t) in flying:
                delta = flying.pop((p, t))
                x[part] = x[part] if delta is None else outers[p](x[part], delta)
                X[:, part] = ALPHA * X[:, part] + (1 - ALPHA) * x[part]
        yield {"params": X.copy()} | sent


def e3m0(x: np.ndarray) -> np.ndarray:
    """Returns x rounded to the nearest of 0 and 1, 1/2, ..., 1/64 times its largest magnitude."""
    largest = np.abs(x).max()
    levels = largest * np.array([0.0, *(2.0**-j for j in range(7))])
    nearest = levels[np.argmin(np.abs(np.abs(x)[:, None] - levels), axis=1)]
    return np.sign(x) * nearest


def two_fragments(given: Given) -> Rounds:
    def gather(t, d):
        return given.all_gather(t, packed_bits(4, d) + given.word)

    return recursion(given, 2, H, TAU, e3m0, gather)


def plain(given: Given) -> Rounds:
    def reduce(t, d):
        return given.all_reduce(t, d * given.word)

    return recursion(given, 1, 3, 2, lambda x: x, reduce)


def method(given: Setting, fragments: int, H: int, tau: int, **options) -> Algorithm:
    outer = optax.sgd(ETA, momentum=MU, nesterov=True)
    options |= {"delay": tau, "local_share": ALPHA}
    return streaming_diloco(given.optimizer, fragments, H, outer, **options)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, (N - 1) * (packed_bits(4, d) + FLOAT))


CASES = {
    "": Case(lambda given: method(given, 2, H, TAU), two_fragments, optimizer="adam"),
    "absent": Case(
        lambda given: method(given, 1, 3, 2, compressor=None),
        plain,
        optimizer="momentum",
        absent=True,
    ),
}
OUTER = optax.sgd(0.7, 0.6, nesterov=True)
EQUALS = {
    "one fragment at once": (
        lambda: streaming_diloco(MOMENTUM, 1, 4, OUTER, delay=0, local_share=0.0, compressor=None),
        lambda: diloco(MOMENTUM, 4, OUTER),
    ),
    "local models": (
        lambda: streaming_diloco(SGD, 2, 4, OUTER, delay=1, local_share=1.0),
        lambda: local_sgd(SGD, 10**6),
    ),
}
