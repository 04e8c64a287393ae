"""Where the survey misprints: each printed formula evaluated on an instance where it fails, beside the corrected one, where it holds.

Left sides are measured or exact; instances are as small as they can be. Printed formulas stand as in the survey's text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import optax

import algorithms
import dsgd
import topologies
from dsgd import compressors, problems
from dsgd.base import Problem
from theory_checks.machinery import moments, rates
from theory_checks.machinery.statement import Outcome
from theory_checks.statements import asynchronous_sgd, decentralized_sgd, error_compensated_sgd


class Misprint(NamedTuple):
    """A formula that fails as printed.

    Args:
        reference: where it is.
        printed, corrected: the two in words.
        example: the instance.
        compare: () -> what the printed formula gives on it, and what the corrected one does, beside the left side.
    """

    reference: str
    printed: str
    corrected: str
    example: str
    compare: Callable[[], tuple[Outcome, Outcome]]


def _both(measured: float, printed: float, corrected: float, *, equality: bool = False) -> tuple[Outcome, Outcome]:
    return Outcome(measured, printed, equality=equality), Outcome(measured, corrected, equality=equality)


def _bowl(workers: int = 1, noise: float = 0.0) -> Problem:
    """f_n(x) = x^2 / 2, from 1."""
    return problems.quadratic(np.ones((workers, 1)), np.zeros((workers, 1)), noise=noise, start=np.ones(1))


def gradient_and_gap() -> tuple[Outcome, Outcome]:
    """f(x) = x^2 / 2 at x = 1: |f'|^2 = 1, f - f* = 1/2, L = 1."""
    return _both(1.0, 0.5, 1.0)


def second_moment() -> tuple[Outcome, Outcome]:
    """xi = 0 or 2, of a random sign: E xi = 0, so E|xi|^2 = 2, while (E|xi|)^2 = 1."""
    values = np.array([0.0, 2.0, 0.0, -2.0])
    away = np.abs(values - values.mean())
    return _both(
        float(np.mean(values**2)), float(values.mean() ** 2 + away.mean() ** 2), float(values.mean() ** 2 + (away**2).mean()), equality=True
    )


def batch() -> tuple[Outcome, Outcome]:
    """All pairs of two fair signs, drawn with replacement: the mean's variance is 1/2."""
    pairs = np.array([[a, b] for a in (-1, 1) for b in (-1, 1)])
    return _both(float(np.mean(pairs.mean(axis=1) ** 2)), 2 * 1 / 2, 2 * 1 / 4, equality=True)


def without_replacement() -> tuple[Outcome, Outcome]:
    """All pairs of {-1, 0, 1}: the mean of two varies by 1/6."""
    a = np.array([-1.0, 0.0, 1.0])
    means = [(a[i] + a[j]) / 2 for i in range(3) for j in range(i)]
    M, B, variance = 3, 2, float(np.mean(a**2))
    printed, corrected = B * (M - B) / (M - 1) * variance, (M - B) / (B * (M - 1)) * variance
    return _both(float(np.mean(np.square(means))), printed, corrected, equality=True)


def _power_of(rate: rates.Rate) -> float:
    """d log T / d log (1 / eps) at small eps, to three digits."""
    few, many = rate.iterations(1e-7), rate.iterations(1e-9)
    return round(math.log(many / few) / math.log(100), 3)


def error_compensation_order() -> tuple[Outcome, Outcome]:
    """The theorem's own rate, D = L = 1, sigma' = 1e6: in which power of 1 / eps do its iterations grow?"""
    rate = error_compensated_sgd.rate(gap=1.0, smoothness=1.0, noise=0.0, compression=1e6, workers=1)
    return _both(_power_of(rate), round(2 / 3, 3), 3 / 2, equality=True)


def decentralization_order() -> tuple[Outcome, Outcome]:
    """The theorem's own rate, D = L = 1, varsigma = 1e6, rho = 1/2."""
    rate = decentralized_sgd.rate(gap=1.0, smoothness=1.0, noise=0.0, heterogeneity=1e6, workers=4, rho=0.5)
    return _both(_power_of(rate), round(2 / 3, 3), 3 / 2, equality=True)


def asynchronous_speedup() -> tuple[Outcome, Outcome]:
    """x^2 / 2 with much noise, exact, after as many updates of 16 workers (tau = 15) as of one.

    By sigma^2 / (N eps^2) they would reach an eps a quarter as large, by sigma^2 / eps^2 one as large (and N / eps on top).
    """
    noise, steps, left, rate = 10.0, 16_000, [], []
    for N in (1, 16):
        left.append(asynchronous_sgd.check(_bowl(noise=noise), np.full(64, N - 1), steps=steps).measured)
        rate.append(asynchronous_sgd.rate(gap=0.5, smoothness=1.0, noise=noise, staleness=N - 1)(steps))
    return _both(left[1] / left[0], 1 / 4, rate[1] / rate[0])


def ring() -> tuple[Outcome, Outcome]:
    """Four workers with equal gradients 1 and nothing lost: the ring's result is 1."""
    g = np.ones(4)
    printed = g.sum()  # Q(... Q(Q(g_1) + g_2) ... + g_N)
    return _both(float(_ring_step(g)), float(printed), float(printed / 4), equality=True)


def _ring_step(g: np.ndarray) -> float:
    """What the project's ring makes of gradients: one step with gamma = 1 from 0."""
    A = np.ones((len(g), 4))
    problem = problems.quadratic(A, -np.outer(g, np.ones(4)))
    method = algorithms.compressed_sgd(optax.sgd(1.0), compressors.identity, via="ring")
    with jax.enable_x64(True):
        return -float(dsgd.run(method, problem, steps=1, key=jax.random.key(0), mesh=1).params[0])


def sparsification() -> tuple[Outcome, Outcome]:
    """z = 1, p = 1/4: kept as z/p with probability 1 - p, its mean is 3; with probability p, 1."""
    z, p = 1.0, 0.25
    return _both(z, (1 - p) * z / p, p * z / p, equality=True)


def compensation() -> tuple[Outcome, Outcome]:
    """One worker whose error and the server's are equal: |Omega|^2 = 4 sigma'^2; L = gamma = sigma' = 1."""
    delta = np.array([1.0])
    omega = delta + delta
    return _both(float(omega @ omega), 2.0, 4.0)


def inner_product() -> tuple[Outcome, Outcome]:
    """a = (1, 0), b = (1, 1)."""
    a, b = np.array([1.0, 0.0]), np.array([1.0, 1.0])
    half = (a @ a + b @ b - (a - b) @ (a - b)) / 2
    return _both(float(a @ b), -float(half), float(half), equality=True)


def stale_gradients() -> tuple[Outcome, Outcome]:
    """x^2 / 2 without noise, gamma = 1/2, from 1, D(0..3) = 0, 0, 0, 2: x_2 = 0 has no gradient, yet x_3 has moved on from it."""
    gamma, x, D = 0.5, [1.0], (0, 0, 0, 2)
    for t in range(3):
        x.append(x[t] - gamma * x[D[t]])
    t, tau = 3, 2
    past = range(D[t], t)
    factor = 2 * gamma**2 * tau
    left = (x[t] - x[D[t]]) ** 2
    return _both(left, factor * sum(x[D[t]] ** 2 for _ in past), factor * sum(x[D[s]] ** 2 for s in past))


def asynchronous_step() -> tuple[Outcome, Outcome]:
    """sigma = 0, tau = 4, L = 1: gamma L tau is 4/5, where (4.8) needs at most 1/2."""
    L, tau = 1.0, 4
    printed = 1 / (L * (tau + 1))
    ours = asynchronous_sgd.step_size(gap=1.0, smoothness=L, noise=0.0, steps=100, staleness=tau)
    return Outcome(printed * L * tau, 0.5), Outcome(ours * L * tau, 0.5)


def full_graph() -> tuple[Outcome, Outcome]:
    """The complete graph of 4 workers."""
    return _both(topologies.complete(4).rho, 1.0, 0.0, equality=True)


def disconnected() -> tuple[Outcome, Outcome]:
    """Three workers who average, and one alone, f_n = (x - b_n)^2 / 2, b = (0, 0, 0, 4): the lone one never learns of f.

    Left side: the distance of its model from the minimiser 1 after many steps; "works" would bring it to 0.
    """
    W = np.zeros((4, 4))
    W[:3, :3], W[3, 3] = 1 / 3, 1.0
    b, x = np.array([0.0, 0.0, 0.0, 4.0]), np.zeros(4)
    for _ in range(4_000):
        x = W @ (x - 0.01 * (x - b))
    return _both(float(abs(x[3] - b.mean())), 0.0, float(abs(b[3] - b.mean())), equality=True)


def ring_spectrum() -> tuple[Outcome, Outcome]:
    """The gap of ring(1000), to 1 %."""
    gap, right = topologies.ring(1000).spectral_gap, 4 * math.pi**2 / 3e6
    return Outcome(round(gap / right, 2), 4.0, equality=True), Outcome(round(gap / right, 2), 1.0, equality=True)


def apart() -> tuple[Outcome, Outcome]:
    """Two workers, f_n = x^2/2 -+ x, at x = (-1, 1): gradients -2 and 2, varsigma = 1: 8 against 2 + 2."""
    x, b, L = np.array([-1.0, 1.0]), np.array([1.0, -1.0]), 1.0
    local, mean = x - b, float(x.mean() - b.mean())
    left = float(np.sum((local - mean) ** 2))
    away, varsigma = float(np.sum((x - x.mean()) ** 2)), float(np.mean(b**2))
    return _both(left, L**2 * away + 2 * varsigma, 2 * L**2 * away + 2 * 2 * varsigma)


def bracket() -> tuple[Outcome, Outcome]:
    """f = x^2/2 - 10, which is negative along the path; gamma = 1/2, at x = 1."""
    f, gamma, x = (lambda x: x**2 / 2 - 10), 0.5, 1.0
    after = x - gamma * x
    printed, corrected = 2 / gamma * f(x) - f(after), 2 / gamma * (f(x) - f(after))
    return _both(x**2, printed, corrected)


def decentralized_step() -> tuple[Outcome, Outcome]:
    """Linear speedup: with N = 16 times the workers the step may be 4 times as long; as printed it is 4 times shorter.

    Left side: what mini-batch SGD (the complete graph, rho = 0) has at the corrected step size, exact; right sides: the rate
    2LD/T + 2 sigma sqrt(2LD/(NT)) is met by it, and what the printed step size reaches is compared with the same rate.
    """
    N, noise, steps, D = 16, 4.0, 20_000, 0.5
    problem = _bowl(workers=N, noise=noise)
    rate = decentralized_sgd.rate(gap=D, smoothness=1.0, noise=noise, heterogeneity=0.0, workers=N, rho=0.0)(steps)
    found = []
    for gamma in (1 / (1 + math.sqrt(steps * N) * noise), 1 / (1 + math.sqrt(steps / N) * noise)):
        build = moments.with_step(algorithms.minibatch_sgd)
        found.append(float(moments.second_moments(build, problem, gamma, steps=steps)["slope"][:steps].mean()))
    return Outcome(found[0], rate), Outcome(found[1], rate)


def decentralized_condition() -> tuple[Outcome, Outcome]:
    """The step that the proof takes from (5.11), 8 L^2 s^2 g^2 rho^2/(1 - rho)^2 <= L s^2 g / N, at the largest g; N = 2, rho = 1/2."""
    L, N, rho = 1.0, 2, 0.5

    def left(gamma: float) -> float:
        return 8 * L * gamma * rho**2 * N / (1 - rho) ** 2  # the quotient of the two sides

    return Outcome(left((1 - rho) ** 2 * N / L), 1.0), Outcome(left((1 - rho) ** 2 / (8 * L * rho**2 * N)), 1.0)


MISPRINTS = [
    Misprint("after Theorem 1.1.1", "|f'|^2 / L <= f - f*", "|f'|^2 / (2L) <= f - f*", "x^2/2 at 1", gradient_and_gap),
    Misprint("(1.12)", "... + (E|xi - E xi|)^2", "... + E|xi - E xi|^2", "0 or +-2", second_moment),
    Misprint("(1.17)", "1/B sum E|.|^2", "1/B^2 sum E|.|^2", "2 fair signs", batch),
    Misprint("(1.19)", "B (M-B)/(M-1)", "(M-B)/(B(M-1))", "2 of {-1, 0, 1}", without_replacement),
    Misprint(
        "Table 1.1, EC-SGD", "sigma'/eps^(2/3)", "sigma'/eps^(3/2)", "power of 1/eps in Theorem 3.4.3's rate", error_compensation_order
    ),
    Misprint(
        "Table 1.1, DSGD", "varsigma/eps^(2/3)", "varsigma/eps^(3/2)", "power of 1/eps in Theorem 5.2.11's rate", decentralization_order
    ),
    Misprint("Table 1.1, ASGD", "s^2/(N eps^2) updates", "s^2/eps^2 updates", "N = 16, much noise", asynchronous_speedup),
    Misprint("(3.5)", "Q(... Q(g_1) + g_2 ...)", "the same / N", "4 equal gradients", ring),
    Misprint("section 3.2", "z/p unless dropped with p", "z/p kept with p", "z = 1, p = 1/4", sparsification),
    Misprint("(3.18)", "2 L^2 g^2 s'^2", "4 L^2 g^2 s'^2", "equal errors", compensation),
    Misprint("(4.4)", "<a,b> = (|a-b|^2-|a|^2-|b|^2)/2", "its negative", "a = (1,0), b = (1,1)", inner_product),
    Misprint("Lemma 4.2.1", "sum of f'(x_D(t))", "sum of f'(x_D(s))", "x^2/2, tau = 2", stale_gradients),
    Misprint("(4.10)", "1/(L(tau+1)) meets (4.8)", "1/(2L(tau+1)) does", "tau = 4", asynchronous_step),
    Misprint("W_1, section 5.2.1", "rho = 1", "rho = 0", "complete(4)", full_graph),
    Misprint("W_2, section 5.2.1", "1 - 16 pi^2/(3N^2)", "1 - 4 pi^2/(3N^2)", "ring(1000)", ring_spectrum),
    Misprint("W_3, section 5.2.1", "does work for DSGD", "does not", "3 + 1 workers", disconnected),
    Misprint("(5.5)", "L^2|X-Xbar|^2 + N z^2", "twice that", "2 workers", apart),
    Misprint("Lemma 5.2.9", "2/g E f_t - E f_(t+1)", "2/g (E f_t - E f_(t+1))", "x^2/2 - 10", bracket),
    Misprint("Theorem 5.2.11", "sqrt(TN) sigma", "sqrt(T/N) sigma", "N = 16", decentralized_step),
    Misprint("(5.11)", "(1-rho)^2 N / L", "(1-rho)^2 / (8 L rho^2 N)", "N = 2, rho = 1/2", decentralized_condition),
]
