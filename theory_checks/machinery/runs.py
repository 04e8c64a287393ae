"""Left sides of theorems: means over many seeds of the project's own loop, in one compiled program;
exact on quadratics; and their comparison with bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
import optax

import dsgd
from dsgd.base import Algorithm, Problem
from dsgd.problems.quadratic import Quadratic
from theory_checks.machinery import instances, moments
from theory_checks.machinery.statement import Condition, Outcome, need

SEEDS = 32


@cache
def with_step(method: Callable[..., Algorithm], *arguments) -> Callable[..., Algorithm]:
    """Returns a function from the learning rate to method(optax.sgd(learning_rate), *arguments). It
    is the same object for equal arguments, so that the method is compiled once.
    """
    return lambda learning_rate: method(optax.sgd(learning_rate), *arguments)


def histories(
    factory: Callable[..., Algorithm],
    problem: Problem,
    *,
    steps: int,
    learning_rates: Sequence[float],
    seeds: int = SEEDS,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Returns histories of every round, `[step sizes, seeds, steps + 1]`, in float64.

    Args:
        factory: learning_rate -> method, such as from `with_step`.
        problem: made under `jax.enable_x64`.
        steps: T.
        learning_rates: gamma.
        seeds: number of runs for each step size.
        seed: seed of the runs' key.
    """
    with jax.enable_x64(True):
        rates = np.asarray(learning_rates, np.float64)
        return dsgd.sweep(
            factory,
            problem,
            steps=steps,
            key=jax.random.key(seed),
            seeds=seeds,
            mesh=1,
            learning_rate=rates,
        ).history


def average_gradient(
    factory: Callable[..., Algorithm],
    problem: Problem,
    learning_rate: float,
    steps: int,
    *,
    seeds: int,
    seed: int,
) -> tuple[float, float]:
    r"""Returns $\frac1T \sum_t E|f'(x_t)|^2$ over the models before each of T steps, and its
    standard error. Arguments are those of `histories`.
    """
    history = histories(
        factory, problem, steps=steps, learning_rates=[learning_rate], seeds=seeds, seed=seed
    )
    mean, error = mean_and_error(history["grad_sqnorm"][0, :, :steps])
    return float(mean), float(error)


def exact_gradient(
    build: moments.Build, problem: Problem, learning_rate: float, steps: int, **options: Any
) -> tuple[float, float]:
    """Returns the same average from exact moments, and the error 0. Arguments are those of
    `moments.second_moments`.
    """
    found = moments.second_moments(build, problem, learning_rate, steps=steps, **options)
    return float(found["slope"][:steps].mean()), 0.0


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard error over seeds after averaging over records: `[..., seeds,
    records]` to `[...]` and `[...]`.
    """
    each = values.mean(axis=-1)
    error = (
        each.std(axis=-1, ddof=1) / np.sqrt(each.shape[-1])
        if each.shape[-1] > 1
        else np.zeros(each.shape[:-1])
    )
    return each.mean(axis=-1), error


def gradient(
    method: Callable[..., Algorithm],
    problem: Problem,
    learning_rate: float,
    steps: int,
    *,
    one_worker: bool = False,
    seeds: int = SEEDS,
    seed: int = 0,
) -> tuple[float, float]:
    r"""Returns $\frac1T \sum_t E|f'(x_t)|^2$ over the models before each of T steps, and its
    standard error.

    Args:
        method: optimiser -> method.
        problem: a quadratic, for which the moments are exact (error 0), or any other problem.
        learning_rate: gamma.
        steps: T.
        one_worker: whether the method queries one worker at a time.
        seeds, seed: number of runs, and the seed of their key.
    """
    if isinstance(problem.data, Quadratic):
        build = moments.with_step(method)
        return exact_gradient(build, problem, learning_rate, steps, one_worker=one_worker)
    factory = with_step(method)
    return average_gradient(factory, problem, learning_rate, steps, seeds=seeds, seed=seed)


def compare(
    where: str,
    problem: Problem,
    measure: Callable[[float], tuple[float, float]],
    bound: Callable[..., float],
    step_size: Callable[..., float],
    hypotheses: Callable[[float], list[Condition]],
    learning_rate: float | None,
    *,
    case: str = "",
    **numbers: Any,
) -> Outcome:
    """Compares the left side of a bound with it.

    Args:
        where: beginning of the message if a hypothesis fails.
        problem: a problem with known constants.
        measure: gamma -> the left side, and its standard error.
        bound, step_size: functions of D, L and `numbers`; the bound also of gamma.
        hypotheses: gamma -> the theorem's conditions.
        learning_rate: gamma; None: the recommended one.
        case: description of the instance, in addition to the problem, gamma L and T.
        numbers: arguments of the bound, `steps` among them.

    Raises:
        ValueError: if the problem's constants are unknown, or a hypothesis fails.
    """
    constants = instances.constants(problem)
    numbers |= {"gap": constants.gap, "smoothness": constants.smoothness}
    gamma = step_size(**numbers) if learning_rate is None else learning_rate
    need(where, hypotheses(gamma))
    words = f"{problem.name}, {case}gamma L = {gamma * constants.smoothness:.3g}"
    right = bound(**numbers, learning_rate=gamma)
    measured, error = measure(gamma)
    return Outcome(measured, right, error, f"{words}, T = {numbers['steps']}")
