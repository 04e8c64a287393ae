r"""DiLoCo with delayed steps, $x_{t+1} = \mathrm{Outer}(x_t, \bar\Delta_{t-1})$: Kale et al., 2025,
section 3.
"""

import numpy as np
import optax

from algorithms import delayed_diloco
from tests.methods.bits import Bits, all_reduce, period_end
from tests.methods.diloco import nesterov
from tests.methods.fed_avg import H, local_steps
from tests.methods.given import Case, Given, Rounds
from tests.methods.minibatch_sgd import all_reduced

ETA, MU = 0.6, 0.8


def recursion(given: Given) -> Rounds:
    step, last = nesterov(ETA, MU), np.zeros(given.d)

    def outer(x, delta):
        nonlocal last
        x, last = step(x, last), delta
        return x

    return local_steps(given, outer, all_reduced, fresh=False)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, all_reduce(N, d))


CASES = {
    "": Case(
        lambda given: delayed_diloco(
            given.optimizer, H, optax.sgd(ETA, momentum=MU, nesterov=True)
        ),
        recursion,
        optimizer="momentum",
        symbols={"server": "server.params"},
    )
}
