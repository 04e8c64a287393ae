"""OptPerf as it was published, for comparison. `ClusterModel.optperf` is exact."""

from __future__ import annotations

import numpy as np

from algorithms.cannikin.model import ClusterModel, OptPerf
from dsgd import checks


@checks.arguments
def published_optperf(model: ClusterModel, total: float) -> OptPerf:
    r"""Algorithm 1: who is bound by computation and who by communication, by bisection in the order
    of fixed times.

    Check 1 takes all to be bound by computation, check 2 by communication, and each solves for
    batches with which all end together. Where neither holds, nodes are sorted by their fixed time
    s; those before a boundary are taken to be bound by computation, and the boundary is moved until
    no node takes longer than it is supposed to.

    That is OptPerf where q = 0 and all batches come out positive. With q > 0 the order may be
    another one, that of $s_i + q_i (P^\circ - m_i) / k_i$, when node i's backward pass takes
    $P^\circ = T_o / (1 - \gamma)$ seconds. Then no boundary need be right, and the search, which is
    printed without an end, ends here with the best of those that it has tried. Nothing keeps
    batches from being negative, or within limits, at which it does not look.

    Two things are mended. The systems of n + 1 equations are solved in O(n), for which the paper
    counts $O(n^3)$. And all nodes are searched, where the paper leaves out those for which the
    checks agree: who is bound by communication in both may still be bound by computation, and those
    for which they disagree always are.

    Args:
        model: of the cluster.
        total: B, samples.

    Returns:
        The seconds that it tells, and batches, `[n]`; what these take is `model.batch_time`.

    Raises:
        ValueError: B that is not above 0, infinite or NaN; a node with q + gamma k = 0, for which
            check 2's equations have no solution.

    Source: Nie et al., "Cannikin", section 4.2, algorithm 1.
    """
    if not (np.isfinite(total) and total > 0):
        raise ValueError(f"published_optperf: total = {total}: need a finite number above 0")
    q, s, k, m = (np.asarray(each) for each in (model.q, model.s, model.k, model.m))
    computing, sending = (
        np.array([q + k, s + m]),
        np.array([q + model.gamma * k, s + model.gamma * m + model.t_overlap]),
    )
    if (flat := np.flatnonzero(sending[0] == 0)).size:
        raise ValueError(
            f"published_optperf: model with q + gamma k = 0 of node {flat[0]}: need more, or "
            "check 2 cannot be solved"
        )
    if model.computes_longer((found := _equal(model, computing, total)).batches).all():
        return found
    if not model.computes_longer((found := _equal(model, sending, total)).batches).any():
        return found
    rank = np.argsort(np.argsort(s, kind="stable"))
    low, high, tried = 0, model.nodes, []
    while low <= high:
        boundary = (low + high) // 2
        found = _equal(model, np.where(rank < boundary, computing, sending), total)
        tried.append(found)
        longest = (found.seconds - model.t_last) * (1 + 1e-12)
        if (sending[0] * found.batches + sending[1] > longest).any():
            high = boundary - 1
        elif (computing[0] * found.batches + computing[1] > longest).any():
            low = boundary + 1
        else:
            return found
    return min(tried, key=lambda found: model.batch_time(found.batches))


def _equal(model: ClusterModel, lines: np.ndarray, total: float) -> OptPerf:
    """Batches for which lines, `[2, n]` of slopes and values at 0, all are the same."""
    slopes, fixed = lines
    T = (total + (fixed / slopes).sum()) / (1 / slopes).sum()
    return OptPerf(float(T + model.t_last), (T - fixed) / slopes)
