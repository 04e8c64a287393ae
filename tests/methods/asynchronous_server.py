"""DC-ASGD-a: Zheng et al., 2017, (14): the weight is divided by the root of the mean square."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import asynchronous_server, optimizers
from dsgd import Algorithm
from tests.methods import events
from tests.methods.asynchronous_sgd import LATENCY, LENGTH, SYMBOLS, read, schedule
from tests.methods.given import Case, Given, Rounds, Setting

WEIGHT, DECAY, SERVERS = 0.5, 0.9, 2


class Compensated(NamedTuple):
    """A model, its optimizer's state, and the mean square of gradients."""

    params: Any
    optimizer: Any
    mean_square: Any


def method(given: Setting) -> Algorithm:
    def start(model, N):
        zeros = optax.tree.zeros_like(model.params)
        return Compensated(model.params, model.optimizer, zeros)

    def step(model, gradient, arrival, read):
        squares = jax.tree.map(
            lambda mean, g: DECAY * mean + (1 - DECAY) * g * g, model.mean_square, gradient
        )
        gradient = jax.tree.map(
            lambda g, mean, x, old: g + WEIGHT * g * g / jnp.sqrt(mean + 1e-7) * (x - old),
            *(gradient, squares, model.params, read),
        )
        plain = optimizers.Model(model.params, model.optimizer)
        return Compensated(*optimizers.step(given.optimizer, plain, gradient), squares)

    return asynchronous_server("dc_asgd_a", given.optimizer, step, start=start, servers=SERVERS)


def recursion(given: Given) -> Rounds:
    found, x, mean, step = schedule(given, SERVERS, "blocking"), [given.x], 0.0, given.step()
    for t in given.rounds:
        at, n = read(x, found.staleness[t]), found.worker[t]
        g = given.gradients_at(t, at)[n]
        mean = DECAY * mean + (1 - DECAY) * g**2
        x.append(x[t] + step(g + WEIGHT / np.sqrt(mean + 1e-7) * g**2 * (x[t] - at)))
        sent = np.where(np.arange(given.N) == n, given.model, 0)
        symbols = {"x": x[-1], "worker": n, "asked": n, "clock": found.clock[t]}
        yield symbols | {"bits up": sent, "bits down": sent}


CASES = {
    "": Case(
        method,
        recursion,
        symbols=SYMBOLS,
        more=events.cluster,
        place=partial(events.place, latency=LATENCY, convention="blocking"),
        length=LENGTH,
    )
}
