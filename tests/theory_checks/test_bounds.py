"""Right-hand sides, step sizes and rates: numbers computed by hand, invalid arguments by name, and
hypotheses that fail.
"""

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

import theory_checks
import topologies
from dsgd import compressors, problems
from dsgd.base import Constants
from theory_checks import (
    asynchronous_sgd,
    bounds,
    compressed_sgd,
    decentralized_sgd,
    dropcompute,
    dropcompute_convex,
    error_compensated_sgd,
    local_sgd,
    minibatch_sgd,
    sgd,
)
from theory_checks.machinery import instances, ranges
from theory_checks.machinery.rates import Rate
from theory_checks.statements import gradient_tracking, staleness_aware

Numbers = dict[str, Any]
SLIGHTLY = 1 + 1e-6
# local SGD, H = 2, the mean of 4 workers
HALVES = local_sgd.Memory(np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([0.0, sqrt(3) / 2]))
FOURS = {"memory": local_sgd.Memory(4 * np.ones((1, 1)), np.ones(1))}
# One value for each name, with the letters of the papers: D, L, T, sigma, varsigma, ...
BASE: Numbers = {
    "gap": 3.0,
    "distance": 2.0,
    "smoothness": 2.0,
    "noise": 2.0,
    "heterogeneity": 3.0,
    "compression": 1.0,
    "steps": 10,
    "total": 10.0,
    "learning_rate": 0.25,
    "workers": 4,
    "batch_size": 2,
    "staleness": 1,
    "rho": 0.5,
    "memory": HALVES,
    "effect": compressed_sgd.Effect(1.0, 9.0),
    "contractions": [0.75, 1.0],
    "layers": [3.0, 1.0],
    "weights": [1.0, 2.0],
    "first": [0.5, 1.0],
    "rms_smoothness": 2.0,
    "strong_convexity": 0.5,
    "shift": 1 / 3,
    "gain": 0.5,
    "bias": 0.5,
    "residual": 1 / 49,
    "mean_residual": 16 / 49,
    "probability": 0.5,
    "tree_distance": 3,
    "epsilon": 0.5,
    "times": [2.0, 1.0, 6.0],
    "travel": [[0.0, 2.0, 5.0], [1.0, 0.0, 4.0], [3.0, 2.5, 0.0]],
    "backups": 1,
    "variance": 2.0,
}
SPREAD: Numbers = {"omega": 2.0}  # of the compressors of linear rates
DELTAS: Numbers = {"smoothness": 1.0, "deltas": [2.0, 1.0]}
RELATIVE: Numbers = {"noise": 1.0, "workers": 2, "compression": 0.0, "omega": 1.0}
RING: Numbers = {"noise": 1.0, "heterogeneity": 0.0, "via": "ring"}
STOPPING: Numbers = {"noise": 3.0, "batch_size": 3, "stopping": True}
FASTER: Numbers = {"gap": 4.0, "steps": 16}

# Differences from BASE, and the value. Step sizes and rates of families that are missing here have
# no slack in the test below.
VALUES: list[tuple[str, Numbers, Any]] = [
    ("bounds.gradient_descent", {}, 1.6),  # 3 / (2.5 * 0.75)
    ("bounds.sgd", {}, 44 / 15),  # (2.4 + 2) / 1.5
    # 4 / 12 * 6 / 9
    ("minibatch_sgd.variance", {"batch_size": 4, "samples": 10, "workers": 3}, 2 / 9),
    ("bounds.minibatch_sgd", {"workers": 2}, 29 / 15),  # (2.4 + 1/2) / 1.5
    ("compressed_sgd.effect", RELATIVE, (2, 11)),
    # K = 4 + 4 + 3
    ("compressed_sgd.effect", RELATIVE | RING | {"workers": 3}, (11 / 3, 8 / 3)),
    ("bounds.compressed_sgd", RING | {"compression": 2.0}, 121 / 60),
    # L' = 6: (4.8 + 2.75) / 1.25
    ("bounds.compressed_sgd", RELATIVE | {"learning_rate": 1 / 8}, 6.04),
    ("bounds.error_compensated_sgd", {}, 7.8),  # (2.4 + 1/2 + 1) / (1/2)
    (
        "error_compensated_sgd.step_size",  # 4 + 3 * 2 + 512^(1/3)
        {"gap": 4.0, "noise": 3.0, "compression": 4.0, "steps": 8, "workers": 1},
        1 / 18,
    ),
    ("error_compensated_sgd.rate", {"gap": 2.0, "noise": 3.0, "workers": 1}, (32, 36, 24)),
    ("asynchronous_sgd.largest_step", {}, 0.25),
    ("asynchronous_sgd.largest_step", {"staleness": 0}, 0.5),
    ("bounds.asynchronous_sgd", {}, 6.4),  # 2.4 + 2 * (1 + 1)
    ("asynchronous_sgd.step_size", {"gap": 5.0, "noise": 3.0, "staleness": 3}, 1 / 22),
    ("asynchronous_sgd.rate", {"gap": 2.0, "noise": 3.0, "staleness": 3}, (64, 24, 0)),
    # q = 3/4, p = varsigma / 8, r^2 = 3 sigma^2 / 256: (9/32 + 5/8) / (7/16)
    ("bounds.consensus", {"noise": 32 / sqrt(21)}, (29 / 14) ** 2),
    ("bounds.decentralized_sgd", {"heterogeneity": 0.0}, 233 / 70),  # 2.4 + 1/2 + 3/7
    # 6 + 6 + 4
    (
        "decentralized_sgd.step_size",
        FASTER | {"noise": 3.0, "heterogeneity": 1.0, "workers": 1},
        1 / 16,
    ),
    (
        "decentralized_sgd.step_size",
        FASTER | {"noise": 1.0, "heterogeneity": 0.0, "workers": 2},
        1 / (8 + sqrt(2)),
    ),
    ("decentralized_sgd.rate", {"gap": 1.0, "heterogeneity": 2.0, "workers": 1}, (12, 8, 12)),
    ("local_sgd.consensus", {"steps": 2}, (0.75 + sqrt(3) / 4) ** 2 / 2),
    ("bounds.local_sgd", {"heterogeneity": 0.0}, 3.275),  # 2.4 + 1/2 + 4 * 3/32
    # 6 + 64^(1/3)
    ("local_sgd.step_size", FASTER | {"noise": 0.0, "heterogeneity": 1.0}, 1 / 10),
    # 6 + 6 + 12
    ("local_sgd.step_size", FASTER | {"noise": 6.0, "heterogeneity": 0.0}, 1 / 24),
    (
        "local_sgd.rate",
        {"gap": 2.0, "noise": 6.0, "heterogeneity": 0.0},
        (24, 12 * sqrt(2), 36),
    ),
    ("ef21.factors", {}, ([0.5, 1], [0.5, 0])),
    ("ef21.step_size", {"smoothness": sqrt(2)}, 0.25),  # both layers: 2 / (3 + 5), 2 / (2 + 6)
    ("ef21.step_size", DELTAS, 0.25),
    ("bounds.ef21", {"smoothness": sqrt(2)}, 3.0),  # 2.4 + 2 * 1.5 / 5
    ("bounds.ef21", DELTAS, 3.2),
    ("bounds.dropcompute", {}, 4.4),  # (1.2 + 1) / (1/2)
    # (1 + 1/2)^2 / (1/4)
    ("bounds.dropcompute", {"gap": 2.5, "noise": sqrt(2), "stopping": True}, 9),
    ("dropcompute.step_size", STOPPING | {"gap": 5.0}, 1 / 18),
    ("dropcompute.rate", STOPPING | {"gap": 2.0}, (48, 12, 0)),
    ("bounds.dropcompute_convex", {"batch_size": 1}, 1.3),  # 0.8 + 0.5
    # 1 + 6 * 2 / 4; theta = 1/2: 1 + 2 / 2; theta = 7/8: 1 + 5 * 2 / 4
    ("bounds.diana_step", SPREAD, 1 / 8),
    ("bounds.diana_step", SPREAD | {"shift": 1 / 6}, 1 / 4),
    ("bounds.diana_step", SPREAD | {"shift": 7 / 24}, 1 / 7),
    ("bounds.diana", SPREAD | {"learning_rate": 1 / 8}, 15 / 16),
    ("bounds.diana", SPREAD | {"learning_rate": 1 / 8, "strong_convexity": 2.0}, 5 / 6),
    # 1 - 7/24 * 3/4
    (
        "bounds.diana",
        SPREAD | {"learning_rate": 1 / 8, "strong_convexity": 2.0, "shift": 7 / 24},
        25 / 32,
    ),
    ("bounds.ef_bv_residuals", SPREAD | {"shift": 0.5}, (17 / 16, 11 / 16)),
    ("bounds.ef_bv_step", {}, 1 / 4),  # 2 + 2 (4/7) / (5/7 - 1/7)
    ("bounds.ef_bv", {}, 7 / 8),
    ("bounds.ef_bv", {"strong_convexity": 3.0}, 25 / 49),
    ("bounds.marina_step", SPREAD, 1 / 4),  # 2 + 2 sqrt(1)
    ("bounds.marina_step", SPREAD | {"strong_convexity": 2.0}, 1 / 8),
    ("bounds.marina", SPREAD, 7 / 8),
    # 1.6 + 1/4 / (1/2)
    ("bounds.dropcompute_convex", {"learning_rate": 1 / 8, "stopping": True}, 2.1),
    # 1 / (2 L max(1, R, 2 sigma^2 / eps)): 16, and 3 with sigma = 1/2
    ("birch_sgd.step_size", {}, 1 / 64),
    ("birch_sgd.step_size", {"noise": 0.5}, 1 / 12),
    ("birch_sgd.step_size", {"noise": 0.5, "tree_distance": 0}, 1 / 4),
    ("birch_sgd.iterations", {}, 48 * (4 + 16)),
    ("bounds.birch_sgd", {"steps": 960}, 0.5),
    # L D / eps = 12, sigma^2 / eps = 8; 1 / h = 1, 1/2, 1/6: 12 min(9, 10 / 1.5, 11 / (5/3))
    ("bounds.optimal_seconds", {}, 79.2),
    ("bounds.optimal_seconds", {"noise": 1.0}, 12 * 4 / 1.5),  # of the two fastest
    # R = 4 + 7 + 2 - 2: K = 48 (12 + 16) = 1344, (1344 + 3) / (5/3)
    ("bounds.asynchronous_seconds", {}, 808.2),
    # R = 6: K = 48 (7 + 16) = 1104, (2208 + 3) / (5/3)
    ("bounds.delay_adaptive_seconds", {}, 1326.6),
    ("bounds.minibatch_seconds", {}, 528),  # 6 * 24 * 11/3
    ("bounds.backup_workers_seconds", {}, 240),  # 2 * 24 * 5
    ("bounds.backup_workers_seconds", {"backups": 2, "noise": 1.0}, 72),  # 1 * 24 * 3
    # 1 / B = (1 + 1/4 + 1) / 3, gamma = 1 / (2 max(24, 80 * 3/4)), K = 2400
    ("bounds.ringleader_seconds", {}, 12 * 800),
    ("bounds.ringleader_seconds", {"noise": 0.5}, 12 * 320),  # gamma = 1 / 48
    # to worker 1 and back: 3, 0, 6.5; 12 max(3, 8 / 1.5), and 12 max(1, 2)
    ("bounds.optimal_seconds_on_graph", {}, 64),
    ("bounds.optimal_seconds_on_graph", {"noise": 1.0}, 24),
    ("bounds.optimal_seconds_on_graph_different_data", {}, 96),  # 12 * 3 * 8 / 3
    ("bounds.optimal_seconds_on_graph_different_data", {"noise": 1.0}, 72),
    ("bounds.fragile_seconds", {}, 48 * 9),  # (8 + 2 + 3.5) / 1.5
    ("bounds.fragile_seconds", {"pivot": 0}, 48 * 10),  # (8 + 2 + 5) / 1.5
    ("bounds.amelie_seconds", {}, 48 * 30.5),  # 6.5 + 24
    ("bounds.amelie_seconds", {"pivot": 2}, 48 * 32),
    # T = 4, p = 0.11: the fifth gradient is completed after 4 seconds
    ("bounds.lower_seconds", {"gap": 4000.0, "noise": sqrt(529 / 0.11)}, 8),
    ("bounds.lower_seconds", {"gap": 4000.0, "noise": 0.0}, 2),
    ("bounds.optimal_seconds_different_data", {}, 168),  # 12 * (6 + 3 * 8/3)
    ("bounds.batch_seconds", {}, 4),  # min(4, 6 / 1.5, 8 / (5/3))
    ("bounds.batch_seconds", {"batch_size": 40}, 27.6),  # 46 / (5/3)
    ("bounds.rennala_seconds", {}, 48 * 8),  # min(10, 12 / 1.5, 14 / (5/3))
    ("bounds.ringmaster_seconds", {}, 144 * 8),  # 48 (8 + 16) / 8 times 8 steps
    ("bounds.malenia_seconds", {}, 48 * 24),  # max(12, 9 * 8 / 3)
    ("bounds.malenia_seconds", {"noise": 1.0}, 48 * 12),  # max(12, 9 * 2 / 3)
]
STALE: Numbers = {
    "staleness": np.array([0, 1]),
    "steps": np.full(2, 0.25),
    "smoothness": 2.0,
    "gap": 3.0,
    "noise": 2.0,
}


def function(where: str) -> Callable:
    module, name = where.split(".")
    return getattr(getattr(theory_checks, module), name)


def call_with(of: Callable, numbers: Numbers, **more: Any) -> Any:
    """Calls the function with those numbers that it accepts."""
    taken = inspect.signature(of).parameters
    return of(**{name: value for name, value in (numbers | more).items() if name in taken})


@pytest.mark.parametrize(("where", "given", "value"), VALUES, ids=[where for where, *_ in VALUES])
def test_values_are_those_computed_by_hand(where, given, value):
    found = call_with(function(where), BASE | given)
    for one, other in zip(np.atleast_2d(found), np.atleast_2d(value), strict=True):
        assert one == pytest.approx(other, rel=1e-12)


def test_with_variable_steps_the_bound_and_the_largest_step_are_those_computed_by_hand():
    """(6 + 1 + 1/2) / (1/2), where gamma_0 L + 2 L^2 gamma_0 gamma_1 = 1."""
    assert staleness_aware.bound(**STALE) == pytest.approx(15, rel=1e-12)
    assert staleness_aware.largest_step(2.0, STALE["staleness"]) == pytest.approx(0.25, rel=1e-12)


# --- Rates.


def spread(rng: np.random.Generator, low: float = -4, high: float = 4) -> float:
    """Returns a number over many orders of magnitude."""
    return float(10 ** rng.uniform(low, high))


def constants(rng: np.random.Generator) -> Numbers:
    """Returns one value for each name; nuisances may be 0."""
    names = ("noise", "heterogeneity", "compression")
    bad = {name: float(rng.choice([0.0, spread(rng)])) for name in names}
    sizes = {
        "workers": int(rng.integers(1, 9)),
        "batch_size": 3,
        "samples": [None, 3, 10][rng.integers(3)],
        "staleness": int(rng.integers(99)),
    }
    layers = {
        name: [spread(rng, -2, 2) for _ in range(2)] for name in ("layers", "weights", "first")
    }
    scale = {"gap": spread(rng), "distance": spread(rng), "smoothness": spread(rng)}
    time = {"steps": int(10 ** rng.uniform(0, 6)), "total": spread(rng, 0, 6)}
    rho = float(rng.choice([0.0, rng.uniform(0, 1), 1 - spread(rng, -5, -1)]))
    return (
        bad
        | sizes
        | layers
        | scale
        | time
        | {"rho": rho, "memory": HALVES, "contractions": rng.uniform(0.01, 1, 2).tolist()}
    )


REACHED = {
    **dict.fromkeys(
        (
            "gradient_descent",
            "sgd",
            "minibatch_sgd",
            "compressed_sgd",
            "dropcompute",
            "dropcompute_convex",
            "ef21",
        ),
        0.999,
    ),
    **dict.fromkeys(("error_compensated_sgd", "asynchronous_sgd", "decentralized_sgd"), 0.5),
    "local_sgd": 0.9,
}
"""For each family, the ratio of the bound at the recommended step size to its rate: constants of
rates are not too large.
"""


@pytest.mark.parametrize("family", REACHED)
def test_at_the_recommended_step_size_the_bound_is_within_the_rate(family):
    """The step size is also one that the bound accepts."""
    module, rng, closest = getattr(theory_checks, family), np.random.default_rng(11), 0.0
    for _ in range(500):
        of = constants(rng)
        if family == "compressed_sgd":
            kind = [{"compression": of["compression"]}, {"omega": spread(rng, -2, 1)}][
                rng.integers(2)
            ]
            of = {**of, "compression": 0.0, **kind}
            of["effect"] = call_with(compressed_sgd.effect, of)
        gamma = call_with(module.step_size, of)
        if family == "dropcompute_convex":
            gamma *= 1 - 1e-12  # 1 / (L b) without noise
        time = of["total" if "total" in inspect.signature(module.bound).parameters else "steps"]
        ratio = call_with(module.bound, of, learning_rate=gamma) / call_with(module.rate, of)(time)
        assert ratio <= 1 + 1e-9
        closest = max(closest, ratio)
    assert closest > REACHED[family]


def test_iterations_are_minimal_and_within_a_factor_of_those_of_the_terms():
    """The number for all terms is at least that for the worst term alone, and at most that for a
    third of the accuracy.
    """
    rng = np.random.default_rng(20)
    for _ in range(200):
        rate, epsilon = (
            Rate(*(float(rng.choice([0.0, spread(rng)])) for _ in range(3))),
            spread(rng, -2, 3),
        )
        T = rate.iterations(epsilon)
        assert rate(T) <= epsilon
        assert T == 1 or rate(T - 1) > epsilon
        assert max(rate.terms(epsilon)) * (1 - 1e-9) <= T <= max(rate.terms(epsilon / 3)) + 1
    assert Rate(2.0, 3.0, 5.0)(64) == pytest.approx(2 / 64 + 3 / 8 + 5 / 16)
    assert Rate(2.0, 3.0, 4.0).terms(0.25) == pytest.approx((8, 144, 64))


@pytest.mark.parametrize(
    ("rate", "epsilon", "says"),
    [(Rate(1.0), epsilon, "positive number") for epsilon in (0.0, -1.0, math.inf, math.nan)]
    + [
        (rate, 0.1, "finite")
        for rate in (Rate(math.nan), Rate(1.0, math.inf), Rate(1.0, 0.0, -1.0))
    ],
)
def test_rates_without_a_number_of_iterations_are_refused(rate, epsilon, says):
    with pytest.raises(ValueError, match=says):
        rate.iterations(epsilon)


# --- Impossible numbers, and steps that are too long.

OUTSIDE: Numbers = {
    **{
        name: [0, -1.0, math.nan, math.inf, None, "1"]
        for name in (
            "gap",
            "distance",
            "smoothness",
            "rms_smoothness",
            "strong_convexity",
            "total",
            "learning_rate",
            "epsilon",
        )
    },
    **{
        name: [-1.0, math.nan, math.inf, None]
        for name in (
            "noise",
            "variance",
            "heterogeneity",
            "compression",
            "omega",
            "mean_residual",
        )
    },
    **{name: [0, 1.1, math.nan, None] for name in ("shift", "gain", "probability")},
    **{name: [-0.1, 1.0, math.nan, None] for name in ("bias", "residual")},
    **{
        name: [0, -1, 2.0, math.nan, True] for name in ("steps", "workers", "batch_size", "samples")
    },
    **{
        name: [-2, 0.5, math.nan, None]
        for name in ("staleness", "tree_distance", "backups", "pivot")
    },
    "rho": [-0.1, 1.0, 1, math.nan, math.inf],
    "memory": [local_sgd.Memory(np.full((1, 1), drift), np.ones(1)) for drift in (-1.0, math.nan)],
    "effect": [
        compressed_sgd.Effect(-1.0, 0.0),
        compressed_sgd.Effect(0.0, math.nan),
        compressed_sgd.Effect(math.inf, 0.0),
    ],
    "contractions": [[], [0.0, 0.5], [0.5, 1.1], [math.nan, 0.5], 0.5, None],
    "layers": [[], [0.0, 1.0], [1.0, math.inf], 1.0],
    "weights": [[], [-1.0, 1.0], [1.0, math.nan]],
    "deltas": [[], [0.0, 1.0], [1.0, -1.0], [1.0, math.nan]],
    "first": [[], [-1.0, 0.0], [0.0, math.inf]],
    "times": [[], [0.0, 1.0], [1.0, -1.0], [1.0, math.inf], 2.0],
    "travel": [[], [[], []], [[0.0, -1.0], [1.0, 0.0]], [[0.0, math.nan], [1.0, 0.0]], 1.0],
}
LINEAR = ("bounds.diana", "bounds.ef_bv", "bounds.marina")
FUNCTIONS = [
    *(f"bounds.{name}" for name in bounds.__all__),
    *(f"{family}.{what}" for family in REACHED for what in ("step_size", "rate")),
    "minibatch_sgd.variance",
    "compressed_sgd.effect",
    "asynchronous_sgd.largest_step",
    "birch_sgd.step_size",
    "birch_sgd.iterations",
    "local_sgd.consensus",
    "ef21.factors",
]


@pytest.mark.parametrize("where", FUNCTIONS)
def test_impossible_numbers_are_refused_by_name(where):
    """For every argument, and never by a division by zero."""
    parameters = inspect.signature(function(where)).parameters
    assert parameters.keys() - {"via", "stopping"} <= ranges.RANGES.keys() == OUTSIDE.keys()
    for name in parameters.keys() & OUTSIDE.keys():
        for value in OUTSIDE[name]:
            if value is not None or parameters[name].default is not None:
                says = "^" + re.escape(f"{where}: {name} = {value!r}")
                given = BASE | (SPREAD if where.startswith(LINEAR) else {})
                with pytest.raises(ValueError, match=says):
                    call_with(function(where), given, **{name: value})


TOO_LONG: dict[str, tuple[float, str, Numbers]] = {
    "bounds.gradient_descent": (1.0, "0 < gamma < 2 / L", {}),
    "bounds.sgd": (0.5, "0 < gamma <= 1 / L", {}),
    "bounds.minibatch_sgd": (0.5, "0 < gamma <= 1 / L", {}),
    "bounds.compressed_sgd": (1 / 6, "0 < gamma <= 1 / (L (1 + r))", RELATIVE),
    "bounds.error_compensated_sgd": (0.5, "0 < gamma < 1 / L", {}),
    "bounds.asynchronous_sgd": (0.25, "0 < gamma <= (sqrt(1 + 8 tau^2) - 1) / (4 tau^2 L)", {}),
    "bounds.consensus": (0.125, "gamma rho < (1 - rho) / L", {"rho": 0.8}),
    "bounds.decentralized_sgd": (0.125, "gamma rho < (1 - rho) / L", {"rho": 0.8}),
    "bounds.local_sgd": (0.125, "gamma L M with a spectral radius below 1", FOURS),
    "local_sgd.consensus": (0.125, "gamma L M with a spectral radius below 1", FOURS),
    "bounds.ef21": (0.25, "0 < gamma <= the largest step of (9)", {"smoothness": sqrt(2)}),
    "bounds.diana": (1 / 8, "0 < gamma <= the largest step", SPREAD),
    "bounds.ef_bv": (0.25, "0 < gamma <= the largest step", {}),
    "bounds.marina": (0.25, "0 < gamma <= the largest step", SPREAD),
    "bounds.dropcompute": (0.5, "0 < eta < 2 / (L b)", {"stopping": True}),
    "bounds.dropcompute_convex": (0.25, "0 < eta < 1 / (L b)", {"stopping": True}),
}


@pytest.mark.parametrize("where", TOO_LONG)
def test_outside_its_hypothesis_there_is_no_bound(where):
    limit, text, given = TOO_LONG[where]
    assert call_with(function(where), BASE | given, learning_rate=0.99 * limit) > 0
    symbol = "eta" if " eta " in text else "gamma"
    for gamma in [limit * SLIGHTLY, 1.1 * limit, *([limit] if "<=" not in text else [])]:
        begins = re.escape(f"{where}: {symbol} = {gamma:.6g}, ")
        with pytest.raises(ValueError, match=f"^{begins}.*" + re.escape(text) + "$"):
            call_with(function(where), BASE | given, learning_rate=gamma)


@pytest.mark.parametrize("name", ["contractions", "layers", "weights", "first", "deltas"])
def test_layers_have_one_number_of_each_kind(name):
    given = BASE | DELTAS
    with pytest.raises(ValueError, match=rf"^bounds.ef21: .*1 {name}.*"):
        call_with(bounds.ef21, given, **{name: given[name][:1]})


# --- Hypotheses of checks, by name.


def quadratic(N: int = 4, d: int = 4, *, equal: bool = True):
    """L = 2."""
    return problems.random_quadratic(
        N, d, smoothness=2.0, strong_convexity=0.5, noise=0.5, equal_hessians=equal, seed=3
    )


CHAIN, OLD = topologies.chain(4), np.full(64, 3)
DIRECTED = topologies.from_matrix((np.eye(4) + np.roll(np.eye(4), 1, axis=0)) / 2)
PUSHED = topologies.from_matrix([[0.5, 0.5, 0.5], [0.25, 0.5, 0.0], [0.25, 0.0, 0.5]])
SECONDS = np.ones((3, 4, 3))
ALIKE = instances.bowl(4, 4, distance=1.0, smoothness=2.0)
REFUSED: list[tuple[str, Callable[[], Any]]] = [
    (
        "an unbiased compressor that states an omega",
        lambda: compressed_sgd.check(quadratic(), compressors.sign, steps=3),
    ),
    *(
        (
            "one varsigma for all points",
            lambda check=check: check(quadratic(equal=False), steps=3),
        )
        for check in (
            sgd.check,
            partial(compressed_sgd.check, compressor=compressors.natural),
            partial(asynchronous_sgd.check, rule=OLD),
        )
    ),
    ("one symmetric W", lambda: decentralized_sgd.check(quadratic(), DIRECTED, steps=3)),
    *(
        (
            "as many workers as the problem has",
            lambda check=check: check(quadratic(), topologies.ring(5), steps=3),
        )
        for check in (decentralized_sgd.check, local_sgd.check)
    ),
    *(
        (
            "workers with the same data",
            lambda check=check: check(quadratic(), SECONDS, 2.5, share=1.0),
        )
        for check in (dropcompute.check, dropcompute_convex.check)
    ),
    (
        "at least one that finishes in time",
        lambda: dropcompute.check(ALIKE, SECONDS, 0.5, share=1.0),
    ),
    ("a doubly stochastic W in all rounds", lambda: local_sgd.memory(PUSHED)),
    ("an integer, at least 1", lambda: local_sgd.memory(topologies.ring(5), 0)),
    (
        "one doubly stochastic W",
        lambda: gradient_tracking.check(quadratic(3), PUSHED, learning_rate=0.1),
    ),
    (
        "0 < gamma <= 1 / L",
        lambda: gradient_tracking.check(quadratic(), CHAIN, learning_rate=0.51),
    ),
    (
        "absolute or relative",
        lambda: compressed_sgd.effect(noise=1.0, workers=2, compression=1.0, omega=1.0),
    ),
    ("'server' or 'ring'", lambda: compressed_sgd.effect(noise=1.0, workers=2, via="star")),  # type: ignore[arg-type]
    (
        "B <= M without replacement",
        lambda: minibatch_sgd.variance(noise=1.0, batch_size=5, samples=4),
    ),
    (
        "two, or none",
        lambda: error_compensated_sgd.check(quadratic(), compressors.sign, steps=3),
    ),
    (
        "0 <= t - D(t) <= t",
        lambda: staleness_aware.bound(**{**STALE, "staleness": np.array([0, 2])}),
    ),
    (
        "0 <= t - D(t) <= t",
        lambda: staleness_aware.bound(**{**STALE, "staleness": np.array([0, -1])}),
    ),
    ("gamma_t > 0", lambda: staleness_aware.bound(**{**STALE, "steps": np.zeros(2)})),
    (
        "the largest left side is 1.06",
        lambda: staleness_aware.bound(**{**STALE, "steps": np.full(2, 0.26)}),
    ),
    ("noise = nan", lambda: staleness_aware.bound(**{**STALE, "noise": math.nan})),
    (
        "a start above the minimum",
        lambda: sgd.check(
            problems.quadratic(np.eye(2)[None], np.zeros((1, 2)), noise=1.0), steps=3
        ),
    ),
    *(
        (
            "integers",
            lambda wrong=wrong: asynchronous_sgd.check(quadratic(), wrong, steps=3),
        )
        for wrong in (np.array([-1, 2]), np.array([[1]]), np.array([0.5]), np.array([], int))
    ),
]


@pytest.mark.parametrize(("says", "call"), REFUSED)
def test_invalid_arguments_are_refused(says, call):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()


# --- Known properties of problems.


def test_known_constants_are_those_of_the_problem():
    """The gap is f(x_1) - f*; heterogeneity holds everywhere only if Hessians are equal."""
    # x* = (1, 1)
    A, b, start = (
        np.tile(np.diag([1.0, 3.0]), (2, 1, 1)),
        np.array([[2.0, 0.0], [0.0, 6.0]]),
        np.array([3.0, 1.0]),
    )
    known = instances.constants(problems.quadratic(A, b, noise=0.25, start=start))
    assert known == pytest.approx((2.0, 3.0, 0.25, sqrt(10)), rel=1e-6)
    A[0] *= 2
    assert instances.constants(problems.quadratic(A, b)).heterogeneity is None
    regression = problems.robust_regression(3, 2)
    assert sgd.total_noise(regression) == pytest.approx(
        math.hypot(regression.constants.noise, regression.constants.heterogeneity)
    )
    unknown = regression._replace(constants=regression.constants._replace(heterogeneity=None))
    with pytest.raises(ValueError, match="heterogeneity"):
        sgd.check(unknown, steps=3)
    with pytest.raises(ValueError, match="smoothness, minimum, noise"):
        sgd.check(regression._replace(constants=Constants()), steps=3)


def test_the_gap_of_a_quadratic_loses_no_digits():
    """f* = -1e6, whereas f(x_1) - f* is 5e-7."""
    problem = problems.quadratic(
        np.ones((1, 1, 1)), np.full((1, 1), 1414.0), start=np.full(1, 1414.001)
    )
    assert instances.constants(problem).gap == pytest.approx(5e-7, rel=1e-9)
