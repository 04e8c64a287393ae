"""Gradient tracking with variance reduction, compared with its recursions."""

from __future__ import annotations

from collections.abc import Callable

import algorithms
from theory_checks.machinery.cases import Case, Symbols, on_workers
from theory_checks.machinery.trajectories import Trajectory
from theory_checks.recursions import variance_reduction
from theory_checks.statements.recursions.shared import BITS, graph, matrices, on_graph

PERIOD, BETA = 3, 0.3


def _of_tracking(found: Trajectory, papers: Symbols) -> Symbols:
    states = found.states
    inner = found._replace(states=states._replace(workers=states.workers.inner))
    return on_workers(inner, papers)


def _case(
    name: str, reference: str, method: Callable, rounds: Callable, number: float, optimizer: str
) -> Case:
    return on_graph(
        name,
        reference,
        lambda optimizer: method(optimizer, graph("one peer"), number),
        lambda inputs: rounds(
            inputs.X, inputs.G, inputs.exact, matrices("one peer"), inputs.step, number
        ),
        "one peer",
        2 * BITS,
        seen=_of_tracking,
        hypotheses="on one peer; gradients at two points with the same noise",
        optimizer=optimizer,
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
