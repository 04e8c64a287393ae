"""Mini-batch SGD with one server: Liu and Zhang, section 2.1.2, "Global Model Replica"."""

from algorithms import parameter_server_sgd
from tests.methods.bits import FLOAT, Bits
from tests.methods.fed_avg import server_mean
from tests.methods.given import Case
from tests.methods.minibatch_sgd import recursion


def bits(t: int, N: int, d: int) -> Bits:
    return d * FLOAT


CASES = {
    title: Case(
        lambda given: parameter_server_sgd(given.optimizer),
        lambda given: recursion(given, server_mean),
        optimizer=optimizer,
        absent=title == "absent",
    )
    for title, optimizer in (("", "adam"), ("absent", "momentum"))
}
