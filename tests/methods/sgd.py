"""SGD on one machine, with the gradient of a drawn worker: Liu and Zhang, (1.10)."""

from algorithms import sgd
from tests.methods.bits import Bits
from tests.methods.events import asked_worker
from tests.methods.given import Case, Given, Rounds


def recursion(given: Given) -> Rounds:
    x, step = given.x, given.step()
    for t, n in enumerate(asked_worker(given.found)):
        x = x + step(given.gradients_at(t, x)[n])
        yield {"x": x} | given.nothing()


def bits(t: int, N: int, d: int) -> Bits:
    return 0


CASES = {"": Case(lambda given: sgd(given.optimizer), recursion, optimizer="adam")}
