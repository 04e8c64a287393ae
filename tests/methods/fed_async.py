"""FedAsync: Xie, Koyejo and Gupta, 2019, algorithm 1."""

from collections.abc import Callable
from functools import partial

from algorithms import fed_async
from tests.methods.fed_buff import bits, local_case
from tests.methods.given import Given
from tests.methods.server_events import Rule

__all__ = ["bits"]
ALPHA, RHO, A, HINGE = 0.7, 0.3, 0.8, (3.0, 2)
DISCOUNTS: dict[str, tuple[dict, Callable[[int], float]]] = {
    "": ({"exponent": A}, lambda tau: (tau + 1) ** -A),
    "constant": ({"exponent": 0.0}, lambda tau: 1.0),
    "hinge": (
        {"hinge": HINGE},
        lambda tau: 1.0 if tau <= HINGE[1] else 1 / (HINGE[0] * (tau - HINGE[1]) + 1),
    ),
}


def rule(given: Given, discount: Callable[[int], float]) -> Rule:
    """The worker's model y is x_read - g."""

    def arrive(now):
        alpha = ALPHA * discount(now.delay)
        return (1 - alpha) * now.x + alpha * (now.read - now.g) - now.x

    return arrive


CASES = {
    title: local_case(
        lambda optimizer, H, options=options: fed_async(
            optimizer, H, ALPHA, penalty=RHO, **options
        ),
        partial(rule, discount=discount),
        RHO,
    )
    for title, (options, discount) in DISCOUNTS.items()
}
