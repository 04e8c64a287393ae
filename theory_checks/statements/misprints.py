r"""Misprints of the survey and of the DropCompute paper: each printed formula is evaluated on an
instance on which it fails and the corrected formula holds.

Left sides are measured or exact; instances are as small as possible. Formulas are printed as in the
survey's text, with s for its $\sigma$, z for $\varsigma$, g for $\gamma$, and l and r for latency
and transfer time.
"""

from __future__ import annotations

import math
from fractions import Fraction

import jax
import numpy as np
import optax

import algorithms
import dsgd
import topologies
from dsgd import compressors, network, problems
from theory_checks.machinery import instances, moments, rates
from theory_checks.machinery.statement import Misprint, Outcome, both
from theory_checks.statements import (
    asynchronous_sgd,
    decentralized_sgd,
    dropcompute_misprints,
    dropcompute_speedup,
    error_compensated_sgd,
    gradient_descent,
    sgd,
)


def gradient_and_gap() -> tuple[Outcome, Outcome]:
    """Evaluates both inequalities for f(x) = x^2 / 2 at x = 1, where |f'|^2 = 1, f - f* = 1/2, L =
    1.
    """
    return both(1.0, 0.5, 1.0)


def model_function() -> tuple[Outcome, Outcome]:
    """Compares the minimiser of the model function of f(x) = x^2 / 2 at x_t = 1, gamma = 1/2, with
    the next iterate of gradient descent. With the printed linear term, which is constant, the
    minimiser is x_t.
    """
    at, gamma = 1.0, 0.5
    x = np.linspace(-2, 2, 4001)
    printed, corrected = (
        float(x[np.argmin(at**2 / 2 + at * along + (x - at) ** 2 / (2 * gamma))])
        for along in (x - x, x - at)
    )
    return both(at - gamma * at, printed, round(corrected, 9), equality=True)


def sgd_without_noise() -> tuple[Outcome, Outcome]:
    """Evaluates both rates, with the theorem's constant 2, for one step on f = 5 x^2 from 1: L =
    10, D = 5, |f'|^2 = 100.
    """
    L, D, steps = 10.0, 5.0, 1
    return both(float((L * 1.0) ** 2), 2 * L * D / L, 2 * L * D / steps)


def when_sgd_is_favoured() -> tuple[Outcome, Outcome]:
    """Computes the ratio of SGD's queries to those of GD with L = 1, M = 10^4, at an eps that is
    100 times the printed limit (sigma = 100), and 100 times the corrected one (sigma = 1).
    """
    M, found = 10_000, []
    for noise, eps in ((100.0, 100 * 100 / M), (1.0, 100 / M)):
        ours, full = (
            sgd.rate(gap=0.5, smoothness=1.0, noise=noise),
            gradient_descent.rate(gap=0.5, smoothness=1.0),
        )
        found.append(Outcome(ours.iterations(eps) / (M * full.iterations(eps)), 1.0))
    return found[0], found[1]


def second_moment() -> tuple[Outcome, Outcome]:
    """Evaluates both right sides for xi that is 0 or 2, with a random sign: E xi = 0, so E|xi|^2 =
    2, while (E|xi|)^2 = 1.
    """
    values = np.array([0.0, 2.0, 0.0, -2.0])
    deviations = np.abs(values - values.mean())
    return both(
        float(np.mean(values**2)),
        float(values.mean() ** 2 + deviations.mean() ** 2),
        float(values.mean() ** 2 + (deviations**2).mean()),
        equality=True,
    )


def batch() -> tuple[Outcome, Outcome]:
    """Computes the variance of the mean of two fair signs, drawn with replacement, over all pairs:
    it is 1/2, and each term has the variance 1.
    """
    pairs = np.array([[a, b] for a in (-1, 1) for b in (-1, 1)])
    return both(float(np.mean(pairs.mean(axis=1) ** 2)), 2 * 1 / 2, 2 * 1 / 4, equality=True)


def draws_without_replacement() -> tuple[Outcome, Outcome]:
    """Computes the variance of the mean of two of {-1, 0, 1}, drawn without replacement, over all
    pairs: it is 1/6.
    """
    a = np.array([-1.0, 0.0, 1.0])
    means = [(a[i] + a[j]) / 2 for i in range(3) for j in range(i)]
    M, B, variance = 3, 2, float(np.mean(a**2))
    printed, corrected = B * (M - B) / (M - 1) * variance, (M - B) / (B * (M - 1)) * variance
    return both(float(np.mean(np.square(means))), printed, corrected, equality=True)


def _power_of(rate: rates.Rate) -> float:
    """Returns d log T / d log (1 / eps) at small eps, rounded to three digits."""
    few, many = rate.iterations(1e-7), rate.iterations(1e-9)
    return round(math.log(many / few) / math.log(100), 3)


def error_compensation_order() -> tuple[Outcome, Outcome]:
    """Computes the power of 1 / eps with which the theorem's number of iterations grows, for D = L
    = 1 and sigma' = 1e6.
    """
    rate = error_compensated_sgd.rate(
        gap=1.0, smoothness=1.0, noise=0.0, compression=1e6, workers=1
    )
    return both(_power_of(rate), round(2 / 3, 3), 3 / 2, equality=True)


def decentralization_order() -> tuple[Outcome, Outcome]:
    """Computes the power of 1 / eps with which the theorem's number of iterations grows, for D = L
    = 1, varsigma = 1e6 and rho = 1/2.
    """
    rate = decentralized_sgd.rate(
        gap=1.0, smoothness=1.0, noise=0.0, heterogeneity=1e6, workers=4, rho=0.5
    )
    return both(_power_of(rate), round(2 / 3, 3), 3 / 2, equality=True)


def asynchronous_speedup() -> tuple[Outcome, Outcome]:
    """Compares the exact results of 16 workers (tau = 15) and of one worker after the same number
    of updates, for f = x^2 / 2 with much noise.

    With sigma^2 / (N eps^2), 16 workers would reach an eps about a quarter as large; with sigma^2 /
    eps^2, the same eps; the term N / eps adds to both.
    """
    noise, steps = 10.0, 16_000
    left = [
        asynchronous_sgd.check(
            instances.unit_bowl(1, [1.0], noise), np.full(64, N - 1), steps=steps
        ).measured
        for N in (1, 16)
    ]
    alone, printed, corrected = (
        asynchronous_sgd.rate(gap=0.5, smoothness=1.0, noise=sigma, staleness=tau)(steps)
        for sigma, tau in ((noise, 0), (noise / 4, 15), (noise, 15))
    )
    return both(left[1] / left[0], printed / alone, corrected / alone)


def ring() -> tuple[Outcome, Outcome]:
    """Compares the ring's result for four workers with equal gradients 1 and no compression error,
    which is 1, with both formulas.
    """
    g = np.ones(4)
    printed = g.sum()  # Q(... Q(Q(g_1) + g_2) ... + g_N)
    return both(float(_ring_step(g)), float(printed), float(printed / 4), equality=True)


def _ring_step(g: np.ndarray) -> float:
    """Returns the aggregate of the project's ring: one step with gamma = 1 from 0."""
    A = np.ones((len(g), 4))
    problem = problems.quadratic(A, -np.outer(g, np.ones(4)))
    method = algorithms.compressed_sgd(optax.sgd(1.0), compressors.identity, ring=True)
    with jax.enable_x64(True):
        return -float(dsgd.run(method, problem, steps=1, key=jax.random.key(0), mesh=1).params[0])


def sparsification() -> tuple[Outcome, Outcome]:
    """Sums the probabilities of all possible values of an element for p = 1/4, which must be 1."""
    p = 0.25
    return both(1.0, p + p, (1 - p) + p, equality=True)


def averaged_noise() -> tuple[Outcome, Outcome]:
    """Computes E|Delta|^2 over all 16 cases of four workers whose gradients differ from f' by 1 or
    -1, independently: it is 1/4.

    In the theorem's assumption, sigma^2 is the variance of the mean of the gradients, and a fourth
    of it is too small; in the proof and in Assumption 6, it is the variance of one worker's
    gradient.
    """
    N = 4
    cases = 1.0 - 2 * ((np.arange(2**N)[:, None] >> np.arange(N)) & 1)
    of_mean, of_one = float(np.mean(cases.mean(axis=1) ** 2)), float(np.mean(cases**2))
    return both(of_mean, of_mean / N, of_one / N)


def compensation() -> tuple[Outcome, Outcome]:
    """Evaluates both inequalities for one worker whose error equals the server's, so that |Omega|^2
    = 4 sigma'^2; L = sigma' = 1, gamma = 1/2.

    The distance of the gradients is 1, and so is its square, so that (3.18) is wrong even with the
    square that is missing on its left side.
    """
    L, gamma, delta = 1.0, 0.5, np.array([1.0])
    distance = L * gamma * float(np.linalg.norm(delta + delta))
    return Outcome(distance, 2 * L**2 * gamma**2), Outcome(distance**2, 4 * L**2 * gamma**2)


def inner_product() -> tuple[Outcome, Outcome]:
    """Evaluates both identities at a = (1, 0), b = (1, 1)."""
    a, b = np.array([1.0, 0.0]), np.array([1.0, 1.0])
    half = (a @ a + b @ b - (a - b) @ (a - b)) / 2
    return both(float(a @ b), -float(half), float(half), equality=True)


def stale_gradients() -> tuple[Outcome, Outcome]:
    """Evaluates both inequalities on f = x^2 / 2 without noise, with gamma = 1/2, from 1, and
    D(0..3) = 0, 0, 0, 2: the gradient at x_2 = 0 is 0, yet x_3 differs from x_2.
    """
    gamma, x, D = 0.5, [1.0], (0, 0, 0, 2)
    for t in range(3):
        x.append(x[t] - gamma * x[D[t]])
    t, tau = 3, 2
    past = range(D[t], t)
    factor = 2 * gamma**2 * tau
    left = (x[t] - x[D[t]]) ** 2
    return both(
        left, factor * sum(x[D[t]] ** 2 for _ in past), factor * sum(x[D[s]] ** 2 for s in past)
    )


def stale_descent() -> tuple[Outcome, Outcome]:
    """Evaluates both descent inequalities at step 5, in which f increases, on f = x^2 / 2 without
    noise, from 1, with gamma = 1/4 and D(t) = max(0, t - 2), so that gamma L tau = 1/2.
    """
    gamma, tau, x = 0.25, 2, [1.0]

    def D(t: int) -> int:
        return max(0, t - tau)

    for t in range(6):
        x.append(x[t] - gamma * x[D(t)])
    t = 5
    printed, corrected = (
        -gamma / 2 * x[t] ** 2 + gamma / (4 * tau) * sum(x[at(s)] ** 2 for s in range(D(t), t))
        for at in (lambda s: s, D)
    )
    return both((x[t + 1] ** 2 - x[t] ** 2) / 2, printed, corrected)


def asynchronous_step() -> tuple[Outcome, Outcome]:
    """Computes gamma L tau, which (4.8) requires to be at most 1/2, for sigma = 0, tau = 4 and L =
    1: with the printed step size it is 4/5.
    """
    L, tau = 1.0, 4
    printed = 1 / (L * (tau + 1))
    ours = asynchronous_sgd.step_size(gap=1.0, smoothness=L, noise=0.0, steps=100, staleness=tau)
    return Outcome(printed * L * tau, 0.5), Outcome(ours * L * tau, 0.5)


def first_models() -> tuple[Outcome, Outcome]:
    """Computes X_2 of two workers on the complete graph, from X_1 = 0, with gamma = 1 and gradients
    1 and 3: X_2 = -(1, 3) W = -(2, 2).
    """
    W, G = np.full((2, 2), 1 / 2), np.array([1.0, 3.0])
    X = (np.zeros(2) - G) @ W
    return both(float(X[0]), float((G @ W)[0]), float(-(G @ W)[0]), equality=True)


def full_graph() -> tuple[Outcome, Outcome]:
    """Compares the rho of the complete graph of 4 workers with both values."""
    return both(topologies.complete(4).rho, 1.0, 0.0, equality=True)


def disconnected_graph() -> tuple[Outcome, Outcome]:
    """Runs gossip on three workers that average and an isolated one, f_n = (x - b_n)^2 / 2, b = (0,
    0, 0, 4): the isolated worker receives no information on f.

    Left side: the distance of its model from the minimiser 1 after many steps, which would be 0 if
    the matrix worked.
    """
    W = np.zeros((4, 4))
    W[:3, :3], W[3, 3] = 1 / 3, 1.0
    b, x = np.array([0.0, 0.0, 0.0, 4.0]), np.zeros(4)
    for _ in range(4_000):
        x = W @ (x - 0.01 * (x - b))
    return both(float(abs(x[3] - b.mean())), 0.0, float(abs(b[3] - b.mean())), equality=True)


def ring_spectrum() -> tuple[Outcome, Outcome]:
    """Compares the spectral gap of ring(1000), rounded to 1 %, with both approximations."""
    gap, right = topologies.ring(1000).spectral_gap, 4 * math.pi**2 / 3e6
    return Outcome(round(gap / right, 2), 4.0, equality=True), Outcome(
        round(gap / right, 2), 1.0, equality=True
    )


def apart() -> tuple[Outcome, Outcome]:
    """Evaluates both bounds for two workers, f_n = x^2 / 2 -+ x, at x = (-1, 1). The gradients are
    -2 and 2, and varsigma = 1, so that the left side is 8 and the printed right side 2 + 2.
    """
    x, b, L = np.array([-1.0, 1.0]), np.array([1.0, -1.0]), 1.0
    local, mean = x - b, float(x.mean() - b.mean())
    left = float(np.sum((local - mean) ** 2))
    disagreement, varsigma = float(np.sum((x - x.mean()) ** 2)), float(np.mean(b**2))
    return both(
        left, L**2 * disagreement + 2 * varsigma, 2 * L**2 * disagreement + 2 * 2 * varsigma
    )


def bracket() -> tuple[Outcome, Outcome]:
    """Evaluates both expressions at x = 1 with gamma = 1/2, on f = x^2 / 2 - 10, which is negative
    along the trajectory.
    """
    f, gamma, x = (lambda x: x**2 / 2 - 10), 0.5, 1.0
    after = x - gamma * x
    printed, corrected = 2 / gamma * f(x) - f(after), 2 / gamma * (f(x) - f(after))
    return both(x**2, printed, corrected)


def decentralized_step() -> tuple[Outcome, Outcome]:
    """Compares both step sizes for a linear speedup: with N = 16 times the workers the step size
    may be 4 times as large; as printed it is 4 times smaller.

    Left side: the exact result of mini-batch SGD (the complete graph, rho = 0) at the printed and
    at the corrected step size. Right side: the rate 2LD/T + 2 sigma sqrt(2LD/(NT)), which holds at
    the corrected step size.
    """
    N, noise, steps, D = 16, 4.0, 20_000, 0.5
    problem = instances.unit_bowl(N, [1.0], noise)
    rate = decentralized_sgd.rate(
        gap=D, smoothness=1.0, noise=noise, heterogeneity=0.0, workers=N, rho=0.0
    )(steps)
    found = []
    for gamma in (1 / (1 + math.sqrt(steps * N) * noise), 1 / (1 + math.sqrt(steps / N) * noise)):
        build = moments.with_step(algorithms.minibatch_sgd)
        found.append(
            float(
                moments.second_moments(build, problem, gamma, steps=steps)["slope"][:steps].mean()
            )
        )
    return Outcome(found[0], rate), Outcome(found[1], rate)


def decentralized_condition() -> tuple[Outcome, Outcome]:
    """Evaluates the inequality that the proof derives from (5.11), 8 L^2 s^2 g^2 rho^2/(1 - rho)^2
    <= L s^2 g / N, at the largest g of each version, for N = 2 and rho = 1/2.
    """
    L, N, rho = 1.0, 2, 0.5

    def quotient(second: float) -> float:
        gamma = min((1 - rho) / (4 * L), second)
        return 8 * L * gamma * rho**2 * N / (1 - rho) ** 2  # the quotient of the two sides

    return Outcome(quotient((1 - rho) ** 2 * N / L), 1.0), Outcome(
        quotient((1 - rho) ** 2 / (8 * L * rho**2 * N)), 1.0
    )


def third_message() -> tuple[Outcome, Outcome]:
    """Computes the switch's time from the first start to the last end with both receivers of the
    third message, and compares it with the 14 of figure 1.3 and its text.
    """
    found = []
    for receiver in (1, 0):
        listed = [
            network.Message(0, 1, ready=5),
            network.Message(1, 0, ready=6),
            network.Message(2, receiver, ready=6),
        ]
        shown = network.simulate(listed, Fraction(3, 2), 5)
        found.append(float(shown.seconds - shown.start))
    return Outcome(14.0, found[0], equality=True), Outcome(14.0, found[1], equality=True)


def _ring_seconds(N: int, latency: Fraction, transfer: Fraction) -> float:
    return float(network.simulate(_messages(N), latency, transfer).seconds)


def _messages(N: int) -> list[network.Message]:
    listed = network.ring_all_reduce.messages
    assert listed is not None
    return listed(N)


def sent_by_each() -> tuple[Outcome, Outcome]:
    """Computes the total size of the messages that the first of four workers sends, in vectors."""
    sent = sum(message.size for message in _messages(4) if message.sender == 0)
    return both(float(sent), 1.0, 2 * 3 / 4, equality=True)


def all_reduce() -> tuple[Outcome, Outcome]:
    """Compares the simulated seconds of a ring all-reduce of four workers on the switch, l = 1, r =
    4, with both formulas for N + 1 workers.
    """
    N, latency, transfer = 3, 1, 4
    printed, corrected = (
        2 * N * latency + 2 * transfer,
        2 * N * latency + 2 * N / (N + 1) * transfer,
    )
    return both(
        _ring_seconds(N + 1, Fraction(latency), Fraction(transfer)),
        printed,
        corrected,
        equality=True,
    )


def all_reduce_of_workers() -> tuple[Outcome, Outcome]:
    """Compares the simulated seconds of a ring all-reduce of four workers on the switch, l = 1, r =
    4, with both formulas for N workers.
    """
    N, latency, transfer = 4, 1, 4
    printed, corrected = 2 * N * latency + 2 * transfer, 2 * (N - 1) * (latency + transfer / N)
    return both(
        _ring_seconds(N, Fraction(latency), Fraction(transfer)), printed, corrected, equality=True
    )


MISPRINTS = [
    Misprint(
        "model function, section 1.1.1",
        "<f'(x_t), x - x>",
        "<f'(x_t), x - x_t>",
        "x^2/2, g = 1/2",
        model_function,
    ),
    Misprint(
        "after Theorem 1.1.1",
        "|f'|^2 / L <= f - f*",
        "|f'|^2 / (2L) <= f - f*",
        "x^2/2 at 1",
        gradient_and_gap,
    ),
    Misprint(
        "(1.12)",
        "|E xi|^2 + E[|xi - E xi|]^2",
        "|E xi|^2 + E[|xi - E xi|^2]",
        "0 or +-2",
        second_moment,
    ),
    Misprint(
        "after Theorem 1.2.1",
        "L (f(x_1) - f*) / L at s = 0",
        "L (f(x_1) - f*) / T",
        "5 x^2, T = 1",
        sgd_without_noise,
    ),
    Misprint(
        "section 1.2.2",
        "SGD where s/(M sqrt(L)) << eps",
        "where s^2/M << eps",
        "M = 10^4",
        when_sgd_is_favoured,
    ),
    Misprint(
        "below (1.17)", "1/B sum E|F_m' - f'|^2", "1/B^2 sum E|F_m' - f'|^2", "2 fair signs", batch
    ),
    Misprint(
        "(1.19)",
        "B (M-B)/(M-1) E|xi_1|^2",
        "(M-B)/(B(M-1)) E|xi_1|^2",
        "2 of {-1, 0, 1}",
        draws_without_replacement,
    ),
    Misprint(
        "Table 1.1, EC-SGD",
        "s'/eps^(2/3)",
        "s'/eps^(3/2)",
        "power of 1/eps in Theorem 3.4.3's rate",
        error_compensation_order,
    ),
    Misprint(
        "Table 1.1, DSGD",
        "rho z/((1-rho) eps^(2/3))",
        "rho z/((1-rho) eps^(3/2))",
        "power of 1/eps in Theorem 5.2.11's rate",
        decentralization_order,
    ),
    Misprint(
        "Table 1.1, ASGD",
        "N/eps + s^2/(N eps^2)",
        "N/eps + s^2/eps^2 updates",
        "N = 16, much noise",
        asynchronous_speedup,
    ),
    Misprint(
        "Example 1.3.1", "0:06 M3 sends to M2", "0:06 M3 sends to M1", "14 in all", third_message
    ),
    Misprint(
        "section 1.3.3, observation 1",
        "each sends one vector",
        "each sends 2(N-1)/N",
        "N = 4",
        sent_by_each,
    ),
    Misprint(
        "sections 1.3.3, 1.3.4",
        "N+1 workers: 2N l + 2r",
        "2N l + 2N/(N+1) r",
        "4 on the switch",
        all_reduce,
    ),
    Misprint(
        "sections 2.1.2, 3.1.2",
        "N workers: 2N l + 2r",
        "2(N-1) (l + r/N)",
        "4 on the switch",
        all_reduce_of_workers,
    ),
    Misprint(
        "(3.5)", "Q(... Q(Q(g_1) + g_2) ... + g_N)", "the same / N", "4 equal gradients", ring
    ),
    Misprint(
        "section 3.2",
        "0 with probability p, z/p with p",
        "0 with probability 1-p, z/p with p",
        "p = 1/4",
        sparsification,
    ),
    Misprint(
        "Theorem 3.4.3, (3.17)",
        "s^2 of the mean gradient",
        "s^2 of each worker's",
        "4 fair signs",
        averaged_noise,
    ),
    Misprint(
        "(3.18)",
        "E|f'(x~) - f'(x)| <= 2 L^2 g^2 s'^2",
        "E|.|^2 <= 4 L^2 g^2 s'^2",
        "equal errors",
        compensation,
    ),
    Misprint(
        "(4.4)",
        "<a,b> = (|a-b|^2-|a|^2-|b|^2)/2",
        "its negative",
        "a = (1,0), b = (1,1)",
        inner_product,
    ),
    Misprint(
        "Lemma 4.2.1",
        "sum over s of |f'_s(x_D(t))|^2",
        "sum over s of |f'(x_D(s))|^2",
        "x^2/2, tau = 2",
        stale_gradients,
    ),
    Misprint("(4.9)", "sum of a_s", "sum of a_D(s)", "x^2/2, tau = 2", stale_descent),
    Misprint(
        "(4.10)",
        "1/(L(tau+1) + sqrt(TL) s) meets (4.8)",
        "1/(2L(tau+1) + ...) does",
        "s = 0, tau = 4",
        asynchronous_step,
    ),
    Misprint(
        "below W_3, section 5.2.1",
        "W_1 (with rho = 1)",
        "rho = 0, as its display has",
        "complete(4)",
        full_graph,
    ),
    Misprint(
        "W_2, section 5.2.1", "1 - 16 pi^2/(3N^2)", "1 - 4 pi^2/(3N^2)", "ring(1000)", ring_spectrum
    ),
    Misprint(
        "below W_3, section 5.2.1",
        "W_3 does work for DSGD",
        "it does not",
        "3 + 1 workers",
        disconnected_graph,
    ),
    Misprint("(5.5)", "L^2|X-Xbar|^2 + N z^2", "2 L^2|X-Xbar|^2 + 2 N z^2", "2 workers", apart),
    Misprint(
        "proof of Lemma 5.2.5",
        "X_t = g sum G_s W^(t-s)",
        "X_t = X_1 - g sum G_s W^(t-s)",
        "2 workers",
        first_models,
    ),
    Misprint(
        "Lemma 5.2.9", "2/g E f_t - E f_(t+1)", "2/g (E f_t - E f_(t+1))", "x^2/2 - 10", bracket
    ),
    Misprint(
        "Theorem 5.2.11",
        "1/(1 + sqrt(TN) s + ...)",
        "1/(1 + sqrt(T/N) s + ...)",
        "N = 16",
        decentralized_step,
    ),
    Misprint(
        "(5.11)",
        "(1-rho)^2 N / L",
        "(1-rho)^2 / (8 L rho^2 N)",
        "N = 2, rho = 1/2",
        decentralized_condition,
    ),
    *dropcompute_misprints.MISPRINTS,
    *dropcompute_speedup.MISPRINTS,
]
