"""Model averaging: Liu and Zhang, section 2.1.2, "Model Aggregation"; local SGD with H = 1."""

from algorithms import model_averaging_sgd
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import Case
from tests.methods.local_sgd import recursion

APART = True


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, d)


CASES = {
    title: Case(
        lambda given: model_averaging_sgd(given.optimizer),
        lambda given: recursion(given, 1),
        optimizer=optimizer,  # each worker has its own state
        absent=title == "absent",
    )
    for title, optimizer in (("", "adam"), ("absent", "momentum"))
}
