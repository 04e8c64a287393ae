"""FedAvg: McMahan et al., 2017, algorithm 1; and the recursion of all methods with a step of
the server on the mean change of the clients' models.
"""

from collections.abc import Callable

import numpy as np

from algorithms import fed_avg, local_sgd
from tests.methods.bits import FLOAT, Bits, period_end
from tests.methods.given import SGD, Case, Given, Rounds

H = 3
INCLUSION = np.linspace(0.3, 0.9, 8)
# (x, Delta) -> the next x; some have memory
Outer = Callable[[np.ndarray, np.ndarray], np.ndarray]


def local_steps(
    given: Given,
    outer: Outer,
    exchange: Callable[[Given, int], dict],
    *,
    fresh: bool = True,
    proximal: float = 0.0,
    inclusion: np.ndarray | None = None,
    message: Callable[[Given, np.ndarray], np.ndarray] = lambda given, changes: changes,
) -> Rounds:
    r"""H local steps from x, $y_n \leftarrow y_n - \gamma (g_n(y_n) + \mu (y_n - x))$, then
    $x \leftarrow \mathrm{Outer}(x, \frac1N \sum_n (x - y_n))$ over messages that arrive.

    Args:
        given: see `Given`.
        outer: the step of the server.
        exchange: (given, t) -> the bits of the last round of a period.
        fresh: whether the local step's memory is empty after each synchronization.
        proximal: mu.
        inclusion: probabilities to participate; the sum of changes is divided by them and N.
        message: (given, changes `[N, d]`) -> the decoded messages.

    Source: Reddi et al., "Adaptive federated optimization", 2021, Algorithm 1.
    """
    x, Y, step = given.x, given.X, given.step()
    for t in given.rounds:
        Y = Y + step(given.G(t, Y) + proximal * (Y - x), given.present(t))
        if (t + 1) % H:
            yield {"params": Y, "server": x} | given.nothing()
            continue
        S = given.contributes(t)
        share = S / max(S.sum(), 1) if inclusion is None else S / (given.N * inclusion)
        x = outer(x, share @ message(given, x - Y)) if S.any() else x
        Y, step = np.tile(x, (given.N, 1)), given.step() if fresh else step
        yield {"params": Y, "server": x} | exchange(given, t)


def server_mean(given: Given, t: int) -> dict:
    """Returns the bits of a model up and one down."""
    return given.to_server(t, given.model, given.model)


def averaging(x: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Returns the mean of the models."""
    return x - delta


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, d * FLOAT)


CASES = {
    "": Case(
        lambda given: fed_avg(given.optimizer, H),
        lambda given: local_steps(given, averaging, server_mean),
        optimizer="adam",  # its moments start again in each period
        symbols={"server": "server.params"},
    ),
    "absent, unbiased": Case(
        lambda given: fed_avg(given.optimizer, H, inclusion=INCLUSION.tolist()),
        lambda given: local_steps(given, averaging, server_mean, inclusion=INCLUSION),
        absent=True,
        symbols={"server": "server.params"},
    ),
}
EQUALS = {
    "local SGD": (lambda: fed_avg(SGD, 4), lambda: local_sgd(SGD, 4)),
}
