"""Quadratics with different Hessians, on which methods with local steps are compared in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np

from theory_checks.machinery import trajectories
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.trajectories import D, N


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


def states(build: trajectories.Build, numbers: Any, length: int) -> Any:
    """Returns the workers' states before the first of `length` rounds with exact gradients and
    after each, leaves `[length + 1, ...]`.

    Args:
        build: instance -> method; pass the same object to compile once.
        numbers: the instance's `more`.
    """
    more = jax.tree.map(np.asarray, numbers)
    exact = instance(0.0, arrays()[2])._replace(more=more)
    return trajectories.run(build, exact, length=length).states.workers
