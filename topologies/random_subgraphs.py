"""MATCHA: in each round a random subgraph of a graph, at a part of its communication."""

from __future__ import annotations

import numpy as np

from dsgd import checks
from dsgd.graphs.sizes import require_memory
from dsgd.graphs.topology import Topology

_DENSE = 16  # bytes of each entry of the matrices
_CUTS = 200  # iterations of the cutting-plane method
_GAP = 1e-6  # relative gap at which it stops
_VECTORS = 4  # number of eigenvectors with bounds that an iteration adds


@checks.arguments
def matcha(topology: Topology, budget: float, period: int = 32, seed: int = 0) -> Topology:
    r"""Returns a schedule of random subgraphs of a graph (MATCHA): the edges are partitioned into
    matchings, and each round uses each matching with a probability of its own.

    $$ W_t = I - \alpha \sum_{j=1}^m B_j(t) L_j, \qquad B_j(t) \sim \mathrm{Bernoulli}(p_j), \qquad
       \max_p \lambda_2\Big(\sum_j p_j L_j\Big) \ \text{ such that } \sum_j p_j \le b\, m,\
       0 \le p_j \le 1 $$

    $L_j$ is the Laplacian matrix of matching j, and $\lambda_2$ the second smallest eigenvalue: the
    probabilities favour edges that connect the graph. $\alpha$ minimizes the largest eigenvalue of
    $E[W_t^T W_t] - 11^T/n = I - 2\alpha\bar L + \alpha^2 (\bar L^2 + 2\tilde L) - 11^T/n$, with
    $\bar L = \sum_j p_j L_j$ and $\tilde L = \sum_j p_j (1 - p_j) L_j$. W is symmetric in every
    round. With b = 1 every round uses the whole graph.

    Args:
        topology: the graph, undirected and the same in all rounds; its weights are not used.
        budget: b, the average part of the matchings that a round uses, in (0, 1].
        period: number of rounds that are drawn, at least 1; the schedule repeats them.
        seed: seed of the draw.

    Raises:
        ValueError: if the topology is directed or a schedule, the budget is not in (0, 1], or the
            union of the drawn rounds is not connected.

    Source: Wang, Sahu, Yang, Joshi and Kar, "MATCHA: speeding up decentralized SGD via matching
    decomposition sampling", 2019. The matchings are an edge colouring by DSATUR of the line graph.
    """
    name = f"matcha({topology.name}, {budget:g}, {period}, {seed})"
    if not topology.symmetric or topology.period > 1:
        kind = "a schedule" if topology.period > 1 else "directed"
        raise ValueError(
            f"{name}: {topology.name} is {kind}; expected an undirected graph, the same in all "
            "rounds"
        )
    checks.number(f"{name}: budget", budget, "(0, 1]")
    checks.positive_int(f"{name}: period", period)
    checks.natural(f"{name}: seed", seed, most=None)
    if topology.n == 1:
        return Topology(name, np.eye(1), topology.names)
    require_memory(name, (topology.degree + period) * topology.n**2, _DENSE)
    laplacians = np.stack([laplacian(topology.n, pairs) for pairs in matchings(topology.edges)])
    p = probabilities(laplacians, float(budget))
    alpha = best_step(laplacians, p)
    if p.min() == 1:
        period = 1
    used = np.random.default_rng(seed).random((period, len(p))) < p
    rounds = np.eye(topology.n) - alpha * np.tensordot(used.astype(float), laplacians, 1)
    return Topology(name, rounds, topology.names)


def matchings(edges: np.ndarray) -> list[np.ndarray]:
    """Returns the edges `[m, 2]` partitioned into sets without common nodes."""
    import networkx as nx  # noqa: PLC0415 (takes a tenth of a second to import)

    graph = nx.Graph(edges.tolist())
    colours = nx.greedy_color(nx.line_graph(graph), strategy="DSATUR")
    number = np.array([colours.get((a, b), colours.get((b, a))) for a, b in edges.tolist()])
    return [edges[number == colour] for colour in range(number.max() + 1)]


def laplacian(n: int, pairs: np.ndarray) -> np.ndarray:
    """Returns the Laplacian matrix of a graph with these edges."""
    L = np.zeros((n, n))
    first, second = pairs.T
    L[first, second] = L[second, first] = -1
    return L - np.diag(L.sum(axis=1))


def probabilities(laplacians: np.ndarray, budget: float) -> np.ndarray:
    r"""Returns the probabilities p that maximize $\lambda_2(\sum_j p_j L_j)$.

    The function is concave, and at most $\sum_j p_j v^T L_j v$ for every unit vector v with sum 0.
    Each iteration maximizes the minimum of these bounds over the eigenvectors so far.
    """
    from scipy.optimize import linprog  # noqa: PLC0415 (takes a quarter of a second to import)

    m, n = laplacians.shape[:2]
    centered = np.linalg.svd(np.ones((1, n)))[2][1:].T  # a basis of the vectors with sum 0
    reduced = centered.T @ laplacians @ centered
    p, cuts = np.full(m, budget), np.zeros((0, m))
    best, at = -np.inf, p
    for _ in range(_CUTS):
        values, vectors = np.linalg.eigh(np.tensordot(p, reduced, 1))
        if values[0] > best:
            best, at = values[0], p
        # Eigenvectors of further eigenvalues also give bounds, which save iterations.
        further = vectors[:, :_VECTORS]
        cuts = np.vstack([cuts, np.einsum("ik,jil,lk->kj", further, reduced, further)])
        found = linprog(
            [*[0.0] * m, -1.0],
            A_ub=np.vstack([[*[1.0] * m, 0.0], np.hstack([-cuts, np.ones((len(cuts), 1))])]),
            b_ub=[budget * m, *[0.0] * len(cuts)],
            bounds=[*[(0, 1)] * m, (None, None)],
        )
        p = np.clip(found.x[:m], 0, 1)
        if found.x[m] - best <= _GAP * found.x[m]:
            break
    return at


def best_step(laplacians: np.ndarray, p: np.ndarray) -> float:
    r"""Returns the $\alpha$ that minimizes the largest eigenvalue of $E[W^T W] - 11^T/n$."""
    from scipy.optimize import minimize_scalar  # noqa: PLC0415

    n = laplacians.shape[1]
    mean, spread = (np.tensordot(weights, laplacians, 1) for weights in (p, p * (1 - p)))
    square, uniform = mean @ mean + 2 * spread, np.full((n, n), 1 / n)

    def largest(alpha: float) -> float:
        return np.linalg.eigvalsh(np.eye(n) - 2 * alpha * mean + alpha**2 * square - uniform)[-1]

    most = 2 / np.linalg.eigvalsh(mean)[-1]
    found = minimize_scalar(largest, bounds=(0, most), method="bounded", options={"xatol": 1e-9})
    return float(found.x)
