"""FedNova with momentum of clients and server: Wang et al., 2020."""

import jax.numpy as jnp
import numpy as np
import optax

from algorithms import fed_avg, fed_avgm, fed_nova, with_local_work
from dsgd import Algorithm
from dsgd.base import LocalWork
from tests.methods.bits import FLOAT, Bits, period_end
from tests.methods.fed_avg import H
from tests.methods.given import SGD, Case, Given, Rounds, Setting

RHO, BETA = 0.9, 0.4
# of the accumulated weights of the gradients of k steps, k = 0, ..., H
LENGTHS = np.cumsum([(1 - RHO**k) / (1 - RHO) for k in range(H + 1)])
TAU = np.arange(6) % (H + 1)  # client n computes in the first TAU[n] rounds of a period


def recursion(given: Given) -> Rounds:
    """Yields the rounds. If all clients participate, they make different numbers of steps."""
    x, Y, step, m = given.x, given.X, given.step(), np.zeros(given.d)
    tau = np.zeros(given.N, int)
    for t in given.rounds:
        here, g = given.present(t), given.exact(t, Y)
        if given.found is not None:  # one micro-batch
            here, g = here & (t % H < TAU)[:, None], g + given.found.noise[t, :, 0]
        Y, tau, sent = Y + step(g, here), tau + here[:, 0], given.nothing()
        if (t + 1) % H == 0:
            S = given.contributes(t) & (tau > 0)
            if S.any():
                lengths = given.gamma * LENGTHS[tau[S]]
                m = BETA * m + lengths.mean() * ((x - Y)[S] / lengths[:, None]).mean(axis=0)
                x = x - m
            Y, step, tau = np.tile(x, (given.N, 1)), given.step(), np.zeros_like(tau)
            sent = given.to_server(t, *[given.model + 2 * given.word] * 2)
        yield {"params": Y, "server": x} | sent


def method(given: Setting) -> Algorithm:
    return fed_nova(given.optimizer, H, optax.sgd(1.0, momentum=BETA))


def some_steps(state, round) -> LocalWork:
    computes = (round.step % H < TAU)[:, None]
    return LocalWork(computes, jnp.ones(computes.shape))


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, (d + 2) * FLOAT)  # a change, its scale, and whether there is one


SYMBOLS = {"server": "server.params"}
CASES = {
    "": Case(
        lambda given: with_local_work(method(given), some_steps),
        recursion,
        optimizer="momentum",
        symbols=SYMBOLS,
    ),
    "absent": Case(method, recursion, optimizer="momentum", absent=True, symbols=SYMBOLS),
}
EQUALS = {
    "server momentum": (
        lambda: fed_nova(SGD, 4, optax.sgd(0.7, 0.6)),
        lambda: fed_avgm(SGD, 4, 0.7, 0.6),
    ),
    "equal steps": (lambda: fed_nova(SGD, 3), lambda: fed_avg(SGD, 3)),
}
