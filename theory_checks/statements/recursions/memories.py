"""Methods with memories of compressed messages, compared with their recursions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import optax

import algorithms
from dsgd import problems
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Symbols
from theory_checks.machinery.trajectories import LAYERS, N, Trajectory
from theory_checks.recursions import memories
from theory_checks.recursions.compressed import (
    Parts,
    largest_half,
    packed,
)
from theory_checks.recursions.proximal import soft_threshold
from theory_checks.statements.recursions.shared import BITS, DOUBLE, HALF

ALPHA, LAMBDA, NU, ETA, PENALTY = 0.3, 0.4, 0.7, 0.2, 0.3
WHOLE = Parts(LAYERS, 1)
TOP = WHOLE.each(largest_half)
UP = sum(DOUBLE * -(-d // 2) + packed((d - 1).bit_length(), -(-d // 2)) for d in LAYERS)
# A deterministic compressor that DIANA accepts; the recursion does not use that it is unbiased.
ACCEPTED = HALF._replace(omega=lambda d: 1.0)
GAMMAS = [0.1 / (t + 1) for t in range(trajectories.ROUNDS)]


def _seen(names: dict[str, str], found: Trajectory, papers: Symbols) -> Symbols:
    """Returns the model, the server's shift, and what workers keep, by the recursion's symbol."""
    server, kept = found.states.server, found.states.workers
    shift = {"h": server.server.shift} if server.server.shift is not None else {}
    symbols = {
        "x": trajectories.rows(server.shared.params, 1),
        **{symbol: trajectories.rows(value, 1) for symbol, value in shift.items()},
        **{symbol: trajectories.rows(getattr(kept, name)) for symbol, name in names.items()},
    }
    return {symbol: values for symbol, values in symbols.items() if symbol in papers}


def _case(
    name: str,
    reference: str,
    make: Callable[[optax.GradientTransformation], Any],
    rounds: Callable[[Inputs], Iterator[Symbols]],
    names: dict[str, str],
    **more: Any,
) -> Case:
    """Returns the case of a method through one server that replies uncompressed."""

    def with_bits(inputs):
        for symbols in rounds(inputs):
            yield {**symbols, "bits up": np.full(N, UP), "bits down": np.full(N, BITS)}

    return Case(
        name,
        reference,
        lambda optimizer, of: make(optimizer),
        with_bits,
        partial(_seen, names),
        **more,
    )


def _momenta(inputs: Inputs, double: bool) -> Iterator[Symbols]:
    for symbols in memories.ef21_sgdm(inputs.x, inputs.G, inputs.step, N, TOP, ETA, double):
        g_n, g, v_n = symbols.pop("g_n"), symbols.pop("g"), symbols.pop("v_n")
        yield {**symbols, "h_n": g_n, "h": g} | ({} if double else {"v_n": v_n})


def _blocks(inputs: Inputs) -> Iterator[Symbols]:
    return memories.dist_ef_sgd(inputs.x, inputs.G, N, TOP, GAMMAS, 0.8)


def _with_errors(found: Trajectory, papers: Symbols) -> Symbols:
    server, kept = found.states.server, found.states.workers
    return {
        "x": trajectories.rows(server.shared.params, 1),
        "e_n": trajectories.rows(kept.error),
        "e": trajectories.rows(server.server.error, 1),
    }


_SHIFTS = {"h_n": "shift"}
_PROX = soft_threshold(PENALTY)
CASES = (
    _case(
        "DIANA",
        "DIANA, algorithm 1",
        lambda optimizer: algorithms.diana(optimizer, ACCEPTED, ALPHA),
        lambda inputs: memories.ef_bv(inputs.x, inputs.G, inputs.step, N, TOP, ALPHA, 1.0),
        _SHIFTS,
        optimizer="momentum",
    ),
    _case(
        "DIANA, prox",
        "DIANA, algorithm 1",
        lambda optimizer: algorithms.diana(optimizer, ACCEPTED, ALPHA),
        lambda inputs: memories.ef_bv(
            inputs.x,
            inputs.G,
            inputs.step,
            N,
            TOP,
            ALPHA,
            1.0,
            lambda x: _PROX(x, inputs.gamma),
        ),
        _SHIFTS,
        hypotheses="noisy gradients; workers differ; l1",
        regularizer=problems.l1(PENALTY),
    ),
    _case(
        "EF-BV",
        "EF-BV, algorithm 1",
        lambda optimizer: algorithms.ef_bv(optimizer, HALF, LAMBDA, NU),
        lambda inputs: memories.ef_bv(inputs.x, inputs.G, inputs.step, N, TOP, LAMBDA, NU),
        _SHIFTS,
    ),
    _case(
        "EF21-SGDM",
        "EF21-SGDM, algorithm 1",
        lambda optimizer: algorithms.ef21_sgdm(optimizer, HALF, ETA),
        lambda inputs: _momenta(inputs, False),
        {"h_n": "shift", "v_n": "vector"},
    ),
    _case(
        "EF21-SGD2M",
        "EF21-SGDM, double momentum",
        lambda optimizer: algorithms.ef21_sgdm(optimizer, HALF, ETA, double=True),
        lambda inputs: _momenta(inputs, True),
        _SHIFTS,
    ),
    _case(
        "EControl",
        "EControl, algorithm 1",
        lambda optimizer: algorithms.econtrol(optimizer, HALF, ETA),
        lambda inputs: memories.econtrol(inputs.x, inputs.G, inputs.step, N, TOP, ETA),
        {"h_n": "shift", "e_n": "error"},
    ),
    Case(
        "dist-EF-blockSGD",
        "dist-EF-blockSGD, algorithms 1 and 3",
        lambda optimizer, of: algorithms.dist_ef_sgd(
            optax.sgd(lambda t: 0.1 / (t + 1), momentum=0.8, nesterov=True), HALF
        ),
        _blocks,
        _with_errors,
        "noisy gradients; workers differ; step sizes that decrease",
    ),
)
