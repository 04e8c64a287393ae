"""CSER: Xie et al., 2020; the step, with the sign of a gradient, is what the workers synchronize
partially. A worker with a lost message keeps its error.
"""

from typing import Any

import numpy as np

from algorithms import cser, local_sgd, minibatch_sgd
from dsgd import compressors
from tests.methods.bits import Bits, all_reduce, period_end
from tests.methods.compressors import HALVES, SHORTS, Compression
from tests.methods.fed_avg import H
from tests.methods.given import MOMENTUM, Case, Given, Rounds, add
from theory_checks.machinery.trajectories import Trajectory, rows

EVERYTHING = compressors.random_places(1.0, unbiased=False)  # averaged by an all-reduce
ALL = Compression(EVERYTHING, lambda x: x, lambda d, word: d * word)


def recursion(given: Given, C1: Compression, C2: Compression | None) -> Rounds:
    x, e, step = given.x, np.zeros_like(given.X), given.step()

    def psync(t, v, C):
        S, sent = given.contributes(t), C(given, v)
        mean = sent[S].mean(axis=0) if S.any() else 0
        exchange = given.all_reduce if C is ALL else given.all_gather
        return x + mean, np.where(S[:, None], v - sent, v), exchange(t, C.bits(given))

    for t in given.rounds:
        p, sent = step(given.G(t, x + e), given.present(t)), given.nothing()
        if C2 is not None:
            x, p, sent = psync(t, p, C2)
        e = e + p
        if (t + 1) % H == 0:
            x, e, more = psync(t, e, C1)
            sent = add(sent, more)
        yield {"params": x + e, "server": x, "error": e} | sent


def models(found: Any) -> np.ndarray:
    """Returns the workers' models, the sums of the common part and the errors."""
    if isinstance(found, Trajectory):
        return rows(found.states.server, 1)[:, None] + rows(found.states.workers.error)
    return np.asarray(found.state.server) + np.asarray(found.state.workers.error)


def case(C1: Compression, C2: Compression | None, optimizer: str = "momentum") -> Case:
    return Case(
        lambda given: cser(given.optimizer, H, C1.compressor, C2 and C2.compressor),
        lambda given: recursion(given, C1, C2),
        optimizer=optimizer,
        absent=C1 is ALL,
        symbols={"params": models},
    )


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, -(-d // 10)) + period_end(t, all_reduce(N, -(-2 * d // 5)))


CASES = {
    "": case(HALVES, SHORTS, "plain"),
    "momentum": case(SHORTS, HALVES),
    "absent": case(ALL, None),
    "whole steps, absent": case(ALL, ALL),
}
EQUALS = {
    "no messages between resets": (
        lambda: cser(MOMENTUM, 4, compressors.identity),
        lambda: local_sgd(MOMENTUM, 4),
    ),
    "identities": (
        lambda: cser(MOMENTUM, 4, compressors.identity, compressors.identity),
        lambda: minibatch_sgd(MOMENTUM),
    ),
    "all codes": (
        lambda: cser(MOMENTUM, 4, EVERYTHING, EVERYTHING),
        lambda: minibatch_sgd(MOMENTUM),
    ),
}
