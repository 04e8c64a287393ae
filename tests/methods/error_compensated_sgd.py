"""Error-compensated SGD (DoubleSqueeze): Liu and Zhang, (3.10) to (3.14), with N servers that hold
one part each, instead of the single server of the equations.
"""

import numpy as np

from algorithms import error_compensated_sgd
from dsgd import compressors
from tests.methods.bits import Bits, parts, signs
from tests.methods.compressors import (
    HALF,
    SHORT,
    SIGN,
    Parts,
    Q,
    clip,
    largest_half,
    mean_size_times_sign,
    parts_at,
)
from tests.methods.given import Case, Given, Rounds


def recursion(given: Given, up: Q, down: Q, whole: bool = False) -> Rounds:
    N, x, step = given.N, given.x, given.step()
    cutting = Parts((given.d,) if whole else given.layers, N)
    up, down = cutting.each(up), cutting.each(down)
    delta_server = np.zeros_like(cutting.shard(x))
    delta_worker = np.zeros((N, *delta_server.shape))
    for t in given.rounds:
        g = given.gradients_at(t, x)
        v_worker = np.array([cutting.shard(g[n]) + delta_worker[n] for n in range(N)])  # (3.10)
        sent = np.array([[up(v_worker[n][server]) for server in range(N)] for n in range(N)])
        delta_worker = v_worker - sent  # (3.11)
        v_server = np.mean(sent, axis=0) + delta_server  # (3.12)
        answer = np.array([down(v_server[server]) for server in range(N)])
        delta_server = v_server - answer  # (3.13)
        x = x + step(cutting.unshard(answer))  # (3.14)
        yield {
            "x": x,
            "delta_worker": cutting.unshard(delta_worker),
            "delta_server": cutting.unshard(delta_server),
        }


def bits(t: int, N: int, d: int) -> Bits:
    return parts(signs, N, d)


ERRORS = {
    "delta_worker": parts_at("workers.worker.error"),
    "delta_server": parts_at("workers.server.error"),
}
CASES = {
    "": Case(
        lambda given: error_compensated_sgd(given.optimizer, HALF, SHORT),
        lambda given: recursion(given, largest_half, clip),
        symbols=ERRORS,
    ),
    "whole model": Case(
        lambda given: error_compensated_sgd(
            given.optimizer,
            compressors.whole_model(SIGN),
            compressors.whole_model(compressors.identity),
        ),
        lambda given: recursion(given, mean_size_times_sign, lambda x: x, whole=True),
        optimizer="momentum",
        symbols=ERRORS,
    ),
}
