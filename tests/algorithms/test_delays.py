"""Rules for D(t): their values, bounds, and invalid rules. Their use is tested in
test_asynchronous_methods.
"""

from __future__ import annotations

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


def ages(rule: delays.Delays, T: int, parts: int = 1, moved=nowhere) -> np.ndarray:
    """Returns t - D(t) for t = 0, ..., T - 1, `[T, P]`."""
    keys = jax.random.split(KEY, T)
    found = jax.vmap(lambda key, t: rule.staleness(key, t, parts, moved))(
        keys, jnp.arange(T, dtype=jnp.int32)
    )
    assert found.dtype == jnp.int32
    assert found.shape == (T, parts)
    return np.asarray(found)


def test_uniform_draws_each_staleness_equally_often_and_independently_for_each_part():
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


def test_worst_case_is_the_farthest_of_the_stored_models():
    """Part by part; of equally distant models the youngest is used."""
    distances = jnp.array(
        [[0.0, 1.0, 3.0, 2.0, 9.0], [0.0, 5.0, 5.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]]
    )
    found = ages(delays.worst_case(4), 6, parts=3, moved=lambda: distances)
    np.testing.assert_array_equal(
        found, [[0, 0, 0], [1, 1, 0], [2, 1, 0], [2, 1, 0], [4, 1, 0], [4, 1, 0]]
    )
    assert (delays.worst_case(4).bound, delays.worst_case(4).name) == (4, "worst_case(4)")


SEQUENCE, BY_PART = [0, 0, 2, 0, 3], np.array([[0, 0], [0, 1], [2, 0]])


@pytest.mark.parametrize(
    ("rule", "bound", "name", "staleness"),
    [
        # the largest possible age until it is tau
        (delays.constant(0), 0, "constant(0)", [[0, 0]] * 4),
        (delays.constant(2), 2, "constant(2)", [[0, 0], [1, 1], [2, 2], [2, 2]]),
        # a sequence repeats; each part may have its own
        (delays.given(SEQUENCE), 3, "given(5)", [[0], [1], [0], [3], [1], [0], [1], [0], [3]]),
        (delays.given(SEQUENCE), 3, "given(5)", [[0, 0], [1, 1], [0, 0], [3, 3]]),
        (delays.given(SEQUENCE, bound=6), 6, "given(5)", [[0], [1]]),
        (delays.given(BY_PART), 2, "given(3)", [[0, 0], [1, 0], [0, 2], [0, 0]]),
    ],
)
def test_results_of_a_rule(rule, bound, name, staleness):
    np.testing.assert_array_equal(ages(rule, len(staleness), len(staleness[0])), staleness)
    assert (rule.bound, rule.name) == (bound, name)


REFUSED = [
    (delays.given, {"D": [0, 2, 1]}, r"D\(1\) = 2 is in the future"),
    (delays.given, {"D": np.array([[0, 0], [0, 1], [2, 3]])}, r"D\(2\) = 3 is in the future"),
    (delays.given, {"D": [0, 1, -1]}, r"D\(2\) = -1 is before the start"),
    (delays.given, {"D": [0, 0, 2, 0], "bound": 1}, "bound = 1, but the staleness reaches 3"),
    (delays.given, {"D": []}, r"D has shape \(0,\)"),
    (delays.given, {"D": np.zeros((1, 1, 1), int)}, r"D has shape \(1, 1, 1\)"),
    (delays.given, {"D": np.zeros(2)}, "D has shape .* float64"),
    (
        algorithms.asynchronous_sgd,
        {"optimizer": optax.sgd(0.1), "delays": 4},
        "asynchronous_sgd: delays",
    ),
]


@pytest.mark.parametrize(("function", "arguments", "words"), REFUSED)
def test_invalid_rules_are_refused(function, arguments, words):
    with pytest.raises(ValueError, match=words):
        function(**arguments)
