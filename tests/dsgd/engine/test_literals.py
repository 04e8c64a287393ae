"""Numbers of functions as arguments of compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dsgd.engine import literals, programs


class Plan(NamedTuple):
    """(number, x) -> anything; the number; and the devices."""

    function: Callable
    number: Any
    mesh: jax.sharding.Mesh


def call(plan: Plan, x: jax.Array) -> Any:
    return literals.lift(lambda x: plan.function(plan.number, x), x)


def scale(number: Any, x: jax.Array) -> jax.Array:
    return number * x + 1.0


def branch(number: Any, x: jax.Array) -> jax.Array:
    return lax.cond(x[0] > 0, lambda x: number * x, lambda x: x, x)


def results(function: Callable, numbers: Any, mesh: jax.sharding.Mesh) -> tuple[list, int]:
    """Returns the results for each number, and the number of programs."""
    programs.clear()
    before, x = programs.count_compiled(), np.arange(3, dtype=np.float32)
    found = [programs.call(call, Plan(function, number, mesh), x) for number in numbers]
    return found, programs.count_compiled() - before


@pytest.mark.parametrize(
    ("function", "numbers", "compiled"),
    [
        (scale, (0.3, -0.7, np.float32(2.5), jnp.asarray(1e-4)), 1),
        (scale, (0.3, 3.0, -10.0), 1),
        (scale, (1.0, -2.0, np.inf), 3),
        (scale, (-1, 2), 2),
        (branch, (0.3, 0.7), 2),
    ],
    ids=["scalars", "whole", "small whole", "integers", "nested"],
)
def test_programs_are_shared_by_other_numbers(function, numbers, compiled, mesh):
    found, count = results(function, numbers, mesh)
    assert count == compiled
    for number, result in zip(numbers, found, strict=True):
        np.testing.assert_array_equal(result, function(number, jnp.arange(3.0)))


def test_types_of_results_are_those_of_the_function(mesh):
    def function(number, x):
        half = x.astype(jnp.bfloat16)
        return number**2 * half, number ** jnp.asarray(2), number, 0.25 + x, half * jnp.sqrt(number)

    (found,), _ = results(function, [0.3], mesh)
    expected = function(0.3, jnp.arange(3, dtype=jnp.float32))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == jnp.result_type(other)
        np.testing.assert_array_equal(one, jnp.asarray(other))


def test_numbers_beyond_the_argument_remain_literals(mesh):
    def function(number, x):
        return x, [number + i for i in range(literals.MOST + 5)]

    (found,), _ = results(function, [0.3], mesh)
    np.testing.assert_allclose(found[1], function(0.3, 0)[1], rtol=1e-7)


def test_the_text_of_a_program_has_its_numbers(mesh):
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    one, other, again = (
        programs.text(call, Plan(scale, number, mesh), shape) for number in (0.3, 0.7, 0.3)
    )
    assert one == again != other
