r"""Decentralized SGD with changing matrices and local steps: Theorem 5.2.11 for `local_sgd` and for
schedules of matrices, with constants derived here.

A round is $X_{t+1} = W_t (X_t - \gamma G_t)$, where rows are workers and $W_t$ is doubly stochastic
with the period P. In local SGD with the period H all but every H-th matrix are I, which does not
contract. Therefore norms of products replace $\rho$:

$$ \Phi_{s \to t} = W_{t-1} \cdots W_s - J, \qquad (I - J) X_t = -\gamma \sum_{s < t} \Phi_{s \to t}
G_s. $$

Let $a_p$ be the largest $\big(\frac1N E|(I - J) X_t|_F^2\big)^{1/2}$ over the rounds t of phase p.
The exact gradients are $[F - F(\bar X)] + F(\bar X)$: the norm of the first part is at most
$L \sqrt N a_q$, that of the second $\sqrt N \varsigma$, where $\varsigma$ bounds the heterogeneity
at all t. The noise is independent across rounds and workers. With

$$ M_{pq} = \sum_{s \in q,\ s < t} |\Phi_{s \to t}|_2, \quad n_p^2 = \sum_{s < t} \tfrac1N |\Phi_{s
\to t}|_F^2 \quad (t \in p), \qquad
   a \le \gamma (L M a + \varsigma M 1 + \sigma n) $$

by Minkowski's inequality, element by element. As $M \ge 0$, if $\gamma L M$ has a spectral radius
below 1,

$$ a \le \gamma (I - \gamma L M)^{-1} (\varsigma M 1 + \sigma n). $$

For one symmetric W, $M = \frac{\rho}{1 - \rho}$. For local SGD with the exact mean, M is the
strictly lower triangular matrix of ones: $\gamma \le 1/L$ is sufficient, and without noise
$a_k = \frac\varsigma L ((1 + \gamma L)^k - 1)$, which is attained by workers of curvature $-L$. By
Lemma 5.2.9,

$$ \frac1T \sum_t E|f'(\bar x_t)|^2 \le \frac{2D}{\gamma T} + \frac{\gamma L \sigma^2}{N} +
\frac{L^2}{T} \sum_t a_{t \bmod P}^2. $$

With $\kappa$ the largest row sum of M and $\nu$ the largest $n_p$, $\gamma L \kappa \le \frac12$
implies $a_p \le 2 \gamma (\kappa \varsigma + \nu \sigma)$ for all p, from which the recommended
step size and the rate follow.

Source: the setting is that of Koloskova, Loizou, Boreiri, Jaggi and Stich, "A unified theory of
decentralized SGD with changing topology and local updates", 2020, Theorem 2, whose rate has the
same three terms without constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import optax

import algorithms
import topologies
from dsgd import checks, problems
from dsgd.base import Algorithm, Problem
from dsgd.graphs.topology import Topology
from dsgd.problems.quadratic import Quadratic
from theory_checks.machinery import instances, moments, paths, ranges
from theory_checks.machinery.rates import Rate, Terms, step_size_and_rate
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement, need
from theory_checks.statements.decentralized_sgd import (
    LONG,
    balanced_problem,
    compare,
    diverging_problem,
    exact_sides,
    terms_of_mean,
)

# Norm of a product of whole periods at which a geometric series replaces the remaining sum.
_REMAINDER = 1e-4


class Memory(NamedTuple):
    """Influence of earlier rounds on the disagreement, by phases of a period.

    Args:
        drift: M, `[P, P]`.
        noise: n, `[P]`.
    """

    drift: np.ndarray
    noise: np.ndarray

    @property
    def steady(self) -> float:
        """Returns kappa, the largest row sum of M."""
        return float(self.drift.sum(axis=1).max())

    @property
    def random(self) -> float:
        """Returns nu, the largest element of n."""
        return float(self.noise.max())

    @property
    def radius(self) -> float:
        """Returns the spectral radius of M."""
        return float(np.abs(np.linalg.eigvals(self.drift)).max())


def memory(topology: Topology, period: int = 1) -> Memory:
    r"""Returns M and n of a topology, one matrix or a schedule, that is applied in the last of
    every H rounds.

    The sums are over finitely many rounds. Let $Q_q$ be the product of R periods from phase q,
    minus J. Longer lags satisfy $|\Phi_{s \to t + RP}| \le |\Phi_{s \to t}| |Q_q|_2$, so that a sum
    over R periods, divided by $1 - |Q_q|_2$, is an upper bound on the infinite sum.

    Args:
        topology: W, doubly stochastic.
        period: H.

    Raises:
        ValueError: if the period is below 1, or W is not doubly stochastic.
    """
    checks.positive_int("local_sgd.memory: period", period)
    given = f"{topology.name} has rows that do not sum to 1"
    need(
        "local_sgd.memory",
        [Condition("a doubly stochastic W in all rounds", topology.doubly_stochastic, given)],
    )
    matrices = [
        matrix
        for W in topology.matrices
        for matrix in (*[np.eye(topology.n)] * (period - 1), W.toarray())
    ]
    columns = [_from_phase(matrices, phase) for phase in range(len(matrices))]
    drift, squares = (np.stack(kind, axis=1) for kind in zip(*columns, strict=True))
    return Memory(drift, np.sqrt(squares.sum(axis=1)))


def _from_phase(matrices: Sequence[np.ndarray], phase: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the influence of the rounds of one phase on those of every phase: sums of |Phi|_2 and
    of |Phi|_F^2 / N, `[P]` each.
    """
    P, N = len(matrices), len(matrices[0])
    drift, squares, t, left = np.zeros(P), np.zeros(P), phase, np.eye(N) - 1 / N
    while True:
        left = matrices[t % P] @ left
        t, size = t + 1, float(np.linalg.norm(left, 2))
        size = size if size > 1e-14 else 0.0  # The product is J up to rounding.
        drift[t % P] += size
        squares[t % P] += float(np.sum(left**2)) / N if size else 0.0
        if t % P == phase and size <= _REMAINDER:
            return drift / (1 - size), squares / (1 - size**2)


def _contracts(smoothness: float, learning_rate: float, memory: Memory) -> Condition:
    within = learning_rate * smoothness * memory.radius
    given = f"gamma = {learning_rate:.6g}, gamma L times the spectral radius of M = {within:.6g}"
    return Condition("gamma L M with a spectral radius below 1", within < 1, given)


def hypotheses(
    problem: Problem, topology: Topology, period: int, learning_rate: float
) -> list[Condition]:
    """Returns the conditions: gamma <= 1 / L, and a spectral radius of gamma L M below 1. `memory`
    raises an error if W is not doubly stochastic. All models start equal.
    """
    L = instances.constants(problem).smoothness
    # The exact moments contain the heterogeneity at all t.
    along_path = isinstance(problem.data, Quadratic)
    return [
        *([] if along_path else [instances.same_heterogeneity(problem)]),
        instances.same_workers(problem, topology),
        instances.step_below("1 / L", 1 / L, learning_rate),
        _contracts(L, learning_rate, memory(topology, period)),
    ]


def terms(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    heterogeneity: float,
    workers: int,
    memory: Memory,
) -> Terms:
    r"""Returns the terms of `theory_checks.decentralized_sgd` with $s = L (1 + 2\kappa)$ and $c = 4
    L^2 (\kappa\varsigma + \nu\sigma)^2$, which is at least $L^2 C / \gamma^2$ if $\gamma L \kappa
    \le \frac12$.
    """
    drift = (2 * smoothness * (memory.steady * heterogeneity + memory.random * noise)) ** 2
    return terms_of_mean(gap, smoothness, noise, workers, 1 + 2 * memory.steady, drift)


step_size: Callable[..., float]
rate: Callable[..., Rate]
step_size, rate = step_size_and_rate("local_sgd", terms)


@ranges.validate("local_sgd.consensus")
def consensus(
    *,
    smoothness: float,
    noise: float,
    heterogeneity: float,
    learning_rate: float,
    steps: int,
    memory: Memory,
) -> float:
    r"""Returns $C = \frac1T \sum_{t < T} a_{t \bmod P}^2$, the bound on
    $\frac{1}{NT} \sum_t E|X_t - \bar X_t|_F^2$, with
    $a = \gamma (I - \gamma L M)^{-1} (\varsigma M 1 + \sigma n)$.

    Args:
        smoothness: L, of all f_n.
        noise: sigma, of each worker.
        heterogeneity: varsigma, at all t.
        learning_rate: gamma.
        steps: T.
        memory: M and n, from `memory`.

    Raises:
        ValueError: if the spectral radius of gamma L M is not below 1.
    """
    need("local_sgd.consensus", [_contracts(smoothness, learning_rate, memory)])
    P = len(memory.noise)
    sources = learning_rate * (heterogeneity * memory.drift.sum(axis=1) + noise * memory.noise)
    squares = np.linalg.solve(np.eye(P) - learning_rate * smoothness * memory.drift, sources) ** 2
    rounds = (steps - 1 - np.arange(P)) // P + 1  # number of rounds of each phase
    return float(squares @ rounds) / steps


@ranges.validate("bounds.local_sgd")
def bound(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    heterogeneity: float,
    steps: int,
    workers: int,
    memory: Memory,
    learning_rate: float,
) -> float:
    r"""Returns $\frac{2D}{\gamma T} + \frac{\gamma L \sigma^2}{N} + L^2 C$, the bound on $\frac1T
    \sum_t E|f'(\bar x_t)|^2$, with C of `consensus`.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L, of all f_n.
        noise: sigma, of each worker.
        heterogeneity: varsigma, at all t.
        steps: T.
        workers: N.
        memory: M and n, from `memory`.
        learning_rate: gamma <= 1 / L.

    Raises:
        ValueError: if gamma is larger, or the spectral radius of gamma L M is not below 1.

    Source: derived in the module's docstring; Koloskova et al., Theorem 2, without constants.
    """
    instances.require_step("bounds.local_sgd", learning_rate, "1 / L", 1 / smoothness)
    need("bounds.local_sgd", [_contracts(smoothness, learning_rate, memory)])
    shared = {
        "smoothness": smoothness,
        "noise": noise,
        "heterogeneity": heterogeneity,
        "learning_rate": learning_rate,
    }
    C = consensus(**shared, steps=steps, memory=memory)
    of = terms_of_mean(gap, smoothness, noise, workers, 1.0, (smoothness / learning_rate) ** 2 * C)
    return of.total(learning_rate, steps)


def check(
    problem: Problem,
    topology: Topology,
    period: int = 1,
    *,
    steps: int,
    learning_rate: float | None = None,
    method: Method = algorithms.local_sgd,
) -> tuple[Outcome, Outcome]:
    """Checks the bounds on the gradient and on the consensus distance against the exact moments on
    a quadratic.

    Args:
        problem: a quadratic.
        topology: W, or a schedule.
        period: H.
        steps: T.
        learning_rate: gamma; None: the recommended one.
        method: (optimiser, period, topology) -> method; the default or a custom one.

    Returns:
        The outcome for the gradient, and the outcome for the consensus distance.

    Raises:
        ValueError: if the problem is not a quadratic, its constants are unknown, or a hypothesis
            fails.
    """
    build = moments.with_step(method, period, topology)
    return compare(
        "local_sgd",
        problem,
        lambda gamma: exact_sides(build, problem, steps, np.max, gamma, varying=True),
        step_size,
        (bound, lambda gap, workers, **shared: consensus(**shared)),
        partial(hypotheses, problem, topology, period),
        learning_rate,
        f"{topology.name}, H = {period}",
        steps=steps,
        memory=memory(topology, period),
    )


def every_round(
    optimizer: optax.GradientTransformation, period: int, topology: Topology
) -> Algorithm:
    """Returns decentralized SGD, with the arguments of local SGD."""
    return algorithms.decentralized_sgd(optimizer, topology)


# --- Random instances, and instances close to the bounds.


@cache
def turning() -> Topology:
    """Returns a schedule of two matrices, J + 0.002 P (I - J), where P is the identity in even
    rounds and a shift by two around a ring in odd rounds.
    """
    kept = np.eye(8) - 1 / 8
    return topologies.from_matrix(
        [1 / 8 + 0.002 * kept, 1 / 8 + 0.002 * np.roll(kept, 2, axis=0)], "turning(8)"
    )


@cache
def schedules() -> tuple[tuple[int, Topology], ...]:
    """Returns directed schedules, with the period 1. The matrices of the second one do not commute,
    so that a transposed W gives a different result.
    """
    around, across = (np.eye(5)[list(order)] for order in ((1, 2, 3, 4, 0), (1, 3, 0, 2, 4)))
    relay = topologies.from_matrix([(np.eye(5) + P) / 2 for P in (around, across)], "relay(5)")
    return (1, turning()), (1, relay)


@cache
def local() -> tuple[tuple[int, Topology], ...]:
    """Returns pairs of a period H and a topology."""
    return (4, topologies.complete(10)), (2, topologies.one_peer_exponential(4))


Cases = Callable[[], Sequence[tuple[int, Topology]]]


def trial(part: int, cases: Cases, method: Method, draws: Draws) -> list[Outcome]:
    """Checks the gradient (part 0) or the consensus distance (part 1) on a random quadratic and one
    of the cases, (period, topology).
    """
    period, topology = draws.choice(cases())
    problem = instances.quadratic(draws, topology.n, 2)
    L, radius = instances.constants(problem).smoothness, memory(topology, period).radius
    gamma = draws.choice((None, draws.real(0.01, 1.0) * min(1.0, 0.99 / max(radius, 1e-12)) / L))
    options = {"steps": draws.choice((1, 10, 300)), "learning_rate": gamma, "method": method}
    return [check(problem, topology, period, **options)[part]]


def equal_curvatures(period: int, topology: Topology, method: Method) -> list[Outcome]:
    r"""Checks the disagreement against its closed form for equal Hessians h I. With P = W_t - J,
    the mean m and the covariance S of (I - J) X follow $m \leftarrow P((1 - \gamma h) m + \gamma
    b)$, $S \leftarrow P((1 - \gamma h)^2 S + \gamma^2 I) P^T$, and the disagreement is exactly
    $\frac1N (|m|^2 + \sigma^2 tr S)$.
    """
    N, gamma, steps = topology.n, 0.3, 50
    b = np.random.default_rng(N).normal(size=(N, 2))
    problem = problems.quadratic(np.ones((N, 2)), b, noise=2.0)
    m, S, expected = np.zeros((N, 2)), np.zeros((N, N)), []
    for t in range(steps):
        expected.append((np.sum(m**2) + 4 * np.trace(S)) / N)
        W = (
            topology.matrices[t // period % topology.period].toarray()
            if (t + 1) % period == 0
            else np.eye(N)
        )
        P = W - 1 / N
        m, S = (
            P @ ((1 - gamma) * m + gamma * b),
            P @ ((1 - gamma) ** 2 * S + gamma**2 * np.eye(N)) @ P.T,
        )
    found = moments.second_moments(
        moments.with_step(method, period, topology), problem, gamma, steps=steps, varying=True
    )["consensus"]
    case = f"equal Hessians, {topology.name}, H = {period}"
    return paths.worst(
        found[:steps], np.array(expected), case=case, equality=True, scale=max(expected)
    )


def equal_curvatures_of_all(cases: Cases, method: Method) -> list[Outcome]:
    """Checks equal Hessians on all of the cases."""
    return [
        outcome
        for period, topology in cases()
        for outcome in equal_curvatures(period, topology, method)
    ]


def balanced_pulls() -> list[Outcome]:
    """Checks an instance on which the bound's term L^2 C is the largest, on a directed schedule:
    curvatures of nearly opposite sign, whose gradients balance although f' is not 0.
    """
    problem = balanced_problem(8, epsilon=0.06)
    return [check(problem, turning(), steps=LONG, learning_rate=1.0, method=every_round)[0]]


def distant_start(cases: Cases, method: Method) -> list[Outcome]:
    """Checks an instance on which the bound's term 2 D / (gamma T) is the largest: from a distant
    start, the first step with gamma = 1 / L reaches the minimum.
    """
    period, topology = cases()[0]
    problem, options = instances.unit_bowl(topology.n, [1.0, 0.0]), {"learning_rate": 1.0}
    return [check(problem, topology, period, steps=LONG, method=method, **options)[0]]


def noise_alone(case: int, cases: Cases, method: Method) -> list[Outcome]:
    """Checks an instance on which the noise is the largest term of a, at a small step size; for
    local SGD, a_k = gamma sigma sqrt(k (1 - 1/N)).
    """
    period, topology = cases()[case]
    problem = instances.unit_bowl(topology.n, [1e-3, 0.0], noise=1.0)
    options = {"learning_rate": 1e-3, "method": method}
    return [check(problem, topology, period, steps=LONG, **options)[1]]


def diverging_workers() -> list[Outcome]:
    """Checks an instance on which a_k = varsigma ((1 + gamma L)^k - 1) / L is the largest term of
    the bound: the disagreement amplifies itself between two averaging rounds.
    """
    period, mean = local()[0]
    return [
        check(diverging_problem(), mean, period, steps=LONG, learning_rate=gamma)[1]
        for gamma in (0.3, 0.03)
    ]


def _statements(
    name: str,
    hypotheses: str,
    cases: Cases,
    method: Method,
    extremes: Sequence[Sequence[Callable[..., list[Outcome]]]],
) -> list[Statement]:
    """Returns the statements on the gradient and on the consensus distance, with the extremes of
    each.
    """
    source = "Koloskova et al. 2020; constants derived"
    return [
        Statement(title, source, hypotheses, partial(trial, part, cases, method), extremes[part])
        for part, title in enumerate((name, f"{name}, consensus"))
    ]


_SCHEDULES, _LOCAL = (schedules, every_round), (local, algorithms.local_sgd)
STATEMENTS = [
    *_statements(
        "DSGD on schedules",
        "W_t doubly stochastic; gamma <= 1/L; gamma L M contracts",
        *_SCHEDULES,
        (
            (balanced_pulls, partial(distant_start, *_SCHEDULES)),
            (partial(noise_alone, 1, *_SCHEDULES), partial(equal_curvatures_of_all, *_SCHEDULES)),
        ),
    ),
    *_statements(
        "local SGD",
        "W every H rounds; gamma <= 1/L; gamma L M contracts",
        *_LOCAL,
        (
            (partial(distant_start, *_LOCAL),),
            (
                diverging_workers,
                partial(noise_alone, 0, *_LOCAL),
                partial(equal_curvatures_of_all, *_LOCAL),
            ),
        ),
    ),
]
