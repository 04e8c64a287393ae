r"""AdaComm: Wang and Joshi, 2019. $\hat H = \lceil \sqrt{\gamma_0 (F - F_{inf}) / (\gamma_t (F_0 -
F_{inf}))} H_0 \rceil$; the next H is $\hat H$, or $\lceil H / 2 \rceil$ if that is not less than H.
F is the mean of the losses of the workers' first steps after an average in which they participated.
If no message arrives, all continue from the last average, and the next round averages.
"""

from typing import Any

import numpy as np
import optax

from algorithms import adacomm, local_sgd, minibatch_sgd
from dsgd import Algorithm
from tests.methods.bits import Bits, all_reduce, period_end
from tests.methods.given import MOMENTUM, SGD, Case, Given, Rounds, Setting
from theory_checks.machinery.trajectories import ROUNDS


def recursion(given: Given, first: int, interval: int, minimum: float, changes: bool) -> Rounds:
    X, x, G, N, H = given.X, given.x, given.G, given.N, first
    due, decided, start, losses, known = H, 0, None, np.zeros(N), np.zeros(N, bool)

    def gamma(t: int) -> float:
        return changing(given.gamma, t) if changes else given.gamma

    for t in given.rounds:
        here, S, exchange = given.participates[t], given.contributes(t), given.nothing()
        losses, known = np.where(here & ~known, given.losses(t, X), losses), known | here
        X = X - gamma(t) * given.present(t) * G(t, X)
        if t + 1 >= due:
            exchange, known = given.all_reduce(t, given.model + given.word), known & ~here
            if S.any():
                x, F = X[S].mean(axis=0), losses[S].mean()
                start = F if start is None else start
                if t + 1 - decided >= interval:
                    ratio = (max(F, minimum) - minimum) / (start - minimum)
                    target = int(np.ceil(np.sqrt(gamma(0) / gamma(t + 1) * ratio) * first))
                    H, decided = max(target, 1) if target < H else -(-H // 2), t + 1
                due = t + 1 + H
            X = np.tile(x, (N, 1))
        decided_by = {"start": np.array(start or 0.0), "loss": losses}
        yield {"params": X, "period": np.array(H)} | decided_by | exchange


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, all_reduce(N, d + 1))


def changing(gamma: Any, t: Any) -> Any:
    """Returns the step size of round t. It grows, so that periods depend on it."""
    return gamma * (1 + t / 4) / 4


def with_schedule(given: Setting) -> Algorithm:
    def gammas(t: Any) -> Any:
        return changing(given.gamma, t)

    return adacomm(optax.sgd(gammas), 9, 4, minimum=-3.0, schedule=gammas)


LOSSES = {"start": "server.memory.start", "loss": "workers.memory.loss"}
CASES = {
    "": Case(
        with_schedule,
        lambda given: recursion(given, 9, 4, -3.0, True),
        symbols={**LOSSES, "period": "metrics.period"},
        length=4 * ROUNDS,
    ),
    "absent": Case(
        lambda given: adacomm(given.optimizer, 3, 4, minimum=-5.0),
        lambda given: recursion(given, 3, 4, -5.0, False),
        absent=True,
        symbols={**LOSSES, "period": "server.memory.period"},
    ),
}
EQUALS = {
    "before its first decision": (
        lambda: adacomm(MOMENTUM, 4, 10**6, minimum=-100.0),
        lambda: local_sgd(MOMENTUM, 4),
    ),
    "one step": (lambda: adacomm(SGD, 1, 1, minimum=-100.0), lambda: minibatch_sgd(SGD)),
}
