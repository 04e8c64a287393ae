"""1-bit Adam, without correction for bias: Tang et al., 2021, algorithm 1."""

from typing import Any

import numpy as np

from algorithms import one_bit_adam
from dsgd import compressors
from tests.methods.bits import Bits, all_reduce, parts, signs
from tests.methods.compressors import SIGN, Parts, Q, mean_size_times_sign, parts_at
from tests.methods.given import Case, Given, Rounds

WARM_UP = 4
DECAYS: dict[str, Any] = {"beta1": 0.8, "beta2": 0.9, "epsilon": 0.1}


class Compensated:
    """The mean of the workers' vectors after compression in both directions, with error memories at
    both ends. There are N servers, each with one part.
    """

    def __init__(self, C: Q, cutting: Parts) -> None:
        self.C, self.cutting = cutting.each(C), cutting
        N, part = cutting.N, cutting.shard(np.zeros(sum(cutting.layers))).shape[1]
        self.worker, self.server = np.zeros((N, N, part)), np.zeros((N, part))

    def mean(self, vectors: np.ndarray) -> np.ndarray:
        """Returns the mean of vectors `[N, d]`, and updates the memories."""
        N, cut = self.cutting.N, self.cutting.shard
        corrected = np.array([cut(vectors[n]) for n in range(N)]) + self.worker
        sent = np.array([[self.C(corrected[n][k]) for k in range(N)] for n in range(N)])
        self.worker = corrected - sent
        total = sent.mean(axis=0) + self.server
        answer = np.array([self.C(total[k]) for k in range(N)])
        self.server = total - answer
        return self.cutting.unshard(answer)

    @property
    def errors(self) -> dict[str, np.ndarray]:
        """The memories, `[N, d]` and `[d]`."""
        ends = {"e": self.worker, "e of servers": self.server}
        return {name: self.cutting.unshard(parts) for name, parts in ends.items()}


def recursion(given: Given, C: Q, whole: bool = False) -> Rounds:
    x, step, m, v = given.x, given.step(), np.zeros(given.d), np.zeros(given.d)
    beta1, beta2, epsilon = DECAYS.values()
    exchange = Compensated(C, Parts((given.d,) if whole else given.layers, given.N))
    for t in given.rounds:
        g = given.gradients_at(t, x)
        if t < WARM_UP:
            m = beta1 * m + (1 - beta1) * g.mean(axis=0)
            v = beta2 * v + (1 - beta2) * g.mean(axis=0) ** 2
        else:
            m = exchange.mean(beta1 * m + (1 - beta1) * g)
        x = x + step(m / (np.sqrt(v) + epsilon))
        yield {"x": x, "m": m, "v": v} | exchange.errors


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, d) if t < 3 else parts(signs, N, d)


def _case(C: Any, q: Q, whole: bool = False, optimizer: str = "plain") -> Case:
    return Case(
        lambda given: one_bit_adam(given.optimizer, WARM_UP, C, **DECAYS),
        lambda given: recursion(given, q, whole),
        optimizer=optimizer,
        length=12,
        symbols={
            "e": parts_at("workers.worker"),
            "e of servers": parts_at("workers.server"),
        },
    )


CASES = {
    "": _case(SIGN, mean_size_times_sign),
    "whole model": _case(compressors.whole_model(SIGN), mean_size_times_sign, True, "momentum"),
    "uncompressed": _case(compressors.identity, lambda z: z),
}
