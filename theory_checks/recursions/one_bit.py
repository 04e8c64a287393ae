"""Methods with messages of one bit per element: votes on signs, and compressed momenta."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import numpy as np

from theory_checks.recursions.compressed import Parts, Q
from theory_checks.recursions.shared import Gradients, Rounds, Step, at_one


def signs(x: np.ndarray) -> np.ndarray:
    """Returns the signs that one bit can express: 0 counts as positive."""
    return np.where(x < 0, -1.0, 1.0)


def lion(
    x: np.ndarray,
    G: Gradients,
    step: Step,
    N: int,
    beta1: float,
    beta2: float,
    aggregate: Callable[[np.ndarray], np.ndarray],
) -> Rounds:
    """Distributed Lion; with beta1 = beta2, Signum with majority vote.

    Args:
        x, G, step: the start, the gradients and the step.
        N: number of workers.
        beta1, beta2: weights of the momentum in the vote, and in the next momentum.
        aggregate: sums of the workers' signs `[d]` -> direction.

    Source: Liu et al., "Distributed Lion"; Bernstein et al., "signSGD with majority vote".
    """
    m, t = np.zeros((N, len(x))), 0
    while True:
        g = at_one(G, t, x, N)
        votes = signs(beta1 * m + (1 - beta1) * g)
        m = beta2 * m + (1 - beta2) * g
        x = x + step(aggregate(votes.sum(axis=0)))
        t += 1
        yield {"x": x, "m": m}


class Compensated:
    """The mean of the workers' vectors after compression in both directions, with error memories at
    both ends. There are N servers, each with one part.

    Source: Tang et al., "1-bit Adam", algorithm 1.
    """

    def __init__(self, C: Q, cutting: Parts) -> None:
        self.C: Q = cutting.each(C)
        self.cutting: Parts = cutting
        N, part = cutting.N, cutting.shard(np.zeros(sum(cutting.layers))).shape[1]
        self.worker: np.ndarray = np.zeros((N, N, part))
        self.server: np.ndarray = np.zeros((N, part))

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
        return {
            "e": self.cutting.unshard(self.worker),
            "e of servers": self.cutting.unshard(self.server),
        }


def one_bit_adam(
    x: np.ndarray,
    G: Gradients,
    step: Step,
    N: int,
    exchange: Compensated,
    warm_up: int,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> Rounds:
    """1-bit Adam, without correction for bias.

    Source: Tang et al., "1-bit Adam", algorithm 1.
    """
    m, v, t = np.zeros_like(x), np.zeros_like(x), 0
    while True:
        g = at_one(G, t, x, N)
        if t < warm_up:
            m = beta1 * m + (1 - beta1) * g.mean(axis=0)
            v = beta2 * v + (1 - beta2) * g.mean(axis=0) ** 2
        else:
            m = exchange.mean(np.array([beta1 * m + (1 - beta1) * g[n] for n in range(N)]))
        x = x + step(m / (np.sqrt(v) + epsilon))
        t += 1
        yield {"x": x, "m": m, "v": v, **exchange.errors}


def doubling(rounds_each: int, until: int) -> list[int]:
    """Returns the rounds before round `until` with the distances 1, 2, 4 and so on, of which each
    is the distance after `rounds_each` rounds.
    """
    rounds, t, distance = [], 0, 1
    while True:
        for _ in range(rounds_each):
            if t >= until:
                return rounds
            rounds.append(t)
            t += distance
        distance *= 2


def stretching(start: int, stretch: int, longest: int, until: int) -> list[int]:
    """Returns all rounds before round `start`, then all for `stretch` rounds, those after which the
    number of rounds since `start` is even for `stretch` rounds, a multiple of 4 and so on, at most
    of `longest`.
    """
    rounds, distance = list(range(start)), 1
    for done in range(1, until - start + 1):
        if done % distance == 0:
            rounds.append(start + done - 1)
        if done % stretch == 0:
            distance = min(2 * distance, longest)
    return rounds


def zero_one_adam(
    X: np.ndarray,
    G: Gradients,
    gammas: Sequence[float],
    exchange: Compensated,
    T_v: Container[int],
    T_u: Container[int],
    beta1: float,
    beta2: float,
    epsilon: float,
) -> Rounds:
    """0/1 Adam; its step uses the momentum and the second moment after their updates.

    Args:
        X: the start, `[N, d]`.
        G: the gradients.
        gammas: the step size of each round.
        exchange: the compressed mean.
        T_v: rounds that update the second moments.
        T_u: rounds that exchange the sums of momenta.
        beta1, beta2, epsilon: as in `one_bit_adam`.

    Source: Lu et al., "0/1 Adam", algorithm 1; microsoft/DeepSpeed, `onebit/zoadam.py`, for the
    order.
    """
    N, anchor, t = len(X), X[0], 0
    m, u, v, since = np.zeros_like(X), np.zeros_like(X), np.zeros_like(anchor), []
    while True:
        g = G(t, X)
        if t in T_v:
            v = beta2 * v + (1 - beta2) * g.mean(axis=0) ** 2
        m = beta1 * m + (1 - beta1) * g
        X = X - gammas[t] * m / (np.sqrt(v) + epsilon)
        u = u + gammas[t] * m
        since = [*since, gammas[t]]
        if t in T_u:
            mean = exchange.mean(u)
            anchor = anchor - mean / (np.sqrt(v) + epsilon)
            X = np.tile(anchor, (N, 1))
            m = np.tile(mean / sum(since), (N, 1)) if any(since) else m
            u, since = np.zeros_like(u), []
        t += 1
        yield {"params": X, "m": m, "u": u, "v": v, **exchange.errors}
