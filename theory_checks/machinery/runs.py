"""Left sides of theorems: means over many seeds of the project's own loop, in one compiled program;
exact on quadratics.
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
from theory_checks.machinery import moments

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
    *,
    steps: int,
    learning_rate: float,
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
    arguments: tuple[Any, ...] = (),
    one_worker: bool = False,
    seeds: int = SEEDS,
    seed: int = 0,
) -> tuple[float, float]:
    r"""Returns $\frac1T \sum_t E|f'(x_t)|^2$ over the models before each of T steps, and its
    standard error.

    Args:
        method: (optimiser, *arguments) -> method.
        problem: a quadratic, for which the moments are exact (error 0), or any other problem.
        learning_rate: gamma.
        steps: T.
        arguments: arguments of the method; pass the same objects to compile once.
        one_worker: whether the method queries one worker at a time.
        seeds, seed: number of runs, and the seed of their key.
    """
    if isinstance(problem.data, Quadratic):
        build = moments.with_step(method, *arguments)
        found = moments.second_moments(
            build, problem, learning_rate, steps=steps, one_worker=one_worker
        )
        return float(found["slope"][:steps].mean()), 0.0
    factory = with_step(method, *arguments)
    return average_gradient(
        factory, problem, steps=steps, learning_rate=learning_rate, seeds=seeds, seed=seed
    )
