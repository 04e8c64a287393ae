"""Comparison of a method with a recursion: the inputs of both, and the check that their symbols are
equal in every round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import optax

from dsgd.base import Algorithm, Regularizer
from theory_checks.machinery import trajectories
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.statement import Draws, Outcome
from theory_checks.machinery.trajectories import ROUNDS, N, Trajectory
from theory_checks.recursions.shared import (
    Gradients,
    Step,
    Steps,
    adam,
    momentum,
    plain,
    quadratic,
    quadratic_losses,
)

Make = Callable[[optax.GradientTransformation, Instance], Algorithm]
Symbols = dict[str, Any]  # arrays of one round, or `[T, ...]` of all rounds


class Inputs(NamedTuple):
    """Inputs of a recursion.

    Args:
        more: additional arrays of the instance.
        gamma: step size.
        x, X: the start, `[d]` and `[N, d]`.
        G: gradients of all workers.
        exact: gradients of all workers without noise.
        losses: losses of all workers with noise, (t, X) -> `[N]`.
        steps: makes the function from gradients to the change of the models.
        found: the method's own rounds, for the values that are random in them.
    """

    more: Any
    gamma: float
    x: np.ndarray
    X: np.ndarray
    G: Gradients
    exact: Gradients
    losses: Gradients
    steps: Steps
    found: Trajectory

    @property
    def step(self) -> Step:
        """Returns a step function with empty memory."""
        return self.steps()


class Case(NamedTuple):
    """A method and its recursion.

    Args:
        name, reference, hypotheses: of the statement.
        make: (optimiser, instance) -> the project's method.
        rounds: the recursion.
        seen: (trajectory, the recursion's symbols) -> the same symbols of the method, `[T + 1,
            ...]`, or `[T, ...]` for those that belong to rounds. All methods also have "bits up"
            and "bits down".
        optimizer: a key of `OPTIMIZERS`.
        more: draws -> additional arrays of the instance.
        place: the cluster; None: none.
        length: number of rounds.
        regularizer: of the problem; None: none.
    """

    name: str
    reference: str
    make: Make
    rounds: Callable[[Inputs], Iterator[Symbols]]
    seen: Callable[[Trajectory, Symbols], Symbols]
    hypotheses: str = "noisy gradients; workers differ"
    optimizer: str = "plain"
    more: Callable[[Draws], Any] = lambda draws: ()
    place: trajectories.Place | None = None
    length: int = ROUNDS
    regularizer: Regularizer | None = None


OPTIMIZERS: dict[
    str, tuple[Callable[..., optax.GradientTransformation], Callable[[float], Step]]
] = {
    "plain": (optax.sgd, plain),
    "momentum": (lambda gamma: optax.sgd(gamma, momentum=0.9), momentum),
    "adam": (optax.adam, adam),
}


@cache
def _build(case: Case) -> trajectories.Build:
    """Returns a function from an instance to the case's method. It is the same object in each call,
    so that the method is compiled once.
    """
    return lambda of: case.make(OPTIMIZERS[case.optimizer][0](of.learning_rate), of)


def run(case: Case, draws: Draws) -> tuple[Instance, Trajectory]:
    """Returns an instance of the case, and its rounds."""
    of = trajectories.instance(draws, case.more(draws))
    seed = draws.integer(0, 2**31 - 1)
    options = {"place": case.place, "length": case.length, "regularizer": case.regularizer}
    return of, trajectories.run(_build(case), of, seed=seed, **options)


def inputs(case: Case, of: Instance, found: Trajectory) -> Inputs:
    """Returns the inputs of the case's recursion."""
    A, b, x, gamma = (np.asarray(leaf) for leaf in (of.A, of.b, of.start, of.learning_rate))
    steps = partial(OPTIMIZERS[case.optimizer][1], float(gamma))
    return Inputs(
        of.more,
        float(gamma),
        x,
        np.tile(x, (N, 1)),
        quadratic(A, b, found.noise),
        quadratic(A, b),
        quadratic_losses(A, b, found.noise),
        steps,
        found,
    )


def trial(case: Case, draws: Draws) -> list[Outcome]:
    """Compares method and recursion on one instance. Returns an outcome for each symbol, for the
    round with the largest deviation.
    """
    of, found = run(case, draws)
    expected = list(islice(case.rounds(inputs(case, of, found)), case.length))
    papers = {symbol: np.stack([symbols[symbol] for symbols in expected]) for symbol in expected[0]}
    got = {symbol: values[-case.length :] for symbol, values in case.seen(found, papers).items()}
    got |= {"bits up": found.sent, "bits down": found.received}
    papers["model to take home"], got["model to take home"] = taken_home(papers), found.home
    return [compare(f"{case.name}: {symbol}", got[symbol], papers[symbol]) for symbol in papers]


def taken_home(papers: Symbols) -> np.ndarray:
    """Returns x, or the mean of the local models (in push-sum: their sum divided by the sum of the
    weights), `[T, d]`.
    """
    if "x" in papers:
        return papers["x"]
    X, weight = papers["params"], papers.get("weight", np.ones(papers["params"].shape[:2]))
    return X.sum(axis=1) / weight.sum(axis=1, keepdims=True)


def compare(case: str, got: np.ndarray, expected: np.ndarray) -> Outcome:
    """Compares two arrays `[T, ...]` up to rounding relative to the largest value until the
    respective round.
    """
    if got.shape != expected.shape:
        return Outcome(
            np.nan, 0.0, case=f"{case} has the shape {got.shape}; expected {expected.shape}"
        )
    deviation, size = (
        np.abs(values).reshape(len(expected), -1).max(axis=1)
        for values in (np.asarray(got, float) - expected, expected)
    )
    scale = np.maximum(1.0, np.maximum.accumulate(size))
    worst = int(np.argmax(deviation / scale))
    return Outcome(
        float(deviation[worst]),
        0.0,
        case=f"{case} of round {worst + 1}",
        equality=True,
        scale=float(scale[worst]),
    )


def on_server(found: Trajectory, papers: Symbols) -> Symbols:
    """Returns the server's model as the symbol x."""
    return {"x": trajectories.rows(found.states.server.params, 1)}


def on_workers(found: Trajectory, papers: Symbols) -> Symbols:
    """Returns the leaves of the workers' state that have the names of the recursion's symbols."""
    values = {
        symbol: getattr(found.states.workers, symbol)
        for symbol in papers
        if not symbol.startswith("bits")
    }
    return {
        symbol: trajectories.rows(value) if papers[symbol].ndim == 3 else np.asarray(value)
        for symbol, value in values.items()
    }
