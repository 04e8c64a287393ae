"""Partition of the samples over the workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from dsgd import array_likes, checks, spelling
from dsgd.base import Problem
from dsgd.engine import pooled
from dsgd.problems.examples import Examples

Parts = list[np.ndarray]  # the indices of each worker's samples


REMAINDERS = ("spread", "last", "drop")


def _iid(
    labels: np.ndarray, workers: int, rng: np.random.Generator, *, remainder: str = "spread"
) -> Parts:
    return _cut(rng.permutation(len(labels)), workers, remainder)


def _blocks(
    labels: np.ndarray, workers: int, rng: np.random.Generator, *, remainder: str = "spread"
) -> Parts:
    return _cut(np.arange(len(labels)), workers, remainder)


def _label_blocks(
    labels: np.ndarray, workers: int, rng: np.random.Generator, *, remainder: str = "spread"
) -> Parts:
    return _cut(_sort(labels, rng.permutation(len(labels))), workers, remainder)


def _cut(samples: np.ndarray, workers: int, remainder: str) -> Parts:
    """Returns contiguous parts of equal size, and the samples beyond a multiple of N as stated."""
    if remainder not in REMAINDERS:
        raise ValueError(
            f"split: remainder = {remainder!r}; expected one of {', '.join(REMAINDERS)}"
        )
    if remainder == "spread":
        return np.array_split(samples, workers)
    size = len(samples) // workers
    parts = np.split(samples, size * np.arange(1, workers))
    return parts if remainder == "last" else [part[:size] for part in parts]


def _sort(labels: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Returns the samples sorted by class, those of a class in their order."""
    return samples[np.argsort(labels[samples], kind="stable")]


def _dirichlet(
    labels: np.ndarray,
    workers: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.5,
    min_samples: int = 1,
) -> Parts:
    concentration = _concentration(alpha, workers)
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    pieces = []
    for members in classes:
        shuffled = rng.permutation(members)
        pieces.append(np.split(shuffled, _ends(rng.dirichlet(concentration), len(members))))
    if min(map(len, _join(pieces))) < min_samples:
        found = _better_ends(
            concentration, np.array([len(members) for members in classes]), rng, min_samples
        )
        pieces = [
            np.split(rng.permutation(members), ends)
            for members, ends in zip(classes, found, strict=True)
        ]
    return [rng.permutation(part) for part in _join(pieces)]


def _dirichlet_sizes(
    labels: np.ndarray,
    workers: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.5,
    min_samples: int = 1,
) -> Parts:
    shuffled, M = rng.permutation(len(labels)), len(labels)
    # The minimum is set aside first, since with many workers no draw would give it to all.
    shared = max(M - min_samples * workers, 0)
    ends = _ends(rng.dirichlet(_concentration(alpha, workers)), shared)
    return np.split(shuffled, ends + min_samples * np.arange(1, workers))


def _concentration(alpha: float, workers: int) -> np.ndarray:
    if not 0 < alpha < np.inf:
        raise ValueError(
            f"split: alpha = {alpha} for a Dirichlet partition; expected a finite number > 0"
        )
    return np.full(workers, alpha)


def _some_classes(
    labels: np.ndarray, workers: int, rng: np.random.Generator, *, classes: int = 2
) -> Parts:
    members = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    C, k = len(members), checks.positive_int("split: classes", classes)
    if not C / workers <= k <= C:
        raise ValueError(
            f"split: classes = {k} for each of {workers} workers, of {C} classes; expected "
            f"{-(-C // workers)} to {C}, so that each class has a worker"
        )
    owners: list[list[int]] = [[] for _ in range(C)]
    counts = np.zeros(C, int)
    for n in range(workers):
        chosen = np.lexsort((rng.random(C), counts))[:k]
        counts[chosen] += 1
        for c in chosen:
            owners[c].append(n)
    parts: list[list[np.ndarray]] = [[] for _ in range(workers)]
    for of_class, owned in zip(members, owners, strict=True):
        for n, piece in zip(owned, np.array_split(of_class, len(owned)), strict=True):
            parts[n].append(piece)
    return [rng.permutation(np.concatenate(part)) for part in parts]


def _shards(
    labels: np.ndarray, workers: int, rng: np.random.Generator, *, shards: int = 2
) -> Parts:
    count = workers * checks.positive_int("split: shards", shards)
    if count > len(labels):
        raise ValueError(
            f"split: shards = {shards} for each of {workers} workers, but {len(labels)} samples; "
            "expected at least one sample for each shard: pass fewer shards or workers"
        )
    pieces = np.array_split(_sort(labels, rng.permutation(len(labels))), count)
    dealt = rng.permutation(count).reshape(workers, shards)
    return [np.concatenate([pieces[shard] for shard in hand]) for hand in dealt]


def _similar(
    labels: np.ndarray, workers: int, rng: np.random.Generator, *, similarity: float = 0.1
) -> Parts:
    M, share = len(labels), checks.number("split: similarity", similarity, "[0, 1]")
    shuffled = rng.permutation(M)
    iid, rest = np.split(shuffled, [round(share * M)])
    of_classes = np.array_split(_sort(labels, rest), workers)
    sizes = _equal_sizes(M, workers) - _equal_sizes(len(rest), workers)
    at_random = np.split(iid, np.cumsum(sizes)[:-1])
    return [np.concatenate(pair) for pair in zip(at_random, of_classes, strict=True)]


def _equal_sizes(samples: int, workers: int) -> np.ndarray:
    """Returns the sizes of the parts of `np.array_split`, `[N]`."""
    return samples // workers + (np.arange(workers) < samples % workers)


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
BY_CLASS = {"by-label", "dirichlet", "classes", "shards", "similarity"}
PARTITIONS: dict[str, Callable[..., Parts]] = {
    "iid": _iid,
    "blocks": _blocks,
    "by-label": _label_blocks,
    "dirichlet": _dirichlet,
    "dirichlet-sizes": _dirichlet_sizes,
    "classes": _some_classes,
    "shards": _shards,
    "similarity": _similar,
}
"""The partition rules of `split` by name: functions (labels, N, numpy generator) -> the indices of
each worker's samples. Their keyword arguments are the options of `split` that they use, with the
defaults.
"""


def partition_label(partition: Any) -> str:
    """Returns how a problem's name states its partition: a name, or indices."""
    return partition if isinstance(partition, str) else "given indices"


def partition_options(partition: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that are given for a partition, which are those that are not None.

    Args:
        partition: the name of a partition rule; None: indices are given.
        given: options of `split` by name.

    Raises:
        ValueError: if the partition does not use one of them.
    """
    options = {option: value for option, value in given.items() if value is not None}
    for option, value in options.items():
        users = [name for name, rule in PARTITIONS.items() if option in _options(rule)]
        if partition not in users:
            raise ValueError(
                f"split: {option} = {checks.show(value)} for "
                f"{f'the partition {partition!r}' if partition else 'given indices'}, which "
                f"{'does' if partition else 'do'} not use it; expected it for "
                f"{' or '.join(map(repr, users))} only"
            )
    return options


def _options(rule: Callable[..., Parts]) -> list[str]:
    """Returns the names of a partition rule's keyword arguments."""
    every = inspect.signature(rule).parameters.values()
    return [each.name for each in every if each.kind is each.KEYWORD_ONLY]


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
    alpha: float | None = None,
    classes: int | None = None,
    shards: int | None = None,
    similarity: float | None = None,
    remainder: str | None = None,
    seed: int = 0,
    min_samples: int = 1,
) -> list[np.ndarray]:
    """Partitions samples over workers and returns the indices of each worker's samples.

    `by_user` partitions samples whose worker is known.

    Args:
        labels: class of each sample, `[M]`.
        workers: N.
        partition: "iid": a random split into N parts of equal size; "blocks": N contiguous parts of
            equal size in the order of the samples, e.g. of a text; "by-label": the samples sorted
            by class, then cut into N parts of equal size (if no class is smaller than a part, a
            worker has at most two classes); "dirichlet": each class is distributed over the workers
            in Dirichlet(alpha) proportions (Yurochkin et al., 2019); a small alpha gives
            heterogeneous workers, a large one nearly iid workers of nearly equal size;
            "dirichlet-sizes": a random split into parts whose sizes are `min_samples` plus
            Dirichlet(alpha) proportions of the other samples (quantity skew; Li et al., 2022);
            "classes": each worker has the samples of k classes, which are those with the fewest
            workers so far, at random if several are; a class is divided equally among its workers
            (Li et al., 2022); "shards": the samples sorted by class are cut into s N shards of
            equal size, and each worker gets s of them at random (McMahan et al., 2017);
            "similarity": a fraction of each worker's samples is iid, and the others are
            distributed as in "by-label" (Karimireddy et al., 2020).
        alpha: concentration of "dirichlet" and "dirichlet-sizes"; None: 0.5.
        classes: k of "classes"; None: 2.
        shards: s of "shards"; None: 2.
        similarity: the fraction of "similarity", from 0 to 1; None: 0.1.
        remainder: which workers of "iid", "blocks" and "by-label" have the samples beyond a
            multiple of N: "spread": one for each of the first workers; "last": all for the last
            worker; "drop": none. None: "spread".
        seed: seed of the draw.
        min_samples: smallest number of samples of a worker, at least 1. The proportions of
            "dirichlet" are drawn up to 10,000 times until all workers have this many; the result is
            a function of the seed.

    Returns:
        N arrays of indices; each sample is in exactly one of them, or in at most one if
        `remainder` is "drop".

    Raises:
        ValueError: if the partition is unknown or does not use an option that is given, an option
            is out of range, there are fewer samples than workers or shards, a class would have no
            worker, or a worker has fewer than `min_samples` samples.
    """
    partition = partition_name(partition)
    if workers < 1:
        raise ValueError(f"split: workers = {workers}; expected at least 1")
    checks.positive_int("split: workers", workers)
    checks.natural("split: seed", seed, most=None)
    least = checks.positive_int("split: min_samples", min_samples)
    of_samples = np.asarray(labels)
    if of_samples.ndim != 1 or not of_samples.size:
        raise ValueError(f"split: labels have shape {of_samples.shape}; expected [M] with M >= 1")
    rule = PARTITIONS[partition]
    given = {
        "alpha": alpha,
        "classes": classes,
        "shards": shards,
        "similarity": similarity,
        "remainder": remainder,
    }
    options = partition_options(partition, given)
    if "min_samples" in _options(rule):
        options["min_samples"] = least
    parts = rule(of_samples, workers, np.random.default_rng(seed), **options)
    smallest = min(range(workers), key=lambda n: len(parts[n]))
    if (found := len(parts[smallest])) < least:
        few = f"worker {smallest} {f'with {found} samples' if found else 'without samples'}"
        few += f" in the best of {_TRIES} draws" if partition == "dirichlet" else ""
        larger = f"a larger alpha than {options.get('alpha', 0.5)}, "
        hint = f"pass {larger if partition == 'dirichlet' else ''}fewer workers"
        hint += " or a smaller min_samples" if least > 1 else ""
        raise ValueError(
            f"split: partition {partition!r} of {len(of_samples)} samples over {workers} workers "
            f"leaves {few}; expected at least {least};"
            f" {hint}"
        )
    return parts


@checks.arguments
def by_user(users: Any) -> list[np.ndarray]:
    """Partitions samples by their users and returns the indices of each user's samples, in the
    order of `numpy.unique(users)`: `partition=by_user(users)` of a problem.

    Args:
        users: the user, client or group of each sample, `[M]`: integers or strings.

    Raises:
        ValueError: if the shape or type is another one.
    """
    try:
        of_samples = np.asarray(users)
    except Exception:
        # A class may raise any exception when it is converted.
        of_samples = np.empty(0)
    if of_samples.dtype == object and all(isinstance(each, str) for each in of_samples.flat):
        of_samples = of_samples.astype(str)
    if of_samples.ndim != 1 or not of_samples.size or of_samples.dtype.kind not in "iubUS":
        raise ValueError(
            f"by_user: users = {checks.show(users)}; expected [M] with M >= 1, integers or strings"
        )
    _, counts = np.unique(of_samples, return_counts=True)
    return np.split(np.argsort(of_samples, kind="stable"), np.cumsum(counts)[:-1])


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
    if all(map(_is_index, parts)):  # at once, since there may be many
        together = np.concatenate(parts)
        if together.min() >= 0 and together.max() < samples:
            return list(parts)
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


def _is_index(part: Any) -> bool:
    """Whether it is a numpy array `[m]` of integers, m >= 1."""
    return (
        type(part) is np.ndarray
        and part.ndim == 1
        and part.size > 0
        and part.dtype.kind in "iu"
        and part.dtype.isnative
    )


class ClassCounts(NamedTuple):
    """How the samples of each class are distributed over the workers. `str` returns a table: of
    the workers, or for more than 100 of the quantiles of their samples, classes and distances.

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
        return self._rows() if len(self.counts) <= _ROWS else self._quantiles()

    def _rows(self) -> str:
        """Returns a table with one row for each worker."""
        heading = ("worker", "samples", "distance", *map(str, self.classes))
        rows = [
            (str(n), str(m), f"{distance:.2f}", *(f"{share:.2f}" for share in shares))
            for n, (m, distance, shares) in enumerate(
                zip(self.samples, self.distances, self.shares, strict=True)
            )
        ]
        last = ("mean", f"{self.samples.mean():.1f}", f"{self.distances.mean():.2f}")
        return _align([heading, *rows, (*last, *[""] * len(self.classes))])

    def _quantiles(self) -> str:
        """Returns a table with the quantiles of the workers, which are values that occur."""
        heading = (
            f"{len(self.counts):,} workers",
            "least",
            "10 %",
            "median",
            "90 %",
            "most",
            "mean",
        )
        of_workers = (
            ("samples", self.samples, ".0f", ".1f"),
            ("classes", (self.counts > 0).sum(axis=1), ".0f", ".1f"),
            ("distance", self.distances, ".2f", ".2f"),
        )
        rows = []
        for name, values, quantile, mean in of_workers:
            found = np.quantile(values, [0, 0.1, 0.5, 0.9, 1], method="inverted_cdf")
            rows.append(
                (name, *(f"{each:{quantile}}" for each in found), f"{values.mean():{mean}}")
            )
        return _align([heading, *rows])


_ROWS = 100  # workers up to which a table has one row for each


def _align(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of cells, aligned on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.rjust, cells, widths)).rstrip() for cells in rows)


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
    # On the host at once, since one transfer for each of thousands of workers takes seconds.
    data = jax.tree.map(np.asarray, replace(data, inputs=()))
    return [pooled.worker_data(data, n).targets for n in range(len(targets))]
