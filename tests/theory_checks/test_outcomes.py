"""Random draws of instances, and the comparison of both sides of an outcome."""

from __future__ import annotations

import numpy as np
import pytest

from theory_checks.machinery.search import ReplayableDraws
from theory_checks.machinery.statement import ROUNDING, STANDARD_ERRORS, Condition, Outcome, need

# --- Draws.


def test_a_fifth_of_random_reals_are_at_an_end_of_their_range():
    draws, count = ReplayableDraws(np.random.default_rng(0)), 20_000
    found = np.array([draws.real(-2.0, 5.0) for _ in range(count)])
    assert found.min() == -2.0
    assert found.max() == 5.0
    for end in (-2.0, 5.0):
        share = np.mean(found == end)
        assert abs(share - 0.1) <= 5 * np.sqrt(0.1 * 0.9 / count)
    inside = found[(found > -2) & (found < 5)]
    assert abs(inside.mean() - 1.5) <= 5 * 7 / np.sqrt(12 * inside.size)


def test_random_integers_and_choices_take_all_values():
    draws = ReplayableDraws(np.random.default_rng(0))
    assert {draws.integer(-1, 2) for _ in range(200)} == {-1, 0, 1, 2}
    assert all(type(draws.integer(0, 2**32 - 1)) is int for _ in range(5))
    assert {draws.choice("abc") for _ in range(200)} == set("abc")
    assert draws.choice((None,)) is None


def test_random_draws_are_those_of_the_seed():
    first, second = (
        [ReplayableDraws(np.random.default_rng(seed)).real(0, 1) for _ in range(3)]
        for seed in (4, 4)
    )
    assert first == second


# --- Outcomes.


@pytest.mark.parametrize(
    ("outcome", "holds"),
    [
        (Outcome(2.0, 2.0), True),
        (Outcome(2.0 * (1 + 0.9 * ROUNDING), 2.0), True),
        (Outcome(2.0 * (1 + 1.1 * ROUNDING), 2.0), False),
        (Outcome(0.0, 0.0), True),
        (Outcome(1e-300, 0.0), False),
        (Outcome(0.9 * ROUNDING * 7, 0.0, scale=7.0), True),
        (Outcome(1.1 * ROUNDING * 7, 0.0, scale=7.0), False),
        (Outcome(2.0 + 0.99 * STANDARD_ERRORS * 0.1, 2.0, 0.1), True),
        (Outcome(2.0 + 1.01 * STANDARD_ERRORS * 0.1, 2.0, 0.1), False),
        (Outcome(-3.0, -2.0), True),
        (Outcome(-2.0, -3.0), False),
        (Outcome(2.0 * (1 - 1.1 * ROUNDING), 2.0, equality=True), False),
        (Outcome(1.99, 2.0, 0.01, equality=True), True),
        (Outcome(1.94, 2.0, 0.01, equality=True), False),
        (Outcome(np.nan, 2.0), False),
        (Outcome(1.0, np.nan), False),
        (Outcome(1.0, 2.0, np.nan), False),
        (Outcome(-np.inf, 2.0), False),
        (Outcome(np.inf, np.inf), False),
        (Outcome(1.0, 2.0, np.inf), False),
    ],
)
def test_an_outcome_holds_up_to_rounding_and_noise(outcome, holds):
    """Values that are not finite prove nothing."""
    assert outcome.holds is holds or outcome.holds == np.bool_(holds)


@pytest.mark.parametrize(
    ("outcome", "ratio"),
    [
        (Outcome(1.0, 2.0), 0.5),
        (Outcome(0.0, 0.0), 0.0),
        (Outcome(1.0, 0.0), np.inf),
        (Outcome(1e-12, 1e-12, scale=1.0), 0.0),
        (Outcome(1e-8, 1e-12, scale=1.0), np.inf),
    ],
)
def test_ratio_is_0_where_both_sides_are(outcome, ratio):
    assert outcome.ratio == ratio


def test_the_first_hypothesis_that_fails_is_named():
    need("here", [Condition("a", True, "a = 1")])
    with pytest.raises(ValueError, match=r"^here: b = 2; expected b$"):
        need(
            "here",
            [
                Condition("a", True, "a = 1"),
                Condition("b", False, "b = 2"),
                Condition("c", False, "c = 3"),
            ],
        )
