r"""Misprints of the DropCompute paper, and statements that its proofs do not show.

As in `misprints`, but s stands for $\sigma$ and e for the step size $\eta$.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import algorithms
from dsgd.base import Now, Round
from theory_checks.machinery.rounds import Timetable
from theory_checks.machinery.statement import Misprint, Outcome, both
from theory_checks.statements import dropcompute


def not_stopping_times() -> tuple[Outcome, Outcome]:
    """Computes the expectation of the sum of xi for one micro-batch of 1 or 3 seconds with equal
    probability, xi = t - 2, tau = 2: Algorithm 1 computes only micro-batches with xi = -1.
    """
    method, found = algorithms.drop_compute(algorithms.minibatch_sgd(optax.sgd(1.0)), 2.0, 1), []
    for t in (1.0, 3.0):
        round_info = Round(
            jnp.int32(0), 1, jax.random.key(0), Now(Timetable(jnp.full((1, 1, 1), t)))
        )
        work = method.query(method.init(jnp.zeros(1), 1), round_info).work
        found.append(float(work.weights[0, 0] * work.samples[0, 0]) * (t - 2))
    return both(float(np.mean(found)), 0.0, -0.5, equality=True)


def factor_of_two() -> tuple[Outcome, Outcome]:
    """Evaluates both right sides for f = x^2 / 2 from 1, with batches of 1 and no noise. L = b = 1,
    D = 1/2, and the proof's step size is 1/2; (26) is half of the required value.
    """
    L, b, D, x = 1.0, 1, 0.5, 1.0
    step, left = 1 / (2 * L * b), 0.0
    for _ in range(100):
        left, x = left + b * x**2, x - step * b * x
    return both(left, 2 * L * b * D, 4 * L * b * D)


def smoothness() -> tuple[Outcome, Outcome]:
    """Evaluates both inequalities on a step from 1 to 2 that increases f(x) = x^2 / 2."""
    first, second = 1.0, 2.0
    inner, square = first * (second - first), (second - first) ** 2 / 2
    return both(second**2 / 2, first**2 / 2 - inner + square, first**2 / 2 + inner + square)


def first_of_the_martingale() -> tuple[Outcome, Outcome]:
    """Evaluates both definitions of Q_1 for xi = 2 or -2. They state E|xi|^2 = E Q_1 + s or E Q_1 +
    s^2, where E Q_1 must be at most 0.
    """
    s = 2.0
    return both(float(np.mean(np.array([2.0, -2.0]) ** 2)), s, s**2)


def rounds_for_samples() -> tuple[Outcome, Outcome]:
    """Evaluates both left sides for f = x^2 / 2 from 1 without noise, over 1000 rounds that all
    have b = 1 or all have b = 15, with equal probability; e = 1/30.

    If theta-bar is drawn within each run, it is often an early model in runs that compute little;
    the quotient of expectations does not have this effect.
    """
    largest, steps = 15, 1000
    step, sums, drawn = 1 / (2 * largest), [], []
    for b in (1, largest):
        squares = (1 - step * b) ** (2 * np.arange(steps))
        sums.append(b * squares.sum())
        drawn.append(squares.mean())
    total = float(np.mean([1, largest])) * steps
    right = dropcompute.bound(
        gap=0.5, smoothness=1.0, noise=0.0, total=total, batch_size=largest, learning_rate=step
    )
    return Outcome(float(np.mean(drawn)), right), Outcome(float(np.mean(sums)) / total, right)


MISPRINTS = [
    Misprint(
        "DropCompute, Lemma D.1",
        "E sum xi = 0 in Algorithm 1",
        "only if stopping does not depend on xi",
        "1 or 3 s, tau = 2, xi = t - 2",
        not_stopping_times,
    ),
    Misprint(
        "DropCompute, (27), (2)",
        "2 L b D + 2 s sqrt(LDK)",
        "4 L b D + 4 s sqrt(LDK), by (26)",
        "x^2/2, e = 1/(2Lb), s = 0",
        factor_of_two,
    ),
    Misprint(
        "DropCompute, section D.2",
        "f_i - f_i' (x_(i+1) - x_i) + ...",
        "f_i + f_i' (x_(i+1) - x_i) + ...",
        "x^2/2, 1 to 2",
        smoothness,
    ),
    Misprint(
        "DropCompute, proof of Lemma D.2",
        "Q_1 = |xi|^2 - s",
        "Q_1 = |xi|^2 - s^2",
        "xi = +-2",
        first_of_the_martingale,
    ),
    Misprint(
        "DropCompute, (28) after S rounds",
        "E|f'(theta-bar)|^2 with E K for K",
        "E sum b |f'|^2 / E K",
        "b = 1 or 15 in all rounds",
        rounds_for_samples,
    ),
]
