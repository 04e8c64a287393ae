"""A cluster model learned from the nodes' measurements, epoch by epoch: two batch sizes for each
node, then least squares.
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
from dsgd.clusters.quantity import require_probability

Weighting = Literal["inverse-variance", "plain"]
Each = Annotated[Sequence[float] | np.ndarray, "a number for each node"]
_MORE, _FEWER = 1.5, 0.5  # factors of equation 8's batch for a node whose size must differ
_APART = 1 / 8  # sizes with a smaller relative difference count as the same


class Moments(NamedTuple):
    """Moments of d quantities that each node measures together.

    Args:
        number: number of measurements, `[n]`.
        mean: `[n, d]`.
        products: sums of products of deviations from the mean, `[n, d, d]`.
    """

    number: np.ndarray
    mean: np.ndarray
    products: np.ndarray

    def and_of(self, values: np.ndarray) -> Moments:
        """Returns the moments updated with more rounds, `[rounds, n, d]`; rounds with a NaN are
        ignored.
        """
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
    """Returns the moments of n nodes without measurements."""
    return Moments(np.zeros(n, int), np.zeros((n, d)), np.zeros((n, d, d)))


class Line(NamedTuple):
    """Moments of points (b, t) of each node, `[n]`."""

    number: np.ndarray
    b: np.ndarray
    t: np.ndarray
    bb: np.ndarray
    bt: np.ndarray

    @classmethod
    def from_moments(cls, points: Moments, column: int) -> Line:
        """Constructs the moments of a column of the points over the first column, b."""
        return cls(
            points.number,
            points.mean[:, 0],
            points.mean[:, column],
            points.products[:, 0, 0],
            points.products[:, 0, column],
        )

    def fit(self) -> np.ndarray:
        """Returns the least-squares line with non-negative slope and intercept, `[2, n]`: if the
        unconstrained line has a negative one, one of the two is 0.
        """
        slope = _quotient(self.bt, self.bb)
        free = np.array([slope, self.t - slope * self.b])
        flat, through = (
            np.array([np.zeros_like(self.t), np.maximum(self.t, 0)]),
            self.fit_through_zero(),
        )
        edge = np.where(self._loss(flat) <= self._loss(through), flat, through)
        return np.where((free >= 0).all(axis=0), free, edge)

    def fit_through_zero(self) -> np.ndarray:
        """Returns the least-squares line with an intercept of 0."""
        slope = _quotient(
            self.bt + self.number * self.b * self.t, self.bb + self.number * self.b**2
        )
        return np.array([np.maximum(slope, 0), np.zeros_like(slope)])

    def _loss(self, line: np.ndarray) -> np.ndarray:
        """Returns the sum of squares, up to a constant."""
        slope, fixed = line
        return (
            self.bb * slope**2
            - 2 * self.bt * slope
            + self.number * (self.t - slope * self.b - fixed) ** 2
        )


def _quotient(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Returns the quotient; 0 for nodes whose points determine no slope."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


class Observed(NamedTuple):
    """All measurements so far; NaN for nodes without measurements.

    Args:
        computed: moments of (b, a, P).
        first: moments of gamma.
        communication: moments of T_comm.
        smallest, largest: smallest and largest measured batch of each node, `[n]`.
        per_sample: seconds per sample in the last epoch, `[n]`.
    """

    computed: Moments
    first: Moments
    communication: Moments
    smallest: np.ndarray
    largest: np.ndarray
    per_sample: np.ndarray


@dataclass(frozen=True, eq=False)
class Learner:
    """What is known of a cluster. It is made by `learner` and never modified; each epoch makes a
    new one.

    Args:
        seen: the nodes' measurements.
        last_share: T_u / T_comm.
        limits: largest number of samples for which each node has memory, `[n]`, or infinity.
        moved: whether nodes have left or joined since communication was measured.
    """

    seen: Observed
    last_share: float
    limits: np.ndarray
    moved: bool = False

    @property
    def nodes(self) -> int:
        """n, the number of nodes."""
        return len(self.limits)

    @property
    def unknown(self) -> np.ndarray:
        """Nodes that must be measured at another batch size before there is a model, bool `[n]`. A
        node with memory for one sample has no other size, and a node without memory need not be
        measured.
        """
        seen = ~np.isnan(self.seen.smallest)
        return ~(
            (self.seen.largest > self.seen.smallest)
            | (self.limits < 1)
            | ((self.limits < 2) & seen)
        )

    @property
    def seen_at(self) -> np.ndarray:
        """Returns the batch size at which each node was measured, for nodes that must be measured
        at another size before there is a model, `[n]`; NaN for all other nodes.
        """
        return np.where(self.unknown, self.seen.smallest, np.nan)

    @checks.arguments
    def observe(
        self,
        batches: Each,
        compute: ArrayLike,
        backward: ArrayLike,
        first: ArrayLike,
        communication: ArrayLike,
    ) -> Learner:
        """Returns the learner updated with one more epoch of each node's measurements: seconds
        `[rounds, n]`, NaN if nothing was measured.

        Args:
            batches: b, samples of each node, `[n]`.
            compute: a + P.
            backward: P.
            first: gamma P, until the first bucket was ready.
            communication: T_comm, without waiting for other nodes. If the measured times include
                waiting, pass each round's minimum over the nodes for all of them.

        Raises:
            ValueError: if shapes do not match, times are negative or infinite, computation takes no
                time, or batches are negative, infinite or NaN.
        """
        b = np.asarray(batches, float)
        if b.shape != (self.nodes,) or not (np.isfinite(b) & (b >= 0)).all():
            raise ValueError(
                f"Learner.observe: batches = {checks.show(batches)}; expected {self.nodes} "
                "finite numbers >= 0"
            )
        given = {
            "compute": compute,
            "backward": backward,
            "first": first,
            "communication": communication,
        }
        times = {name: self._require_times(name, values) for name, values in given.items()}
        if len({len(values) for values in times.values()}) > 1:
            shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in times.items())
            raise ValueError(
                f"Learner.observe: {shapes}; expected the same number of rounds for all"
            )
        total, P, until_first, T_comm = times.values()
        gamma = np.divide(until_first, P, out=np.full(P.shape, np.nan), where=P > 0)
        points = np.stack([np.broadcast_to(b, P.shape), total - P, P], axis=2)
        seen, fresh = self.seen, nothing(self.nodes, 1).and_of(T_comm[:, :, None])
        afresh = self.moved and fresh.number.any()
        known, here = ~np.isnan(points).any(axis=2).all(axis=0), _means(total)
        after = Observed(
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
        r"""Returns the cluster model: least squares over all rounds, with non-negative
        coefficients. None until every node was measured at two batch sizes, and at least one node's
        first bucket and messages were measured.

        $$ \min_{q_i, s_i \ge 0} \sum (q_i b + s_i - a)^2, \quad \min_{k_i, m_i \ge 0} \sum (k_i b +
        m_i - P)^2, \quad \gamma = \frac{\sum_i \gamma_i / V_i}{\sum_i 1 / V_i}, \quad T_{comm} =
        \min_i T_i $$

        $\gamma_i$ is the mean of node i's measurements and $V_i$ the variance of that mean: the
        sample variance divided by the number of measurements. Equation (12) has the sample variance
        alone, which is worse if nodes have different numbers of measurements. Nodes with a single
        measurement are ignored if others have two. $T_i$ is also a mean over all rounds, because
        the minimum of single times would be biased by their noise. A node whose times do not grow
        with its samples, or that has memory for one sample only, is modelled with times
        proportional to its samples, as in (8). A quotient of noisy times is biased upwards on
        average, by the ratio of the variance of P to its square.

        Args:
            weighting: "inverse-variance", or "plain", the average of the $\gamma_i$.

        Raises:
            ValueError: if the weighting is unknown.

        Source: Nie et al., "Cannikin", section 4.5.
        """
        if weighting not in get_args(Weighting):
            raise ValueError(
                f"Learner.model: weighting = {weighting!r}; expected "
                f"{' or '.join(map(repr, get_args(Weighting)))}"
            )
        seen, heard = self.seen, self.seen.communication.number > 0
        if self.unknown.any() or not heard.any() or not seen.first.number.any():
            return None
        lines = Line.from_moments(seen.computed, 1), Line.from_moments(seen.computed, 2)
        (q, s), (k, m) = (line.fit() for line in lines)
        still = q + k == 0
        (q, s), (k, m) = (
            np.where(still, line.fit_through_zero(), each)
            for line, each in zip(lines, ((q, s), (k, m)), strict=True)
        )
        q = np.where(self.limits < 1, 1.0, q)  # an arbitrary value, because the node has no memory
        T = seen.communication.mean[heard].min()
        gamma = float(np.clip(shared_mean(seen.first, weighting), 0, 1))
        return ClusterModel(
            q, s, k, m, gamma, (1 - self.last_share) * T, self.last_share * T, self.limits
        )

    @checks.arguments
    def next_batches(self, total: float) -> np.ndarray:
        r"""Returns what each node should compute in the next epoch, real, `[n]`: OptPerf of the
        model if there is one. Otherwise,

        $$ b_i = \frac{1 / t_i}{\sum_j 1 / t_j} B \quad (8) $$

        with the seconds per sample of the last epoch, within the limits. Nodes without measurements
        count as having average speed, so that all start with equal parts. Nodes that were measured
        at only one size, and whose new size would differ from it by less than an eighth or one
        sample, alternately get 0.5 and 1.5 times their samples, in the order of size, and all are
        scaled to the total again. (A single node always has the total batch, so it learns only if
        the total changes.)

        Args:
            total: B, samples.

        Raises:
            ValueError: if B is not positive and finite, or exceeds the sum of the limits.
        """
        checks.number("Learner.next_batches: total", total, "(0, inf)")
        model = self.model()
        if model is not None:
            return model.optperf(total).batches
        size, once = self.seen_at, ~np.isnan(self.seen_at)
        first = found = self._split_in_proportion(self._speeds(), total)
        again = np.zeros(self.nodes, bool)
        while (more := once & ~again & (np.abs(found - size) < np.maximum(1, _APART * size))).any():
            again |= more
            found = self._split_in_proportion(
                self._turns(again, first) * np.where(first > 0, first, 1), total
            )
        return found

    @checks.arguments
    def remove(self, nodes: Sequence[int]) -> Learner:
        """Returns the learner after nodes have left. The measurements of the other nodes are kept;
        T_comm is kept until they measure it among themselves.

        Args:
            nodes: indices of the nodes that left; the remaining nodes are renumbered in the same
                order.

        Raises:
            ValueError: if an index is out of range, or no node remains.
        """
        if wrong := [node for node in nodes if not 0 <= node < self.nodes]:
            raise ValueError(
                f"Learner.remove: nodes = {checks.show(wrong)}; expected indices from 0 to "
                f"{self.nodes - 1}"
            )
        kept = np.setdiff1d(np.arange(self.nodes), np.asarray(nodes, int))
        if not kept.size:
            raise ValueError(
                f"Learner.remove: nodes = {checks.show(nodes)}; expected at least one node that "
                "stays"
            )
        return replace(
            self,
            seen=jax.tree.map(lambda each: each[kept], self.seen),
            limits=self.limits[kept],
            moved=True,
        )

    @checks.arguments
    def add(self, count: int, limits: Each | None = None) -> Learner:
        """Returns the learner after nodes have joined with the last indices. They need two epochs;
        the other nodes are unchanged.

        Args:
            count: number of new nodes.
            limits: number of samples for which they have memory, `[count]`; None: no limits.

        Raises:
            ValueError: if count is less than 1, or limits have another shape, are negative or NaN.
        """
        most = _require_limits(
            "Learner.add", limits, checks.positive_int("Learner.add: count", count)
        )
        seen = jax.tree.map(lambda *each: np.concatenate(each), self.seen, _unseen(count))
        return replace(self, seen=seen, limits=np.concatenate([self.limits, most]), moved=True)

    def _require_times(self, name: str, values: ArrayLike) -> np.ndarray:
        times = np.asarray(values, float)
        if times.ndim != 2 or times.shape[1] != self.nodes:
            raise ValueError(
                f"Learner.observe: {name} has the shape {list(times.shape)}; expected [rounds, "
                f"{self.nodes}]"
            )
        if np.isinf(times).any() or (times < 0).any() or (name == "compute" and (times == 0).any()):
            least = "> 0" if name == "compute" else ">= 0"
            raise ValueError(
                f"Learner.observe: {name} from {np.nanmin(times)} to {np.nanmax(times)}; expected "
                f"seconds {least}, or NaN"
            )
        return times

    def _speeds(self) -> np.ndarray:
        """Returns the samples per second in the last epoch, `[n]`; the average of the others for
        nodes without measurements.
        """
        speeds = 1 / self.seen.per_sample
        known = ~np.isnan(speeds)
        return np.where(known, speeds, speeds[known].mean() if known.any() else 1.0)

    def _split_in_proportion(self, speeds: np.ndarray, total: float) -> np.ndarray:
        """Returns equation 8 within the limits: OptPerf of nodes whose times are proportional to
        their samples.
        """
        none = np.zeros(self.nodes)
        return (
            ClusterModel(1 / speeds, none, none, none, 0.0, 0.0, 0.0, self.limits)
            .optperf(total)
            .batches
        )

    def _turns(self, again: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns the factors of the batches: less than 1 for those of the `again` nodes that have
        no memory for more samples; for the others less and more than 1 alternately, from the
        largest size on.
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
    """Returns a learner for a cluster of which only the buckets are known; use `.observed` after
    each epoch, `.model()` and `.next_batches(total)`.

    Args:
        nodes: n.
        last_share: T_u / T_comm, the size of the last bucket relative to all.
        limits: largest number of samples for which each node has memory, `[n]`; None: no limits.

    Raises:
        ValueError: if n is less than 1, the share is not in [0, 1], or limits have another shape,
            are negative or NaN.

    Source: Nie et al., "Cannikin: training DNN models over heterogeneous clusters with optimal
    performance", sections 4.2 and 4.5.
    """
    n = checks.positive_int("learner: nodes", nodes)
    require_probability("learner: last_share", last_share)
    return Learner(_unseen(n), float(last_share), _require_limits("learner", limits, n))


def _means(values: np.ndarray) -> np.ndarray:
    """Returns the mean of each column without its NaNs; 0 if it has only NaNs."""
    return np.nansum(values, axis=0) / np.maximum((~np.isnan(values)).sum(axis=0), 1)


def _unseen(n: int) -> Observed:
    unknown = np.full(n, np.nan)
    return Observed(nothing(n, 3), nothing(n, 1), nothing(n, 1), unknown, unknown, unknown)


def _require_limits(name: str, limits: Each | None, n: int) -> np.ndarray:
    most = np.full(n, np.inf) if limits is None else np.array(limits, float)
    if most.shape != (n,) or not (most >= 0).all():
        raise ValueError(f"{name}: limits = {checks.show(limits)}; expected {n} numbers >= 0")
    return most


def shared_mean(measured: Moments, weighting: Weighting) -> float:
    """Estimates one number that is the same for all nodes: the mean over nodes with at least two
    measurements, weighted by the inverse variances of their means; "plain": the average of the
    means.
    """
    often = measured.number > 1
    if weighting == "plain" or not often.any():
        return measured.mean[measured.number > 0, 0].mean()
    count = measured.number[often]
    variance = measured.products[often, 0, 0] / (count - 1) / count
    least = variance.min()
    weights = np.where(variance == least, 1.0, least / np.where(variance > 0, variance, 1))
    return float(np.average(measured.mean[often, 0], weights=weights))
