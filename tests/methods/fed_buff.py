"""FedBuff: Nguyen et al., 2022, algorithm 1."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import optax

from algorithms import asynchronous_sgd, fed_buff
from dsgd import Algorithm
from tests.methods import steps
from tests.methods.given import GAMMA, SGD, Given, Setting
from tests.methods.server_events import Local, Options, Order, Rule, server_case

H, K, EXPONENT, ETA, INNER = (2, 3, 4, 2, 3, 5), 3, 0.75, 0.6, 0.07


def bits(t: int, N: int, d: int) -> None:
    """They depend on the worker's local run; the cases compare them."""


def local(given: Given, pull: float = 0.0) -> Local:
    return Local(partial(steps.momentum, INNER), H, pull)


def rule(given: Given) -> Rule:
    """The list of the changes since the server's last step."""
    outer, buffer = steps.momentum(ETA), list[np.ndarray]()

    def arrive(now):
        buffer.append(now.g / (1 + now.delay) ** EXPONENT)
        if len(buffer) < K:
            return None
        change = outer(np.mean(buffer, axis=0))
        buffer.clear()
        return change

    return arrive


def ordered(given: Given) -> tuple[Rule, Order]:
    """The rule, and the client that the run has drawn among those that wait."""
    waiting = given.found.states.server.events.waiting

    def order(now, jobs):
        own = [j for j, job in enumerate(jobs) if job.waiting and not waiting[now.t + 1, j]]
        assert len(own) == 1
        return {own[0]: own[0]}

    return rule(given), order


def local_case(
    make: Callable[..., Algorithm],
    rule: Callable[[Given], Any],
    pull: float = 0.0,
    **options: Any,
) -> Any:
    """Returns the case of a server whose workers make local steps with momentum."""

    def build(given: Setting) -> Algorithm:
        return make(optax.sgd(INNER, momentum=0.9), H)

    place = Options(**options)
    return server_case(build, rule, local=partial(local, pull=pull), options=place, length=90)


def fed_buff_with(*args: Any, **options: Any) -> Callable[..., Algorithm]:
    return lambda optimizer, H: fed_buff(optimizer, H, *args, **options)


CASES = {
    "": local_case(fed_buff_with(K, optax.sgd(ETA, momentum=0.9), exponent=EXPONENT), rule),
    "two clients at a time": local_case(
        fed_buff_with(K, optax.sgd(ETA, momentum=0.9), exponent=EXPONENT, concurrency=2),
        ordered,
        concurrency=2,
    ),
}
EQUALS = {
    "one change of one step": (
        lambda: fed_buff(SGD, 1, 1, exponent=0.0),
        lambda: asynchronous_sgd(SGD),
    ),
    "one change of one step, with momentum of the server": (
        lambda: fed_buff(optax.sgd(GAMMA), 1, 1, optax.sgd(0.5, momentum=0.5), exponent=0.0),
        lambda: asynchronous_sgd(optax.sgd(0.5 * GAMMA, momentum=0.5)),
    ),
}
