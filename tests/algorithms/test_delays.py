"""Rules for D(t): what they give, within which bounds, and what they refuse. How they are used:
test_asynchronous_methods.
"""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
from algorithms import delays

KEY = jax.random.key(0)


def nowhere():
    raise AssertionError("this rule does not ask how far the model has moved")


def of(rule: delays.Delays, T: int, parts: int = 1, moved=nowhere) -> np.ndarray:
    """t - D(t) for t = 0, ..., T - 1, `[T, P]`."""
    keys = jax.random.split(KEY, T)
    found = jax.vmap(lambda key, t: rule.staleness(key, t, parts, moved))(
        keys, jnp.arange(T, dtype=jnp.int32)
    )
    assert found.dtype == jnp.int32
    assert found.shape == (T, parts)
    return np.asarray(found)


@pytest.mark.parametrize("bound", [0, 1, 5])
def test_constant_is_as_old_as_it_can_be_until_it_is_tau(bound):
    rule = delays.constant(bound)
    np.testing.assert_array_equal(
        of(rule, 8, parts=2), np.minimum(np.arange(8), bound)[:, None].repeat(2, axis=1)
    )
    assert (rule.bound, rule.name) == (bound, f"constant({bound})")


def test_uniform_takes_each_staleness_as_often_for_each_part_on_its_own():
    rule, parts, runs = delays.uniform(4), 2, 4_000
    assert (rule.bound, rule.name) == (4, "uniform(4)")
    for t, most in [(0, 0), (2, 2), (4, 4), (50, 4)]:
        draw = jax.vmap(lambda key, t=t: rule.staleness(key, jnp.int32(t), parts, nowhere))
        found = np.asarray(draw(jax.random.split(KEY, runs)))
        together = np.histogram2d(*found.T, bins=np.arange(7) - 0.5)[0]
        cells, expected = (most + 1) ** 2, runs / (most + 1) ** 2
        assert together[: most + 1, : most + 1].sum() == runs
        chi_squared = ((together[: most + 1, : most + 1] - expected) ** 2 / expected).sum()
        assert chi_squared <= cells - 1 + 4 * np.sqrt(2 * (cells - 1))


def test_worst_case_is_the_farthest_of_the_models_that_there_are():
    """Part by part; of equally far ones, the youngest."""
    distances = jnp.array(
        [[0.0, 1.0, 3.0, 2.0, 9.0], [0.0, 5.0, 5.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]]
    )
    found = of(delays.worst_case(4), 6, parts=3, moved=lambda: distances)
    np.testing.assert_array_equal(
        found, [[0, 0, 0], [1, 1, 0], [2, 1, 0], [2, 1, 0], [4, 1, 0], [4, 1, 0]]
    )
    assert (delays.worst_case(4).bound, delays.worst_case(4).name) == (4, "worst_case(4)")


def test_a_given_sequence_is_taken_as_it_is_and_begins_again():
    rule = delays.given([0, 0, 2, 0, 3])
    np.testing.assert_array_equal(of(rule, 12)[:, 0], [0, 1, 0, 3, 1, 0, 1, 0, 3, 1, 0, 1])
    np.testing.assert_array_equal(
        of(rule, 4, parts=3), np.array([0, 1, 0, 3])[:, None].repeat(3, axis=1)
    )
    assert (rule.bound, rule.name) == (3, "given(5)")
    assert delays.given(np.array([0, 0]), bound=6).bound == 6


def test_each_part_may_have_a_sequence_of_its_own():
    rule = delays.given(np.array([[0, 0], [0, 1], [2, 0]]))
    np.testing.assert_array_equal(of(rule, 4, parts=2), [[0, 0], [1, 0], [0, 2], [0, 0]])
    assert rule.bound == 2


REFUSED = {
    "delays.given: D(1) = 2 is in the future; expected 0 <= D(t) <= t": partial(
        delays.given, [0, 2, 1]
    ),
    "delays.given: D(2) = 3 is in the future": partial(
        delays.given, np.array([[0, 0], [0, 1], [2, 3]])
    ),
    "delays.given: D(2) = -1 is before the start; expected 0 <= D(t) <= t": partial(
        delays.given, [0, 1, -1]
    ),
    "delays.given: bound = 1, but the staleness reaches 3; expected bound >= 3": partial(
        delays.given, [0, 0, 2, 0], bound=1
    ),
    "delays.given: D has shape (0,) and type float64; expected integers [T] or [T, parts]": partial(
        delays.given, []
    ),
    "delays.given: D has shape (1, 1, 1) and type int64": partial(
        delays.given, np.zeros((1, 1, 1), int)
    ),
    "delays.given: D has shape (2,) and type float64": partial(delays.given, np.zeros(2)),
    "asynchronous_sgd: delays = 4; expected one of algorithms.delays": partial(
        algorithms.asynchronous_sgd, optax.sgd(0.1), 4
    ),
    "delays.given: D has 2 columns, but the model has 3 parts; expected 3 columns, or one D": (
        lambda: of(delays.given(np.zeros((1, 2), int)), 1, parts=3)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_no_rule_is_refused(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        REFUSED[message]()
