r"""Exact diffusion (NIDS), D2 and EXTRA on convex f_n: Lyapunov functions that decrease in every
round, and closed forms for equal Hessians.

Rows are workers, W is symmetric, $X^\star = 1 x^{\star T}$, $e = X_t - X^\star$,
$g = G(X_t) - G(X^\star)$.

Exact diffusion and D2. $X_{t+1} = (I - P)(2 X_t - X_{t-1} - \gamma G(X_t) + \gamma G(X_{t-1}))$
with $P = \frac{I - W}{2}$ for exact diffusion, $I - W$ for D2. With
$D_{t+1} = X_t - \gamma G(X_t) - X_{t+1}$, $D_0 = 0$, this is $\phi = X_t - \gamma G(X_t) - D_t$,
$X_{t+1} = (I - P) \phi$, $D_{t+1} = D_t + P \phi$, whose fixed point is $X^\star$,
$D^\star = -\gamma G(X^\star)$. Let $d = D_t - D^\star$, in the range of P, and
$E_t = |e|_F^2 + |d|_{P^+}^2$. From $\phi - X^\star = e - \gamma g - d$ and
$|d + P v|_{P^+}^2 = |d|_{P^+}^2 + 2 \langle d, v \rangle + |v|_P^2$,

$$ E_{t+1} = |e - \gamma g|_F^2 + |d|_{P^+}^2 - |d|_F^2 - |\phi - X^\star|_{P (I - P)}^2. $$

This is an equality. If all $f_n$ are $\mu$-strongly convex,
$|e - \gamma g| \le \max(1 - \gamma\mu, \gamma L - 1) |e|$, and with p the least positive eigenvalue
of P, at most 1, $|d|_{P^+}^2 - |d|^2 \le (1 - p) |d|_{P^+}^2$: for $P \le I$

$$ E_{t+1} \le \max\{(1 - \gamma\mu)^2, (\gamma L - 1)^2, 1 - p\} E_t, \qquad \gamma < \tfrac2L. $$

The rate does not depend on the heterogeneity of the workers. (Li, Shi and Yan prove this rate for
NIDS; D2 needs $W \ge 0$ for it.)

EXTRA. With $\tilde W = \frac{I + W}{2}$, $U = (\tilde W - W)^{1/2}$, $q^k = \sum_{t \le k} U x^t$,
the method is $\tilde W (x^{k+1} - x^k) = -U q^{k+1} - \gamma G(x^k)$, with
$U q^\star = -\gamma G(X^\star)$. For $z = (q, x)$ and $|z|_G^2 = |q|^2 + |x|_{\tilde W}^2$, the
inner product with $x^{k+1} - X^\star$ gives

$$ |z^k - z^\star|_G^2 - |z^{k+1} - z^\star|_G^2 = |z^{k+1} - z^k|_G^2 + 2\gamma \langle g, x^{k+1}
- X^\star \rangle
   \ge \zeta |z^{k+1} - z^k|_G^2, \qquad \zeta = 1 - \frac{\gamma L}{2 \lambda_{\min}(\tilde W)}, $$

because $\langle g, x^k - X^\star \rangle \ge |g|^2 / L$ and
$|g|^2/L - |g||x^{k+1} - x^k| \ge -\frac L4 |x^{k+1} - x^k|^2$.

Equal Hessians h I. The disagreement along an eigenvector of W with the eigenvalue $\lambda$ is
$b\, c_t$ with $c_{t+1} = s c_t - m c_{t-1}$, $c_0 = 0$. Hence
$c_t = c_1 (z_1^t - z_2^t) / (z_1 - z_2)$ with the roots $z_1, z_2$ of $z^2 = s z - m$. For exact
diffusion and D2, $s = \nu (2 - \gamma h)$, $m = \nu (1 - \gamma h)$, $c_1 = \nu\gamma$, with
$\nu = \frac{1 + \lambda}{2}$ or $\lambda$, respectively; for EXTRA,
$s = 1 + \lambda - \gamma h$, $m = \frac{1 + \lambda}{2} - \gamma h$, $c_1 = \gamma$.

Source: Li, Shi and Yan, "A decentralized proximal-gradient method with network independent
step-sizes and separated convergence rates", 2019; Yuan, Ying, Zhao and Sayed, "Exact diffusion",
2019; Tang, Lian, Yan, Zhang and Liu, "D2", 2018; Shi, Ling, Wu and Yin, "EXTRA", 2015, Theorem 3.3.
The derivations here are self-contained.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import numpy as np

import algorithms
import topologies
from dsgd import problems
from dsgd.base import Problem
from dsgd.graphs.topology import Topology
from theory_checks.machinery import instances, moments, paths
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement, need
from theory_checks.statements.decentralized_sgd import one_rho

_STEPS, _LONG = 60, 400
_CONVEX = ("isotropic", "equal", "different")
METHODS: dict[float, Method] = {0.5: algorithms.exact_diffusion, 1.0: algorithms.d2}
"""The methods with P = share (I - W), by their share."""


class Path(NamedTuple):
    """Trajectory of a method: X `[T + 1, N, d]`; the fixed point and the gradients there, `[N, d]`;
    e and g, `[T + 1, N, d]`.
    """

    X: np.ndarray
    fixed: np.ndarray
    slopes: np.ndarray
    e: np.ndarray
    g: np.ndarray


def _follow(
    problem: Problem, topology: Topology, gamma: float, method: Method, steps: int = _STEPS
) -> Path:
    X = paths.follow(
        moments.with_step(method, topology), problem, gamma, steps=steps
    ).workers.params
    fixed = np.broadcast_to(np.asarray(problem.constants.minimizer), X.shape[1:])
    slopes = paths.gradients(problem, fixed)
    return Path(X, fixed, slopes, X - fixed, paths.gradients(problem, X) - slopes)


def _squares(values: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns the squared norm |v|^2 with respect to a matrix, of values `[..., N, d]`."""
    return np.einsum("...nd,nm,...md->...", values, matrix, values)


def require_convex(
    where: str, problem: Problem, topology: Topology, learning_rate: float, name: str, limit: float
) -> None:
    """Raises a ValueError if W is not one symmetric matrix, an f_n is not convex, or gamma is not
    below its limit.
    """
    least = _curvature(problem)
    conditions = [
        *instances.one_matrix(problem, topology, "symmetric", topology.symmetric),
        Condition("convex f_n", least >= 0, f"{problem.name} has a curvature of {least:.6g}"),
        Condition(
            f"0 < gamma < {name}",
            0 < learning_rate < limit,
            f"gamma = {learning_rate:.6g}, {name} = {limit:.6g}",
        ),
    ]
    need(where, conditions)


def _curvature(problem: Problem) -> float:
    """Returns the smallest curvature of any worker."""
    A = np.asarray(problem.data.A, np.float64)
    return float((A if A.ndim == 2 else np.linalg.eigvalsh(A)).min())


# --- Exact diffusion and D2.


def share_of(topology: Topology, share: float) -> np.ndarray:
    """Returns P = share (I - W)."""
    return share * (np.eye(topology.n) - topology.W)


def linear_rate(problem: Problem, topology: Topology, learning_rate: float, share: float) -> float:
    """Returns max{(1 - gamma mu)^2, (gamma L - 1)^2, 1 - p}."""
    L, mu = instances.constants(problem).smoothness, _curvature(problem)
    p = share * (1 - np.linalg.eigvalsh(topology.W)[-2])
    return max((1 - learning_rate * mu) ** 2, (learning_rate * L - 1) ** 2, 1 - float(p))


def _energies(
    problem: Problem, path: Path, gamma: float, P: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns E_t for all rounds, and the right side of the equation for E_{t+1}."""
    D = np.concatenate(
        [
            np.zeros_like(path.X[:1]),
            path.X[:-1] - gamma * paths.gradients(problem, path.X[:-1]) - path.X[1:],
        ]
    )
    d, inverse = D + gamma * path.slopes, np.linalg.pinv(P, hermitian=True)
    moved = path.e - gamma * path.g
    dual = _squares(d, inverse)
    right = (
        paths.size(moved) ** 2
        + dual
        - paths.size(d) ** 2
        - _squares(moved - d, P @ (np.eye(len(P)) - P))
    )
    return paths.size(path.e) ** 2 + dual, right


def check_linear(
    problem: Problem, topology: Topology, *, learning_rate: float, share: float
) -> list[Outcome]:
    """Checks the linear rate of exact diffusion (share 1/2) or D2 (share 1) in every round.

    Args:
        problem: a quadratic with convex f_n; its noise is ignored.
        topology: W.
        learning_rate: gamma < 2 / L.
        share: the factor of I - W in P.

    Raises:
        ValueError: if a hypothesis fails.
    """
    require_convex(
        "corrected_gossip",
        problem,
        topology,
        learning_rate,
        "2 / L",
        2 / instances.constants(problem).smoothness,
    )
    P, largest = share_of(topology, share), share * (1 - topology.smallest_eigenvalue)
    need(
        "corrected_gossip",
        [
            Condition(
                "P <= I",
                largest <= 1 + 1e-9,
                f"P of {topology.name} has the eigenvalue {largest:.6g}",
            )
        ],
    )
    E, _ = _energies(
        problem, _follow(problem, topology, learning_rate, METHODS[share]), learning_rate, P
    )
    case = f"{problem.name}, {topology.name}, gamma = {learning_rate:.3g}"
    rate = linear_rate(problem, topology, learning_rate, share)
    return paths.worst(E[1:], rate * E[:-1], case=case, scale=paths.ROUNDED * E[0])


@cache
def graphs(share: float) -> tuple[Topology, ...]:
    """Returns two graphs whose W satisfies P <= I."""
    weights = topologies.lazy if share == 1 else topologies.metropolis
    return topologies.chain(3, weights), topologies.star(5, weights)


def trial(share: float, draws: Draws) -> list[Outcome]:
    """Checks the linear rate on a random quadratic and a random graph."""
    topology = draws.choice(graphs(share))
    problem = instances.quadratic(draws, topology.n, 2, hessians=_CONVEX, noisy=False)
    gamma = draws.real(0.01, 1.99) / instances.constants(problem).smoothness
    return check_linear(problem, topology, learning_rate=gamma, share=share)


def mean_alone(share: float) -> list[Outcome]:
    """Checks an instance with the rate (1 - gamma mu)^2, the factor of the mean: the workers do not
    disagree.
    """
    problem = problems.quadratic(np.tile([1.0, 0.2], (5, 1)), np.zeros((5, 2)), start=[0.0, 1.0])
    return check_linear(problem, graphs(share)[1], learning_rate=0.1, share=share)


def slow_duals(share: float) -> list[Outcome]:
    """Checks an instance with the rate 1 - p, the factor of the dual variables: the start is the
    minimum with dual variables 0, on a graph that hardly mixes.
    """
    problem = problems.quadratic(
        np.ones((4, 1)), np.array([[1.0], [-1.0], [2.0], [-2.0]]), start=[1e-6]
    )
    return check_linear(problem, one_rho(4, 0.98), learning_rate=1.0, share=share)


def energy(share: float) -> list[Outcome]:
    """Checks the equation of E with unequal Hessians; for D2 also with a W that has negative
    eigenvalues.
    """
    problem, gamma, found = _differing(), 0.4, []
    for topology in (one_rho(4, -0.3), _mean_of_four()):
        E, right = _energies(
            problem,
            _follow(problem, topology, gamma, METHODS[share], _LONG),
            gamma,
            share_of(topology, share),
        )
        found += paths.worst(
            E[1:],
            right[:-1],
            case=f"energy, {topology.name}",
            equality=True,
            scale=paths.ROUNDED * E[0],
        )
    return found


_mean_of_four = cache(lambda: topologies.complete(4))


@cache
def _differing() -> Problem:
    return problems.random_quadratic(
        4, 2, smoothness=1.0, strong_convexity=0.5, heterogeneity=2.0, seed=3
    )


# --- EXTRA.


def _lyapunov(
    problem: Problem, topology: Topology, path: Path, gamma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns |z^k - z*|^2, the squares |z^{k+1} - z^k|^2, and 2 gamma <g^k, x^{k+1} - X*>."""
    half = (np.eye(topology.n) - topology.W) / 2
    values, vectors = np.linalg.eigh(half)
    # The mean is excluded: its eigenvalue is 0 up to rounding, which the square root would amplify.
    values, vectors = values[1:], vectors[:, 1:]
    root, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    q = np.einsum("nm,tmd->tnd", root, np.cumsum(path.X, axis=0))
    difference = q + gamma * inverse @ path.slopes
    tilde = np.eye(topology.n) - half
    distances = paths.size(difference) ** 2 + _squares(path.e, tilde)
    moves = paths.size(np.diff(q, axis=0)) ** 2 + _squares(np.diff(path.X, axis=0), tilde)
    return distances, moves, 2 * gamma * np.sum(path.g[:-1] * path.e[1:], axis=(1, 2))


def check_extra(problem: Problem, topology: Topology, *, learning_rate: float) -> list[Outcome]:
    """Checks Theorem 3.3 of the EXTRA paper in every round. Arguments and errors as of
    `check_linear`, with gamma < 2 lambda_min(W~) / L.
    """
    L, least = instances.constants(problem).smoothness, (1 + topology.smallest_eigenvalue) / 2
    require_convex(
        "corrected_gossip", problem, topology, learning_rate, "2 lambda_min(W~) / L", 2 * least / L
    )
    distances, moves, _ = _lyapunov(
        problem,
        topology,
        _follow(problem, topology, learning_rate, algorithms.extra),
        learning_rate,
    )
    zeta = 1 - learning_rate * L / (2 * least)
    case = f"{problem.name}, {topology.name}, gamma = {learning_rate:.3g}"
    return paths.worst(
        distances[1:], distances[:-1] - zeta * moves, case=case, scale=paths.ROUNDED * distances[0]
    )


def trial_extra(draws: Draws) -> list[Outcome]:
    """Checks EXTRA on a random quadratic and a random graph."""
    topology = draws.choice(graphs(0.5))
    problem = instances.quadratic(draws, topology.n, 2, hessians=_CONVEX, noisy=False)
    limit = (1 + topology.smallest_eigenvalue) / instances.constants(problem).smoothness
    return check_extra(problem, topology, learning_rate=draws.real(0.01, 0.99) * limit)


def oscillating_mean() -> list[Outcome]:
    """Checks an instance that nearly requires the constant zeta: workers that do not disagree jump
    from one side of the minimum to the other, at nearly the largest step size.
    """
    return check_extra(instances.unit_bowl(4, [1.0]), one_rho(4, 0.996), learning_rate=1.99)


def identity_of_extra() -> list[Outcome]:
    """Checks the equation that precedes zeta, with unequal Hessians."""
    problem, gamma, found = _differing(), 0.4, []
    for topology in (one_rho(4, -0.3), _mean_of_four()):
        distances, moves, products = _lyapunov(
            problem, topology, _follow(problem, topology, gamma, algorithms.extra, _LONG), gamma
        )
        right, scale = distances[:-1] - moves - products, paths.ROUNDED * distances[0]
        found += paths.worst(
            distances[1:], right, case=f"identity, {topology.name}", equality=True, scale=scale
        )
    return found


# --- All three methods.


def _roots(
    method: Method, eigenvalues: np.ndarray, turn: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the coefficients of the closed form along each eigenvector, s, m and c_1 / gamma, for
    gamma h = `turn`.
    """
    if method is algorithms.extra:
        return 1 + eigenvalues - turn, (1 + eigenvalues) / 2 - turn, np.ones_like(eigenvalues)
    nu = (1 + eigenvalues) / 2 if method is algorithms.exact_diffusion else eigenvalues
    return nu * (2 - turn), nu * (1 - turn), nu


def paths_of_eigenvectors(method: Method) -> list[Outcome]:
    """Checks every model in every round against the closed form for equal Hessians h I."""
    topology, gamma, h = graphs(1.0)[0], 0.3, 1.7
    b, start, t = (
        np.random.default_rng(5).normal(size=(3, 2)),
        np.array([1.0, -2.0]),
        np.arange(_STEPS + 1)[:, None],
    )
    problem = problems.quadratic(np.full((3, 2), h), b, start=start)
    values, vectors = np.linalg.eigh(topology.W)
    s, m, first = _roots(method, values[:-1] + 0j, gamma * h)
    spread = np.sqrt(s**2 - 4 * m)
    c = gamma * first * (((s + spread) / 2) ** t - ((s - spread) / 2) ** t) / spread
    best = b.mean(axis=0) / h
    means = best + (1 - gamma * h) ** t * (start - best)
    expected = means[:, None] + np.einsum(
        "nk,tk,mk,md->tnd", vectors[:, :-1], c.real, vectors[:, :-1], b
    )
    X = _follow(problem, topology, gamma, method).X
    return paths.worst(
        X, expected, case=f"{method.__name__} along eigenvectors", equality=True, scale=1.0
    )


def optimum(method: Method) -> list[Outcome]:
    """Checks that all workers converge to the minimiser of the mean, although the f_n differ."""
    path = _follow(_differing(), one_rho(4, -0.3), 0.4, method, _LONG)
    return paths.worst(path.X[-1], path.fixed, case="optimum", equality=True, scale=1.0)


def _linear(name: str, reference: str, hypothesis: str, share: float) -> Statement:
    """Returns the statement on the linear rate of exact diffusion or D2."""
    built = [partial(extreme, METHODS[share]) for extreme in (paths_of_eigenvectors, optimum)]
    built += [partial(extreme, share) for extreme in (mean_alone, slow_duals, energy)]
    return Statement(
        name,
        reference,
        f"W symmetric, {hypothesis}f_n convex; gamma < 2/L",
        partial(trial, share),
        built,
    )


STATEMENTS = [
    _linear("exact diffusion, linear", "Li, Shi and Yan 2019", "", 0.5),
    _linear("D2, linear", "Tang et al. 2018; rate derived", "W >= 0, ", 1.0),
    Statement(
        "EXTRA, monotone",
        "Shi et al. 2015, Theorem 3.3",
        "W symmetric, f_n convex; gamma < 2 lambda_min(W~)/L",
        trial_extra,
        [
            partial(paths_of_eigenvectors, algorithms.extra),
            partial(optimum, algorithms.extra),
            oscillating_mean,
            identity_of_extra,
        ],
    ),
]
