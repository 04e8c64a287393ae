"""Messages in as few groups as possible, in each of which nobody sends two, or receives two."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array


def matchings(pairs: list[tuple[int, int]], size: int) -> list[list[tuple[int, int]]]:
    """The pairs in as few groups as possible, none of which has a first, or a second, twice: as
    many groups as the one who is in most pairs has (König).

    Dummy pairs make everybody be in as many; then there is a perfect matching of firsts with
    seconds, and when it is taken out, again.
    """
    if not pairs:
        return []
    from scipy.sparse.csgraph import maximum_bipartite_matching  # noqa: PLC0415 (a tenth of a second that one device is spared)

    real = np.zeros((size, size), int)
    for first, second in pairs:
        real[first, second] = 1
    degree = max(real.sum(axis=0).max(), real.sum(axis=1).max())
    everyone = real + _filling(degree - real.sum(axis=1), degree - real.sum(axis=0))
    groups = []
    for _ in range(degree):
        second = maximum_bipartite_matching(csr_array(everyone), perm_type="column")
        everyone[np.arange(size), second] -= 1
        group = [(first, int(second[first])) for first in range(size) if real[first, second[first]]]
        real[np.arange(size), second] = 0
        groups.append(group)
    return groups


def _filling(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """A matrix of counts with these sums, from its north-west corner."""
    filling = np.zeros((rows.size, columns.size), int)
    rows, columns = rows.copy(), columns.copy()
    i = j = 0
    while i < rows.size and j < columns.size:
        filling[i, j] = min(rows[i], columns[j])
        rows[i] -= filling[i, j]
        columns[j] -= filling[i, j]
        i, j = i + (rows[i] == 0), j + (rows[i] != 0)
    return filling
