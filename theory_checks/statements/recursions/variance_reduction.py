"""Variance reduction, with a server and in gradient tracking, compared with its recursions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

import algorithms
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Symbols, on_workers
from theory_checks.machinery.trajectories import N, Trajectory
from theory_checks.recursions import variance_reduction
from theory_checks.statements.recursions.shared import BITS, graph, matrices, on_graph

PERIOD, BETA, P = 3, 0.3, 0.4


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


def coins(found: Trajectory) -> np.ndarray:
    """Returns the rounds whose last query, that for exact gradients, is active, bool `[T]`."""
    return np.any(found.gradients[:, -N:] != 0, axis=(1, 2))


def _with_coins(rounds: Callable, inputs: Inputs) -> Iterator[Symbols]:
    return rounds(inputs.x, inputs.G, inputs.exact, N, inputs.step, coins(inputs.found))


def _on_server(found: Trajectory, papers: Symbols) -> Symbols:
    """Returns the model, and the snapshot of each worker, which must be w."""
    states = found.states
    symbols = {"x": trajectories.rows(states.server.inner.params, 1)}
    if "w" in papers:
        snapshots = trajectories.rows(states.workers.memory[0])
        np.testing.assert_array_equal(snapshots, np.broadcast_to(snapshots[:, :1], snapshots.shape))
        symbols["w"] = snapshots[:, 0]
    return symbols


def _server_case(name: str, reference: str, method: Callable, rounds: Callable) -> Case:
    return Case(
        name,
        reference,
        lambda optimizer, of: method(optimizer, P),
        partial(_with_coins, rounds),
        _on_server,
        "gradients at two points with the same noise",
        "momentum",
    )


CASES = (
    _server_case("PAGE", "Li et al. 2021", algorithms.page, variance_reduction.page),
    _server_case(
        "L-SVRG",
        "Kovalev et al. 2020",
        algorithms.loopless_svrg,
        variance_reduction.loopless_svrg,
    ),
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
