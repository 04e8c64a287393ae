r"""What is left of the noise where workers stop: Lemmas D.1 and D.2 of DropCompute, when they hold,
and the bias where they do not.

Let micro-batch m of a worker take $t_m$ seconds, $T^{(m)} = t_1 + \dots + t_m$, and let its
gradient's noise $\xi_m$ hang on $t_m$.

- stop="between": m is computed where $T^{(m-1)} \le \tau$, which is known before it. The count is a
  stopping time: $E \sum_{m \le b} \xi_m = 0$ and $E |\sum_{m \le b} \xi_m|^2 = \sigma^2 E b$,
  whatever $\xi$ has to do with t.
- stop="preempt": m counts where $T^{(m)} < \tau$, which hangs on $t_m$: both lemmas fail. Of
  exponential seconds and $\xi = t - 1$,
  $E[t_m 1\{T^{(m)} < \tau\}] = \frac1m E[T^{(m)} 1\{T^{(m)} < \tau\}] = P(\Gamma_{m+1} < \tau)$, so
  that
  $$ E \sum_{m \le b} \xi_m = \sum_{m=1}^M \big( P(\Gamma_{m+1} < \tau) - P(\Gamma_m < \tau) \big)
     = -\sum_{m=1}^M \frac{\tau^m e^{-\tau}}{m!}. $$
  Where $\xi$ and t are independent, both hold. The paper takes every count for a stopping time,
  those of its Algorithm 1, too.
- Divided by the worker's own count (correction="local"), there is a bias between micro-batches,
  too: where few are computed, they were slow. Of the same seconds $N_\tau + 1$ are computed, where
  $N_\tau$, Poisson of mean $\tau$, are done by $\tau$, and $E T^{(j)} = \tau + 1$ where the last is
  j < M:
  $$ E \frac1b \sum_{m \le b} \xi_m = \sum_{j < M} \frac{\tau + 1}{j} P(N_\tau = j - 1)
     + \frac{(M - 1) P(\Gamma_M < \tau) + P(\Gamma_{M-1} < \tau)}{M} - 1. $$

Where SGD ends: with $\xi v$ for the noise on a quadratic with the Hessian A, and
$\beta = E \sum_{m \le b} \xi_m$ of a round,

$$ E \theta_{i+1} - \theta^\star = (I - \eta E b\, A) (E \theta_i - \theta^\star) - \eta \beta v
   \quad \to \quad -\frac{\beta}{E b} A^{-1} v, $$

whatever the step size: smaller steps do not help.

redraw=True: let times belong to the samples, $t_k$ and $\xi_k$ of draw number k, however often it
is begun. All are computed in their order, and how many, $K_T$, a worker has computed after T
rounds, the first $K_T + 1$ of them tell. $K_T + 1$ is a stopping time,

$$ E \sum_{k \le K_T} \xi_k = -E \xi_{K_T + 1}, $$

in T rounds no more than one sample's: the bias of a round is gone after many. (A sample that takes
$\tau$ or more is begun for ever: there must be none.) On the project's clusters, times belong to
rounds and not to draws; here a stand-in for one knows the draws' numbers.
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
from theory_checks.machinery.rounds import on_one_device
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.statements.dropcompute import pairs_of, problem_of

N, M = 2, 3
_KEYS, _FEWER = 1 << 14, 1 << 11  # of single rounds, and of many in a row
CLUSTER = clusters.Cluster(clusters.exponential(1.0), micro_batches=M)


# --- The closed forms, of one worker.


def below(m: np.ndarray | int, threshold: float) -> np.ndarray:
    r"""$P(\Gamma_m < \tau)$, that m exponential times are over by then; 1 of none."""
    return np.where(np.asarray(m) > 0, special.gammainc(np.maximum(m, 1), threshold), 1.0)


def mean_count(threshold: float, stop: str) -> float:
    """E b of a worker."""
    first = 1 if stop == "preempt" else 0
    return float(below(np.arange(first, M + first), threshold).sum())


def bias(threshold: float, stop: str) -> float:
    r"""$E \sum_{m \le b} (t_m - 1)$ of a worker: $-\sum_{m=1}^M \tau^m e^{-\tau} / m!$, or 0."""
    m = np.arange(1, M + 1)
    return (
        -float((threshold**m * np.exp(-threshold) / special.factorial(m)).sum())
        if stop == "preempt"
        else 0.0
    )


def bias_of_means(threshold: float) -> float:
    r"""$E \frac1b \sum_{m \le b} (t_m - 1)$ of a worker that stops between micro-batches."""
    j = np.arange(1, M)
    poisson = np.exp(-threshold) * threshold ** (j - 1) / special.factorial(j - 1)
    whole = (M - 1) * below(M, threshold) + below(M - 1, threshold)
    return float((poisson * (threshold + 1) / j).sum() + whole / M - 1)


# --- What the method's own query makes of it.


class Noise(NamedTuple):
    """Of many rounds: sums of what counts, with the method's weights, of noise that is a function
    of the seconds, and of noise that is not, `[keys]`; and how many micro-batches count."""

    dependent: Any
    independent: Any
    counts: Any


RULES = (("between", "none"), ("preempt", "none"), ("between", "local"))


def noise(threshold: float, seed: int) -> dict[tuple[str, str], Noise]:
    """Of unit variance both, on exponential seconds of mean 1, of each way to stop and to divide.

    Args:
        threshold: tau.
        seed: of all rounds.
    """
    keys = jax.random.split(jax.random.key(seed), _KEYS)
    return jax.tree.map(
        np.asarray, dict(zip(RULES, _noise(keys, jnp.float32(threshold)), strict=True))
    )


@jax.jit
def _noise(keys, threshold):
    def one(key):
        own, other = jax.random.split(key)
        this = Round(jnp.int32(0), N, own, Now(CLUSTER))
        xi, zeta = CLUSTER.latencies(this, jnp.arange(N)) - 1, jax.random.normal(other, (N, M))

        def of(stop, correction):
            drop = algorithms.drop_compute(
                algorithms.minibatch_sgd(optax.sgd(1.0)),
                threshold,
                M,
                stop=stop,
                correction=correction,
            )
            asked = work.in_samples(drop.query(drop.init(jnp.zeros(1), N), this).work, None)
            weights = jnp.where(asked.samples > 0, asked.weights, 0)
            return Noise(jnp.sum(weights * xi), jnp.sum(weights * zeta), jnp.sum(asked.samples > 0))

        return tuple(of(*rule) for rule in RULES)

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
    """Lemmas D.1 and D.2 where they hold, and the number that the count is on average."""
    found, of = [], noise(threshold, seed)
    for stop, kind in (("between", "dependent"), ("preempt", "independent")):
        # Algorithm 1's weights are 1 / M
        sums, counts = M * getattr(of[stop, "none"], kind), of[stop, "none"].counts
        words = f"tau = {threshold:.4g}, {stop}, {kind} noise"
        found += [
            _mean(counts, N * mean_count(threshold, stop), f"{words}: E b"),
            _mean(sums, 0.0, f"{words}: E sum xi"),
            _mean(sums**2 - counts, 0.0, f"{words}: E (sum xi)^2 - E b"),
        ]
    return found


def biases(threshold: float, seed: int = 0) -> list[Outcome]:
    """The exact ones where they do not."""
    of, words = noise(threshold, seed), f"tau = {threshold:.4g}, dependent noise"
    preempt, means = of["preempt", "none"].dependent, of["between", "local"].dependent
    return [
        _mean(M * preempt, N * bias(threshold, "preempt"), f"{words}, preempt: E sum xi"),
        _mean(
            means,
            N * bias_of_means(threshold),
            f"{words}, between: E of the workers' means, all together",
        ),
    ]


def trial_lemmas(draws: Draws) -> list[Outcome]:
    """Some threshold."""
    return lemmas(draws.real(0.2, 6.0), draws.integer(0, 2**31 - 1))


def trial_biases(draws: Draws) -> list[Outcome]:
    """Some threshold."""
    return biases(draws.real(0.2, 6.0), draws.integer(0, 2**31 - 1))


# --- Where SGD ends.


def trial_end(draws: Draws) -> list[Outcome]:
    """Latencies of two values on a quadratic, exact: how far from the minimiser the mean stays, and
    is after some rounds.
    """
    problem = problem_of(draws, noisy=False)
    pairs, threshold = pairs_of(draws)
    stop, noise, share, steps = (
        draws.choice(("preempt", "between")),
        draws.real(0.1, 3.0),
        draws.real(0.02, 1.5),
        draws.choice((1, 20, 1000)),
    )
    eta = share / (instances.known(problem).smoothness * N * M)
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
    A, _, away = batch_sizes.around(problem)
    seconds, xi, chances = pairs.tables(N, M)
    done = batch_sizes.counted(seconds, threshold, stop)
    size, beta = (float(chances @ values.sum(axis=(1, 2))) for values in (done, done * xi))
    v = noise * np.full(len(A), len(A) ** -0.5)
    last = away
    for _ in range(steps):
        last = last - eta * (size * A @ last + beta * v)
    words = f"{stop}, tau = {threshold:.4g}, slow with {pairs.chance:.3g}, {steps} rounds"
    found = [_compared(ends.mean, last, f"{words}: E x - x*", float(np.linalg.norm(away)))]
    if size:
        rest = -beta / size * np.linalg.solve(A, v)
        scale = float(np.linalg.norm(v)) / np.linalg.eigvalsh(A)[0]
        found.append(_compared(ends.rest, rest, f"{words}: in the end", scale))
    return found


def _compared(measured: np.ndarray, right: np.ndarray, case: str, scale: float) -> Outcome:
    """Along the direction of what is right, so that a sign shows."""
    size = float(np.linalg.norm(right))
    along = right / size if size > 0 else np.full(len(right), len(right) ** -0.5)
    return Outcome(float(measured @ along), size, case=case, equality=True, scale=scale)


@cache
def _slow_ones_differ() -> Callable[..., Algorithm]:
    """(learning rate, threshold) -> the method, to whose gradients come (t - 1) v of each
    micro-batch that counts.
    """

    def factory(learning_rate, threshold):
        inner = algorithms.drop_compute(
            algorithms.minibatch_sgd(optax.sgd(learning_rate)), threshold, M, stop="preempt"
        )

        def update(state, gradients, round):
            xi = CLUSTER.latencies(round._replace(work=None), jnp.arange(round.workers)) - 1
            own = jnp.sum(jnp.where(round.work.samples > 0, round.work.weights * xi, 0), axis=1)
            return inner.update(
                state, gradients + own[:, None] / jnp.sqrt(gradients.shape[1]), round
            )

        return inner._replace(update=update)

    return factory


def runs() -> list[Outcome]:
    """The project's loop, on exponential seconds: the mean of the models after 60 rounds of SGD."""
    L, eta, seeds, steps, threshold = 2.0, 0.05, 64, 60, 1.5
    problem = problems.quadratic(np.full((N, 2), L), np.zeros((N, 2)), start=np.full(2, 0.5))
    axes: Any = {
        "learning_rate": np.array([eta * N * M]),
        "threshold": np.array([threshold]),
        "record_every": steps,
    }
    factory, key = _slow_ones_differ(), jax.random.key(0)
    with jax.enable_x64(True):
        found = dsgd.sweep(
            factory, problem, steps=steps, key=key, seeds=seeds, cluster=CLUSTER, mesh=1, **axes
        )
    along = np.asarray(found.params)[0, 0] @ np.full(2, 2**-0.5)
    size, beta = N * mean_count(threshold, "preempt"), N * bias(threshold, "preempt")
    rest = -beta / (size * L)
    right = rest + (1 - eta * size * L) ** steps * (0.5 * 2**0.5 - rest)
    return [_mean(along, right, f"preempt, tau = {threshold}, {steps} rounds of a run: E x - x*")]


# --- What is drawn again.


class OfDraws(NamedTuple):
    """A cluster whose seconds belong to draws: uniform from 0 to 2, of the key, the number and the
    worker.
    """

    key: jax.Array
    drawn: jax.Array
    at_once = False

    def latencies(self, round: Round, workers: jax.Array) -> jax.Array:
        def one(n, m):
            return 2 * jax.random.uniform(
                jax.random.fold_in(jax.random.fold_in(self.key, self.drawn[n] + m), n)
            )

        each: Any = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(workers, jnp.arange(M))
        return each.astype(jnp.float32)


ROUNDS = 12


@jax.jit
def _redrawn(keys, threshold):
    """The noise of all that is computed in some rounds, and that of the next draw, sums over
    workers, `[keys]`.
    """

    def everything(keys, threshold):
        drop = algorithms.drop_compute(
            algorithms.minibatch_sgd(optax.sgd(1.0)), threshold, M, stop="preempt", redraw=True
        )

        def rounds(key):
            def one(carry, t):
                state, total = carry
                this = Round(t, N, key, Now(OfDraws(key, state.server.drawn)))
                asked = work.in_samples(drop.query(state, this).work, None)
                assert asked.draws is not None
                xi = OfDraws(key, asked.draws).latencies(this, jnp.arange(N)) - 1
                total = total + jnp.sum(jnp.where(asked.samples > 0, xi, 0))
                after, _ = communicate(
                    drop, state, jnp.zeros((N, 1)), this._replace(work=asked), key
                )
                return (after, total), None

            first = drop.init(jnp.zeros(1), N), jnp.zeros(())
            (state, total), _ = jax.lax.scan(one, first, jnp.arange(ROUNDS, dtype=jnp.int32))
            following = (
                OfDraws(key, state.server.drawn).latencies(
                    Round(jnp.int32(0), N, key), jnp.arange(N)
                )[:, 0]
                - 1
            )
            return total, jnp.sum(following)

        return jax.vmap(rounds)(keys)

    return on_one_device(everything)(keys, threshold)


def redrawn(threshold: float, seed: int = 0) -> list[Outcome]:
    """Of 12 rounds in all, no more than of one sample; what was dropped last makes up for it."""
    keys = jax.random.split(jax.random.key(seed), _FEWER)
    total, following = map(np.asarray, _redrawn(keys, jnp.float32(threshold)))
    words = f"redrawn, tau = {threshold:.4g}, {ROUNDS} rounds"
    mean = _mean(total, 0.0, f"{words}: |E sum xi|")._replace(equality=False)
    return [
        _mean(total + following, 0.0, f"{words}: E sum xi + E of the next"),
        mean._replace(measured=abs(mean.measured), bound=float(N)),
    ]


def trial_redrawn(draws: Draws) -> list[Outcome]:
    """Some threshold above all seconds."""
    return redrawn(draws.real(2.0, 4.0), draws.integer(0, 2**31 - 1))


_HANGS = "noise is a function of the seconds"
STATEMENTS = [
    Statement(
        "noise of stopping times",
        "DropCompute, Lemmas D.1, D.2",
        f"{_HANGS}, or stopping is not of the gradients",
        trial_lemmas,
        [partial(lemmas, 1.5)],
    ),
    Statement(
        "bias of preemption, and of means",
        "DropCompute, Lemma D.1",
        _HANGS,
        trial_biases,
        [partial(biases, 1.5)],
    ),
    Statement(
        "where biased SGD ends",
        "DropCompute, Lemma D.1",
        f"{_HANGS}; quadratics",
        trial_end,
        [runs],
    ),
    Statement(
        "no bias of what is drawn again",
        "DropCompute, section 4.5",
        "seconds and noise belong to the sample",
        trial_redrawn,
        [partial(redrawn, 2.5)],
    ),
]
