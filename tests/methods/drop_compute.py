"""DropCompute: Giladi et al., 2023, algorithm 1; of local SGD, appendix B.3. Seconds are given by a
table; many micro-batches end exactly at the threshold.
"""

from typing import Any, NamedTuple

import numpy as np

from algorithms import drop_compute, local_sgd, minibatch_sgd
from tests.methods.given import Case, Given, Rounds
from theory_checks.machinery.batch_sizes import simulate_worker
from theory_checks.machinery.rounds import Timetable
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import ROUNDS, N

M, H = 4, 3


class Numbers(NamedTuple):
    """Duration of each micro-batch in seconds, `[T, N, M]`, and tau of one round."""

    seconds: Any
    threshold: Any


def numbers(draws: Draws) -> Numbers:
    """Draws multiples of an eighth of a second, which float32 adds exactly; their sums are of the
    order of the threshold.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    return Numbers(rng.integers(1, 9, (ROUNDS, N, M)) / 8, np.float32(draws.integer(6, 24) / 8))


def recursion(
    given: Given,
    stop: str,
    correction: str | float = "none",
    period: int = 1,
    resample_dropped: bool = False,
) -> Rounds:
    """Yields the rounds of mini-batch SGD, or of local SGD with this period, in which a worker that
    has computed at least one micro-batch makes a step. Arguments are those of the method.
    """
    X, step, tau = given.X, given.step(), period * float(given.more.threshold)
    drawn, spent, noise = np.zeros(given.N, int), np.zeros(given.N), given.found.noise
    for t in given.rounds:
        worked = [
            simulate_worker(s, tau, stop, spent[n]) for n, s in enumerate(given.more.seconds[t])
        ]
        counts, seconds = map(np.array, zip(*worked, strict=True))
        g = counts[:, None] * given.exact(t, X)
        for n, count in enumerate(counts):
            for m in range(count):
                turn, draw = divmod(drawn[n] + m, M) if resample_dropped else (t, m)
                g[n] += noise[turn, n, draw]
        if isinstance(correction, str):
            divisor = {"none": M, "stochastic": counts.mean(), "local": np.maximum(counts, 1)}
            g = (g.T / divisor[correction]).T if counts.any() else g
        else:
            g = correction * g / M
        drawn = drawn + counts
        if period == 1:
            X = X + step(np.tile(g.mean(axis=0), (given.N, 1)))
            symbols = {"x": X[0]}
        else:
            X, spent = X + step(g, (counts > 0)[:, None]), spent + seconds
            if (t + 1) % period == 0:
                X, spent = np.tile(X.mean(axis=0), (given.N, 1)), np.zeros(given.N)
            symbols = {"params": X, "spent": spent}
        symbols |= {"seconds": seconds, "dropped": 1 - counts.sum() / (given.N * M)}
        yield symbols | ({"drawn": drawn} if resample_dropped else {})


def case(optimizer: str, **rule: Any) -> Case:
    period = rule.get("period", 1)

    def make(given):
        method = minibatch_sgd(given.optimizer)
        method = local_sgd(given.optimizer, period) if period > 1 else method
        return drop_compute(method, period * given.more.threshold, M, **rule)

    return Case(
        make,
        lambda given: recursion(given, **rule),
        optimizer=optimizer,
        more=numbers,
        place=lambda of: Timetable(of.more.seconds),
        symbols={
            "x": "server.method.params",
            "seconds": lambda found: found.compute,
            "dropped": "metrics.dropped",
        },
    )


CASES = {
    "": case("momentum", stop="preempt"),
    "stochastic": case("adam", stop="between", correction="stochastic"),
    "local": case("momentum", stop="between", correction="local", period=H),
    "local, redrawn": case(
        "plain", stop="preempt", correction=1.25, period=H, resample_dropped=True
    ),
}
