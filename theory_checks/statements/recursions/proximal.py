"""Proximal gradient methods, compared with their recursions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import algorithms
from dsgd import problems
from dsgd.base import Algorithm
from theory_checks.machinery.cases import Case, Inputs, Symbols, on_server, on_workers
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import N
from theory_checks.recursions import proximal
from theory_checks.statements.recursions.shared import BITS, between_neighbours, graph, matrices

PENALTY = 0.3
COUPLING = 1.3  # 1 / (2 gamma) or less, for step sizes up to 0.3
PROX = proximal.soft_threshold(PENALTY)


def _steps(draws: Draws) -> np.ndarray:
    """Draws a step size for each worker."""
    return np.array([draws.real(0.05, 0.3) for _ in range(N)])


def _case(
    name: str,
    reference: str,
    make: Callable[..., Algorithm],
    rounds: Callable[[Inputs, np.ndarray], Iterator[Symbols]],
    on: str,
    vectors: int = 1,
    first: int = 1,
    more: Callable[[Draws], Any] = lambda draws: (),
) -> Case:
    """Returns a case on a graph: from round `first` on, counted from 1, each worker sends vectors
    to each neighbour.
    """
    return Case(
        name,
        reference,
        lambda optimizer, of: make(of, graph(on)),
        lambda inputs: between_neighbours(
            rounds(inputs, matrices(on)(0)), on, vectors * BITS, first=first
        ),
        on_workers,
        f"on {on}; l1",
        regularizer=problems.l1(PENALTY),
        more=more,
    )


def _all_reduced(inputs: Inputs) -> Iterator[Symbols]:
    sent = np.full(N, round(2 * (N - 1) * BITS / N))
    for symbols in proximal.gradient(inputs.x, inputs.exact, N, inputs.gamma, PROX):
        yield {**symbols, "bits up": sent, "bits down": sent}


CASES = (
    Case(
        "proximal gradient",
        "Beck and Teboulle, 2009",
        lambda optimizer, of: algorithms.proximal_gradient(of.learning_rate),
        _all_reduced,
        on_server,
        "exact gradients; workers differ; l1",
        regularizer=problems.l1(PENALTY),
    ),
    _case(
        "PG-EXTRA",
        "Shi et al., 2015",
        lambda of, on: algorithms.pg_extra(of.learning_rate, on),
        lambda inputs, W: proximal.extra(inputs.X, inputs.G, W, inputs.gamma, PROX),
        "irregular",
    ),
    _case(
        "NIDS",
        "Li et al., 2019",
        lambda of, on: algorithms.nids(of.more, on, COUPLING),
        lambda inputs, W: proximal.nids(inputs.X, inputs.G, W, inputs.more, COUPLING, PROX),
        "star",
        first=2,
        more=_steps,
    ),
    _case(
        "prox-ATC tracking",
        "Alghunaim et al., 2021",
        lambda of, on: algorithms.proximal_tracking(of.learning_rate, on),
        lambda inputs, W: proximal.adapt_then_combine(inputs.X, inputs.G, W, inputs.gamma, PROX),
        "irregular",
        vectors=2,
    ),
)
