r"""SGD with compressed gradients, (3.7) with its constants, for absolute and relative compression
errors.

The step is along $g_t$ with $E g_t = f'(x_t)$ and $E|g_t|^2 \le (1 + r) |f'(x_t)|^2 + c^2$.
Therefore, as for SGD, with $L' = L(1 + r)$,

$$ \frac1T \sum_t E|f'(x_t)|^2 \le \frac{1}{2 - \gamma L'} \Big( \frac{2D}{\gamma T} + \gamma L c^2
\Big), \qquad \gamma \le \frac{1}{L'}.
$$

Absolute errors, $E|Q(y) - y|^2 \le \sigma'^2$ for every y: $r = 0$. The errors of workers and
servers are independent, and all except that of the servers are divided by N:

$$ c^2 = \frac{\sigma^2}{N} + \Big(1 + \frac1N\Big) \sigma'^2 \quad (3.4), \qquad c^2 =
\frac{\sigma^2 + \sigma'^2}{N} \quad (3.5). $$

Relative errors, $E|Q(y) - y|^2 \le \omega |y|^2$. Through servers,
$E|g|^2 \le (1 + \omega) E|\frac1N \sum Q(g_n)|^2$, and the sum's variance is at most
$\frac{1}{N^2} \sum (\sigma^2 + \omega E|g_n|^2)$, where
$\frac1N \sum |f_n'|^2 \le |f'|^2 + \varsigma^2$:

$$ r = \omega + \frac{\omega(1 + \omega)}{N}, \qquad c^2 = \frac{(1 + \omega)((1 + \omega)\sigma^2 +
\omega\varsigma^2)}{N}. $$

Around the ring, $S_k = Q(S_{k-1} + g_k)$ has the variance
$V_k \le (1 + \omega)(V_{k-1} + \sigma_k^2) + \omega |\sum_{j \le k} f_j'|^2$ for each part of the
vector separately, because each part starts at a different worker. Summed over all parts,
$|\sum_{j \le k} f_j'|^2$ is at most $k N (|f'|^2 + \varsigma^2)$. In the worst case all noise of a
worker is in the part that starts at it, which has the largest weight, $(1 + \omega)^N$. With
$K = \sum_{k=1}^N k (1 + \omega)^{N - k}$, $V_N / N^2$ gives

$$ r = \frac{\omega K}{N}, \qquad c^2 = \frac{\omega K \varsigma^2 + (1 + \omega)^N \sigma^2}{N}. $$
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import numpy as np

import algorithms
from dsgd import communication, compressors
from dsgd.base import Compressor, Problem
from theory_checks.machinery import instances, moments, ranges, runs
from theory_checks.machinery.rates import Rate, Terms, step_size_and_rate
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement

Via = Literal["server", "ring"]


class Effect(NamedTuple):
    """Effect of compression on a gradient: E|g|^2 <= (1 + inflation) |f'|^2 + variance."""

    inflation: float
    variance: float


@ranges.validate("compressed_sgd.effect")
def effect(
    *,
    noise: float,
    workers: int,
    compression: float = 0.0,
    omega: float = 0.0,
    heterogeneity: float = 0.0,
    via: Via = "server",
) -> Effect:
    """Returns r and c^2 of absolute errors (`compression` = sigma') or of relative errors
    (`omega`).

    Raises:
        ValueError: if both kinds of errors are given, or `via` is neither "server" nor "ring".
    """
    if compression and omega:
        raise ValueError(
            f"compressed_sgd: compression = {compression} and omega = {omega}: need one of the "
            "two, absolute or relative errors"
        )
    if via not in ("server", "ring"):
        raise ValueError(f"compressed_sgd: via = {via!r}: need 'server' or 'ring'")
    N, w = workers, omega
    if via == "server":
        inflation = w + w * (1 + w) / N
        relative = (1 + w) * ((1 + w) * noise**2 + w * heterogeneity**2) / N
        return Effect(inflation, relative + (1 + 1 / N) * compression**2)
    K = sum(k * (1 + w) ** (N - k) for k in range(1, N + 1))
    return Effect(
        w * K / N, w * K * heterogeneity**2 / N + (1 + w) ** N * noise**2 / N + compression**2 / N
    )


def hypotheses(
    problem: Problem, compressor: Compressor | None, learning_rate: float, via: Via = "server"
) -> list[Condition]:
    """Returns the conditions: an unbiased compressor with known omega (None: errors are absolute),
    the same varsigma everywhere, gamma <= 1 / L'.
    """
    constants = instances.constants(problem)
    if compressor is None:
        return [instances.step_below("1 / L", 1 / constants.smoothness, learning_rate)]
    omega = omega_of(compressor, problem)
    stated = Condition(
        "an unbiased compressor that states an omega", omega is not None, compressor.name
    )
    inflation = effect(noise=0.0, workers=problem.workers, omega=omega or 0.0, via=via).inflation
    limit = 1 / (constants.smoothness * (1 + inflation))
    return [
        stated,
        instances.same_heterogeneity(problem),
        instances.step_below("1 / (L (1 + r))", limit, learning_rate),
    ]


def messages(problem: Problem, via: Via = "server") -> int:
    """Returns the number of messages with elements that are compressed per round: each of the N
    workers compresses one message per part, and each server one for its own part.
    """
    N, d = problem.workers, np.size(problem.init(jax.random.key(0)))
    parts = -(-d // -(-d // N))  # If d < N, some servers have only padding.
    return N * parts + (parts if via == "server" else 0)


def omega_of(compressor: Compressor, problem: Problem) -> float | None:
    """Returns the largest omega over the parts into which a model of this problem is split; None if
    a part has no omega.
    """
    N, omega = problem.workers, compressor.omega
    if omega is None:
        return None
    shape = jax.eval_shape(problem.init, jax.random.key(0))
    parts = jax.eval_shape(
        lambda x: communication.shards(jax.tree.map(lambda leaf: leaf[None], x), N, compressor),
        shape,
    )
    values = [omega(leaf.shape[-1]) for leaf in jax.tree.leaves(parts)]
    return None if None in values else max(values)


def terms(*, gap: float, smoothness: float, effect: Effect) -> Terms:
    r"""Returns the terms of the bound: $a = 2D$, $s = L'$, $b = L c^2$, $w = 0$. The step size has
    $\frac1\gamma = L' + c \sqrt{\frac{LT}{2D}}$, and the rate is $\frac{2L'D}{T} + c
    \sqrt{\frac{2LD}{T}}$.
    """
    inverse = smoothness * (1 + effect.inflation)
    return Terms(2 * gap, inverse, smoothness * effect.variance, share=0)


step_size: Callable[..., float]
rate: Callable[..., Rate]
step_size, rate = step_size_and_rate("compressed_sgd", terms)


@ranges.validate("bounds.compressed_sgd")
def bound(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    steps: int,
    workers: int,
    learning_rate: float,
    compression: float = 0.0,
    omega: float = 0.0,
    heterogeneity: float = 0.0,
    via: Via = "server",
) -> float:
    r"""Returns $\frac{1}{2 - \gamma L'} \big(\frac{2D}{\gamma T} + \gamma L c^2\big)$, the bound on
    $\frac1T \sum_t E|f'(x_t)|^2$.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        noise: sigma, of each worker.
        steps: T.
        workers: N.
        learning_rate: gamma <= 1 / L'.
        compression: sigma', of absolute errors; 0 if errors are relative.
        omega: of relative errors; 0 if errors are absolute.
        heterogeneity: varsigma; it matters only with relative errors.
        via: "server" (3.4) or "ring" (3.5).

    Source: Liu and Zhang, (3.7) and (3.8). Departures: (3.5) is printed without 1/N; relative
    errors are derived in the module's docstring.
    """
    errors = effect(
        noise=noise,
        workers=workers,
        compression=compression,
        omega=omega,
        heterogeneity=heterogeneity,
        via=via,
    )
    of = terms(gap=gap, smoothness=smoothness, effect=errors)
    instances.require_step(
        "bounds.compressed_sgd", learning_rate, "1 / (L (1 + r))", 1 / of.inverse
    )
    return of.bound_of_sgd(learning_rate, steps)


def check(
    problem: Problem,
    compressor: Compressor | None = None,
    *,
    steps: int,
    compression: float = 0.0,
    via: Via = "server",
    learning_rate: float | None = None,
    seeds: int = runs.SEEDS,
    seed: int = 0,
    method: Method = algorithms.compressed_sgd,
) -> Outcome:
    """Checks the bound: against runs if a compressor is given, otherwise against the exact moments
    on a quadratic with additive compression errors.

    Args:
        problem: a problem with known constants.
        compressor: an unbiased compressor; None: one that adds noise of mean square `compression`^2
            to every vector.
        steps: T.
        compression: sigma'.
        via: "server" or "ring".
        learning_rate: gamma; None: the recommended one.
        seeds, seed: number of runs, and their seed.
        method: (optimiser, compressor, via) -> method; the default or a custom one.

    Raises:
        ValueError: if the problem's constants are unknown, or a hypothesis fails.
    """
    constants, N = instances.constants(problem), problem.workers
    errors = {"noise": constants.noise, "workers": N, "compression": compression, "via": via}
    if compressor is not None:
        errors |= {
            "omega": omega_of(compressor, problem) or 0.0,
            "heterogeneity": constants.heterogeneity or 0.0,
        }

    def measure(gamma):
        if compressor is not None:
            factory = runs.with_step(method, compressor, via == "ring")
            return runs.average_gradient(factory, problem, gamma, steps, seeds=seeds, seed=seed)
        build = moments.with_compressor(method, via == "ring")
        noise = {"compression": compression, "messages": messages(problem, via)}
        return runs.exact_gradient(build, problem, gamma, steps, **noise)

    how = f"sigma' = {compression:.3g}" if compressor is None else compressor.name
    return runs.compare(
        "compressed_sgd",
        problem,
        measure,
        bound,
        lambda gap, smoothness, steps, **errors: step_size(
            gap=gap, smoothness=smoothness, steps=steps, effect=effect(**errors)
        ),
        lambda gamma: hypotheses(problem, compressor, gamma, via),
        learning_rate,
        case=f"{how}, {via}, ",
        steps=steps,
        **errors,
    )


def trial_exact(draws: Draws, via: Via) -> list[Outcome]:
    """Checks the exact moments on a random quadratic, with additive compression errors."""
    problem = instances.quadratic(draws, 4, 4)
    steps, compression = draws.choice((1, 10, 300)), draws.real(0.0, 3.0)
    gamma = draws.choice((None, draws.real(0.01, 1.0) / instances.constants(problem).smoothness))
    return [check(problem, steps=steps, compression=compression, via=via, learning_rate=gamma)]


_TIGHT = compressors.random_k(0.5)
UNBIASED = {
    "server": (compressors.random_quantization(2), _TIGHT),
    "ring": (compressors.qsgd(2), _TIGHT),
}


def trial_runs(draws: Draws, via: Via) -> list[Outcome]:
    """Checks runs with one compressor: on random non-convex wells, or on a bowl for random-k, whose
    bound is tight.
    """
    compressor = draws.choice(UNBIASED[via])
    problem = (
        _bowl(10 ** draws.real(-2, 1), draws.real(0, 3), draws.real(0, 3))
        if compressor is _TIGHT
        else instances.random_wells(draws, 2, 8)
    )
    steps, share, seed = (
        draws.choice((10, 100)),
        draws.choice((None, draws.real(0.01, 1.0))),
        draws.integer(0, 10**6),
    )
    return [_relative(problem, compressor, via, steps, share, seed)]


def _bowl(
    away: float, noise: float, heterogeneity: float, *, workers: int = 2, dimension: int = 64
) -> Problem:
    """Returns a bowl of so many elements that random errors average out. Its noise is never 0, so
    that all instances share a program.
    """
    return instances.uneven(
        instances.bowl(
            workers, dimension, distance=away / 16, noise=noise + 1e-9, heterogeneity=heterogeneity
        )
    )


def _relative(
    problem: Problem, compressor: Compressor, via: Via, steps: int, share: float | None, seed: int
) -> Outcome:
    """Checks a run at a fraction of the largest step size, or at the recommended one."""
    omega = omega_of(compressor, problem) or 0.0
    inflation = effect(noise=0.0, workers=problem.workers, omega=omega, via=via).inflation
    gamma = (
        None
        if share is None
        else share / (instances.constants(problem).smoothness * (1 + inflation))
    )
    return check(problem, compressor, steps=steps, via=via, learning_rate=gamma, seed=seed)


_NEARLY_0 = 1e-9  # a compression error of exactly 0 would need another program


def bowls(via: Via) -> list[Outcome]:
    """Checks quadratics with absolute errors on which the start, the noise or the errors act alone,
    and one with all of them. The bound is attained as the influence of the start vanishes.
    """
    cases = (
        (1.0, 0.0, _NEARLY_0, 0.05),
        (0.0, 2.0, _NEARLY_0, 1.0),
        (0.0, 0.0, 1.0, 1.0),
        (10.0, 2.0, 1.0, 0.3),
    )
    return [
        check(
            instances.bowl(4, 4, distance=away + 1e-3, noise=noise),
            steps=500,
            compression=compression,
            via=via,
            learning_rate=share / instances.SMOOTHNESS,
        )
        for away, noise, compression, share in cases
    ]


def wide_bowls(via: Via) -> list[Outcome]:
    """Checks quadratics with the relative errors of random-k, which are exactly as large as its
    omega; the start, the noise or the heterogeneity acts alone.
    """
    # On a ring the inflation is not attained; with small steps it matters less.
    by_noise = (0.1, 1.0, 0.0, 1.0, 400) if via == "server" else (0.1, 1.0, 0.0, 0.2, 600)
    cases = ((1.0, 0.0, 0.0, 0.1, 100), by_noise, (0.1, 0.0, 1.0, 1.0, 400))
    return [
        _relative(_bowl(a, s, z), _TIGHT, via, steps, share, 0) for a, s, z, share, steps in cases
    ]


_FOUR = {"workers": 4, "dimension": 16}  # few elements suffice, as the bound is not attained


def _check_ring_of_four(
    away: float, noise: float, heterogeneity: float, steps: int, seed: int
) -> Outcome:
    """Checks a run at the largest step size. At smaller ones the start alone attains the bound and
    hides how loose r and c^2 are.
    """
    return _relative(_bowl(away, noise, heterogeneity, **_FOUR), _TIGHT, "ring", steps, 1.0, seed)


def trial_of_four(draws: Draws) -> list[Outcome]:
    """Checks random-k on a ring of four workers."""
    away, noise, heterogeneity = 10 ** draws.real(-2, 1), draws.real(0, 3), draws.real(0, 3)
    return [
        _check_ring_of_four(
            away, noise, heterogeneity, draws.choice((10, 100)), draws.integer(0, 10**6)
        )
    ]


def ring_of_four() -> list[Outcome]:
    """Checks a ring of four workers with the start, the noise or the heterogeneity alone."""
    return [
        _check_ring_of_four(*kinds, 100, 0)
        for kinds in ((1.0, 0.0, 0.0), (0.1, 1.0, 0.0), (0.1, 0.0, 1.0))
    ]


def _statement(kind: str, via: Via, reference: str, hypotheses: str, trial, extreme) -> Statement:
    return Statement(
        f"CSGD, {via}, {kind}",
        reference,
        hypotheses,
        partial(trial, via=via),
        (partial(extreme, via),),
    )


_ABSOLUTE, _RELATIVE = "Q unbiased; gamma <= 1/L", "Q unbiased, omega; gamma <= 1/L'"
STATEMENTS = [
    _statement("absolute, exact", "server", "(3.4), (3.7)", _ABSOLUTE, trial_exact, bowls),
    _statement("absolute, exact", "ring", "(3.5), (3.7)", _ABSOLUTE, trial_exact, bowls),
    _statement("relative", "server", "derived", _RELATIVE, trial_runs, wide_bowls),
    _statement("relative", "ring", "derived", _RELATIVE, trial_runs, wide_bowls),
    Statement(
        "CSGD, ring of four, relative",
        "derived",
        "Q unbiased, omega; gamma = 1/L'",
        trial_of_four,
        (ring_of_four,),
    ),
]
