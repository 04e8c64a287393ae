r"""Gradient tracking (DIGing) with a fixed W on strongly convex f: a linear rate, from a matrix.

Rows are workers: $X_{t+1} = W X_t - \gamma Y_t$, $Y_{t+1} = W Y_t + G(X_{t+1}) - G(X_t)$,
$Y_0 = G(X_0)$, with a doubly stochastic W, $\sigma = |W - J|_2$, $w = |W - I|_2$. The mean of Y
equals the mean of G, so that $\bar x_{t+1} = \bar x_t - \gamma \bar g_t$. All $f_n$ are L-smooth,
$f$ is $\mu$-strongly convex, $\gamma \le 1/L$. With $\tilde X = (I - J) X$,

$$ |\tilde X_{t+1}| \le \sigma |\tilde X_t| + \gamma |\tilde Y_t|, \qquad
   |\bar x_{t+1} - x^\star| \le (1 - \gamma\mu) |\bar x_t - x^\star|
   + \frac{\gamma L}{\sqrt N} |\tilde X_t|, $$

the latter because of $|\bar g_t - f'(\bar x_t)| \le \frac{L}{\sqrt N} |\tilde X_t|$. The change of
the gradients in the trackers' update is at most $L |X_{t+1} - X_t|$, where
$X_{t+1} - X_t = (W - I) \tilde X_t - \gamma \tilde Y_t - \gamma 1 \bar g_t^T$ and
$|\bar g_t| \le L |\bar x_t - x^\star| + \frac{L}{\sqrt N} |\tilde X_t|$. Therefore
$z_t = (|\tilde Y_t|, |\tilde X_t|, \sqrt N |\bar x_t - x^\star|)$ satisfies, element by element,

$$ z_{t+1} \le M z_t, \qquad
   M = \begin{pmatrix} \sigma + \gamma L & L (w + \gamma L) & \gamma L^2 \\
   \gamma & \sigma & 0 \\
   0 & \gamma L & 1 - \gamma\mu \end{pmatrix}, \qquad z_t \le M^t z_0. $$

M is nonnegative, and its spectral radius is below 1 if and only if $\det(I - M) > 0$ and
$\gamma L < 1 - \sigma$, which is

$$ (1 + \tfrac L\mu) (\gamma L)^2 + (1 - \sigma + w) \gamma L < (1 - \sigma)^2. $$

Source: the argument is from Qu and Li, "Harnessing smoothness to accelerate distributed
optimization", 2018, and Nedic, Olshevsky and Shi, "Achieving geometric convergence for distributed
optimization over time-varying graphs", 2017; the matrix is derived here for the project's form.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

import algorithms
import topologies
from dsgd import problems
from dsgd.base import Problem
from dsgd.graphs.topology import Topology
from theory_checks.machinery import instances, moments, paths
from theory_checks.machinery.statement import Condition, Draws, Outcome, Statement, need
from theory_checks.statements.decentralized_sgd import one_rho

_STEPS = 60


def contraction(
    *, smoothness: float, strong_convexity: float, learning_rate: float, topology: Topology
) -> np.ndarray:
    """Returns M, `[3, 3]`.

    Args:
        smoothness: L, of all f_n.
        strong_convexity: mu, of f.
        learning_rate: gamma <= 1 / L.
        topology: W, doubly stochastic, the same in all rounds.
    """
    sigma, w = _norms(topology)
    L, gamma = smoothness, learning_rate
    return np.array(
        [
            [sigma + gamma * L, L * (w + gamma * L), gamma * L**2],
            [gamma, sigma, 0.0],
            [0.0, gamma * L, 1 - gamma * strong_convexity],
        ]
    )


def _norms(topology: Topology) -> tuple[float, float]:
    """Returns sigma and w."""
    N, W = topology.n, topology.W
    return float(np.linalg.norm(W - 1 / N, 2)), float(np.linalg.norm(W - np.eye(N), 2))


def largest_step(*, smoothness: float, strong_convexity: float, topology: Topology) -> float:
    """Returns the gamma at which the spectral radius of M is 1; with smaller steps the errors
    decrease linearly. Arguments as of `contraction`.
    """
    sigma, w = _norms(topology)
    square, linear, free = 1 + smoothness / strong_convexity, 1 - sigma + w, (1 - sigma) ** 2
    return 2 * free / (linear + math.sqrt(linear**2 + 4 * square * free)) / smoothness


def hypotheses(problem: Problem, topology: Topology, learning_rate: float) -> list[Condition]:
    """Returns the conditions: one doubly stochastic W, gamma <= 1 / L. A quadratic f is strongly
    convex.
    """
    return [
        *instances.one_matrix(problem, topology, "doubly stochastic", topology.doubly_stochastic),
        instances.step_below("1 / L", 1 / instances.constants(problem).smoothness, learning_rate),
    ]


def check(
    problem: Problem, topology: Topology, *, learning_rate: float, steps: int = _STEPS
) -> list[Outcome]:
    """Checks z_{t+1} <= M z_t in every round, and z_t <= M^t z_0 along the trajectory.

    Args:
        problem: a quadratic; its noise is ignored.
        topology: W.
        learning_rate: gamma.
        steps: T.

    Raises:
        ValueError: if a hypothesis fails.
    """
    need("gradient_tracking", hypotheses(problem, topology, learning_rate))
    M = contraction(
        smoothness=instances.constants(problem).smoothness,
        strong_convexity=float(problem.constants.strong_convexity or 0.0),
        learning_rate=learning_rate,
        topology=topology,
    )
    path = paths.follow(
        moments.with_step(algorithms.gradient_tracking, topology),
        problem,
        learning_rate,
        steps=steps,
    )
    X, Y = path.workers.params[:-1], path.workers.tracker[1:]
    distance = np.sqrt(topology.n) * np.linalg.norm(
        X.mean(axis=1) - problem.constants.minimizer, axis=1
    )
    z = np.stack([paths.size(paths.apart(Y)), paths.size(paths.apart(X)), distance], axis=1)
    first = [float(paths.size(paths.apart(paths.gradients(problem, X[0])))), 0.0, distance[0]]
    powers = [np.array(first)]
    for _ in range(steps - 1):
        powers.append(M @ powers[-1])
    case = f"{problem.name}, {topology.name}, gamma = {learning_rate:.3g}"
    parts, scale = ("trackers", "models", "mean"), paths.ROUNDED * max(first)
    sides = {"round by round": z[:-1] @ M.T, "from the start": np.stack(powers)[1:]}
    return [
        outcome
        for how, right in sides.items()
        for outcome in paths.worst_parts(
            z[1:], right, [f"{part}, {how}" for part in parts], case=case, scale=scale
        )
    ]


@cache
def graphs() -> tuple[Topology, ...]:
    """Returns an undirected graph and a directed one, whose W does not commute with its
    transpose.
    """
    around, across = (np.eye(5)[list(order)] for order in ((1, 2, 3, 4, 0), (1, 3, 0, 2, 4)))
    return topologies.chain(3), topologies.from_matrix(
        (np.eye(5) + around + across) / 3, "crossing(5)"
    )


def trial(draws: Draws) -> list[Outcome]:
    """Checks a random quadratic on a random graph."""
    topology = draws.choice(graphs())
    problem = instances.quadratic(draws, topology.n, 2, noisy=False)
    L, mu = (
        instances.constants(problem).smoothness,
        float(problem.constants.strong_convexity or 0.0),
    )
    converging = largest_step(smoothness=L, strong_convexity=mu, topology=topology)
    return check(
        problem, topology, learning_rate=draws.choice((converging, draws.real(0.01, 1.0) / L))
    )


def alternating() -> list[Outcome]:
    """Checks a W with negative eigenvalues and equal Hessians: the disagreement changes its sign in
    each round, and all terms add up.
    """
    problem = problems.quadratic(
        np.ones((4, 1)), np.array([[1.0], [-1.0], [2.0], [-2.0]]), start=[1e-9]
    )
    return check(problem, one_rho(4, -0.3), learning_rate=0.01)


STATEMENTS = [
    Statement(
        "gradient tracking, linear",
        "Qu and Li 2018; matrix derived",
        "W doubly stochastic, f strongly convex; gamma <= 1/L",
        trial,
        (alternating,),
    ),
]
