"""Which rows cross devices for a topology, and where they are found there: planned on the host,
once for each number of devices.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array, csr_array

from dsgd.graphs.matchings import matchings
from dsgd.graphs.topology import Topology

_MOST = 32  # neighbours that are summed one by one; the program grows with them
# times the root of the table's length: up to so many are summed so. `python -m
# experiments.benchmark mixing` measures it
_ROOTS = 2.5


class Permute(NamedTuple):
    """One collective-permute: every device sends at most one message, and receives at most one.

    Args:
        pairs: (sender, receiver), devices.
        workers: whose rows each device sends, `[D, k]`; shorter lists are filled up with its first
            worker's.
    """

    pairs: list[tuple[int, int]]
    workers: np.ndarray


class Routes(NamedTuple):
    """How the rows that a device needs come to it, and what it makes of them.

    It finds them in a *table* of m rows: its own block, then what each permute brings; or
    everybody's rows.

    Args:
        permutes: of each round of a period; None: everybody's rows are gathered.
        length: m.
        weights: of others, `[period, D, n, m]`, one's own 0; or, where few are not 0, lists of
            those, `[period, D, n, K]`.
        places: where in the table the lists' rows are, `[period, D, n, K]`; None: there are no
            lists.
        whose: the worker whose row each of the table is, int32 `[period, D, m]`; -1: nobody's.
    """

    permutes: list[list[Permute]] | None
    length: int
    weights: np.ndarray
    places: np.ndarray | None
    whose: np.ndarray


@lru_cache(maxsize=64)
def routes_of(topology: Topology, devices: int, rows: bool | None = None) -> Routes:
    """The routes of a topology over D devices; `rows` is for timing one kind of sum, or the other.
    What costs least is chosen:

    - rows that cross devices: by permutes, one for each matching of sending with receiving devices;
      by a gather where the permutes would bring as many rows;
    - sums: of a few rows of the table where a worker has few neighbours, else by a product with all
      of it.
    """
    n = topology.n // devices
    permutes = [_permutes(_needed(W, n, devices), n, devices) for W in topology.matrices]
    brought = max(sum(permute.workers.shape[1] for permute in round) for round in permutes)
    everybody = devices > 1 and brought >= topology.n - n
    length = topology.n if everybody else n + brought
    turns = [
        (W, round, device)
        for W, round in zip(topology.matrices, permutes, strict=True)
        for device in range(devices)
    ]
    tables = [
        np.arange(topology.n) if everybody else _table(round, device, n)
        for _, round, device in turns
    ]
    found = [
        _find(W[device * n : (device + 1) * n], table, device * n, topology.n)
        for (W, _, device), table in zip(turns, tables, strict=True)
    ]
    most = max(int(np.bincount(row, minlength=1).max()) for row, *_ in found)
    few = most <= min(_MOST, _ROOTS * sqrt(length)) if rows is None else rows
    arrays = [_few(*entries, n, most) if few else _all(*entries, n, length) for entries in found]
    weights, places = (
        np.stack(kind).reshape(topology.period, devices, n, -1)
        for kind in zip(*arrays, strict=True)
    )
    whose = np.stack(
        [np.pad(table, (0, length - len(table)), constant_values=-1) for table in tables]
    ).astype(np.int32)
    return Routes(
        None if everybody else permutes,
        length,
        weights,
        places if few else None,
        whose.reshape(topology.period, devices, length),
    )


def different(permutes: list[list[Permute]]) -> tuple[list[list[Permute]], np.ndarray]:
    """The rounds that differ in who sends what to whom, and which of them each round is, int32
    `[period]`.
    """
    keys = [
        tuple((tuple(pairs), workers.tobytes()) for pairs, workers in round) for round in permutes
    ]
    rounds = dict(zip(keys, permutes, strict=True))
    return list(rounds.values()), np.array([list(rounds).index(key) for key in keys], np.int32)


def _needed(W: csr_array, n: int, devices: int) -> dict[tuple[int, int], np.ndarray]:
    """By (sender, receiver): the workers of the one that the other needs, in order."""
    needed = {}
    for receiver in range(devices):
        workers = np.unique(W[receiver * n : (receiver + 1) * n].indices)
        for sender in range(devices):
            theirs = workers[workers // n == sender]
            if sender != receiver and theirs.size:
                needed[sender, receiver] = theirs
    return needed


def _permutes(needed: dict[tuple[int, int], np.ndarray], n: int, devices: int) -> list[Permute]:
    permutes = []
    for pairs in matchings(list(needed), devices):
        longest = max(len(needed[pair]) for pair in pairs)
        workers = np.repeat(n * np.arange(devices)[:, None], longest, axis=1)
        for sender, receiver in pairs:
            theirs = needed[sender, receiver]
            workers[sender, : len(theirs)] = theirs
        permutes.append(Permute(pairs, workers))
    return permutes


def _table(permutes: list[Permute], device: int, n: int) -> np.ndarray:
    """Whose rows the table of a device has: its own, then what each permute brings; -1 for
    nobody's.
    """
    table = [np.arange(device * n, (device + 1) * n)]
    for pairs, workers in permutes:
        sender = next((sender for sender, receiver in pairs if receiver == device), None)
        table.append(np.full(workers.shape[1], -1) if sender is None else workers[sender])
    return np.concatenate(table)


def _find(
    block: csr_array, table: np.ndarray, first: int, N: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every weight of another worker in a block of W: its row, its place in the table, and the
    weight.
    """
    place = np.zeros(N, int)
    known = np.flatnonzero(table >= 0)
    place[table[known]] = known
    entries = coo_array(block)
    other = entries.col != entries.row + first
    return entries.row[other], place[entries.col[other]], entries.data[other]


def _few(row, place, weight, n: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists `[n, most]` of weights and places; filled up with the block's rows, weight 0."""
    weights = np.zeros((n, most))
    places = np.repeat(np.arange(n, dtype=np.int32)[:, None], most, axis=1)
    slot = np.arange(len(row)) - np.searchsorted(row, row)  # rows come in order
    weights[row, slot], places[row, slot] = weight, place
    return weights, places


def _all(row, place, weight, n: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix `[n, length]` of weights; the places are the columns."""
    weights = np.zeros((n, length))
    weights[row, place] = weight
    return weights, np.zeros((n, 0), np.int32)
