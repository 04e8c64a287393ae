r"""Moments of the noise of DropCompute: Lemmas D.1 and D.2, the conditions under which they hold,
and the bias otherwise.

Let micro-batch m of a worker take $t_m$ seconds, $T^{(m)} = t_1 + \dots + t_m$, and let its
gradient's noise $\xi_m$ depend on $t_m$.

- stop="between": m is computed if $T^{(m-1)} \le \tau$, which is known before m starts. The count b
  is a stopping time: $E \sum_{m \le b} \xi_m = 0$ and
  $E |\sum_{m \le b} \xi_m|^2 = \sigma^2 E b$ for every dependence of $\xi$ on t.
- stop="preempt": m counts if $T^{(m)} < \tau$, which depends on $t_m$, so both lemmas fail. For
  exponential durations and $\xi = t - 1$,
  $E[t_m 1\{T^{(m)} < \tau\}] = \frac1m E[T^{(m)} 1\{T^{(m)} < \tau\}] = P(\Gamma_{m+1} < \tau)$, so
  that
  $$ E \sum_{m \le b} \xi_m = \sum_{m=1}^M \big( P(\Gamma_{m+1} < \tau) - P(\Gamma_m < \tau) \big)
     = -\sum_{m=1}^M \frac{\tau^m e^{-\tau}}{m!}. $$
  If $\xi$ and t are independent, both lemmas hold. The paper treats every count as a stopping time,
  including that of its Algorithm 1.
- Division by the worker's own count (correction="local") causes a bias with stop="between" as well:
  when few micro-batches are computed, they were slow. With exponential durations $N_\tau + 1$
  micro-batches are computed, where $N_\tau$, Poisson distributed with mean $\tau$, is the number
  that finish by $\tau$, and $E T^{(j)} = \tau + 1$ if the last one is j < M:
  $$ E \frac1b \sum_{m \le b} \xi_m = \sum_{j < M} \frac{\tau + 1}{j} P(N_\tau = j - 1)
     + \frac{(M - 1) P(\Gamma_M < \tau) + P(\Gamma_{M-1} < \tau)}{M} - 1. $$

Limit of SGD: on a quadratic with the Hessian A, with the noise $\xi v$ and
$\beta = E \sum_{m \le b} \xi_m$ of a round,

$$ E \theta_{i+1} - \theta^\star = (I - \eta E b\, A) (E \theta_i - \theta^\star) - \eta \beta v
   \quad \to \quad -\frac{\beta}{E b} A^{-1} v, $$

for every step size: smaller steps do not reduce this bias.

resample_dropped=True: let durations belong to the samples, that is, draw number k always has $t_k$
and $\xi_k$, however often its computation starts. The samples are computed in order, and the number
$K_T$ that a worker has computed after T rounds is determined by the first $K_T + 1$ of them. Hence
$K_T + 1$ is a stopping time, and

$$ E \sum_{k \le K_T} \xi_k = -E \xi_{K_T + 1}: $$

the bias of T rounds is at most that of one sample, so the bias per round vanishes. (No sample may
take $\tau$ or longer, because its computation would never finish.) On the project's clusters,
durations belong to rounds and not to draws; the checks here use a stand-in for a cluster whose
durations depend on the draws' numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import special

import algorithms
import dsgd
from dsgd import clusters, problems, work
from dsgd.base import Algorithm, Now, Round
from dsgd.communication import communicate
from theory_checks.machinery import batch_sizes, instances
from theory_checks.machinery.rounds import place_on_one_device
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.statements.dropcompute import pairs_of, problem_of

N, M = 2, 3
_KEYS, _FEWER = 1 << 14, 1 << 11  # number of keys for single rounds, and for several rounds each
CLUSTER = clusters.Cluster(clusters.exponential(1.0), micro_batches=M)


# --- Closed forms for one worker.


def below(m: np.ndarray | int, threshold: float) -> np.ndarray:
    r"""Returns $P(\Gamma_m < \tau)$, the probability that the sum of m exponential durations is
    below the threshold; 1 for m = 0.
    """
    return np.where(np.asarray(m) > 0, special.gammainc(np.maximum(m, 1), threshold), 1.0)


def mean_count(threshold: float, stop: str) -> float:
    """Returns E b of one worker."""
    first = 1 if stop == "preempt" else 0
    return float(below(np.arange(first, M + first), threshold).sum())


def bias(threshold: float, stop: str) -> float:
    r"""Returns $E \sum_{m \le b} (t_m - 1)$ of one worker: $-\sum_{m=1}^M \tau^m e^{-\tau} / m!$
    with stop="preempt", 0 with stop="between".
    """
    m = np.arange(1, M + 1)
    return (
        -float((threshold**m * np.exp(-threshold) / special.factorial(m)).sum())
        if stop == "preempt"
        else 0.0
    )


def bias_of_means(threshold: float) -> float:
    r"""Returns $E \frac1b \sum_{m \le b} (t_m - 1)$ of one worker with stop="between"."""
    j = np.arange(1, M)
    poisson = np.exp(-threshold) * threshold ** (j - 1) / special.factorial(j - 1)
    whole = (M - 1) * below(M, threshold) + below(M - 1, threshold)
    return float((poisson * (threshold + 1) / j).sum() + whole / M - 1)


# --- Simulation with the method's query.


class Noise(NamedTuple):
    """Sums over the micro-batches that count, with the method's weights, of many rounds, each
    `[keys]`: of noise that is a function of the durations, of noise that is independent of them,
    and the number of micro-batches.
    """

    dependent: Any
    independent: Any
    counts: Any


RULES = (("between", "none"), ("preempt", "none"), ("between", "local"))


def noise(threshold: float, seed: int) -> dict[tuple[str, str], Noise]:
    """Simulates noise of unit variance on exponential durations of mean 1, for each rule of
    `RULES`: stop and correction.

    Args:
        threshold: tau.
        seed: seed of all rounds.
    """
    keys = jax.random.split(jax.random.key(seed), _KEYS)
    return jax.tree.map(
        np.asarray, dict(zip(RULES, _noise(keys, jnp.float32(threshold)), strict=True))
    )


@jax.jit
def _noise(keys, threshold):
    def one(key):
        times_key, noise_key = jax.random.split(key)
        round_info = Round(jnp.int32(0), N, times_key, Now(CLUSTER))
        xi = CLUSTER.latencies(round_info, jnp.arange(N)) - 1
        zeta = jax.random.normal(noise_key, (N, M))

        def sums(stop, correction):
            drop = algorithms.drop_compute(
                algorithms.minibatch_sgd(optax.sgd(1.0)),
                threshold,
                M,
                stop=stop,
                correction=correction,
            )
            asked = work.to_samples(drop.query(drop.init(jnp.zeros(1), N), round_info).work, None)
            weights = jnp.where(asked.samples > 0, asked.weights, 0)
            return Noise(jnp.sum(weights * xi), jnp.sum(weights * zeta), jnp.sum(asked.samples > 0))

        return tuple(sums(*rule) for rule in RULES)

    return jax.vmap(one)(keys)


def _mean(values: np.ndarray, right: float, case: str) -> Outcome:
    values = np.asarray(values, np.float64)
    return Outcome(
        float(values.mean()),
        right,
        float(values.std(ddof=1)) / np.sqrt(len(values)),
        case,
        equality=True,
    )


def lemmas(threshold: float, seed: int = 0) -> list[Outcome]:
    """Checks Lemmas D.1 and D.2 in the cases where they hold, and the mean of the count."""
    found, sums_by_rule = [], noise(threshold, seed)
    for stop, kind in (("between", "dependent"), ("preempt", "independent")):
        # The weights of Algorithm 1 are 1 / M.
        sums, counts = (
            M * getattr(sums_by_rule[stop, "none"], kind),
            sums_by_rule[stop, "none"].counts,
        )
        words = f"tau = {threshold:.4g}, {stop}, {kind} noise"
        found += [
            _mean(counts, N * mean_count(threshold, stop), f"{words}: E b"),
            _mean(sums, 0.0, f"{words}: E sum xi"),
            _mean(sums**2 - counts, 0.0, f"{words}: E (sum xi)^2 - E b"),
        ]
    return found


def biases(threshold: float, seed: int = 0) -> list[Outcome]:
    """Checks the exact biases in the cases where the lemmas fail."""
    sums_by_rule, words = noise(threshold, seed), f"tau = {threshold:.4g}, dependent noise"
    preempt, means = (
        sums_by_rule["preempt", "none"].dependent,
        sums_by_rule["between", "local"].dependent,
    )
    return [
        _mean(M * preempt, N * bias(threshold, "preempt"), f"{words}, preempt: E sum xi"),
        _mean(
            means,
            N * bias_of_means(threshold),
            f"{words}, between: E of the workers' means, all together",
        ),
    ]


def trial_lemmas(draws: Draws) -> list[Outcome]:
    """Checks the lemmas at a random threshold."""
    return lemmas(draws.real(0.2, 6.0), draws.integer(0, 2**31 - 1))


def trial_biases(draws: Draws) -> list[Outcome]:
    """Checks the biases at a random threshold."""
    return biases(draws.real(0.2, 6.0), draws.integer(0, 2**31 - 1))


# --- The limit of SGD.


def trial_end(draws: Draws) -> list[Outcome]:
    """Checks the mean of the models exactly, after some rounds and in the limit, on a quadratic
    with latencies of two possible values.
    """
    problem = problem_of(draws, noisy=False)
    pairs, threshold = pairs_of(draws)
    stop, noise, share, steps = (
        draws.choice(("preempt", "between")),
        draws.real(0.1, 3.0),
        draws.real(0.02, 1.5),
        draws.choice((1, 20, 1000)),
    )
    eta = share / (instances.constants(problem).smoothness * N * M)
    ends = batch_sizes.dependent(
        algorithms.drop_compute,
        problem,
        pairs,
        threshold,
        stop,
        eta * N * M,
        steps=steps,
        noise=noise,
        M=M,
    )
    A, _, away = batch_sizes.center(problem)
    seconds, xi, chances = pairs.tables(N, M)
    done = batch_sizes.mark_computed(seconds, threshold, stop)
    size, beta = (float(chances @ values.sum(axis=(1, 2))) for values in (done, done * xi))
    v = noise * np.full(len(A), len(A) ** -0.5)
    last = away
    for _ in range(steps):
        last = last - eta * (size * A @ last + beta * v)
    words = f"{stop}, tau = {threshold:.4g}, slow with {pairs.chance:.3g}, {steps} rounds"
    found = [_compare_along(ends.mean, last, f"{words}: E x - x*", float(np.linalg.norm(away)))]
    if size:
        rest = -beta / size * np.linalg.solve(A, v)
        scale = float(np.linalg.norm(v)) / np.linalg.eigvalsh(A)[0]
        found.append(_compare_along(ends.rest, rest, f"{words}: in the end", scale))
    return found


def _compare_along(measured: np.ndarray, right: np.ndarray, case: str, scale: float) -> Outcome:
    """Compares the components along the direction of the right side, so that a wrong sign is
    detected.
    """
    size = float(np.linalg.norm(right))
    along = right / size if size > 0 else np.full(len(right), len(right) ** -0.5)
    return Outcome(float(measured @ along), size, case=case, equality=True, scale=scale)


@cache
def _with_dependent_noise() -> Callable[..., Algorithm]:
    """Returns a function (learning rate, threshold) -> a method that adds (t - 1) v to the gradient
    for each micro-batch that counts.
    """

    def factory(learning_rate, threshold):
        inner = algorithms.drop_compute(
            algorithms.minibatch_sgd(optax.sgd(learning_rate)), threshold, M, stop="preempt"
        )

        def update(state, gradients, round):
            xi = CLUSTER.latencies(round._replace(work=None), jnp.arange(round.workers)) - 1
            added = jnp.sum(jnp.where(round.work.samples > 0, round.work.weights * xi, 0), axis=1)
            return inner.update(
                state, gradients + added[:, None] / jnp.sqrt(gradients.shape[1]), round
            )

        return inner._replace(update=update)

    return factory


def runs() -> list[Outcome]:
    """Checks the mean of the models after 60 rounds of SGD with exponential durations, in the
    project's loop.
    """
    L, eta, seeds, steps, threshold = 2.0, 0.05, 64, 60, 1.5
    problem = problems.quadratic(np.full((N, 2), L), np.zeros((N, 2)), start=np.full(2, 0.5))
    axes: Any = {
        "learning_rate": np.array([eta * N * M]),
        "threshold": np.array([threshold]),
        "record_every": steps,
    }
    factory, key = _with_dependent_noise(), jax.random.key(0)
    with jax.enable_x64(True):
        found = dsgd.sweep(
            factory, problem, steps=steps, key=key, seeds=seeds, cluster=CLUSTER, mesh=1, **axes
        )
    along = np.asarray(found.params)[0, 0] @ np.full(2, 2**-0.5)
    size, beta = N * mean_count(threshold, "preempt"), N * bias(threshold, "preempt")
    rest = -beta / (size * L)
    right = rest + (1 - eta * size * L) ** steps * (0.5 * 2**0.5 - rest)
    return [_mean(along, right, f"preempt, tau = {threshold}, {steps} rounds of a run: E x - x*")]


# --- Redrawn samples.


class DrawTimes(NamedTuple):
    """Stand-in for a cluster whose durations belong to draws: uniform from 0 to 2, a function of
    the key, the draw's number and the worker.
    """

    key: jax.Array
    drawn: jax.Array
    single_batch = False

    def latencies(self, round: Round, workers: jax.Array) -> jax.Array:
        def one(n, m):
            return 2 * jax.random.uniform(
                jax.random.fold_in(jax.random.fold_in(self.key, self.drawn[n] + m), n)
            )

        each: Any = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(workers, jnp.arange(M))
        return each.astype(jnp.float32)


ROUNDS = 12


@jax.jit
def _simulate_redrawn(keys, threshold):
    """Returns, for each key, the sum over workers of the noise of all samples that are computed in
    some rounds, and that of the next draw, `[keys]` each.
    """

    def everything(keys, threshold):
        drop = algorithms.drop_compute(
            algorithms.minibatch_sgd(optax.sgd(1.0)),
            threshold,
            M,
            stop="preempt",
            resample_dropped=True,
        )

        def rounds(key):
            def one(carry, t):
                state, total = carry
                round_info = Round(t, N, key, Now(DrawTimes(key, state.server.drawn)))
                asked = work.to_samples(drop.query(state, round_info).work, None)
                assert asked.first_batch is not None
                xi = DrawTimes(key, asked.first_batch).latencies(round_info, jnp.arange(N)) - 1
                total = total + jnp.sum(jnp.where(asked.samples > 0, xi, 0))
                after, _ = communicate(
                    drop, state, jnp.zeros((N, 1)), round_info._replace(work=asked), key
                )
                return (after, total), None

            first = drop.init(jnp.zeros(1), N), jnp.zeros(())
            (state, total), _ = jax.lax.scan(one, first, jnp.arange(ROUNDS, dtype=jnp.int32))
            following = (
                DrawTimes(key, state.server.drawn).latencies(
                    Round(jnp.int32(0), N, key), jnp.arange(N)
                )[:, 0]
                - 1
            )
            return total, jnp.sum(following)

        return jax.vmap(rounds)(keys)

    return place_on_one_device(everything)(keys, threshold)


def redrawn(threshold: float, seed: int = 0) -> list[Outcome]:
    """Checks that the bias of 12 rounds together is at most that of one sample, and is compensated
    by the noise of the next draw.
    """
    keys = jax.random.split(jax.random.key(seed), _FEWER)
    total, following = map(np.asarray, _simulate_redrawn(keys, jnp.float32(threshold)))
    words = f"redrawn, tau = {threshold:.4g}, {ROUNDS} rounds"
    mean = _mean(total, 0.0, f"{words}: |E sum xi|")._replace(equality=False)
    return [
        _mean(total + following, 0.0, f"{words}: E sum xi + E of the next"),
        mean._replace(measured=abs(mean.measured), bound=float(N)),
    ]


def trial_redrawn(draws: Draws) -> list[Outcome]:
    """Checks redrawn samples at a random threshold above all durations."""
    return redrawn(draws.real(2.0, 4.0), draws.integer(0, 2**31 - 1))


_DEPENDENT = "noise is a function of the seconds"
STATEMENTS = [
    Statement(
        "noise of stopping times",
        "DropCompute, Lemmas D.1, D.2",
        f"{_DEPENDENT}, or independent of them",
        trial_lemmas,
        [partial(lemmas, 1.5)],
    ),
    Statement(
        "bias of preemption and of means",
        "DropCompute, Lemma D.1",
        _DEPENDENT,
        trial_biases,
        [partial(biases, 1.5)],
    ),
    Statement(
        "limit of biased SGD",
        "DropCompute, Lemma D.1",
        f"{_DEPENDENT}; quadratics",
        trial_end,
        [runs],
    ),
    Statement(
        "no bias with redrawn samples",
        "DropCompute, section 4.5",
        "seconds and noise belong to the sample",
        trial_redrawn,
        [partial(redrawn, 2.5)],
    ),
]
