"""Worst cases: known values, certified bounds, and runs on the functions that attain them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import topologies
from algorithms import delays
from dsgd import Algorithm, Query, State, compressors
from theory_checks import Smooth, WorstCase, best_step, worst_case
from theory_checks.machinery import registry
from theory_checks.worst_cases import analysis, solution, symmetry
from theory_checks.worst_cases.analysis import Analysis
from theory_checks.worst_cases.theorems import COMPARISONS

LONG = pytest.mark.long
MU = 0.1
CONVEX = Smooth(L=1, distance=1)
STRONG = Smooth(L=1, mu=MU, distance=1)
MIXED = Smooth(L=1, mu=MU, distance=1, heterogeneity=1)
BY_GAP = Smooth(L=1, mu=MU, gap=1)
NOT_CONVEX = Smooth(L=1, mu=-1, gap=1)
PRINTED = 3e-6  # known values have about six digits
RUN = 1e-6  # relative difference of a run from the value
BOUND = 1e-5  # relative difference of the bound from the value


def require_attained(worst: WorstCase, known: float, accuracy: float = PRINTED) -> None:
    assert worst.value == pytest.approx(known, rel=accuracy)
    assert worst.value <= worst.bound <= worst.value * (1 + BOUND) + 1e-9
    assert worst.run() == pytest.approx(worst.value, rel=RUN)


def gradient_descent(rate, **options):
    return algorithms.gradient_descent(optax.sgd(rate, **options))


def ring_factory(method: Callable[..., Algorithm], N: int = 4, *options: Any):
    return lambda rate: method(optax.sgd(rate), topologies.ring(N), *options)


def dgd(rate):
    """A user's own method: combine, then adapt."""
    ring = topologies.ring(4)

    def update(state, gradients, round):
        mixed = round.mix(state.workers, ring)
        return State(workers=jax.tree.map(lambda x, g: x - rate * g, mixed, gradients))

    return Algorithm(
        "dgd",
        lambda params, N: State(workers=jnp.broadcast_to(params, (N, *params.shape))),
        lambda state, round: Query(state.workers),
        update,
        lambda state: state.workers,
    )


# --- Closed forms of gradient descent.


@pytest.mark.parametrize(
    ("functions", "known", "options"),
    [
        (CONVEX, 1 / 18, {"steps": 4, "rate": 1.0}),  # Drori and Teboulle 2014, Theorem 3.1
        (CONVEX, 1 / 26, {"steps": 4, "rate": 1.5}),
        (Smooth(L=10, distance=3), 90 / 18, {"steps": 4, "rate": 0.1}),
        (STRONG, 0.88**10, {"steps": 5, "rate": 1.2, "measure": "distance"}),
        (BY_GAP, 0.88**10, {"steps": 5, "rate": 1.2}),
        (
            NOT_CONVEX,
            4 / 17,
            {"steps": 5, "rate": 1.0, "measure": "gradient", "over": "best"},
        ),
        (NOT_CONVEX, 2 / 5, {"steps": 5, "rate": 1.0, "measure": "gradient", "over": "mean"}),
    ],
)
def test_gradient_descent_reaches_the_closed_form(functions, known, options):
    worst = worst_case(gradient_descent, functions, workers=1, **options)
    require_attained(worst, known)
    assert worst.exact


def test_heavy_ball_and_silver_steps_reach_known_values():
    momentum = np.sqrt((1 - 0.5 * MU) * 0.5)
    worst = worst_case(gradient_descent(0.5, momentum=momentum), BY_GAP, steps=2, workers=1)
    require_attained(worst, 0.753493)
    silver = np.array([1 + (1 + np.sqrt(2)) ** ((i & -i).bit_length() - 2) for i in range(1, 8)])
    steps = jnp.asarray(silver) / 10
    worst = worst_case(
        gradient_descent(lambda t: steps[t]), Smooth(L=10, distance=1), steps=7, workers=1
    )
    require_attained(worst, 0.184215)


# --- Methods of several workers; known values are of a prototype, and of PEPit for DSGD and EXTRA.


@pytest.mark.parametrize(
    ("method", "known", "options"),
    [
        (ring_factory(algorithms.decentralized_sgd), 0.0721154, {}),
        pytest.param(
            ring_factory(algorithms.decentralized_sgd),
            0.0758522,
            {"measure": "consensus"},
            marks=LONG,
        ),
        (ring_factory(algorithms.extra), 0.706230, {"measure": "distance"}),
        pytest.param(
            ring_factory(algorithms.gradient_tracking),
            0.824363,
            {"measure": "distance", "rate": 0.2},
            marks=LONG,
        ),
        pytest.param(ring_factory(algorithms.exact_diffusion), 0.0776383, {}, marks=LONG),
        (lambda rate: algorithms.local_sgd(optax.sgd(rate), 5), 0.303617, {"workers": 4}),
        (
            lambda rate: algorithms.scaffold(optax.sgd(rate), 2),
            0.0567829,
            {"workers": 4, "steps": 6},
        ),
        pytest.param(
            lambda rate: algorithms.stochastic_gradient_push(
                optax.sgd(rate), topologies.one_peer_exponential(4)
            ),
            0.0846055,
            {},
            marks=LONG,
        ),
        pytest.param(dgd, 0.118594, {}, marks=LONG),
    ],
)
def test_methods_reach_known_values(method, known, options):
    worst = worst_case(method, MIXED, **{"steps": 5, "rate": 0.5, **options})
    require_attained(worst, known)


def test_pepit_agrees_on_three_workers():
    worst = worst_case(ring_factory(algorithms.extra, 3), MIXED, steps=3, rate=0.5)
    require_attained(worst, 0.133000, 4e-6)


@pytest.mark.parametrize("rule", [None, delays.constant(2)])
def test_asynchronous_methods_are_covered(rule):
    worst = worst_case(
        lambda rate: algorithms.asynchronous_sgd(optax.sgd(rate), rule),
        MIXED,
        steps=6,
        workers=3,
        rate=0.2,
    )
    assert worst.symmetry == "none"
    require_attained(worst, worst.bound, BOUND)


# --- Compressed messages.


@pytest.mark.parametrize(
    ("method", "functions", "known", "options"),
    [
        pytest.param(
            lambda rate, compressor: algorithms.compressed_sgd(
                optax.sgd(rate), compressor, ring=True, allow_biased=True
            ),
            BY_GAP,
            ((1.1 - 0.9 * MU) / (1.1 + 0.9 * MU)) ** 4,
            {"steps": 2, "rate": 2 / (1.1 + 0.9 * MU), "workers": 1, "delta": 0.99},
            marks=LONG,
        ),
        (
            lambda rate, compressor: algorithms.ef21(
                optax.sgd(rate), compressor, compressors.identity
            ),
            MIXED,
            0.272533,
            {"steps": 3, "rate": 0.4, "workers": 3},
        ),
        (
            lambda rate, compressor: algorithms.ef21(
                optax.sgd(rate), compressor, compressors.identity
            ),
            STRONG,
            0.132438,  # gradient descent
            {"steps": 3, "rate": 0.4, "workers": 2, "delta": 1.0},
        ),
        (
            lambda rate, compressor: algorithms.error_compensated_sgd(
                optax.sgd(rate), compressor, compressor
            ),
            MIXED,
            1.376852,
            {"steps": 4, "rate": 0.3, "workers": 2},
        ),
        pytest.param(
            lambda rate, compressor: algorithms.choco_sgd(
                optax.sgd(rate), topologies.ring(4), compressor, 0.5
            ),
            MIXED,
            0.156720,
            {"steps": 4, "rate": 0.3},
            marks=LONG,
        ),
    ],
)
def test_compressed_methods_reach_known_values(method, functions, known, options):
    worst = worst_case(method, functions, **{"delta": 0.75, **options})
    require_attained(worst, known)


# --- Symmetry.


@pytest.mark.parametrize(
    ("method", "found"),
    [
        pytest.param(ring_factory(algorithms.decentralized_sgd), "ring", marks=LONG),
        (lambda rate: algorithms.local_sgd(optax.sgd(rate), 2), "all"),
    ],
)
def test_symmetry_does_not_change_the_value(monkeypatch, method, found):
    options: dict[str, Any] = {"steps": 4, "rate": 0.5, "workers": 4}
    worst = worst_case(method, MIXED, **options)
    assert worst.symmetry == found
    monkeypatch.setattr(symmetry, "find", lambda layout, vectors: "none")
    without = worst_case(method, MIXED, **options)
    assert len(without.gram) == 1 < len(worst.gram)
    assert without.value == pytest.approx(worst.value, rel=1e-6)


def test_the_number_of_workers_does_not_matter_under_all_permutations():
    values = [
        worst_case(
            lambda rate: algorithms.local_sgd(optax.sgd(rate), 3),
            MIXED,
            steps=6,
            rate=0.5,
            workers=N,
        ).value
        for N in (2, 7)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_exact_diffusion_is_d2_on_half_the_graph():
    diffusion = worst_case(ring_factory(algorithms.exact_diffusion), MIXED, steps=4, rate=0.5)
    lazy = topologies.ring(4, topologies.lazy)
    np.testing.assert_allclose(lazy.W, (np.eye(4) + topologies.ring(4).W) / 2)
    d2 = worst_case(lambda rate: algorithms.d2(optax.sgd(rate), lazy), MIXED, steps=4, rate=0.5)
    assert diffusion.value == pytest.approx(d2.value, rel=1e-6)


# --- Functions that are not convex.


def test_worst_cases_are_below_the_theorem_of_decentralized_sgd():
    functions = Smooth(L=1, mu=-1, gap=1, heterogeneity=1, where="average")
    worst = worst_case(
        ring_factory(algorithms.decentralized_sgd),
        functions,
        steps=10,
        rate=0.5,
        measure="gradient",
        over="mean",
    )
    require_attained(worst, 0.341416)
    assert not worst.exact


# --- The certificate.


def test_bounds_hold_for_inaccurate_multipliers():
    options: dict[str, Any] = {"measure": "gap", "over": "last", "workers": None, "delta": None}
    method = ring_factory(algorithms.decentralized_sgd)
    given = Analysis.from_method(method, MIXED, {"rate": 0.5}, steps=3, key=None, **options)
    solved = given.solve({"rate": 0.5})
    rng = np.random.default_rng(0)
    for size in (1e-6, 1e-3, 1e-1):
        noise = size * rng.normal(size=len(solved.solution.multipliers))
        multipliers = np.maximum(solved.solution.multipliers + noise, 0)
        bound = solution.certify(solved.program, multipliers, *given.limits(solved))
        assert bound >= solved.solution.value


# --- Derivatives and tuning.


def test_slopes_are_those_of_differences():
    options: dict[str, Any] = {"over": "last", "workers": None, "delta": None, "key": None}
    method, values = ring_factory(algorithms.extra, 8), {"rate": 0.6}
    given = Analysis.from_method(method, MIXED, values, steps=10, measure="distance", **options)
    slope = given.slope(given.solve(values), values, "rate")
    heights = [given.solve({"rate": 0.6 + step}).solution.value for step in (1e-3, -1e-3)]
    assert slope == pytest.approx((heights[0] - heights[1]) / 2e-3, rel=1e-4)


def test_best_step_of_gradient_descent():
    best = best_step(
        gradient_descent, STRONG, steps=5, measure="distance", workers=1, rate=(0.1, 2.0)
    )
    assert best.hyperparameters["rate"] == pytest.approx(2 / (1 + MU), rel=1e-4)
    assert best.worst.value == pytest.approx((0.9 / 1.1) ** 10, rel=1e-5)
    assert len(best.tried) < 20


# --- Errors.


@pytest.mark.parametrize(
    "optimizer", [optax.adam(0.1), optax.chain(optax.add_noise(0.1, 0.5, 0), optax.sgd(0.1))]
)
def test_methods_that_are_not_linear_are_refused_by_name(optimizer):
    with pytest.raises(ValueError, match="gradient_descent is not a linear function"):
        worst_case(algorithms.gradient_descent(optimizer), CONVEX, steps=3, workers=1)


def test_large_programs_are_refused(monkeypatch):
    monkeypatch.setattr(analysis, "LARGEST", 10)
    with pytest.raises(ValueError, match=r"block of 2\d rows; expected at most 10; use about"):
        worst_case(
            lambda rate: algorithms.stochastic_gradient_push(
                optax.sgd(rate), topologies.one_peer_exponential(4)
            ),
            MIXED,
            steps=4,
            rate=0.5,
        )


def test_without_the_solver_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(ImportError, match="the extra 'theory' includes; pip install clarabel"):
        worst_case(gradient_descent, CONVEX, steps=1, workers=1, rate=1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"L": 0, "distance": 1}, r"Smooth: L = 0; expected a number in \(0, inf\)"),
        ({"L": 1, "mu": 1, "distance": 1}, r"mu = 1; expected a number in \[-L, L\)"),
        ({"L": 1}, "no bound on the start; expected distance=1.0 or gap=1.0"),
        ({"L": 1, "gap": 1}, "with mu = 0 a gap does not bound the distance"),
        ({"L": 1, "mu": -1, "distance": 1}, "distance = 1 with mu = -1"),
        ({"L": 1, "distance": 1, "heterogeneity": -1}, "Smooth: heterogeneity = -1"),
    ],
)
def test_classes_without_a_finite_worst_case_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Smooth(**given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: worst_case(gradient_descent(1.0), CONVEX, steps=1, workers=1, rate=1.0),
            "rate given with a method; expected a function",
        ),
        (
            lambda: worst_case(gradient_descent, NOT_CONVEX, steps=1, workers=2, rate=1.0),
            "need not have an optimum; expected Smooth",
        ),
        (
            lambda: worst_case(gradient_descent, CONVEX, steps=1, measure="loss", rate=1.0),  # type: ignore[arg-type]
            "measure = 'loss'; expected 'gap', 'gradient', 'distance', 'consensus'",
        ),
        (
            lambda: best_step(gradient_descent, CONVEX, steps=1, workers=1, rate=(2.0, 1.0)),
            r"best_step: rate = .*; expected a range",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- Theorems.


def test_comparisons_are_of_statements():
    assert set(COMPARISONS) <= {statement.name for statement in registry.STATEMENTS}


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        pytest.param("DSGD, non-convex", 1.274 / 3.694, marks=LONG),
        pytest.param("ASGD, non-convex", 0.617, marks=LONG),
        ("local SGD, consensus", 1.0),
        ("EF21, linear, exact", 0.499),
        pytest.param("gradient tracking, linear", 0.992, marks=LONG),
    ],
)
def test_theorems_hold_in_the_worst_case(name, ratio):
    found = COMPARISONS[name]()
    assert found.holds
    assert found.ratio == pytest.approx(ratio, abs=1e-3)


def test_compressors_that_are_linear_for_one_element_are_refused():
    with pytest.raises(ValueError, match=r"compressed_sgd\(.*\) is not a linear function"):
        worst_case(
            algorithms.compressed_sgd(optax.sgd(0.1), compressors.random_quantization(4)),
            STRONG,
            steps=2,
            workers=2,
        )


def test_several_queries_of_a_round_are_several_gradients():
    """A custom method with gradients at the present and at the previous model."""

    def init(params, N):
        return State((params, params))

    def update(state, answers, round):
        (x, _), (now, before) = state.server, map(round.mean, answers)
        return State((x - 0.3 * now - 0.1 * before, x))

    method = Algorithm(
        "two_points",
        init,
        lambda state, round: tuple(map(Query, state.server)),
        update,
        lambda state: state.server[0],
    )
    worst = worst_case(method, STRONG, steps=4, workers=2)
    require_attained(worst, worst.bound, BOUND)
