r"""DropCompute, Theorem 4.1 with its constants: SGD with random batch sizes.

With $\theta_{i+1} = \theta_i - \eta \sum_{s \le b_i} g_i^s$, $g_i^s = f'(\theta_i) + \xi_i^s$,
$E|\xi|^2 \le \sigma^2$, $b_i \le b$, and $\eta = \gamma / (NM)$ for the method's $\gamma$ with
correction="none", smoothness gives

$$ E f(\theta_{i+1}) - E f(\theta_i) \le -\eta E\, b_i |f'(\theta_i)|^2
   - \eta E \Big\langle f'(\theta_i), \sum_{s \le b_i} \xi_i^s \Big\rangle
   + \frac{\eta^2 L}{2} E \Big| b_i f'(\theta_i) + \sum_{s \le b_i} \xi_i^s \Big|^2. $$

The inner product is 0 in both of the following cases: batch sizes that are independent of the
round's gradients, and stopping times, which depend only on earlier gradients (Lemma D.1). In both
cases also $E|\sum \xi|^2 \le \sigma^2 E b_i$ (Lemma D.2). Let $h = \eta L b / 2 < 1$,
$D = f(\theta_1) - f^\star$, K the total number of samples,
$X^2 = E \sum_i b_i |f'(\theta_i)|^2 / E K$, $G = D / (\eta E K)$, $B = \eta L \sigma^2 / 2$.

- Independent batch sizes: $E b_i \langle f', \sum \xi \rangle = 0$ as well, and
  $b_i^2 \le b\, b_i$, so that $X^2 \le (G + B) / (1 - h)$.
- Stopping times: that expectation is not 0, since $b_i$ depends on $\xi$. By the Cauchy-Schwarz
  inequality
  $\eta L E \sum_i b_i \langle f', \sum \xi \rangle \le \eta L \sqrt b\, \sigma X E K =
  2 \sqrt{hB}\, X E K$, so that $(1 - h) X^2 \le G + B + 2 \sqrt{hB} X$:
  $$ X \le \frac{\sqrt{hB + (1 - h)(G + B)} + \sqrt{hB}}{1 - h}. $$
  With $|a + c|^2 \le 2|a|^2 + 2|c|^2$ instead, as in the paper, the bound is
  $X^2 \le (G + 2B) / (1 - 2h)$, which is never smaller.

Meaning of K. After a fixed number of rounds, E K is the mean of K, and $X^2$ is a quotient of two
expectations. The expectation of $|f'(\bar\theta)|^2$ is a different number, which the right side
does not bound (see `dropcompute_misprints`). In the paper K is fixed: rounds continue until K
samples are computed, and the last round computes only the missing ones. Whether round i starts is
then known before it, the sums end at a stopping time, the derivation above holds, and
$X^2 = E|f'(\bar\theta)|^2$. If the last round is completed, $E|f'(\bar\theta)|^2$ is at most the
same bound with K + b instead of K in the term of the noise.

All workers must have the same data; otherwise workers that compute more samples would have a larger
weight.

With correction="stochastic" another theorem applies, see `dropcompute_stochastic`.
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
    """Returns the conditions: eta < 2 / (L b), and the same data on all workers."""
    return [
        alike(problem),
        _short(instances.constants(problem).smoothness, batch_size, learning_rate),
    ]


def _short(smoothness: float, batch_size: int, learning_rate: float) -> Condition:
    return instances.step_below(
        "2 / (L b)", 2 / (smoothness * batch_size), learning_rate, strictly=True, symbol="eta"
    )


def alike(problem: Problem) -> Condition:
    """Returns the condition that all workers have the same data."""
    constants = instances.constants(problem)
    # The tolerance covers rounding errors.
    equal = constants.heterogeneity is not None and constants.heterogeneity <= 1e-9 * math.sqrt(
        constants.smoothness * constants.gap
    )
    return Condition(
        "workers with the same data", equal, f"the workers of {problem.name} have different data"
    )


@ranges.validate("dropcompute.step_size")
def step_size(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    total: float,
    batch_size: int,
    stopping: bool = False,
) -> float:
    r"""Returns the recommended step size: $\frac1\eta = Lb + \sigma \sqrt{\frac{LK}{2D}}$; for
    stopping times $2Lb + \sigma \sqrt{\frac{LK}{D}}$.
    """
    both = 2 if stopping else 1
    return 1 / (
        both * smoothness * batch_size + noise * math.sqrt(both * smoothness * total / (2 * gap))
    )


@ranges.validate("bounds.dropcompute")
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
    r"""Returns $\frac{1}{1 - h} (G + B)$, the bound on $\frac{1}{E K} E \sum_i b_i
    |f'(\theta_i)|^2$, with $G = \frac{D}{\eta K}$, $B = \frac{\eta L \sigma^2}{2}$, $h = \frac{\eta
    L b}{2}$; for stopping times $\big(\sqrt{hB + (1 - h)(G + B)} + \sqrt{hB}\big)^2 / (1 - h)^2$.

    Args:
        gap: D = f(theta_1) - f*.
        smoothness: L.
        noise: sigma, of one sample's gradient; or of a micro-batch's gradient, if micro-batches are
            counted.
        total: K, total number of samples; its expectation if it is random.
        batch_size: b, the largest number of samples that a round computes.
        learning_rate: eta < 2 / (L b), for the sum of gradients: gamma / (N M) of
            `drop_compute(minibatch_sgd(optax.sgd(gamma)), tau, M)`.
        stopping: whether batch sizes may depend on earlier gradients, as stopping times do; False:
            they are independent of the gradients.

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


@ranges.validate("dropcompute.rate")
def rate(
    *, gap: float, smoothness: float, noise: float, batch_size: int, stopping: bool = False
) -> Rate:
    r"""Returns $\frac{2LbD}{K} + \sigma \sqrt{\frac{2LD}{K}}$, the rate as a function of K, at the
    recommended step size; for stopping times $\frac{4LbD}{K} + 2\sigma \sqrt{\frac{LD}{K}}$.
    """
    both = 2 if stopping else 1
    return Rate(
        both * 2 * smoothness * batch_size * gap, noise * math.sqrt(both * 2 * smoothness * gap)
    )


def constants_of(problem: Problem) -> dict[str, Any]:
    """Returns the constants of a problem on which the bound depends: gap, smoothness, noise."""
    constants = instances.constants(problem)
    return {"gap": constants.gap, "smoothness": constants.smoothness, "noise": constants.noise}


def describe(
    problem: Problem, stop: str, threshold: float, sums: Sums, learning_rate: float
) -> str:
    """Returns a description of the instance."""
    share = learning_rate * instances.constants(problem).smoothness * sums.largest
    return (
        f"{problem.name}, {stop}, tau = {threshold:.4g}, eta L b = {share:.3g}, "
        f"b = {sums.largest}, K = {sums.total:.6g}"
    )


def check(
    problem: Problem,
    seconds: np.ndarray,
    threshold: float,
    *,
    stop: str = "preempt",
    share: float,
    method: Method = algorithms.drop_compute,
) -> Outcome:
    """Checks the bound against the exact moments for given times of the micro-batches. For given
    times, batch sizes are independent of the gradients.

    Args:
        problem: a quadratic with known constants and the same data on all workers; its noise is
            that of a micro-batch.
        seconds: duration of each micro-batch, `[T, N, M]`.
        threshold: tau, in seconds.
        stop: "preempt" or "between", as in the method.
        share: eta L b, below 2.
        method: as `algorithms.drop_compute`, or a custom one.

    Raises:
        ValueError: if a hypothesis fails, or no worker computes anything.
    """
    numbers, batch = constants_of(problem), largest(seconds, threshold, stop)
    eta = share / (numbers["smoothness"] * batch)
    need("dropcompute", hypotheses(problem, batch, eta))
    sums = batch_sizes.conditional(
        method, problem, seconds, threshold, stop, eta * seconds[0].size
    ).sums
    right = bound(**numbers, total=sums.total, batch_size=batch, learning_rate=eta)
    return Outcome(
        sums.slope / sums.total, right, case=describe(problem, stop, threshold, sums, eta)
    )


def largest(seconds: np.ndarray, threshold: float, stop: str) -> int:
    """Returns b, the largest number of micro-batches that a round computes, for the given times.

    Raises:
        ValueError: if no worker computes anything.
    """
    found = int(batch_sizes.counts(seconds, threshold, stop).sum(axis=1).max())
    if not found:
        raise ValueError(
            f"dropcompute: threshold = {threshold:.6g} drops all micro-batches; expected at least "
            "one that finishes in time; use a larger threshold"
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
    """Checks the bound against runs on a cluster with a fixed number of rounds. The measured K is
    used on both sides.

    Args:
        problem: a problem with the same data on all workers.
        cluster: a cluster whose computation times are independent of the gradients.
        threshold, stop: as in the method.
        steps: number of rounds.
        share: eta L b, b = N M.
        seeds, seed: number of runs, and their seed.
        method: as `algorithms.drop_compute`, or a custom one.
    """
    numbers, batch = constants_of(problem), problem.workers * M
    eta = share / (numbers["smoothness"] * batch)
    need("dropcompute", hypotheses(problem, batch, eta))
    options = {"steps": steps, "micro_batches": M, "seeds": seeds, "seed": seed}
    found = batch_sizes.simulate(method, problem, cluster, threshold, stop, eta * batch, **options)
    total = float(found.total.mean())
    right = bound(**numbers, total=total, batch_size=batch, learning_rate=eta)
    # The standard error is that of the difference of both sides, because both contain K.
    per_sample = eta * numbers["smoothness"] * numbers["noise"] ** 2 / 2 / (1 - share / 2)
    error = float((found.slope - per_sample * found.total).std(ddof=1)) / math.sqrt(seeds) / total
    sums = Sums(total, float(found.slope.mean()), math.nan, batch)
    return Outcome(sums.slope / total, right, error, describe(problem, stop, threshold, sums, eta))


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
    """Checks the bound for stopping times against exact moments. The noise of each micro-batch is a
    function of its own duration.

    Args:
        problem: a quadratic without noise, with the same data on all workers.
        pairs: durations and the corresponding noise.
        threshold: tau, in seconds.
        steps: number of rounds.
        noise: sigma.
        share: eta L b, below 2.
        stop: as in the method; "between" yields stopping times, "preempt" does not.
        method: as `algorithms.drop_compute`, or a custom one.
    """
    numbers, batch = constants_of(problem) | {"noise": noise}, problem.workers * M
    eta = share / (numbers["smoothness"] * batch)
    need("dropcompute", hypotheses(problem, batch, eta))
    sums = batch_sizes.dependent(
        method, problem, pairs, threshold, stop, eta * batch, steps=steps, noise=noise, M=M
    ).sums
    right = bound(**numbers, total=sums.total, batch_size=batch, learning_rate=eta, stopping=True)
    return Outcome(
        sums.slope / sums.total, right, case=describe(problem, stop, threshold, sums, eta)
    )


# --- Instances.


def times(
    draws: Draws, T: int, workers: int = N, micro_batches: int = M
) -> tuple[np.ndarray, float, str]:
    """Draws durations of micro-batches `[T, N, M]`, a threshold that drops between 0 and 60 % of
    them, and a way to stop.
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
    # At least one micro-batch finishes before the threshold.
    return drawn, max(threshold, float(1.01 * ends[0, 0, 0])), stop


def problem_of(draws: Draws, noisy: bool = True) -> Problem:
    """Draws a quadratic of two workers with the same data."""
    return instances.quadratic(
        draws, N, 2, hessians=("isotropic", "equal"), alike=True, noisy=noisy
    )


def trial_exact(draws: Draws) -> list[Outcome]:
    """Checks the exact moments on a random quadratic with random times."""
    problem = problem_of(draws)
    seconds, threshold, stop = times(draws, draws.choice((1, 10, 300)))
    return [check(problem, seconds, threshold, stop=stop, share=draws.real(0.02, 1.9))]


CLUSTER = clusters.Cluster(clusters.exponential(1.0), micro_batches=M)


def trial_runs(draws: Draws) -> list[Outcome]:
    """Checks runs on random non-convex wells."""
    problem = instances.random_wells(draws, N, 3, alike=True)
    steps, seed = draws.choice((10, 100)), draws.integer(0, 10**6)
    threshold, share = draws.real(1.0, 8.0), draws.real(0.02, 1.5)
    return [check_runs(problem, CLUSTER, threshold, steps=steps, share=share, seed=seed)]


def pairs_of(draws: Draws) -> tuple[Pairs, float]:
    """Draws latencies with two possible values, and a threshold between some of their sums."""
    pairs = Pairs(1.0, draws.choice((2.0, 3.0, 10.0)), draws.real(0.05, 0.95))
    return pairs, draws.real(0.5, 1.5 * pairs.slow)


def trial_stopping(draws: Draws) -> list[Outcome]:
    """Checks stopping times on a random quadratic of two workers, each with three micro-batches."""
    problem = problem_of(draws, noisy=False)
    pairs, threshold = pairs_of(draws)
    noise, steps, share = draws.real(0.0, 3.0), draws.choice((1, 10, 300)), draws.real(0.02, 1.8)
    return [check_stopping(problem, pairs, threshold, steps=steps, noise=noise, share=share)]


SAME = np.ones((500, N, M))
"""Equal times: every worker computes 2 of its 3 micro-batches in each round at tau = 2.5."""


def bowls() -> list[Outcome]:
    """Checks quadratics with constant batch sizes, for both ways to stop. The bound is attained as
    the influence of the start vanishes.
    """
    found = []
    for away, noise, share in sgd.HARD:
        for stop, threshold in (("preempt", 2.5), ("between", 1.5)):
            problem = instances.bowl(N, 2, distance=away + 1e-3, smoothness=2.0, noise=3 * noise)
            found.append(check(problem, SAME, threshold, stop=stop, share=share))
    return found


def wells() -> list[Outcome]:
    """Checks runs that start in a well with little noise, and near a hilltop with small steps and
    without noise.
    """
    well, hilltop = instances.wells(N, 3, start=0.01, noise=0.1), instances.wells(N, 3, start=3.0)
    return [
        check_runs(well, CLUSTER, 20.0, steps=400, share=1.0),
        check_runs(well, CLUSTER, 3.0, steps=400, share=0.3),
        check_runs(hilltop, CLUSTER, 3.0, steps=400, share=0.04),
    ]


def stopping_bowls() -> list[Outcome]:
    """Checks quadratics on which slow micro-batches are rare, and the first one ends a worker's
    round. With small steps the bound's second square root is small.
    """
    found = list[Outcome]()
    for away, noise, share, steps in (
        (1.0, 0.0, 0.02, 3000),
        (1.0, 0.0, 1.0, 500),
        (0.0, 1.0, 2e-4, 300_000),
        (0.0, 1.0, 1.0, 500),
    ):
        problem = instances.bowl(N, 2, distance=away + 1e-3, smoothness=2.0)
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
