"""What is kept of measurements, and what is fitted to them: moments of each node's, lines, and means that nodes share."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

Weighting = Literal["inverse-variance", "plain"]


class Moments(NamedTuple):
    """Of d numbers that each node measures together.

    Args:
        number: how often, `[n]`.
        mean: `[n, d]`.
        products: sums of products of deviations from it, `[n, d, d]`.
    """

    number: np.ndarray
    mean: np.ndarray
    products: np.ndarray

    def and_of(self, values: np.ndarray) -> Moments:
        """With more rounds, `[rounds, n, d]`; those in which something is NaN are left out."""
        there = ~np.isnan(values).any(axis=2, keepdims=True)
        number = there.sum(axis=(0, 2))
        mean = np.where(there, values, 0).sum(axis=0) / np.maximum(number, 1)[:, None]
        apart = np.where(there, values - mean, 0)
        total = self.number + number
        share, moved = number / np.maximum(total, 1), mean - self.mean
        between = (self.number * share)[:, None, None] * moved[:, :, None] * moved[:, None, :]
        within = np.einsum("tni,tnj->nij", apart, apart)
        return Moments(total, self.mean + share[:, None] * moved, self.products + within + between)


def nothing(n: int, d: int) -> Moments:
    """Of n nodes that have not measured anything."""
    return Moments(np.zeros(n, int), np.zeros((n, d)), np.zeros((n, d, d)))


class Line(NamedTuple):
    """Moments of points (b, t), of each node, `[n]`."""

    number: np.ndarray
    b: np.ndarray
    t: np.ndarray
    bb: np.ndarray
    bt: np.ndarray

    @classmethod
    def of(cls, points: Moments, column: int) -> Line:
        """That column of the points over the first, b."""
        return cls(points.number, points.mean[:, 0], points.mean[:, column], points.products[:, 0, 0], points.products[:, 0, column])

    def fitted(self) -> np.ndarray:
        """Least squares with slope and fixed part of at least 0, `[2, n]`: where the free line has a negative one, one of the two is 0."""
        slope = _quotient(self.bt, self.bb)
        free = np.array([slope, self.t - slope * self.b])
        flat, through = np.array([np.zeros_like(self.t), np.maximum(self.t, 0)]), self.through_zero()
        edge = np.where(self._loss(flat) <= self._loss(through), flat, through)
        return np.where((free >= 0).all(axis=0), free, edge)

    def through_zero(self) -> np.ndarray:
        """The same with a fixed part of 0."""
        slope = _quotient(self.bt + self.number * self.b * self.t, self.bb + self.number * self.b**2)
        return np.array([np.maximum(slope, 0), np.zeros_like(slope)])

    def _loss(self, line: np.ndarray) -> np.ndarray:
        """Squares, but for a constant."""
        slope, fixed = line
        return self.bb * slope**2 - 2 * self.bt * slope + self.number * (self.t - slope * self.b - fixed) ** 2


def _quotient(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """0 of nodes whose points show no slope."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def shared_mean(measured: Moments, weighting: Weighting) -> float:
    """Of one number that is the same for all nodes: of those who have measured it twice, weighted by the inverse variances of their means;
    "plain": the average of the means."""
    often = measured.number > 1
    if weighting == "plain" or not often.any():
        return measured.mean[measured.number > 0, 0].mean()
    count = measured.number[often]
    variance = measured.products[often, 0, 0] / (count - 1) / count
    least = variance.min()
    weights = np.where(variance == least, 1.0, least / np.where(variance > 0, variance, 1))
    return float(np.average(measured.mean[often, 0], weights=weights))
