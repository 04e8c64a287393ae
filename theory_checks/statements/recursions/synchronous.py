"""Synchronous methods, compared with their recursions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import algorithms
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Make, Symbols, on_server, on_workers
from theory_checks.machinery.statement import Method
from theory_checks.machinery.trajectories import N, Trajectory
from theory_checks.recursions import synchronous
from theory_checks.statements.recursions.shared import asked, cluster, placed

H, BACKUPS = 3, 2


def _plainly(method: Method) -> Make:
    """Returns a function that constructs the method with the optimiser as its only argument."""
    return lambda optimizer, of: method(optimizer)


def _minibatch(inputs: Inputs) -> Iterator[Symbols]:
    return synchronous.minibatch(inputs.x, inputs.G, N, inputs.step)


def _exact(inputs: Inputs) -> Iterator[Symbols]:
    return synchronous.minibatch(inputs.x, inputs.exact, N, inputs.step)


def _with_control(found: Trajectory, papers: Symbols) -> Symbols:
    workers = on_workers(found, {symbol: papers[symbol] for symbol in ("params", "control")})
    return {**workers, "c": trajectories.rows(found.states.server, 1)}


def _with_compute(found: Trajectory, papers: Symbols) -> Symbols:
    return {**on_server(found, papers), "compute": found.compute}


def _backup(inputs: Inputs) -> Iterator[Symbols]:
    numbers = inputs.more
    return synchronous.backup(
        inputs.x,
        inputs.G,
        N,
        inputs.step,
        lambda t: np.array([numbers.seconds(n, float(t)) for n in range(N)]),
        BACKUPS,
    )


CASES = (
    Case(
        "GD", "(1.2)", _plainly(algorithms.gradient_descent), _exact, on_server, "exact gradients"
    ),
    Case(
        "SGD",
        "(1.10)",
        _plainly(algorithms.sgd),
        lambda inputs: synchronous.sgd(inputs.x, inputs.G, N, inputs.step, asked(inputs.found)),
        on_server,
        "gradient of one worker per round",
        "adam",
    ),
    Case(
        "mb-SGD",
        "section 2.1.2",
        _plainly(algorithms.minibatch_sgd),
        _minibatch,
        on_server,
        optimizer="momentum",
    ),
    Case(
        "mb-SGD, parameter server",
        "section 2.1.2",
        _plainly(algorithms.parameter_server_sgd),
        _minibatch,
        on_server,
        optimizer="adam",
    ),
    Case(
        "mb-SGD, model averaging",
        "section 2.1.2",
        _plainly(algorithms.model_averaging_sgd),
        lambda inputs: synchronous.model_averaging(inputs.X, inputs.G, inputs.step),
        on_workers,
        "Adam's moments are local",
        "adam",
    ),
    Case(
        "local SGD",
        "Stich 2019, algorithm 1",
        lambda optimizer, of: algorithms.local_sgd(optimizer, H),
        lambda inputs: synchronous.local(
            inputs.X, inputs.G, lambda t: np.full((N, N), 1 / N), inputs.step, H
        ),
        on_workers,
        optimizer="momentum",
    ),
    Case(
        "SCAFFOLD",
        "Karimireddy et al. 2020, algorithm 1",
        lambda optimizer, of: algorithms.scaffold(optimizer, H),
        lambda inputs: synchronous.scaffold(inputs.x, inputs.G, N, inputs.gamma, H),
        _with_control,
    ),
    Case(
        "backup workers",
        "Chen et al. 2016",
        lambda optimizer, of: algorithms.backup_workers_sgd(optimizer, BACKUPS),
        _backup,
        _with_compute,
        "mean of the first gradients; seconds of a table",
        "momentum",
        cluster,
        placed,
    ),
)
