r"""Exact speedup of DropCompute for independent, identically distributed micro-batches, from the
distribution of their sums on a grid of times.

$$ P(T^{(m)} \le x),\ m \le M, \qquad E \min(\tau, T) = \int_0^\tau 1 - P(T^{(M)} \le x)^N \, dx,
\qquad

   S(\tau) = \frac{E \tilde M(\tau)}{M} \cdot \frac{E T + T^c}{E \min(\tau, T) + T^c} $$

S is the ratio of the long-run rates of micro-batches per second; it is close to the mean of eq. 6
over steps. It uses neither the central limit theorem nor simulation, so N may be as large as 10^9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import fft, optimize, signal

from algorithms.dropcompute import Effect
from algorithms.dropcompute.stopping import Stop
from experiments.dropcompute.noises import ACCUMULATION, Noise

# seconds; jumps of all noises are at multiples of it. Rounding a time to the grid adds a variance
# of CELL^2 / 12.
CELL = ACCUMULATION / 50
BETWEEN = 120  # number of thresholds that are tried if the clock is read between micro-batches
MISSED = 1e-4  # maximal probability that any micro-batch is beyond half of the grid


class Sums(NamedTuple):
    """Distributions of sums of independent micro-batches.

    Args:
        ready: P(T^(m) < tau) of the thresholds 0, CELL, 2 CELL, ..., `[M, G]`.
        starts: expected number of micro-batches that a worker begins in each cell, `[G]`.
        one: P(t > x) of one micro-batch at the middles of the cells between thresholds, `[G]`.
        after: P(T_n > x) of one worker, at the same middles.
    """

    ready: np.ndarray
    starts: np.ndarray
    one: np.ndarray
    after: np.ndarray

    @property
    def mean(self) -> float:
        """Returns E T_n, the expected time of one worker, seconds."""
        return CELL * float(self.after.sum())

    @property
    def share(self) -> np.ndarray:
        """Returns E M~ / M, the expected share of computed micro-batches with preemption, for each
        threshold.
        """
        return self.ready.mean(axis=0)

    def slowest_time(self, workers: float) -> float:
        """Returns E T of N workers, seconds."""
        return CELL * float(slowest(self.after, workers).sum())

    def ratio(self, workers: float) -> float:
        """Returns E T / E T_i."""
        return self.slowest_time(workers) / self.mean

    def effect(
        self, workers: float, cells: np.ndarray, communication: float, stop: Stop = "preempt"
    ) -> Effect:
        """Returns the effect of the thresholds of the given cells, `[K]`, on N workers."""
        whole = self.slowest_time(workers)
        if stop == "preempt":
            steps = CELL * np.append(0, np.cumsum(slowest(self.after, workers)))[cells]
            shares = self.share[cells]
        else:
            steps = np.array(
                [CELL * slowest(self.survival_between(cell), workers).sum() for cell in cells]
            )
            shares = (1 + self.ready[:-1].sum(axis=0)[cells]) / len(self.ready)
        speedups = shares * (whole + communication) / (steps + communication)
        return Effect(CELL * cells, speedups, 1 - shares, steps, np.full(cells.shape, whole))

    def best(self, workers: float, communication: float, stop: Stop = "preempt") -> Effect:
        """Returns the effect of the best threshold on N workers; if the clock is read between
        micro-batches, of a coarser grid of thresholds. The threshold is infinite if none helps.
        """
        last = len(self.after) - 1
        cells = (
            np.arange(1, last + 1)
            if stop == "preempt"
            else np.unique(np.linspace(1, min(last, 1.5 * self.mean / CELL), BETWEEN).astype(int))
        )
        effect = self.effect(workers, cells, communication, stop)
        i = int(np.argmax(effect.speedup))
        if not effect.speedup[i] > 1:
            whole = self.slowest_time(workers)
            return Effect(math.inf, 1.0, 0.0, whole, whole)
        return Effect(*(float(each[i]) for each in effect))

    def shorter(self, drop_rate: float, workers: float, communication: float) -> float:
        """Returns the share by which a step of N workers is shorter at the threshold with the given
        drop rate, with preemption.
        """
        cell = np.searchsorted(self.share, [1 - drop_rate])
        (step,), (whole,) = self.effect(workers, cell, communication)[-2:]
        return float(1 - (step + communication) / (whole + communication))

    def survival_between(self, cell: int) -> np.ndarray:
        r"""Returns P(S_n > x) of one worker that reads its clock between micro-batches, `[G]`:
        beyond $\tau$, it has begun a micro-batch before $\tau$ that ends after x.
        """
        begun = np.where(np.arange(len(self.starts)) <= cell, self.starts, 0)
        later = signal.fftconvolve(begun, self.one)[: len(self.one)]
        return np.where(np.arange(len(self.one)) < cell, self.after, np.clip(later, 0, self.after))

    def limit(self, longest: float, communication: float) -> float:
        r"""Returns $\max_\tau \frac{E \tilde M(\tau)}{M} \frac{M b + T^c}{\tau + T^c}$, if no
        micro-batch takes more than b seconds.

        It is an upper bound of the speedup for any N: eq. 6 increases with T at any $\tau < T$, and
        T is at most M b. If b has a positive probability, T approaches M b as N grows.
        """
        thresholds = CELL * np.arange(1, len(self.share))
        most = len(self.ready) * longest
        there = thresholds <= most
        return float(
            np.max(
                (self.share[1:] * (most + communication) / (thresholds + communication))[there],
                initial=1.0,
            )
        )


def slowest(after: np.ndarray, workers: float) -> np.ndarray:
    """Returns P(max of N > x) from P(one > x)."""
    with np.errstate(divide="ignore"):
        return -np.expm1(workers * np.log1p(-after))


def sums(noise: Noise, micro_batches: int, most_workers: float) -> Sums:
    """Returns the sums of up to M micro-batches, for up to the given number of workers."""
    cells = math.ceil(reach(noise, micro_batches, most_workers) / CELL)
    edges = CELL * (np.arange(cells + 1) - 0.5)
    chances = np.diff(noise.below(edges))
    # The circular convolution wraps around only what is beyond the grid, which is negligible.
    length = fft.next_fast_len(cells, real=True)
    transform = np.asarray(fft.rfft(chances, length))
    ends = [
        np.asarray(fft.irfft(transform**m, length))[:cells] for m in range(1, micro_batches + 1)
    ]
    later = np.array([sum_from(each) for each in ends])
    beyond = np.append(later[:, 1:], np.zeros((micro_batches, 1)), axis=1)
    # the first micro-batch starts at 0, the others at the end of their predecessors
    starts = sum(ends[:-1], np.eye(1, cells)[0])
    # thresholds are the cells' own times: half of what ends in a cell ends before its threshold
    ready = 1 - (later + beyond) / 2
    return Sums(ready, starts, beyond[0], beyond[-1])


def sum_from(chances: np.ndarray) -> np.ndarray:
    """Returns the sum from each cell on."""
    return np.clip(np.cumsum(chances[::-1])[::-1], 0, 1)


def reach(noise: Noise, micro_batches: int, most_workers: float) -> float:
    """Returns the seconds that the grid must cover."""
    chance = MISSED / (micro_batches * most_workers)
    if math.isfinite(noise.longest):
        return micro_batches * noise.longest + 2 * CELL
    far = 1.0
    while 1 - noise.below(np.array(far)) > max(chance, 1e-15):
        far *= 1.05
    return micro_batches * noise.mean + 2 * far


class Common(NamedTuple):
    """The number of workers that fits all ratios best.

    Args:
        workers: N.
        off: the largest relative deviation at this N.
    """

    workers: int
    off: float


def common_workers(found: Sequence[tuple[Sums, float]], most: int = 10_000) -> Common:
    """Returns the N that fits the paper's E[T] / E[T_i] best. Each ratio grows with N, so the
    largest deviation decreases and then increases.

    Args:
        found: sums with the printed ratio of each.
        most: maximal N.
    """

    def off(workers: int) -> float:
        return max(abs(each.ratio(workers) / ratio - 1) for each, ratio in found)

    low, high = 2, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if off(middle) <= off(middle + 1) else (middle + 1, high)
    return Common(low, off(low))


def matching_workers(each: Sums, ratio: float, most: int = 10_000) -> float:
    """Returns the N at which the ratio has exactly the given value."""
    found = optimize.root_scalar(lambda workers: each.ratio(workers) - ratio, bracket=(1, most))
    return found.root
