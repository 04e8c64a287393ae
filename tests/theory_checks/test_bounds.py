"""Right-hand sides, step sizes and rates, each beside a plain version of its line in the table of bounds; and every hypothesis, by name."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import pytest

import topologies
from algorithms import delays
from dsgd import compressors, problems
from dsgd.base import Constants
from theory_checks import (
    asynchronous_sgd,
    bounds,
    compressed_sgd,
    decentralized_sgd,
    dropcompute,
    dropcompute_convex,
    ef21,
    error_compensated_sgd,
    gradient_descent,
    local_sgd,
    minibatch_sgd,
    sgd,
)
from theory_checks.machinery import instances, ranges
from theory_checks.machinery.batch_sizes import Pairs
from theory_checks.machinery.rates import Rate

DRAWS = 400
Numbers = dict[str, Any]


def spread(rng: np.random.Generator, low: float = -4, high: float = 4) -> float:
    """Over many orders of magnitude."""
    return float(10 ** rng.uniform(low, high))


def base(rng: np.random.Generator) -> Numbers:
    return {"gap": spread(rng), "smoothness": spread(rng), "steps": int(10 ** rng.uniform(0, 6))}


def noise(rng: np.random.Generator) -> float:
    return float(rng.choice([0.0, spread(rng)]))


# --- The table's lines once more, with its letters: D, L, s, z, s', T, N, g.


def plain_sgd(D, L, s, T, g):
    return (2 * D / (g * T) + g * L * s**2) / (2 - g * L)


def plain_variance(s, B, M, N):
    return s**2 / (N * B) * (1 if M is None else (M - B) / (M - 1) if M > 1 else 1)


def plain_effect(s, z, absolute, w, N, via):
    """r and c^2."""
    if via == "server":
        return w + w * (1 + w) / N, (1 + w) * ((1 + w) * s**2 + w * z**2) / N + (1 + 1 / N) * absolute**2
    # V_k = (1 + w) (V_{k-1} + s_k^2) + w k N (slope^2 + z^2), step by step: what stands before slope^2, z^2 and s^2.
    # At worst each worker's noise is all in the part that it begins: of N parts, s_1 = s and no noise after it.
    of_slope = of_noise = 0.0
    for k in range(1, N + 1):
        of_slope = (1 + w) * of_slope + w * k * N
        of_noise = (1 + w) * (of_noise + (N * s**2 if k == 1 else 0.0))
    return of_slope / N**2, (of_slope * z**2 + of_noise) / N**2 + absolute**2 / N


def plain_csgd(D, L, T, g, r, c2):
    return (2 * D / (g * T) + L * g * c2) / (2 - g * L * (1 + r))


def plain_ecsgd(D, L, s, absolute, T, N, g):
    return (2 * D / (g * T) + L * g * s**2 / N + 4 * L**2 * g**2 * absolute**2) / (1 - L * g)


def plain_asgd(D, L, s, T, tau, g):
    return 2 * D / (g * T) + g * L * s**2 * (1 + 2 * g * L * tau)


def plain_consensus(L, s, z, N, g, rho):
    """Where A^2 = rho^2 (((1 + g L) A + g z)^2 + g^2 s^2 (1 - 1/N)), as a quadratic equation of A."""
    square, linear, constant = 1 - (rho * (1 + g * L)) ** 2, rho**2 * (1 + g * L) * g * z, rho**2 * g**2 * (z**2 + s**2 * (1 - 1 / N))
    return ((linear + sqrt(linear**2 + square * constant)) / square) ** 2


def plain_dsgd(D, L, s, z, T, N, rho, g):
    return 2 * D / (g * T) + L * g * s**2 / N + L**2 * plain_consensus(L, s, z, N, g, rho)


def plain_ef21(D, alphas, first, w, delta, K, g):
    theta = min(1 - (1 - a) * (1 + zeta(a)) for a in alphas)
    most = max(wi / di for wi, di in zip(w, delta, strict=True))
    return 2 * D / (g * K) + most * sum(di * fi for di, fi in zip(delta, first, strict=True)) / (theta * K)


def zeta(alpha: float) -> float:
    """At 1 there is no error, whatever zeta."""
    return 1 / sqrt(1 - alpha) - 1 if alpha < 1 else 0.0


def plain_ef21_step(alphas, layers, L, w, delta):
    """By bisection of (9), layer by layer: g^2 w_i max(w / delta) max(delta beta) L^2 / theta + g L_i w_i <= 1."""
    theta = min(1 - (1 - a) * (1 + zeta(a)) for a in alphas)
    beta = [(1 - a) * (1 + 1 / zeta(a)) if a < 1 else 0.0 for a in alphas]
    factor = max(wi / di for wi, di in zip(w, delta, strict=True)) * max(di * bi for di, bi in zip(delta, beta, strict=True)) * L**2 / theta
    low, high = 0.0, 1e12
    for _ in range(200):
        g = (low + high) / 2
        fits = all(g**2 * wi * factor + g * Li * wi <= 1 for wi, Li in zip(w, layers, strict=True))
        low, high = (g, high) if fits else (low, g)
    return low


@pytest.mark.parametrize("seed", range(3))
def test_right_hand_sides_and_step_sizes_are_those_of_the_table(seed):
    rng = np.random.default_rng(seed)
    same = partial(pytest.approx, rel=1e-12)
    for _ in range(DRAWS):
        of, s, z, absolute = base(rng), noise(rng), noise(rng), noise(rng)
        D, L, T = of["gap"], of["smoothness"], of["steps"]
        N, g = int(rng.integers(1, 20)), rng.uniform(0.01, 1) / L
        assert bounds.gradient_descent(**of, learning_rate=1.9 * g) == same(D / (1.9 * g * T * (1 - 1.9 * g * L / 2)))
        assert gradient_descent.step_size(smoothness=L) == same(1 / L)

        assert bounds.sgd(**of, noise=s, learning_rate=g) == same(plain_sgd(D, L, s, T, g))
        assert sgd.step_size(**of, noise=s) == same(1 / (L + s * sqrt(L * T / (2 * D))))

        M = int(rng.integers(1, 30))
        B = int(rng.integers(1, M + 1))
        for samples in (None, M):
            batch = {"batch_size": B, "samples": samples, "workers": N}
            variance = plain_variance(s, B, samples, N)
            assert minibatch_sgd.variance(noise=s, **batch) == same(variance)
            assert bounds.minibatch_sgd(**of, noise=s, **batch, learning_rate=g) == same(plain_sgd(D, L, sqrt(variance), T, g))
            assert minibatch_sgd.step_size(**of, noise=s, **batch) == same(1 / (L + sqrt(variance * L * T / (2 * D))))

        for via in ("server", "ring"):
            for kind in ({"compression": absolute}, {"omega": spread(rng, -2, 1), "heterogeneity": z}):
                r, c2 = plain_effect(s, z, kind.get("compression", 0.0), kind.get("omega", 0.0), N, via)
                effect = compressed_sgd.effect(noise=s, workers=N, via=via, **kind)
                assert effect == (same(r), same(c2))
                small = g / (1 + r)
                found = bounds.compressed_sgd(**of, noise=s, workers=N, via=via, learning_rate=small, **kind)
                assert found == same(plain_csgd(D, L, T, small, r, c2))
                assert compressed_sgd.step_size(**of, effect=effect) == same(1 / (L * (1 + r) + sqrt(c2 * L * T / (2 * D))))

        ec = {**of, "noise": s, "compression": absolute, "workers": N}
        assert bounds.error_compensated_sgd(**ec, learning_rate=0.9 * g) == same(plain_ecsgd(D, L, s, absolute, T, N, 0.9 * g))
        inverse = 2 * L + s * sqrt(L * T / (N * D)) + (4 * L**2 * absolute**2 * T / D) ** (1 / 3)
        assert error_compensated_sgd.step_size(**ec) == same(1 / inverse)

        tau = int(rng.integers(0, 50))
        stale = {**of, "noise": s, "staleness": tau}
        fresh = g * L * asynchronous_sgd.largest_step(smoothness=L, staleness=tau)
        assert bounds.asynchronous_sgd(**stale, learning_rate=fresh) == same(plain_asgd(D, L, s, T, tau, fresh))
        assert asynchronous_sgd.step_size(**stale) == same(1 / (2 * L * (tau + 1) + s * sqrt(L * T / D)))
        largest = asynchronous_sgd.largest_step(smoothness=L, staleness=tau)
        assert largest * L + 2 * (largest * L * tau) ** 2 == same(1.0)

        rho = float(rng.choice([0.0, rng.uniform(0, 1), 1 - spread(rng, -6, -1)]))
        gossip = {**of, "noise": s, "heterogeneity": z, "workers": N, "rho": rho}
        near = g * min(1, (1 - rho) / (2 * max(rho, 1e-9)))
        assert bounds.decentralized_sgd(**gossip, learning_rate=near) == same(plain_dsgd(D, L, s, z, T, N, rho, near))
        kinds = {"smoothness": L, "noise": s, "heterogeneity": z, "workers": N, "learning_rate": near, "rho": rho}
        apart = bounds.consensus(**kinds)
        assert apart == same(plain_consensus(L, s, z, N, near, rho))
        K = 4 * L**2 * rho**2 * z**2 / (1 - rho) ** 2 + 2 * L**2 * rho**2 * s**2 / (1 - rho) * (1 - 1 / N)
        assert L**2 * apart <= K * near**2 * (1 + 1e-9)
        inverse = L * (1 + rho) / (1 - rho) + s * sqrt(L * T / (2 * N * D)) + (K * T / D) ** (1 / 3)
        assert decentralized_sgd.step_size(**gossip) == same(1 / inverse)


def layers_of(rng: np.random.Generator) -> Numbers:
    count = int(rng.integers(1, 5))
    alphas = [float(rng.choice([1.0, rng.uniform(0.01, 1)])) for _ in range(count)]
    return {"contractions": alphas, "layers": [spread(rng, -2, 2) for _ in alphas], "weights": [spread(rng, -1, 1) for _ in alphas]}


def test_ef21_is_that_of_the_table():
    rng = np.random.default_rng(5)
    for _ in range(DRAWS):
        of, D, L, K = layers_of(rng), spread(rng), spread(rng, -2, 2), int(rng.integers(1, 1000))
        first = [noise(rng) for _ in of["layers"]]
        for deltas in (None, [spread(rng, -1, 1) for _ in of["layers"]]):
            ones = deltas or [1.0] * len(first)
            gamma = ef21.step_size(**of, smoothness=L, deltas=deltas)
            assert gamma == pytest.approx(plain_ef21_step(of["contractions"], of["layers"], L, of["weights"], ones), rel=1e-9)
            found = bounds.ef21(**of, gap=D, smoothness=L, first=first, steps=K, learning_rate=gamma, deltas=deltas)
            assert found == pytest.approx(plain_ef21(D, of["contractions"], first, of["weights"], ones, K, gamma), rel=1e-9)


def dropping(rng: np.random.Generator) -> Numbers:
    return {"smoothness": spread(rng), "noise": noise(rng), "total": spread(rng, 0, 6), "batch_size": int(rng.integers(1, 50))}


def test_dropcompute_is_that_of_the_table():
    """Of stopping times the bound is the root of a quadratic equation, and never above what the paper's way gives."""
    rng = np.random.default_rng(6)
    for _ in range(DRAWS):
        of, D = dropping(rng), spread(rng)
        L, s, K, b = of["smoothness"], of["noise"], of["total"], of["batch_size"]
        eta = rng.uniform(0.01, 1.95) / (L * b)
        far, noisy, half = D / (eta * K), eta * L * s**2 / 2, eta * L * b / 2
        assert bounds.dropcompute(**of, gap=D, learning_rate=eta) == pytest.approx((far + noisy) / (1 - half), rel=1e-12)
        stopping = bounds.dropcompute(**of, gap=D, learning_rate=eta, stopping=True)
        root = max(np.roots([1 - half, -2 * sqrt(half * noisy), -(far + noisy)]))
        assert stopping == pytest.approx(root**2, rel=1e-9)
        if 2 * half < 1:
            assert stopping <= (far + 2 * noisy) / (1 - 2 * half) * (1 + 1e-12)
        assert dropcompute.step_size(**of, gap=D) == pytest.approx(1 / (L * b + s * sqrt(L * K / (2 * D))), rel=1e-12)
        assert dropcompute.step_size(**of, gap=D, stopping=True) == pytest.approx(1 / (2 * L * b + s * sqrt(L * K / D)), rel=1e-12)


def test_dropcompute_on_convex_f_is_that_of_the_table():
    rng = np.random.default_rng(7)
    for _ in range(DRAWS):
        of, R = dropping(rng), spread(rng)
        L, s, K, b = of["smoothness"], of["noise"], of["total"], of["batch_size"]
        eta = rng.uniform(0.01, 0.99) / (L * b)
        found = (bounds.dropcompute_convex(**of, distance=R, learning_rate=eta, stopping=stopping) for stopping in (False, True))
        expected = (R**2 / (2 * eta * K) + eta * s**2 / 2 / worse for worse in (1, 1 - eta * L * b))
        assert tuple(found) == pytest.approx(tuple(expected), rel=1e-12)
        assert dropcompute_convex.step_size(**of, distance=R) == pytest.approx(1 / (L * b + s * sqrt(K) / R), rel=1e-12)


@pytest.mark.parametrize("stopping", [False, True])
def test_dropcompute_at_its_step_size_has_its_rate(stopping):
    """Less than 1 of it where noise and start have equal shares; the better of both ends is met."""
    rng, closest = np.random.default_rng(15), [0.0, 0.0]
    for _ in range(5 * DRAWS):
        of, scale = dropping(rng), spread(rng)
        timeless = {name: value for name, value in of.items() if name != "total"}
        eta = dropcompute.step_size(**of, gap=scale, stopping=stopping)
        right = bounds.dropcompute(**of, gap=scale, learning_rate=eta, stopping=stopping)
        ratios = [right / dropcompute.rate(**timeless, gap=scale, stopping=stopping)(of["total"])]
        eta = dropcompute_convex.step_size(**of, distance=scale)
        if eta * of["smoothness"] * of["batch_size"] < 1 - 1e-12 or not of["noise"]:  # as near to 1 as rounding has it
            right = bounds.dropcompute_convex(**of, distance=scale, learning_rate=eta, stopping=stopping)
            ratios.append(right / dropcompute_convex.rate(**timeless, distance=scale)(of["total"]))
        assert max(ratios) <= 1 + 1e-9
        closest = [max(pair) for pair in zip(closest, [*ratios, 0.0], strict=False)]
    assert closest[0] > (0.7 if stopping else 0.999)
    assert closest[1] > 0.999


def test_a_dropcompute_that_drops_nothing_is_minibatch_sgd():
    rng = np.random.default_rng(16)
    for _ in range(DRAWS):
        of, b = with_noise(rng), int(rng.integers(1, 50))
        gamma = rng.uniform(0.01, 1) / of["smoothness"]
        same = {name: value for name, value in of.items() if name != "steps"}
        found = bounds.dropcompute(**same, total=float(of["steps"] * b), batch_size=b, learning_rate=gamma / b)
        assert found == pytest.approx(bounds.minibatch_sgd(**of, batch_size=b, learning_rate=gamma), rel=1e-12)


def test_zeta_is_the_best_there_is():
    """beta / theta is least at 1/sqrt(1 - alpha) - 1, among all that contract."""
    for alpha in (0.01, 0.3, 0.9):
        theta, beta = ef21.factors([alpha])
        grid = np.linspace(1e-4, alpha / (1 - alpha) * 0.9999, 20_000)
        ratios = (1 - alpha) * (1 + 1 / grid) / (1 - (1 - alpha) * (1 + grid))
        assert beta[0] / theta[0] <= ratios.min() * (1 + 1e-12)
        assert beta[0] / theta[0] == pytest.approx(ratios.min(), rel=1e-3)


# --- Rates: at the recommended step size the bound is at most the rate, and the step size is one that the theorem takes.


class Family:
    """Random constants of a family: what its bound, its step size and its rate take, and the largest step size of its theorem."""

    def __init__(self, module, draw: Callable[[np.random.Generator], Numbers], limit: Callable[[Numbers], float], tight: bool) -> None:
        self.module, self.draw, self.limit, self.tight = module, draw, limit, tight


def with_noise(rng) -> Numbers:
    return {**base(rng), "noise": noise(rng)}


FAMILIES = {
    "gradient_descent": Family(gradient_descent, base, lambda of: 2 / of["smoothness"], True),
    "sgd": Family(sgd, with_noise, lambda of: 1 / of["smoothness"], True),
    "minibatch_sgd": Family(
        minibatch_sgd,
        lambda rng: {**with_noise(rng), "workers": int(rng.integers(1, 9)), "batch_size": 3, "samples": [None, 3, 10][rng.integers(3)]},
        lambda of: 1 / of["smoothness"],
        True,
    ),
    "error_compensated_sgd": Family(
        error_compensated_sgd,
        lambda rng: {**with_noise(rng), "compression": noise(rng), "workers": int(rng.integers(1, 9))},
        lambda of: 1 / of["smoothness"],
        False,
    ),
    "asynchronous_sgd": Family(
        asynchronous_sgd,
        lambda rng: {**with_noise(rng), "staleness": int(rng.integers(0, 100))},
        lambda of: (
            (sqrt(1 + 8 * of["staleness"] ** 2) - 1) / (4 * of["staleness"] ** 2 * of["smoothness"])
            if of["staleness"]
            else 1 / of["smoothness"]
        ),
        False,
    ),
    "decentralized_sgd": Family(
        decentralized_sgd,
        lambda rng: {
            **with_noise(rng),
            "heterogeneity": noise(rng),
            "workers": int(rng.integers(1, 9)),
            "rho": float(rng.choice([0.0, rng.uniform(0, 1), 1 - spread(rng, -5, -1)])),
        },
        lambda of: min(1.0, (1 - of["rho"]) / (2 * of["rho"]) if of["rho"] else math.inf) / of["smoothness"],
        False,
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recommended_step_size_is_one_that_the_theorem_takes_and_gives_the_rate(family):
    module, draw, limit = FAMILIES[family].module, FAMILIES[family].draw, FAMILIES[family].limit
    rng, closest = np.random.default_rng(11), 0.0
    for _ in range(5 * DRAWS):
        of = draw(rng)
        timeless = {name: value for name, value in of.items() if name not in ("steps",)}
        gamma = module.step_size(smoothness=of["smoothness"]) if family == "gradient_descent" else module.step_size(**of)
        assert 0 < gamma <= limit(of) * (1 + 1e-12)
        ratio = module.bound(**of, learning_rate=gamma) / module.rate(**timeless)(of["steps"])
        assert ratio <= 1 + 1e-12
        closest = max(closest, ratio)
    assert closest > (0.999 if FAMILIES[family].tight else 0.5), "a rate that is never met has a constant that is too large"


@pytest.mark.parametrize("via", ["server", "ring"])
def test_compressed_sgd_at_its_step_size_has_its_rate(via):
    rng = np.random.default_rng(12)
    for _ in range(5 * DRAWS):
        of = base(rng)
        kind = [{"compression": noise(rng)}, {"omega": spread(rng, -2, 1), "heterogeneity": noise(rng)}][rng.integers(2)]
        errors = {"noise": noise(rng), "workers": int(rng.integers(1, 9)), "via": via, **kind}
        effect = compressed_sgd.effect(**errors)
        gamma = compressed_sgd.step_size(**of, effect=effect)
        assert 0 < gamma <= (1 + 1e-12) / (of["smoothness"] * (1 + effect.inflation))
        rate = compressed_sgd.rate(gap=of["gap"], smoothness=of["smoothness"], effect=effect)
        assert bounds.compressed_sgd(**of, **errors, learning_rate=gamma) <= rate(of["steps"]) * (1 + 1e-12)


def test_ef21_at_its_step_size_has_its_rate():
    rng = np.random.default_rng(13)
    for _ in range(DRAWS):
        of, L, K = layers_of(rng), spread(rng, -2, 2), int(rng.integers(1, 1000))
        more = {"gap": spread(rng), "first": [noise(rng) for _ in of["layers"]]}
        gamma = ef21.step_size(**of, smoothness=L)
        right = bounds.ef21(**of, smoothness=L, **more, steps=K, learning_rate=gamma)
        assert right == pytest.approx(ef21.rate(**of, smoothness=L, **more)(K), rel=1e-12)


def test_gradient_descent_and_sgd_have_their_least_bound_at_their_step_sizes():
    """SGD's is not quite the best one; no other is better by more than a half."""
    rng = np.random.default_rng(14)
    for _ in range(DRAWS):
        of, s = base(rng), noise(rng)
        grid = np.geomspace(1e-6, 0.999, 200) / of["smoothness"]
        best = min(bounds.gradient_descent(**of, learning_rate=2 * g) for g in grid)
        assert bounds.gradient_descent(**of, learning_rate=1 / of["smoothness"]) <= best * (1 + 1e-12)
        best = min(bounds.sgd(**of, noise=s, learning_rate=g) for g in grid)
        assert bounds.sgd(**of, noise=s, learning_rate=sgd.step_size(**of, noise=s)) <= 1.5 * best


# --- Special cases, which have to agree.


@pytest.mark.parametrize("seed", range(20))
def test_families_agree_where_they_are_the_same(seed):
    rng = np.random.default_rng(seed)
    of, s, z, N = with_noise(rng), noise(rng), noise(rng), int(rng.integers(1, 9))
    g = rng.uniform(0.01, 0.99) / of["smoothness"]
    of["noise"] = s
    same = partial(pytest.approx, rel=1e-12)
    one = bounds.sgd(**of, learning_rate=g)
    many = bounds.minibatch_sgd(**of, workers=N, learning_rate=g)
    assert bounds.minibatch_sgd(**of, workers=1, learning_rate=g) == one
    assert bounds.minibatch_sgd(**of, batch_size=N, learning_rate=g) == same(many)
    assert bounds.minibatch_sgd(**of, workers=N, batch_size=1, samples=7, learning_rate=g) == same(many)
    without = {name: value for name, value in of.items() if name != "noise"}
    for whole in ({"batch_size": 7, "samples": 7, "noise": s}, {"noise": 0.0}):
        assert bounds.minibatch_sgd(**without, **whole, learning_rate=g) == same(bounds.gradient_descent(**without, learning_rate=g))
    for via in ("server", "ring"):
        assert bounds.compressed_sgd(**of, workers=N, heterogeneity=z, via=via, learning_rate=g) == same(many)
    alone = {"omega": 1.5, "noise": s, "workers": 1, "heterogeneity": 0.0}
    ring = compressed_sgd.effect(**alone, via="ring")
    assert ring == (same(1.5), same(2.5 * s**2)), "one worker compresses once"
    # EC-SGD without errors: the noise's term is that of mini-batch SGD, up to the factor before all.
    without_errors = bounds.error_compensated_sgd(**of, compression=0.0, workers=N, learning_rate=g)
    assert without_errors * (1 - g * of["smoothness"]) == same(many * (2 - g * of["smoothness"]))
    # One server that is never stale; gossip that averages at once.
    fresh = bounds.asynchronous_sgd(**of, staleness=0, learning_rate=g)
    assert one <= fresh * (1 + 1e-12)
    assert fresh == same(one * (2 - g * of["smoothness"]))
    assert asynchronous_sgd.largest_step(smoothness=of["smoothness"], staleness=0) == same(1 / of["smoothness"])
    complete = bounds.decentralized_sgd(**of, heterogeneity=z, workers=N, rho=0.0, learning_rate=g)
    assert complete == same(many * (2 - g * of["smoothness"]))
    assert complete >= many * (1 - 1e-12)
    L = of["smoothness"]
    whole = {"contractions": [1.0], "layers": [L], "smoothness": L, "weights": [1.0]}
    assert ef21.step_size(**whole) == same(1 / L)
    exact = bounds.ef21(**whole, gap=of["gap"], first=[0.0], steps=of["steps"], learning_rate=1 / L)
    assert exact == same(bounds.gradient_descent(**without, learning_rate=1 / L))


def test_bounds_do_not_fall_with_what_is_bad():
    """More noise, heterogeneity, compression error, staleness, or a worse graph."""
    of = {"gap": 2.0, "smoothness": 1.5, "steps": 50, "learning_rate": 0.03}
    grids = [
        (partial(bounds.sgd, **of), "noise", np.linspace(0, 3, 7)),
        (partial(bounds.compressed_sgd, **of, noise=1.0, workers=3, heterogeneity=1.0), "omega", np.linspace(0, 3, 7)),
        (partial(bounds.compressed_sgd, **of, noise=1.0, workers=3, via="ring"), "compression", np.linspace(0, 3, 7)),
        (partial(bounds.error_compensated_sgd, **of, noise=1.0, workers=3), "compression", np.linspace(0, 3, 7)),
        (partial(bounds.asynchronous_sgd, **of, noise=1.0), "staleness", np.arange(7)),
        (partial(bounds.decentralized_sgd, **of, noise=1.0, workers=3, heterogeneity=1.0), "rho", np.linspace(0, 0.9, 7)),
        (partial(bounds.decentralized_sgd, **of, workers=3, rho=0.9, heterogeneity=1.0), "noise", np.linspace(0, 3, 7)),
        (partial(bounds.decentralized_sgd, **of, noise=1.0, workers=3, rho=0.5), "heterogeneity", np.linspace(0, 3, 7)),
    ]
    for bound, name, values in grids:
        found = [bound(**{name: value}) for value in values.tolist()]
        assert (np.diff(found) > 0).all(), name


# --- Iterations to a given accuracy.


def test_iterations_are_the_fewest():
    rng = np.random.default_rng(20)
    for _ in range(DRAWS):
        rate = Rate(*(noise(rng) for _ in range(3)))
        epsilon = spread(rng, -2, 3)
        T = rate.iterations(epsilon)
        assert T >= 1
        assert rate(T) <= epsilon
        assert T == 1 or rate(T - 1) > epsilon


def test_iterations_are_those_of_the_terms_up_to_a_factor():
    """Each alone takes its own; all together at least the most, at most that with a third of the accuracy each."""
    rng = np.random.default_rng(21)
    for _ in range(DRAWS):
        rate, epsilon = Rate(spread(rng), spread(rng), spread(rng)), spread(rng, -2, 1)
        a, b, c = rate.inverse, rate.root, rate.two_thirds
        assert rate.terms(epsilon) == pytest.approx((a / epsilon, b**2 / epsilon**2, (c / epsilon) ** 1.5), rel=1e-12)
        T = rate.iterations(epsilon)
        assert max(rate.terms(epsilon)) * (1 - 1e-9) <= T
        assert max(rate.terms(epsilon / 3)) + 1 >= T
        alone = [Rate(a).iterations(epsilon), Rate(0.0, b).iterations(epsilon), Rate(0.0, 0.0, c).iterations(epsilon)]
        for found, term in zip(alone, rate.terms(epsilon), strict=True):
            assert term * (1 - 1e-9) <= found < term * (1 + 1e-9) + 1


def test_rate_is_its_three_terms():
    assert Rate(2.0, 3.0, 5.0)(64) == pytest.approx(2 / 64 + 3 / 8 + 5 / 16)
    assert Rate(2.0)(4) == 0.5


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_accuracy_that_is_no_positive_number_is_refused(epsilon):
    with pytest.raises(ValueError, match="need a positive number"):
        Rate(1.0).iterations(epsilon)


@pytest.mark.parametrize("rate", [Rate(math.nan), Rate(1.0, math.inf), Rate(1.0, 0.0, -1.0)])
def test_rates_that_are_not_finite_have_no_iterations(rate):
    with pytest.raises(ValueError, match="need finite parts"):
        rate.iterations(0.1)


# --- Errors, and hypotheses by name.


def test_compression_has_errors_of_one_kind_and_one_of_two_patterns():
    with pytest.raises(ValueError, match="absolute or relative"):
        compressed_sgd.effect(noise=1.0, workers=2, compression=1.0, omega=1.0)
    with pytest.raises(ValueError, match="need 'server' or 'ring'"):
        compressed_sgd.effect(noise=1.0, workers=2, via="star")


def test_batches_larger_than_the_data_are_refused():
    with pytest.raises(ValueError, match=r"^minibatch_sgd.variance: batch_size = 5, samples = 4: need B <= M without replacement$"):
        minibatch_sgd.variance(noise=1.0, batch_size=5, samples=4)


def quadratic(N: int = 4, d: int = 4, *, equal: bool = True):
    """L = 2."""
    return problems.random_quadratic(N, d, smoothness=2.0, strong_convexity=0.5, noise=0.5, equal_hessians=equal, seed=3)


SLIGHTLY = 1 + 1e-6
FRESH, OLD = np.zeros(64, int), np.full(64, 3)
RING = topologies.ring(4)
LIMIT_OF_OLD = (sqrt(1 + 8 * 9) - 1) / (4 * 9 * 2.0)
DIRECTED = topologies.from_matrix((np.eye(4) + np.roll(np.eye(4), 1, axis=0)) / 2)
LAYERED = {"contractions": [0.25, 0.5], "layers": [1.0, 2.0], "smoothness": 2.0, "weights": [1.0, 2.0]}

SECONDS, PAIRS, ALIKE = np.ones((3, 4, 3)), Pairs(1.0, 3.0, 0.5), instances.bowl(4, 4, away=1.0, smoothness=2.0)

VIOLATED = [
    ("gradient_descent", lambda: gradient_descent.check(quadratic(), steps=3, learning_rate=1.0), "0 < gamma < 2 / L"),
    ("gradient_descent", lambda: gradient_descent.check(quadratic(), steps=3, learning_rate=0.0), "0 < gamma < 2 / L"),
    ("sgd", lambda: sgd.check(quadratic(), steps=3, learning_rate=0.5 * SLIGHTLY), "0 < gamma <= 1 / L"),
    ("sgd", lambda: sgd.check(quadratic(), steps=3, learning_rate=-0.1), "0 < gamma <= 1 / L"),
    ("sgd", lambda: sgd.check(quadratic(equal=False), steps=3), "one varsigma for all points"),
    ("minibatch_sgd", lambda: minibatch_sgd.check(quadratic(), steps=3, learning_rate=0.5 * SLIGHTLY), "0 < gamma <= 1 / L"),
    ("compressed_sgd", lambda: compressed_sgd.check(quadratic(), steps=3, learning_rate=0.5 * SLIGHTLY), "0 < gamma <= 1 / L"),
    (
        "compressed_sgd",
        lambda: compressed_sgd.check(quadratic(), compressors.random_sparsification(0.5), steps=3, learning_rate=0.5),
        "0 < gamma <= 1 / (L (1 + r))",
    ),
    (
        "compressed_sgd",
        lambda: compressed_sgd.check(quadratic(), compressors.sign, steps=3),
        "an unbiased compressor that states an omega",
    ),
    ("compressed_sgd", lambda: compressed_sgd.check(quadratic(equal=False), compressors.natural, steps=3), "one varsigma for all points"),
    (
        "error_compensated_sgd",
        lambda: error_compensated_sgd.check(quadratic(), steps=3, compression=1.0, learning_rate=0.5),
        "0 < gamma < 1 / L",
    ),
    (
        "asynchronous_sgd",
        lambda: asynchronous_sgd.check(quadratic(), OLD, steps=3, learning_rate=LIMIT_OF_OLD * SLIGHTLY),
        "0 < gamma <= (sqrt(1 + 8 tau^2) - 1) / (4 tau^2 L)",
    ),
    (
        "asynchronous_sgd",
        lambda: asynchronous_sgd.check(quadratic(), FRESH, steps=3, learning_rate=0.5 * SLIGHTLY),
        "0 < gamma <= (sqrt(1 + 8 tau^2) - 1) / (4 tau^2 L)",
    ),
    (
        "asynchronous_sgd",
        lambda: asynchronous_sgd.check(quadratic(), delays.constant(3), steps=3, learning_rate=LIMIT_OF_OLD * SLIGHTLY),
        "0 < gamma <= (sqrt(1 + 8 tau^2) - 1) / (4 tau^2 L)",
    ),
    ("asynchronous_sgd", lambda: asynchronous_sgd.check(quadratic(equal=False), FRESH, steps=3), "one varsigma for all points"),
    (
        "decentralized_sgd",
        lambda: decentralized_sgd.check(quadratic(), topologies.complete(4), steps=3, learning_rate=0.5 * SLIGHTLY),
        "0 < gamma <= 1 / L",
    ),
    (
        "decentralized_sgd",
        lambda: decentralized_sgd.check(
            quadratic(), topologies.chain(4), steps=3, learning_rate=(1 - topologies.chain(4).rho) / 2 / topologies.chain(4).rho * SLIGHTLY
        ),
        "gamma rho < (1 - rho) / L",
    ),
    ("decentralized_sgd", lambda: decentralized_sgd.check(quadratic(), DIRECTED, steps=3), "one symmetric W"),
    ("dropcompute", lambda: dropcompute.check(quadratic(), SECONDS, 2.5, share=1.0), "workers with the same data"),
    ("dropcompute", lambda: dropcompute.check(ALIKE, SECONDS, 2.5, share=2.0), "0 < eta < 2 / (L b)"),
    ("dropcompute", lambda: dropcompute.check(ALIKE, SECONDS, 0.5, share=1.0), "one that somebody computes in time"),
    ("dropcompute_convex", lambda: dropcompute_convex.check(quadratic(), SECONDS, 2.5, share=1.0), "workers with the same data"),
    ("dropcompute_convex", lambda: dropcompute_convex.check(ALIKE, SECONDS, 2.5, share=SLIGHTLY), "0 < eta <= 1 / (L b)"),
    (
        "dropcompute_convex",
        lambda: dropcompute_convex.check_stopping(ALIKE, PAIRS, 2.5, share=1.0, noise=0.1, steps=3),
        "0 < eta < 1 / (L b)",
    ),
    ("decentralized_sgd", lambda: decentralized_sgd.check(quadratic(), topologies.ring(5), steps=3), "as many workers as the problem has"),
]


@pytest.mark.parametrize(("family", "check", "text"), VIOLATED, ids=[f"{family}: {text}" for family, _, text in VIOLATED])
def test_the_hypothesis_that_fails_is_named(family, check, text):
    """Before anything is run."""
    with pytest.raises(ValueError, match=re.escape(f"need {text}") + "$") as caught:
        check()
    assert str(caught.value).startswith(f"{family}: ")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"contractions": [0.25, 0.0]}, "contractions in (0, 1]"),
        ({"contractions": [0.25, 1.5]}, "contractions in (0, 1]"),
        ({"weights": [1.0, 0.0]}, "positive weights"),
        ({"learning_rate": 1.0}, "0 < gamma <= the largest step of (9)"),
        ({"learning_rate": ef21.step_size(**LAYERED) * SLIGHTLY}, "0 < gamma <= the largest step of (9)"),
        ({"learning_rate": ef21.step_size(**LAYERED)}, None),
    ],
)
def test_the_hypothesis_of_ef21_that_fails_is_named(change, text):
    conditions = ef21.hypotheses(**{**LAYERED, "learning_rate": 1e-3, **change})
    assert [condition.text for condition in conditions if not condition.holds] == ([] if text is None else [text])


def at_the_end() -> list[tuple[str, list]]:
    """Each family's hypotheses at the largest step size that it takes."""
    chain = topologies.chain(4)
    last = min(0.5, (1 - chain.rho) / 2 / chain.rho * (1 - 1e-9))
    return [
        ("gradient_descent", gradient_descent.hypotheses(quadratic(), 1.0 - 1e-9)),
        ("sgd", sgd.hypotheses(quadratic(), 0.5)),
        ("minibatch_sgd", minibatch_sgd.hypotheses(quadratic(equal=False), 0.5)),
        ("compressed_sgd", compressed_sgd.hypotheses(quadratic(equal=False), None, 0.5)),
        ("error_compensated_sgd", error_compensated_sgd.hypotheses(quadratic(equal=False), 0.5 - 1e-9)),
        ("asynchronous_sgd", asynchronous_sgd.hypotheses(quadratic(), 3, LIMIT_OF_OLD)),
        ("decentralized_sgd", decentralized_sgd.hypotheses(quadratic(equal=False), chain, last)),
        ("dropcompute", dropcompute.hypotheses(ALIKE, 6, (1 - 1e-9) / 6)),
        ("dropcompute_convex", dropcompute_convex.hypotheses(ALIKE, 6, 0.5 / 6, noise=1.0)),
    ]


def test_all_hypotheses_hold_at_the_largest_step_size():
    for family, conditions in at_the_end():
        assert [condition.given for condition in conditions if not condition.holds] == [], family


@pytest.mark.parametrize("missing", ["smoothness", "minimum", "noise"])
def test_a_problem_that_does_not_know_its_constants_is_refused_with_their_names(missing):
    problem = quadratic()
    unknown = problem._replace(constants=problem.constants._replace(**{missing: None}))
    with pytest.raises(ValueError, match=f"does not know its {missing}: need a problem with all constants"):
        sgd.check(unknown, steps=3)
    with pytest.raises(ValueError, match="does not know its smoothness, minimum, noise"):
        instances.known(problem._replace(constants=Constants()))


def test_a_start_at_the_minimum_is_refused():
    with pytest.raises(ValueError, match=r"f\(x_1\) - f\* = 0: need a start above the minimum"):
        sgd.check(problems.quadratic(np.eye(2)[None], np.zeros((1, 2)), noise=1.0), steps=3)


def test_gradient_descent_needs_no_noise():
    problem = quadratic()
    unknown = problem._replace(constants=problem.constants._replace(noise=None))
    assert gradient_descent.check(unknown, steps=3) == gradient_descent.check(problem, steps=3)


@pytest.mark.parametrize("via", ["server", "ring"])
@pytest.mark.parametrize("d", [pytest.param(2, marks=pytest.mark.long), 5])
def test_servers_that_have_padding_only_send_nothing(via, d):
    outcome = compressed_sgd.check(quadratic(4, d), steps=20, compression=1.0, via=via)
    assert outcome.holds
    assert outcome.measured > 0


def test_the_gap_of_a_quadratic_loses_no_digits():
    """f* = -1e6, where f(x_1) - f* is 5e-7."""
    problem = problems.quadratic(np.ones((1, 1, 1)), np.full((1, 1), 1414.0), start=np.full(1, 1414.001))
    assert instances.known(problem).gap == pytest.approx(5e-7, rel=1e-9)


NUMBERS: Numbers = {"gap": 1.0, "smoothness": 2.0, "steps": 10}
COMPRESSED = compressed_sgd.Effect(1.0, 2.0)
MEMORY = local_sgd.memory(topologies.ring(5))
LAYERS: Numbers = {**LAYERED, "gap": 1.0, "first": [0.1, 0.0], "steps": 10}
DROPPING: Numbers = {"gap": 1.0, "smoothness": 2.0, "noise": 1.0, "total": 30.5, "batch_size": 4}
DROPPING_CONVEX: Numbers = {**{name: value for name, value in DROPPING.items() if name != "gap"}, "distance": 1.5}
WITHIN: dict[str, tuple[Callable, Numbers, float | None, str | None]] = {
    "bounds.gradient_descent": (bounds.gradient_descent, NUMBERS, 1.0, "0 < gamma < 2 / L"),
    "bounds.sgd": (bounds.sgd, {**NUMBERS, "noise": 1.0}, 0.5, "0 < gamma <= 1 / L"),
    "bounds.minibatch_sgd": (
        bounds.minibatch_sgd,
        {**NUMBERS, "noise": 1.0, "workers": 2, "batch_size": 3, "samples": 5},
        0.5,
        "0 < gamma <= 1 / L",
    ),
    "bounds.compressed_sgd": (
        bounds.compressed_sgd,
        {**NUMBERS, "noise": 1.0, "workers": 2, "omega": 1.0, "heterogeneity": 1.0},
        1 / 6,
        "0 < gamma <= 1 / (L (1 + r))",
    ),
    "bounds.error_compensated_sgd": (
        bounds.error_compensated_sgd,
        {**NUMBERS, "noise": 1.0, "workers": 2, "compression": 1.0},
        0.5,
        "0 < gamma < 1 / L",
    ),
    "bounds.asynchronous_sgd": (
        bounds.asynchronous_sgd,
        {**NUMBERS, "noise": 1.0, "staleness": 1},
        0.25,
        "0 < gamma <= (sqrt(1 + 8 tau^2) - 1) / (4 tau^2 L)",
    ),
    "bounds.decentralized_sgd": (
        bounds.decentralized_sgd,
        {**NUMBERS, "noise": 1.0, "workers": 2, "heterogeneity": 1.0, "rho": 0.8},
        0.125,
        "gamma rho < (1 - rho) / L",
    ),
    "bounds.consensus": (
        bounds.consensus,
        {"smoothness": 2.0, "noise": 1.0, "heterogeneity": 1.0, "workers": 2, "rho": 0.8},
        0.125,
        "gamma rho < (1 - rho) / L",
    ),
    "bounds.local_sgd": (
        bounds.local_sgd,
        {**NUMBERS, "noise": 1.0, "workers": 5, "heterogeneity": 1.0, "memory": MEMORY},
        1 / (2 * MEMORY.radius),
        "gamma L M with a spectral radius below 1",
    ),
    "local_sgd.consensus": (
        local_sgd.consensus,
        {"smoothness": 2.0, "noise": 1.0, "heterogeneity": 1.0, "steps": 10, "memory": MEMORY},
        1 / (2 * MEMORY.radius),
        "gamma L M with a spectral radius below 1",
    ),
    "bounds.ef21": (bounds.ef21, LAYERS, ef21.step_size(**LAYERED), "0 < gamma <= the largest step of (9)"),
    "bounds.dropcompute": (bounds.dropcompute, DROPPING, 0.25, "0 < eta < 2 / (L b)"),
    "bounds.dropcompute_convex": (bounds.dropcompute_convex, DROPPING_CONVEX, 0.125, "0 < eta <= 1 / (L b)"),
    "gradient_descent.step_size": (gradient_descent.step_size, {"smoothness": 2.0}, None, None),
    "gradient_descent.rate": (gradient_descent.rate, {"gap": 1.0, "smoothness": 2.0}, None, None),
    "minibatch_sgd.variance": (
        minibatch_sgd.variance,
        {"noise": 1.0, "batch_size": 3, "samples": 5, "workers": 2},
        None,
        None,
    ),
    "compressed_sgd.effect": (
        compressed_sgd.effect,
        {"noise": 1.0, "workers": 2, "omega": 1.0, "heterogeneity": 1.0},
        None,
        None,
    ),
    "compressed_sgd.step_size": (compressed_sgd.step_size, {**NUMBERS, "effect": COMPRESSED}, None, None),
    "compressed_sgd.rate": (compressed_sgd.rate, {"gap": 1.0, "smoothness": 2.0, "effect": COMPRESSED}, None, None),
    "asynchronous_sgd.largest_step": (asynchronous_sgd.largest_step, {"smoothness": 2.0, "staleness": 3}, None, None),
    "ef21.factors": (ef21.factors, {"contractions": [0.25, 0.5]}, None, None),
    "ef21.step_size": (ef21.step_size, {**LAYERED, "deltas": [1.0, 2.0]}, None, None),
    "ef21.rate": (ef21.rate, {**LAYERED, "gap": 1.0, "first": [0.1, 0.0]}, None, None),
}
WITHIN |= {
    f"{name}.{function}": (
        getattr(module, function),
        {k: v for k, v in WITHIN[f"bounds.{name}"][1].items() if k not in without},
        None,
        None,
    )
    for name, module in {
        "sgd": sgd,
        "minibatch_sgd": minibatch_sgd,
        "error_compensated_sgd": error_compensated_sgd,
        "asynchronous_sgd": asynchronous_sgd,
        "decentralized_sgd": decentralized_sgd,
        "local_sgd": local_sgd,
        "dropcompute": dropcompute,
        "dropcompute_convex": dropcompute_convex,
    }.items()
    for function, without in (("step_size", ()), ("rate", ("steps", "total")))
}
OUTSIDE: Numbers = {
    **{name: [0, -1.0, math.nan, math.inf, None, "1"] for name in ("gap", "distance", "smoothness", "total", "learning_rate")},
    **{name: [-1.0, math.nan, math.inf, None] for name in ("noise", "heterogeneity", "compression", "omega")},
    **{name: [0, -1, 2.0, math.nan, True] for name in ("steps", "workers", "batch_size", "samples")},
    "staleness": [-2, 0.5, math.nan, None],
    "rho": [-0.1, 1.0, 1, math.nan, math.inf],
    "memory": [local_sgd.Memory(sign * MEMORY.drift, MEMORY.noise) for sign in (-1, math.nan)],
    "effect": [compressed_sgd.Effect(-1.0, 0.0), compressed_sgd.Effect(0.0, math.nan), compressed_sgd.Effect(math.inf, 0.0)],
    "contractions": [[], [0.0, 0.5], [0.5, 1.1], [math.nan, 0.5], 0.5, None],
    "layers": [[], [0.0, 1.0], [1.0, math.inf], 1.0],
    "weights": [[], [-1.0, 1.0], [1.0, math.nan]],
    "deltas": [[], [0.0, 1.0], [1.0, -1.0], [1.0, math.nan]],
    "first": [[], [-1.0, 0.0], [0.0, math.inf]],
}


@pytest.mark.parametrize("where", WITHIN)
def test_numbers_that_there_cannot_be_are_refused_by_name(where):
    """Whatever the argument, and never by a division by zero; all are taken together where they are as they should be."""
    function, numbers, limit, _ = WITHIN[where]
    whole = numbers if limit is None else {**numbers, "learning_rate": 0.99 * limit}
    function(**whole)
    for name in whole:
        for value in OUTSIDE[name]:
            with pytest.raises(ValueError, match="^" + re.escape(f"{where}: {name} = {value!r}: need ")):
                function(**{**whole, name: value})


def test_every_number_of_a_bound_has_a_range():
    for where, (function, *_) in WITHIN.items():
        assert set(inspect.signature(function).parameters) - {"via", "stopping"} <= set(OUTSIDE), where
    assert set(ranges.RANGES) == set(OUTSIDE)
    assert {f"bounds.{name}" for name in bounds.__all__} <= set(WITHIN)


@pytest.mark.parametrize("where", [where for where, (_, _, limit, _) in WITHIN.items() if limit is not None])
def test_outside_its_hypothesis_there_is_no_bound(where):
    function, numbers, limit, text = WITHIN[where]
    assert limit is not None
    assert text is not None
    symbol = "eta" if " eta " in text else "gamma"
    assert function(**numbers, learning_rate=0.99 * limit) > 0
    for gamma in [limit * SLIGHTLY, 1.1 * limit, *([limit] if "<=" not in text else [])]:
        given = re.escape(f"{where}: {symbol} = {gamma:.6g}, ")
        with pytest.raises(ValueError, match=f"^{given}.*: " + re.escape(f"need {text}") + "$"):
            function(**numbers, learning_rate=gamma)


@pytest.mark.parametrize("name", ["contractions", "layers", "weights", "first"])
def test_layers_have_one_number_of_each_kind(name):
    with pytest.raises(ValueError, match=rf"^bounds.ef21: .*1 {name}.*: need one of each for every layer$"):
        bounds.ef21(**{**LAYERS, name: LAYERS[name][:1]}, learning_rate=1e-3)
    with pytest.raises(ValueError, match=r"^ef21.step_size: .*1 deltas: need one of each for every layer$"):
        ef21.step_size(**LAYERED, deltas=[1.0])


def test_a_problem_that_does_not_know_its_heterogeneity_is_refused():
    problem = problems.robust_regression(4, 2)
    unknown = problem._replace(constants=problem.constants._replace(heterogeneity=None))
    with pytest.raises(ValueError, match="does not know its heterogeneity"):
        sgd.check(unknown, steps=3)
    with pytest.raises(ValueError, match="does not know its heterogeneity"):
        decentralized_sgd.check(unknown, topologies.ring(4), steps=3)
    assert instances.known(unknown).heterogeneity is None


@pytest.mark.parametrize("via", ["server", "ring"])
def test_relative_errors_are_within_the_bound_where_noise_is_uneven(via):
    """Around a ring noise counts by where it is; with the noise of all weights in equal shares, the bound would be false here."""
    problem, compressor = instances.uneven(instances.bowl(2, 4, away=0.01, noise=1.0)), compressors.random_k(0.5)
    inflation = compressed_sgd.effect(noise=1.0, workers=2, omega=1.0, via=via).inflation
    outcome = compressed_sgd.check(problem, compressor, steps=3000, via=via, learning_rate=0.2 / (1 + inflation))
    assert outcome.holds
    assert outcome.ratio > 0.9


def test_staleness_that_is_none_is_refused():
    for wrong in (np.array([-1, 2]), np.array([[1]]), np.array([0.5]), np.array([], int)):
        with pytest.raises(ValueError, match="need integers"):
            asynchronous_sgd.check(quadratic(), wrong, steps=3)


def test_one_compressor_alone_is_refused():
    with pytest.raises(ValueError, match="need two, or none"):
        error_compensated_sgd.check(quadratic(), compressors.sign, steps=3)


def test_known_constants_are_those_of_the_problem():
    """The gap is f(x_1) - f*; heterogeneity holds everywhere only where Hessians are equal."""
    rng = np.random.default_rng(0)
    A, b, start = np.tile(np.diag([1.0, 3.0]), (3, 1, 1)), rng.normal(size=(3, 2)), rng.normal(size=2)
    known = instances.known(problems.quadratic(A, b, noise=0.25, start=start))
    best = np.linalg.solve(A[0], b.mean(axis=0))
    assert known.gap == pytest.approx((start - best) @ A[0] @ (start - best) / 2, rel=1e-9)
    assert (known.smoothness, known.noise) == (pytest.approx(3.0), 0.25)
    assert known.heterogeneity == pytest.approx(sqrt(np.mean(np.sum((b - b.mean(axis=0)) ** 2, axis=1))), rel=1e-9)
    A[0] *= 2
    assert instances.known(problems.quadratic(A, b)).heterogeneity is None
    regression = problems.robust_regression(3, 2)
    assert instances.known(regression).heterogeneity == regression.constants.heterogeneity
    assert sgd.total_noise(regression) == pytest.approx(math.hypot(regression.constants.noise, regression.constants.heterogeneity))
