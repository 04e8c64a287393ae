"""Who gets which samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dsgd import array_likes, checks


def _iid(
    labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    return np.array_split(rng.permutation(len(labels)), workers)


def _blocks(
    labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    return np.array_split(np.arange(len(labels)), workers)


def _by_label(
    labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    shuffled = rng.permutation(len(labels))
    return np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], workers)


def _dirichlet(
    labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator, least: int = 1
) -> list[np.ndarray]:
    if not 0 < alpha < np.inf:
        raise ValueError(f"dirichlet partition with alpha = {alpha}: need a finite alpha > 0")
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    concentration = np.full(workers, alpha)
    pieces = []
    for members in classes:
        shuffled = rng.permutation(members)
        pieces.append(np.split(shuffled, _ends(rng.dirichlet(concentration), len(members))))
    if min(map(len, _joined(pieces))) < least:
        found = _better_ends(
            concentration, np.array([len(members) for members in classes]), rng, least
        )
        pieces = [
            np.split(rng.permutation(members), ends)
            for members, ends in zip(classes, found, strict=True)
        ]
    return [rng.permutation(part) for part in _joined(pieces)]


def _joined(pieces: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Each worker's samples, of its pieces of the classes."""
    return [np.concatenate(share) for share in zip(*pieces, strict=True)]


def _ends(proportions: np.ndarray, members: int | np.ndarray) -> np.ndarray:
    """Where a class is cut, `[..., N]` to `[..., N - 1]`."""
    return np.round(
        np.cumsum(proportions, axis=-1)[..., :-1] * np.asarray(members)[..., None]
    ).astype(int)


def _better_ends(
    concentration: np.ndarray, counts: np.ndarray, rng: np.random.Generator, least: int
) -> np.ndarray:
    """Where the classes are cut, `[classes, N - 1]`: the first of `_TRIES` draws whose smallest
    part has `least` samples, or the best one.

    Args:
        concentration: alpha, `[N]`.
        counts: samples of each class.
        rng: draws.
        least: samples.
    """
    best, most = np.empty(0), -1
    at_once = max(1, min(256, (1 << 20) // (len(counts) * len(concentration))))
    for _ in range(-(-_TRIES // at_once)):
        ends = _ends(rng.dirichlet(concentration, (at_once, len(counts))), counts)
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
    "by-label": _by_label,
    "dirichlet": _dirichlet,
}
"""The rules of `split` by name, each a function (labels, N, alpha, numpy generator) -> each
worker's samples.
"""


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
    """Which samples each worker gets; every sample goes to one worker.

    Args:
        labels: class of each sample, `[M]`.
        workers: N.
        partition: "iid", a random split into equal parts; "blocks", N equal pieces in the order of
            the samples, as of a text; "by-label", sorted by class, then cut into N equal pieces (a
            worker sees at most two classes where no class is smaller than a piece); "dirichlet",
            each class spread over workers in Dirichlet(alpha) proportions (Hsu et al., 2019): small
            alpha is heterogeneous, large alpha is iid but for unequal sizes.
        alpha: concentration of "dirichlet".
        seed: of the draw.
        min_samples: that every worker has, at least 1. The proportions of "dirichlet" are drawn
            again until the smallest part has as many, up to 10,000 times; the result is a function
            of the seed.

    Returns:
        N arrays of indices, each sample in exactly one.

    Raises:
        ValueError: an unknown name, fewer samples than workers, an alpha of "dirichlet" that is not
            positive and finite, or a worker with fewer samples than `min_samples`.
    """
    if partition not in PARTITIONS:
        raise ValueError(f"unknown partition {partition!r}: need one of {', '.join(PARTITIONS)}")
    if workers < 1:
        raise ValueError(f"{workers} workers: need at least 1")
    checks.positive_int("split: workers", workers)
    checks.natural("split: seed", seed, most=None)
    least = checks.positive_int("split: min_samples", min_samples)
    classes = np.asarray(labels)
    if classes.ndim != 1 or not classes.size:
        raise ValueError(f"labels of shape {classes.shape}: need [M], at least one")
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


def need_parts(parts: Sequence[Any], samples: int, workers: int) -> list[np.ndarray]:
    """The indices that each worker was given, checked.

    Args:
        parts: N lists or arrays of indices.
        samples: M.
        workers: N.

    Raises:
        ValueError: not one for each worker, one that is empty, or an index that is none of a
            sample.
    """
    if len(parts) != workers:
        raise ValueError(
            f"partition of {len(parts)} parts, workers = {workers}: need as many, one array of "
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
            raise ValueError(f"partition: worker {n} has {checks.shown(parts[n])}; need {need}")
    return checked
