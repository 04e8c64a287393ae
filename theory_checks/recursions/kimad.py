"""Kimad: one server, and senders that choose a compressor for each layer in each round, given the
bits available for the message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from theory_checks.recursions.allocation import knapsack
from theory_checks.recursions.compressed import Q, largest, packed
from theory_checks.recursions.shared import Rounds, Step


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
        sent = [up(k, u[m] - u_hat[m], to_server[m]) for m in range(len(weights))]
        u_hat = u_hat + np.array([message.seen for message in sent])  # line 14
        x = x + step(weights @ u_hat)  # line 15
        answer = down(k, x - x_hat, from_server)  # line 4
        x_hat = x_hat + answer.seen  # lines 5 to 8
        past.append(Round(np.array([message.bits for message in sent]), answer.bits))
        yield {
            "x": x,
            "x_hat": x_hat,
            "u_hat": u_hat,
            "sum of w u_hat": weights @ u_hat,
            "message_up": past[-1].up,
            "message_down": np.array(answer.bits),
            "error_up": np.array([message.error for message in sent]),
            "error_down": np.array(answer.error),
            "choices_up": np.array([message.choices for message in sent]),
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
    header = min(packed(width, len(layers)) for width in range(bits, 8 * math.ceil(bits / 8) + 1))

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
        return [
            min(word * d, kept(ratio, d) * word + packed((d - 1).bit_length(), kept(ratio, d)))
            for ratio in ratios
        ]

    def compress(x: np.ndarray, which: int) -> np.ndarray:
        return (
            x if sizes(len(x))[which] == word * len(x) else largest(x, kept(ratios[which], len(x)))
        )

    return CompressorSet(
        [lambda x, which=which: compress(x, which) for which in range(len(ratios))], sizes
    )


def kept(ratio: float, d: int) -> int:
    """Returns the number of elements of d that are sent."""
    return math.ceil(round(ratio * d, 9))
