"""GT-VR: Jiang, Zeng, Sun and Chen, 2022: GT-SVRG with snapshots that are renewed by
the method's own coins.
"""

import numpy as np

import algorithms
from algorithms import gt_vr
from tests.methods import gt_svrg
from tests.methods.bits import Bits
from tests.methods.given import SGD, Case, Given
from tests.methods.graphs import LAZY

APART = True


def coins(given: Given) -> np.ndarray:
    """Returns which workers renew their snapshots, bool `[T, N, 1]`."""
    renewed = gt_svrg.exact(given.found)[:, :, None]
    assert renewed[0].all()
    assert 0.2 < renewed[1:].mean() < 0.6
    return renewed


def bits(t: int, N: int, d: int) -> Bits:
    return gt_svrg.bits(t, N, d)


CASES = {
    "": Case(
        lambda given: gt_vr(given.optimizer, given.graph, 0.4),
        lambda given: gt_svrg.recursion(given, coins(given)),
        "one peer",
        "momentum",
        symbols=gt_svrg.SYMBOLS,
    )
}
EQUALS = {
    "always a snapshot": (lambda: gt_vr(SGD, LAZY, 1.0), lambda: algorithms.gt_svrg(SGD, LAZY, 1)),
}
