"""Synchronous EAMSGD: Zhang et al., 2015."""

from algorithms import eamsgd, easgd
from tests.methods.bits import FLOAT, Bits
from tests.methods.easgd import BETA, H, recursion
from tests.methods.given import SGD, Case

MU = 0.8


def bits(t: int, N: int, d: int) -> Bits:
    return 0 if (t + 1) % 2 else d * FLOAT


CASES = {
    title: Case(
        lambda given: eamsgd(given.optimizer, H, BETA, MU),
        lambda given: recursion(given, MU),
        absent=title == "absent",
        symbols={"x": "server", "velocity": "workers.optimizer.trace"},
    )
    for title in ("", "absent")
}
EQUALS = {
    "no momentum": (lambda: eamsgd(SGD, 4, 0.9, 0.0), lambda: easgd(SGD, 4, 0.9)),
}
