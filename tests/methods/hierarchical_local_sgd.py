"""Hierarchical local SGD: Lin et al., 2020. Models are averaged within blocks every H
rounds, and over all workers every H H_b rounds.
"""

import numpy as np

from algorithms import hierarchical_local_sgd, local_sgd
from tests.methods.bits import FLOAT, Bits, all_reduce
from tests.methods.given import MOMENTUM, Case, Given, Rounds

APART, BLOCK, H, OF_BLOCKS = True, 3, 4, 2


def recursion(given: Given) -> Rounds:
    X, step = given.X, given.step()
    for t in given.rounds:
        X = X + step(given.G(t, X), given.present(t))
        if (t + 1) % (H * OF_BLOCKS) == 0:
            X = np.tile(X.mean(axis=0), (given.N, 1))
            sent = given.all_reduce(t, given.model)
        elif (t + 1) % H == 0:
            blocks = X.reshape(-1, BLOCK, given.d)
            X = np.repeat(blocks.mean(axis=1), BLOCK, axis=0)
            each = np.full(given.N, round(2 * (BLOCK - 1) / BLOCK * given.model))
            sent = {"bits up": each, "bits down": each}
        else:
            sent = given.nothing()
        yield {"params": X} | sent


def bits(t: int, N: int, d: int) -> Bits:
    """Blocks of two exchange one model."""
    if (t + 1) % 6 == 0:
        return all_reduce(N, d)
    return 0 if (t + 1) % 2 else d * FLOAT


CASES = {
    "": Case(
        lambda given: hierarchical_local_sgd(given.optimizer, BLOCK, H, OF_BLOCKS),
        recursion,
        optimizer="momentum",
    )
}
EQUALS = {
    "all in each": (
        lambda: hierarchical_local_sgd(MOMENTUM, 2, 3, 1),
        lambda: local_sgd(MOMENTUM, 3),
    ),
    "one block": (
        lambda: hierarchical_local_sgd(MOMENTUM, 6, 3, 2),
        lambda: local_sgd(MOMENTUM, 3),
    ),
    "blocks of one": (
        lambda: hierarchical_local_sgd(MOMENTUM, 1, 2, 3),
        lambda: local_sgd(MOMENTUM, 6),
    ),
}
