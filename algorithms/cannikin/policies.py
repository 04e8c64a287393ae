"""Who computes how much in the next epoch: four systems, each of which decides from what nodes
measured in the last ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from algorithms.cannikin.candidates import Candidates
from algorithms.cannikin.learning import Learner, learner
from algorithms.cannikin.model import ClusterModel, OptPerf
from algorithms.cannikin.noise_scale import NoiseScale
from dsgd import checks

Totals = Annotated[
    int | Sequence[int] | np.ndarray, "a number of samples, or a list of them to choose from"
]


class Observation(NamedTuple):
    """What the nodes measured in an epoch; n of them were there.

    Args:
        batches: samples of each, int `[n]`.
        compute: seconds of their gradients, `[rounds, n]`.
        backward: of their backward passes, likewise.
        first: of these, until the first bucket was ready.
        communication: seconds of their messages.
        noise: the gradient noise, smoothed over all epochs.
    """

    batches: np.ndarray
    compute: np.ndarray
    backward: np.ndarray
    first: np.ndarray
    communication: np.ndarray
    noise: NoiseScale


class Cluster(NamedTuple):
    """What a system is told of the nodes before the first epoch.

    Args:
        nodes: n.
        last_share: T_u / T_comm, the share of the gradient's bytes that the last bucket has.
        limits: samples for which each has memory, int `[n]`.
    """

    nodes: int
    last_share: float
    limits: np.ndarray


class System(NamedTuple):
    """A way to decide. Memories are values: nothing of them is changed.

    Args:
        start: Cluster -> memory.
        decide: memory -> (batches of each node, int `[n]`; memory).
        observe: (memory, Observation) -> memory.
        resize: (memory, indices of the nodes that stay, how many join behind them, limits of all)
            -> memory.
        name: for tables.
    """

    start: Callable[[Cluster], Any]
    decide: Callable[[Any], tuple[np.ndarray, Any]]
    observe: Callable[[Any, Observation], Any]
    resize: Callable[[Any, np.ndarray, int, np.ndarray], Any]
    name: str


class _Tuned(NamedTuple):
    """What LB-BSP remembers: its batches, what they were before the last change, how long the
    slowest took then, and whether it goes on.
    """

    cluster: Cluster
    batches: np.ndarray
    before: np.ndarray
    seconds: float
    going: bool


class _Modelled(NamedTuple):
    """What systems with a model remember."""

    cluster: Cluster
    learner: Learner
    candidates: Candidates
    noise: NoiseScale


@checks.arguments
def equal_split(total_batch: int) -> System:
    """PyTorch's DistributedDataParallel: always the same total batch, in equal parts.

    Args:
        total_batch: B.

    Raises:
        ValueError: B < 1. When it runs: parts for which a node has no memory.
    """
    checks.positive_int("cannikin.equal_split: total_batch", total_batch)
    return System(
        start=lambda cluster: cluster,
        decide=lambda cluster: (equal_parts(total_batch, cluster.limits), cluster),
        observe=lambda cluster, seen: cluster,
        resize=lambda cluster, stay, joined, limits: Cluster(
            len(limits), cluster.last_share, limits
        ),
        name="DDP",
    )


@checks.arguments
def lb_bsp(total_batch: int, step: int = 5) -> System:
    """LB-BSP: after each epoch the node that computed longest gives samples to the one that was
    done first, until that no longer helps.

    Args:
        total_batch: B, always the same; equal parts at first.
        step: Delta, samples; 5 in the paper that Cannikin compares with.

    Raises:
        ValueError: B or step < 1. When it runs: equal parts for which a node has no memory.

    Source: Chen et al., "Fast distributed deep learning via worker-adaptive batch sizing", 2020.
    """
    checks.positive_int("cannikin.lb_bsp: total_batch", total_batch)
    checks.positive_int("cannikin.lb_bsp: step", step)

    def start(cluster):
        batches = equal_parts(total_batch, cluster.limits)
        return _Tuned(cluster, batches, batches, np.inf, True)

    def observe(memory, seen):
        seconds = _means(seen.compute)
        if not memory.going:
            return memory
        if seconds.max() > memory.seconds:  # the last change was one too many
            return memory._replace(batches=memory.before, going=False)
        slow = int(np.argmax(seconds))
        fast = int(np.argmin(np.where(memory.batches < memory.cluster.limits, seconds, np.inf)))
        moved = min(step, memory.batches[slow], memory.cluster.limits[fast] - memory.batches[fast])
        change = moved * (np.arange(len(seconds)) == fast) - moved * (
            np.arange(len(seconds)) == slow
        )
        return memory._replace(
            batches=memory.batches + change, before=memory.batches, seconds=seconds.max()
        )

    return System(
        start=start,
        decide=lambda memory: (memory.batches, memory),
        observe=observe,
        resize=lambda memory, stay, joined, limits: start(
            Cluster(len(limits), memory.cluster.last_share, limits)
        ),
        name="LB-BSP",
    )


@checks.arguments
def adaptdl(total_batches: Totals, initial_batch: int) -> System:
    """AdaptDL: of some total batches the one of the largest goodput, in equal parts.

    Its throughput is that of the same model of the cluster that Cannikin learns, at equal parts:
    AdaptDL's own knows one kind of node. Its second epoch has about twice the first one's batch, so
    that there is something to learn from.

    Args:
        total_batches: to choose from, as far as nodes have memory for equal parts.
        initial_batch: B_0, of the first epochs, and that which others are compared with.

    Raises:
        ValueError: total batches that are not whole numbers of 1 or more, B_0 < 1. When it runs: no
            total batch for whose parts all nodes have memory.
    """
    return _adaptive("AdaptDL", total_batches, initial_batch, together=False)


@checks.arguments
def cannikin(total_batches: Totals, initial_batch: int | None = None) -> System:
    """Cannikin: of some total batches the one of the largest goodput at OptPerf, in its parts.

    Args:
        total_batches: to choose from, as far as nodes have memory; or one number, which stays.
        initial_batch: B_0, of the first epochs, and that which others are compared with; None: the
            smallest. (Where it has too few samples for a second size of every node, the second
            epoch has the next larger one that has enough.)

    Raises:
        ValueError: as of `adaptdl`.

    Source: Nie et al., "Cannikin", section 4.
    """
    return _adaptive("Cannikin", total_batches, initial_batch, together=True)


def _adaptive(
    name: str, total_batches: Totals, initial_batch: int | None, *, together: bool
) -> System:
    """Cannikin where a total batch and its parts are chosen together, AdaptDL where parts are
    equal.
    """
    totals = np.unique(np.atleast_1d(np.asarray(total_batches)))
    if not totals.size or not np.issubdtype(totals.dtype, np.integer) or totals[0] < 1:
        raise ValueError(
            f"cannikin.{name.lower()}: total_batches = {checks.shown(total_batches)}: need whole "
            "numbers, at least 1"
        )
    totals = totals.astype(np.int64)  # products of small types would overflow
    initial_batch = checks.positive_int(
        f"cannikin.{name.lower()}: initial_batch",
        totals[0] if initial_batch is None else initial_batch,
    )

    def start(cluster):
        room = np.sum(cluster.limits) if together else cluster.nodes * np.min(cluster.limits)
        fitting = totals[totals <= room]
        if not fitting.size:
            raise ValueError(
                f"{name}: total batches of {totals[0]} samples or more, but nodes have room for "
                f"{room}: need smaller ones"
            )
        fresh = learner(cluster.nodes, cluster.last_share, cluster.limits)
        return _Modelled(cluster, fresh, Candidates(fitting), NoiseScale(0.0, 0.0, 0.0))

    def decide(memory):
        model = memory.learner.model()
        if model is None:
            if together:
                return _other_sizes(memory, initial_batch), memory
            return equal_parts(_to_learn_from(memory, initial_batch), memory.cluster.limits), memory
        total, candidates = memory.candidates.chosen(
            model if together else EqualParts(model), memory.noise.samples, initial_batch
        )
        batches = (
            model.optperf_integer(total).batches
            if together
            else equal_parts(total, memory.cluster.limits)
        )
        return batches, memory._replace(candidates=candidates)

    def observe(memory, seen):
        known = memory.learner.observed(
            seen.batches, seen.compute, seen.backward, seen.first, seen.communication
        )
        return memory._replace(learner=known, noise=seen.noise)

    def resize(memory, stay, joined, limits):
        fresh = start(Cluster(len(limits), memory.cluster.last_share, limits))
        if not len(stay):
            return fresh._replace(noise=memory.noise)
        gone = np.setdiff1d(np.arange(memory.cluster.nodes), stay)
        known = memory.learner.without(gone.tolist()) if gone.size else memory.learner
        known = known.joined(joined, limits[len(stay) :]) if joined else known
        return fresh._replace(learner=known, noise=memory.noise)

    return System(start, decide, observe, resize, name)


def _other_sizes(memory: _Modelled, initial_batch: int) -> np.ndarray:
    """Cannikin's batches before there is a model: of B_0; in later epochs, where it has too few
    samples for a new size of each node that needs one, of the next larger total batch that has
    enough."""
    known, limits = memory.learner, memory.cluster.limits

    def parts(total: int) -> np.ndarray:
        return unlike(whole(known.next_batches(total), total, limits), known.seen_at, limits)

    def tells(batches: np.ndarray) -> bool:
        return bool(((batches > 0) & (batches != known.seen_at))[known.unknown].all())

    if np.isnan(known.seen.smallest).all():
        return parts(initial_batch)
    larger = (total for total in memory.candidates.totals.tolist() if total > initial_batch)
    return next(filter(tells, map(parts, (initial_batch, *larger))), parts(initial_batch))


def _to_learn_from(memory: _Modelled, initial_batch: int) -> int:
    """AdaptDL's total batch before there is a model: B_0, then the one nearest to twice as many at
    which every node has another size than the only one that it was seen at: from one size, fixed
    seconds and those of a sample cannot be told apart."""
    known = memory.learner
    if np.isnan(known.seen.smallest).any():
        return initial_batch
    new = [
        each
        for each in memory.candidates.totals.tolist()
        if (equal_parts(each, memory.cluster.limits) != known.seen_at).all()
    ]
    return min(new, key=lambda each: abs(np.log(each / (2 * initial_batch))), default=initial_batch)


class EqualParts(NamedTuple):
    """A cluster whose nodes always have equal parts, in the place of a model."""

    model: ClusterModel

    @property
    def nodes(self) -> int:
        """n."""
        return self.model.nodes

    def optperf(self, total_batch: Any) -> OptPerf:
        """Its only batches, and how long they take."""
        batches = np.repeat(
            np.asarray(total_batch, float)[..., None] / self.nodes, self.nodes, axis=-1
        )
        return OptPerf(self.model.batch_time(batches), batches)

    def computes_longer(self, batches: Any) -> np.ndarray:
        """As of the model."""
        return self.model.computes_longer(batches)


def _means(times: np.ndarray) -> np.ndarray:
    """Over rounds in which a node measured something, `[rounds, n]` to `[n]`; 0 of a node that did
    in none.
    """
    there = ~np.isnan(times)
    return np.where(there, times, 0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)


# --- A total batch in whole parts.


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
        raise ValueError(
            f"equal parts of {total} samples: {batches[i]} of node {i}, which has room for "
            f"{limits[i]}: need fewer"
        )
    return batches


def whole(parts: np.ndarray, total: int, limits: np.ndarray) -> np.ndarray:
    """Whole samples near these parts, `[n]`, so many in all, within the limits: rounded down, the
    rest by the largest remainders.
    """
    parts = np.minimum(parts, limits)
    batches = np.floor(parts).astype(int)
    while (left := total - batches.sum()) > 0:
        room = batches < limits
        order = np.argsort(np.where(room, batches - parts, np.inf), kind="stable")
        batches[order[: min(left, room.sum())]] += 1
    return batches


def unlike(batches: np.ndarray, seen_at: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """The same total, where nodes that rounding has given the only size they were seen at swap a
    sample: two sizes make a line.

    With one such node, or an odd number, another one gives it a sample.
    """
    batches = batches.copy()
    again = np.flatnonzero(batches == seen_at).tolist()
    for one, other in zip(again[::2], again[1::2], strict=False):
        more, fewer = (
            (one, other) if batches[one] < limits[one] and batches[other] > 1 else (other, one)
        )
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
