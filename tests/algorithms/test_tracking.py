"""Exact methods on graphs: the recursion that they share, their limits, and methods that are the
same.

All runs have six workers, in float64, with exact gradients. Each method has one program; its
arguments are the method's hyperparameters (`theory_checks.machinery.trajectories`).
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
from tests.methods import aug_dgm, graphs
from tests.methods.given import Given, Rounds, on_quadratics
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import N

GAMMA, T = 0.1, 2_500
LAZY, COMPLETE = graphs.topology("lazy", N), graphs.topology("complete", N)
W: np.ndarray = np.asarray(LAZY.W)
EYE = np.eye(N)


def sgd(of: Any) -> optax.GradientTransformation:
    return optax.sgd(of.gamma, momentum=of.momentum)


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = GAMMA
    momentum: float = 0.0


DEFAULT = Numbers()

METHODS: dict[str, Callable[[Any, dsgd.Topology], dsgd.Algorithm]] = {
    "exact diffusion": lambda of, W: algorithms.exact_diffusion(sgd(of), W),
    "D2": lambda of, W: algorithms.d2(sgd(of), W),
    "EXTRA": lambda of, W: algorithms.extra(sgd(of), W),
    "DIGing": lambda of, W: algorithms.gradient_tracking(sgd(of), W),
    "ATC tracking": lambda of, W: algorithms.atc_tracking(sgd(of), W),
    "Aug-DGM": lambda of, W: algorithms.aug_dgm(sgd(of), W),
    "Aug-DGM, uncoordinated": lambda of, W: algorithms.aug_dgm(sgd(of), W, aug_dgm.FACTORS[:N]),
    "momentum tracking": lambda of, W: algorithms.momentum_tracking(
        optax.sgd(of.gamma), W, of.momentum
    ),
}


@cache
def build(name: str, topology: dsgd.Topology) -> trajectories.Build:
    """Returns the builder of a method, always the same object, so that it is compiled once."""
    return lambda of: METHODS[name](of.more, topology)


in_float64 = quadratics.in_float64


@cache
def states(name: str, numbers: Numbers = DEFAULT, topology: dsgd.Topology = LAZY) -> Any:
    """Returns the workers' states before the first round and after each, leaves `[T + 1, ...]`."""
    return quadratics.run(build(name, topology), numbers, T).states.workers


def models(name: str, numbers: Numbers = DEFAULT, topology: dsgd.Topology = LAZY) -> np.ndarray:
    """Returns the workers' models after each round, `[T, N, d]`."""
    return trajectories.rows(states(name, numbers, topology).params)[1:]


# --- One recursion.


def root(P: np.ndarray) -> np.ndarray:
    """Returns the square root of a positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(P)
    return vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T


def suda(given: Given, A: np.ndarray, B: np.ndarray, C: np.ndarray) -> Rounds:
    """Yields the rounds of SUDA; the exact methods on graphs are instances of it.

    Args:
        given: see `Given`; the models start equal.
        A, B, C: polynomials in a symmetric W, or square roots of them.

    Source: Alghunaim and Yuan, "A unified and refined convergence analysis for non-convex
    decentralized learning", 2022.
    """
    X, Y = given.X, np.zeros_like(given.X)
    for t in given.rounds:
        X = A @ (C @ X - given.gamma * given.G(t, X)) - B @ Y
        Y = Y + B @ X
        yield {"params": X}


# A, B, C of SUDA
SUDA: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {
    "exact diffusion": ((EYE + W) / 2, root((EYE - W) / 2), EYE),
    "D2": (W, root(EYE - W), EYE),
    "EXTRA": (EYE, root((EYE - W) / 2), (EYE + W) / 2),
    "DIGing": (EYE, EYE - W, W @ W),
    "ATC tracking": (W, EYE - W, W),
    "Aug-DGM": (W @ W, EYE - W, EYE),
}


@pytest.mark.parametrize("name", SUDA)
def test_exact_methods_are_one_recursion(name):
    given = on_quadratics(*quadratics.arrays(), GAMMA, 60, [lambda number: W])
    expected = np.stack([symbols["params"] for symbols in suda(given, *SUDA[name])])
    found = models(name)[:60]
    assert np.ptp(found[:, 0]) > 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("beta", [0.0, 0.6])
def test_momentum_tracking_is_gradient_tracking_with_momentum(beta):
    """The graph is the same in all rounds."""
    numbers = Numbers(momentum=beta)
    found, expected = models("momentum tracking", numbers), models("DIGing", numbers)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


# --- Limits.


@pytest.mark.parametrize("name", sampled([*SUDA, "Aug-DGM, uncoordinated"]))
def test_the_limit_is_the_minimizer(name):
    found = models(name)[-1]
    np.testing.assert_allclose(found, np.tile(quadratics.minimizer(), (N, 1)), atol=1e-9)


@pytest.mark.parametrize("name", ["D2", "ATC tracking", "Aug-DGM"])
def test_on_the_complete_graph_the_models_make_the_steps_of_gradient_descent(name):
    A, b, x = quadratics.arrays()
    for found in models(name, topology=COMPLETE)[:60]:
        x = x - GAMMA * (A.mean(axis=0) @ x - b.mean(axis=0))
        np.testing.assert_allclose(found, np.tile(x, (N, 1)), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["DIGing", "ATC tracking", "Aug-DGM", "momentum tracking"])
def test_the_mean_of_the_trackers_is_the_mean_of_the_gradients(name):
    """Of the momenta, in momentum tracking."""
    found = states(name, Numbers(momentum=0.5 if name == "momentum tracking" else 0.0))
    trackers, gradients = (
        trajectories.rows(leaf).mean(axis=1) for leaf in (found.tracker, found.gradient)
    )
    np.testing.assert_allclose(trackers, gradients, rtol=0, atol=1e-13)


def test_the_limit_of_momentum_tracking_is_the_minimizer():
    found = models("momentum tracking", Numbers(gamma=GAMMA / 10, momentum=0.9))[-1]
    np.testing.assert_allclose(found, np.tile(quadratics.minimizer(), (N, 1)), atol=1e-9)
