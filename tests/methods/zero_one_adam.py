"""0/1 Adam: Lu et al., 2022, algorithm 1; for the order, microsoft/DeepSpeed, `onebit/zoadam.py`:
its step uses the momentum and the second moment after their updates.
"""

from typing import Any

import numpy as np

from algorithms import one_bit_adam, zero_one_adam
from dsgd import compressors
from tests.methods.bits import Bits, all_reduce, parts, signs
from tests.methods.compressors import HALF, SIGN, Parts, Q, largest_half, parts_at
from tests.methods.compressors import mean_size_times_sign as sign
from tests.methods.given import GAMMA, SGD, Case, Given, Rounds, Setting
from tests.methods.one_bit_adam import DECAYS, Compensated

NUMBERS: dict[str, Any] = {"freeze": 6, "updates": 2, "stretch": 3, "longest": 4}


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


def learning_rate(gamma: Any, t: Any, changes: bool) -> Any:
    """Returns the step size of round t. If it changes, it is 0 in the first round, and decreases.

    A later round with step size 0 would send only errors. In parts of two elements these have equal
    magnitudes, so that rounding errors remain, and their signs decide about the next messages.
    """
    return gamma * (t > 0) / (1 + t / 4) if changes else gamma


def recursion(given: Given, C: Q, changes: bool) -> Rounds:
    X, anchor, since = given.X, given.x, []
    m, u, v = np.zeros_like(X), np.zeros_like(X), np.zeros_like(anchor)
    beta1, beta2, epsilon = DECAYS.values()
    exchange = Compensated(C, Parts(given.layers, given.N))
    freeze, updates, stretch, longest = NUMBERS.values()
    T_v, T_u = doubling(updates, freeze), stretching(freeze, stretch, longest, given.length)
    for t in given.rounds:
        g, gamma = given.G(t, X), learning_rate(given.gamma, t, changes)
        if t in T_v:
            v = beta2 * v + (1 - beta2) * g.mean(axis=0) ** 2
        m = beta1 * m + (1 - beta1) * g
        X, u, since = X - gamma * m / (np.sqrt(v) + epsilon), u + gamma * m, [*since, gamma]
        if t in T_u:
            mean = exchange.mean(u)
            anchor = anchor - mean / (np.sqrt(v) + epsilon)
            X = np.tile(anchor, (given.N, 1))
            m = np.tile(mean / sum(since), (given.N, 1)) if any(since) else m
            u, since = np.zeros_like(u), []
        yield {"params": X, "m": m, "u": u, "v": v} | exchange.errors


def bits(t: int, N: int, d: int) -> Bits:
    return parts(signs, N, d) + (all_reduce(N, d) if t < 4 else 0)


def _case(C: Any, q: Q, changes: bool) -> Case:
    def method(given: Setting) -> Any:
        gamma = given.gamma
        rate = (lambda t: learning_rate(gamma, t, True)) if changes else gamma
        return zero_one_adam(rate, compressor=C, **NUMBERS, **DECAYS)

    return Case(
        method,
        lambda given: recursion(given, q, changes),
        length=24,
        symbols={
            "v": "server.v",
            "e": parts_at("workers.memory.worker"),
            "e of servers": parts_at("workers.memory.server"),
        },
    )


CASES = {"": _case(SIGN, sign, False), "schedule": _case(HALF, largest_half, True)}
EQUALS = {
    "uncompressed": (
        lambda: zero_one_adam(
            GAMMA, 5, compressors.identity, updates=10**6, stretch=1, longest=1, epsilon=0.1
        ),
        lambda: one_bit_adam(SGD, 5, compressors.identity, epsilon=0.1),
    ),
}
