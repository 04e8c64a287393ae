"""LT-ADMM-VR: Ren et al., 2025. The noise of the quadratics' gradients does not depend on the
model, so that the recursion is that of `lt_admm` with exact gradients.
"""

from algorithms import lt_admm_vr
from tests.methods import lt_admm
from tests.methods.bits import Bits
from tests.methods.given import Case, Given, Rounds
from tests.methods.lt_admm import BETA, RHO, TAU

CANCELS = True  # differences of two gradients of a draw have no noise on quadratics

APART = True


def recursion(given: Given) -> Rounds:
    before = snapshot = given.X
    for t, symbols in enumerate(lt_admm.recursion(given, given.exact)):
        snapshot = snapshot if t % TAU else before
        before = symbols["params"]
        yield symbols | {"snapshot": snapshot}


def bits(t: int, N: int, d: int) -> Bits:
    return lt_admm.bits(t, N, d)


CASES = {
    "": Case(
        lambda given: lt_admm_vr(
            given.optimizer, given.graph, TAU, penalty=RHO, correction_step=BETA
        ),
        recursion,
        "star",
        symbols={
            **{name: f"workers.inner.{name}" for name in ("params", "z", "correction")},
            "snapshot": lambda found: found.states.workers.memory[0],
        },
    )
}
