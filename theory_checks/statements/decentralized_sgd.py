r"""Decentralized SGD, Theorem 5.2.11, with constants that are attained.

Consensus. With $Y_t = X_t (I - J)$, $J = 11^T/N$, a round is
$Y_{t+1} = (Y_t - \gamma G_t (I - J))(W - J)$, and $|W - J|_2 = \rho$ for a symmetric W. Let
$a_t^2 = \frac1N E|Y_t|_F^2$, and let $\varsigma_t$ be the heterogeneity at $\bar x_t$. The exact
gradients are $F(I - J) = [F - F(\bar X_t)](I - J) + F(\bar X_t)(I - J)$; the norms of the two terms
are at most $L|Y_t|_F$ and $\sqrt N \varsigma_t$. The noise is independent of both, and independent
between workers: $E|\Xi (I - J)|_F^2 \le N(1 - \frac1N)\sigma^2$. Therefore, with
$q = \rho(1 + \gamma L)$,

$$ a_{t+1}^2 \le (q a_t + \rho\gamma\varsigma_t)^2 + r^2, \qquad r = \rho\gamma\sigma\sqrt{1 -
\tfrac1N}. $$

Averaged over t from $Y_1 = 0$, by Minkowski's inequality, $A^2 = \frac1T \sum_t a_t^2$ satisfies
$A^2 \le (qA + p)^2 + r^2$ with $p = \rho\gamma\varsigma$, where $\varsigma$ is the root mean square
of $\varsigma_t$. If $q < 1$, that is $\gamma L \frac{\rho}{1 - \rho} < 1$, A is at most the larger
root,

$$ A \le \frac{qp + \sqrt{p^2 + (1 - q^2) r^2}}{1 - q^2} = \frac{p}{1 - q} \text{ without noise},
\quad
   \frac{r}{\sqrt{1 - q^2}} \text{ without heterogeneity}. $$

The first is attained along an eigenvector with the eigenvalue $\rho$ if workers have the curvature
$-L$; the second as $\gamma L \to 0$, if all eigenvalues but one are $\rho$. Young's inequality in
$A^2 \le (qA + p)^2 + r^2$ gives

$$ A^2 \le \frac{p^2}{(1 - q)^2} + \frac{r^2}{1 - q}
   \le \frac{4 \rho^2 \gamma^2 \varsigma^2}{(1 - \rho)^2} + \frac{2 \rho^2 \gamma^2 \sigma^2}{1 -
   \rho}\Big(1 - \frac1N\Big), \qquad \gamma \rho \le \frac{1 - \rho}{2L}, $$

from which the rate follows. The survey's Lemma 5.2.7 has
$\frac{8 \rho^2 \gamma^2 (\varsigma^2 + \sigma^2)}{(1 - \rho)^2}$ and a term of gradients.

The gradient. The mean of the models makes a step along the mean of the gradients. By Lemma 5.2.9,

$$ \frac1T \sum_t E|f'(\bar x_t)|^2 \le \frac{2D}{\gamma T} + \frac{\gamma L \sigma^2}{N} + L^2 A^2,
\qquad \gamma \le \frac1L. $$

The last term is attained by workers of nearly opposite curvature, L and $-L$, whose gradients
balance at a point where $f'(\bar x)$ is not 0. The heterogeneity enters only through its sum over
t. Therefore $\varsigma^2$ may be the average along the path of $\bar x_t$, which is finite even if
the Hessians differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

import algorithms
import topologies
from dsgd import problems
from dsgd.base import Problem
from dsgd.graphs.topology import Topology
from dsgd.problems.quadratic import Quadratic
from theory_checks.machinery import instances, moments, ranges, runs
from theory_checks.machinery.rates import Rate, Terms, step_size_and_rate
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement, need


def hypotheses(problem: Problem, topology: Topology, learning_rate: float) -> list[Condition]:
    """Returns the conditions: one symmetric W, gamma <= 1 / L, gamma rho < (1 - rho) / L. All
    models start equal, and a symmetric W is doubly stochastic.
    """
    L, rho = instances.constants(problem).smoothness, topology.rho
    # The exact moments contain the average heterogeneity along the path.
    average = isinstance(problem.data, Quadratic)
    return [
        *([] if average else [instances.same_heterogeneity(problem)]),
        *instances.one_matrix(problem, topology, "symmetric", topology.symmetric),
        instances.step_below("1 / L", 1 / L, learning_rate),
        _contracts(L, learning_rate, rho),
    ]


def _contracts(smoothness: float, learning_rate: float, rho: float) -> Condition:
    """Returns the condition q < 1."""
    limit = (1 - rho) / smoothness
    given = f"gamma = {learning_rate:.6g}, rho = {rho:.6g}, (1 - rho) / L = {limit:.6g}"
    return Condition("gamma rho < (1 - rho) / L", rho * (1 + learning_rate * smoothness) < 1, given)


def terms(
    *, gap: float, smoothness: float, noise: float, heterogeneity: float, workers: int, rho: float
) -> Terms:
    r"""Returns the terms of the bound: $a = 2D$, $s = L \frac{1 + \rho}{1 - \rho}$, $b =
    \frac{L\sigma^2}{N}$, $c = \frac{4L^2\rho^2\varsigma^2}{(1 - \rho)^2} +
    \frac{2L^2\rho^2\sigma^2}{1 - \rho}(1 - \frac1N)$, which is at least $L^2 C / \gamma^2$ if
    $\gamma \rho \le \frac{1 - \rho}{2L}$. The step size has $\frac1\gamma = s + \sigma
    \sqrt{\frac{LT}{2ND}} + \big(\frac{cT}{D}\big)^{1/3}$, and the rate is $\frac{2Ds}{T} +
    2\sigma\sqrt{\frac{2LD}{NT}} + 3 c^{1/3} \big(\frac DT\big)^{2/3}$.
    """
    lasting = 2 * heterogeneity / (1 - rho)
    random = noise * math.sqrt(2 * (1 - 1 / workers) / (1 - rho))
    drift = (smoothness * rho) ** 2 * (lasting**2 + random**2)
    return terms_of_mean(gap, smoothness, noise, workers, (1 + rho) / (1 - rho), drift)


def terms_of_mean(
    gap: float, smoothness: float, noise: float, workers: int, slowdown: float, drift: float
) -> Terms:
    """Returns the terms of a bound for the mean of N models.

    Args:
        gap, smoothness, noise, workers: D, L, sigma, N.
        slowdown: s / L.
        drift: c.
    """
    return Terms(2 * gap, smoothness * slowdown, smoothness * noise**2 / workers, drift)


step_size: Callable[..., float]
rate: Callable[..., Rate]
step_size, rate = step_size_and_rate("decentralized_sgd", terms)


@ranges.validate("bounds.consensus")
def consensus(
    *,
    smoothness: float,
    noise: float,
    heterogeneity: float,
    workers: int,
    learning_rate: float,
    rho: float,
) -> float:
    r"""Returns $C = \Big(\frac{qp + \sqrt{p^2 + (1 - q^2) r^2}}{1 - q^2}\Big)^2$, the bound on
    $\frac{1}{NT} \sum_t E|X_t - \bar X_t|_F^2$, with $q = \rho (1 + \gamma L)$, $p = \rho \gamma
    \varsigma$, $r^2 = \rho^2 \gamma^2 \sigma^2 (1 - \frac1N)$.

    Args:
        smoothness: L, of all f_n.
        noise: sigma, of each worker.
        heterogeneity: varsigma, everywhere or on average along the path.
        workers: N.
        learning_rate: gamma, with gamma rho < (1 - rho) / L.
        rho: second largest |eigenvalue| of W.

    Raises:
        ValueError: if gamma is larger, because the disagreement may then grow without bound.

    Source: derived in the module's docstring; it replaces Liu and Zhang's Lemma 5.2.7.
    """
    need("bounds.consensus", [_contracts(smoothness, learning_rate, rho)])
    q, p = rho * (1 + learning_rate * smoothness), rho * learning_rate * heterogeneity
    r = rho * learning_rate * noise * math.sqrt(1 - 1 / workers)
    return ((q * p + math.hypot(p, math.sqrt(1 - q**2) * r)) / (1 - q**2)) ** 2


@ranges.validate("bounds.decentralized_sgd")
def bound(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    heterogeneity: float,
    steps: int,
    workers: int,
    rho: float,
    learning_rate: float,
) -> float:
    r"""Returns $\frac{2D}{\gamma T} + \frac{\gamma L \sigma^2}{N} + L^2 C$, the bound on $\frac1T
    \sum_t E|f'(\bar x_t)|^2$, with C of `consensus`.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L, of all f_n.
        noise: sigma, of each worker.
        heterogeneity: varsigma, everywhere or on average along the path.
        steps: T.
        workers: N.
        rho: second largest |eigenvalue| of W.
        learning_rate: gamma <= 1 / L, with gamma rho < (1 - rho) / L.

    Raises:
        ValueError: if gamma is larger.

    Source: Liu and Zhang, Theorem 5.2.11, with C as derived in the module's docstring.
    """
    instances.require_step("bounds.decentralized_sgd", learning_rate, "1 / L", 1 / smoothness)
    need("bounds.decentralized_sgd", [_contracts(smoothness, learning_rate, rho)])
    shared = {"smoothness": smoothness, "noise": noise, "heterogeneity": heterogeneity}
    C = consensus(**shared, workers=workers, learning_rate=learning_rate, rho=rho)
    of = terms_of_mean(gap, smoothness, noise, workers, 1.0, (smoothness / learning_rate) ** 2 * C)
    return of.total(learning_rate, steps)


class Sides(NamedTuple):
    r"""Left sides of the two bounds, on the gradient and on the consensus distance.

    Args:
        means: $\frac1T \sum_t E|f'(\bar x_t)|^2$ and $\frac{1}{NT} \sum_t E|X_t - \bar X_t|_F^2$.
        errors: their standard errors.
        heterogeneity: varsigma along the path.
        moved: mean square of a worker's step, to which rounding is relative.
    """

    means: Sequence[float]
    errors: Sequence[float]
    heterogeneity: float
    moved: float


def exact_sides(
    build: moments.Build,
    problem: Problem,
    steps: int,
    along: Callable[[np.ndarray], np.ndarray],
    learning_rate: float,
    **options: Any,
) -> Sides:
    """Returns both left sides from exact moments.

    Args:
        build, problem, steps, learning_rate, options: as of `moments.second_moments`.
        along: squared heterogeneities `[T]` -> the one that the bound needs.
    """
    found = moments.second_moments(build, problem, learning_rate, steps=steps, **options)
    found = {name: values[:steps] for name, values in found.items()}
    means = [float(found[name].mean()) for name in ("slope", "consensus")]
    moved = learning_rate**2 * float(found["local"].mean())
    return Sides(means, (0.0, 0.0), math.sqrt(along(found["spread"])), moved)


def compare(
    where: str,
    problem: Problem,
    measure: Callable[[float], Sides],
    step_size: Callable[..., float],
    bounds: Sequence[Callable[..., float]],
    hypotheses: Callable[[float], list[Condition]],
    learning_rate: float | None,
    case: str,
    **numbers: Any,
) -> tuple[Outcome, Outcome]:
    """Compares both left sides with their bounds. Arguments and errors are those of `runs.compare`,
    with bounds on the gradient and on the consensus distance.
    """
    known = instances.constants(problem)
    numbers |= {"gap": known.gap, "smoothness": known.smoothness, "noise": known.noise}
    numbers |= {"workers": problem.workers}
    varsigma = float(problem.constants.heterogeneity or 0.0)
    gamma = step_size(**numbers, heterogeneity=varsigma) if learning_rate is None else learning_rate
    need(where, hypotheses(gamma))
    found = measure(gamma)
    words = f"{problem.name}, {case}, gamma L = {gamma * known.smoothness:.3g}"
    slope, distance = (
        Outcome(
            mean,
            bound(**numbers, heterogeneity=found.heterogeneity, learning_rate=gamma),
            error,
            f"{words}, T = {numbers['steps']}",
            scale=scale,
        )
        for mean, error, bound, scale in zip(
            found.means, found.errors, bounds, (0.0, found.moved), strict=True
        )
    )
    return slope, distance


def check(
    problem: Problem,
    topology: Topology,
    *,
    steps: int,
    learning_rate: float | None = None,
    seeds: int = runs.SEEDS,
    seed: int = 0,
    method: Method = algorithms.decentralized_sgd,
) -> tuple[Outcome, Outcome]:
    """Checks the bounds on the gradient and on the consensus distance: against the exact moments on
    a quadratic, against runs on other problems.

    Args:
        problem: a problem with known constants.
        topology: W.
        steps: T.
        learning_rate: gamma; None: the recommended one.
        seeds, seed: number of runs, and their seed.
        method: (optimiser, topology) -> method; the default or a custom one.

    Returns:
        The outcome for the gradient, and the outcome for the consensus distance.

    Raises:
        ValueError: if the problem's constants are unknown, or a hypothesis fails.
    """

    def measure(gamma):
        if isinstance(problem.data, Quadratic):
            build = moments.with_step(method, topology)
            return exact_sides(build, problem, steps, np.mean, gamma)
        factory, options = runs.with_step(method, topology), {"seeds": seeds, "seed": seed}
        history = runs.histories(factory, problem, steps=steps, learning_rates=[gamma], **options)
        names = ("grad_sqnorm", "consensus")
        found = [runs.mean_and_error(history[name][0, :, :steps]) for name in names]
        means, errors = ([float(pair[i]) for pair in found] for i in range(2))
        return Sides(means, errors, problem.constants.heterogeneity or 0.0, 0.0)

    return compare(
        "decentralized_sgd",
        problem,
        measure,
        step_size,
        (bound, lambda gap, steps, **shared: consensus(**shared)),
        partial(hypotheses, problem, topology),
        learning_rate,
        topology.name,
        steps=steps,
        rho=topology.rho,
    )


def _check_random(draws: Draws, *, convex: bool) -> tuple[Outcome, Outcome]:
    # Runs take long to compile, so they use a single graph.
    topology = draws.choice(instances.graphs()) if convex else one_rho(4, 0.5)
    problem = (
        instances.quadratic(draws, topology.n, 2)
        if convex
        else instances.random_wells(draws, topology.n, 2)
    )
    L, rho = instances.constants(problem).smoothness, topology.rho
    limit = min(1.0, 0.99 * (1 - rho) / max(rho, 1e-12)) / L
    gamma = draws.choice((None, draws.real(0.01, 1.0) * limit))
    steps = draws.choice((1, 10, 300) if convex else (10, 100))
    return check(problem, topology, steps=steps, learning_rate=gamma, seed=draws.integer(0, 10**6))


@cache
def one_rho(workers: int, rho: float) -> Topology:
    """Returns W = rho I + (1 - rho) J, whose eigenvalues other than 1 are all rho."""
    return topologies.from_matrix(
        rho * np.eye(workers) + (1 - rho) / workers, f"one_rho({workers}, {rho:g})"
    )


def trial_exact(part: int, draws: Draws) -> list[Outcome]:
    """Checks the gradient (part 0) or the consensus distance (part 1) on a random quadratic and a
    random graph.
    """
    return [_check_random(draws, convex=True)[part]]


def trial_runs(draws: Draws) -> list[Outcome]:
    """Checks the gradient and the consensus distance on random non-convex wells and one graph."""
    return list(_check_random(draws, convex=False))


# --- Instances close to the bounds.

# Number of rounds after which the transient contributes little. All instances share one number,
# because another one would need another program.
LONG = 511
_LONGER = 2**13 - 1  # for instances whose transient contributes more


def balanced_problem(workers: int, epsilon: float, rho: float = 0.002) -> Problem:
    """Returns a problem with the curvatures 1 and epsilon - 1 and linear terms of opposite sign.
    The local gradients balance at the start, although f' is not 0 there.
    """
    sign = np.tile([1.0, -1.0], workers // 2)
    h = np.where(sign < 0, epsilon - 1, sign)
    # The gradients hardly depend on the disagreement along the signs, which is rho / (1 - rho).
    start = -rho / (1 - rho) / h.mean()
    return problems.quadratic(_first(h, 1.0), _first(sign), start=[start, 0.0])


def _first(values: np.ndarray, other: float = 0.0) -> np.ndarray:
    """Returns `[N, 2]`: `values` for the first of two parameters, and the same number for the
    second.
    """
    return np.stack([values, np.full_like(values, other)], axis=1)


def balanced_pulls() -> list[Outcome]:
    """Checks an instance on which the bound's term L^2 A^2 is the largest: the local gradients
    balance, so that the models do not move although f' is not 0.
    """
    return [
        check(balanced_problem(4, 0.015), one_rho(4, 0.002), steps=_LONGER, learning_rate=1.0)[0]
    ]


def noise_of_the_mean() -> list[Outcome]:
    """Checks an instance on which the bound's term gamma L sigma^2 / N is the largest: on |x|^2 / 2
    at gamma = 1 / L, only the noise of the last step remains.
    """
    problem = instances.unit_bowl(4, [0.1, 0.0], noise=1.0)
    return [check(problem, one_rho(4, 0.002), steps=_LONGER, learning_rate=1.0)[0]]


def away_from_the_minimum() -> list[Outcome]:
    """Checks an instance on which the bound's term 2 D / (gamma T) is the largest: from a distant
    start, the first step with gamma = 1 / L reaches the minimum.
    """
    problem = instances.unit_bowl(4, [1.0, 0.0])
    return [check(problem, one_rho(4, 0.002), steps=_LONGER, learning_rate=1.0)[0]]


def diverging_problem() -> Problem:
    """Returns a problem on which the disagreement amplifies itself: two workers of curvature -1
    diverge, and the others ensure that f has a minimum.
    """
    h, pull = np.array([-1.0, -1.0, *[1.0] * 8]), np.array([1.0, -1.0, *[0.0] * 8])
    return problems.quadratic(_first(h, 1.0), _first(pull), start=[1e-6, 0.0])


def lasting_disagreement() -> list[Outcome]:
    """Checks an instance on which the bound's term p / (1 - q) is the largest: the disagreement
    amplifies itself.
    """
    return [
        check(diverging_problem(), one_rho(10, 0.5), steps=LONG, learning_rate=gamma)[1]
        for gamma in (0.5, 0.1)
    ]


def random_disagreement() -> list[Outcome]:
    """Checks an instance on which the bound's term r / sqrt(1 - q^2) is the largest: noise alone,
    at a small step size.
    """
    problem = instances.unit_bowl(10, [1e-3, 0.0], noise=1.0)
    return [check(problem, one_rho(10, 0.5), steps=LONG, learning_rate=1e-3)[1]]


def bottom_of_a_well() -> list[Outcome]:
    """Checks a non-convex problem near a minimum, without noise: f is close to L |x|^2 / 2."""
    problem = instances.wells(4, 2, start=0.1)
    return [
        check(problem, one_rho(4, 0.5), steps=100, learning_rate=0.98 / instances.SMOOTHNESS)[0]
    ]


def top_of_a_hill() -> list[Outcome]:
    """Checks a non-convex problem near a hilltop, where the disagreement amplifies itself."""
    problem = instances.wells(4, 2, start=np.pi, heterogeneity=0.1)
    return [
        check(problem, one_rho(4, 0.5), steps=200, learning_rate=gamma)[1] for gamma in (0.01, 0.05)
    ]


_STEP = "W symmetric; gamma <= 1/L; gamma rho < (1-rho)/L"
STATEMENTS = [
    Statement(
        "DSGD, quadratics, exact",
        "Theorem 5.2.11",
        _STEP,
        partial(trial_exact, 0),
        (balanced_pulls, noise_of_the_mean, away_from_the_minimum),
    ),
    Statement(
        "DSGD, consensus, exact",
        "after Lemma 5.2.7",
        _STEP,
        partial(trial_exact, 1),
        (lasting_disagreement, random_disagreement),
    ),
    Statement(
        "DSGD, non-convex", "Theorem 5.2.11", _STEP, trial_runs, (bottom_of_a_well, top_of_a_hill)
    ),
]
