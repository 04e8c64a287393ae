"""Right-hand sides, step sizes and rates: numbers computed by hand, what each refuses by name, and
hypotheses that fail.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import pytest

import theory_checks
import topologies
from algorithms import delays
from dsgd import compressors, problems
from dsgd.base import Constants
from theory_checks import (
    bounds,
    compressed_sgd,
    decentralized_sgd,
    dropcompute,
    dropcompute_convex,
    ef21,
    local_sgd,
    minibatch_sgd,
    sgd,
)
from theory_checks.machinery import instances, ranges
from theory_checks.machinery.batch_sizes import Pairs
from theory_checks.machinery.rates import Rate
from theory_checks.statements import gradient_tracking, staleness_aware

Numbers = dict[str, Any]
SLIGHTLY = 1 + 1e-6
# local SGD, H = 2, the mean of 4 workers
HALVES = local_sgd.Memory(np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([0.0, sqrt(3) / 2]))
LAYERED: Numbers = {
    "contractions": [0.75, 1.0],
    "layers": [3.0, 1.0],
    "smoothness": sqrt(2),
    "weights": [1.0, 2.0],
}
DELTAS: Numbers = {**LAYERED, "smoothness": 1.0, "deltas": [2.0, 1.0]}

# Arguments and values, with letters of the papers: D, L, T, sigma, varsigma, ...
BASE: Numbers = {"gap": 3.0, "smoothness": 2.0, "steps": 10}  # 2 D / (gamma T) = 2.4 at gamma = 1/4
TUNED: Numbers = {"gap": 5.0, "smoothness": 2.0, "steps": 20}  # sqrt(L T / (2 D)) = 2
SCALE: Numbers = {"gap": 4.0, "smoothness": 2.0}  # 2 L D = 16
NOISY = BASE | {"noise": 2.0, "learning_rate": 0.25}
GOSSIP = NOISY | {"workers": 4, "rho": 0.5}  # q = 3/4, p = varsigma / 8, r^2 = 3 sigma^2 / 256
SHARED: Numbers = {"smoothness": 2.0, "workers": 4, "rho": 0.5, "learning_rate": 0.25}
LOCAL: Numbers = {"smoothness": 2.0, "learning_rate": 0.25, "memory": HALVES}
FASTER: Numbers = {"gap": 4.0, "smoothness": 2.0, "steps": 16}
EC: Numbers = {
    "gap": 4.0,
    "smoothness": 2.0,
    "noise": 3.0,
    "compression": 4.0,
    "steps": 8,
    "workers": 1,
}
DROP: Numbers = {"smoothness": 2.0, "total": 10.0, "learning_rate": 0.25}
DROPS: Numbers = {"smoothness": 2.0, "noise": 3.0, "batch_size": 3}

VALUES: list[tuple[str, Numbers, Any]] = [
    ("bounds.gradient_descent", BASE | {"learning_rate": 0.25}, 1.6),  # 3 / (2.5 * 0.75)
    ("gradient_descent.step_size", {"smoothness": 2.0}, 0.5),
    ("gradient_descent.rate", SCALE, (16, 0, 0)),
    ("bounds.sgd", NOISY, 44 / 15),  # (2.4 + 2) / 1.5
    ("sgd.step_size", TUNED | {"noise": 3.0}, 1 / 8),
    ("sgd.rate", SCALE | {"noise": 3.0}, (16, 12, 0)),
    # 4 / 12 * 6 / 9
    ("minibatch_sgd.variance", {"noise": 2.0, "batch_size": 4, "samples": 10, "workers": 3}, 2 / 9),
    ("minibatch_sgd.variance", {"noise": 2.0, "batch_size": 4, "workers": 3}, 1 / 3),
    ("minibatch_sgd.variance", {"noise": 2.0, "batch_size": 4, "samples": 4}, 0),
    ("minibatch_sgd.variance", {"noise": 2.0, "samples": 1}, 4),
    ("bounds.minibatch_sgd", NOISY | {"workers": 2, "batch_size": 2}, 29 / 15),  # (2.4 + 1/2) / 1.5
    ("minibatch_sgd.step_size", TUNED | {"noise": 6.0, "workers": 2, "batch_size": 2}, 1 / 8),
    ("minibatch_sgd.rate", SCALE | {"noise": 6.0, "workers": 2, "batch_size": 2}, (16, 12, 0)),
    # 1/4 + 5/4 * 4
    ("compressed_sgd.effect", {"noise": 1.0, "workers": 4, "compression": 2.0}, (0, 5.25)),
    (
        "compressed_sgd.effect",
        {"noise": 1.0, "workers": 4, "compression": 2.0, "via": "ring"},
        (0, 1.25),
    ),
    (
        "compressed_sgd.effect",
        {"noise": 1.0, "workers": 2, "omega": 1.0, "heterogeneity": 3.0},
        (2, 11),
    ),
    # K = 4
    (
        "compressed_sgd.effect",
        {"noise": 1.0, "workers": 2, "omega": 1.0, "heterogeneity": 3.0, "via": "ring"},
        (2, 20),
    ),
    # K = 4 + 4 + 3
    (
        "compressed_sgd.effect",
        {"noise": 1.0, "workers": 3, "omega": 1.0, "via": "ring"},
        (11 / 3, 8 / 3),
    ),
    # one worker compresses once
    ("compressed_sgd.effect", {"noise": 2.0, "workers": 1, "omega": 1.5, "via": "ring"}, (1.5, 10)),
    # (2.4 + 2.625) / 1.5
    ("bounds.compressed_sgd", NOISY | {"noise": 1.0, "workers": 4, "compression": 2.0}, 3.35),
    (
        "bounds.compressed_sgd",
        NOISY | {"noise": 1.0, "workers": 4, "compression": 2.0, "via": "ring"},
        121 / 60,
    ),
    (
        "bounds.compressed_sgd",  # L' = 6: (4.8 + 2.75) / 1.25
        BASE
        | {"noise": 1.0, "workers": 2, "omega": 1.0, "heterogeneity": 3.0, "learning_rate": 1 / 8},
        6.04,
    ),
    ("compressed_sgd.step_size", TUNED | {"effect": compressed_sgd.Effect(1.0, 9.0)}, 1 / 10),
    ("compressed_sgd.rate", SCALE | {"effect": compressed_sgd.Effect(1.0, 9.0)}, (32, 12, 0)),
    # (2.4 + 1/2 + 1) / (1/2)
    ("bounds.error_compensated_sgd", NOISY | {"compression": 1.0, "workers": 4}, 7.8),
    ("error_compensated_sgd.step_size", EC, 1 / 18),  # 4 + 3 * 2 + 512^(1/3)
    (
        "error_compensated_sgd.rate",
        {"gap": 2.0, "smoothness": 2.0, "noise": 3.0, "compression": 1.0, "workers": 1},
        (32, 36, 24),
    ),
    ("asynchronous_sgd.largest_step", {"smoothness": 2.0, "staleness": 1}, 0.25),
    ("asynchronous_sgd.largest_step", {"smoothness": 2.0, "staleness": 0}, 0.5),
    ("bounds.asynchronous_sgd", NOISY | {"staleness": 1}, 6.4),  # 2.4 + 2 * (1 + 1)
    (
        "asynchronous_sgd.step_size",
        {"gap": 5.0, "smoothness": 2.0, "steps": 10, "noise": 3.0, "staleness": 3},
        1 / 22,
    ),
    (
        "asynchronous_sgd.rate",
        {"gap": 2.0, "smoothness": 2.0, "noise": 3.0, "staleness": 3},
        (64, 24, 0),
    ),
    ("bounds.consensus", SHARED | {"noise": 0.0, "heterogeneity": 3.0}, 2.25),  # (p / (1 - q))^2
    ("bounds.consensus", SHARED | {"noise": 2.0, "heterogeneity": 0.0}, 3 / 28),  # r^2 / (1 - q^2)
    # (9/32 + 5/8) / (7/16)
    ("bounds.consensus", SHARED | {"noise": 32 / sqrt(21), "heterogeneity": 3.0}, (29 / 14) ** 2),
    ("bounds.decentralized_sgd", GOSSIP | {"heterogeneity": 0.0}, 233 / 70),  # 2.4 + 1/2 + 3/7
    ("bounds.decentralized_sgd", GOSSIP | {"heterogeneity": 3.0, "noise": 0.0}, 11.4),
    # 6 + 6 + 4
    (
        "decentralized_sgd.step_size",
        FASTER | {"noise": 3.0, "heterogeneity": 1.0, "workers": 1, "rho": 0.5},
        1 / 16,
    ),
    (
        "decentralized_sgd.step_size",
        FASTER | {"noise": 1.0, "heterogeneity": 0.0, "workers": 2, "rho": 0.5},
        1 / (8 + sqrt(2)),
    ),
    (
        "decentralized_sgd.rate",
        {
            "gap": 1.0,
            "smoothness": 2.0,
            "noise": 2.0,
            "heterogeneity": 2.0,
            "workers": 1,
            "rho": 0.5,
        },
        (12, 8, 12),
    ),
    # 0 and 3/4 in turns
    ("local_sgd.consensus", LOCAL | {"noise": 0.0, "heterogeneity": 3.0, "steps": 4}, 0.28125),
    ("local_sgd.consensus", LOCAL | {"noise": 0.0, "heterogeneity": 3.0, "steps": 3}, 0.1875),
    (
        "local_sgd.consensus",
        LOCAL | {"noise": 2.0, "heterogeneity": 3.0, "steps": 2},
        (0.75 + sqrt(3) / 4) ** 2 / 2,
    ),
    (
        "bounds.local_sgd",
        NOISY | {"noise": 0.0, "heterogeneity": 3.0, "workers": 4, "memory": HALVES},
        3.525,
    ),
    # 2.4 + 1/2 + 4 * 3/32
    ("bounds.local_sgd", NOISY | {"heterogeneity": 0.0, "workers": 4, "memory": HALVES}, 3.275),
    # 6 + 64^(1/3)
    (
        "local_sgd.step_size",
        FASTER | {"noise": 0.0, "heterogeneity": 1.0, "workers": 4, "memory": HALVES},
        1 / 10,
    ),
    # 6 + 6 + 12
    (
        "local_sgd.step_size",
        FASTER | {"noise": 6.0, "heterogeneity": 0.0, "workers": 4, "memory": HALVES},
        1 / 24,
    ),
    (
        "local_sgd.rate",
        {
            "gap": 2.0,
            "smoothness": 2.0,
            "noise": 6.0,
            "heterogeneity": 0.0,
            "workers": 4,
            "memory": HALVES,
        },
        (24, 12 * sqrt(2), 36),
    ),
    ("ef21.factors", {"contractions": [0.75, 1.0]}, ([0.5, 1], [0.5, 0])),
    ("ef21.step_size", LAYERED, 0.25),  # both layers: 2 / (3 + 5), 2 / (2 + 6)
    ("ef21.step_size", DELTAS, 0.25),
    # 2.4 + 2 * 1.5 / 5
    (
        "bounds.ef21",
        LAYERED | {"gap": 3.0, "first": [0.5, 1.0], "steps": 10, "learning_rate": 0.25},
        3.0,
    ),
    (
        "bounds.ef21",
        DELTAS | {"gap": 3.0, "first": [0.5, 1.0], "steps": 10, "learning_rate": 0.25},
        3.2,
    ),
    ("ef21.rate", LAYERED | {"gap": 3.0, "first": [0.5, 1.0]}, (30, 0, 0)),
    # (1.2 + 1) / (1/2)
    ("bounds.dropcompute", DROP | {"gap": 3.0, "noise": 2.0, "batch_size": 2}, 4.4),
    # (1 + 1/2)^2 / (1/4)
    (
        "bounds.dropcompute",
        DROP | {"gap": 2.5, "noise": sqrt(2), "batch_size": 2, "stopping": True},
        9,
    ),
    ("dropcompute.step_size", DROPS | {"gap": 5.0, "total": 20.0}, 1 / 12),
    ("dropcompute.step_size", DROPS | {"gap": 5.0, "total": 10.0, "stopping": True}, 1 / 18),
    ("dropcompute.rate", DROPS | {"gap": 4.0}, (48, 12, 0)),
    ("dropcompute.rate", DROPS | {"gap": 2.0, "stopping": True}, (48, 12, 0)),
    # 0.8 + 0.5
    ("bounds.dropcompute_convex", DROP | {"distance": 2.0, "noise": 2.0, "batch_size": 1}, 1.3),
    (
        "bounds.dropcompute_convex",  # 1.6 + 1/4 / (1/2)
        DROP
        | {
            "distance": 2.0,
            "noise": 2.0,
            "batch_size": 2,
            "learning_rate": 1 / 8,
            "stopping": True,
        },
        2.1,
    ),
    ("dropcompute_convex.step_size", DROPS | {"distance": 2.0, "total": 16.0}, 1 / 12),
    ("dropcompute_convex.rate", DROPS | {"distance": 2.0}, (12, 6, 0)),
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


@pytest.mark.parametrize(("where", "given", "value"), VALUES, ids=[where for where, *_ in VALUES])
def test_values_are_those_computed_by_hand(where, given, value):
    found = function(where)(**given)
    for one, other in zip(np.atleast_2d(found), np.atleast_2d(value), strict=True):
        assert one == pytest.approx(other, rel=1e-12)


def test_of_variable_steps_the_bound_and_the_largest_step_are_those_computed_by_hand():
    """(6 + 1 + 1/2) / (1/2), where gamma_0 L + 2 L^2 gamma_0 gamma_1 = 1."""
    assert staleness_aware.bound(**STALE) == pytest.approx(15, rel=1e-12)
    assert staleness_aware.largest_step(2.0, STALE["staleness"]) == pytest.approx(0.25, rel=1e-12)


# --- Rates.


def spread(rng: np.random.Generator, low: float = -4, high: float = 4) -> float:
    """Over many orders of magnitude."""
    return float(10 ** rng.uniform(low, high))


def constants(rng: np.random.Generator) -> Numbers:
    """One of each name; what is only bad may be 0."""
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


def called(of: Callable, numbers: Numbers, **more: Any) -> Any:
    """With those numbers that it takes."""
    taken = inspect.signature(of).parameters
    return of(**{name: value for name, value in (numbers | more).items() if name in taken})


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
"""Of each family, how near to its rate the bound at the recommended step size comes: constants of
rates are not too large.
"""


@pytest.mark.parametrize("family", REACHED)
def test_at_the_recommended_step_size_the_bound_is_within_the_rate(family):
    """And the step size is one that the bound takes."""
    module, rng, closest = getattr(theory_checks, family), np.random.default_rng(11), 0.0
    for _ in range(500):
        of = constants(rng)
        if family == "compressed_sgd":
            kind = [{"compression": of["compression"]}, {"omega": spread(rng, -2, 1)}][
                rng.integers(2)
            ]
            of = {**of, "compression": 0.0, **kind}
            of["effect"] = called(compressed_sgd.effect, of)
        gamma = called(module.step_size, of)
        if family == "dropcompute_convex":
            gamma *= 1 - 1e-12  # 1 / (L b) where there is no noise
        time = of["total" if "total" in inspect.signature(module.bound).parameters else "steps"]
        ratio = called(module.bound, of, learning_rate=gamma) / called(module.rate, of)(time)
        assert ratio <= 1 + 1e-9
        closest = max(closest, ratio)
    assert closest > REACHED[family]


def test_iterations_are_the_fewest_and_those_of_the_terms_up_to_a_factor():
    """All together take at least what the worst alone does, at most what it takes to a third of the
    accuracy.
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
    [
        (Rate(1.0), epsilon, "expected a positive number")
        for epsilon in (0.0, -1.0, math.inf, math.nan)
    ]
    + [
        (rate, 0.1, "expected finite parts")
        for rate in (Rate(math.nan), Rate(1.0, math.inf), Rate(1.0, 0.0, -1.0))
    ],
)
def test_what_has_no_iterations_is_refused(rate, epsilon, says):
    with pytest.raises(ValueError, match=says):
        rate.iterations(epsilon)


# --- Numbers that there cannot be, and steps that are too long.

OUTSIDE: Numbers = {
    **{
        name: [0, -1.0, math.nan, math.inf, None, "1"]
        for name in ("gap", "distance", "smoothness", "total", "learning_rate")
    },
    **{
        name: [-1.0, math.nan, math.inf, None]
        for name in ("noise", "heterogeneity", "compression", "omega")
    },
    **{
        name: [0, -1, 2.0, math.nan, True] for name in ("steps", "workers", "batch_size", "samples")
    },
    "staleness": [-2, 0.5, math.nan, None],
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
}
GIVEN = {where: given for where, given, _ in VALUES}


@pytest.mark.parametrize("where", GIVEN)
def test_numbers_that_there_cannot_be_are_refused_by_name(where):
    """Whatever the argument, and never by a division by zero."""
    for name in set(GIVEN[where]) & set(OUTSIDE):
        for value in OUTSIDE[name]:
            with pytest.raises(
                ValueError, match="^" + re.escape(f"{where}: {name} = {value!r}; expected ")
            ):
                function(where)(**{**GIVEN[where], name: value})


def test_every_number_of_a_bound_has_a_range():
    for where in GIVEN:
        assert set(inspect.signature(function(where)).parameters) - {"via", "stopping"} <= set(
            OUTSIDE
        ), where
    assert set(ranges.RANGES) == set(OUTSIDE)
    assert {f"bounds.{name}" for name in bounds.__all__} <= set(GIVEN)


TOO_LONG = {
    "bounds.gradient_descent": (1.0, "0 < gamma < 2 / L"),
    "bounds.sgd": (0.5, "0 < gamma <= 1 / L"),
    "bounds.minibatch_sgd": (0.5, "0 < gamma <= 1 / L"),
    "bounds.compressed_sgd": (1 / 6, "0 < gamma <= 1 / (L (1 + r))"),
    "bounds.error_compensated_sgd": (0.5, "0 < gamma < 1 / L"),
    "bounds.asynchronous_sgd": (0.25, "0 < gamma <= (sqrt(1 + 8 tau^2) - 1) / (4 tau^2 L)"),
    "bounds.consensus": (0.125, "gamma rho < (1 - rho) / L"),
    "bounds.decentralized_sgd": (0.125, "gamma rho < (1 - rho) / L"),
    "bounds.local_sgd": (0.125, "gamma L M with a spectral radius below 1"),
    "local_sgd.consensus": (0.125, "gamma L M with a spectral radius below 1"),
    "bounds.ef21": (0.25, "0 < gamma <= the largest step of (9)"),
    "bounds.dropcompute": (0.5, "0 < eta < 2 / (L b)"),
    "bounds.dropcompute_convex": (0.25, "0 < eta < 1 / (L b)"),
}
# that limit the step
CHANGED = {"rho": 0.8, "memory": local_sgd.Memory(4 * np.ones((1, 1)), np.ones(1))}


@pytest.mark.parametrize("where", TOO_LONG)
def test_outside_its_hypothesis_there_is_no_bound(where):
    limit, text = TOO_LONG[where]
    given = {name: CHANGED.get(name, value) for name, value in GIVEN[where].items()}
    assert function(where)(**{**given, "learning_rate": 0.99 * limit}) > 0
    symbol = "eta" if " eta " in text else "gamma"
    for gamma in [limit * SLIGHTLY, 1.1 * limit, *([limit] if "<=" not in text else [])]:
        begins = re.escape(f"{where}: {symbol} = {gamma:.6g}, ")
        with pytest.raises(
            ValueError, match=f"^{begins}.*; " + re.escape(f"expected {text}") + "$"
        ):
            function(where)(**{**given, "learning_rate": gamma})


@pytest.mark.parametrize("name", ["contractions", "layers", "weights", "first", "deltas"])
def test_layers_have_one_number_of_each_kind(name):
    given = GIVEN["bounds.ef21"]
    with pytest.raises(
        ValueError, match=rf"^bounds.ef21: .*1 {name}.*; expected one of each for every layer$"
    ):
        bounds.ef21(**{**given, name: given[name][:1]})


# --- Hypotheses of checks, by name.


def quadratic(N: int = 4, d: int = 4, *, equal: bool = True):
    """L = 2."""
    return problems.random_quadratic(
        N, d, smoothness=2.0, strong_convexity=0.5, noise=0.5, equal_hessians=equal, seed=3
    )


CHAIN, OLD = topologies.chain(4), np.full(64, 3)
LIMIT_OF_OLD = (sqrt(1 + 8 * 9) - 1) / (4 * 9 * 2.0)
LIMIT_OF_CHAIN = (1 - CHAIN.rho) / 2 / CHAIN.rho
DIRECTED = topologies.from_matrix((np.eye(4) + np.roll(np.eye(4), 1, axis=0)) / 2)
PUSHED = topologies.from_matrix([[0.5, 0.5, 0.5], [0.25, 0.5, 0.0], [0.25, 0.0, 0.5]])
SECONDS, PAIRS, ALIKE = (
    np.ones((3, 4, 3)),
    Pairs(1.0, 3.0, 0.5),
    instances.bowl(4, 4, away=1.0, smoothness=2.0),
)
STEPS: Numbers = {"steps": 3}
CHECKS: list[tuple[str, tuple[Any, ...], Numbers, str]] = [
    ("gradient_descent", (), {"learning_rate": 1.0}, "0 < gamma < 2 / L"),
    ("sgd", (), {"learning_rate": 0.5 * SLIGHTLY}, "0 < gamma <= 1 / L"),
    ("sgd", (), {"learning_rate": -0.1}, "0 < gamma <= 1 / L"),
    ("minibatch_sgd", (), {"learning_rate": 0.5 * SLIGHTLY}, "0 < gamma <= 1 / L"),
    ("compressed_sgd", (), {"learning_rate": 0.5 * SLIGHTLY}, "0 < gamma <= 1 / L"),
    (
        "compressed_sgd",
        (compressors.random_sparsification(0.5),),
        {"learning_rate": 0.5},
        "0 < gamma <= 1 / (L (1 + r))",
    ),
    ("compressed_sgd", (compressors.sign,), {}, "an unbiased compressor that states an omega"),
    ("error_compensated_sgd", (), {"compression": 1.0, "learning_rate": 0.5}, "0 < gamma < 1 / L"),
    (
        "asynchronous_sgd",
        (OLD,),
        {"learning_rate": LIMIT_OF_OLD * SLIGHTLY},
        TOO_LONG["bounds.asynchronous_sgd"][1],
    ),
    (
        "asynchronous_sgd",
        (delays.constant(3),),
        {"learning_rate": LIMIT_OF_OLD * SLIGHTLY},
        TOO_LONG["bounds.asynchronous_sgd"][1],
    ),
    (
        "decentralized_sgd",
        (topologies.complete(4),),
        {"learning_rate": 0.5 * SLIGHTLY},
        "0 < gamma <= 1 / L",
    ),
    (
        "decentralized_sgd",
        (CHAIN,),
        {"learning_rate": LIMIT_OF_CHAIN * SLIGHTLY},
        "gamma rho < (1 - rho) / L",
    ),
    ("decentralized_sgd", (DIRECTED,), {}, "one symmetric W"),
    ("decentralized_sgd", (topologies.ring(5),), {}, "as many workers as the problem has"),
    ("local_sgd", (topologies.ring(5),), {}, "as many workers as the problem has"),
    ("local_sgd", (topologies.complete(4), 2), {"learning_rate": 0.51}, "0 < gamma <= 1 / L"),
    ("local_sgd", (CHAIN,), {"learning_rate": 0.5}, "gamma L M with a spectral radius below 1"),
    ("dropcompute", (SECONDS, 2.5), {"share": 1.0}, "workers with the same data"),
    ("dropcompute_convex", (SECONDS, 2.5), {"share": 1.0}, "workers with the same data"),
]


@pytest.mark.parametrize(
    ("family", "arguments", "options", "text"),
    CHECKS,
    ids=[f"{family}: {text}" for family, _, _, text in CHECKS],
)
def test_the_hypothesis_that_fails_is_named(family, arguments, options, text):
    """Before anything is run."""
    steps = {} if family.startswith("dropcompute") else STEPS
    with pytest.raises(ValueError, match=re.escape(f"expected {text}") + "$") as caught:
        getattr(theory_checks, family).check(quadratic(), *arguments, **steps, **options)
    assert str(caught.value).startswith(f"{family}: ")


@pytest.mark.parametrize(
    ("family", "argument"),
    [("sgd", ()), ("compressed_sgd", (compressors.natural,)), ("asynchronous_sgd", (OLD,))],
)
def test_hessians_that_differ_have_no_one_heterogeneity(family, argument):
    with pytest.raises(ValueError, match=r"expected one varsigma for all points$"):
        getattr(theory_checks, family).check(quadratic(equal=False), *argument, steps=3)


REFUSED: list[tuple[str, Callable[[], Any]]] = [
    ("expected 0 < eta < 2 / (L b)", lambda: dropcompute.check(ALIKE, SECONDS, 2.5, share=2.0)),
    (
        "expected at least one that finishes in time",
        lambda: dropcompute.check(ALIKE, SECONDS, 0.5, share=1.0),
    ),
    (
        "expected 0 < eta <= 1 / (L b)",
        lambda: dropcompute_convex.check(ALIKE, SECONDS, 2.5, share=SLIGHTLY),
    ),
    (
        "expected 0 < eta < 1 / (L b)",
        lambda: dropcompute_convex.check_stopping(ALIKE, PAIRS, 2.5, share=1.0, noise=0.1, steps=3),
    ),
    ("expected a doubly stochastic W in all rounds", lambda: local_sgd.memory(PUSHED)),
    ("expected an integer, at least 1", lambda: local_sgd.memory(topologies.ring(5), 0)),
    (
        "expected one doubly stochastic W",
        lambda: gradient_tracking.check(quadratic(3), PUSHED, learning_rate=0.1),
    ),
    (
        "expected 0 < gamma <= 1 / L",
        lambda: gradient_tracking.check(quadratic(), CHAIN, learning_rate=0.51),
    ),
    (
        "absolute or relative",
        lambda: compressed_sgd.effect(noise=1.0, workers=2, compression=1.0, omega=1.0),
    ),
    ("need 'server' or 'ring'", lambda: compressed_sgd.effect(noise=1.0, workers=2, via="star")),  # type: ignore[arg-type]
    (
        "need B <= M without replacement",
        lambda: minibatch_sgd.variance(noise=1.0, batch_size=5, samples=4),
    ),
    (
        "need two, or none",
        lambda: theory_checks.error_compensated_sgd.check(quadratic(), compressors.sign, steps=3),
    ),
    (
        "expected 0 <= t - D(t) <= t",
        lambda: staleness_aware.bound(**{**STALE, "staleness": np.array([0, 2])}),
    ),
    (
        "expected 0 <= t - D(t) <= t",
        lambda: staleness_aware.bound(**{**STALE, "staleness": np.array([0, -1])}),
    ),
    ("expected gamma_t > 0", lambda: staleness_aware.bound(**{**STALE, "steps": np.zeros(2)})),
    (
        "the largest left side is 1.06",
        lambda: staleness_aware.bound(**{**STALE, "steps": np.full(2, 0.26)}),
    ),
    ("noise = nan", lambda: staleness_aware.bound(**{**STALE, "noise": math.nan})),
    (
        "expected a start above the minimum",
        lambda: sgd.check(
            problems.quadratic(np.eye(2)[None], np.zeros((1, 2)), noise=1.0), steps=3
        ),
    ),
    *(
        (
            "need integers",
            lambda wrong=wrong: theory_checks.asynchronous_sgd.check(quadratic(), wrong, steps=3),
        )
        for wrong in (np.array([-1, 2]), np.array([[1]]), np.array([0.5]), np.array([], int))
    ),
]


@pytest.mark.parametrize(("says", "call"), REFUSED)
def test_what_cannot_be_is_refused(says, call):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"contractions": [0.25, 1.5]}, "contractions in (0, 1]"),
        ({"weights": [1.0, 0.0]}, "positive weights"),
        ({"learning_rate": 0.25 * SLIGHTLY}, "0 < gamma <= the largest step of (9)"),
        ({"learning_rate": 0.25}, None),
    ],
)
def test_the_hypothesis_of_ef21_that_fails_is_named(change, text):
    conditions = ef21.hypotheses(**{**LAYERED, "learning_rate": 1e-3, **change})
    assert [condition.text for condition in conditions if not condition.holds] == (
        [] if text is None else [text]
    )


def test_all_hypotheses_hold_at_the_largest_step_size():
    for conditions in (
        theory_checks.gradient_descent.hypotheses(quadratic(), 1.0 - 1e-9),
        sgd.hypotheses(quadratic(), 0.5),
        minibatch_sgd.hypotheses(quadratic(equal=False), 0.5),
        compressed_sgd.hypotheses(quadratic(equal=False), None, 0.5),
        theory_checks.error_compensated_sgd.hypotheses(quadratic(equal=False), 0.5 - 1e-9),
        theory_checks.asynchronous_sgd.hypotheses(quadratic(), 3, LIMIT_OF_OLD),
        decentralized_sgd.hypotheses(
            quadratic(equal=False), CHAIN, min(0.5, LIMIT_OF_CHAIN * (1 - 1e-9))
        ),
        dropcompute.hypotheses(ALIKE, 6, (1 - 1e-9) / 6),
        dropcompute_convex.hypotheses(ALIKE, 6, 0.5 / 6, noise=1.0),
    ):
        assert [condition.given for condition in conditions if not condition.holds] == []


# --- What checks know of problems.


@pytest.mark.parametrize("missing", ["smoothness", "minimum", "noise"])
def test_a_problem_that_does_not_know_its_constants_is_refused_with_their_names(missing):
    problem = quadratic()
    unknown = problem._replace(constants=problem.constants._replace(**{missing: None}))
    with pytest.raises(
        ValueError, match=f"unknown {missing}; expected a problem with all constants"
    ):
        sgd.check(unknown, steps=3)
    with pytest.raises(ValueError, match="unknown smoothness, minimum, noise"):
        instances.known(problem._replace(constants=Constants()))


def test_known_constants_are_those_of_the_problem():
    """The gap is f(x_1) - f*; heterogeneity holds everywhere only where Hessians are equal."""
    # x* = (1, 1)
    A, b, start = (
        np.tile(np.diag([1.0, 3.0]), (2, 1, 1)),
        np.array([[2.0, 0.0], [0.0, 6.0]]),
        np.array([3.0, 1.0]),
    )
    known = instances.known(problems.quadratic(A, b, noise=0.25, start=start))
    assert known == pytest.approx((2.0, 3.0, 0.25, sqrt(10)), rel=1e-6)
    A[0] *= 2
    assert instances.known(problems.quadratic(A, b)).heterogeneity is None
    regression = problems.robust_regression(3, 2)
    assert sgd.total_noise(regression) == pytest.approx(
        math.hypot(regression.constants.noise, regression.constants.heterogeneity)
    )
    unknown = regression._replace(constants=regression.constants._replace(heterogeneity=None))
    with pytest.raises(ValueError, match="unknown heterogeneity"):
        sgd.check(unknown, steps=3)


def test_the_gap_of_a_quadratic_loses_no_digits():
    """f* = -1e6, where f(x_1) - f* is 5e-7."""
    problem = problems.quadratic(
        np.ones((1, 1, 1)), np.full((1, 1), 1414.0), start=np.full(1, 1414.001)
    )
    assert instances.known(problem).gap == pytest.approx(5e-7, rel=1e-9)
