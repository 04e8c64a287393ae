r"""Bits of messages in float32: closed forms in N and d, used by those of the methods.

Parts: methods that compress through servers or around a ring have $p = \lceil d/N \rceil$ elements
in each message, and send 2 (N - 1) messages: to the servers and from their own, or in N - 1 hops
and N - 1 forwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

FLOAT = 32
# What every worker sends and receives: a number, or one of each worker `[N]`; a pair: up and down;
# a list: one of several.
Bits = Any


def packed_bits(width: int, count: int) -> int:
    """Returns the number of bits of `count` codes of this width, packed in planes of 8, 4, 2 and 1
    bits, each of whole bytes.
    """
    planes = [8] * (width // 8) + [plane for plane in (4, 2, 1) if width & plane]
    return sum(8 * math.ceil(count * plane / 8) for plane in planes)


def all_reduce(N: int, d: int) -> int:
    """Returns the bits of an all-reduce of d numbers: N - 1 of N parts, twice."""
    return round(2 * (N - 1) / N * d * FLOAT)


def parts(message: Callable[[int], int], N: int, d: int) -> int:
    """Returns the bits of 2 (N - 1) messages of a part."""
    return 2 * (N - 1) * message(-(-d // N))


def degree(N: int) -> int:
    """Returns the number of neighbours on a ring."""
    return min(2, N - 1)


def ring_bits(N: int, d: int, vectors: float = 1) -> float:
    """Returns the bits of so many models to each neighbour on a ring."""
    return degree(N) * vectors * d * FLOAT


def bits_of_some(number: int, bits: float, N: int) -> np.ndarray:
    """Returns the bits if so many workers send and receive, `[N]`."""
    return np.where(np.arange(N) < number, bits, 0.0)


def period_end(t: int, bits: Bits, period: int = 4) -> Bits:
    """Returns the bits of round t if messages are sent in the last round of each period."""
    return 0 if (t + 1) % period else bits


def codes(width: int, d: int) -> int:
    """Returns the bits of a message of `random_quantization`: codes and two ends, or the elements
    if there are at most two.
    """
    return packed_bits(width, d) + 2 * FLOAT if d > 2 else d * FLOAT


def signs(d: int) -> int:
    """Returns the bits of a message of `sign`: signs and a scale."""
    return packed_bits(1, d) + FLOAT


def largest(k: int, d: int, number: int = FLOAT) -> int:
    """Returns the bits of k of d elements with their indices."""
    return number * k + packed_bits((d - 1).bit_length(), k)


def tenth(d: int) -> int:
    """Returns the bits of a message of `top_k(0.1)`."""
    return largest(-(-d // 10), d)


def five_values(d: int) -> int:
    """Returns the bits of a message of `qsgd(2, "linf")`: three bits of each element, and a
    scale.
    """
    return packed_bits(3, d) + FLOAT


def with_reply(message: float, d: int) -> tuple[float, int]:
    """Returns the bits of a message to one server, which replies with d floats."""
    return message, d * FLOAT
