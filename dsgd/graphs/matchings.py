"""Partition of messages into as few matchings as possible."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array


def matchings(pairs: list[tuple[int, int]], size: int) -> list[list[tuple[int, int]]]:
    """Partitions the pairs into as few groups as possible, such that within a group all first
    elements differ and all second elements differ.

    The number of groups is the maximum degree of the bipartite graph of the pairs (König). Dummy
    pairs make the graph regular; a regular bipartite graph has a perfect matching, and it stays
    regular after the matching is removed.

    Args:
        pairs: (first, second), integers from 0 to size - 1; a pair may occur several times.
        size: number of nodes on each side.

    Returns:
        The groups, each a list of pairs.
    """
    if not pairs:
        return []
    from scipy.sparse.csgraph import maximum_bipartite_matching  # noqa: PLC0415 (takes a tenth of a second to import)

    real = np.zeros((size, size), int)
    for first, second in pairs:
        real[first, second] += 1
    degree = max(real.sum(axis=0).max(), real.sum(axis=1).max())
    regular = real + _fill_counts(degree - real.sum(axis=1), degree - real.sum(axis=0))
    groups = []
    for _ in range(degree):
        second = maximum_bipartite_matching(csr_array(regular), perm_type="column")
        regular[np.arange(size), second] -= 1
        group = [(first, int(second[first])) for first in range(size) if real[first, second[first]]]
        real[np.arange(size), second] = np.maximum(0, real[np.arange(size), second] - 1)
        groups.append(group)
    return groups


def _fill_counts(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns a matrix of counts with these row and column sums, by the north-west corner rule."""
    filling = np.zeros((rows.size, columns.size), int)
    rows, columns = rows.copy(), columns.copy()
    i = j = 0
    while i < rows.size and j < columns.size:
        filling[i, j] = min(rows[i], columns[j])
        rows[i] -= filling[i, j]
        columns[j] -= filling[i, j]
        i, j = i + (rows[i] == 0), j + (rows[i] != 0)
    return filling
