"""Partition of the samples over the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from dsgd import array_likes, checks, spelling
from dsgd.base import Problem
from dsgd.engine import pooled
from dsgd.problems.examples import Examples


def _iid(
    labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    return np.array_split(rng.permutation(len(labels)), workers)


def _blocks(
    labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    return np.array_split(np.arange(len(labels)), workers)


def _label_blocks(
    labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    shuffled = rng.permutation(len(labels))
    return np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], workers)


def _dirichlet(
    labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator, least: int = 1
) -> list[np.ndarray]:
    if not 0 < alpha < np.inf:
        raise ValueError(
            f"split: alpha = {alpha} for a Dirichlet partition; expected a finite number > 0"
        )
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    concentration = np.full(workers, alpha)
    pieces = []
    for members in classes:
        shuffled = rng.permutation(members)
        pieces.append(np.split(shuffled, _ends(rng.dirichlet(concentration), len(members))))
    if min(map(len, _join(pieces))) < least:
        found = _better_ends(
            concentration, np.array([len(members) for members in classes]), rng, least
        )
        pieces = [
            np.split(rng.permutation(members), ends)
            for members, ends in zip(classes, found, strict=True)
        ]
    return [rng.permutation(part) for part in _join(pieces)]


def _join(pieces: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Returns each worker's samples, given each class's pieces for the workers."""
    return [np.concatenate(share) for share in zip(*pieces, strict=True)]


def _ends(proportions: np.ndarray, members: int | np.ndarray) -> np.ndarray:
    """Returns the indices at which a class is split, given proportions: `[..., N]` to `[..., N -
    1]`.
    """
    return np.round(
        np.cumsum(proportions, axis=-1)[..., :-1] * np.asarray(members)[..., None]
    ).astype(int)


def _better_ends(
    concentration: np.ndarray, counts: np.ndarray, rng: np.random.Generator, least: int
) -> np.ndarray:
    """Returns the indices at which the classes are split, `[classes, N - 1]`: those of the first of
    `_TRIES` draws in which every worker gets at least `least` samples, or of the draw with the
    largest minimum.

    Args:
        concentration: alpha, `[N]`.
        counts: number of samples of each class.
        rng: generator of the draws.
        least: number of samples that each worker needs.
    """
    best, most = np.empty(0), -1
    tries = max(1, min(256, (1 << 20) // (len(counts) * len(concentration))))
    for _ in range(-(-_TRIES // tries)):
        ends = _ends(rng.dirichlet(concentration, (tries, len(counts))), counts)
        whole = np.broadcast_to(counts[:, None], (*ends.shape[:2], 1))
        smallest = np.diff(ends, axis=2, prepend=0, append=whole).sum(axis=1).min(axis=1)
        enough = np.flatnonzero(smallest >= least)
        at = int(enough[0]) if enough.size else int(smallest.argmax())
        if smallest[at] > most:
            best, most = ends[at], int(smallest[at])
        if enough.size:
            break
    return best


_TRIES = 10_000  # draws of the proportions before a Dirichlet partition is refused
BY_CLASS = {"by-label", "dirichlet"}
PARTITIONS: dict[str, Callable[..., list[np.ndarray]]] = {
    "iid": _iid,
    "blocks": _blocks,
    "by-label": _label_blocks,
    "dirichlet": _dirichlet,
}
"""The partition rules of `split` by name: functions (labels, N, alpha, numpy generator) -> the
indices of each worker's samples.
"""


def partition_name(given: str) -> str:
    """Returns the name of a partition rule, which may be given with capitals and underscores.

    Raises:
        ValueError: if there is no such rule.
    """
    name = given.casefold().replace("_", "-")
    if name in PARTITIONS:
        return name
    end = spelling.suggest(given, PARTITIONS) or f"; expected one of {', '.join(PARTITIONS)}"
    raise ValueError(f"split: partition = {given!r}{end}")


@checks.arguments
def split(
    labels: ArrayLike,
    workers: int,
    partition: str = "iid",
    *,
    alpha: float = 0.5,
    seed: int = 0,
    min_samples: int = 1,
) -> list[np.ndarray]:
    """Partitions samples over workers and returns the indices of each worker's samples.

    Args:
        labels: class of each sample, `[M]`.
        workers: N.
        partition: "iid": a random split into N parts of equal size; "blocks": N contiguous parts of
            equal size in the order of the samples, e.g. of a text; "by-label": the samples sorted
            by class, then cut into N parts of equal size (if no class is smaller than a part, a
            worker has at most two classes); "dirichlet": each class is distributed over the workers
            in Dirichlet(alpha) proportions (Hsu et al., 2019); a small alpha gives heterogeneous
            workers, a large one nearly iid workers of nearly equal size.
        alpha: concentration of "dirichlet".
        seed: seed of the draw.
        min_samples: smallest number of samples of a worker, at least 1. The proportions of
            "dirichlet" are drawn up to 10,000 times until all workers have this many; the result is
            a function of the seed.

    Returns:
        N arrays of indices; each sample is in exactly one of them.

    Raises:
        ValueError: if the partition is unknown, there are fewer samples than workers, alpha of
            "dirichlet" is not positive and finite, or a worker has fewer than `min_samples`
            samples.
    """
    partition = partition_name(partition)
    if workers < 1:
        raise ValueError(f"split: workers = {workers}; expected at least 1")
    checks.positive_int("split: workers", workers)
    checks.natural("split: seed", seed, most=None)
    least = checks.positive_int("split: min_samples", min_samples)
    classes = np.asarray(labels)
    if classes.ndim != 1 or not classes.size:
        raise ValueError(f"split: labels have shape {classes.shape}; expected [M] with M >= 1")
    rule = partial(_dirichlet, least=least) if partition == "dirichlet" else PARTITIONS[partition]
    parts = rule(classes, workers, alpha, np.random.default_rng(seed))
    smallest = min(range(workers), key=lambda n: len(parts[n]))
    if (found := len(parts[smallest])) < least:
        few = f"worker {smallest} {f'with {found} samples' if found else 'without samples'}"
        few += f" in the best of {_TRIES} draws" if partition == "dirichlet" else ""
        hint = (
            f"pass a larger alpha than {alpha}, fewer workers"
            if partition == "dirichlet"
            else "pass fewer workers"
        )
        hint += " or a smaller min_samples" if least > 1 else ""
        raise ValueError(
            f"split: partition {partition!r} of {len(classes)} samples over {workers} workers "
            f"leaves {few}; expected at least {least};"
            f" {hint}"
        )
    return parts


def require_parts(parts: Sequence[Any], samples: int, workers: int) -> list[np.ndarray]:
    """Validates a partition that is given as indices and returns it as arrays.

    Args:
        parts: N lists or arrays of indices.
        samples: M.
        workers: N.

    Raises:
        ValueError: if there is not one part for each worker, a part is empty, or an index is not in
            0, ..., M - 1.
    """
    if len(parts) != workers:
        raise ValueError(
            f"partition: {len(parts)} parts for workers = {workers}; expected one array of "
            "indices for each worker"
        )
    checked = [array_likes.numbers(f"partition: worker {n}", part) for n, part in enumerate(parts)]
    for n, part in enumerate(checked):
        if (
            part.ndim != 1
            or not part.size
            or part.dtype.kind not in "iu"
            or part.min() < 0
            or part.max() >= samples
        ):
            need = f"indices from 0 to {samples - 1}, at least one"
            raise ValueError(f"partition: worker {n} has {checks.show(parts[n])}; expected {need}")
    return checked


class ClassCounts(NamedTuple):
    """How the samples of each class are distributed over the workers; `str` returns a table.

    Args:
        counts: number of samples of each worker and class, int `[N, classes]`.
        classes: labels of the classes, `[classes]`.
    """

    counts: np.ndarray
    classes: np.ndarray

    @property
    def samples(self) -> np.ndarray:
        """Number of samples of each worker, int `[N]`."""
        return self.counts.sum(axis=1)

    @property
    def shares(self) -> np.ndarray:
        """Share of each class in each worker's samples, `[N, classes]`."""
        return self.counts / self.samples[:, None]

    @property
    def distances(self) -> np.ndarray:
        r"""Total variation distance $\frac12 \sum_c |p_{nc} - p_c|$ between each worker's shares
        and those of all samples together, `[N]`: 0 if they are equal, below 1.
        """
        whole = self.counts.sum(axis=0) / self.counts.sum()
        return np.abs(self.shares - whole).sum(axis=1) / 2

    def __str__(self) -> str:
        heading = ("worker", "samples", "distance", *map(str, self.classes))
        rows = [
            (str(n), str(m), f"{distance:.2f}", *(f"{share:.2f}" for share in shares))
            for n, (m, distance, shares) in enumerate(
                zip(self.samples, self.distances, self.shares, strict=True)
            )
        ]
        last = ("mean", f"{self.samples.mean():.1f}", f"{self.distances.mean():.2f}")
        rows.append((*last, *[""] * len(self.classes)))
        widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
        return "\n".join(
            "  ".join(map(str.rjust, cells, widths)).rstrip() for cells in (heading, *rows)
        )


@checks.arguments
def class_counts(data: Problem | Sequence[Any]) -> ClassCounts:
    """Counts the samples of each class on each worker.

    Args:
        data: a problem on data with classes, such as `logistic_regression`; or N arrays with the
            labels of each worker's samples, such as `[labels[part] for part in split(labels, N)]`.

    Raises:
        ValueError: if the problem's targets are not one integer per sample, or a worker has no
            labels, or not one per sample.
    """
    return count_classes("class_counts", data)


def count_classes(where: str, data: Problem | Sequence[Any]) -> ClassCounts:
    """Returns the result of `class_counts`, which `where` calls."""
    labels = _labels(where, data) if isinstance(data, Problem) else list(map(np.asarray, data))
    if not labels:
        raise ValueError(f"{where}: data = []; expected one array of labels for each worker")
    for n, of_worker in enumerate(labels):
        if of_worker.ndim != 1 or not of_worker.size:
            raise ValueError(
                f"{where}: labels of worker {n} have shape {of_worker.shape}; expected [m] with "
                "m >= 1"
            )
    classes, index = np.unique(np.concatenate(labels), return_inverse=True)
    owner = np.repeat(np.arange(len(labels)), list(map(len, labels)))
    cells = np.bincount(owner * len(classes) + index, minlength=len(labels) * len(classes))
    return ClassCounts(cells.reshape(len(labels), len(classes)), classes)


def _labels(where: str, problem: Problem) -> list[np.ndarray]:
    """Returns the classes of each worker's samples."""
    data = problem.data
    targets = data.targets if isinstance(data, Examples | pooled.Pooled) else None
    if not isinstance(targets, jax.Array) or targets.ndim != 2 or targets.dtype.kind not in "iu":
        raise ValueError(
            f"{where}: the data of {problem.name} have no classes; expected targets that are "
            "one integer per sample; pass the labels of each worker as arrays"
        )
    if isinstance(data, Examples):
        real = np.asarray(data.weights) > 0
        return [row[mine] for row, mine in zip(np.asarray(targets), real, strict=True)]
    data = replace(data, inputs=())
    return [pooled.worker_data(data, n).targets for n in range(len(targets))]
