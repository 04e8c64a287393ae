"""Deep gradient compression: Lin, Han, Mao, Wang and Dally, 2018, section 3."""

import numpy as np
import optax

from algorithms import dgc, error_compensated_sgd, minibatch_sgd
from dsgd import compressors
from tests.methods.bits import Bits, tenth
from tests.methods.compressors import HALF, largest
from tests.methods.given import GAMMA, MOMENTUM, SGD, Case, Given, Rounds
from tests.methods.qsparse_local_sgd import CHUNKS, IDENTITY

BETA, THETA, STAGE = 0.7, 15.0, 5


def recursion(given: Given, nesterov: bool, masking: bool) -> Rounds:
    """Half of the elements in the warm-up, then a fifth; gradients are clipped to theta."""
    x, step, (u, v) = given.x, given.step(), np.zeros((2, given.N, given.d))
    for t in given.rounds:
        g, share = given.gradients_at(t, x), 2 if t < STAGE else 5
        lengths = np.sqrt(np.sum(g**2, axis=1, keepdims=True))
        g = g * np.minimum(1, THETA * given.N**-0.5 / lengths)
        u = BETA * (u + g) if nesterov else BETA * u + g
        v = v + u + g if nesterov else v + u
        sent = given.each(lambda part, share=share: largest(part, -(-len(part) // share)), v)
        x = x + step(sent.mean(axis=0))
        v, u = v - sent, np.where((sent != 0) & masking, 0, u)
        yield {"x": x, "u": u, "v": v}


def bits(t: int, N: int, d: int) -> Bits:
    return (N - 1) * tenth(d)


def _case(nesterov: bool, masking: bool) -> Case:
    return Case(
        lambda given: dgc(
            given.optimizer,
            compressors.top_k(0.2),
            BETA,
            nesterov=nesterov,
            factor_masking=masking,
            clip=THETA,
            warm_up=[HALF],
            stage=STAGE,
        ),
        lambda given: recursion(given, nesterov, masking),
        symbols={"u": "workers.momentum", "v": "workers.error"},
    )


CASES = {"": _case(False, True), "Nesterov, without factor masking": _case(True, False)}
EQUALS = {
    "all elements": (lambda: dgc(SGD, compressors.top_k(1.0), 0.5), lambda: minibatch_sgd(SGD)),
    "all elements, without masking": (
        lambda: dgc(SGD, compressors.identity, 0.5, factor_masking=False),
        lambda: minibatch_sgd(MOMENTUM),
    ),
    "all elements, Nesterov": (
        lambda: dgc(SGD, compressors.identity, 0.5, nesterov=True, factor_masking=False),
        lambda: minibatch_sgd(optax.sgd(GAMMA, 0.5, nesterov=True)),
    ),
    "no momentum": (
        lambda: dgc(SGD, CHUNKS, 0.0),
        lambda: error_compensated_sgd(SGD, CHUNKS, IDENTITY),
    ),
    "equal stages": (
        lambda: dgc(SGD, HALF, 0.5, warm_up=[HALF, HALF], stage=5),
        lambda: dgc(SGD, HALF, 0.5),
    ),
}
