"""Problems that share one compiled program: those that differ only in numbers, and the same one
built twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import dsgd
from dsgd import problems
from dsgd.engine.plan import drop_arrays

B = np.random.default_rng(0).normal(size=(4, 3))


class Widths(nn.Module):
    """Fields without a hash, which are compared, too."""

    widths: list[int]

    @nn.compact
    def __call__(self, x):
        for width in self.widths:
            x = nn.Dense(width)(x)
        return x


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.layer(x)


def module_problem(model: Any) -> dsgd.Problem:
    return problems.finite_sum(
        model,
        optax.softmax_cross_entropy_with_integer_labels,
        (B, np.arange(4) % 2),
        2,
        batch_size=2,
    )


def quadratic(seed: int, **options: Any) -> dsgd.Problem:
    return problems.quadratic(np.full((4, 3), seed + 1.0), B + seed, noise=1.0 + seed, **options)


def robust(seed: int, **options: Any) -> dsgd.Problem:
    return problems.robust_regression(3, 4, samples=6, seed=seed, residual=0.1 + seed, **options)


PROGRAMS: dict[str, tuple[Any, list[Any]]] = {
    "quadratic": (
        quadratic,
        [
            lambda seed: quadratic(seed, start=np.ones(3)),
            lambda seed: problems.quadratic(np.ones((4, 3)), B),
        ],
    ),
    "robust regression": (
        robust,
        [lambda seed: robust(seed, replacement=False), lambda seed: robust(seed, batch_size=2)],
    ),
    "logistic regression": (
        lambda seed: problems.logistic_regression("breast-cancer", 4),
        [
            lambda seed, l2=l2: problems.logistic_regression("breast-cancer", 4, l2=l2)
            for l2 in (0.0, 0.5)
        ],
    ),
    "neural network": (
        lambda seed: problems.neural_network("mlp", "breast-cancer", 4),
        [lambda seed: problems.neural_network(problems.MLP(2, hidden=(65,)), "breast-cancer", 4)],
    ),
    "linen": (
        lambda seed: module_problem(Widths([4, 2])),
        [lambda seed: module_problem(Widths([5, 2]))],
    ),
    "nnx": (
        lambda seed: module_problem(Nnx(nnx.Rngs(3))),
        [lambda seed: module_problem(Nnx(nnx.Rngs(4))), lambda seed: module_problem(Nnx)],
    ),
    "nnx class": (lambda seed: module_problem(Nnx), []),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_problems_with_the_same_computation_share_a_program(name):
    make, others = PROGRAMS[name]
    first, second = (drop_arrays(make(seed)) for seed in (0, 1))
    assert first == second
    assert hash(first) == hash(second)
    for other in others:
        assert first != drop_arrays(other(0))._replace(name=first.name)
