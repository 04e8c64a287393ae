"""Exact second moments of rounds with random draws: the outcomes are those of the paper's equation,
and what cannot be enumerated is refused.
"""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import optax
import pytest

import algorithms
from algorithms import memories
from dsgd import compressors, problems
from dsgd.base import Compressor
from theory_checks.machinery.random_rounds import RandomRounds, mixture, random_rounds
from theory_checks.statements import compressed_linear

A = np.array([[[2.0, 0.5], [0.5, 1.0]], [[1.0, 0.0], [0.0, 3.0]]])
GAMMA, ALPHA = 0.1, 0.4


def rounds_of_diana(compressor: Compressor) -> RandomRounds:
    def build(of, additive):
        up = memories.Up(compressor, shift=ALPHA)
        return algorithms.error_feedback(optax.sgd(of.learning_rate), up)

    return random_rounds(build, problems.quadratic(A, np.ones((2, 2))), GAMMA)


def diana_matrices() -> list[np.ndarray]:
    """Returns the matrices of DIANA's rounds on (x, h_1, h_2) for all draws of random-1."""
    masks = [np.diag([2.0, 0.0]), np.diag([0.0, 2.0])]
    eye, zero, matrices = np.eye(2), np.zeros((2, 2)), []
    for Q in itertools.product(masks, repeat=2):
        step = eye - GAMMA / 2 * (Q[0] @ A[0] + Q[1] @ A[1])
        rows = [
            [step, -GAMMA / 2 * (eye - Q[0]), -GAMMA / 2 * (eye - Q[1])],
            [ALPHA * Q[0] @ A[0], eye - ALPHA * Q[0], zero],
            [ALPHA * Q[1] @ A[1], zero, eye - ALPHA * Q[1]],
        ]
        matrices.append(np.block(rows))
    return matrices


def test_outcomes_have_the_second_moments_of_the_equation():
    found, matrices = rounds_of_diana(compressors.random_k(0.5)), diana_matrices()
    assert len(found.matrices) == 4
    second = np.mean([np.kron(M, M) for M in matrices], axis=0)
    assert found.rate() == pytest.approx(np.abs(np.linalg.eigvals(second)).max(), rel=1e-9)


def test_the_factor_is_attained_and_not_exceeded():
    rng = np.random.default_rng(0)
    M = rng.normal(size=(3, 4, 4)) / 4
    p, value = np.array([0.5, 0.25, 0.25]), rng.normal(size=(4, 4))
    found = RandomRounds(M, p, np.eye(4), {"value": value, "first": np.eye(4)[:1]})
    P = 2 * value.T @ value
    after = sum(share * m.T @ P @ m for share, m in zip(p, M, strict=True))
    largest = found.factor({"value": 2.0})
    s = rng.normal(size=(4, 1000))
    ratios = np.sum(s * (after @ s), axis=0) / np.sum(s * (P @ s), axis=0)
    assert ratios.max() <= largest
    assert np.linalg.eigvals(np.linalg.solve(P, after)).real.max() == pytest.approx(largest)
    assert found.factor({"first": 1.0}) == np.inf


def test_only_reachable_differences_count():
    """The second coordinate never decreases, but differences cannot have it."""
    M = np.diag([0.5, 1.0])[None]
    found = RandomRounds(M, np.ones(1), np.eye(2)[:, :1], {"all": np.eye(2)})
    assert found.rate() == found.factor({"all": 1.0}) == 0.25


def test_mixed_rounds_have_both_probabilities():
    one, other = (
        RandomRounds(np.full((1, 1, 1), m), np.ones(1), np.ones((1, 1)), {}) for m in (0.5, 2.0)
    )
    assert mixture(0.9, one, other).rate() == pytest.approx(0.9 * 0.25 + 0.1 * 4)


@pytest.mark.parametrize(
    ("compressor", "says"),
    [
        (compressors.top_k(0.5), "not affine"),
        (compressors.random_sparsification(0.25), "equally likely"),
    ],
    ids=["top-k", "sparsification"],
)
def test_what_cannot_be_enumerated_is_refused(compressor, says):
    with pytest.raises(ValueError, match=says):
        rounds_of_diana(compressor)


@pytest.mark.parametrize("name", ["diana", "diana_step"])
def test_too_large_shifts_have_no_theorem(name):
    given = {"smoothness": 1.0, "omega": 1.0, "workers": 2, "shift": 0.6}
    more = {"strong_convexity": 0.5, "learning_rate": 0.1} if name == "diana" else {}
    with pytest.raises(ValueError, match=f"^bounds.{name}: shift = 0.6"):
        partial(getattr(compressed_linear, name), **given, **more)()
