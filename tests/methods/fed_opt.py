"""FedOpt, FedAvg with an optimizer at the server: Reddi et al., 2021, algorithm 1; and the adaptive
steps of algorithm 2.
"""

from collections.abc import Callable

import numpy as np
import optax

from algorithms import fed_opt
from dsgd import Algorithm
from tests.methods import steps
from tests.methods.fed_avg import H, Outer, local_steps, server_mean
from tests.methods.given import Case, Setting


def adaptive(kind: str, eta: float, beta1: float, beta2: float, tau: float) -> Outer:
    r"""Returns the step $m \leftarrow \beta_1 m + (1 - \beta_1) \Delta$, $x \leftarrow x - \eta m /
    (\sqrt v + \tau)$, from $m = 0$ and $v = \tau^2$.

    Args:
        kind: "adagrad", "yogi" or "adam", which determines v.
    """
    m, v = np.zeros(()), np.array(tau**2)

    def outer(x, delta):
        nonlocal m, v
        m = beta1 * m + (1 - beta1) * delta
        v = {
            "adagrad": v + delta**2,
            "yogi": v - (1 - beta2) * delta**2 * np.sign(v - delta**2),
            "adam": beta2 * v + (1 - beta2) * delta**2,
        }[kind]
        return x - eta * m / (np.sqrt(v) + tau)

    return outer


def adam(eta: float) -> Outer:
    """Returns the step of Adam with corrected moments."""
    step = steps.adam(eta)
    return lambda x, delta: x + step(delta)


def cases(
    make: Callable[[Setting], Algorithm], outer: Callable[[], Outer], proximal: float = 0.0
) -> dict[str, Case]:
    """Returns the cases of a method with a step of the server: all clients, and some."""

    def recursion(given):
        return local_steps(given, outer(), server_mean, proximal=proximal)

    where = {"server": "server.params"}
    return {
        title: Case(make, recursion, optimizer="momentum", absent=title == "absent", symbols=where)
        for title in ("", "absent")
    }


CASES = cases(lambda given: fed_opt(given.optimizer, H, optax.adam(0.2)), lambda: adam(0.2))
