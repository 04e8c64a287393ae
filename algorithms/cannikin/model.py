r"""The time of a batch on a cluster of heterogeneous nodes, and its optimal distribution over them.

Node i computes $b_i$ samples: $a_i = q_i b_i + s_i$ seconds before its backward pass, and
$P_i = k_i b_i + m_i$ seconds in it. After $\gamma P_i$ of these, the first bucket of the gradient
can be sent. All nodes have sent their gradients after

$$ T = \max_i \max\{a_i + P_i + T_u,\ a_i + \gamma P_i + T_o + T_u\} \quad (7) $$

with $T_u$ seconds for the last bucket, and $T_o$ for the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dsgd import checks
from dsgd.clusters.quantity import require_number, require_probability

Coefficients = Annotated[Sequence[float] | np.ndarray, "a number for each node"]
Wholes = Annotated[ArrayLike, "an integer, or several"]


class OptPerf(NamedTuple):
    """The shortest time of a batch, and its optimal distribution.

    Args:
        seconds: T, of each total batch, `[...]`.
        batches: b, samples of each node, `[..., n]`.
    """

    seconds: Any
    batches: np.ndarray


class Lines(NamedTuple):
    r"""Times of the nodes as functions of their samples: node i takes
    $\max(c_i b + u_i,\ d_i b + v_i)$ seconds for b samples, at most $l_i$ of them; $c \ge d \ge 0$
    and $c > 0$.

    Args:
        c, u: slopes and intercepts of the first line, `[n]`.
        d, v: slopes and intercepts of the second line, `[n]`.
        most: l, `[n]`; infinite without a limit.
    """

    c: np.ndarray
    u: np.ndarray
    d: np.ndarray
    v: np.ndarray
    most: np.ndarray

    def seconds(self, b: np.ndarray) -> np.ndarray:
        """Returns the seconds of each node for samples `[..., n]`."""
        return np.maximum(self.c * b + self.u, self.d * b + self.v)

    def samples_within(self, T: np.ndarray) -> np.ndarray:
        """Returns the samples that each node computes in T seconds, `[K]` to `[K, n]`."""
        T = T[:, None]
        flat = np.where(self.v <= T, np.inf, -np.inf)
        sloped = np.divide(T - self.v, self.d, out=flat, where=self.d > 0)
        return np.clip(np.minimum((T - self.u) / self.c, sloped), 0, self.most)

    def split(self, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first times at which `total` samples are computed, `[K]`, and the samples of
        each node, `[K, n]`. The bisection ends at two adjacent floating-point numbers. Between them
        a flat or nearly flat line has many samples, of which a share is added to reach the total.
        """
        low, longest = (
            np.zeros(len(total)),
            self.seconds(np.minimum(total[:, None], self.most)).max(axis=1),
        )
        # Without the margin, rounding might leave samples unassigned.
        high = longest * (1 + 4 * np.finfo(float).eps)
        while ((low < (middle := low + (high - low) / 2)) & (middle < high)).any():
            enough = self.samples_within(middle).sum(axis=1) >= total
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        before, after = self.samples_within(low), self.samples_within(high)
        missing, room = total - before.sum(axis=1), (after - before).sum(axis=1)
        share = np.clip(np.divide(missing, room, out=np.zeros_like(room), where=room > 0), 0, 1)
        found = before + share[:, None] * (after - before)
        exact = total / found.sum(axis=1)  # corrects the rounding error of the sums
        return high, np.minimum(exact[:, None] * found, self.most)


@checks.arguments
@dataclass(frozen=True, eq=False)
class ClusterModel:
    """A model of the time of a batch on n nodes, equation 7.

    Args:
        q, s: coefficients of $a_i = q_i b_i + s_i$: seconds per sample, and seconds, `[n]`.
        k, m: coefficients of the backward pass $P_i = k_i b_i + m_i$: seconds per sample, and
            seconds, `[n]`.
        gamma: share of the backward pass before the first bucket is ready, in [0, 1].
        t_overlap: T_o, seconds of all buckets except the last one.
        t_last: T_u, seconds of the last bucket.
        limits: largest number of samples for which each node has memory, `[n]`; None: no limits.

    Raises:
        ValueError: if coefficients are not all `[n]`, negative, infinite or NaN, a node's samples
            take no time, the share is not in [0, 1], seconds are negative, or limits are negative
            or NaN.

    Source: Nie et al., "Cannikin: training DNN models over heterogeneous clusters with optimal
    performance", section 3.
    """

    q: Coefficients
    s: Coefficients
    k: Coefficients
    m: Coefficients
    gamma: float
    t_overlap: float
    t_last: float
    limits: Coefficients | None = field(default=None)

    def __post_init__(self) -> None:
        n = len(np.atleast_1d(self.q))
        for name in ("q", "s", "k", "m"):
            object.__setattr__(self, name, _require_numbers(name, getattr(self, name), n))
        if (where := np.flatnonzero(np.add(self.q, self.k) == 0)).size:
            raise ValueError(
                f"ClusterModel: q + k = 0 for node {where[0]}; expected samples that take "
                "time, q + k > 0"
            )
        require_probability("ClusterModel: gamma", self.gamma)
        for name in ("t_overlap", "t_last"):
            require_number(f"ClusterModel: {name}", getattr(self, name), least=0)
        if self.limits is not None:
            object.__setattr__(
                self, "limits", _require_numbers("limits", self.limits, n, finite=False)
            )

    @property
    def nodes(self) -> int:
        """n, the number of nodes."""
        return len(self.q)

    def node_times(self, batches: ArrayLike) -> np.ndarray:
        """Returns when the messages of each node would be complete if it were alone: seconds
        `[..., n]` for samples `[..., n]`.

        Raises:
            ValueError: if samples are for another number of nodes, infinite or NaN. (Negative
                samples are accepted, because the paper's algorithm may return them.)
        """
        return self._lines.seconds(self._require_batches("node_times", batches)) + self.t_last

    def batch_time(self, batches: ArrayLike) -> Any:
        """Returns T, equation 7: seconds `[...]` for samples `[..., n]`.

        Raises:
            ValueError: see `node_times`.
        """
        return (
            self._lines.seconds(self._require_batches("batch_time", batches)) + self.t_last
        ).max(axis=-1)

    def computes_longer(self, batches: ArrayLike) -> np.ndarray:
        r"""Returns whether each node's bottleneck is its computation, $(1 - \gamma) P_i \ge T_o$,
        and not communication; bool `[..., n]`.

        Raises:
            ValueError: see `node_times`.
        """
        return (1 - self.gamma) * (
            self.k * self._require_batches("computes_longer", batches) + self.m
        ) >= self.t_overlap

    @checks.arguments
    def optperf(self, total_batch: ArrayLike) -> OptPerf:
        r"""Returns the real, non-negative local batches with the shortest T: the solution of a
        linear program, exact up to rounding.

        $$ \min_b T \quad \text{with} \quad \sum_i b_i = B, \quad 0 \le b_i \le l_i $$

        In T seconds node i can compute $b_i(T)$ samples, which do not decrease in T; the smallest T
        with $\sum_i b_i(T) = B$ is found by bisection. All nodes with samples finish at T, except
        those at their limits. A node that cannot compute any sample by then has none, but its fixed
        time still bounds T.

        Args:
            total_batch: B, samples, a number or an array `[...]`.

        Raises:
            ValueError: if B is not positive and finite, or exceeds the sum of the limits.
        """
        B = np.asarray(total_batch, float)
        self._require_room("optperf", B, self._lines.most)
        T, batches = self._lines.split(B.reshape(-1))
        seconds = np.maximum(T + self.t_last, self.batch_time(np.zeros(self.nodes)))
        return OptPerf(seconds.reshape(B.shape)[()], batches.reshape(*B.shape, self.nodes))

    @checks.arguments
    def optperf_integer(self, total_batch: Wholes) -> OptPerf:
        """Returns the optimal integer batches: those of `optperf` rounded down, with the remaining
        samples assigned one by one to the node that then finishes first; exact.

        No integer batches have a smaller T, because in the optimal T no node can have fewer samples
        than the rounded ones.

        Args:
            total_batch: B, an integer or an array `[...]` of integers.

        Raises:
            ValueError: if B is not an integer of at least 1, or exceeds the sum of the limits
                rounded down.
        """
        B = np.asarray(total_batch)
        if not np.issubdtype(B.dtype, np.integer) or (B < 1).any():
            given = f"total_batch = {checks.show(total_batch)}"
            raise ValueError(
                f"ClusterModel.optperf_integer: {given}; expected an integer >= 1, or an array "
                "of them"
            )
        self._require_room("optperf_integer", B, np.floor(self._lines.most))
        seconds, real = self.optperf(B)
        each = zip(
            B.ravel().tolist(),
            np.ravel(seconds).tolist(),
            real.reshape(-1, self.nodes),
            strict=True,
        )
        batches = np.array([self._whole(*one) for one in each], int).reshape(*B.shape, self.nodes)
        return OptPerf(self.batch_time(batches)[()], batches)

    def _whole(self, total: int, seconds: float, real: np.ndarray) -> list[int]:
        """Returns integer samples of each node that add up to `total`, from the real ones of
        OptPerf.
        """
        most = np.floor(self._lines.most)
        # The factor keeps integers despite rounding errors.
        batches = np.minimum(np.floor(real * (1 + 1e-12)), most)
        batches = np.maximum(batches - (self.node_times(batches) > seconds * (1 + 1e-12)), 0)
        lines = self._lines
        c, u, d, v, limits, each = (
            array.tolist()
            for array in (lines.c, lines.u, lines.d, lines.v, most, batches.astype(int))
        )

        def next_of(i: int) -> tuple[float, int]:
            b = each[i] + 1
            return (max(c[i] * b + u[i], d[i] * b + v[i]) if b <= limits[i] else np.inf, i)

        heap = [next_of(i) for i in range(self.nodes)]
        heapq.heapify(heap)
        for _ in range(total - sum(each)):
            i = heap[0][1]
            each[i] += 1
            heapq.heapreplace(heap, next_of(i))
        return each

    @cached_property
    def _lines(self) -> Lines:
        """Returns the lines that bound the batch time: of the computation (never the flatter one)
        and of the communication, without T_u.
        """
        q, s, k, m = (np.asarray(each) for each in (self.q, self.s, self.k, self.m))
        most = np.full(len(q), np.inf) if self.limits is None else np.asarray(self.limits)
        return Lines(q + k, s + m, q + self.gamma * k, s + self.gamma * m + self.t_overlap, most)

    def _require_batches(self, name: str, batches: ArrayLike) -> np.ndarray:
        given = np.asarray(batches, float)
        if given.ndim < 1 or given.shape[-1] != self.nodes:
            raise ValueError(
                f"ClusterModel.{name}: batches have the shape {list(given.shape)}; expected [..., "
                f"{self.nodes}], one number for each node"
            )
        if not np.isfinite(given).all():
            raise ValueError(
                f"ClusterModel.{name}: batches = {checks.show(given.tolist())}; expected finite "
                "numbers of samples"
            )
        return given

    def _require_room(self, name: str, B: np.ndarray, most: np.ndarray) -> None:
        wrong = B[~(np.isfinite(B) & (B > 0))]
        if wrong.size:
            raise ValueError(
                f"ClusterModel.{name}: a total batch of {wrong.flat[0]:g} samples; expected a "
                "finite number > 0"
            )
        if B.size and B.max() > most.sum():
            given = (
                f"a total batch of {B.max():.12g} samples, but the limits add up to "
                f"{most.sum():.12g}"
            )
            raise ValueError(f"ClusterModel.{name}: {given}; expected at most that many samples")


def _require_numbers(name: str, values: Any, n: int, *, finite: bool = True) -> np.ndarray:
    numbers = np.array(values, float)
    if numbers.shape != (n,) or not n:
        raise ValueError(
            f"ClusterModel: {name} has the shape {list(numbers.shape)}; expected one number for "
            f"each of {max(n, 1)} nodes, as q has"
        )
    if not (numbers >= 0).all() or (finite and not np.isfinite(numbers).all()):
        raise ValueError(
            f"ClusterModel: {name} = {checks.show(numbers.tolist())}; expected "
            f"{'finite ' * finite}numbers >= 0"
        )
    numbers.flags.writeable = False
    return numbers
