r"""DropCompute, Theorem 4.1 with its constants: SGD whose batch sizes are random.

With $\theta_{i+1} = \theta_i - \eta \sum_{s \le b_i} g_i^s$, $g_i^s = f'(\theta_i) + \xi_i^s$,
$E|\xi|^2 \le \sigma^2$, $b_i \le b$, and $\eta = \gamma / (NM)$ for the method's $\gamma$ and its
correction "none", smoothness gives

$$ E f(\theta_{i+1}) - E f(\theta_i) \le -\eta E\, b_i |f'(\theta_i)|^2
   - \eta E \Big\langle f'(\theta_i), \sum_{s \le b_i} \xi_i^s \Big\rangle
   + \frac{\eta^2 L}{2} E \Big| b_i f'(\theta_i) + \sum_{s \le b_i} \xi_i^s \Big|^2. $$

The inner product is 0 in both cases: of batches that are independent of the round's gradients, and
of stopping times, which know only those before (Lemma D.1). Likewise
$E|\sum \xi|^2 \le \sigma^2 E b_i$ (Lemma D.2). Let $h = \eta L b / 2 < 1$,
$D = f(\theta_1) - f^\star$, K the samples in all, $X^2 = E \sum_i b_i |f'(\theta_i)|^2 / E K$,
$G = D / (\eta E K)$, $B = \eta L \sigma^2 / 2$.

- Independent: $E b_i \langle f', \sum \xi \rangle = 0$, too, and $b_i^2 \le b\, b_i$, so that
  $X^2 \le (G + B) / (1 - h)$.
- Stopping times: it is not 0, since $b_i$ knows $\xi$; by Cauchy and Schwarz
  $\eta L E \sum_i b_i \langle f', \sum \xi \rangle \le \eta L \sqrt b\, \sigma X E K = 2 \sqrt{hB}\, X E K$, so that $(1 - h) X^2 \le G + B + 2 \sqrt{hB} X$:
  $$ X \le \frac{\sqrt{hB + (1 - h)(G + B)} + \sqrt{hB}}{1 - h}. $$
  With $|a + c|^2 \le 2|a|^2 + 2|c|^2$ instead, as in the paper, it is
  $X^2 \le (G + 2B) / (1 - 2h)$, which is never less.

What K is. After a fixed number of rounds E K is its mean, and $X^2$ a quotient of two expectations:
that of $|f'(\bar\theta)|^2$ itself is another number, which the right side does not bound (see
`dropcompute_misprints`). The paper has a fixed K: rounds go on until so much is computed, of the
last one only what is missing. Whether round i is begun is then known before it, sums end at a
stopping time, all of the above holds, and $X^2 = E|f'(\bar\theta)|^2$. Where the last round is
computed to its end, $E|f'(\bar\theta)|^2$ is at most the same with K + b for K in the noise's term.

Workers have the same data: else who computes more would count more.

With correction="stochastic" it is another theorem, see `dropcompute_stochastic`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import algorithms
from dsgd import clusters
from dsgd.base import Problem
from theory_checks.machinery import batch_sizes, instances, ranges, runs
from theory_checks.machinery.batch_sizes import Pairs, Sums
from theory_checks.machinery.rates import Rate
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement, need
from theory_checks.statements import sgd

N, M = 2, 3


def hypotheses(problem: Problem, batch_size: int, learning_rate: float) -> list[Condition]:
    """eta < 2 / (L b), and workers that have the same data."""
    return [alike(problem), _short(instances.known(problem).smoothness, batch_size, learning_rate)]


def _short(smoothness: float, batch_size: int, learning_rate: float) -> Condition:
    return instances.step_below(
        "2 / (L b)", 2 / (smoothness * batch_size), learning_rate, strictly=True, symbol="eta"
    )


def alike(problem: Problem) -> Condition:
    """That workers do not differ."""
    of = instances.known(problem)
    # of rounding
    equal = of.heterogeneity is not None and of.heterogeneity <= 1e-9 * math.sqrt(
        of.smoothness * of.gap
    )
    return Condition("workers with the same data", equal, f"{problem.name} has workers that differ")


@ranges.held("dropcompute.step_size")
def step_size(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    total: float,
    batch_size: int,
    stopping: bool = False,
) -> float:
    r"""$\frac1\eta = Lb + \sigma \sqrt{\frac{LK}{2D}}$; of stopping times
    $2Lb + \sigma \sqrt{\frac{LK}{D}}$.
    """
    both = 2 if stopping else 1
    return 1 / (
        both * smoothness * batch_size + noise * math.sqrt(both * smoothness * total / (2 * gap))
    )


@ranges.held("bounds.dropcompute")
def bound(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    total: float,
    batch_size: int,
    learning_rate: float,
    stopping: bool = False,
) -> float:
    r"""$\frac{1}{1 - h} (G + B)$, $G = \frac{D}{\eta K}$, $B = \frac{\eta L \sigma^2}{2}$,
    $h = \frac{\eta L b}{2}$, on $\frac{1}{E K} E \sum_i b_i |f'(\theta_i)|^2$; of stopping times
    $\big(\sqrt{hB + (1 - h)(G + B)} + \sqrt{hB}\big)^2 / (1 - h)^2$.

    Args:
        gap: D = f(theta_1) - f*.
        smoothness: L.
        noise: sigma, of one sample's gradient; of a micro-batch, where these are what is counted.
        total: K, all that is computed; its expectation.
        batch_size: b, the largest that a round computes.
        learning_rate: eta < 2 / (L b), of the sum of gradients: gamma / (N M) of
            `drop_compute(minibatch_sgd(optax.sgd(gamma)), tau, M)`.
        stopping: whether batches may depend on the gradients before, as stopping times do; else
            they are independent of them.

    Source: Giladi et al., "DropCompute", Theorem 4.1. Departures: the constants; see
    `theory_checks.dropcompute`.
    """
    need("bounds.dropcompute", [_short(smoothness, batch_size, learning_rate)])
    far, noisy, half = (
        gap / (learning_rate * total),
        learning_rate * smoothness * noise**2 / 2,
        learning_rate * smoothness * batch_size / 2,
    )
    if not stopping:
        return (far + noisy) / (1 - half)
    return (
        (math.sqrt(half * noisy + (1 - half) * (far + noisy)) + math.sqrt(half * noisy))
        / (1 - half)
    ) ** 2


@ranges.held("dropcompute.rate")
def rate(
    *, gap: float, smoothness: float, noise: float, batch_size: int, stopping: bool = False
) -> Rate:
    r"""$\frac{2LbD}{K} + \sigma \sqrt{\frac{2LD}{K}}$, as a function of K, at the recommended step
    size; of stopping times $\frac{4LbD}{K} + 2\sigma \sqrt{\frac{LD}{K}}$."""
    both = 2 if stopping else 1
    return Rate(
        both * 2 * smoothness * batch_size * gap, noise * math.sqrt(both * 2 * smoothness * gap)
    )


def sigma_of(problem: Problem) -> dict[str, Any]:
    """What the bound needs of a problem."""
    of = instances.known(problem)
    return {"gap": of.gap, "smoothness": of.smoothness, "noise": of.noise}


def described(
    problem: Problem, stop: str, threshold: float, sums: Sums, learning_rate: float
) -> str:
    """The instance in words."""
    share = learning_rate * instances.known(problem).smoothness * sums.largest
    return f"{problem.name}, {stop}, tau = {threshold:.4g}, eta L b = {share:.3g}, b = {sums.largest}, K = {sums.total:.6g}"


def check(
    problem: Problem,
    seconds: np.ndarray,
    threshold: float,
    *,
    stop: str = "preempt",
    share: float,
    method: Method = algorithms.drop_compute,
) -> Outcome:
    """Holds the bound to the exact moments, given the times: whatever these are, batches are
    independent of the gradients.

    Args:
        problem: a quadratic that knows its constants, of workers that are alike; its noise is that
            of a micro-batch.
        seconds: of each micro-batch, `[T, N, M]`.
        threshold: tau.
        stop: of the method.
        share: eta L b, below 2.
        method: as `algorithms.drop_compute`, or one's own.

    Raises:
        ValueError: a hypothesis fails, or nobody computes anything.
    """
    numbers, batch = sigma_of(problem), largest(seconds, threshold, stop)
    eta = share / (numbers["smoothness"] * batch)
    need("dropcompute", hypotheses(problem, batch, eta))
    sums = batch_sizes.conditional(
        method, problem, seconds, threshold, stop, eta * seconds[0].size
    ).sums
    right = bound(**numbers, total=sums.total, batch_size=batch, learning_rate=eta)
    return Outcome(
        sums.slope / sums.total, right, case=described(problem, stop, threshold, sums, eta)
    )


def largest(seconds: np.ndarray, threshold: float, stop: str) -> int:
    """b, of these times.

    Raises:
        ValueError: nobody computes anything.
    """
    found = int(batch_sizes.counts(seconds, threshold, stop).sum(axis=1).max())
    if not found:
        raise ValueError(
            f"dropcompute: tau = {threshold:.6g} drops all micro-batches: need one that somebody "
            "computes in time"
        )
    return found


def check_runs(
    problem: Problem,
    cluster: clusters.Cluster,
    threshold: float,
    *,
    steps: int,
    share: float,
    stop: str = "preempt",
    seeds: int = runs.SEEDS,
    seed: int = 0,
    method: Method = algorithms.drop_compute,
) -> Outcome:
    """Holds the bound to runs on a cluster: a fixed number of rounds, with K measured on both
    sides.

    Args:
        problem: of workers that are alike.
        cluster: its seconds are independent of the gradients.
        threshold, stop: of the method.
        steps: rounds.
        share: eta L b, b = N M.
        seeds, seed: of runs.
        method: as `algorithms.drop_compute`, or one's own.
    """
    numbers, batch = sigma_of(problem), problem.workers * M
    eta = share / (numbers["smoothness"] * batch)
    need("dropcompute", hypotheses(problem, batch, eta))
    options = {"steps": steps, "micro_batches": M, "seeds": seeds, "seed": seed}
    found = batch_sizes.simulated(method, problem, cluster, threshold, stop, eta * batch, **options)
    total = float(found.total.mean())
    right = bound(**numbers, total=total, batch_size=batch, learning_rate=eta)
    # The noise of both sides' difference: K is on both.
    per_sample = eta * numbers["smoothness"] * numbers["noise"] ** 2 / 2 / (1 - share / 2)
    error = float((found.slope - per_sample * found.total).std(ddof=1)) / math.sqrt(seeds) / total
    sums = Sums(total, float(found.slope.mean()), math.nan, batch)
    return Outcome(sums.slope / total, right, error, described(problem, stop, threshold, sums, eta))


def check_stopping(
    problem: Problem,
    pairs: Pairs,
    threshold: float,
    *,
    steps: int,
    noise: float,
    share: float,
    stop: str = "between",
    method: Method = algorithms.drop_compute,
) -> Outcome:
    """Holds the bound for stopping times to exact moments, where the noise of each micro-batch is a
    function of its own seconds.

    Args:
        problem: a quadratic without noise of its own, of workers that are alike.
        pairs: seconds and noise.
        threshold: tau.
        steps: rounds.
        noise: sigma.
        share: eta L b, below 2.
        stop: of the method; "between" makes stopping times, "preempt" does not.
        method: as `algorithms.drop_compute`, or one's own.
    """
    numbers, batch = sigma_of(problem) | {"noise": noise}, problem.workers * M
    eta = share / (numbers["smoothness"] * batch)
    need("dropcompute", hypotheses(problem, batch, eta))
    sums = batch_sizes.dependent(
        method, problem, pairs, threshold, stop, eta * batch, steps=steps, noise=noise, M=M
    ).sums
    right = bound(**numbers, total=sums.total, batch_size=batch, learning_rate=eta, stopping=True)
    return Outcome(
        sums.slope / sums.total, right, case=described(problem, stop, threshold, sums, eta)
    )


# --- Instances.


def times(
    draws: Draws, T: int, workers: int = N, micro_batches: int = M
) -> tuple[np.ndarray, float, str]:
    """Random seconds `[T, N, M]`, a threshold that drops from nothing to 0.6 of them, and a way to
    stop.
    """
    kind, stop = (
        draws.choice(("exponential", "lognormal", "straggler")),
        draws.choice(("preempt", "between")),
    )
    share = draws.real(0.0, 0.6)
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    shape = (T, workers, micro_batches)
    drawn = {
        "exponential": rng.exponential(size=shape),
        "lognormal": np.exp(rng.normal(size=shape)),
        "straggler": 0.1 + 0.01 * rng.random(shape) + (rng.random((T, workers, 1)) < 0.3),
    }[kind]
    ends = np.cumsum(drawn.astype(np.float32), axis=-1)
    begun = ends if stop == "preempt" else ends - drawn
    threshold = float(np.quantile(begun, 1 - share)) if share else math.inf
    return drawn, max(threshold, float(1.01 * ends[0, 0, 0])), stop  # somebody computes something


def problem_of(draws: Draws, noisy: bool = True) -> Problem:
    """A quadratic of two workers that are alike."""
    return instances.quadratic(
        draws, N, 2, hessians=("isotropic", "equal"), alike=True, noisy=noisy
    )


def trial_exact(draws: Draws) -> list[Outcome]:
    """One quadratic, one table of times."""
    problem = problem_of(draws)
    seconds, threshold, stop = times(draws, draws.choice((1, 10, 300)))
    return [check(problem, seconds, threshold, stop=stop, share=draws.real(0.02, 1.9))]


CLUSTER = clusters.Cluster(clusters.exponential(1.0), micro_batches=M)


def trial_runs(draws: Draws) -> list[Outcome]:
    """Wells and hills."""
    problem = instances.random_wells(draws, N, 3, alike=True)
    steps, seed = draws.choice((10, 100)), draws.integer(0, 10**6)
    threshold, share = draws.real(1.0, 8.0), draws.real(0.02, 1.5)
    return [check_runs(problem, CLUSTER, threshold, steps=steps, share=share, seed=seed)]


def pairs_of(draws: Draws) -> tuple[Pairs, float]:
    """Latencies of two values, and a threshold that ends some of their sums."""
    pairs = Pairs(1.0, draws.choice((2.0, 3.0, 10.0)), draws.real(0.05, 0.95))
    return pairs, draws.real(0.5, 1.5 * pairs.slow)


def trial_stopping(draws: Draws) -> list[Outcome]:
    """A quadratic of two workers, each with three micro-batches."""
    problem = instances.quadratic(
        draws, N, 2, hessians=("isotropic", "equal"), alike=True, noisy=False
    )
    pairs, threshold = pairs_of(draws)
    noise, steps, share = draws.real(0.0, 3.0), draws.choice((1, 10, 300)), draws.real(0.02, 1.8)
    return [check_stopping(problem, pairs, threshold, steps=steps, noise=noise, share=share)]


SAME = np.ones((500, N, M))
"""Everybody computes in every round what fits into the time: 2 of 3 at tau = 2.5."""


def bowls() -> list[Outcome]:
    """Batches that are always the same meet the bound once the start is forgotten; both ways to
    stop.
    """
    found = []
    for away, noise, share in sgd.HARD:
        for stop, threshold in (("preempt", 2.5), ("between", 1.5)):
            problem = instances.bowl(N, 2, away=away + 1e-3, smoothness=2.0, noise=3 * noise)
            found.append(check(problem, SAME, threshold, stop=stop, share=share))
    return found


def wells() -> list[Outcome]:
    """In a well, with little noise; from near a hilltop in small steps, without."""
    well, hilltop = instances.wells(N, 3, start=0.01, noise=0.1), instances.wells(N, 3, start=3.0)
    return [
        check_runs(well, CLUSTER, 20.0, steps=400, share=1.0),
        check_runs(well, CLUSTER, 3.0, steps=400, share=0.3),
        check_runs(hilltop, CLUSTER, 3.0, steps=400, share=0.04),
    ]


def stopping_bowls() -> list[Outcome]:
    """Slow ones are rare, and the first one ends a worker's round; small steps, of which the
    bound's second root is small.
    """
    found = list[Outcome]()
    for away, noise, share, steps in (
        (1.0, 0.0, 0.02, 3000),
        (1.0, 0.0, 1.0, 500),
        (0.0, 1.0, 2e-4, 300_000),
        (0.0, 1.0, 1.0, 500),
    ):
        problem = instances.bowl(N, 2, away=away + 1e-3, smoothness=2.0)
        options = {"steps": steps, "noise": noise, "share": share}
        found += [
            check_stopping(problem, Pairs(1.0, 10.0, chance), 5.0, **options)
            for chance in (0.5, 0.01)
        ]
    return found


_STEP, _SAME = "eta L b < 2", "batches independent of the gradients"
STATEMENTS = [
    Statement(
        "DropCompute, quadratics, exact",
        "DropCompute, Theorem 4.1",
        f"{_STEP}; {_SAME}",
        trial_exact,
        (bowls,),
    ),
    Statement(
        "DropCompute, non-convex",
        "DropCompute, Theorem 4.1",
        f"{_STEP}; {_SAME}",
        trial_runs,
        (wells,),
    ),
    Statement(
        "DropCompute, stopping times, exact",
        "DropCompute, Theorem 4.1",
        f"{_STEP}; noise is a function of the seconds, workers stop between micro-batches",
        trial_stopping,
        (stopping_bowls,),
    ),
]
