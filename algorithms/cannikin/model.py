r"""How long a cluster of unequal nodes takes for a batch, and how it is best shared out among them.

Node i computes $b_i$ samples: $a_i = q_i b_i + s_i$ seconds before its backward pass, and
$P_i = k_i b_i + m_i$ in it. After $\gamma P_i$ of these the first bucket of the gradient may be
sent. All nodes together have sent when

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
from dsgd.clusters.quantity import need_number, need_probability

Coefficients = Annotated[Sequence[float] | np.ndarray, "a number for each node"]
Wholes = Annotated[ArrayLike, "an integer, or several"]


class OptPerf(NamedTuple):
    """The shortest time for a batch, and who then computes how much.

    Args:
        seconds: T, of each total batch, `[...]`.
        batches: b, samples of each node, `[..., n]`.
    """

    seconds: Any
    batches: np.ndarray


class Lines(NamedTuple):
    r"""Node i takes $\max(c_i b + u_i,\ d_i b + v_i)$ seconds for b samples, at most $l_i$ of them;
    $c \ge d \ge 0$ and $c > 0$.

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

    def computed(self, T: np.ndarray) -> np.ndarray:
        """Samples of each node by then, `[K]` to `[K, n]`."""
        T = T[:, None]
        flat = np.where(self.v <= T, np.inf, -np.inf)
        sloped = np.divide(T - self.v, self.d, out=flat, where=self.d > 0)
        return np.clip(np.minimum((T - self.u) / self.c, sloped), 0, self.most)

    def shared(self, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first times at which so many samples are computed, `[K]`, and of which node,
        `[K, n]`: by bisection down to two numbers next to each other. Between them a flat or nearly
        flat line has many samples at once: a share of these makes the total."""
        low, longest = (
            np.zeros(len(total)),
            self.seconds(np.minimum(total[:, None], self.most)).max(axis=1),
        )
        high = longest * (1 + 4 * np.finfo(float).eps)  # or rounding might leave samples for later
        while ((low < (middle := low + (high - low) / 2)) & (middle < high)).any():
            enough = self.computed(middle).sum(axis=1) >= total
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        before, after = self.computed(low), self.computed(high)
        missing, room = total - before.sum(axis=1), (after - before).sum(axis=1)
        share = np.clip(np.divide(missing, room, out=np.zeros_like(room), where=room > 0), 0, 1)
        found = before + share[:, None] * (after - before)
        exact = total / found.sum(axis=1)  # what sums have lost to rounding
        return high, np.minimum(exact[:, None] * found, self.most)


@checks.arguments
@dataclass(frozen=True, eq=False)
class ClusterModel:
    r"""What a batch takes on n nodes, equation 7.

    Args:
        q, s: of $a_i = q_i b_i + s_i$, seconds for a sample, and seconds, `[n]`.
        k, m: of the backward pass $P_i = k_i b_i + m_i$, likewise.
        gamma: the share of it before the first bucket is ready, in [0, 1].
        t_overlap: T_o, seconds of all buckets but the last one.
        t_last: T_u, seconds of the last one.
        limits: the most samples that each node has memory for, `[n]`; None: no limits.

    Raises:
        ValueError: coefficients that are not `[n]` alike, negative, infinite or NaN; a node whose
            samples take no time; a share outside [0, 1]; negative seconds; limits that are negative
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
            object.__setattr__(self, name, _need_numbers(name, getattr(self, name), n))
        if (where := np.flatnonzero(np.add(self.q, self.k) == 0)).size:
            raise ValueError(
                f"ClusterModel: q + k = 0 of node {where[0]}: need samples that take time"
            )
        need_probability("ClusterModel: gamma", self.gamma)
        for name in ("t_overlap", "t_last"):
            need_number(f"ClusterModel: {name}", getattr(self, name), least=0)
        if self.limits is not None:
            object.__setattr__(
                self, "limits", _need_numbers("limits", self.limits, n, finite=False)
            )

    @property
    def nodes(self) -> int:
        """n."""
        return len(self.q)

    def node_times(self, batches: ArrayLike) -> np.ndarray:
        """When the messages of each node could be through, were it alone: seconds `[..., n]` for
        samples `[..., n]`.

        Raises:
            ValueError: samples of another number of nodes, infinite or NaN. (Less than none are
                what the paper's algorithm may give.)
        """
        return self._lines.seconds(self._need_batches("node_times", batches)) + self.t_last

    def batch_time(self, batches: ArrayLike) -> Any:
        """T, equation 7: seconds `[...]` for samples `[..., n]`.

        Raises:
            ValueError: as of `node_times`.
        """
        return (self._lines.seconds(self._need_batches("batch_time", batches)) + self.t_last).max(
            axis=-1
        )

    def computes_longer(self, batches: ArrayLike) -> np.ndarray:
        r"""Whether each node's bottleneck is its computation, $(1 - \gamma) P_i \ge T_o$, or else
        communication; bool `[..., n]`.

        Raises:
            ValueError: as of `node_times`.
        """
        return (1 - self.gamma) * (
            self.k * self._need_batches("computes_longer", batches) + self.m
        ) >= self.t_overlap

    @checks.arguments
    def optperf(self, total_batch: ArrayLike) -> OptPerf:
        r"""The batches, real and at least 0, with the shortest T: the solution of a linear program,
        exact but for rounding.

        $$ \min_b T \quad \text{with} \quad \sum_i b_i = B, \quad 0 \le b_i \le l_i $$

        In T seconds node i can compute $b_i(T)$ samples, which do not decrease in T; the smallest T
        with $\sum_i b_i(T) = B$ is found by bisection. All nodes with samples end at T, but those
        that are at their limits. A node that is not ready for any sample by then has none, but all
        wait for it, too.

        Args:
            total_batch: B, samples; or several, `[...]`.

        Raises:
            ValueError: B that is not above 0, infinite or NaN, or more than the limits allow.
        """
        B = np.asarray(total_batch, float)
        self._need_room("optperf", B, self._lines.most)
        T, batches = self._lines.shared(B.reshape(-1))
        seconds = np.maximum(T + self.t_last, self.batch_time(np.zeros(self.nodes)))
        return OptPerf(seconds.reshape(B.shape)[()], batches.reshape(*B.shape, self.nodes))

    @checks.arguments
    def optperf_integer(self, total_batch: Wholes) -> OptPerf:
        """The same of whole samples: those of `optperf` rounded down, and one by one the rest to
        whoever is then done first; exact.

        No batches of whole samples have a smaller T: by then no node can have fewer than these.

        Args:
            total_batch: B, an integer; or several, `[...]`.

        Raises:
            ValueError: B that is no integer of at least 1, or more than the limits, rounded down,
                allow.
        """
        B = np.asarray(total_batch)
        if not np.issubdtype(B.dtype, np.integer) or (B < 1).any():
            given = f"total_batch = {checks.shown(total_batch)}"
            raise ValueError(
                f"ClusterModel.optperf_integer: {given}: need an integer, at least 1, or several"
            )
        self._need_room("optperf_integer", B, np.floor(self._lines.most))
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
        """Whole samples of each node, so many in all, from the real ones of OptPerf."""
        most = np.floor(self._lines.most)
        batches = np.minimum(np.floor(real * (1 + 1e-12)), most)  # whole numbers stay so
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
        """Computation's, which is never the flatter one, and communication's, without T_u."""
        q, s, k, m = (np.asarray(each) for each in (self.q, self.s, self.k, self.m))
        most = np.full(len(q), np.inf) if self.limits is None else np.asarray(self.limits)
        return Lines(q + k, s + m, q + self.gamma * k, s + self.gamma * m + self.t_overlap, most)

    def _need_batches(self, name: str, batches: ArrayLike) -> np.ndarray:
        given = np.asarray(batches, float)
        if given.ndim < 1 or given.shape[-1] != self.nodes:
            raise ValueError(
                f"ClusterModel.{name}: batches of shape {list(given.shape)}: need [..., "
                f"{self.nodes}], a number for each node"
            )
        if not np.isfinite(given).all():
            raise ValueError(
                f"ClusterModel.{name}: batches = {checks.shown(given.tolist())}: need finite "
                "numbers of samples"
            )
        return given

    def _need_room(self, name: str, B: np.ndarray, most: np.ndarray) -> None:
        wrong = B[~(np.isfinite(B) & (B > 0))]
        if wrong.size:
            raise ValueError(
                f"ClusterModel.{name}: a total batch of {wrong.flat[0]:g} samples: need a finite "
                "number above 0"
            )
        if B.size and B.max() > most.sum():
            given = (
                f"a total batch of {B.max():.12g} samples, but limits of {most.sum():.12g} in all"
            )
            raise ValueError(f"ClusterModel.{name}: {given}: need fewer")


def _need_numbers(name: str, values: Any, n: int, *, finite: bool = True) -> np.ndarray:
    numbers = np.array(values, float)
    if numbers.shape != (n,) or not n:
        raise ValueError(
            f"ClusterModel: {name} of shape {list(numbers.shape)}: need one number for each of "
            f"{max(n, 1)} nodes, as q has"
        )
    if not (numbers >= 0).all() or (finite and not np.isfinite(numbers).all()):
        raise ValueError(
            f"ClusterModel: {name} = {checks.shown(numbers.tolist())}: need "
            f"{'finite ' * finite}numbers, at least 0"
        )
    numbers.flags.writeable = False
    return numbers
