"""A total batch in whole parts: equal ones, those near real numbers, and those from which something is learned."""

from __future__ import annotations

import numpy as np


def equal_parts(total: int, limits: np.ndarray) -> np.ndarray:
    """Whole samples, of which the first nodes may have one more.

    Args:
        total: B.
        limits: samples for which each node has memory, `[n]`.

    Raises:
        ValueError: a node has no memory for its part.
    """
    n = len(limits)
    batches = total // n + (np.arange(n) < total % n)
    if (full := np.flatnonzero(batches > limits)).size:
        i = full[0]
        raise ValueError(f"equal parts of {total} samples: {batches[i]} of node {i}, which has room for {limits[i]}: need fewer")
    return batches


def whole(parts: np.ndarray, total: int, limits: np.ndarray) -> np.ndarray:
    """Whole samples near these parts, `[n]`, so many in all, within the limits: rounded down, the rest by the largest remainders."""
    parts = np.minimum(parts, limits)
    batches = np.floor(parts).astype(int)
    while (left := total - batches.sum()) > 0:
        room = batches < limits
        order = np.argsort(np.where(room, batches - parts, np.inf), kind="stable")
        batches[order[: min(left, room.sum())]] += 1
    return batches


def unlike(batches: np.ndarray, seen_at: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """The same total, where nodes that rounding has given the only size they were seen at swap a sample: two sizes make a line.

    With one such node, or an odd number, another one gives it a sample.
    """
    batches = batches.copy()
    again = np.flatnonzero(batches == seen_at).tolist()
    for one, other in zip(again[::2], again[1::2], strict=False):
        more, fewer = (one, other) if batches[one] < limits[one] and batches[other] > 1 else (other, one)
        _give(batches, fewer, more, limits)
    if len(again) % 2:
        giving = np.flatnonzero((batches > 2) & (batches - 1 != seen_at) & (batches != seen_at))
        if giving.size:
            _give(batches, int(giving[np.argmax(batches[giving])]), again[-1], limits)
    return batches


def _give(batches: np.ndarray, fewer: int, more: int, limits: np.ndarray) -> None:
    """One sample, where it is not the last one and there is room for it."""
    if batches[fewer] > 1 and batches[more] < limits[more]:
        batches[[fewer, more]] += [-1, 1]
