"""Systems that decide the local batches of the next epoch from the nodes' measurements in earlier
epochs.
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
    """Measurements of the n participating nodes in an epoch.

    Args:
        batches: samples of each node, int `[n]`.
        compute: seconds of their gradients, `[rounds, n]`.
        backward: seconds of their backward passes, `[rounds, n]`.
        first: seconds of the backward pass until the first bucket was ready, `[rounds, n]`.
        communication: seconds of their messages, `[rounds, n]`.
        noise: the gradient noise scale, smoothed over all epochs.
    """

    batches: np.ndarray
    compute: np.ndarray
    backward: np.ndarray
    first: np.ndarray
    communication: np.ndarray
    noise: NoiseScale


class Cluster(NamedTuple):
    """What a system knows of the nodes before the first epoch.

    Args:
        nodes: n.
        last_share: T_u / T_comm, the share of the gradient's bytes in the last bucket.
        limits: number of samples for which each node has memory, int `[n]`.
    """

    nodes: int
    last_share: float
    limits: np.ndarray


class System(NamedTuple):
    """A decision rule. Its states are values and are never modified.

    Args:
        start: Cluster -> state.
        decide: state -> (batches of each node, int `[n]`; state).
        observe: (state, Observation) -> state.
        resize: (state, indices of the nodes that stay, number of nodes that join after them, limits
            of all nodes) -> state.
        name: for tables.
    """

    start: Callable[[Cluster], Any]
    decide: Callable[[Any], tuple[np.ndarray, Any]]
    observe: Callable[[Any, Observation], Any]
    resize: Callable[[Any, np.ndarray, int, np.ndarray], Any]
    name: str


class _Tuned(NamedTuple):
    """State of LB-BSP.

    Args:
        cluster: the nodes.
        batches: current batches.
        before: batches before the last change.
        seconds: time of the slowest node at `before`.
        going: whether tuning continues.
    """

    cluster: Cluster
    batches: np.ndarray
    before: np.ndarray
    seconds: float
    going: bool


class _Modelled(NamedTuple):
    """State of systems that learn a model of the cluster."""

    cluster: Cluster
    learner: Learner
    candidates: Candidates
    noise: NoiseScale


@checks.arguments
def equal_split(total_batch: int) -> System:
    """PyTorch's DistributedDataParallel: a constant total batch in equal parts.

    Args:
        total_batch: B.

    Raises:
        ValueError: if B is less than 1. During training: if a node has too little memory for its
            part.
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
    """LB-BSP: after each epoch the slowest node gives samples to the fastest one, until that no
    longer helps.

    Args:
        total_batch: B, constant; the first epoch has equal parts.
        step: Delta, number of samples moved; 5 in the paper that Cannikin compares with.

    Raises:
        ValueError: if B or step is less than 1. During training: if a node has too little memory
            for equal parts.

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
        if seconds.max() > memory.seconds:  # the last change made it slower, so it is undone
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
    """AdaptDL: the candidate total batch with the largest goodput, in equal parts.

    Its throughput is that of the cluster model that Cannikin learns, at equal parts, because
    AdaptDL's own model has only one kind of node. The second epoch has about twice the batch of the
    first one, so that the model can be identified.

    Args:
        total_batches: candidates; those for which nodes have too little memory for equal parts are
            ignored.
        initial_batch: B_0, the batch of the first epochs and the reference of the efficiency.

    Raises:
        ValueError: if total batches are not integers of at least 1, or B_0 is less than 1. During
            training: if no total batch fits into the memory of all nodes.
    """
    return _adaptive("AdaptDL", total_batches, initial_batch, together=False)


@checks.arguments
def cannikin(total_batches: Totals, initial_batch: int | None = None) -> System:
    """Cannikin: the candidate total batch with the largest goodput at OptPerf, in OptPerf's parts.

    Args:
        total_batches: candidates, or one constant total batch; those for which the nodes have too
            little memory are ignored.
        initial_batch: B_0, the batch of the first epochs and the reference of the efficiency; None:
            the smallest candidate. (If B_0 has too few samples to give every node a second batch
            size, the second epoch uses the next larger candidate that has enough.)

    Raises:
        ValueError: see `adaptdl`.

    Source: Nie et al., "Cannikin", section 4.
    """
    return _adaptive("Cannikin", total_batches, initial_batch, together=True)


def _adaptive(
    name: str, total_batches: Totals, initial_batch: int | None, *, together: bool
) -> System:
    """Returns Cannikin if `together` is set (total batch and parts are chosen together), and
    AdaptDL otherwise (equal parts).
    """
    totals = np.unique(np.atleast_1d(np.asarray(total_batches)))
    if not totals.size or not np.issubdtype(totals.dtype, np.integer) or totals[0] < 1:
        raise ValueError(
            f"cannikin.{name.lower()}: total_batches = {checks.show(total_batches)}; expected "
            "integers >= 1"
        )
    totals = totals.astype(np.int64)  # products of small integer types would overflow
    initial_batch = checks.positive_int(
        f"cannikin.{name.lower()}: initial_batch",
        totals[0] if initial_batch is None else initial_batch,
    )

    def start(cluster):
        room = np.sum(cluster.limits) if together else cluster.nodes * np.min(cluster.limits)
        fitting = totals[totals <= room]
        if not fitting.size:
            raise ValueError(
                f"{name}: total batches of {totals[0]} samples or more, but the nodes have "
                f"memory for {room}; expected smaller ones"
            )
        fresh = learner(cluster.nodes, cluster.last_share, cluster.limits)
        return _Modelled(cluster, fresh, Candidates(fitting), NoiseScale(0.0, 0.0, 0.0))

    def decide(memory):
        model = memory.learner.model()
        if model is None:
            if together:
                return _other_sizes(memory, initial_batch), memory
            return equal_parts(_to_learn_from(memory, initial_batch), memory.cluster.limits), memory
        total, candidates = memory.candidates.choose(
            model if together else EqualParts(model), memory.noise.samples, initial_batch
        )
        batches = (
            model.optperf_integer(total).batches
            if together
            else equal_parts(total, memory.cluster.limits)
        )
        return batches, memory._replace(candidates=candidates)

    def observe(memory, seen):
        known = memory.learner.observe(
            seen.batches, seen.compute, seen.backward, seen.first, seen.communication
        )
        return memory._replace(learner=known, noise=seen.noise)

    def resize(memory, stay, joined, limits):
        fresh = start(Cluster(len(limits), memory.cluster.last_share, limits))
        if not len(stay):
            return fresh._replace(noise=memory.noise)
        gone = np.setdiff1d(np.arange(memory.cluster.nodes), stay)
        known = memory.learner.remove(gone.tolist()) if gone.size else memory.learner
        known = known.add(joined, limits[len(stay) :]) if joined else known
        return fresh._replace(learner=known, noise=memory.noise)

    return System(start, decide, observe, resize, name)


def _other_sizes(memory: _Modelled, initial_batch: int) -> np.ndarray:
    """Returns Cannikin's batches before there is a model: those of B_0. In later epochs, if B_0 has
    too few samples for a new size of each node that needs one, it uses the next larger total batch
    that has enough.
    """
    known, limits = memory.learner, memory.cluster.limits

    def parts(total: int) -> np.ndarray:
        return perturb(whole(known.next_batches(total), total, limits), known.seen_at, limits)

    def is_informative(batches: np.ndarray) -> bool:
        return bool(((batches > 0) & (batches != known.seen_at))[known.unknown].all())

    if np.isnan(known.seen.smallest).all():
        return parts(initial_batch)
    larger = (total for total in memory.candidates.totals.tolist() if total > initial_batch)
    return next(filter(is_informative, map(parts, (initial_batch, *larger))), parts(initial_batch))


def _to_learn_from(memory: _Modelled, initial_batch: int) -> int:
    """Returns AdaptDL's total batch before there is a model: first B_0, then the candidate closest
    to 2 B_0 at which every node has another size than the only one measured so far, because one
    size does not separate the fixed seconds from those per sample.
    """
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
    """A cluster model whose nodes always have equal parts."""

    model: ClusterModel

    @property
    def nodes(self) -> int:
        """n, the number of nodes."""
        return self.model.nodes

    def optperf(self, total_batch: Any) -> OptPerf:
        """Returns the equal parts and their time."""
        batches = np.repeat(
            np.asarray(total_batch, float)[..., None] / self.nodes, self.nodes, axis=-1
        )
        return OptPerf(self.model.batch_time(batches), batches)

    def computes_longer(self, batches: Any) -> np.ndarray:
        """See `ClusterModel.computes_longer`."""
        return self.model.computes_longer(batches)


def _means(times: np.ndarray) -> np.ndarray:
    """Returns the mean over the rounds in which a node measured something, `[rounds, n]` to `[n]`;
    0 if there are none.
    """
    there = ~np.isnan(times)
    return np.where(there, times, 0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)


# --- A total batch in whole parts.


def equal_parts(total: int, limits: np.ndarray) -> np.ndarray:
    """Returns equal integer parts; the first nodes may have one sample more.

    Args:
        total: B.
        limits: number of samples for which each node has memory, `[n]`.

    Raises:
        ValueError: if a node has too little memory for its part.
    """
    n = len(limits)
    batches = total // n + (np.arange(n) < total % n)
    if (full := np.flatnonzero(batches > limits)).size:
        i = full[0]
        raise ValueError(
            f"equal parts of {total} samples: node {i} gets {batches[i]} but has memory for "
            f"{limits[i]}; expected a smaller total batch"
        )
    return batches


def whole(parts: np.ndarray, total: int, limits: np.ndarray) -> np.ndarray:
    """Returns integer samples close to these parts, `[n]`, which add up to `total` within the
    limits: rounded down, with the remaining samples assigned by the largest remainders.
    """
    parts = np.minimum(parts, limits)
    batches = np.floor(parts).astype(int)
    while (left := total - batches.sum()) > 0:
        room = batches < limits
        order = np.argsort(np.where(room, batches - parts, np.inf), kind="stable")
        batches[order[: min(left, room.sum())]] += 1
    return batches


def perturb(batches: np.ndarray, seen_at: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Returns batches with the same total in which pairs of nodes exchange a sample if rounding
    gave them the only size at which they were measured, because a line needs two sizes.

    With one such node, or an odd number, another node gives it a sample.
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
    """Moves one sample, if it is not the last one of the giving node and the other one has memory
    for it.
    """
    if batches[fewer] > 1 and batches[more] < limits[more]:
        batches[[fewer, more]] += [-1, 1]
