"""Left sides of theorems: over many seeds of the project's own loop, one compiled program; on
quadratics exact.
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
    """learning_rate -> method(optax.sgd(learning_rate), *arguments): one object for equal
    arguments, so that it is compiled once.
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
    """Histories of every round, `[step sizes, seeds, steps + 1]`, in float64.

    Args:
        factory: learning_rate -> method, of `with_step`, say.
        problem: made under `jax.enable_x64`.
        steps: T.
        learning_rates: gamma.
        seeds: runs at each.
        seed: of all that is random.
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
    r"""$\frac1T \sum_t E|f'(x_t)|^2$ over the models before each of T steps, and its standard
    error. Arguments as in `histories`.
    """
    history = histories(
        factory, problem, steps=steps, learning_rates=[learning_rate], seeds=seeds, seed=seed
    )
    mean, error = mean_and_error(history["grad_sqnorm"][0, :, :steps])
    return float(mean), float(error)


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over seeds, the first axis but one of `[..., seeds, records]` after the mean over records:
    `[...]` and `[...]`.
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
    r"""$\frac1T \sum_t E|f'(x_t)|^2$ over the models before each of T steps, and its standard
    error.

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
        found = moments.second_moments(
            build, problem, learning_rate, steps=steps, one_worker=one_worker
        )
        return float(found["slope"][:steps].mean()), 0.0
    factory = with_step(method, *arguments)
    return average_gradient(
        factory, problem, steps=steps, learning_rate=learning_rate, seeds=seeds, seed=seed
    )
