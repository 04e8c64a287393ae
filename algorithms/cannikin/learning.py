r"""The model of a cluster from what its nodes measure, epoch by epoch: two sizes of batches for
each node, then least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, get_args

import jax
import numpy as np
from numpy.typing import ArrayLike

from algorithms.cannikin.model import ClusterModel
from dsgd import checks
from dsgd.clusters.quantity import need_probability

Weighting = Literal["inverse-variance", "plain"]
Each = Annotated[Sequence[float] | np.ndarray, "a number for each node"]
_MORE, _FEWER = 1.5, 0.5  # times what equation 8 gives a node whose size must differ
_APART = 1 / 8  # sizes that are nearer to each other than this share of one count as the same


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
        return cls(
            points.number,
            points.mean[:, 0],
            points.mean[:, column],
            points.products[:, 0, 0],
            points.products[:, 0, column],
        )

    def fitted(self) -> np.ndarray:
        """Least squares with slope and fixed part of at least 0, `[2, n]`: where the free line has
        a negative one, one of the two is 0.
        """
        slope = _quotient(self.bt, self.bb)
        free = np.array([slope, self.t - slope * self.b])
        flat, through = (
            np.array([np.zeros_like(self.t), np.maximum(self.t, 0)]),
            self.through_zero(),
        )
        edge = np.where(self._loss(flat) <= self._loss(through), flat, through)
        return np.where((free >= 0).all(axis=0), free, edge)

    def through_zero(self) -> np.ndarray:
        """The same with a fixed part of 0."""
        slope = _quotient(
            self.bt + self.number * self.b * self.t, self.bb + self.number * self.b**2
        )
        return np.array([np.maximum(slope, 0), np.zeros_like(slope)])

    def _loss(self, line: np.ndarray) -> np.ndarray:
        """Squares, but for a constant."""
        slope, fixed = line
        return (
            self.bb * slope**2
            - 2 * self.bt * slope
            + self.number * (self.t - slope * self.b - fixed) ** 2
        )


def _quotient(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """0 of nodes whose points show no slope."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


class Seen(NamedTuple):
    """What the nodes have measured so far; NaN of who has not.

    Args:
        computed: moments of (b, a, P).
        first: of gamma.
        communication: of T_comm.
        smallest, largest: of the batches that each was seen at, `[n]`.
        per_sample: seconds of a sample in the last epoch, `[n]`.
    """

    computed: Moments
    first: Moments
    communication: Moments
    smallest: np.ndarray
    largest: np.ndarray
    per_sample: np.ndarray


@dataclass(frozen=True, eq=False)
class Learner:
    """What is known of a cluster. `learner` makes it; it never changes: each epoch makes another
    one.

    Args:
        seen: what its nodes have measured.
        last_share: T_u / T_comm.
        limits: the most samples that each node has memory for, `[n]`, or infinity.
        moved: whether nodes have left or joined since communication was measured.
    """

    seen: Seen
    last_share: float
    limits: np.ndarray
    moved: bool = False

    @property
    def nodes(self) -> int:
        """n."""
        return len(self.limits)

    @property
    def unknown(self) -> np.ndarray:
        """Nodes that must be seen at another size before there is a model, bool `[n]`: who has
        memory for one sample has no other size, and who has none need not be known."""
        seen = ~np.isnan(self.seen.smallest)
        return ~(
            (self.seen.largest > self.seen.smallest)
            | (self.limits < 1)
            | ((self.limits < 2) & seen)
        )

    @property
    def seen_at(self) -> np.ndarray:
        """The only size that nodes were seen at that need another one, `[n]`; NaN of all others."""
        return np.where(self.unknown, self.seen.smallest, np.nan)

    @checks.arguments
    def observed(
        self,
        batches: Each,
        compute: ArrayLike,
        backward: ArrayLike,
        first: ArrayLike,
        communication: ArrayLike,
    ) -> Learner:
        """With one more epoch, as each node measured it: seconds `[rounds, n]`, NaN where nothing
        was measured.

        Args:
            batches: b, samples of each node, `[n]`.
            compute: a + P.
            backward: P.
            first: gamma P, until the first bucket was ready.
            communication: T_comm, without waiting for others. Where that is in it, each round's
                minimum over the nodes, for all of them.

        Raises:
            ValueError: other shapes, negative or infinite times, computation in no time, batches
                that are negative, infinite or NaN.
        """
        b = np.asarray(batches, float)
        if b.shape != (self.nodes,) or not (np.isfinite(b) & (b >= 0)).all():
            raise ValueError(
                f"Learner.observed: batches = {checks.shown(batches)}: need {self.nodes} finite "
                "numbers, at least 0"
            )
        given = {
            "compute": compute,
            "backward": backward,
            "first": first,
            "communication": communication,
        }
        times = {name: self._need_times(name, values) for name, values in given.items()}
        if len({len(values) for values in times.values()}) > 1:
            shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in times.items())
            raise ValueError(f"Learner.observed: {shapes}: need as many rounds of each")
        total, P, until_first, T_comm = times.values()
        gamma = np.divide(until_first, P, out=np.full(P.shape, np.nan), where=P > 0)
        points = np.stack([np.broadcast_to(b, P.shape), total - P, P], axis=2)
        seen, fresh = self.seen, nothing(self.nodes, 1).and_of(T_comm[:, :, None])
        afresh = self.moved and fresh.number.any()
        known, here = ~np.isnan(points).any(axis=2).all(axis=0), _means(total)
        after = Seen(
            seen.computed.and_of(points),
            seen.first.and_of(gamma[:, :, None]),
            fresh if afresh else seen.communication.and_of(T_comm[:, :, None]),
            np.where(known, np.fmin(seen.smallest, b), seen.smallest),
            np.where(known, np.fmax(seen.largest, b), seen.largest),
            np.where((b > 0) & (here > 0), here / np.where(b > 0, b, 1), seen.per_sample),
        )
        return replace(self, seen=after, moved=self.moved and not afresh)

    @checks.arguments
    def model(self, weighting: Weighting = "inverse-variance") -> ClusterModel | None:
        r"""The cluster as far as it is known: least squares over all rounds, with coefficients of
        at least 0. None before every node was seen at two sizes, and somebody's first bucket and
        messages.

        $$ \min_{q_i, s_i \ge 0} \sum (q_i b + s_i - a)^2, \quad \min_{k_i, m_i \ge 0} \sum (k_i b +
        m_i - P)^2, \quad \gamma = \frac{\sum_i \gamma_i / V_i}{\sum_i 1 / V_i}, \quad T_{comm} =
        \min_i T_i $$

        $\gamma_i$ is the mean of node i's measurements and $V_i$ the variance of that mean: the
        sample variance over their number, where (12) has the sample variance alone, which is worse
        where nodes have not measured equally often. Nodes with a single one do not count where
        others have two. $T_i$ is a mean over all rounds, too: the minimum of single times would be
        too small by their noise. A node whose times do not grow with its samples, or that has
        memory for one only, is taken to compute in proportion to them, as in (8). A quotient of
        noisy times is too large on average, by the share that the variance of P is of its square.

        Args:
            weighting: "inverse-variance", or "plain", the average of the $\gamma_i$.

        Raises:
            ValueError: another weighting.

        Source: Nie et al., "Cannikin", section 4.5.
        """
        if weighting not in get_args(Weighting):
            raise ValueError(
                f"Learner.model: weighting = {weighting!r}: need "
                f"{' or '.join(map(repr, get_args(Weighting)))}"
            )
        seen, heard = self.seen, self.seen.communication.number > 0
        if self.unknown.any() or not heard.any() or not seen.first.number.any():
            return None
        lines = Line.of(seen.computed, 1), Line.of(seen.computed, 2)
        (q, s), (k, m) = (line.fitted() for line in lines)
        still = q + k == 0
        (q, s), (k, m) = (
            np.where(still, line.through_zero(), each)
            for line, each in zip(lines, ((q, s), (k, m)), strict=True)
        )
        q = np.where(self.limits < 1, 1.0, q)  # anything will do
        T = seen.communication.mean[heard].min()
        gamma = float(np.clip(shared_mean(seen.first, weighting), 0, 1))
        return ClusterModel(
            q, s, k, m, gamma, (1 - self.last_share) * T, self.last_share * T, self.limits
        )

    @checks.arguments
    def next_batches(self, total: float) -> np.ndarray:
        r"""What each node should compute in the next epoch, real, `[n]`: OptPerf's of the model.
        Before there is one,

        $$ b_i = \frac{1 / t_i}{\sum_j 1 / t_j} B \quad (8) $$

        of the seconds of a sample in the last epoch, within the limits; nodes that have not been
        seen count as of average speed, so that all begin with equal parts. Nodes that were seen at
        one size, and would be again but for an eighth of it or one sample, get half as many and one
        and a half times as many in turn, in the order of size, and all are scaled to the total
        again. (One node alone has what the total is; so learns only from another total.)

        Args:
            total: B, samples.

        Raises:
            ValueError: B that is not above 0, infinite or NaN, or more than the limits allow.
        """
        model = self.model()
        if model is not None:
            return model.optperf(total).batches
        size, once = self.seen_at, ~np.isnan(self.seen_at)
        first = found = self._in_proportion(self._speeds(), total)
        again = np.zeros(self.nodes, bool)
        while (more := once & ~again & (np.abs(found - size) < np.maximum(1, _APART * size))).any():
            again |= more
            found = self._in_proportion(
                self._turns(again, first) * np.where(first > 0, first, 1), total
            )
        return found

    @checks.arguments
    def without(self, nodes: Sequence[int]) -> Learner:
        """When nodes have left: what the others have measured is kept; T_comm until they measure it
        among themselves.

        Args:
            nodes: their numbers; who is left is numbered anew in the same order.

        Raises:
            ValueError: numbers that no node has, all nodes.
        """
        if wrong := [node for node in nodes if not 0 <= node < self.nodes]:
            raise ValueError(
                f"Learner.without: nodes = {checks.shown(wrong)}: need numbers from 0 to "
                f"{self.nodes - 1}"
            )
        kept = np.setdiff1d(np.arange(self.nodes), np.asarray(nodes, int))
        if not kept.size:
            raise ValueError(f"Learner.without: nodes = {checks.shown(nodes)}: need one that stays")
        return replace(
            self,
            seen=jax.tree.map(lambda each: each[kept], self.seen),
            limits=self.limits[kept],
            moved=True,
        )

    @checks.arguments
    def joined(self, count: int, limits: Each | None = None) -> Learner:
        """When so many nodes have joined, which take the last numbers: they need two epochs; the
        others stay as they are.

        Args:
            count: how many.
            limits: of their memory, `[count]`; None: no limits.

        Raises:
            ValueError: count < 1, limits of another shape, negative or NaN.
        """
        most = _need_limits(
            "Learner.joined", limits, checks.positive_int("Learner.joined: count", count)
        )
        seen = jax.tree.map(lambda *each: np.concatenate(each), self.seen, _unseen(count))
        return replace(self, seen=seen, limits=np.concatenate([self.limits, most]), moved=True)

    def _need_times(self, name: str, values: ArrayLike) -> np.ndarray:
        times = np.asarray(values, float)
        if times.ndim != 2 or times.shape[1] != self.nodes:
            raise ValueError(
                f"Learner.observed: {name} of shape {list(times.shape)}: need [rounds, "
                f"{self.nodes}]"
            )
        if np.isinf(times).any() or (times < 0).any() or (name == "compute" and (times == 0).any()):
            least = "more than 0" if name == "compute" else "at least 0"
            raise ValueError(
                f"Learner.observed: {name} from {np.nanmin(times)} to {np.nanmax(times)}: need "
                f"seconds, {least}, or NaN"
            )
        return times

    def _speeds(self) -> np.ndarray:
        """Samples a second in the last epoch, the average of those for who has not been seen,
        `[n]`.
        """
        speeds = 1 / self.seen.per_sample
        known = ~np.isnan(speeds)
        return np.where(known, speeds, speeds[known].mean() if known.any() else 1.0)

    def _in_proportion(self, speeds: np.ndarray, total: float) -> np.ndarray:
        """Equation 8 within the limits: OptPerf of nodes that compute in proportion to their
        samples.
        """
        none = np.zeros(self.nodes)
        return (
            ClusterModel(1 / speeds, none, none, none, 0.0, 0.0, 0.0, self.limits)
            .optperf(total)
            .batches
        )

    def _turns(self, again: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Factors: fewer for these nodes where they have no room for more; for the others in turn,
        from the largest size on.
        """
        full = again & (self.limits < (1 + _APART) * np.fmax(sizes, self.seen.smallest))
        free = again & ~full
        order = np.flatnonzero(free)[np.argsort(-sizes[free], kind="stable")]
        factors = np.where(full, _FEWER, 1.0)
        factors[order] = np.resize(
            [_MORE, _FEWER, _FEWER, _MORE] if full.any() else [_FEWER, _MORE, _MORE, _FEWER],
            len(order),
        )
        return factors


@checks.arguments
def learner(nodes: int, last_share: float, limits: Each | None = None) -> Learner:
    """Of a cluster of which nothing is known but its buckets: `.observed` an epoch, `.model()`,
    `.next_batches(total)`.

    Args:
        nodes: n.
        last_share: T_u / T_comm, of the sizes of the last bucket and of all.
        limits: the most samples that each node has memory for, `[n]`; None: no limits.

    Raises:
        ValueError: n < 1, a share outside [0, 1], limits of another shape, negative or NaN.

    Source: Nie et al., "Cannikin: training DNN models over heterogeneous clusters with optimal
    performance", sections 4.2 and 4.5.
    """
    n = checks.positive_int("learner: nodes", nodes)
    need_probability("learner: last_share", last_share)
    return Learner(_unseen(n), float(last_share), _need_limits("learner", limits, n))


def _means(values: np.ndarray) -> np.ndarray:
    """Of each column without its NaNs, 0 where it has nothing else."""
    return np.nansum(values, axis=0) / np.maximum((~np.isnan(values)).sum(axis=0), 1)


def _unseen(n: int) -> Seen:
    unknown = np.full(n, np.nan)
    return Seen(nothing(n, 3), nothing(n, 1), nothing(n, 1), unknown, unknown, unknown)


def _need_limits(name: str, limits: Each | None, n: int) -> np.ndarray:
    most = np.full(n, np.inf) if limits is None else np.array(limits, float)
    if most.shape != (n,) or not (most >= 0).all():
        raise ValueError(f"{name}: limits = {checks.shown(limits)}: need {n} numbers, at least 0")
    return most


def shared_mean(measured: Moments, weighting: Weighting) -> float:
    """Of one number that is the same for all nodes: of those who have measured it twice, weighted
    by the inverse variances of their means; "plain": the average of the means."""
    often = measured.number > 1
    if weighting == "plain" or not often.any():
        return measured.mean[measured.number > 0, 0].mean()
    count = measured.number[often]
    variance = measured.products[often, 0, 0] / (count - 1) / count
    least = variance.min()
    weights = np.where(variance == least, 1.0, least / np.where(variance > 0, variance, 1))
    return float(np.average(measured.mean[often, 0], weights=weights))
