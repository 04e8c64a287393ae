"""FedPer: Arivazhagan et al., 2019, algorithms 1 and 2; and the recursion of methods of which some
elements stay with the client.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from algorithms import fed_avg, fed_per
from dsgd import Algorithm
from tests.methods.bits import FLOAT, Bits, period_end
from tests.methods.given import SGD, Case, Given, Rounds, personal
from theory_checks.machinery.trajectories import LAYERS

H = 3
HEAD = {"biases": True, "weights": False}  # of the two layers of the trajectories
HEAD_ELEMENTS = np.arange(sum(LAYERS)) < LAYERS[0]

# (given, t, number of own steps in the period [N, 1]) -> which elements of a client move
Moves = Callable[[Given, int, np.ndarray], Any]


def all_move(given: Given, t: int, steps: np.ndarray) -> np.ndarray:
    return given.present(t)


def local_leaves(given: Given, local: np.ndarray, moves: Moves = all_move) -> Rounds:
    """Local steps on models `[N, d]`, of which the elements that are not local are averaged."""
    x, Y, step, steps = given.x, given.X, given.step(), np.zeros((given.N, 1))
    for t in given.rounds:
        Y = Y + step(given.G(t, Y), moves(given, t, steps))
        steps, sent = steps + given.present(t), given.nothing()
        if (t + 1) % H == 0:
            x = given.mean(t, Y) if given.contributes(t).any() else x
            Y, step, steps = np.where(local, Y, x), given.step(), np.zeros_like(steps)
            if not local.all():
                bits = given.word * int((~local).sum())
                sent = given.to_server(t, bits, bits)
        yield {"params": Y} | sent


def cases(make: Callable[[Any, Any], Algorithm], moves: Moves = all_move) -> dict[str, Case]:
    """Returns the cases of a method: some elements are local, and with absent workers, whose models
    have one leaf, all of them.

    Args:
        make: (optimizer, local) -> the method.
        moves: as in `local_leaves`.
    """

    def case(local: Any, elements: np.ndarray, absent: bool = False) -> Case:
        return Case(
            lambda given: make(given.optimizer, local),
            lambda given: local_leaves(given, elements, moves),
            optimizer="momentum",
            absent=absent,
            symbols={"params": personal(make(SGD, local))},
        )

    return {"": case(HEAD, HEAD_ELEMENTS), "absent": case(True, np.array([True]), absent=True)}


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, d * FLOAT)


CASES = cases(lambda optimizer, local: fed_per(optimizer, H, local))
EQUALS = {
    "no local leaves": (
        lambda: fed_per(SGD, 4, lambda params: jax.tree.map(lambda leaf: False, params)),
        lambda: fed_avg(SGD, 4),
    ),
}
