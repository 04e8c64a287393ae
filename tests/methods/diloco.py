"""DiLoCo: Douillard et al., 2023, algorithm 1."""

import numpy as np
import optax

from algorithms import diloco, local_sgd, minibatch_sgd
from tests.methods.bits import Bits, all_reduce, period_end
from tests.methods.fed_avg import H, Outer, local_steps
from tests.methods.given import GAMMA, MOMENTUM, SGD, Case, Given, Rounds
from tests.methods.minibatch_sgd import all_reduced


def nesterov(eta: float, mu: float) -> Outer:
    r"""Returns the outer step $u \leftarrow \mu u + \Delta$, $x \leftarrow x - \eta (\Delta + \mu
    u)$.
    """
    u = np.zeros(())

    def outer(x, delta):
        nonlocal u
        u = mu * u + delta
        return x - eta * (delta + mu * u)

    return outer


def recursion(given: Given, eta: float = 0.7, mu: float = 0.9) -> Rounds:
    return local_steps(given, nesterov(eta, mu), all_reduced, fresh=False)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, all_reduce(N, d))


CASES = {
    "": Case(
        lambda given: diloco(given.optimizer, H, optax.sgd(0.6, momentum=0.8, nesterov=True)),
        lambda given: recursion(given, 0.6, 0.8),
        optimizer="adam",  # its moments are local, and not reset
        symbols={"server": "server.params"},
    ),
    "absent": Case(
        lambda given: diloco(given.optimizer, H),
        recursion,
        optimizer="momentum",
        absent=True,
        symbols={"server": "server.params"},
    ),
}
EQUALS = {
    "no outer momentum": (
        lambda: diloco(MOMENTUM, 4, optax.sgd(1.0)),
        lambda: local_sgd(MOMENTUM, 4),
    ),
    "one step": (
        lambda: diloco(SGD, 1, optax.sgd(0.7, 0.9, nesterov=True)),
        lambda: minibatch_sgd(optax.sgd(0.7 * GAMMA, 0.9, nesterov=True)),
    ),
}
