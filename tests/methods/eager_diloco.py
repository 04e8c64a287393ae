r"""DiLoCo with eager steps along $\bar\Delta_{t-1} + \frac1N (\Delta_{n,t} - \Delta_{n,t-1})$: Kale
et al., 2025, section 3.
"""

import numpy as np
import optax

from algorithms import eager_diloco
from tests.methods import delayed_diloco
from tests.methods.delayed_diloco import ETA, MU
from tests.methods.diloco import nesterov
from tests.methods.fed_avg import H
from tests.methods.given import Case, Given, Rounds


def recursion(given: Given) -> Rounds:
    X, Y, step = given.X, given.X, given.step()
    last, outer = np.zeros_like(X), nesterov(ETA, MU)
    for t in given.rounds:
        Y, sent = Y + step(given.G(t, Y)), given.nothing()
        if (t + 1) % H == 0:
            change = X - Y
            X = Y = outer(X, last.mean(axis=0) + (change - last) / given.N)
            last, sent = change, given.all_reduce(t, given.model)
        yield {"params": Y, "start": X} | sent


bits = delayed_diloco.bits
CASES = {
    "": Case(
        lambda given: eager_diloco(given.optimizer, H, optax.sgd(ETA, momentum=MU, nesterov=True)),
        recursion,
        optimizer="momentum",
    )
}
