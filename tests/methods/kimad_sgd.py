"""Kimad and, with allocations of its dynamic program, Kimad+: Xin et al., 2023, algorithms 1, 3 and
4. A table by second, worker and direction gives the bandwidths, which monitors report exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from algorithms import kimad as module
from algorithms import kimad_sgd
from dsgd import clusters
from tests.methods.bits import largest as message
from tests.methods.bits import packed_bits
from tests.methods.compressors import Q, largest
from tests.methods.given import Case, Given, Rounds
from tests.methods.steps import Step
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import D, N


class Sent(NamedTuple):
    """A message.

    Args:
        seen: the decoded vector.
        bits: size of the message.
        choices: the compressor of each layer.
        error: squared norm of the difference to the vector.
    """

    seen: np.ndarray
    bits: int
    choices: tuple[int, ...]
    error: float


class Round(NamedTuple):
    """Bits sent in a round: of each worker's message, and of the server's."""

    up: np.ndarray
    down: int


class CompressorSet(NamedTuple):
    """Omega, a set of compressors.

    Args:
        compressors: functions from a vector to the decoded vector.
        sizes: d -> bits of each compressor's message for d elements.
    """

    compressors: Sequence[Q]
    sizes: Callable[[int], list[int]]


# (k, estimate of the model [d]) -> the updates of all workers [N, d]
Updates = Callable[[int, np.ndarray], np.ndarray]
# A^compress: (k, a vector, available bits) -> the message
Select = Callable[[int, np.ndarray, float], Sent]
# all rounds so far -> bits available for each worker's message [N], and for the server's
Budgets = Callable[[Sequence[Round]], tuple[np.ndarray, float]]
# (errors [layers, choices], sizes [layers, choices], bits) -> choices
Rule = Callable[[np.ndarray, np.ndarray, int], Sequence[int]]


def kimad(
    x: np.ndarray,
    updates: Updates,
    step: Step,
    up: Select,
    down: Select,
    budgets: Budgets,
    weights: np.ndarray,
) -> Rounds:
    """Kimad. At the start, x equals its estimator, and the other estimators are 0. The model's
    estimator is updated at the end of a round instead of at the start of the next one.

    Source: Xin et al., "Kimad", Algorithm 1 (and 3, for any compressors).
    """
    x_hat, u_hat, past = x, np.zeros((len(weights), len(x))), list[Round]()
    while True:
        k, (to_server, from_server) = len(past), budgets(past)  # lines 3 and 10
        u = updates(k, x_hat)  # line 9
        # lines 10 and 11
        send = [up(k, u[m] - u_hat[m], to_server[m]) for m in range(len(weights))]
        u_hat = u_hat + np.array([message.seen for message in send])  # line 14
        x = x + step(weights @ u_hat)  # line 15
        answer = down(k, x - x_hat, from_server)  # line 4
        x_hat = x_hat + answer.seen  # lines 5 to 8
        past.append(Round(np.array([message.bits for message in send]), answer.bits))
        yield {
            "x": x,
            "x_hat": x_hat,
            "u_hat": u_hat,
            "sum of w u_hat": weights @ u_hat,
            "message_up": past[-1].up,
            "message_down": np.array(answer.bits),
            "error_up": np.array([message.error for message in send]),
            "error_down": np.array(answer.error),
            "choices_up": np.array([message.choices for message in send]),
            "choices_down": np.array(answer.choices),
        }


def selecting(
    layers: Sequence[int], choices: CompressorSet, rule: Rule, word: int, warm_up: int = 0
) -> Select:
    """Returns A^compress for a vector that consists of layers.

    Args:
        layers: number of elements of each layer; a single layer if the model is compressed as one
            vector.
        choices: Omega.
        rule: selects a compressor for each layer, given the bits that remain after the header of
            the message.
        word: bits of an uncompressed element.
        warm_up: number of initial rounds without compression.
    """
    bits = (len(choices.compressors) - 1).bit_length()
    header = min(
        packed_bits(width, len(layers)) for width in range(bits, 8 * math.ceil(bits / 8) + 1)
    )

    def select(k: int, x: np.ndarray, budget: float) -> Sent:
        if k < warm_up:
            return Sent(x, word * len(x), (-1,) * len(layers), 0.0)
        parts = np.split(x, np.cumsum(layers)[:-1])
        seen = [[compress(part) for compress in choices.compressors] for part in parts]
        errors = np.array(
            [
                [np.sum((one - part) ** 2) for one in of_part]
                for of_part, part in zip(seen, parts, strict=True)
            ]
        )
        sizes = np.array([choices.sizes(len(part)) for part in parts])
        chosen = tuple(
            int(j) for j in rule(errors, sizes, math.floor(min(budget, 2.0**32)) - header)
        )
        left_out, size = (
            sum(table[i][j] for i, j in enumerate(chosen)) for table in (errors, sizes)
        )
        return Sent(
            np.concatenate([seen[i][j] for i, j in enumerate(chosen)]),
            int(size) + header,
            chosen,
            float(left_out),
        )

    return select


def knapsack(
    errors: np.ndarray, sizes: np.ndarray, budget: int, R: int
) -> tuple[np.ndarray, float]:
    r"""Computes $F_i(b) = \min_j F_{i-1}(b - w_{ij}) + \varepsilon_{ij}$, $F_0 = 0$, with $w_{ij} =
    \lceil b_{ij} R / c \rceil$.

    Args:
        errors: $\varepsilon$, `[layers, choices]`.
        sizes: b, bits, `[layers, choices]`.
        budget: c, bits, at least 1.
        R: number of units of the budget.

    Returns:
        The choice of each layer, and $F_l(R)$, which is infinite, with arbitrary choices, if no
        choices fit.

    Source: Xin et al., "Kimad: Adaptive gradient compression with bandwidth awareness", algorithm
    4, with exact errors, and with the first layer treated like all others.
    """
    units = -(-sizes.astype(np.int64) * R // budget)
    F = [np.zeros(R + 1)]
    for layer, of_layer in zip(errors, units, strict=True):
        best = np.full(R + 1, np.inf)
        for error, w in zip(layer, of_layer, strict=True):
            best[w:] = np.minimum(best[w:], F[-1][: max(R + 1 - w, 0)] + error)
        F.append(best)
    b, choices = R, []
    for before, layer, of_layer in zip(F[-2::-1], errors[::-1], units[::-1], strict=True):
        j = min(
            range(len(layer)),
            key=lambda j: before[b - of_layer[j]] + layer[j] if of_layer[j] <= b else np.inf,
        )
        choices.append(j)
        b -= of_layer[j]
    return np.array(choices[::-1]), float(F[-1][R])


def uniform(errors: np.ndarray, sizes: np.ndarray, budget: int) -> Sequence[int]:
    """Kimad's selection: of the compressors that fit the budget, the one with the smallest error,
    then the smallest size; if none fits, the one with the smallest size.
    """
    fit = [j for j in range(sizes.shape[1]) if sizes[:, j].sum() <= budget]
    best = (
        min(fit, key=lambda j: (errors[:, j].sum(), sizes[:, j].sum()))
        if fit
        else int(sizes.sum(axis=0).argmin())
    )
    return [best] * len(errors)


def allocate(
    errors: np.ndarray, sizes: np.ndarray, budget: int, resolution: int = 1000
) -> Sequence[int]:
    """Kimad+'s selection: the best of its dynamic program, Kimad's selection, and the smallest
    error for each layer; if none fits, the smallest size for each layer.
    """
    smallest, least = sizes.argmin(axis=1), errors.argmin(axis=1)
    candidates = [smallest, uniform(errors, sizes, budget), least]
    if budget > 0:
        candidates.append(knapsack(errors, sizes, budget, resolution)[0])
    places = range(len(errors))
    fit = [c for c in candidates if sizes[places, c].sum() <= budget]
    return min(fit, key=lambda c: errors[places, c].sum()) if fit else smallest


def top_k(ratios: Sequence[float], word: int) -> CompressorSet:
    """Returns the compressors that send the largest elements with their indices; a vector is sent
    uncompressed if that is not longer (`kimad.top_k(ratios)`).
    """

    def sizes(d: int) -> list[int]:
        return [min(word * d, message(keep(ratio, d), d, word)) for ratio in ratios]

    def compress(x: np.ndarray, which: int) -> np.ndarray:
        return (
            x if sizes(len(x))[which] == word * len(x) else largest(x, keep(ratios[which], len(x)))
        )

    return CompressorSet(
        [lambda x, which=which: compress(x, which) for which in range(len(ratios))], sizes
    )


def keep(ratio: float, d: int) -> int:
    """Returns the number of elements of d that are sent."""
    return math.ceil(round(ratio * d, 9))


# --- The cases.

UP, DOWN = (0.1, 0.3, 0.6, 1.0), (0.2, 0.5)
WEIGHTS = np.array([0.5, 0.25, 0.125, 0.125, 0.0, 1.0])
# All numbers are exact in float32. Workers that compute for 0.375 s have 0.25 s for their message
# to the server; the others compute for 0.5625 s and have 0.125 s. A round lasts a second.
ROUND, WARM_UP = 0.75, 2
COMPUTATION, CONGESTION = np.array([0.375, 0.5625] * 3), 0.5
UP_SECONDS, DOWN_SECONDS = np.array([0.25, 0.125] * 3), 0.0625


class Bandwidths(NamedTuple):
    """Bits per second in each second, `[seconds, N]`, repeated periodically."""

    up: Any
    down: Any


def bandwidths(draws: Draws) -> Bandwidths:
    """Draws integers, from less than the smallest messages need to more than the largest ones
    need.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    exponents = (rng.uniform(*ends, (5, N)) for ends in ((0, 5), (2, 7)))
    return Bandwidths(*(np.rint(64 * D * 2**each) for each in exponents))


def place(of: Instance) -> clusters.Cluster:
    """Returns the cluster with these bandwidths. No transmission window extends over two
    seconds.
    """

    def port(table):
        def now(key, clock, worker):
            return table[jnp.floor(clock).astype(jnp.int32) % table.shape[0], worker]

        def send(key, clock, seconds, worker):
            return seconds * now(key, clock, worker)

        return clusters.Quantity(now, "table", True, integral=send)

    table: Any = of.more
    return clusters.Cluster(clusters.constant(0.0), port(table.up), port(table.down))


def recursion(given: Given, rule: Rule) -> Rounds:
    def budgets(rounds):
        up, down = (np.asarray(port)[len(rounds) % len(port)] for port in given.more)
        return up * UP_SECONDS, down.min() * DOWN_SECONDS

    up, down = (
        selecting(given.layers, top_k(ratios, given.word), rule, given.word, WARM_UP)
        for ratios in (UP, DOWN)
    )
    for found in kimad(given.x, given.gradients_at, given.step(), up, down, budgets, WEIGHTS):
        symbols = {name: found[name] for name in ("x", "x_hat", "u_hat", "sum of w u_hat")}
        yield symbols | given.to_server(0, found["message_up"], found["message_down"])


def _case(chosen: Callable, rule: Rule, optimizer: str) -> Case:
    return Case(
        lambda given: kimad_sgd(
            given.optimizer,
            module.top_k(UP),
            ROUND,
            computation=COMPUTATION,
            congestion=CONGESTION,
            rule=chosen,
            monitor=module.oracle,
            down=module.top_k(DOWN),
            weights=WEIGHTS,
            warm_up=WARM_UP,
        ),
        lambda given: recursion(given, rule),
        optimizer=optimizer,
        symbols={
            "x": "server.model.params",
            "x_hat": "server.estimate",
            "u_hat": "workers.estimate",
            "sum of w u_hat": "server.updates",
        },
        more=bandwidths,
        place=place,
    )


CASES = {
    "": _case(module.uniform, uniform, "momentum"),
    "plus": _case(module.allocate, allocate, "plain"),
}
