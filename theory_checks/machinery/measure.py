"""The left side that most theorems share: exact on quadratics, over seeds on other problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsgd.base import Algorithm, Problem
from dsgd.problems.quadratic import Quadratic
from theory_checks.machinery import moments, runs


def gradient(
    method: Callable[..., Algorithm],
    problem: Problem,
    learning_rate: float,
    steps: int,
    *,
    arguments: tuple[Any, ...] = (),
    one_worker: bool = False,
    seeds: int = runs.SEEDS,
    seed: int = 0,
) -> tuple[float, float]:
    r"""$\frac1T \sum_t E|f'(x_t)|^2$ over the models before each of T steps, and its standard error.

    Args:
        method: (optimiser, *arguments) -> method.
        problem: a quadratic, whose moments are exact (error 0), or any other.
        learning_rate: gamma.
        steps: T.
        arguments: of the method; the same objects for what is to be compiled once.
        one_worker: whether the method asks one worker at a time.
        seeds, seed: of runs.
    """
    if isinstance(problem.data, Quadratic):
        build = moments.with_step(method, *arguments)
        found = moments.second_moments(build, problem, learning_rate, steps=steps, one_worker=one_worker)
        return float(found["slope"][:steps].mean()), 0.0
    factory = runs.with_step(method, *arguments)
    return runs.average_gradient(factory, problem, steps=steps, learning_rate=learning_rate, seeds=seeds, seed=seed)
