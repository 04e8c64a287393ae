r"""Lemmas of chapters 1, 3 and 4, and an inequality that the survey quotes.

- Smoothness and a lower bound give $|f'(x)|^2 \le 2L (f(x) - f^\star)$: insert $y = x - f'(x)/L$ in
  (1.4).
- Lemma 1.2.2: B draws without replacement from M have pairwise covariances $-\mathrm{Var}/(M - 1)$,
  because the sum of all M is constant. Hence the variance of their mean is
  $\frac{M - B}{M - 1} \frac{\mathrm{Var}}{B}$.
- Lemma 3.4.1: for all compressors of EC-SGD,
  $\tilde x_t = x_t - \gamma (\delta_{t-1} + \frac1N \sum_n \delta_{t-1}^{(n)})$ makes the step
  $-\gamma \frac1N \sum_n g_n(x_t)$: compression errors are sent in later rounds.
- Lemma 4.2.1, corrected: $x_t - x_{D(t)}$ is a sum of at most $\tau$ steps with uncorrelated noise:
  $E|f'(x_t) - f'(x_{D(t)})|^2 \le 2\gamma^2 L^2 \tau \sigma^2 + 2\gamma^2 L^2 \tau
  \sum_{s = D(t)}^{t-1} E|f'(x_{D(s)})|^2$.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import algorithms
from dsgd import compressors, problems
from dsgd.base import Algorithm, Problem
from dsgd.problems import Examples
from theory_checks.machinery import instances, moments, trajectories
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.statements import asynchronous_sgd, minibatch_sgd
from theory_checks.statements.sgd import total_noise

_BATCHES = 2**16


def gradient_and_gap(draws: Draws) -> list[Outcome]:
    """Checks the inequality at the start of a random quadratic, or of a regression that fits its
    data.
    """
    convex = draws.choice((True, False))
    if convex:
        problem = instances.quadratic(draws, 1, 3, noisy=False)
    else:
        problem = problems.robust_regression(
            2, 3, samples=8, residual=0.0, seed=draws.integer(0, 2**32 - 1)
        )
    constants = instances.constants(problem)
    slope = _mean_gradient(problem.loss, problem.init(jax.random.key(0)), problem.data)
    return [
        Outcome(
            float(jnp.sum(slope**2)), 2 * constants.smoothness * constants.gap, case=problem.name
        )
    ]


def gradient_and_gap_of_a_bowl() -> list[Outcome]:
    """Checks a bowl, on which both sides are equal."""
    problem = instances.bowl(1, 3, distance=2.0, smoothness=3.0)
    slope = _mean_gradient(problem.loss, problem.init(jax.random.key(0)), problem.data)
    return [
        Outcome(
            float(jnp.sum(slope**2)), 2 * 3.0 * instances.constants(problem).gap, case=problem.name
        )
    ]


@partial(jax.jit, static_argnames="loss")
def _mean_gradient(loss, x, data):
    return jax.grad(lambda x: jnp.mean(jax.vmap(loss, (None, 0))(x, data)))(x)


def variance_of_batches(draws: Draws) -> list[Outcome]:
    """Checks the mean square of a batch's mean, over many batches of vectors drawn by the project's
    sampler.
    """
    M, B = draws.choice(((2, 1), (5, 2), (5, 5), (12, 4), (12, 11)))
    return _variance_of_a_batch(M, B, draws.choice((True, False)), draws.integer(0, 2**31 - 1))


def variance_of_a_third() -> list[Outcome]:
    """Checks batches of a third of the data, for which sampling with and without replacement, and
    the printed (1.19), differ clearly.
    """
    return [
        outcome
        for replacement in (True, False)
        for outcome in _variance_of_a_batch(12, 4, replacement, 0)
    ]


def _variance_of_a_batch(M: int, B: int, replacement: bool, seed: int) -> list[Outcome]:
    a = np.random.default_rng(seed).standard_t(4, size=(M, 3))
    a -= a.mean(axis=0)
    key = jax.random.key(seed)
    squares = np.asarray(_batch_means(problems.minibatch(B, replacement), key, jnp.asarray(a)))
    right = minibatch_sgd.variance(
        noise=float(np.sqrt(np.mean(np.sum(a**2, axis=1)))),
        batch_size=B,
        samples=None if replacement else M,
    )
    error = float(squares.std(ddof=1) / np.sqrt(len(squares)))
    how = "with" if replacement else "without"
    return [
        Outcome(
            float(squares.mean()),
            right,
            error,
            f"{B} of {M} {how} replacement",
            equality=True,
            scale=float((a**2).sum()),
        )
    ]


@partial(jax.jit, static_argnames="sample")
def _batch_means(sample, key, a):
    """Returns |mean of a batch|^2 of many batches."""
    samples = Examples(a, a[:, 0], jnp.ones(a.shape[0]))
    means = jax.vmap(lambda key: sample(key, samples).inputs.mean(axis=0))(
        jax.random.split(key, _BATCHES)
    )
    return jnp.sum(means**2, axis=1)


def _double_squeeze(of: Instance) -> Algorithm:
    return algorithms.error_compensated_sgd(
        optax.sgd(of.learning_rate), compressors.top_k(0.5), compressors.clipping(3)
    )


def virtual_iterates(draws: Draws) -> list[Outcome]:
    """Checks Lemma 3.4.1 in every round, with top-k for the workers' messages and short mantissas
    for the server's.
    """
    of = trajectories.instance(draws)
    found = trajectories.run(_double_squeeze, of, seed=draws.integer(0, 2**31 - 1))
    memory = found.states.workers
    of_workers, of_servers = (
        trajectories.join_parts(each.error) for each in (memory.worker, memory.server)
    )
    virtual = trajectories.rows(found.states.server.params, 1) - of.learning_rate * (
        of_workers.mean(axis=1) + of_servers
    )
    expected = virtual[:-1] - of.learning_rate * found.gradients.mean(axis=1)
    deviation = float(np.abs(virtual[1:] - expected).max())
    scale = float(np.abs(expected).max())
    return [Outcome(deviation, 0.0, case="virtual model", equality=True, scale=scale)]


def staleness(draws: Draws) -> list[Outcome]:
    """Checks Lemma 4.2.1 at the worst t of a random quadratic and a random staleness table."""
    problem = instances.quadratic(draws, 3, 2, hessians=("isotropic", "equal"))
    return [_worst_staleness(problem, asynchronous_sgd.table(draws), draws.real(0.01, 1.0))]


def staleness_of_bowls() -> list[Outcome]:
    """Checks quadratics with nearly constant gradients, or with noise; each alone attains half of
    the bound.
    """
    cases = ((1.0, 0.0, 12, 0.01), (0.0, 1.0, 1, 0.01), (0.0, 1.0, 12, 1.0))
    return [
        _worst_staleness(
            instances.bowl(3, 2, distance=away + 1e-3, noise=noise), np.full(64, tau), share
        )
        for away, noise, tau, share in cases
    ]


def _worst_staleness(problem: Problem, table: np.ndarray, share: float) -> Outcome:
    steps, L, tau = 100, instances.constants(problem).smoothness, int(table.max())
    gamma = share * asynchronous_sgd.largest_step(smoothness=L, staleness=tau)
    build = asynchronous_sgd.with_table(asynchronous_sgd.OLDEST)
    found = moments.second_moments(
        build,
        problem,
        gamma,
        steps=steps,
        one_worker=True,
        varying=True,
        more=np.asarray(table, np.int32),
    )
    factor, noise = 2 * (gamma * L) ** 2 * tau, total_noise(problem)
    worst = Outcome(0.0, 1.0)
    for t in range(1, steps):
        D = t - min(int(table[t % len(table)]), t)
        right = factor * (noise**2 + float(found["asked"][D:t].sum()))
        # Values that are 0 now still carry rounding errors of earlier, larger values.
        scale = float(found["slope"][t] + found["asked"][t] + 1e-12 * found["slope"].max())
        at_t = Outcome(
            float(found["stale"][t]),
            right,
            case=f"{problem.name}, tau = {tau}, t = {t}",
            scale=scale,
        )
        worst = max(worst, at_t, key=lambda outcome: outcome.badness)
    return worst


STATEMENTS = [
    Statement(
        "|f'|^2 <= 2L (f - f*)",
        "after Theorem 1.1.1",
        "f smooth, bounded below",
        gradient_and_gap,
        (gradient_and_gap_of_a_bowl,),
    ),
    Statement(
        "variance of a batch",
        "Lemma 1.2.2, (1.17)",
        "none",
        variance_of_batches,
        (variance_of_a_third,),
    ),
    Statement("EC-SGD, virtual iterates", "Lemma 3.4.1", "none: any Q", virtual_iterates),
    Statement(
        "staleness of gradients",
        "Lemma 4.2.1",
        "delays independent of samples",
        staleness,
        (staleness_of_bowls,),
    ),
]
