"""Random-walk SGD: Johansson et al., 2009, along the walk that the method draws."""

from functools import partial

import numpy as np

from algorithms import random_walk_sgd
from tests.methods import events
from tests.methods.asynchronous_sgd import LATENCY, LENGTH
from tests.methods.given import Case, Given, Rounds


def recursion(given: Given) -> Rounds:
    """Makes a step at each worker of the walk, with momentum, which travels with the model."""
    numbers, token = given.more, 2 * given.model
    ends = np.asarray(given.found.states.server.at)
    visits = [int(given.found.asked[0, 0]), *map(int, ends[1:])]
    links = given.adjacency() | np.eye(given.N, dtype=bool)
    x, step, clock = given.x, given.step(), 0.0
    for t in given.rounds:
        i, j = visits[t : t + 2]
        assert links[j, i]
        x = x + step(given.gradients_at(t, x)[i])
        clock += numbers.seconds(i, clock)
        if i != j:
            clock += LATENCY + token / min(numbers.up[i], numbers.down[j])
        up, down = (token * (np.arange(given.N) == n) * (i != j) for n in (i, j))
        yield {"x": x, "at": j, "asked": i, "clock": clock, "bits up": up, "bits down": down}


def bits(t: int, N: int, d: int) -> None:
    """They depend on whether the model moves; the case compares them."""


CASES = {
    "": Case(
        lambda given: random_walk_sgd(given.optimizer, given.graph),
        recursion,
        "irregular",
        "momentum",
        symbols={"asked": events.asked_worker, "clock": lambda found: found.clock},
        more=events.cluster,
        place=partial(events.place, latency=LATENCY),
        length=LENGTH,
    )
}
