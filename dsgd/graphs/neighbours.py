"""Who is at the other ends of a worker's messages, as arrays for compiled code."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array

from dsgd.graphs.topology import Topology


class Neighbours(NamedTuple):
    """Lists of each worker in each round of a period, `[period, n, K]`.

    Args:
        workers: who is at the other end, int32, in order; filled up with -1.
        weights: of W, that such a message has; filled up with 0.
    """

    workers: np.ndarray
    weights: np.ndarray


@lru_cache(maxsize=64)
def neighbours(topology: Topology, end: int) -> Neighbours:
    """The lists of all workers.

    Args:
        topology: W.
        end: 0 for those that a worker sends, 1 for those that it receives.
    """
    counts = (topology.sends, topology.receives)[end]
    shape = (*counts.shape, counts.max())
    lists = Neighbours(np.full(shape, -1, np.int32), np.zeros(shape))
    for turn, W in enumerate(topology.matrices):
        entries = coo_array(W)
        link = entries.row != entries.col
        own, other = ((entries.col, entries.row)[i][link] for i in (end, 1 - end))
        order = np.lexsort((other, own))
        place = np.arange(len(own)) - np.searchsorted(own[order], own[order])
        lists.workers[turn, own[order], place] = other[order]
        lists.weights[turn, own[order], place] = entries.data[link][order]
    return lists
