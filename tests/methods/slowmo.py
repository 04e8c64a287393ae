"""SlowMo: Wang et al., 2020, algorithm 1."""

import numpy as np
import optax

from algorithms import local_sgd, minibatch_sgd, slowmo
from tests.methods.bits import Bits, all_reduce, period_end
from tests.methods.fed_avg import H, Outer, local_steps
from tests.methods.given import GAMMA, MOMENTUM, SGD, Case, Given, Rounds
from tests.methods.minibatch_sgd import all_reduced

ALPHA, BETA = 0.8, 0.6


def slow_momentum(gamma: float) -> Outer:
    r"""Returns the outer step $u \leftarrow \beta u + \frac1\gamma \Delta$, $x \leftarrow x -
    \alpha \gamma u$.
    """
    u = np.zeros(())

    def outer(x, delta):
        nonlocal u
        u = BETA * u + delta / gamma
        return x - ALPHA * gamma * u

    return outer


def recursion(given: Given) -> Rounds:
    return local_steps(given, slow_momentum(given.gamma), all_reduced, fresh=False)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, all_reduce(N, d))


CASES = {
    title: Case(
        lambda given: slowmo(given.optimizer, H, ALPHA, BETA),
        recursion,
        absent=title == "absent",
        symbols={"server": "server.params"},
    )
    for title in ("", "absent")
}
EQUALS = {
    "no slow momentum": (lambda: slowmo(MOMENTUM, 4, 1.0, 0.0), lambda: local_sgd(MOMENTUM, 4)),
    "one step": (
        lambda: slowmo(SGD, 1, 0.7, 0.6),
        lambda: minibatch_sgd(optax.sgd(0.7 * GAMMA, 0.6)),
    ),
}
