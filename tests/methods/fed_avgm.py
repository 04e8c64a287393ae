"""FedAvgM, FedAvg with momentum at the server: Hsu et al., 2019."""

import numpy as np

import algorithms
from algorithms import fed_avgm, slowmo
from tests.methods import fed_avg
from tests.methods.fed_avg import H, Outer
from tests.methods.fed_opt import cases
from tests.methods.given import SGD


def block_momentum(zeta: float, beta: float) -> Outer:
    r"""Returns the step of BMUF with classical block momentum: $D \leftarrow \beta D + \zeta (\bar
    y - x)$, $x \leftarrow x + D$ (Chen and Huo, 2016).
    """
    change = np.zeros(())

    def outer(x, delta):
        nonlocal change
        change = beta * change - zeta * delta
        return x + change

    return outer


bits = fed_avg.bits
CASES = cases(
    lambda given: fed_avgm(given.optimizer, H, 0.7, 0.6), lambda: block_momentum(0.7, 0.6)
)
EQUALS = {
    "no momentum": (lambda: fed_avgm(SGD, 4, 1.0, 0.0), lambda: algorithms.fed_avg(SGD, 4)),
    "SlowMo": (lambda: fed_avgm(SGD, 4, 0.7, 0.6), lambda: slowmo(SGD, 4, 0.7, 0.6)),
}
