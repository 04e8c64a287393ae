"""The store of a cohort's run in the memory of the host, or in files: rows that the devices cannot
hold.
"""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dsgd.machines import host_calls

_PIECE = 1 << 26  # bytes of rows that are copied at a time


@jax.tree_util.register_static
class Store:
    """Rows of all workers of one run. Rows that were never written are equal and take no memory.

    Args:
        start: for each leaf, the row with which every worker begins, `[...]`.
        workers: N.
        folder: folder for memory-mapped files, which are deleted with the store; None: memory.
    """

    def __init__(
        self, start: Sequence[np.ndarray], workers: int, folder: Path | None = None
    ) -> None:
        self.start: list[np.ndarray] = [np.array(leaf) for leaf in start]
        self.written: np.ndarray = np.zeros(workers, bool)
        self.folder: Path | None = folder
        self.number: int = host_calls.number(self)
        self._leaves = [
            _allocate((workers, *leaf.shape), leaf.dtype, folder) for leaf in self.start
        ]
        self._thread = ThreadPoolExecutor(1, "dsgd-store")
        self._expected: dict[int, _Expected] = {}
        self._buffers: dict[int, tuple[list[np.ndarray], list[np.ndarray]]] = {}
        weakref.finalize(self, self._thread.shutdown, wait=False)

    def write(self, ids: np.ndarray, rows: Sequence[np.ndarray]) -> None:
        """Writes rows `[k, ...]` of the workers `ids`, int `[k]`."""
        for expected in self._expected.values():
            expected.rows.result()  # they are not read while rows are written
            expected.outdated[:] |= np.isin(expected.ids, ids)
        for leaf, row in zip(self._leaves, rows, strict=True):
            leaf[ids] = row
        self.written[ids] = True

    def read(self, ids: np.ndarray, place: int = 0) -> list[np.ndarray]:
        """Returns the rows of the workers `ids`, int `[k]`: leaves `[k, ...]`; `place` is that of
        the last call of `expect`.
        """
        expected = self._expected.pop(place, None)
        if expected is None or not np.array_equal(expected.ids, ids):
            return self._read(ids)
        rows, outdated = expected.rows.result(), expected.outdated
        if outdated.any():
            for row, new in zip(rows, self._read(ids[outdated]), strict=True):
                row[outdated] = new
        return rows

    def expect(self, ids: np.ndarray, place: int = 0) -> None:
        """Begins to read rows that will probably be asked for next, while the devices compute."""
        ids = np.array(ids)  # a copy, since the program may reuse its memory
        rows = self._thread.submit(self._read, ids, self._turn(place, len(ids)))
        self._expected[place] = _Expected(ids, rows, np.zeros(len(ids), bool))

    def pieces(self) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """Yields the rows that were written, as (ids, leaves `[k, ...]`), a few at a time."""
        bytes_of_row = max(1, sum(leaf.nbytes for leaf in self.start))
        ids, count = np.flatnonzero(self.written), max(1, _PIECE // bytes_of_row)
        for i in range(0, len(ids), count):
            yield ids[i : i + count], self._read(ids[i : i + count])

    def copy(self, folder: Path | None) -> Store:
        """Returns a copy, in memory or in files of a folder."""
        new = Store(self.start, len(self.written), folder)
        for ids, rows in self.pieces():
            new.write(ids, rows)
        return new

    def _turn(self, place: int, count: int) -> list[np.ndarray]:
        """Returns one of two buffers for rows, in turn: the other one may have the rows that were
        read last. New memory for each would cost as much as the rows, in page faults.
        """
        one, two = self._buffers.get(place) or (self._empty(count), self._empty(count))
        self._buffers[place] = two, one
        return one

    def _empty(self, count: int) -> list[np.ndarray]:
        return [np.empty((count, *leaf.shape), leaf.dtype) for leaf in self.start]

    def _read(self, ids: np.ndarray, into: list[np.ndarray] | None = None) -> list[np.ndarray]:
        written, rows = self.written[ids], into or self._empty(len(ids))
        for row, leaf, start in zip(rows, self._leaves, self.start, strict=True):
            if not written.all():
                row[:] = start
            if written.any():
                row[written] = leaf[ids[written]]
        return rows


class _Expected(NamedTuple):
    """Rows that are read in another thread; `outdated`: those written since then, bool `[k]`."""

    ids: np.ndarray
    rows: Future[list[np.ndarray]]
    outdated: np.ndarray


def _allocate(shape: tuple[int, ...], dtype: Any, folder: Path | None) -> np.ndarray:
    """Returns an array of zeros, of which the operating system provides the parts that are
    written.
    """
    if folder is None:
        return np.zeros(shape, dtype)
    size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
    # The file has no name, so that it disappears with the last reference, also if the process dies.
    with tempfile.TemporaryFile(dir=folder) as file:
        # Without its blocks, a full disk would kill the process that writes to the mapped memory.
        # macOS cannot reserve them.
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        except OSError as error:
            raise ValueError(
                f"run: store = {str(folder)!r}: {error.strerror}; expected room for {size:,} bytes "
                f"that {shape[0]:,} workers keep; pass a folder on a larger disk, or fewer workers"
            ) from error
        return np.memmap(file, dtype, "r+", shape=shape)


def write(store: Store, ids: np.ndarray, rows: Sequence[np.ndarray]) -> np.int32:
    """Writes rows and returns 0, on which the next read depends."""
    store.write(ids, rows)
    return np.int32(0)


def read(
    store: Store, ids: np.ndarray, next_ids: np.ndarray, place: Any, written: Any
) -> list[np.ndarray]:
    """Returns rows, and begins to read those that are probably asked for next.

    Args:
        store: the store.
        ids: numbers of the workers, `[k]`.
        next_ids: the next numbers, `[k]`.
        place: of the device.
        written: the sum over the devices of the results of `write`.
    """
    rows = store.read(ids, int(place))
    store.expect(next_ids, int(place))
    return rows
