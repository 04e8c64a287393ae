"""3PC: Richtarik et al., 2022. The estimates start at 0; the first y is the first gradient. The
recursion of `lag` and `clag`, too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import algorithms
from algorithms import three_point, three_points
from dsgd import compressors, network
from tests.methods.bits import Bits, largest, tenth, with_reply
from tests.methods.compressors import HALF, HALVES, SHORT, SHORTS, Compression, declare_unbiased
from tests.methods.given import SGD, Case, Given, Rounds

# As long as no worker sends, all steps are equal, so that with a square the two sides of the
# condition would be equal.
ZETA, P = 3.0, 0.4
ALL = Compression(compressors.identity, lambda x: x, lambda d, word: word * d)
Send = Callable[[Compression, np.ndarray], np.ndarray]  # compressor, vector -> decoded
# (send, t, x, h, y), vectors of one worker -> C_{h,y}(x)
Point = Callable[[Send, int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def recursion(given: Given, C: Point) -> Rounds:
    """An absent worker, or one with a lost message, keeps h and y; its h counts in the mean."""
    x, step, (h, y) = given.x, given.step(), np.zeros((2, given.N, given.d))
    for t in given.rounds:
        g, sent = given.gradients_at(t, x), np.zeros(given.N)
        last = y if t else g
        after = [C(_sender(given, sent, n), t, g[n], h[n], last[n]) for n in range(given.N)]
        S = given.contributes(t)[:, None]
        h, y = np.where(S, after, h), np.where(S, g, y)
        x = x + step(h.mean(axis=0), given.participates[t].any())
        symbols = {"x": x, "estimate": h, "gradient": y, "mean estimate": h.mean(axis=0)}
        yield symbols | given.to_server(t, sent, given.model)


def _sender(given: Given, sent: np.ndarray, n: int) -> Send:
    """Returns the function that sends worker n's messages, and adds their bits to sent[n]."""

    def send(C, v):
        sent[n] += C.bits(given)
        return C(given, v[None])[0]

    return send


def ef21(send, t, x, h, y):
    return h + send(HALVES, x - h)


def lag(send, t, x, h, y):
    return h + send(ALL, x - h) if np.sum((x - h) ** 2) > ZETA * np.sum((x - y) ** 2) else h


def clag(send, t, x, h, y):
    return h + send(HALVES, x - h) if np.sum((x - h) ** 2) > ZETA * np.sum((x - y) ** 2) else h


def v1(send, t, x, h, y):
    return h + send(ALL, y - h) + send(HALVES, x - y)


def v2(send, t, x, h, y):
    b = h + send(HALVES, x - y)
    return b + send(SHORTS, x - b)


def v3(send, t, x, h, y):
    b = lag(send, t, x, h, y)
    return b + send(HALVES, x - b)


def v4(send, t, x, h, y):
    b = h + send(HALVES, x - h)
    return b + send(SHORTS, x - b)


def v5(given: Given) -> Point:
    """The rounds in which all workers send whole gradients are the method's."""
    coins = np.all(given.found.sent == given.model, axis=1)

    def C(send, t, x, h, y):
        return h + (send(ALL, x - h) if coins[t] else send(HALVES, x - y))

    return C


def bits(t: int, N: int, d: int) -> Bits:
    return with_reply(tenth(d) + largest(-(-d // 4), d), d)


SYMBOLS = {"mean estimate": "server.estimate"}


def _case(point: three_points.ThreePoint, C: Callable[[Given], Point], **more: Any) -> Case:
    return Case(
        lambda given: three_point(given.optimizer, point),
        lambda given: recursion(given, C(given)),
        symbols=SYMBOLS,
        **more,
    )


V3 = three_points.v3(HALF, three_points.lag(ZETA))
CASES = {
    "": _case(three_points.ef21(HALF), lambda given: ef21, optimizer="momentum"),
    "v1": _case(three_points.v1(HALF), lambda given: v1),
    "v2": _case(three_points.v2(SHORT, declare_unbiased(HALF)), lambda given: v2),
    "v3": _case(V3, lambda given: v3),
    "v3, absent": _case(V3, lambda given: v3, optimizer="momentum", absent=True),
    "v4": _case(three_points.v4(HALF, SHORT), lambda given: v4),
    "v5": _case(three_points.v5(declare_unbiased(HALF), P), v5, length=15),
}
EQUALS = {
    "EF21": (
        lambda: three_point(SGD, three_points.ef21(HALF)),
        lambda: algorithms.ef21(SGD, HALF, None, via=network.star),
    ),
}
