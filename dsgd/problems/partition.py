"""Who gets which samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsgd import checks


def _iid(labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    return np.array_split(rng.permutation(len(labels)), workers)


def _blocks(labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    return np.array_split(np.arange(len(labels)), workers)


def _by_label(labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    shuffled = rng.permutation(len(labels))
    return np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], workers)


def _dirichlet(labels: np.ndarray, workers: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    if not 0 < alpha < np.inf:
        raise ValueError(f"dirichlet partition with alpha = {alpha}: need a finite alpha > 0")
    shares: list[list[np.ndarray]] = [[] for _ in range(workers)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(rng.dirichlet(np.full(workers, alpha)))[:-1] * len(members)
        for share, piece in zip(shares, np.split(members, np.round(ends).astype(int)), strict=True):
            share.append(piece)
    return [rng.permutation(np.concatenate(share)) for share in shares]


BY_CLASS = {"by-label", "dirichlet"}
PARTITIONS = {"iid": _iid, "blocks": _blocks, "by-label": _by_label, "dirichlet": _dirichlet}
"""The rules of `split` by name, each a function (labels, N, alpha, numpy generator) -> each worker's samples."""


@checks.arguments
def split(labels: np.ndarray, workers: int, partition: str = "iid", *, alpha: float = 0.5, seed: int = 0) -> list[np.ndarray]:
    """Which samples each worker gets; every sample goes to one worker.

    Args:
        labels: class of each sample, `[M]`.
        workers: N.
        partition: "iid", a random split into equal parts; "blocks", N equal pieces in the order of the samples, as of a text;
            "by-label", sorted by class, then cut into N equal pieces (a worker sees at most two classes where no class is smaller than a
            piece); "dirichlet", each class spread over workers in Dirichlet(alpha) proportions (Hsu et al., 2019): small alpha is
            heterogeneous, large alpha is iid but for unequal sizes.
        alpha: concentration of "dirichlet".
        seed: of the draw.

    Returns:
        N arrays of indices, each sample in exactly one.

    Raises:
        ValueError: an unknown name, fewer samples than workers, an alpha of "dirichlet" that is not positive and finite, or a worker
            without samples.
    """
    if partition not in PARTITIONS:
        raise ValueError(f"unknown partition {partition!r}: need one of {', '.join(PARTITIONS)}")
    if workers < 1:
        raise ValueError(f"{workers} workers: need at least 1")
    checks.natural("split: seed", seed, most=None)
    if np.ndim(labels) != 1 or not len(labels):
        raise ValueError(f"labels of shape {np.shape(labels)}: need [M], at least one")
    parts = PARTITIONS[partition](np.asarray(labels), workers, alpha, np.random.default_rng(seed))
    empty = [n for n, part in enumerate(parts) if len(part) == 0]
    if empty:
        hint = f"a larger alpha than {alpha}, another seed, or fewer workers" if partition == "dirichlet" else "fewer workers"
        raise ValueError(
            f"partition {partition!r} of {len(labels)} samples over {workers} workers leaves worker {empty[0]} without samples; need {hint}"
        )
    return parts


def need_parts(parts: Sequence[Any], samples: int, workers: int) -> list[np.ndarray]:
    """The indices that each worker was given, checked.

    Args:
        parts: N lists or arrays of indices.
        samples: M.
        workers: N.

    Raises:
        ValueError: not one for each worker, one that is empty, or an index that is none of a sample.
    """
    if len(parts) != workers:
        raise ValueError(f"partition of {len(parts)} parts, workers = {workers}: need as many, one array of indices for each worker")
    checked = [np.asarray(part) if checks.is_numeric(part) else np.empty(0) for part in parts]
    for n, part in enumerate(checked):
        if part.ndim != 1 or not part.size or part.dtype.kind not in "iu" or part.min() < 0 or part.max() >= samples:
            need = f"indices from 0 to {samples - 1}, at least one"
            raise ValueError(f"partition: worker {n} has {checks.shown(parts[n])}; need {need}")
    return checked
