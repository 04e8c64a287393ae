r"""A method beside a recursion: what both are made of, and that their symbols are equal in every
round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import optax

from dsgd.base import Algorithm
from theory_checks.machinery import trajectories
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.statement import Draws, Outcome
from theory_checks.machinery.trajectories import ROUNDS, N, Trajectory
from theory_checks.recursions.shared import Gradients, Step, Steps, adam, momentum, plain, quadratic

Make = Callable[[optax.GradientTransformation, Instance], Algorithm]
Symbols = dict[str, Any]  # arrays of one round, or `[T, ...]` of all


class Inputs(NamedTuple):
    """What a recursion is made of.

    Args:
        more: what else the instance has.
        gamma: its step size.
        x, X: the start, `[d]` and `[N, d]`.
        G: everybody's gradients.
        exact: the same without noise.
        steps: makes of them what models change by.
        found: the method's own rounds, of what is random in them.
    """

    more: Any
    gamma: float
    x: np.ndarray
    X: np.ndarray
    G: Gradients
    exact: Gradients
    steps: Steps
    found: Trajectory

    @property
    def step(self) -> Step:
        """One that remembers nothing yet."""
        return self.steps()


class Case(NamedTuple):
    """A method beside its recursion.

    Args:
        name, reference, hypotheses: of the statement.
        make: (optimiser, instance) -> the project's method.
        rounds: the recursion.
        seen: the same symbols, of the method, `[T + 1, ...]`, or `[T, ...]` of what belongs to
            rounds; all methods have "bits up" and "bits down".
        optimizer: a key of `OPTIMIZERS`.
        more: draws -> what else the instance has, arrays.
        place: the cluster; None: none.
        length: rounds.
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


OPTIMIZERS: dict[
    str, tuple[Callable[..., optax.GradientTransformation], Callable[[float], Step]]
] = {
    "plain": (optax.sgd, plain),
    "momentum": (lambda gamma: optax.sgd(gamma, momentum=0.9), momentum),
    "adam": (optax.adam, adam),
}


@cache
def _build(case: Case) -> trajectories.Build:
    """instance -> the case's method: one object, so that it is compiled once."""
    return lambda of: case.make(OPTIMIZERS[case.optimizer][0](of.learning_rate), of)


def run(case: Case, draws: Draws) -> tuple[Instance, Trajectory]:
    """An instance of the case, and its rounds."""
    of = trajectories.instance(draws, case.more(draws))
    seed = draws.integer(0, 2**31 - 1)
    return of, trajectories.run(_build(case), of, seed=seed, place=case.place, length=case.length)


def inputs(case: Case, of: Instance, found: Trajectory) -> Inputs:
    """What the case's recursion is made of."""
    A, b, x, gamma = (np.asarray(leaf) for leaf in (of.A, of.b, of.start, of.learning_rate))
    steps = partial(OPTIMIZERS[case.optimizer][1], float(gamma))
    return Inputs(
        of.more,
        float(gamma),
        x,
        np.tile(x, (N, 1)),
        quadratic(A, b, found.noise),
        quadratic(A, b),
        steps,
        found,
    )


def trial(case: Case, draws: Draws) -> list[Outcome]:
    """One instance: an outcome for each symbol, of the round in which it is farthest off."""
    of, found = run(case, draws)
    expected = list(islice(case.rounds(inputs(case, of, found)), case.length))
    papers = {symbol: np.stack([symbols[symbol] for symbols in expected]) for symbol in expected[0]}
    got = {symbol: values[-case.length :] for symbol, values in case.seen(found, papers).items()}
    got |= {"bits up": found.sent, "bits down": found.received}
    papers["model to take home"], got["model to take home"] = taken_home(papers), found.home
    return [compare(f"{case.name}: {symbol}", got[symbol], papers[symbol]) for symbol in papers]


def taken_home(papers: Symbols) -> np.ndarray:
    """x; or the mean of the local models, divided by the sum of push-sum's weights: `[T, d]`."""
    if "x" in papers:
        return papers["x"]
    X, weight = papers["params"], papers.get("weight", np.ones(papers["params"].shape[:2]))
    return X.sum(axis=1) / weight.sum(axis=1, keepdims=True)


def compare(case: str, got: np.ndarray, expected: np.ndarray) -> Outcome:
    """That they are equal, `[T, ...]` both, to rounding of the largest until then."""
    if got.shape != expected.shape:
        return Outcome(np.nan, 0.0, case=f"{case} has the shape {got.shape}, need {expected.shape}")
    off, size = (
        np.abs(values).reshape(len(expected), -1).max(axis=1)
        for values in (np.asarray(got, float) - expected, expected)
    )
    scale = np.maximum(1.0, np.maximum.accumulate(size))
    worst = int(np.argmax(off / scale))
    return Outcome(
        float(off[worst]),
        0.0,
        case=f"{case} of round {worst + 1}",
        equality=True,
        scale=float(scale[worst]),
    )


def on_server(found: Trajectory, papers: Symbols) -> Symbols:
    """x."""
    return {"x": trajectories.rows(found.states.server.params, 1)}


def on_workers(found: Trajectory, papers: Symbols) -> Symbols:
    """By their names, those of the workers' state."""
    values = {
        symbol: getattr(found.states.workers, symbol)
        for symbol in papers
        if not symbol.startswith("bits")
    }
    return {
        symbol: trajectories.rows(value) if papers[symbol].ndim == 3 else np.asarray(value)
        for symbol, value in values.items()
    }
