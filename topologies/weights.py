"""Mixing weights: functions from the adjacency matrix of a graph to a mixing matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import coo_array, csr_array, dia_array

from dsgd import checks
from dsgd.graphs.topology import Role


@checks.arguments
def metropolis(adjacency: csr_array) -> csr_array:
    r"""Metropolis weights: $W_{ij} = 1 / (1 + \max(d_i, d_j))$ on edges, and the remainder to 1 on
    the diagonal. The matrix is symmetric for any graph.

    Args:
        adjacency: adjacency matrix `[n, n]` of an undirected graph, with 1 if j sends to i and 0 on
            the diagonal.

    Raises:
        ValueError: if the graph is directed.

    Source: Xiao, Boyd and Kim, "Distributed average consensus with least-mean-square deviation",
    2007.
    """
    degrees = _degrees("metropolis", adjacency)
    edges = coo_array(adjacency)
    return _add_diagonal(edges, 1 / (1 + np.maximum(degrees[edges.row], degrees[edges.col])))


@checks.arguments
def max_degree(adjacency: csr_array) -> csr_array:
    r"""Maximum-degree weights: $W_{ij} = 1 / (1 + \max_k d_k)$ on edges, and the remainder to 1 on
    the diagonal.

    The arguments and errors are those of `metropolis`.

    Source: Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004.
    """
    degrees = _degrees("max_degree", adjacency)
    edges = coo_array(adjacency)
    return _add_diagonal(edges, np.full(edges.nnz, 1 / (1 + degrees.max())))


@checks.arguments
def lazy(adjacency: csr_array) -> csr_array:
    r"""Lazy Metropolis weights: $(I + W) / 2$ with the Metropolis matrix W. No eigenvalue is
    negative, which some bias-corrected methods need.

    The arguments and errors are those of `metropolis`.

    Source: after Olshevsky, "Linear time average consensus on fixed graphs", 2014, who has $1 / (2
    \max(d_i, d_j))$ on edges.
    """
    _degrees("lazy", adjacency)  # so that the error for a directed graph names `lazy`
    W = metropolis(adjacency)
    return csr_array((W + _diagonal(np.ones(len(W.indptr) - 1))) / 2)


@checks.arguments
def uniform(adjacency: csr_array) -> csr_array:
    """Uniform weights: every sender divides its model equally, $W_{ij} = 1 / (1 + d_j)$ for itself
    and the workers that it sends to. On the survey's ring each weight is a third.

    The matrix is symmetric if all degrees are equal. Otherwise only its columns sum to 1: the
    topology is directed and for push-sum methods.

    Args:
        adjacency: adjacency matrix `[n, n]` of any graph, directed or not, with 1 if j sends to i
            and 0 on the diagonal.

    Source: Liu and Zhang, section 5.2.1; Assran et al., "Stochastic gradient push", 2019.
    """
    edges = coo_array(adjacency)
    return _add_diagonal(edges, 1 / (1 + np.asarray(adjacency.sum(axis=0))[edges.col]))


@checks.arguments
def pull(adjacency: csr_array) -> csr_array:
    """Weights of a topology for "pull": every receiver averages its model and those that it
    receives, $W_{ij} = 1 / (1 + d_i)$ with the in-degree $d_i$. The rows sum to 1.

    It is for the models of `algorithms.push_pull`. The graph may be directed, and one worker must
    reach all others.

    Args:
        adjacency: as in `uniform`.

    Source: Pu, Shi, Xu and Nedic, "Push-pull gradient methods for distributed optimization in
    networks", 2021.
    """
    return csr_array(uniform(csr_array(adjacency.T)).T)


@checks.arguments
def push(adjacency: csr_array) -> csr_array:
    """Weights of a topology for "push": those of `uniform`, on a graph in which one worker can be
    reached from all others. It need not be strongly connected, as it must be for `uniform`.

    It is for the trackers of `algorithms.push_pull`, for example on a tree with edges that lead
    to its root.

    Args:
        adjacency: as in `uniform`.

    Source: Pu, Shi, Xu and Nedic, "Push-pull gradient methods for distributed optimization in
    networks", 2021.
    """
    return uniform(adjacency)


def role_of(weights: Callable) -> Role:
    """Returns the role of a topology with these weights."""
    return "pull" if weights is pull else "push" if weights is push else "gossip"


WEIGHTS = {weights.__name__: weights for weights in (metropolis, max_degree, lazy, uniform)}
"""The weights functions for gossip by name, for command lines."""


def _degrees(weights: str, adjacency: csr_array) -> np.ndarray:
    one_way = coo_array(adjacency - adjacency.T)
    if one_way.nnz:
        receiver, sender = (ends[one_way.data > 0][0] for ends in (one_way.row, one_way.col))
        raise ValueError(
            f"{weights}: the graph is directed (worker {sender} sends to {receiver}, which does "
            "not send back); expected an undirected graph: pass weights=topologies.uniform"
        )
    return np.asarray(adjacency.sum(axis=1))


def _add_diagonal(edges: coo_array, weights: np.ndarray) -> csr_array:
    """Returns W with these weights on the edges, and on the diagonal the remainder of each column
    to 1.
    """
    W = csr_array((weights, (edges.row, edges.col)), shape=edges.shape)
    return csr_array(W + _diagonal(1 - W.sum(axis=0)))


def _diagonal(values: np.ndarray) -> dia_array:
    return dia_array((values[None, :], [0]), shape=(len(values), len(values)))
