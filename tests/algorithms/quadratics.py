"""Quadratics with different Hessians, on which methods with local steps are compared in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from dsgd import Algorithm, Regularizer
from theory_checks.machinery import trajectories
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.trajectories import Build, D, N, Trajectory


@cache
def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns A `[N, D, D]` with eigenvalues from 0.5 to 2, b `[N, D]` and a start `[D]`."""
    rng = np.random.default_rng(7)
    bases = np.linalg.qr(rng.normal(size=(N, D, D)))[0]
    A = np.einsum("nij,nj,nkj->nik", bases, rng.uniform(0.5, 2.0, (N, D)), bases)
    return (A + A.swapaxes(1, 2)) / 2, rng.normal(size=(N, D)), rng.normal(size=D)


def minimizer() -> np.ndarray:
    """Returns the minimizer of the mean objective, `[D]`."""
    A, b, _ = arrays()
    return np.linalg.solve(A.mean(axis=0), b.mean(axis=0))


def instance(noise: float, start: np.ndarray) -> Instance:
    """Returns f_n(x) = x A_n x / 2 - b_n x, with runs that start at `start`."""
    A, b, _ = arrays()
    zero = np.float64(0)
    values: Any = (A, b, noise * np.eye(D), start, zero, zero)
    return Instance(*values)


@pytest.fixture(scope="module", autouse=True)
def float64() -> Iterator[None]:
    """Runs the tests of a module that has this name in float64."""
    with jax.enable_x64(True):
        yield


def builders(methods: Mapping[str, Callable[[Any], Algorithm]]) -> Callable[..., Build]:
    """Returns the function name -> builder of a method from its numbers. The builder of a name is
    always the same object, so that it is compiled once.
    """
    return cache(lambda name: lambda of: methods[name](of.more))


def run(
    build: Build,
    numbers: Any,
    length: int,
    *,
    noise: float = 0.0,
    start: np.ndarray | None = None,
    regularizer: Regularizer | None = None,
) -> Trajectory:
    """Runs a method on the quadratics.

    Args:
        build: from `builders`.
        numbers: the numbers of the method, arguments of its program.
        length: number of rounds.
        noise: standard deviation of the gradients' elements.
        start: of all workers, `[D]`; None: the start of `arrays`.
        regularizer: r; None: there is none.
    """
    of = instance(noise, arrays()[2] if start is None else start)
    of = of._replace(more=jax.tree.map(np.asarray, numbers))
    return trajectories.run(build, of, length=length, regularizer=regularizer)
