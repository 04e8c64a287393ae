"""Gradient tracking with variance reduction, compared with its recursions."""

from __future__ import annotations

from collections.abc import Callable

import algorithms
from theory_checks.machinery.cases import Case, Symbols, on_workers
from theory_checks.machinery.trajectories import Trajectory
from theory_checks.recursions import variance_reduction
from theory_checks.statements.recursions.shared import BITS, between_neighbours, graph, matrices

PERIOD, BETA = 3, 0.3


def _of_tracking(found: Trajectory, papers: Symbols) -> Symbols:
    states = found.states
    inner = found._replace(states=states._replace(workers=states.workers.inner))
    return on_workers(inner, papers)


def _case(
    name: str, reference: str, method: Callable, rounds: Callable, number: float, optimizer: str
) -> Case:
    def recursion(inputs):
        return rounds(inputs.X, inputs.G, inputs.exact, matrices("one peer"), inputs.step, number)

    return Case(
        name,
        reference,
        lambda optimizer, of: method(optimizer, graph("one peer"), number),
        lambda inputs: between_neighbours(recursion(inputs), "one peer", 2 * BITS),
        _of_tracking,
        "on one peer; gradients at two points with the same noise",
        optimizer,
    )


CASES = (
    _case(
        "GT-SVRG",
        "Xin et al. 2020",
        algorithms.gt_svrg,
        variance_reduction.svrg,
        PERIOD,
        "momentum",
    ),
    _case(
        "GT-SARAH",
        "Xin et al. 2022",
        algorithms.gt_sarah,
        variance_reduction.sarah,
        PERIOD,
        "plain",
    ),
    _case(
        "GT-HSGD",
        "Xin et al. 2021",
        algorithms.gt_hsgd,
        variance_reduction.hsgd,
        BETA,
        "momentum",
    ),
)
