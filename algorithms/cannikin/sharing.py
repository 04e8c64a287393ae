"""Samples shared out among nodes, each of which takes the longer of two lines for its own: exactly, by sorting where lines meet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

_ROUNDING = 4 * np.finfo(float).eps  # of a time, relative to it


class Events(NamedTuple):
    """Times in order at which some node's rate changes.

    Args:
        times: seconds, `[events]`.
        before: samples that all nodes have computed just before, likewise.
        after: just after: more, where a node's line is flat.
        rates: samples a second from then on.
    """

    times: np.ndarray
    before: np.ndarray
    after: np.ndarray
    rates: np.ndarray


@dataclass(frozen=True, eq=False)
class Lines:
    r"""Node i takes $\max(c_i b + u_i,\ d_i b + v_i)$ seconds for b samples, at most $l_i$ of them; $c \ge d \ge 0$ and $c > 0$.

    Args:
        c, u: slopes and values at 0 of the one line, `[n]`.
        d, v: of the other.
        most: l, likewise; infinite where there is no limit.
    """

    c: np.ndarray
    u: np.ndarray
    d: np.ndarray
    v: np.ndarray
    most: np.ndarray

    def seconds(self, b: np.ndarray) -> np.ndarray:
        """For samples `[..., n]`, seconds of each."""
        return np.maximum(self.c * b + self.u, self.d * b + self.v)

    def until(self, total: np.ndarray) -> np.ndarray:
        """The first time at which so many samples are computed, `[K]`; who has not begun by then does not count."""
        times, before, after, rates = self._events
        j = np.maximum(np.searchsorted(before, total) - 1, 0)
        left = np.maximum(total - after[j], 0)
        T = times[j] + np.where(left > 0, left / np.where(rates[j] > 0, rates[j], np.inf), 0)
        low, high = self._computed(T * (1 - _ROUNDING)), self._computed(T * (1 + _ROUNDING))
        missing = total - np.clip(total, low.sum(axis=-1), high.sum(axis=-1))  # what sums of many numbers have lost to rounding
        rate = self._rate(high)
        return T + np.where(rate > 0, missing / np.where(rate > 0, rate, 1), 0)

    def shared(self, T: np.ndarray, total: np.ndarray) -> np.ndarray:
        """So many samples that are computed by then, `[K]`, of each node, `[K, n]`."""
        at = self._computed(T)
        left = total - at.sum(axis=-1)
        near = self._computed(T * (1 + np.copysign(2 * _ROUNDING, left)))
        less = (left < 0)[:, None]  # wanted than there is by then: a flat line has many at once, and a nearly flat one, nearly
        low, high = np.where(less, near, at), np.where(less, at, near)
        room, more = (high - low).sum(axis=-1), total - low.sum(axis=-1)
        share = np.clip(np.divide(more, room, out=np.zeros_like(room), where=room > 0), 0, 1)
        between = np.abs(left) > _ROUNDING * total
        found = np.where(between[:, None], low + share[:, None] * (high - low), at)
        computed = found.sum(axis=-1)
        exact = np.divide(total, computed, out=np.ones_like(computed), where=computed > 0)  # what rounding has lost
        return np.minimum(exact[:, None] * found, self.most)

    @cached_property
    def _events(self) -> Events:
        c, u, d, v, most = self.c, self.u, self.d, self.v, self.most
        first = v > u  # the flatter line is the longer one, up to so many samples
        crossing = np.where(first, np.inf, 0.0)
        np.divide(v - u, c - d, out=crossing, where=first & (c > d))
        knee = np.minimum(crossing, most)
        early = np.divide(1, d, out=np.zeros_like(d), where=first & (d > 0))
        late, goes_on = 1 / c, crossing < most
        sudden = np.where(first & (d == 0), knee, 0.0)
        turns, ends = (np.where(np.isfinite(b), self.seconds(np.where(np.isfinite(b), b, 0)), np.inf) for b in (knee, most))
        times = np.concatenate([np.maximum(u, v), turns, ends])
        changes = np.concatenate([np.where(first, early, late * goes_on), np.where(first, late * goes_on - early, 0), -late * goes_on])
        jumps = np.concatenate([sudden, np.zeros(2 * len(c))])
        order = np.argsort(times, kind="stable")[: np.isfinite(times).sum()]
        times, rates, jumps = times[order], np.cumsum(changes[order]), np.cumsum(jumps[order])
        rates = np.where(rates > np.finfo(float).eps * np.cumsum(np.abs(changes[order])), rates, 0.0)  # where all are at their limits
        grown = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(times))])
        return Events(times, grown + np.concatenate([[0.0], jumps[:-1]]), grown + jumps, rates)

    def _computed(self, T: np.ndarray) -> np.ndarray:
        """Samples of each node by then, `[K]` to `[K, n]`."""
        T = T[:, None]
        flat = np.where(self.v <= T, np.inf, -np.inf)
        sloped = np.divide(T - self.v, self.d, out=flat, where=self.d > 0)
        return np.clip(np.minimum((T - self.u) / self.c, sloped), 0, self.most)

    def _rate(self, b: np.ndarray) -> np.ndarray:
        """Samples a second of all nodes that have computed so many, `[K, n]` to `[K]`."""
        steep = (self.c * b + self.u >= self.d * b + self.v) | (self.d == 0)
        each = 1 / np.where(steep, self.c, np.where(self.d > 0, self.d, 1))
        return np.sum(np.where((b > 0) & (b < self.most), each, 0), axis=-1)
