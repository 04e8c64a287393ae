"""Static graphs: topologies whose mixing matrix is the same in every round."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import numpy as np
from scipy.sparse import coo_array, csr_array, dia_array, issparse

from dsgd import causes, checks
from dsgd.graphs.sizes import require_memory
from dsgd.graphs.topology import TOLERANCE, Role, Topology
from topologies.weights import WEIGHTS, metropolis, role_of, uniform

if TYPE_CHECKING:
    import networkx as nx

_DENSE = 64  # bytes of each weight of a dense matrix
_DRAWN = 256  # bytes of each weight of a graph that networkx draws

Weights = Annotated[
    Callable[[csr_array], csr_array],
    "one of topologies.metropolis, topologies.max_degree, topologies.lazy, topologies.uniform, "
    "topologies.pull, topologies.push, or a function from an adjacency matrix to a mixing matrix",
]


@checks.arguments
def ring(n: int, weights: Weights = metropolis) -> Topology:
    r"""Returns the ring $W_2$: each worker averages with its two neighbours, with weights of 1/3,
    and $\rho = \max_k |1 + 2\cos(2\pi k/n)|/3 \approx 1 - 4\pi^2/(3n^2)$.

    With two workers, each has one neighbour and the weights are 1/2.

    Args:
        n: number of workers, at least 1.
        weights: one of `topologies.metropolis`, `max_degree`, `lazy`, `uniform`, or any function
            from an adjacency matrix `[n, n]` to a mixing matrix `[n, n]`. With `pull` and `push`,
            the topology has that role.

    Raises:
        ValueError: if n < 1.

    Source: Liu and Zhang, section 5.2.1, which prints $1 - 16\pi^2/(3n^2)$ (a misprint).
    """
    require_memory(f"ring({n})", 3 * checks.positive_int("ring: n", n))
    ids = np.arange(n)
    return make_topology(f"ring({n})", _both_ways(n, ids, (ids + 1) % n), weights)


@checks.arguments
def complete(n: int) -> Topology:
    r"""Returns the complete graph $W_1 = 11^T/n$, with $\rho = 0$: one gossip round computes the
    exact mean.

    Args:
        n: number of workers, at least 1.

    Raises:
        ValueError: if n < 1.

    Source: Liu and Zhang, section 5.2.1 (which misprints $\rho = 1$ in the text).
    """
    require_memory(f"complete({n})", checks.positive_int("complete: n", n) ** 2, _DENSE)
    return Topology(f"complete({n})", np.full((n, n), 1 / n))


@checks.arguments
def star(n: int, weights: Weights = metropolis) -> Topology:
    r"""Returns the star: worker 0 is the hub, and the n - 1 other workers are connected to it only.
    Metropolis weights are 1/n on the edges, and $\rho = 1 - 1/n$ for n >= 3.

    The arguments and errors are those of `ring`.
    """
    require_memory(f"star({n})", 3 * checks.positive_int("star: n", n))
    ids = np.arange(n)
    return make_topology(f"star({n})", _both_ways(n, np.zeros_like(ids), ids), weights)


@checks.arguments
def chain(n: int, weights: Weights = metropolis) -> Topology:
    r"""Returns the chain, in which worker i is connected to workers i - 1 and i + 1. With
    Metropolis weights, $\rho = (1 + 2\cos(\pi/n))/3$.

    The arguments and errors are those of `ring`.
    """
    require_memory(f"chain({n})", 3 * checks.positive_int("chain: n", n))
    ids = np.arange(n - 1)
    return make_topology(f"chain({n})", _both_ways(n, ids, ids + 1), weights)


@checks.arguments
def torus(rows: int, columns: int, weights: Weights = metropolis) -> Topology:
    r"""Returns the torus: a grid that is closed in both directions, with worker i in row i //
    columns. Each of a worker's 4 neighbours has weight 1/5, and from 3 x 3 on $\rho = \max_{(k,l)
    \ne 0} |1 + 2\cos(2\pi k/\text{rows}) + 2\cos(2\pi l/\text{columns})|/5$.

    Args:
        rows, columns: size of the grid, each at least 1. With two rows or two columns, the two
            neighbours in that direction are the same worker and share one edge.
        weights: as in `ring`.

    Raises:
        ValueError: if rows or columns < 1.
    """
    _require_sides(f"torus({rows}, {columns})", rows, columns)
    row, column = np.divmod(np.arange(rows * columns), columns)
    right, below = row * columns + (column + 1) % columns, (row + 1) % rows * columns + column
    adjacency = _both_ways(
        rows * columns, np.tile(row * columns + column, 2), np.concatenate([right, below])
    )
    return make_topology(f"torus({rows}, {columns})", adjacency, weights)


@checks.arguments
def grid(rows: int, columns: int, weights: Weights = metropolis) -> Topology:
    """Returns the grid: worker i is in row i // columns and connected to its up to 4 neighbours in
    the same row or column. It is a `torus` without the edges that close it.

    The arguments and errors are those of `torus`.
    """
    _require_sides(f"grid({rows}, {columns})", rows, columns)
    ids = np.arange(rows * columns).reshape(rows, columns)
    first, second = (
        np.concatenate([one.ravel(), other.ravel()])
        for one, other in ((ids[:, :-1], ids[:-1]), (ids[:, 1:], ids[1:]))
    )
    return make_topology(f"grid({rows}, {columns})", _both_ways(ids.size, first, second), weights)


def _require_sides(name: str, rows: int, columns: int) -> None:
    """Raises a ValueError unless both are positive and their graph fits the memory."""
    checks.positive_int(f"{name}: rows", rows)
    checks.positive_int(f"{name}: columns", columns)
    checks.positive_int(f"{name}: rows * columns", rows * columns)
    require_memory(name, 5 * rows * columns)


@checks.arguments
def hypercube(dimension: int, weights: Weights = metropolis) -> Topology:
    r"""Returns the hypercube of $2^k$ workers, in which workers whose ids differ in one bit are
    neighbours. With Metropolis weights, each neighbour has weight 1/(k+1) and $\rho = (k-1)/(k+1)$.

    Args:
        dimension: k, at least 0.
        weights: as in `ring`.

    Raises:
        ValueError: if dimension < 0.
    """
    checks.natural("hypercube: dimension", dimension, most=30)
    n, bits = 1 << dimension, 1 << np.arange(dimension)
    require_memory(f"hypercube({dimension})", (dimension + 1) * n)
    ids = np.repeat(np.arange(n), dimension)
    return make_topology(
        f"hypercube({dimension})", one_way(n, ids, ids ^ np.tile(bits, n)), weights
    )


@checks.arguments
def exponential(n: int) -> Topology:
    r"""Returns the static exponential graph: worker i sends to $i + 2^k$ for all $2^k < n$, with
    equal weights. It is directed and doubly stochastic.

    For even n, $\rho = 1 - 2/(1 + \lceil \log_2 n \rceil)$; each worker has $\lceil \log_2 n
    \rceil$ neighbours.

    Args:
        n: number of workers, at least 1.

    Raises:
        ValueError: if n < 1.

    Source: Ying et al., "Exponential graph is provably efficient for decentralized deep training",
    2021.
    """
    hops = 1 << np.arange((checks.positive_int("exponential: n", n) - 1).bit_length())
    require_memory(f"exponential({n})", (len(hops) + 1) * n)
    ids = np.repeat(np.arange(n), len(hops))
    return make_topology(
        f"exponential({n})", one_way(n, ids, (ids + np.tile(hops, n)) % n), uniform, usual=uniform
    )


@checks.arguments
def erdos_renyi(
    n: int, probability: float, seed: int = 0, weights: Weights = metropolis
) -> Topology:
    r"""Returns an Erdős–Rényi random graph: each pair of workers is connected independently with
    the given probability. Above $\ln n / n$ the graph is likely to be connected.

    Args:
        n: number of workers, at least 1.
        probability: probability of an edge, in (0, 1].
        seed: seed of the draw.
        weights: as in `ring`.

    Raises:
        ValueError: if n < 1, if the probability is not in (0, 1], or if the drawn graph is not
            connected.
    """
    name = f"erdos_renyi({n}, {probability:.3g}, {seed})"
    checks.natural(f"{name}: seed", seed, most=None)
    if not 0 < probability <= 1:
        raise ValueError(f"{name}: probability = {probability!r}; expected a number in (0, 1]")
    checks.positive_int("erdos_renyi: n", n)
    require_memory(name, n + probability * n * (n - 1), _DRAWN)
    import networkx as nx  # noqa: PLC0415 (takes a quarter of a second to import)

    graph = nx.gnp_random_graph(n, probability, seed=seed)
    return _random_topology(name, graph, weights, "a higher probability")


@checks.arguments
def geometric(n: int, radius: float, seed: int = 0, weights: Weights = metropolis) -> Topology:
    """Returns a random geometric graph, as of wireless sensors: workers are at random points of the
    unit square, and those at a distance of at most the radius are connected.

    Args:
        n: number of workers, at least 1.
        radius: largest distance of connected workers, above 0.
        seed: seed of the draw.
        weights: as in `ring`.

    Raises:
        ValueError: if n < 1, if the radius is not positive and finite, or if the drawn graph is not
            connected.
    """
    name = f"geometric({n}, {radius:.3g}, {seed})"
    checks.natural(f"{name}: seed", seed, most=None)
    checks.number(f"{name}: radius", radius, "(0, inf)")
    require_memory(
        name,
        checks.positive_int("geometric: n", n) ** 2 * min(1.0, np.pi * min(1.0, radius) ** 2),
        _DRAWN,
    )
    import networkx as nx  # noqa: PLC0415

    graph = nx.random_geometric_graph(n, radius, seed=seed)
    return _random_topology(name, graph, weights, "a larger radius")


@checks.arguments
def random_regular(n: int, degree: int, seed: int = 0, weights: Weights = metropolis) -> Topology:
    r"""Returns a random regular graph, in which every worker has the same number of neighbours. It
    is an expander: $\rho$ is near $(1 + 2\sqrt{d-1})/(d+1)$ for large n.

    Args:
        n: number of workers.
        degree: d, the number of neighbours of each worker, below n; n d must be even.
        seed: seed of the draw.
        weights: as in `ring`.

    Raises:
        ValueError: if no such graph exists, or if the drawn graph is not connected (unlikely for
            degrees of at least 3).
    """
    name = f"random_regular({n}, {degree}, {seed})"
    checks.natural(f"{name}: seed", seed, most=None)
    if (
        not checks.natural(f"{name}: degree", degree) < checks.positive_int("random_regular: n", n)
        or n * degree % 2
    ):
        raise ValueError(
            f"{name}: n = {n}, degree = {degree}; expected 0 <= degree < n and an even n * "
            "degree, since no other regular graph exists"
        )
    require_memory(name, (degree + 1) * n, _DRAWN)
    import networkx as nx  # noqa: PLC0415

    return _random_topology(
        name, nx.random_regular_graph(degree, n, seed=seed), weights, "a degree of at least 3"
    )


@checks.arguments
def random_directed(n: int, degree: int, seed: int = 0, weights: Weights = uniform) -> Topology:
    """Returns a random directed graph: the workers are put in a random cyclic order, and each sends
    to the next one and to degree - 1 others drawn at random. It is strongly connected. The numbers
    of messages that workers receive differ from degree 2 on.

    Args:
        n: number of workers, at least 2.
        degree: number of workers that each worker sends to, from 1 to n - 1.
        seed: seed of the draw.
        weights: `topologies.uniform`, so that the columns of W sum to 1; `topologies.pull`, which
            gives the same graph rows that sum to 1; or another function as in `ring`.

    Raises:
        ValueError: if n < 2 or the degree is not from 1 to n - 1.
    """
    name = f"random_directed({n}, {degree}, {seed})"
    checks.natural(f"{name}: seed", seed, most=None)
    if not 1 <= degree < checks.positive_int("random_directed: n", n):
        raise ValueError(f"{name}: degree = {degree}; expected an integer from 1 to n - 1")
    require_memory(name, (degree + 1) * n)
    draw = np.random.default_rng(seed)
    order = draw.permutation(n)
    after = np.empty(n, int)
    after[order] = np.roll(order, -1)
    receivers = np.stack(
        [
            [after[i], *draw.choice(np.setdiff1d(np.arange(n), [i, after[i]]), degree - 1, False)]
            for i in range(n)
        ]
    )
    adjacency = one_way(n, np.repeat(np.arange(n), degree), receivers.ravel())
    return make_topology(name, adjacency, weights, usual=uniform)


@checks.arguments
def spanning_tree(topology: Topology, root: int = 0, weights: Weights = metropolis) -> Topology:
    r"""Returns a spanning tree of an undirected graph: the n - 1 edges of a breadth-first search,
    so that no worker is further from the root than in the graph.

    Args:
        topology: a topology with a symmetric W; of a schedule, the edges of all rounds are used.
        root: the worker at which the search starts. A root in the middle of the graph makes the
            tree's diameter small.
        weights: as in `ring`.

    Raises:
        ValueError: if W is not symmetric, or the root is no worker.
    """
    name = f"spanning_tree({topology.name}{f', {root}' if root else ''})"
    if not topology.symmetric:
        raise ValueError(
            f"{name}: W of {topology.name} is not symmetric; expected an undirected graph"
        )
    if not checks.natural(f"{name}: root", root) < topology.n:
        raise ValueError(f"{name}: root = {root}; expected a worker below {topology.n}")
    from scipy.sparse.csgraph import breadth_first_order  # noqa: PLC0415 (takes a tenth of a second to import)

    graph = _both_ways(topology.n, *topology.edges.T)
    reached, before = breadth_first_order(graph, root, directed=False)
    tree = _both_ways(topology.n, reached[1:], before[reached[1:]])
    return make_topology(name, tree, weights, names=topology.names)


@checks.arguments
def from_graph(
    graph: nx.Graph[Any], weights: Weights | str | None = None, name: str = "from_graph"
) -> Topology:
    """Returns the topology of a networkx graph. The edges of a directed graph go from sender to
    receiver.

    If the nodes are exactly 0, ..., n - 1, worker i is node i. Otherwise the workers are the nodes
    in the order of the graph, and `Topology.names` holds the nodes: `data=[data[node] for node in
    topology.names]`.

    Args:
        graph: undirected or directed. Loops and multiple edges are ignored unless `weights` is an
            attribute.
        weights: a function as in `ring`; or the name of an edge attribute that holds the weights:
            an edge (i, j) of an undirected graph has the weight $W_{ij} = W_{ji}$, an edge from i
            to j the weight $W_{ji}$, and a loop the weight $W_{ii}$. A node without a loop gets as
            $W_{ii}$ the remainder to 1. Multiple edges add up. None: `metropolis` if every edge
            goes both ways, else `uniform`, which is for push-sum methods.
        name: name of the topology in tables and error messages.

    Raises:
        ValueError: if `graph` is not a graph, has no nodes, or is not connected (strongly connected
            if directed); if the weights function supports undirected graphs only and the graph is
            directed; or if an edge lacks the attribute, its value is not a finite number, or the
            weights of a node do not sum to 1 (to at most 1 if the node has no loop).

    Warns:
        UserWarning: if edges have an attribute `weight` other than 1 and `weights` is None.
    """
    import networkx as nx  # noqa: PLC0415

    if not isinstance(graph, nx.Graph):
        raise ValueError(
            f"{name}: graph = {checks.show(graph)}; expected a networkx graph{_how_to_make(graph)}"
        )
    if len(graph) == 0:
        raise ValueError(f"{name}: the graph has no nodes; expected at least one")
    numbered = set(graph) == set(range(len(graph)))
    nodes = list(range(len(graph))) if numbered else list(graph)
    names = None if numbered else nodes
    if isinstance(weights, str):
        return Topology(
            f"{name}, {weights}", _matrix_from_attribute(name, graph, nodes, weights), names
        )
    if weights is None and any(_informative(value) for _, _, value in graph.edges(data="weight")):  # pyright: ignore[reportCallIssue]
        warnings.warn(
            f"{name}: the edges have an attribute 'weight', which is not used; pass "
            "weights='weight' to use these numbers as mixing weights, or"
            " weights=topologies.metropolis (topologies.uniform for a directed graph) to compute "
            "the weights from the edges alone",
            stacklevel=3,
        )
    adjacency = _adjacency(graph, nodes)
    usual = uniform if graph.is_directed() else metropolis
    default = metropolis if (adjacency != adjacency.T).nnz == 0 else usual
    return make_topology(name, adjacency, weights or default, usual if weights else default, names)


@checks.arguments
def from_matrix(W: Any, name: str = "from_matrix", role: Role = "gossip") -> Topology:
    """Returns the topology of a mixing matrix whose columns sum to 1 and whose graph is connected.
    Most methods need a symmetric matrix, or rows that sum to 1 as well.

    Args:
        W: `[n, n]`: a dense array, a scipy.sparse matrix, or a DataFrame, whose columns then name
            the workers. `[period, n, n]` or a sequence of matrices is a schedule. Rounding errors
            of at most 1e-6, as in float32, are corrected.
        name: name of the topology in tables and error messages.
        role: as in `dsgd.Topology`; for "pull" the rows sum to 1 instead of the columns.

    Raises:
        ValueError: as for `dsgd.Topology`; or if the rows of a DataFrame are not in the order of
            its columns.
    """
    return Topology(name, W, _frame_names(name, W), role)


def _frame_names(name: str, W: Any) -> list[Any] | None:
    """Returns the column names of a DataFrame as worker names; None for other matrices, and if the
    names are 0, ..., n - 1 in order.
    """
    if not (hasattr(W, "columns") and hasattr(W, "index")):
        return None
    columns, index, numbers = list(W.columns), list(W.index), list(range(len(W.columns)))
    if index not in (columns, numbers) or (
        index == numbers and set(columns) == set(numbers) and columns != numbers
    ):
        raise ValueError(
            f"{name}: W has rows {checks.show(index)} and columns {checks.show(columns)}; "
            "expected the same order: pass W.loc[W.columns]"
        )
    return None if columns == numbers else columns


def _how_to_make(graph: Any) -> str:
    """Returns a hint how to make a networkx graph from another representation of a graph."""
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
    """Whether an edge's `weight` differs from the 1 that networkx sets for edges of adjacency
    matrices.
    """
    return weight is not None and not (checks.is_number(weight) and weight == 1)


def _matrix_from_attribute(
    name: str, graph: nx.Graph, nodes: list[Any], attribute: str
) -> csr_array:
    """Returns W from an edge attribute. Nodes without a loop get the remainder to 1 on the
    diagonal.
    """
    number, entries = {node: i for i, node in enumerate(nodes)}, []
    for sender, receiver, value in graph.edges(data=attribute):  # pyright: ignore[reportCallIssue]
        if not checks.is_number(value) or not math.isfinite(value):
            what = (
                f"no attribute {attribute!r}"
                if value is None
                else f"{attribute} = {checks.show(value)}"
            )
            hint = (
                f"; topologies.{attribute} is a function: pass it" if attribute in WEIGHTS else ""
            )
            raise ValueError(
                f"{name}: weights = {attribute!r}, but the edge ({sender!r}, {receiver!r}) has "
                f"{what}; expected a finite number for every edge{hint}"
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
    loop = " with its loop" if looped[worst] else ""
    what = f"the weights of {'' if symmetric else 'edges out of '}node {nodes[worst]!r}{loop}"
    remedy = (
        f"the remainder to 1 is the node's own weight: divide all weights by {1 - left.min():.6g}"
    )
    if looped[worst]:
        remedy = "a node without a loop gets the remainder to 1"
    if not symmetric and np.abs(W.sum(axis=1) - 1).max() <= TOLERANCE:
        remedy = (
            "the weights into each node do: if edges go from receiver to sender, pass "
            "graph.reverse()"
        )
    side = "less" if left[worst] > 0 else "more"
    sums = f"sum to {1 - left[worst]:.10g}, {abs(left[worst]):.3g} {side} than 1"
    raise ValueError(
        f"{name}: {what} {sums}; expected {'a sum of 1' if looped[worst] else 'at most 1'}: "
        f"{remedy}"
    )


def _both_ways(n: int, first: np.ndarray, second: np.ndarray) -> csr_array:
    """Returns the adjacency matrix `[n, n]` of an undirected graph, given the two ends of its
    edges. Loops and repeated edges are ignored.
    """
    return one_way(n, np.concatenate([first, second]), np.concatenate([second, first]))


def one_way(n: int, sender: np.ndarray, receiver: np.ndarray) -> csr_array:
    """Returns the adjacency matrix `[n, n]` of a directed graph: entry (i, j) is 1 if j sends
    to i.
    """
    other = sender != receiver
    adjacency = csr_array((np.ones(other.sum()), (receiver[other], sender[other])), shape=(n, n))
    adjacency.data[:] = 1  # csr_array sums repeated edges.
    return adjacency


def _adjacency(graph: nx.Graph, nodes: list[Any]) -> csr_array:
    """Returns the adjacency matrix of a networkx graph with the workers in the order of `nodes`."""
    import networkx as nx  # noqa: PLC0415

    links = coo_array(nx.to_scipy_sparse_array(graph, nodelist=nodes, weight="", dtype=float))
    return one_way(len(graph), links.row, links.col)


def make_topology(
    name: str,
    adjacency: csr_array | list[csr_array],
    weights: Weights,
    usual: Weights = metropolis,
    names: Sequence[Any] | None = None,
) -> Topology:
    """Returns the topology with these weights on the edges of `adjacency`, or of a list of these
    for a schedule. The name of the topology includes the weights function if it is not the `usual`
    one.
    """
    how = "" if weights is usual else f", {getattr(weights, '__name__', 'own weights')}"
    name = f"{name[:-1]}{how})" if name.endswith(")") else f"{name}{how}"
    rounds = adjacency if isinstance(adjacency, list) else [adjacency]
    try:
        with causes.refuse_errors(f"{name}: weights"):
            matrices = [weights(one) for one in rounds]
    except ValueError as error:
        if names is None:
            raise
        raise ValueError(
            f"{error} (the workers are the nodes {checks.show(names)}, in this order)"
        ) from error
    W = [_require_edges(name, W, one) for W, one in zip(matrices, rounds, strict=True)]
    return Topology(name, W, names, role_of(weights))


def _require_edges(name: str, W: Any, adjacency: csr_array) -> csr_array:
    """Returns W as a sparse matrix, after checking that it has weights on edges of the graph
    only.
    """
    if not issparse(W) and (not checks.is_numeric(W) or np.ndim(W) != 2):
        raise ValueError(
            f"{name}: the weights function returned {checks.show(W)}; expected a matrix of "
            f"shape {adjacency.shape}"
        )
    W = csr_array(W)
    if W.shape != adjacency.shape:
        raise ValueError(
            f"{name}: the weights function returned a matrix of shape {W.shape} for an adjacency "
            f"matrix of shape {adjacency.shape}; expected the same shape"
        )
    entries = coo_array(W)
    misplaced = (entries.row != entries.col) & (
        np.asarray(adjacency[entries.row, entries.col]).ravel() == 0
    )
    if misplaced.any():
        i, j = entries.row[misplaced][0], entries.col[misplaced][0]
        given = f"W[{i}, {j}] = {W[i, j]:.6g} although worker {j} does not send to worker {i}"
        raise ValueError(
            f"{name}: the weights function returned {given}; expected nonzero weights on edges only"
        )
    return W


def _random_topology(name: str, graph: nx.Graph[Any], weights: Weights, hint: str) -> Topology:
    import networkx as nx  # noqa: PLC0415

    if not nx.is_connected(graph):
        parts = sorted((sorted(part) for part in nx.connected_components(graph)), key=len)
        raise ValueError(
            f"{name}: the drawn graph has {len(parts)} components, the smallest with workers "
            f"{parts[0][:8]}; expected a connected graph: pass {hint}, or another seed"
        )
    return make_topology(name, _adjacency(graph, list(range(len(graph)))), weights)
