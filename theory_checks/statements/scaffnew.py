r"""Scaffnew with exact gradients on strongly convex f_n: the mean of a Lyapunov function over the
coin decreases linearly, from every state.

With $\hat x^{(n)} = x^{(n)} - \gamma (f_n'(x^{(n)}) - h^{(n)})$ and

$$ \Psi = \sum_n |x^{(n)} - x^\star|^2 + \frac{\gamma^2}{p^2} \sum_n |h^{(n)} - f_n'(x^\star)|^2, $$

a round ends at $\hat x$ and h with probability $1 - p$, and at the mean of $\hat x$ and $h +
\frac p\gamma (\frac1N \sum_m \hat x^{(m)} - \hat x)$ with probability p. If all f_n are
$\mu$-strongly convex and L-smooth and $\gamma \le 1/L$, the mean of the two $\Psi_{t+1}$ is at most
$(1 - \zeta) \Psi_t$, $\zeta = \min(\gamma\mu, p^2)$. The states are those of a run of the code, and
one of the two $\Psi_{t+1}$ is that of its next state.

$1 - p^2$ is attained by models at the optimum: then $\hat x^{(n)} - x^\star = \gamma (h^{(n)} -
f_n'(x^\star))$, and $(1 - p) (1 + p^2) + p (1 - p)^2 = 1 - p^2$. $1 - \gamma\mu$ is attained up to
$(\gamma\mu)^2$ by equal workers, for which the method is gradient descent.

Source: Mishchenko et al., "ProxSkip", 2022, Theorem 3.6 and Section 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import optax

import algorithms
from dsgd.base import Algorithm
from theory_checks.machinery import trajectories
from theory_checks.machinery.paths import worst
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.machinery.trajectories import D, N

_ROUNDED = 1e-6  # rounding errors of Psi are relative to this fraction of the first one


def _method(of: Instance) -> Algorithm:
    return algorithms.scaffnew(optax.sgd(of.learning_rate), of.more)


def check(
    A: np.ndarray, b: np.ndarray, start: np.ndarray, gamma: float, p: float, mu: float, seed: int
) -> list[Outcome]:
    r"""Checks the mean of $\Psi_{t+1}$ over the coin, and $\Psi_{t+1}$ of the code, in each round.

    Args:
        A, b, start: of the quadratics $f_n(x) = \frac12 x^T A_n x - b_n^T x$; N workers and D
            elements.
        gamma, p: step size, at most 1 / L, and probability.
        mu: strong convexity of all f_n.
        seed: of the coins.
    """
    arrays: Any = (A, b, np.zeros((D, D)), start, np.float64(gamma), np.float64(0))
    found = trajectories.run(_method, Instance(*arrays, more=np.float64(p)), seed=seed)
    x, h = (
        trajectories.rows(leaf)
        for leaf in (found.states.workers.params, found.states.workers.control)
    )
    coins = found.sent[:, 0] > 0
    best = np.linalg.solve(A.mean(axis=0), b.mean(axis=0))

    def slopes(X):
        return np.einsum("nij,...nj->...ni", A, X) - b

    def psi(x, h):
        control = h - slopes(np.tile(best, (N, 1)))
        return ((x - best) ** 2).sum((-1, -2)) + (gamma / p) ** 2 * (control**2).sum((-1, -2))

    hat = x[:-1] - gamma * (slopes(x[:-1]) - h[:-1])
    mean = np.broadcast_to(hat.mean(axis=1, keepdims=True), hat.shape)
    silent, loud = psi(hat, h[:-1]), psi(mean, h[:-1] + p / gamma * (mean - hat))
    before, after = psi(x[:-1], h[:-1]), psi(x[1:], h[1:])
    case = f"gamma mu = {gamma * mu:.3g}, p^2 = {p**2:.3g}"
    scale = _ROUNDED * before[0]
    return [
        *worst(
            p * loud + (1 - p) * silent,
            (1 - min(gamma * mu, p**2)) * before,
            case=f"{case}, mean over the coin",
            scale=scale,
        ),
        *worst(
            after,
            np.where(coins, loud, silent),
            case=f"{case}, next state",
            equality=True,
            scale=scale,
        ),
    ]


def trial(draws: Draws) -> list[Outcome]:
    """Checks the linear rate on random strongly convex quadratics."""
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    L, kappa = draws.real(0.2, 5.0), draws.real(1.0, 100.0)
    bases = np.linalg.qr(rng.normal(size=(N, D, D)))[0]
    A = np.einsum("nij,nj,nkj->nik", bases, rng.uniform(L / kappa, L, (N, D)), bases)
    b, start = draws.real(0.0, 3.0) * rng.normal(size=(N, D)), rng.normal(size=D)
    gamma = draws.choice((1.0, draws.real(0.01, 1.0))) / L
    p = draws.choice((kappa**-0.5, draws.real(0.05, 1.0)))
    seed = draws.integer(0, 2**31 - 1)
    return check((A + A.swapaxes(1, 2)) / 2, b, start, gamma, p, L / kappa, seed)


def optimal_start() -> list[Outcome]:
    """Checks a run that starts at the minimum, with control variates that are wrong."""
    b = np.random.default_rng(0).normal(size=(N, D))
    return check(np.tile(np.eye(D), (N, 1, 1)), b, b.mean(axis=0), 1.0, 0.5, 1.0, 0)


def equal_workers() -> list[Outcome]:
    """Checks equal workers, for which the method is gradient descent, with small steps."""
    A, b = np.tile(0.02 * np.eye(D), (N, 1, 1)), np.zeros((N, D))
    return check(A, b, np.ones(D), 1.0, 0.5, 0.02, 0)


STATEMENTS = [
    Statement(
        "Scaffnew, linear",
        "Mishchenko et al. 2022, Theorem 3.6",
        "f_n strongly convex, exact gradients; gamma <= 1/L",
        trial,
        (optimal_start, equal_workers),
    ),
]
