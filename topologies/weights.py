"""Weights for the edges of a graph: functions of its adjacency matrix that give a mixing matrix."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array, csr_array, dia_array

from dsgd import checks


@checks.arguments
def metropolis(adjacency: csr_array) -> csr_array:
    r"""Metropolis weights, $W_{ij} = 1 / (1 + \max(d_i, d_j))$ on edges; what is left stays with
    oneself. Symmetric on any graph.

    Args:
        adjacency: of an undirected graph, `[n, n]` with 1 where j sends to i, 0 on the diagonal.

    Raises:
        ValueError: a directed graph.

    Source: Xiao, Boyd and Kim, "Distributed average consensus with least-mean-square deviation",
    2007.
    """
    degrees = _degrees("metropolis", adjacency)
    edges = coo_array(adjacency)
    return _with_own(edges, 1 / (1 + np.maximum(degrees[edges.row], degrees[edges.col])))


@checks.arguments
def max_degree(adjacency: csr_array) -> csr_array:
    r"""Maximum-degree weights, $W_{ij} = 1 / (1 + \max_k d_k)$ on edges; what is left stays with
    oneself.

    Arguments, errors: as `metropolis`.

    Source: Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004.
    """
    degrees = _degrees("max_degree", adjacency)
    edges = coo_array(adjacency)
    return _with_own(edges, np.full(edges.nnz, 1 / (1 + degrees.max())))


@checks.arguments
def lazy(adjacency: csr_array) -> csr_array:
    r"""Lazy Metropolis weights, $(I + W) / 2$ of the Metropolis W: no eigenvalue is negative, as
    some corrected methods need.

    Arguments, errors: as `metropolis`.

    Source: after Olshevsky, "Linear time average consensus on fixed graphs", 2014, who has
    $1 / (2 \max(d_i, d_j))$ on edges.
    """
    _degrees("lazy", adjacency)  # refuses a directed graph by this name
    W = metropolis(adjacency)
    return csr_array((W + _diagonal(np.ones(len(W.indptr) - 1))) / 2)


@checks.arguments
def uniform(adjacency: csr_array) -> csr_array:
    r"""Every sender shares equally, $W_{ij} = 1 / (1 + d_j)$ for itself and those that it sends to:
    a third each on the survey's ring.

    Symmetric where all degrees are equal. Otherwise only columns sum to 1: a directed topology, for
    push-sum methods.

    Args:
        adjacency: of any graph, directed or not, `[n, n]` with 1 where j sends to i, 0 on the
            diagonal.

    Source: Liu and Zhang, section 5.2.1; Assran et al., "Stochastic gradient push", 2019.
    """
    edges = coo_array(adjacency)
    return _with_own(edges, 1 / (1 + np.asarray(adjacency.sum(axis=0))[edges.col]))


WEIGHTS = {weights.__name__: weights for weights in (metropolis, max_degree, lazy, uniform)}
"""By name, for command lines."""


def _degrees(weights: str, adjacency: csr_array) -> np.ndarray:
    one_way = coo_array(adjacency - adjacency.T)
    if one_way.nnz:
        receiver, sender = (ends[one_way.data > 0][0] for ends in (one_way.row, one_way.col))
        raise ValueError(
            f"{weights} weights of a directed graph: {sender} sends to {receiver}, which does not "
            "send back; need an undirected graph, or"
            " weights=topologies.uniform"
        )
    return np.asarray(adjacency.sum(axis=1))


def _with_own(edges: coo_array, weights: np.ndarray) -> csr_array:
    """W with these weights on the edges, and on the diagonal what is left of the columns."""
    W = csr_array((weights, (edges.row, edges.col)), shape=edges.shape)
    return csr_array(W + _diagonal(1 - W.sum(axis=0)))


def _diagonal(values: np.ndarray) -> dia_array:
    return dia_array((values[None, :], [0]), shape=(len(values), len(values)))
