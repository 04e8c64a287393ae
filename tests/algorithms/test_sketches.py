"""Methods that send count sketches: methods that equal others, and their limits.

All runs have six workers, in float64. Each method has one program, whose arguments are the
method's hyperparameters (`theory_checks.machinery.trajectories`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import optax
import pytest
from budgets import sampled

import algorithms
import dsgd
from tests.algorithms import quadratics
from tests.algorithms.quadratics import in_float64  # noqa: F401 (a fixture)
from theory_checks.machinery.trajectories import D, Trajectory

GAMMA, T, K = 0.05, 3_000, 3 / D
EXACT, SHORT = 24, 8  # columns: at least D, and a third of it


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = GAMMA
    momentum: float = 0.0


METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "SGD": lambda of: algorithms.minibatch_sgd(optax.sgd(of.gamma, momentum=of.momentum)),
    "SketchedSGD": lambda of: algorithms.sketched_sgd(
        optax.sgd(of.gamma), K, SHORT, 3, 2, of.momentum
    ),
    "SketchedSGD, exact": lambda of: algorithms.sketched_sgd(
        optax.sgd(of.gamma), K, EXACT, 3, 2, of.momentum
    ),
    "SketchedSGD, all elements": lambda of: algorithms.sketched_sgd(
        optax.sgd(of.gamma), 1.0, SHORT, 3, 2, of.momentum
    ),
    **{
        f"FetchSGD, {kind}, {error}": lambda of, k=k, columns=columns, error=error: (
            algorithms.fetch_sgd(optax.sgd(of.gamma), k, columns, 3, of.momentum, error)
        )
        for error in ("zero", "subtract")
        for kind, k, columns in (
            ("short", K, SHORT),
            ("exact", K, EXACT),
            ("all elements", 1.0, EXACT),
        )
    },
}
build = quadratics.builders(METHODS)


@cache
def run(name: str, numbers: Numbers, length: int = T) -> Trajectory:
    return quadratics.run(build(name), numbers, length)


SAME = {
    "SketchedSGD of all elements": (
        ("SketchedSGD, all elements", Numbers(momentum=0.9)),
        ("SGD", Numbers()),
    ),
    "FetchSGD of all elements, subtracted": (
        ("FetchSGD, all elements, subtract", Numbers(momentum=0.9)),
        ("SGD", Numbers(momentum=0.9)),
    ),
    "FetchSGD of all elements": (
        ("FetchSGD, all elements, zero", Numbers(momentum=0.9)),
        ("SGD", Numbers()),
    ),
    "sketches without collisions": (
        ("FetchSGD, exact, zero", Numbers(momentum=0.9)),
        ("SketchedSGD, exact", Numbers(momentum=0.9)),
    ),
}


@pytest.mark.parametrize("name", sampled(SAME))
def test_two_methods_are_the_same(name):
    (one, its), (other, of_other) = SAME[name]
    np.testing.assert_allclose(
        run(one, its).home[:41], run(other, of_other).home[:41], rtol=0, atol=1e-12
    )


def test_nothing_remains_in_memory_if_all_elements_are_applied():
    memory = run("SketchedSGD, all elements", Numbers(momentum=0.9)).states.workers
    assert not np.any(memory.u)
    assert not np.any(memory.v)
    sketch = run("FetchSGD, all elements, subtract", Numbers(momentum=0.9)).states.server.S_e
    assert np.abs(sketch).max() < 1e-14


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize(
    "name",
    ["SketchedSGD", "SketchedSGD, exact", "FetchSGD, exact, zero", "FetchSGD, exact, subtract"],
)
def test_the_limit_is_the_minimizer(name, momentum):
    """With every sketch if the elements have exact values, else with exact sketches."""
    found = run(name, Numbers(GAMMA / 4, momentum)).home[-1]
    np.testing.assert_allclose(found, quadratics.minimizer(), rtol=0, atol=1e-9)


def test_short_sketches_of_dense_gradients_fail_as_documented():
    """The gradient has 22 elements of similar size and a row of the sketch eight counters.
    Subtracting, the distance grows linearly or exponentially, depending on the hash functions.
    """
    zero, subtract = (
        np.linalg.norm(models.home - quadratics.minimizer(), axis=1)
        for models in (
            run(f"FetchSGD, short, {error}", Numbers()) for error in ("zero", "subtract")
        )
    )
    assert zero.max() < 2 * zero[0]
    assert zero[T // 2 :].min() > 1e-3
    assert not subtract[-1] < 1.8 * subtract[T // 2]
