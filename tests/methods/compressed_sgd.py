"""Compressed SGD: Liu and Zhang, (3.4) to (3.6), through N servers or around a ring."""

from collections.abc import Callable

import numpy as np

from algorithms import compressed_sgd
from tests.methods.bits import Bits, codes, parts
from tests.methods.compressors import HALF, SHORT, Parts, Q, clip, largest_half
from tests.methods.given import Case, Given, Rounds

Exchange = Callable[[np.ndarray, Q, Parts], np.ndarray]


def server_mean(gradients: np.ndarray, q: Q, cutting: Parts) -> np.ndarray:
    """Sends part n to server n, which averages it and sends the mean to all workers: (3.4)."""
    N, q = cutting.N, cutting.each(q)
    parts = [cutting.shard(g) for g in gradients]
    answers = [q(np.mean([q(parts[n][k]) for n in range(N)], axis=0)) for k in range(N)]
    return cutting.unshard(np.array(answers))


def ring_mean(gradients: np.ndarray, q: Q, cutting: Parts) -> np.ndarray:
    """Sends part n around the ring from worker n; every worker adds its own part, and the sum is
    divided by N: (3.5), there without 1/N.
    """
    N, q = cutting.N, cutting.each(q)
    parts, sums = [cutting.shard(g) for g in gradients], []
    for start in range(N):
        message = q(parts[start][start])
        for hop in range(1, N):
            message = q(message + parts[(start + hop) % N][start])
        sums.append(message)
    return cutting.unshard(np.array(sums) / N)


def recursion(given: Given, exchange: Exchange, q: Q) -> Rounds:
    x, step, cutting = given.x, given.step(), Parts(given.layers, given.N)
    for t in given.rounds:
        x = x + step(exchange(given.gradients_at(t, x), q, cutting))
        yield {"x": x}


def bits(t: int, N: int, d: int) -> Bits:
    return parts(lambda p: codes(4, p), N, d)


CASES = {
    "servers": Case(
        lambda given: compressed_sgd(given.optimizer, SHORT, allow_biased=True),
        lambda given: recursion(given, server_mean, clip),
    ),
    "ring": Case(
        lambda given: compressed_sgd(given.optimizer, HALF, ring=True, allow_biased=True),
        lambda given: recursion(given, ring_mean, largest_half),
        optimizer="momentum",
    ),
}
