"""Compressed differences of gradients, compared with their recursions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import optax

import algorithms
from algorithms import three_points
from dsgd.base import Algorithm, Compressor
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Symbols, on_server
from theory_checks.machinery.trajectories import LAYERS, N, Trajectory
from theory_checks.recursions import differences
from theory_checks.recursions.compressed import clipped, largest_half, packed
from theory_checks.recursions.decentralized import by_layers
from theory_checks.statements.recursions.shared import BITS, DOUBLE, HALF, SHORT

ZETA, P, CLIENTS = 4.0, 0.4, 4
# Half of the elements, as a compressor that the methods assume to be unbiased.
UNBIASED: Compressor = HALF._replace(omega=lambda d: 1.0, delta=None)
HALVES, CLIPS = by_layers(largest_half, LAYERS), by_layers(clipped, LAYERS)
_KEPT = [(-(-d // 2), d) for d in LAYERS]
MESSAGE = sum(k * DOUBLE + packed((d - 1).bit_length(), k) for k, d in _KEPT)
"""Bits of a message of half of the elements of each layer."""


def _seen(found: Trajectory, papers: Symbols) -> Symbols:
    states = found.states
    symbols = {**on_server(found, papers), "g": trajectories.rows(states.server.estimate, 1)}
    if "h" in papers:
        symbols["h"] = trajectories.rows(states.workers.estimate)
        symbols["y"] = trajectories.rows(states.workers.gradient)
    return symbols


def _points(C: differences.ThreePoint, inputs: Inputs) -> Iterator[Symbols]:
    return differences.three_point(inputs.x, inputs.G, N, inputs.step, C)


def _lazily(C: differences.ThreePoint, message: int, inputs: Inputs) -> Iterator[Symbols]:
    """Yields the rounds with the bits of the workers that send. (Those that do not keep h.)"""
    h = np.zeros_like(inputs.X)
    for symbols in _points(C, inputs):
        sends, h = np.any(symbols["h"] != h, axis=1), symbols["h"]
        yield {**symbols, "bits up": message * sends, "bits down": np.full(N, BITS)}


def _with_coins(inputs: Inputs) -> Iterator[Symbols]:
    return _points(differences.v5(HALVES, _whole(inputs)), inputs)


def _whole(inputs: Inputs) -> np.ndarray:
    """Returns the rounds in which all workers send whole gradients, bool `[T]`."""
    return np.all(inputs.found.sent == BITS, axis=1)


def _marina(r: int, noisy: bool, inputs: Inputs) -> Iterator[Symbols]:
    """Yields MARINA's rounds with the bits that follow from its coins; r clients send."""
    coins, drawn = _whole(inputs), inputs.found.sent > 0
    G = inputs.G if noisy else inputs.exact
    given = (N, inputs.step, HALVES, coins, drawn)
    for t, symbols in enumerate(differences.marina(inputs.x, G, inputs.exact, *given)):
        # Exactly r of the workers send a message, or all send their gradients.
        few = np.sort(inputs.found.sent[t])[::-1] == np.where(np.arange(N) < r, MESSAGE, 0)
        up = np.full(N, BITS) if coins[t] else np.where(few.all(), inputs.found.sent[t], -1)
        yield {**symbols, "bits up": up, "bits down": np.full(N, BITS)}


def _case(
    name: str,
    make: Callable[[optax.GradientTransformation], Algorithm],
    rounds: Callable[[Inputs], Iterator[Symbols]],
    reference: str = "Richtarik et al. 2022, 3PC",
    **more,
) -> Case:
    return Case(name, reference, lambda optimizer, of: make(optimizer), rounds, _seen, **more)


def _point(name: str, point: three_points.ThreePoint, C: differences.ThreePoint, **more) -> Case:
    return _case(
        name,
        lambda optimizer: algorithms.three_point(optimizer, point),
        partial(_points, C),
        **more,
    )


_LAG, _CLAG = differences.lag(ZETA), differences.clag(HALVES, ZETA)
_MARINA = {"reference": "Gorbunov et al. 2021", "length": 15}
CASES = (
    _case(
        "LAG",
        lambda optimizer: algorithms.lag(optimizer, ZETA),
        partial(_lazily, _LAG, BITS),
        "Chen et al. 2018; Richtarik et al. 2022, 3PC",
    ),
    _case(
        "CLAG",
        lambda optimizer: algorithms.clag(optimizer, HALF, ZETA),
        partial(_lazily, _CLAG, MESSAGE),
        optimizer="momentum",
    ),
    _point("3PC, EF21", three_points.ef21(HALF), differences.ef21(HALVES), optimizer="momentum"),
    _point("3PCv1", three_points.v1(HALF), differences.v1(HALVES)),
    _point("3PCv2", three_points.v2(SHORT, UNBIASED), differences.v2(CLIPS, HALVES)),
    _point("3PCv3", three_points.v3(HALF, three_points.lag(ZETA)), differences.v3(HALVES, _LAG)),
    _point("3PCv4", three_points.v4(HALF, SHORT), differences.v4(HALVES, CLIPS)),
    _case(
        "3PCv5",
        lambda optimizer: algorithms.three_point(optimizer, three_points.v5(UNBIASED, P)),
        _with_coins,
        length=15,
    ),
    _case(
        "MARINA",
        lambda optimizer: algorithms.marina(optimizer, UNBIASED, P),
        partial(_marina, N, False),
        optimizer="momentum",
        **_MARINA,
    ),
    _case(
        "PP-MARINA",
        lambda optimizer: algorithms.marina(optimizer, UNBIASED, P, clients=CLIENTS),
        partial(_marina, CLIENTS, False),
        **_MARINA,
    ),
    _case(
        "VR-MARINA",
        lambda optimizer: algorithms.vr_marina(optimizer, UNBIASED, P, clients=CLIENTS),
        partial(_marina, CLIENTS, True),
        **_MARINA,
    ),
)
