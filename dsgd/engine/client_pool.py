"""Samples of workers that the host loads when they are drawn."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np

from dsgd.base import PyTree
from dsgd.engine.pooled import Pooled
from dsgd.machines import host_calls
from dsgd.machines.arrays import from_host


class Source:
    """Loads workers' samples and keeps those of the workers that were used last.

    Args:
        load: worker -> (inputs, targets), numpy arrays `[m, ...]` as the program reads them.
        size: number of workers with samples that are kept.
        fingerprint: a text that distinguishes the data from all others, or None.

    Attributes:
        refusal: (targets) -> why they are invalid, or ""; None: they are not validated.
    """

    def __init__(
        self,
        load: Callable[[int], tuple[PyTree, PyTree]],
        size: int,
        fingerprint: str | None = None,
    ) -> None:
        self.number: int = host_calls.number(self)
        self.fingerprint: str | None = fingerprint
        self.refusal: Callable[[PyTree], str] | None = None
        self._load, self._size = load, size
        self._kept: OrderedDict[int, tuple[PyTree, PyTree]] = OrderedDict()
        self._lock = threading.Lock()  # several devices may ask at the same time

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Source)
            and self.fingerprint is not None
            and self.fingerprint == other.fingerprint
        )

    def __hash__(self) -> int:
        return id(self) if self.fingerprint is None else hash(self.fingerprint)

    def samples(self, n: int) -> tuple[PyTree, PyTree]:
        """Returns the samples of worker n."""
        with self._lock:
            if n not in self._kept:
                inputs, targets = self._load(n)
                if self.refusal and (why := self.refusal(targets)):
                    raise ValueError(f"clients: client {n}: {why}")
                self._kept[n] = inputs, targets
            self._kept.move_to_end(n)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
            return self._kept[n]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["inputs", "targets", "offset", "size", "of", "id"],
    meta_fields=["make", "longest", "piece", "devices", "source"],
)
@dataclass(frozen=True)
class ClientPool(Pooled):
    """A pool without rows: the host returns those of a batch.

    Args:
        of: number by which a program finds the source, int32 `[N]`.
        id: number of the worker, int32 `[N]`.
        source: where the samples are from.
    """

    by_worker: ClassVar[tuple[str, ...]] = ("offset", "size", "of", "id")
    has_rows: ClassVar[bool] = False

    of: Any = None
    id: Any = None
    source: Source | None = field(default=None, compare=False)

    def samples(self, n: int) -> tuple[PyTree, PyTree]:
        """Returns the samples of worker n."""
        assert self.source is not None
        return self.source.samples(n)

    def batch(self, rows: jax.Array, weights: jax.Array) -> PyTree:
        """Returns a batch of the given rows of one worker."""
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*rows.shape, *leaf.shape[1:]), leaf.dtype),
            (self.inputs, self.targets),
        )
        inputs, targets = host_calls.call(_read, shapes, self.of, self.id, rows)
        return self.make(inputs, targets, weights)


def client_pool(
    source: Source, sizes: np.ndarray, some: tuple[PyTree, PyTree], make: Callable
) -> ClientPool:
    """Returns the pool; `some` are samples with leaves `[m, ...]`, as an example of their types."""
    N = len(sizes)
    inputs, targets = jax.tree.map(
        lambda leaf: from_host(np.empty((N, 0, *leaf.shape[1:]), leaf.dtype)), some
    )
    return ClientPool(
        inputs,
        targets,
        offset=from_host(np.zeros(N, np.int32)),
        size=from_host(sizes.astype(np.int32)),
        make=make,
        longest=int(sizes.max()),
        of=from_host(np.full(N, source.number, np.int32)),
        id=from_host(np.arange(N, dtype=np.int32)),
        source=source,
    )


def _read(source: Source, n: Any, rows: np.ndarray) -> tuple[PyTree, PyTree]:
    # Rows that do not count may be outside of the samples.
    return jax.tree.map(lambda leaf: np.take(leaf, rows, 0, mode="clip"), source.samples(int(n)))
