"""Neighbour lists of the workers as arrays for compiled code."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array

from dsgd.graphs.topology import Topology


class Neighbours(NamedTuple):
    """Neighbour lists of each worker in each round of a period, arrays `[period, n, K]`.

    Args:
        workers: ids of the neighbours, int32, in rising order, padded with -1.
        weights: the entries of W for these neighbours, padded with 0.
    """

    workers: np.ndarray
    weights: np.ndarray


@lru_cache(maxsize=64)
def neighbours(topology: Topology, end: int) -> Neighbours:
    """Returns the neighbour lists of all workers.

    Args:
        topology: W.
        end: 0 for the workers that each worker sends to, 1 for those that it receives from.
    """
    counts = (topology.out_degrees, topology.in_degrees)[end]
    shape = (*counts.shape, counts.max())
    lists = Neighbours(np.full(shape, -1, np.int32), np.zeros(shape))
    for turn, W in enumerate(topology.matrices):
        entries = coo_array(W)
        link = entries.row != entries.col
        ids, other = ((entries.col, entries.row)[i][link] for i in (end, 1 - end))
        order = np.lexsort((other, ids))
        place = np.arange(len(ids)) - np.searchsorted(ids[order], ids[order])
        lists.workers[turn, ids[order], place] = other[order]
        lists.weights[turn, ids[order], place] = entries.data[link][order]
    return lists
