"""VR-MARINA with clients: Gorbunov et al., 2021; clients without replacement."""

from algorithms import gradient_descent, vr_marina
from dsgd import compressors
from tests.methods import marina
from tests.methods.given import SGD, Case
from tests.methods.marina import CLIENTS, P, Q

bits = marina.bits
CASES = {
    "": Case(
        lambda given: vr_marina(given.optimizer, Q, P, clients=CLIENTS),
        lambda given: marina.recursion(given, given.G, CLIENTS),
        length=15,
    ),
}
EQUALS = {
    "identity": (lambda: vr_marina(SGD, compressors.identity, 0.3), lambda: gradient_descent(SGD)),
}
