"""Power-of-choice around FedAvg: Cho, Wang and Joshi, 2022, section 3. Of the candidates, which
participate in the first round of a period, those with the largest losses take part.
"""

from functools import partial

import numpy as np

import algorithms
from algorithms import power_of_choice
from dsgd import network
from tests.methods.fed_avg import H
from tests.methods.given import SGD, Case, Given, Rounds, T, two_gradients
from tests.methods.q_fed_avg import losses

M = 5


def recursion(given: Given, exact: bool = True) -> Rounds:
    x, Y, step = given.x, given.X, given.step()
    chosen = np.zeros(given.N, bool)
    for t in given.rounds:
        sent = given.nothing()
        if t % H == 0 and given.participates[t].any():
            # a loss of each candidate, and the smallest that takes part
            sent = given.to_server(t, given.word, given.word)
            F = losses(given, t, x, 0.0) if exact else given.losses(t, np.tile(x, (given.N, 1)))
            candidates = np.flatnonzero(given.contributes(t))
            chosen = np.isin(np.arange(given.N), candidates[np.argsort(-F[candidates])][:M])
        among = given.participates[t] & chosen
        Y = Y + step(given.G(t, Y), among[:, None])
        if (t + 1) % H == 0:
            S = given.contributes(t) & chosen
            x = x + S @ (Y - x) / S.sum() if S.any() else x
            Y, step = np.tile(x, (given.N, 1)), given.step()
            sent = {"bits up": given.model * among, "bits down": given.model * among}
        yield {"params": Y, "server": x} | sent


CASES = {
    title: Case(
        lambda given, exact=title != "batches": power_of_choice(
            algorithms.fed_avg(given.optimizer, H, via=network.parameter_server), M, H, exact=exact
        ),
        partial(recursion, exact=title != "batches"),
        optimizer="momentum",
        absent=title == "absent",
        symbols={"server": "server.method.params"},
        place=partial(two_gradients, np.arange(T) % H == 0) if title == "absent" else None,
    )
    for title in ("", "batches", "absent")
}
EQUALS = {
    "all candidates participate": (
        lambda: power_of_choice(algorithms.fed_avg(SGD, 4), 6, 4),
        lambda: algorithms.fed_avg(SGD, 4),
    )
}
