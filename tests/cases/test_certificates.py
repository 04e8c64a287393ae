"""Worst cases at the edges of what can be certified: small values, methods for which the origin
matters, operations that are not linear, constants that are not 1, and the arithmetic of the bound.
"""

from __future__ import annotations

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse
from budgets import sampled

import algorithms
import topologies
from dsgd import Algorithm, Query, State
from theory_checks import Smooth, worst_case
from theory_checks.worst_cases import analysis, linearity, sizes, solution, symmetry
from theory_checks.worst_cases.analysis import Analysis
from theory_checks.worst_cases.layout import lay_out
from theory_checks.worst_cases.program import Assembly, Program


def descent(rate, *before):
    return algorithms.gradient_descent(optax.chain(*before, optax.sgd(rate)))


# --- Small values, and the arithmetic of the bound.


@pytest.mark.parametrize("steps", [pytest.param(15, marks=pytest.mark.long), 20])
def test_values_that_are_tiny_compared_with_the_start(steps):
    """Gradient descent contracts the distance by 1 - mu / L: the value is 1/4^K."""
    functions = Smooth(2, 1, distance=3)
    worst = worst_case(descent(0.5), functions, steps=steps, workers=1, measure="distance")
    known = 9 * Fraction(1, 4) ** steps
    assert worst.value == pytest.approx(float(known), rel=1e-5)
    assert known <= Fraction(worst.bound) <= known * Fraction(1 + 1e-5)


def test_many_steps_are_certified_without_tolerance():
    """L D^2 / (4 K + 2) for step size 1 / L; the bound is compared as a fraction."""
    worst = worst_case(descent(0.5), Smooth(2, distance=3), steps=30, workers=1)
    assert worst.value == pytest.approx(18 / 122, rel=1e-6)
    assert Fraction(18, 122) <= Fraction(worst.bound) <= Fraction(18, 122) * Fraction(1 + 1e-6)
    assert worst.certified == "interval"


def small_program() -> Program:
    """Returns max F subject to F <= G, G <= 1, G >= 0, whose value is 1; the unit is 7."""
    A = scipy.sparse.csc_matrix([[-1.0, 1.0], [1.0, 0.0]])
    return Program(np.array([0.0, 1.0]), A, np.array([0.0, 1.0]), [1], 7.0)


@pytest.mark.parametrize(
    ("multipliers", "known"),
    [
        ((1.0, 2.0), 2.0),  # feasible
        ((1.0, 0.25), 0.25 + 0.75 * 2),  # S = -0.75, and the trace is at most 2
        ((0.0, 1.0), 1.0 + 3),  # r = 1, and |F| is at most 3
        ((0.5, 2.0), 2.0),  # r is corrected
    ],
)
def test_both_corrections_of_the_certificate(multipliers, known):
    bound = solution.certify(small_program(), np.array(multipliers), 2.0, np.array([3.0]))
    assert 7 * known <= bound <= 7 * known * (1 + 1e-6)


def test_the_smallest_bound_of_all_attempts_counts():
    """Each attempt's bound holds; the value is that of the attempt that comes nearest to it."""
    found = [(1.0, 1.5), (1.1, 1.01), (np.nan, np.inf)]
    solutions = [solution.Solution(*pair, "", np.zeros(1), np.zeros(1)) for pair in found]
    attempts = [analysis.Solved(*[None] * 6, solution=each) for each in solutions]  # type: ignore[arg-type]
    best = analysis._best(attempts).solution
    assert (best.value, best.bound) == (1.0, 1.01)


def test_a_run_above_the_bound_is_an_error(monkeypatch):
    """Every worst case is run on the functions that attain it."""
    measured = analysis.WorstCase.run
    monkeypatch.setattr(analysis.WorstCase, "run", lambda worst: 1.001 * measured(worst))
    with pytest.raises(ValueError, match=r"on the worst functions reaches .* above the bound 0\.1"):
        worst_case(descent(0.5), Smooth(2, distance=3), steps=26, workers=1, measure="gap")


# --- The origin.


def averaged_from_zero(rate):
    """Returns the moving average of the iterates of gradient descent, which starts at 0."""

    def update(state, gradients, round):
        x = state.server[0] - rate * round.mean(gradients)
        return State(server=(x, 0.5 * state.server[1] + 0.5 * x))

    return Algorithm(
        "averaged",
        lambda params, N: State(server=(params, 0 * params)),
        lambda state, round: Query(state.server[0]),
        update,
        lambda state: state.server[1],
    )


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (descent(0.5, optax.add_decayed_weights(0.1)), r"point or model .* contains 0\.95 times"),
        (averaged_from_zero(0.5), r"point or model .* contains 0 times its start"),
    ],
)
def test_methods_for_which_the_origin_matters_are_refused(method, message):
    with pytest.raises(ValueError, match=message):
        worst_case(method, Smooth(1, 0.1, distance=1), steps=5, workers=1)


# --- Linear operations.


@pytest.mark.parametrize(
    ("transform", "operation"),
    [
        (optax.clip(1e3), r"(clamp|max|min|pjit)"),
        (optax.clip_by_global_norm(1e3), r""),
        (optax.scale_by_sign(), "sign"),
        (optax.normalize_by_update_norm(), r""),
    ],
)
def test_operations_that_are_not_linear_are_named_whatever_the_size_of_the_class(
    transform, operation
):
    functions = Smooth(1, 0.1, distance=1e4)
    with pytest.raises(
        ValueError, match=rf"gradient_descent .* its operation {operation}.* is not"
    ):
        worst_case(descent(0.5, transform), functions, steps=3, workers=1)


def drifting(constant):
    def update(state, gradients, round):
        return State(server=state.server - 0.5 * round.mean(gradients) + constant)

    return Algorithm(
        "drifting",
        lambda params, N: State(server=params),
        lambda state, round: Query(state.server),
        update,
        lambda state: state.server,
    )


def test_constants_are_found_whatever_their_size():
    with pytest.raises(ValueError, match=r"drifting .* from a start and gradients of 0 it moves"):
        worst_case(drifting(1e-30), Smooth(3, distance=0.01), steps=2, workers=2)


def test_kinds_of_operations():
    A, steps = jnp.arange(6.0).reshape(2, 3), jnp.arange(4)

    def loop(x, step):
        return x + step * x[::-1], 2 * x

    affine = {
        "product": lambda x: A @ x + 1,
        "scan": lambda x: jax.lax.scan(loop, x, steps),
        "counted loop": lambda x: jax.lax.fori_loop(0, 5, lambda i, x: x - x.mean(), x),
        "branch by step": lambda x: jax.lax.cond(steps[2] > 1, lambda x: x, lambda x: -x, x),
        "masked": lambda x: jnp.where(jnp.arange(3) > 1, x, 0),
        "row": lambda x: x[jnp.array([2, 0])],
        "placed": lambda x: 2 * jnp.zeros(5).at[jnp.array([4, 1, 0])].add(x),
        "unused": lambda x: (jnp.exp(x), x)[1],
        "divided": lambda x: x / 3,
        "first power": lambda x: x**1,
    }
    other = {
        "mul": lambda x: x * x,
        "div": lambda x: 1 / x,
        "max": lambda x: jnp.maximum(x, 0),
        "gt": lambda x: jax.lax.while_loop(lambda x: x[0] > 0, lambda x: x - 1, x),
        "lt": lambda x: jax.lax.cond(x[0] < 0, lambda x: x, lambda x: -x, x),
        "ge": lambda x: jnp.where(x >= 0, x, 0),
        "convert_element_type": lambda x: A[0][x.astype(int)],
        "exp": lambda x: jax.lax.scan(lambda x, _: (jnp.exp(x), x), x, steps)[1],
        "convert_element_type (": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    }

    def kinds(function):
        return linearity.outputs(jax.make_jaxpr(function)(jnp.ones(3)).jaxpr, [True])

    for name, function in affine.items():
        assert all(kind is True for kind in kinds(function)), name
    for name, function in other.items():
        assert any(str(kind).startswith(name) for kind in kinds(function)), name


# --- Constants of the classes: values of equivalent classes.


def ring_sgd(rate):
    return algorithms.decentralized_sgd(optax.sgd(rate), topologies.ring(4))


@pytest.mark.parametrize("where", sampled(["path", "average", "optimum"]))
def test_lengths_have_any_unit(where):
    """Functions f(x / a) a^2: distances and heterogeneity are a times, squares a^2 times as large.
    The consensus distance grows with the heterogeneity.
    """
    one, other = (
        worst_case(
            ring_sgd,
            Smooth(2, 0.1, distance=1.5 * a, heterogeneity=0.6 * a, where=where),
            steps=2,
            rate=0.4,
            measure="consensus",
        ).value
        for a in (1, 3)
    )
    assert other == pytest.approx(9 * one, rel=1e-5)


@pytest.mark.parametrize("where", sampled(["average", "path"]))
def test_values_of_functions_that_are_not_convex_have_any_unit(where):
    """Functions c f: with steps / c, squared gradients are c^2 times as large."""
    one, other = (
        worst_case(
            ring_sgd,
            Smooth(2 * c, -2 * c, gap=0.7 * c, heterogeneity=0.6 * c, where=where),
            steps=2,
            rate=0.2 / c,
            measure="gradient",
            over="mean",
        ).value
        for c in (1, 3)
    )
    assert other == pytest.approx(9 * one, rel=1e-5)


def test_the_minimum_of_parabolas_is_zero():
    """For f_n(x) = L/2 (x - a_n)^2 + constants with min f = 0 and f_n(0) = f(0), the condition for
    the minimum is an equality: f(0) = L/2 (mean a)^2.
    """
    L, a = 3.0, np.array([0.3, -0.2, 0.9, 0.4])
    functions = Smooth(L, -L, gap=0.7, heterogeneity=0.6, where="path")
    options = {"measure": "gradient", "over": "mean", "workers": 4, "delta": None}
    given = Analysis.from_method(ring_sgd, functions, {"rate": 0.4}, steps=1, key=None, **options)
    points, vectors = lay_out(given.reader, given.reader({"rate": 0.4}), functions, {0})
    units = sizes.units(points, vectors)
    basis = symmetry.basis(points, "none", units)
    assembly = Assembly(points, basis, vectors, units, None)
    inputs = np.zeros(len(units))
    inputs[[of[0].gradient for of in points.points]] = -L * a
    coordinates = np.linalg.lstsq(basis.blocks[0][0], inputs, rcond=None)[0]
    gram, (j, i) = np.outer(coordinates, coordinates), np.tril_indices(len(coordinates))
    height = L / 2 * a.mean() ** 2 / (L * functions.radius**2)
    y = np.append((gram * np.where(np.eye(len(gram)) > 0, 1, np.sqrt(2)))[j, i], height)
    assembly._bound_below_at([0, 0, 0, 0])
    A, most = assembly._constraints[-1]
    assert A @ y - most == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("distance", "heterogeneity", "reached"),
    [
        # Both derivatives are L R / 2 at the start, and -+ L R / 2 at the optimum.
        (1.5, 0.0, 1.5),
        # The derivative of one of four workers is tilted against those of the others.
        (1e-3, 0.6, 0.6 * np.sqrt(3)),
    ],
)
def test_gradients_at_the_optimum_are_bounded_by_those_on_the_path(
    distance, heterogeneity, reached
):
    functions = Smooth(2, distance=distance, heterogeneity=heterogeneity, where="average")
    options = {"steps": 1, "measure": "gap", "over": "last", "workers": 4, "delta": None}
    given = Analysis.from_method(ring_sgd, functions, {"rate": 0.4}, key=None, **options)
    points, vectors = lay_out(given.reader, given.reader({"rate": 0.4}), functions, {0, 1})
    assert (sizes.sizes(points, vectors, None).inputs[points.optimum] >= reached).all()
