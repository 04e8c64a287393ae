r"""Decentralized SGD, Theorem 5.2.11 with its constants.

Consensus. With $Y_t = X_t (I - J)$, $J = 11^T/N$, a round is $Y_{t+1} = (Y_t - \gamma G_t (I - J))(W - J)$, and $|W - J|_2 = \rho$ for a
symmetric W. The noise of $G_t$ is independent; $|F(I - J)|_F^2 \le 2L^2 |Y|_F^2 + 2N\varsigma^2$ (5.5). By Young's inequality with
$(1 - \rho)/\rho$,

$$ E|Y_{t+1}|_F^2 \le \rho E|Y_t|_F^2 + \frac{\rho^2 \gamma^2}{1 - \rho} (2L^2 E|Y_t|_F^2 + 2N\varsigma^2) + \rho^2 \gamma^2 N \sigma^2, $$

where $2 L^2 \rho^2 \gamma^2 \le (1 - \rho)^2 / 2$ if $\gamma \rho \le (1 - \rho) / 2L$. Summed over t from $Y_1 = 0$,

$$ \frac{1}{NT} \sum_t E|Y_t|_F^2 \le C
   = \frac{4 \rho^2 \gamma^2 \varsigma^2}{(1 - \rho)^2} + \frac{2 \rho^2 \gamma^2 \sigma^2}{1 - \rho}. $$

The mean of the models makes a step along the mean of the gradients, so that with Lemma 5.2.9

$$ \frac1T \sum_t E|f'(\bar x_t)|^2 \le \frac{2D}{\gamma T} + \frac{\gamma L \sigma^2}{N} + L^2 C, \qquad \gamma \le \frac1L. $$

The heterogeneity enters by its sum over t alone: $\varsigma^2$ may be the average along the path of $\bar x_t$, which is what there is
where Hessians differ.
"""

from __future__ import annotations

import math

import numpy as np

import algorithms
from dsgd.base import Problem
from dsgd.graphs.topology import Topology
from dsgd.problems.quadratic import Quadratic
from theory_checks.machinery import instances, moments, ranges, runs
from theory_checks.machinery.rates import Rate
from theory_checks.machinery.statement import Condition, Draws, Outcome, Statement, need


def hypotheses(problem: Problem, topology: Topology, learning_rate: float) -> list[Condition]:
    """One symmetric W, gamma <= 1 / L, gamma rho <= (1 - rho) / (2 L). Models start equal; W is doubly stochastic when symmetric."""
    L, rho = instances.known(problem).smoothness, topology.rho
    given = f"gamma = {learning_rate:.6g}, rho = {rho:.6g}, (1 - rho) / (2 L) = {(1 - rho) / (2 * L):.6g}"
    average = isinstance(problem.data, Quadratic)  # along the path: exact moments have it
    return [
        *([] if average else [instances.same_heterogeneity(problem)]),
        Condition("as many workers as the problem has", topology.n == problem.workers, f"{topology.name} for {problem.workers} workers"),
        Condition("one symmetric W", topology.symmetric and topology.period == 1, f"{topology.name} is not symmetric, or a schedule"),
        instances.step_below("1 / L", 1 / L, learning_rate),
        Condition("gamma rho <= (1 - rho) / (2 L)", learning_rate * rho <= (1 - rho) / (2 * L) * (1 + 1e-12), given),
    ]


@ranges.held("decentralized_sgd.step_size")
def step_size(*, gap: float, smoothness: float, noise: float, heterogeneity: float, steps: int, workers: int, rho: float) -> float:
    r"""$\frac1\gamma = L \frac{1 + \rho}{1 - \rho} + \sigma \sqrt{\frac{LT}{2ND}} + \big(\frac{KT}{D}\big)^{1/3}$, K as in `rate`."""
    K = _third(smoothness, noise, heterogeneity, rho)
    noisy = noise * math.sqrt(smoothness * steps / (2 * workers * gap))
    return 1 / (smoothness * (1 + rho) / (1 - rho) + noisy + (K * steps / gap) ** (1 / 3))


@ranges.held("bounds.consensus")
def consensus(*, smoothness: float, noise: float, heterogeneity: float, learning_rate: float, rho: float) -> float:
    r"""$C = \frac{4 \rho^2 \gamma^2 \varsigma^2}{(1 - \rho)^2} + \frac{2 \rho^2 \gamma^2 \sigma^2}{1 - \rho}$, on
    $\frac{1}{NT} \sum_t E|X_t - \bar X_t|_F^2$.

    Args:
        smoothness: L, of all f_n.
        noise: sigma, of each worker.
        heterogeneity: varsigma.
        learning_rate: gamma, with gamma rho <= (1 - rho) / (2 L).
        rho: second largest |eigenvalue| of W.

    Source: as derived above. Liu and Zhang, Lemma 5.2.7: $\frac{8 \rho^2 \gamma^2 (\varsigma^2 + \sigma^2)}{(1 - \rho)^2}$, and gradients.
    """
    instances.need_step("bounds.consensus", learning_rate, "(1 - rho) / (2 L rho)", (1 - rho) / (2 * smoothness * max(rho, 1e-12)))
    return learning_rate**2 * _apart(noise, heterogeneity, rho)


def _apart(noise: float, heterogeneity: float, rho: float) -> float:
    """C / gamma^2."""
    moved = rho**2
    return 4 * moved * heterogeneity**2 / (1 - rho) ** 2 + 2 * moved * noise**2 / (1 - rho)


@ranges.held("bounds.decentralized_sgd")
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
    r"""$\frac{2D}{\gamma T} + \frac{\gamma L \sigma^2}{N} + L^2 C$, on $\frac1T \sum_t E|f'(\bar x_t)|^2$, C of `consensus`.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L, of all f_n.
        noise: sigma, of each worker.
        heterogeneity: varsigma, everywhere or on average along the path.
        steps: T.
        workers: N.
        rho: second largest |eigenvalue| of W.
        learning_rate: gamma <= 1 / L, with gamma rho <= (1 - rho) / (2 L).

    Source: Liu and Zhang, Theorem 5.2.11.
    """
    limit = min(1 / smoothness, (1 - rho) / (2 * smoothness * max(rho, 1e-12)))
    instances.need_step("bounds.decentralized_sgd", learning_rate, "min(1 / L, (1 - rho) / (2 L rho))", limit)
    apart = learning_rate**2 * _apart(noise, heterogeneity, rho)
    return 2 * gap / (learning_rate * steps) + learning_rate * smoothness * noise**2 / workers + smoothness**2 * apart


@ranges.held("decentralized_sgd.rate")
def rate(*, gap: float, smoothness: float, noise: float, heterogeneity: float, workers: int, rho: float) -> Rate:
    r"""$\frac{2LD(1 + \rho)}{(1 - \rho)T} + 2\sigma\sqrt{\frac{2LD}{NT}} + 3 K^{1/3} \big(\frac DT\big)^{2/3}$ at the recommended step
    size, $K = \frac{4L^2\rho^2\varsigma^2}{(1 - \rho)^2} + \frac{2L^2\rho^2\sigma^2}{1 - \rho}$."""
    K = _third(smoothness, noise, heterogeneity, rho)
    root = 2 * noise * math.sqrt(2 * smoothness * gap / workers)
    return Rate(2 * smoothness * gap * (1 + rho) / (1 - rho), root, 3 * K ** (1 / 3) * gap ** (2 / 3))


def _third(smoothness: float, noise: float, heterogeneity: float, rho: float) -> float:
    """K = L^2 C / gamma^2."""
    return smoothness**2 * _apart(noise, heterogeneity, rho)


def check(
    problem: Problem,
    topology: Topology,
    *,
    steps: int,
    learning_rate: float | None = None,
    seeds: int = runs.SEEDS,
    seed: int = 0,
    method=algorithms.decentralized_sgd,
) -> tuple[Outcome, Outcome]:
    """Holds the bounds of the gradient and of the consensus to the exact moments on a quadratic, to runs on another problem.

    Args:
        problem: that knows its constants.
        topology: W.
        steps: T.
        learning_rate: gamma; None: the recommended one.
        seeds, seed: of runs.
        method: (optimiser, topology) -> method, the project's or one's own.

    Raises:
        ValueError: the problem does not know its constants, or a hypothesis fails.
    """
    known, rho = instances.known(problem), topology.rho
    varsigma = known.heterogeneity if known.heterogeneity is not None else float(problem.constants.heterogeneity or 0.0)
    numbers = {
        "gap": known.gap,
        "smoothness": known.smoothness,
        "noise": known.noise,
        "steps": steps,
        "workers": problem.workers,
        "rho": rho,
    }
    gamma = step_size(**numbers, heterogeneity=varsigma) if learning_rate is None else learning_rate
    need("decentralized_sgd", hypotheses(problem, topology, gamma))
    if isinstance(problem.data, Quadratic):
        found = moments.second_moments(moments.with_step(method, topology), problem, gamma, steps=steps)
        slope, apart, spread, local = (float(found[name][:steps].mean()) for name in ("slope", "consensus", "spread", "local"))
        varsigma, errors, moved = math.sqrt(spread), (0.0, 0.0), gamma**2 * local
    else:
        history = runs.histories(runs.with_step(method, topology), problem, steps=steps, learning_rates=[gamma], seeds=seeds, seed=seed)
        moved = 0.0
        (slope, apart), errors = np.transpose([runs.mean_and_error(history[name][0, :, :steps]) for name in ("grad_sqnorm", "consensus")])
    case = f"{problem.name}, {topology.name}, gamma L = {gamma * known.smoothness:.3g}, T = {steps}"
    right = bound(**numbers, heterogeneity=varsigma, learning_rate=gamma)
    C = consensus(smoothness=known.smoothness, noise=known.noise, heterogeneity=varsigma, learning_rate=gamma, rho=rho)
    return Outcome(float(slope), right, float(errors[0]), case), Outcome(float(apart), C, float(errors[1]), case, scale=moved)


def _drawn(draws: Draws, method, *, convex: bool) -> tuple[Outcome, Outcome]:
    topology = draws.choice(instances.graphs()[:: 1 if convex else 3])  # runs take longer to compile
    problem = instances.quadratic(draws, topology.n, 2) if convex else instances.regression(draws, topology.n, 2)
    L, rho = instances.known(problem).smoothness, topology.rho
    limit = min(1 / L, (1 - rho) / (2 * L * max(rho, 1e-12)))
    gamma = draws.choice((None, draws.real(0.01, 1.0) * limit))
    steps = draws.choice((1, 10, 300) if convex else (10, 100))
    return check(problem, topology, steps=steps, learning_rate=gamma, seed=draws.integer(0, 10**6), method=method)


def trial_exact(draws: Draws, method=algorithms.decentralized_sgd) -> list[Outcome]:
    """One quadratic on one graph: the gradient."""
    return [_drawn(draws, method, convex=True)[0]]


def trial_consensus(draws: Draws, method=algorithms.decentralized_sgd) -> list[Outcome]:
    """One quadratic on one graph: the consensus distance."""
    return [_drawn(draws, method, convex=True)[1]]


def trial_runs(draws: Draws, method=algorithms.decentralized_sgd) -> list[Outcome]:
    """One robust regression on one graph."""
    return [_drawn(draws, method, convex=False)[0]]


_STEP = "W symmetric; gamma <= 1/L; gamma rho <= (1-rho)/(2L)"
STATEMENTS = [
    Statement("DSGD, quadratics, exact", "Theorem 5.2.11", _STEP, trial_exact),
    Statement("DSGD, consensus, exact", "after Lemma 5.2.7", _STEP, trial_consensus),
    Statement("DSGD, non-convex", "Theorem 5.2.11", _STEP, trial_runs),
]
