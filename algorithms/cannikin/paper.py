"""OptPerf as published, for comparison; `ClusterModel.optperf` is exact."""

from __future__ import annotations

import numpy as np

from algorithms.cannikin.model import ClusterModel, OptPerf
from dsgd import checks


@checks.arguments
def published_optperf(model: ClusterModel, total: float) -> OptPerf:
    r"""Algorithm 1: finds which nodes are bound by computation and which by communication, by
    bisection in the order of their fixed times.

    Check 1 assumes that all nodes are bound by computation, check 2 that all are bound by
    communication, and each solves for batches with which all nodes finish at the same time. If
    neither assumption holds, nodes are sorted by their fixed time s; those before a boundary are
    assumed to be bound by computation, and the boundary is moved until no node takes longer than
    assumed.

    The result is OptPerf if q = 0 and all batches are positive. With q > 0 the order may be a
    different one, that of $s_i + q_i (P^\circ - m_i) / k_i$, the time at which node i's backward
    pass takes $P^\circ = T_o / (1 - \gamma)$ seconds. Then possibly no boundary is right, and the
    search, which has no end in the paper, ends here with the best of the boundaries that it tried.
    The algorithm does not prevent negative batches, and it ignores the limits.

    Departures: the systems of n + 1 equations are solved in O(n), for which the paper counts
    $O(n^3)$. And all nodes are searched, whereas the paper excludes those for which the checks
    agree: a node that is bound by communication in both checks may still be bound by computation,
    and those for which the checks disagree always are.

    Args:
        model: of the cluster.
        total: B, samples.

    Returns:
        The seconds that the algorithm returns, and batches, `[n]`, whose actual time is
        `model.batch_time`.

    Raises:
        ValueError: if B is not positive and finite, or a node has q + gamma k = 0, for which check
            2's equations have no solution.

    Source: Nie et al., "Cannikin", section 4.2, algorithm 1.
    """
    if not (np.isfinite(total) and total > 0):
        raise ValueError(f"published_optperf: total = {total}; expected a finite number > 0")
    q, s, k, m = (np.asarray(each) for each in (model.q, model.s, model.k, model.m))
    computing, sending = (
        np.array([q + k, s + m]),
        np.array([q + model.gamma * k, s + model.gamma * m + model.t_overlap]),
    )
    if (flat := np.flatnonzero(sending[0] == 0)).size:
        raise ValueError(
            f"published_optperf: q + gamma k = 0 for node {flat[0]}; expected a positive value, "
            "without which check 2 has no solution"
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
    """Returns batches for which all lines, slopes and intercepts `[2, n]`, have the same value."""
    slopes, fixed = lines
    T = (total + (fixed / slopes).sum()) / (1 / slopes).sum()
    return OptPerf(float(T + model.t_last), (T - fixed) / slopes)
