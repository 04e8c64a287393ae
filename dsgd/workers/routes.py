"""Plans which rows are sent between devices for gossip on a topology, and where a device finds the
rows that it received. Plans are made on the host, once for each number of devices.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array, csr_array

from dsgd.graphs.matchings import matchings
from dsgd.graphs.neighbours import neighbours
from dsgd.graphs.topology import Topology

# Sums over at most this many neighbours are written term by term; the program grows with them.
_MOST = 32
# Sums over up to this factor times the square root of the table's length are written term by term.
# `python -m experiments.benchmark mixing` measures it.
_ROOTS = 2.5


class Permute(NamedTuple):
    """One collective-permute, in which every device sends and receives at most one message.

    Args:
        pairs: (sender, receiver), devices.
        workers: workers whose rows each device sends, `[D, k]`; shorter lists are padded with the
            device's first worker.
    """

    pairs: list[tuple[int, int]]
    workers: np.ndarray


class Routes(NamedTuple):
    """How a device receives the rows that it needs, and the weights with which it sums them.

    The rows are in a *table* of m rows: either the device's own block followed by the rows of each
    permute, or the rows of all workers.

    Args:
        permutes: permutes of each round of a period; None: the rows of all workers are gathered.
        length: m.
        weights: weights of other workers' rows, `[period, D, n, m]`, 0 for a worker's own row; or,
            if few are not 0, lists of these, `[period, D, n, K]`.
        places: positions in the table of the lists' rows, `[period, D, n, K]`; None: there are no
            lists.
        whose: number of the worker whose row is at each position of the table, int32
            `[period, D, m]`; -1: an unused position.
    """

    permutes: list[list[Permute]] | None
    length: int
    weights: np.ndarray
    places: np.ndarray | None
    whose: np.ndarray


class EdgeRoutes(NamedTuple):
    """How a device receives the rows that neighbours send to its workers, one for each edge.

    Row n K + k is that of worker n and its k-th neighbour.

    Args:
        permutes: as in `Routes`, with numbers of rows in place of workers.
        length: number of rows of the table.
        places: positions of the received rows in the table, `[D, n K]`. A row without a neighbour
            has its own position.
    """

    permutes: list[Permute]
    length: int
    places: np.ndarray


@lru_cache(maxsize=64)
def routes_of(topology: Topology, devices: int, rows: bool | None = None) -> Routes:
    """Returns the routes of a topology over D devices, with the cheaper of two choices each for:

    - rows sent between devices: permutes, one for each matching of sending with receiving devices;
      or a gather, if permutes would send as many rows;
    - sums: over a few rows of the table, if workers have few neighbours; or else by a product with
      the whole table. `rows`, if given, forces the first or the second, for measurements.
    """
    n = topology.n // devices
    permutes = [_permutes(_list_rows(W, n, devices), n, devices) for W in topology.matrices]
    brought = max(sum(permute.workers.shape[1] for permute in round) for round in permutes)
    gathered = devices > 1 and brought >= topology.n - n
    length = topology.n if gathered else n + brought
    turns = [
        (W, round, device)
        for W, round in zip(topology.matrices, permutes, strict=True)
        for device in range(devices)
    ]
    tables = [
        np.arange(topology.n) if gathered else _table(round, device, n)
        for _, round, device in turns
    ]
    entries_of = [
        _find(W[device * n : (device + 1) * n], table, device * n, topology.n)
        for (W, _, device), table in zip(turns, tables, strict=True)
    ]
    most = max(int(np.bincount(row, minlength=1).max()) for row, *_ in entries_of)
    few = most <= min(_MOST, _ROOTS * sqrt(length)) if rows is None else rows
    arrays = [
        _few(*entries, n, most) if few else _all(*entries, n, length) for entries in entries_of
    ]
    weights, places = (
        np.stack(kind).reshape(topology.period, devices, n, -1)
        for kind in zip(*arrays, strict=True)
    )
    whose = np.stack(
        [np.pad(table, (0, length - len(table)), constant_values=-1) for table in tables]
    ).astype(np.int32)
    return Routes(
        None if gathered else permutes,
        length,
        weights,
        places if few else None,
        whose.reshape(topology.period, devices, length),
    )


@lru_cache(maxsize=64)
def edge_routes_of(topology: Topology, devices: int) -> EdgeRoutes:
    """Returns the routes over D devices on which each worker sends a different row to each of its
    neighbours, for an undirected graph that is the same in all rounds.
    """
    lists = neighbours(topology, 0).workers[0]
    N, K = lists.shape
    n = N * K // devices
    edges = np.flatnonzero(lists.ravel() >= 0)
    sender, receiver = edges // max(K, 1), lists.ravel()[edges]
    origin = np.arange(N * K)
    # Edges are in the order of (sender, receiver); this is the order of (receiver, sender).
    origin[edges] = edges[np.lexsort((sender, receiver))]
    moves = csr_array((np.ones(N * K), (np.arange(N * K), origin)), shape=(N * K, N * K))
    permutes = _permutes(_list_rows(moves, n, devices), n, devices)
    places = np.empty((devices, n), np.int32)
    for device in range(devices):
        place = _invert(_table(permutes, device, n), N * K)
        places[device] = place[origin[device * n : (device + 1) * n]]
    return EdgeRoutes(permutes, n + sum(permute.workers.shape[1] for permute in permutes), places)


def different(permutes: list[list[Permute]]) -> tuple[list[list[Permute]], np.ndarray]:
    """Returns the different rounds (which differ in senders, receivers or rows), and the index of
    each round among them, int32 `[period]`.
    """
    keys = [
        tuple((tuple(pairs), workers.tobytes()) for pairs, workers in round) for round in permutes
    ]
    rounds = dict(zip(keys, permutes, strict=True))
    return list(rounds.values()), np.array([list(rounds).index(key) for key in keys], np.int32)


def _list_rows(W: csr_array, n: int, devices: int) -> dict[tuple[int, int], np.ndarray]:
    """Returns, by (sender, receiver), the sorted workers of the sender whose rows the receiver
    needs.
    """
    needed = {}
    for receiver in range(devices):
        workers = np.unique(W[receiver * n : (receiver + 1) * n].indices)
        for sender in range(devices):
            rows = workers[workers // n == sender]
            if sender != receiver and rows.size:
                needed[sender, receiver] = rows
    return needed


def _permutes(needed: dict[tuple[int, int], np.ndarray], n: int, devices: int) -> list[Permute]:
    permutes = []
    for pairs in matchings(list(needed), devices):
        longest = max(len(needed[pair]) for pair in pairs)
        workers = np.repeat(n * np.arange(devices)[:, None], longest, axis=1)
        for sender, receiver in pairs:
            rows = needed[sender, receiver]
            workers[sender, : len(rows)] = rows
        permutes.append(Permute(pairs, workers))
    return permutes


def _table(permutes: list[Permute], device: int, n: int) -> np.ndarray:
    """Returns the workers whose rows the table of a device has: its own, then those of each
    permute; -1 for unused positions.
    """
    table = [np.arange(device * n, (device + 1) * n)]
    for pairs, workers in permutes:
        sender = next((sender for sender, receiver in pairs if receiver == device), None)
        table.append(np.full(workers.shape[1], -1) if sender is None else workers[sender])
    return np.concatenate(table)


def _invert(table: np.ndarray, N: int) -> np.ndarray:
    """Returns the position of each of N workers in a table, `[N]`; 0 if it is not there."""
    place = np.zeros(N, np.int32)
    used = np.flatnonzero(table >= 0)
    place[table[used]] = used
    return place


def _find(
    block: csr_array, table: np.ndarray, first: int, N: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns, for every weight of another worker in a block of W, its row, its position in the
    table, and the weight.
    """
    place, entries = _invert(table, N), coo_array(block)
    other = entries.col != entries.row + first
    return entries.row[other], place[entries.col[other]], entries.data[other]


def _few(row, place, weight, n: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns lists `[n, most]` of weights and positions, padded with the block's rows at weight
    0.
    """
    weights = np.zeros((n, most))
    places = np.repeat(np.arange(n, dtype=np.int32)[:, None], most, axis=1)
    slot = np.arange(len(row)) - np.searchsorted(row, row)  # rows are sorted
    weights[row, slot], places[row, slot] = weight, place
    return weights, places


def _all(row, place, weight, n: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a matrix `[n, length]` of weights; the positions are its columns."""
    weights = np.zeros((n, length))
    weights[row, place] = weight
    return weights, np.zeros((n, 0), np.int32)
