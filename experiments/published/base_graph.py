"""Base-(k+1) graph: Takezawa, Sato, Bao, Niwa, Yamada, "Beyond exponential graph:
communication-efficient topologies for decentralized learning via finite-time convergence", 2023.

Published: periods are counted in the pictures of the authors' notebook visualization.ipynb (5 and 6
workers), and are lengths of the lists that their code makes (25 workers). Their test checks the
bound of the period for 1 to 99 workers and k from 1 to 4.
"""

from __future__ import annotations

import math

import numpy as np

import topologies
from experiments.published.consensus import errors
from experiments.published.outcomes import Claim, Number, Outcome, Panel, Source

N = 25
PERIODS: dict[Source, dict[tuple[int, int], int]] = {  # of n and k
    "authors' outputs": {(5, 1): 5, (6, 1): 4, (5, 2): 3, (6, 2): 2, (5, 3): 3, (6, 3): 2},
    "authors' code": {(N, 1): 9, (N, 2): 6, (N, 3): 5},
}


def base_graph(quick: bool) -> Outcome:
    """25 workers: the exact mean after one period, with at most k neighbours in each round."""
    rounds = 30
    graphs = {f"Base-{k + 1}": topologies.base_graph(N, k) for k in (1, 2, 3, 4)}
    others = {
        "one-peer exp.": topologies.one_peer_exponential(N),
        "exponential": topologies.exponential(N),
        "ring": topologies.ring(N),
    }
    lines = {
        name: (np.arange(rounds + 1), errors(graph, rounds)[None] ** 2 / N)
        for name, graph in (graphs | others).items()
    }
    rows = [
        Number(f"period, n = {n}, k = {k}", value, topologies.base_graph(n, k).period, source)
        for source, found in PERIODS.items()
        for (n, k), value in found.items()
    ]
    exact = [lines[name][1][0, graph.period] for name, graph in graphs.items()]
    left = [lines[name][1][0, -1] for name in others]
    made = {
        (n, k): topologies.base_graph(n, k)
        for n in range(2, 25 if quick else 100)
        for k in (1, 2, 3, 4)
    }
    longest = max(graph.period - 2 * math.log(n, k + 1) for (n, k), graph in made.items())
    degree = max(graph.degree - k for (_, k), graph in made.items())
    return Outcome(
        [
            *rows,
            Claim("error after a period", "0 up to rounding", exact, "theorem", at_most=1e-30),
            Claim("error of others, round 30", "not 0", left, "theorem", at_least=1e-20),
            Claim("period - 2 log(n) / log(k + 1)", "bounded", longest, "theorem", at_most=2),
            Claim("neighbours - k", "at most k", degree, "theorem", at_most=0),
        ],
        [Panel("rounds", r"$\frac{1}{n} \sum_i (x_i - \bar x)^2$", lines)],
        "As published.",
    )
