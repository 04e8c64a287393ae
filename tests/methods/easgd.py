"""Synchronous EASGD: Zhang et al., 2015, (5) and (6); with momentum, EAMSGD of the same paper."""

import numpy as np

from algorithms import easgd
from tests.methods.bits import FLOAT, Bits
from tests.methods.fed_avg import server_mean
from tests.methods.given import Case, Given, Rounds

H, BETA = 2, 0.6


def recursion(given: Given, mu: float = 0.0) -> Rounds:
    """Yields the rounds. Workers with lost messages are not moved, so that the sum of models
    and center is preserved.
    """
    X, center, v, step = given.X, given.x, np.zeros_like(given.X), given.step()
    for t in given.rounds:
        here, exchange = given.present(t), given.nothing()
        v = np.where(here, mu * v + step(given.G(t, X + mu * v), here), v)
        pull = np.zeros_like(X)
        if (t + 1) % H == 0:
            pull = BETA / given.N * given.contributes(t)[:, None] * (X - center)
            exchange = server_mean(given, t)
        X, center = X + here * v - pull, center + pull.sum(axis=0)
        velocity = {"velocity": v} if mu else {}
        yield {"params": X, "x": center} | velocity | exchange


def bits(t: int, N: int, d: int) -> Bits:
    return 0 if (t + 1) % 2 else d * FLOAT


CASES = {
    title: Case(
        lambda given: easgd(given.optimizer, H, BETA),
        recursion,
        optimizer="momentum",
        absent=title == "absent",
        symbols={"x": "server"},
    )
    for title in ("", "absent")
}
