r"""NoLoCo, $v_n \leftarrow \alpha v_n + \eta \frac12 (D_n + D_m) + \eta_c (\frac12 (\phi_n +
\phi_m) - \phi_n)$, $\phi_n \leftarrow \phi_n + v_n$, with the partner m of an exchange: Kolehmainen
et al., 2025. A worker that does not participate in an exchange continues from its model.
"""

import numpy as np

from algorithms import local_sgd, noloco
from dsgd import Algorithm
from tests.methods import graphs
from tests.methods.bits import FLOAT, Bits, bits_of_some, period_end
from tests.methods.fed_avg import H
from tests.methods.given import MOMENTUM, Case, Given, Rounds, Setting

APART = True
BETA, ETA, CONSENSUS = 0.8, 0.6, 0.35


def recursion(given: Given) -> Rounds:
    Y, phi, v, step = given.X, given.X, np.zeros_like(given.X), given.step()
    for t in given.rounds:
        here = given.present(t)
        Y, sent = Y + step(given.G(t, Y), here), given.nothing()
        if (t + 1) % H == 0:
            W = given.W(t, t // H)
            after = BETA * v + ETA * W @ (Y - phi) + CONSENSUS * (W @ phi - phi)
            v, phi = np.where(here, after, v), np.where(here, phi + after, phi)
            Y, sent = np.where(here, phi, Y), given.to_neighbours(t, 2 * given.model, t // H)
        yield {"params": Y, "slow": phi, "momentum": v} | sent


def method(given: Setting) -> Algorithm:
    numbers = {"outer_step": ETA, "consensus_step": CONSENSUS, "momentum": BETA}
    return noloco(given.optimizer, given.graph, H, **numbers)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, bits_of_some(N // 2 * 2, 2 * d * FLOAT, N))


CASES = {
    "": Case(method, recursion, "matchings", "momentum"),
    "absent": Case(method, recursion, "matchings", "momentum", absent=True),
    "absent, ring": Case(method, recursion, "ring", absent=True),
}
PAIRS = graphs.topology("matchings", 6)
EQUALS = {
    "full steps": (
        lambda: noloco(MOMENTUM, PAIRS, 4, outer_step=1.0, consensus_step=1.0, momentum=0.0),
        lambda: local_sgd(MOMENTUM, 4, PAIRS),
    ),
}
