"""Methods with messages of one bit per element, compared with their recursions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import algorithms
from dsgd import compressors
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Symbols, on_server, on_workers
from theory_checks.machinery.trajectories import LAYERS, D, N, Trajectory
from theory_checks.recursions import one_bit
from theory_checks.recursions.compressed import Parts, largest_half, mean_size_times_sign, packed
from theory_checks.statements.recursions.compressed import concatenate_parts
from theory_checks.statements.recursions.shared import HALF, SIGN

IN_LAYERS, WHOLE = Parts(LAYERS, N), Parts((D,), N)
DECAYS: dict[str, Any] = {"beta1": 0.8, "beta2": 0.9, "epsilon": 0.1}


def _voted(
    name: str,
    reference: str,
    make: Callable,
    betas: tuple[float, float],
    aggregate: Callable,
    width: int,
    **more: Any,
) -> Case:
    """Returns a case in which servers send `width` bits per element."""
    up, down = (np.full(N, sum(packed(bits, d) for d in LAYERS)) for bits in (1, width))

    def rounds(inputs):
        for symbols in one_bit.lion(inputs.x, inputs.G, inputs.step, N, *betas, aggregate):
            yield {**symbols, "bits up": up, "bits down": down}

    def seen(found, papers):
        return {**on_server(found, papers), "m": trajectories.rows(found.states.workers)}

    return Case(name, reference, lambda optimizer, of: make(optimizer), rounds, seen, **more)


def _errors(cutting: Parts, memory: Any) -> Symbols:
    return {
        "e": cutting.unshard(concatenate_parts(memory.worker)),
        "e of servers": cutting.unshard(concatenate_parts(memory.server)),
    }


def _one_bit(name: str, C: Any, c: Callable, cutting: Parts, **more: Any) -> Case:
    warm_up = 4

    def rounds(inputs):
        exchange = one_bit.Compensated(c, cutting)
        return one_bit.one_bit_adam(inputs.x, inputs.G, inputs.step, N, exchange, warm_up, **DECAYS)

    def seen(found: Trajectory, papers: Symbols) -> Symbols:
        server = found.states.server
        moments = {"m": trajectories.rows(server.m, 1), "v": trajectories.rows(server.v, 1)}
        return {
            **on_server(found, papers),
            **moments,
            **_errors(cutting, found.states.workers),
        }

    return Case(
        name,
        "1-bit Adam, algorithm 1",
        lambda optimizer, of: algorithms.one_bit_adam(optimizer, warm_up, C, **DECAYS),
        rounds,
        seen,
        f"noisy gradients; workers differ; {C.name}",
        length=12,
        **more,
    )


def _zero_one(name: str, C: Any, c: Callable, cutting: Parts, changing: bool) -> Case:
    """Returns a case whose step size is 0 in the first round, and then decreases, if `changing`.

    A later round with step size 0 would send only errors. In parts of two elements these have equal
    magnitudes, so that rounding errors remain, and their signs decide about the next messages.
    """
    numbers: dict[str, Any] = {"freeze": 6, "updates": 2, "stretch": 3, "longest": 4}
    length = 24

    def schedule(gamma: Any) -> Callable:
        return lambda t: gamma * (t > 0) / (1 + t / 4)

    def method(optimizer, of):
        gamma = schedule(of.learning_rate) if changing else of.learning_rate
        return algorithms.zero_one_adam(gamma, compressor=C, **numbers, **DECAYS)

    def rounds(inputs: Inputs):
        gammas = [schedule(inputs.gamma)(t) if changing else inputs.gamma for t in range(length)]
        T_v = one_bit.doubling(numbers["updates"], numbers["freeze"])
        T_u = one_bit.stretching(numbers["freeze"], numbers["stretch"], numbers["longest"], length)
        exchange = one_bit.Compensated(c, cutting)
        return one_bit.zero_one_adam(inputs.X, inputs.G, gammas, exchange, T_v, T_u, **DECAYS)

    def seen(found: Trajectory, papers: Symbols) -> Symbols:
        local = {symbol: papers[symbol] for symbol in ("params", "m", "u")}
        return {
            **on_workers(found, local),
            "v": trajectories.rows(found.states.server.v, 1),
            **_errors(cutting, found.states.workers.memory),
        }

    return Case(
        name,
        "0/1 Adam, algorithm 1",
        method,
        rounds,
        seen,
        f"noisy gradients; workers differ; {C.name}",
        length=length,
    )


_MAJORITY = one_bit.signs
CASES = (
    _voted(
        "Majority vote",
        "signSGD with majority vote, algorithm 1",
        partial(algorithms.majority_vote, momentum=0.8),
        (0.8, 0.8),
        _MAJORITY,
        1,
    ),
    _voted(
        "Distributed Lion, vote",
        "Distributed Lion, MaVo",
        partial(algorithms.distributed_lion, beta1=0.8, beta2=0.95),
        (0.8, 0.95),
        _MAJORITY,
        1,
        optimizer="momentum",
    ),
    _voted(
        "Distributed Lion, mean",
        "Distributed Lion, Avg",
        partial(algorithms.distributed_lion, aggregate="mean"),
        (0.9, 0.99),
        lambda sums: sums / N,
        3,
    ),
    _one_bit("1-bit Adam", SIGN, mean_size_times_sign, IN_LAYERS),
    _one_bit(
        "1-bit Adam, whole model",
        compressors.whole_model(SIGN),
        mean_size_times_sign,
        WHOLE,
        optimizer="momentum",
    ),
    _one_bit("1-bit Adam, uncompressed", compressors.identity, lambda z: z, IN_LAYERS),
    _zero_one("0/1 Adam", SIGN, mean_size_times_sign, IN_LAYERS, changing=False),
    _zero_one("0/1 Adam, schedule", HALF, largest_half, IN_LAYERS, changing=True),
)
