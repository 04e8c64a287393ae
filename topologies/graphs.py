"""Graphs that stay the same in every round."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import numpy as np
from scipy.sparse import coo_array, csr_array, dia_array, issparse

from dsgd import checks
from dsgd.graphs.topology import TOLERANCE, Topology
from topologies.weights import WEIGHTS, metropolis, uniform

if TYPE_CHECKING:
    import networkx as nx

Weights = Annotated[
    Callable[[csr_array], csr_array],
    "one of topologies.metropolis, topologies.max_degree, topologies.lazy, topologies.uniform, or "
    "a function like them",
]


@checks.arguments
def ring(n: int, weights: Weights = metropolis) -> Topology:
    r"""The ring $W_2$: each worker and its two neighbours, 1/3 each;
    $\rho = \max_k |1 + 2\cos(2\pi k/n)|/3 \approx 1 - 4\pi^2/(3n^2)$.

    Two workers have one neighbour each, weight 1/2.

    Args:
        n: number of workers, at least 1.
        weights: one of `topologies.metropolis`, `max_degree`, `lazy`, `uniform`, or any function
            like them.

    Raises:
        ValueError: n < 1.

    Source: Liu and Zhang, section 5.2.1, which prints $1 - 16\pi^2/(3n^2)$ (a misprint).
    """
    ids = np.arange(checks.positive_int("ring: n", n))
    return _named(f"ring({n})", _both_ways(n, ids, (ids + 1) % n), weights)


@checks.arguments
def complete(n: int) -> Topology:
    r"""The complete graph $W_1 = 11^T/n$, $\rho = 0$: one gossip round is the exact mean.

    Args:
        n: number of workers, at least 1.

    Raises:
        ValueError: n < 1.

    Source: Liu and Zhang, section 5.2.1 (which misprints $\rho = 1$ in the text).
    """
    return Topology(f"complete({n})", np.full((checks.positive_int("complete: n", n), n), 1 / n))


@checks.arguments
def star(n: int, weights: Weights = metropolis) -> Topology:
    r"""A hub, worker 0, and n - 1 others that only it knows; Metropolis weights are 1/n on edges,
    and $\rho = 1 - 1/n$ for n >= 3.

    Arguments, errors: as `ring`.
    """
    ids = np.arange(checks.positive_int("star: n", n))
    return _named(f"star({n})", _both_ways(n, np.zeros_like(ids), ids), weights)


@checks.arguments
def chain(n: int, weights: Weights = metropolis) -> Topology:
    r"""A line of workers, each with the one before it and the one after it; Metropolis:
    $\rho = (1 + 2\cos(\pi/n))/3$.

    Arguments, errors: as `ring`.
    """
    ids = np.arange(checks.positive_int("chain: n", n) - 1)
    return _named(f"chain({n})", _both_ways(n, ids, ids + 1), weights)


@checks.arguments
def torus(rows: int, columns: int, weights: Weights = metropolis) -> Topology:
    r"""A grid that is closed both ways; worker i is at row i // columns. Its 4 neighbours have 1/5
    each, and from 3 x 3 on
    $\rho = \max_{(k,l) \ne 0} |1 + 2\cos(2\pi k/\text{rows}) + 2\cos(2\pi l/\text{columns})|/5$.

    Args:
        rows, columns: at least 1. Two in a row are neighbours once.
        weights: as of `ring`.

    Raises:
        ValueError: rows or columns < 1.
    """
    checks.positive_int(f"torus({rows}, {columns}): rows", rows)
    checks.positive_int(f"torus({rows}, {columns}): columns", columns)
    checks.positive_int(f"torus({rows}, {columns}): rows * columns", rows * columns)
    row, column = np.divmod(np.arange(rows * columns), columns)
    right, below = row * columns + (column + 1) % columns, (row + 1) % rows * columns + column
    adjacency = _both_ways(
        rows * columns, np.tile(row * columns + column, 2), np.concatenate([right, below])
    )
    return _named(f"torus({rows}, {columns})", adjacency, weights)


@checks.arguments
def hypercube(dimension: int, weights: Weights = metropolis) -> Topology:
    r"""$2^k$ workers; those whose ids differ in one bit are neighbours. Metropolis: 1/(k+1) each,
    $\rho = (k-1)/(k+1)$.

    Args:
        dimension: k, at least 0.
        weights: as of `ring`.

    Raises:
        ValueError: dimension < 0.
    """
    checks.natural("hypercube: dimension", dimension, most=30)
    n, bits = 1 << dimension, 1 << np.arange(dimension)
    ids = np.repeat(np.arange(n), dimension)
    return _named(f"hypercube({dimension})", _one_way(n, ids, ids ^ np.tile(bits, n)), weights)


@checks.arguments
def exponential(n: int) -> Topology:
    r"""The static exponential graph: worker i sends to $i + 2^k$ for all $2^k < n$, equal weights.
    Directed and doubly stochastic.

    $\rho = 1 - 2/(1 + \lceil \log_2 n \rceil)$ for even n, with as many neighbours as that
    logarithm.

    Args:
        n: number of workers, at least 1.

    Raises:
        ValueError: n < 1.

    Source: Ying et al., "Exponential graph is provably efficient for decentralized deep training",
    2021.
    """
    hops = 1 << np.arange((checks.positive_int("exponential: n", n) - 1).bit_length())
    ids = np.repeat(np.arange(n), len(hops))
    return _named(
        f"exponential({n})", _one_way(n, ids, (ids + np.tile(hops, n)) % n), uniform, usual=uniform
    )


@checks.arguments
def erdos_renyi(
    n: int, probability: float, seed: int = 0, weights: Weights = metropolis
) -> Topology:
    r"""Every pair is connected with the same probability, independently; above $\ln n / n$ the
    graph is likely to be connected.

    Args:
        n: number of workers, at least 1.
        probability: of an edge, in (0, 1].
        seed: of the draw.
        weights: as of `ring`.

    Raises:
        ValueError: n < 1, another probability, or a draw that is not connected.
    """
    name = f"erdos_renyi({n}, {probability:.3g}, {seed})"
    checks.natural(f"{name}: seed", seed, most=None)
    if not 0 < probability <= 1:
        raise ValueError(f"{name}: need a probability in (0, 1]")
    import networkx as nx  # noqa: PLC0415 (a quarter of a second that other graphs are spared)

    graph = nx.gnp_random_graph(checks.positive_int("erdos_renyi: n", n), probability, seed=seed)
    return _drawn(name, graph, weights, "a higher probability")


@checks.arguments
def random_regular(n: int, degree: int, seed: int = 0, weights: Weights = metropolis) -> Topology:
    r"""A random graph in which every worker has as many neighbours: an expander, $\rho$ near
    $(1 + 2\sqrt{d-1})/(d+1)$ for large n.

    Args:
        n: number of workers.
        degree: d, below n; n d is even.
        seed: of the draw.
        weights: as of `ring`.

    Raises:
        ValueError: no such graph, or a draw that is not connected (unlikely from degree 3 on).
    """
    name = f"random_regular({n}, {degree}, {seed})"
    checks.natural(f"{name}: seed", seed, most=None)
    if (
        not checks.natural(f"{name}: degree", degree) < checks.positive_int("random_regular: n", n)
        or n * degree % 2
    ):
        raise ValueError(
            f"{name}: need 0 <= degree < n, and an even n * degree, or there is no such graph"
        )
    import networkx as nx  # noqa: PLC0415

    return _drawn(
        name, nx.random_regular_graph(degree, n, seed=seed), weights, "a degree of at least 3"
    )


@checks.arguments
def from_graph(
    graph: nx.Graph[Any], weights: Weights | str | None = None, name: str = "from_graph"
) -> Topology:
    """Returns the topology of a graph of networkx, with an edge from sender to receiver if it is
    directed.

    If the nodes are exactly 0, ..., n - 1, worker i is node i. Other nodes are workers in the order
    of the graph, and `Topology.names` has their names:
    `data=[data[node] for node in topology.names]`.

    Args:
        graph: undirected or directed. Loops and multiple edges do not matter unless `weights` is an
            attribute.
        weights: as of `ring`; or the name of an attribute of the edges: an edge (i, j) of an
            undirected graph has the weight $W_{ij} = W_{ji}$, an edge from i to j $W_{ji}$, and a
            loop $W_{ii}$. A node without a loop keeps what is left to 1. Multiple edges add up.
            None: `metropolis` if every edge goes both ways, else `uniform`, which is for push-sum
            methods.
        name: what tables and errors call it.

    Raises:
        ValueError: if `graph` is not a graph, has no nodes, or is not connected (a directed one
            strongly); if the weights are only for undirected graphs; or if an edge lacks the
            attribute, its value is not a finite number, or the weights of a node with its loop do
            not sum to 1 (without a loop: exceed 1).

    Warns:
        UserWarning: if edges have an attribute `weight`, other than 1, and `weights` is None.
    """
    import networkx as nx  # noqa: PLC0415

    if not isinstance(graph, nx.Graph):
        raise ValueError(
            f"{name}: given {checks.shown(graph)}; need a graph of networkx{_how_to_make(graph)}"
        )
    if len(graph) == 0:
        raise ValueError(f"{name}: a graph without nodes; need at least one worker")
    numbered = set(graph) == set(range(len(graph)))
    nodes = list(range(len(graph))) if numbered else list(graph)
    names = None if numbered else nodes
    if isinstance(weights, str):
        return Topology(f"{name}, {weights}", _weighted(name, graph, nodes, weights), names)
    if weights is None and any(_informative(value) for _, _, value in graph.edges(data="weight")):  # pyright: ignore[reportCallIssue]
        warnings.warn(
            f"{name}: the edges have an attribute 'weight', which is not used; pass "
            "weights='weight' for W of these numbers, or"
            " weights=topologies.metropolis (topologies.uniform if edges go one way) for weights "
            "of the edges alone",
            stacklevel=3,
        )
    adjacency = _adjacency(graph, nodes)
    usual = uniform if graph.is_directed() else metropolis
    default = metropolis if (adjacency != adjacency.T).nnz == 0 else usual
    return _named(name, adjacency, weights or default, usual if weights else default, names)


@checks.arguments
def from_matrix(W: Any, name: str = "from_matrix") -> Topology:
    """Any mixing matrix: columns that sum to 1, connected; for most methods symmetric, or with rows
    that sum to 1, too.

    Args:
        W: `[n, n]`, dense, of scipy.sparse, or a DataFrame, whose columns then name the workers;
            `[period, n, n]` or a sequence of matrices is a schedule. Errors of at most 1e-6, as of
            float32, are corrected.
        name: what tables and errors call it.

    Raises:
        ValueError: as `dsgd.Topology` says; or a DataFrame whose rows are in another order than its
            columns.
    """
    return Topology(name, W, _frame_names(name, W))


def _frame_names(name: str, W: Any) -> list[Any] | None:
    """What a DataFrame calls the workers; None of other matrices, and if they are numbers in
    order.
    """
    if not (hasattr(W, "columns") and hasattr(W, "index")):
        return None
    columns, index, numbers = list(W.columns), list(W.index), list(range(len(W.columns)))
    if index not in (columns, numbers) or (
        index == numbers and set(columns) == set(numbers) and columns != numbers
    ):
        raise ValueError(
            f"{name}: W has rows {checks.shown(index)} and columns {checks.shown(columns)}; need "
            "the same order: W.loc[W.columns]"
        )
    return None if columns == numbers else columns


def _how_to_make(graph: Any) -> str:
    """A graph of networkx from what else describes one."""
    if issparse(graph):
        return (
            ": networkx.from_scipy_sparse_array(A), or topologies.from_matrix(W) of a mixing matrix"
        )
    if hasattr(graph, "columns"):
        return ": networkx.from_pandas_edgelist(edges, 'source', 'target')"
    if getattr(graph, "ndim", 0) == 2:
        return ": networkx.from_numpy_array(A), or topologies.from_matrix(W) of a mixing matrix"
    return ": networkx.Graph(edges)" if isinstance(graph, list | tuple | set | dict) else ""


def _informative(weight: Any) -> bool:
    """Whether an edge's `weight` is more than the 1 that networkx gives edges of adjacency
    matrices.
    """
    return weight is not None and not (checks.is_number(weight) and weight == 1)


def _weighted(name: str, graph: nx.Graph, nodes: list[Any], attribute: str) -> csr_array:
    """W of an attribute of the edges, and what is left to 1 for nodes without a loop."""
    number, entries = {node: i for i, node in enumerate(nodes)}, []
    for sender, receiver, value in graph.edges(data=attribute):  # pyright: ignore[reportCallIssue]
        if not checks.is_number(value) or not math.isfinite(value):
            what = (
                f"no attribute {attribute!r}"
                if value is None
                else f"{attribute} = {checks.shown(value)}"
            )
            known = (
                f"; topologies.{attribute} is a function: pass it" if attribute in WEIGHTS else ""
            )
            raise ValueError(
                f"{name}: weights = {attribute!r}, but the edge ({sender!r}, {receiver!r}) has "
                f"{what}; need a finite number for every"
                f" edge{known}"
            )
        entries.append((number[receiver], number[sender], float(value)))
        if not graph.is_directed() and sender != receiver:
            entries.append((number[sender], number[receiver], float(value)))
    rows, columns, values = zip(*entries, strict=True) if entries else ((), (), ())
    W = csr_array(
        (np.array(values, float), (np.array(rows, int), np.array(columns, int))),
        shape=(len(nodes),) * 2,
    )
    looped = np.isin(
        np.arange(len(nodes)), [number[node] for node in nodes if graph.has_edge(node, node)]
    )
    left = 1 - W.sum(axis=0)
    wrong = np.where(looped, np.abs(left) > TOLERANCE, left < -TOLERANCE)
    if wrong.any():
        _refuse_node(name, nodes, W, left, int(np.argmax(wrong * np.abs(left))), looped)
    return csr_array(W + dia_array((np.where(looped, 0, left)[None, :], [0]), shape=W.shape))


def _refuse_node(
    name: str, nodes: list[Any], W: csr_array, left: np.ndarray, worst: int, looped: np.ndarray
) -> NoReturn:
    symmetric = (W != W.T).nnz == 0
    what = f"the weights of {'' if symmetric else 'edges out of '}node {nodes[worst]!r}{' with its loop' if looped[worst] else ''}"
    remedy = f"a node without a loop keeps what is left, at least 0: divide all weights by {1 - left.min():.6g}"
    if looped[worst]:
        remedy = "without loops, nodes keep what is left to 1"
    if not symmetric and np.abs(W.sum(axis=1) - 1).max() <= TOLERANCE:
        remedy = (
            "those into each node do: if edges go from receiver to sender, pass graph.reverse()"
        )
    far = f"sum to {1 - left[worst]:.10g}, {abs(left[worst]):.3g} {'less' if left[worst] > 0 else 'more'} than 1"
    raise ValueError(
        f"{name}: {what} {far}; need {'a sum of 1' if looped[worst] else 'at most 1'} ({remedy})"
    )


def _both_ways(n: int, first: np.ndarray, second: np.ndarray) -> csr_array:
    """The adjacency matrix `[n, n]` of an undirected graph, from the two ends of its edges; loops
    and repetitions do not matter.
    """
    return _one_way(n, np.concatenate([first, second]), np.concatenate([second, first]))


def _one_way(n: int, sender: np.ndarray, receiver: np.ndarray) -> csr_array:
    """The same of a directed graph: 1 where the column's worker sends to the row's."""
    other = sender != receiver
    adjacency = csr_array((np.ones(other.sum()), (receiver[other], sender[other])), shape=(n, n))
    adjacency.data[:] = 1  # repetitions were added up
    return adjacency


def _adjacency(graph: nx.Graph, nodes: list[Any]) -> csr_array:
    """That of a networkx graph, of which these nodes are the workers."""
    import networkx as nx  # noqa: PLC0415

    links = coo_array(nx.to_scipy_sparse_array(graph, nodelist=nodes, weight="", dtype=float))
    return _one_way(len(graph), links.row, links.col)


def _named(
    name: str,
    adjacency: csr_array,
    weights: Weights,
    usual: Weights = metropolis,
    names: Sequence[Any] | None = None,
) -> Topology:
    """The topology with these weights on these edges. Its name tells weights that are not the usual
    ones.
    """
    how = "" if weights is usual else f", {getattr(weights, '__name__', 'own weights')}"
    name = f"{name[:-1]}{how})" if name.endswith(")") else f"{name}{how}"
    try:
        W = weights(adjacency)
    except ValueError as error:
        if names is None:
            raise
        raise ValueError(
            f"{error} (the workers are, in order, the nodes {checks.shown(names)})"
        ) from error
    return Topology(name, _on_edges(name, W, adjacency), names)


def _on_edges(name: str, W: Any, adjacency: csr_array) -> csr_array:
    """W, if it is one of this graph."""
    if not issparse(W) and (not checks.is_numeric(W) or np.ndim(W) != 2):
        raise ValueError(
            f"{name}: the weights function gave {checks.shown(W)}; need a matrix {adjacency.shape}"
        )
    W = csr_array(W)
    if W.shape != adjacency.shape:
        raise ValueError(
            f"{name}: the weights function gave {W.shape} for an adjacency of {adjacency.shape}; "
            "need the same"
        )
    entries = coo_array(W)
    strange = (entries.row != entries.col) & (
        np.asarray(adjacency[entries.row, entries.col]).ravel() == 0
    )
    if strange.any():
        i, j = entries.row[strange][0], entries.col[strange][0]
        given = f"W[{i}, {j}] = {W[i, j]:.6g}, where {j} does not send to {i}"
        raise ValueError(f"{name}: the weights function gave {given}; need weights on edges")
    return W


def _drawn(name: str, graph: nx.Graph[Any], weights: Weights, hint: str) -> Topology:
    import networkx as nx  # noqa: PLC0415

    if not nx.is_connected(graph):
        parts = sorted((sorted(part) for part in nx.connected_components(graph)), key=len)
        raise ValueError(
            f"{name}: the draw falls into {len(parts)} components, the smallest of workers "
            f"{parts[0][:8]}; need {hint}, or another seed"
        )
    return _named(name, _adjacency(graph, list(range(len(graph)))), weights)
