"""Every statement, on instances that Hypothesis chooses within its hypotheses; and what it is for an outcome to hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from theory_checks import (
    asynchronous_sgd,
    compressed_sgd,
    decentralized_sgd,
    ef21,
    error_compensated_sgd,
    gradient_descent,
    local_sgd,
    minibatch_sgd,
    sgd,
)
from theory_checks.machinery import registry
from theory_checks.machinery.search import Tape
from theory_checks.machinery.statement import ROUNDING, STANDARD_ERRORS, Condition, Outcome, Statement, need

FAMILIES = (
    gradient_descent,
    sgd,
    minibatch_sgd,
    compressed_sgd,
    error_compensated_sgd,
    asynchronous_sgd,
    decentralized_sgd,
    local_sgd,
    ef21,
)
THEOREMS = {statement.name for family in FAMILIES for statement in family.STATEMENTS}
STATEMENTS = registry.STATEMENTS
FEWER = 5  # instances that are built reach the bounds: of drawn ones a fifth of what other properties are tried on is enough


class Drawn:
    """`Draws` of Hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def integer(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def real(self, low: float, high: float) -> float:
        return self.data.draw(st.floats(low, high, allow_nan=False))

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.data.draw(st.integers(0, len(options) - 1))]


@pytest.mark.parametrize("statement", STATEMENTS, ids=[statement.name for statement in STATEMENTS])
def test_statement_holds(statement: Statement):
    """Of drawn instances; `test_extremes` has those that are built."""
    seen: list[Outcome] = []
    cases = settings.default.max_examples // FEWER

    @settings(
        max_examples=cases,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    @given(data=st.data())
    def holds(data):
        outcomes = statement.trial(Drawn(data))
        assert outcomes
        seen.extend(outcomes)
        for outcome in outcomes:
            assert outcome.holds, outcome

    holds()
    assert len(seen) >= cases
    if statement.name not in THEOREMS:
        return
    assert len({(outcome.case, outcome.measured) for outcome in seen}) >= cases / 4, "instances that are all the same show little"
    assert sum(outcome.measured > 0 for outcome in seen) >= cases / 4, "0 is within every bound"
    if "exact" in statement.name:
        assert all(outcome.error == 0 for outcome in seen), "exact moments have no sampling noise"


def test_statements_have_names_of_their_own():
    names = Counter(statement.name for statement in STATEMENTS)
    assert max(names.values()) == 1
    assert all(statement.reference and statement.hypotheses for statement in STATEMENTS)


# --- Draws.


def test_random_reals_are_at_an_end_of_their_range_every_fifth_time():
    draws, count = Tape(np.random.default_rng(0)), 20_000
    found = np.array([draws.real(-2.0, 5.0) for _ in range(count)])
    assert found.min() == -2.0
    assert found.max() == 5.0
    for end in (-2.0, 5.0):
        share = np.mean(found == end)
        assert abs(share - 0.1) <= 5 * np.sqrt(0.1 * 0.9 / count)
    inside = found[(found > -2) & (found < 5)]
    assert abs(inside.mean() - 1.5) <= 5 * 7 / np.sqrt(12 * inside.size)


def test_random_integers_and_choices_are_all_that_there_are():
    draws = Tape(np.random.default_rng(0))
    assert {draws.integer(-1, 2) for _ in range(200)} == {-1, 0, 1, 2}
    assert all(type(draws.integer(0, 2**32 - 1)) is int for _ in range(5))
    assert {draws.choice("abc") for _ in range(200)} == set("abc")
    assert draws.choice((None,)) is None


def test_random_draws_are_those_of_the_seed():
    first, second = ([Tape(np.random.default_rng(seed)).real(0, 1) for _ in range(3)] for seed in (4, 4))
    assert first == second


# --- Outcomes.


@pytest.mark.parametrize(
    ("outcome", "holds"),
    [
        (Outcome(1.0, 2.0), True),
        (Outcome(2.0, 2.0), True),
        (Outcome(2.0 * (1 + 0.9 * ROUNDING), 2.0), True),
        (Outcome(2.0 * (1 + 1.1 * ROUNDING), 2.0), False),
        (Outcome(0.0, 0.0), True),
        (Outcome(1e-300, 0.0), False),
        (Outcome(0.9 * ROUNDING * 7, 0.0, scale=7.0), True),
        (Outcome(1.1 * ROUNDING * 7, 0.0, scale=7.0), False),
        (Outcome(2.0 + 0.99 * STANDARD_ERRORS * 0.1, 2.0, 0.1), True),
        (Outcome(2.0 + 1.01 * STANDARD_ERRORS * 0.1, 2.0, 0.1), False),
        (Outcome(-1.0, 2.0), True),
        (Outcome(-3.0, -2.0), True),
        (Outcome(-2.0, -3.0), False),
        (Outcome(1.0, 2.0, equality=True), False),
        (Outcome(3.0, 2.0, equality=True), False),
        (Outcome(2.0, 2.0, equality=True), True),
        (Outcome(2.0 * (1 - 1.1 * ROUNDING), 2.0, equality=True), False),
        (Outcome(1.99, 2.0, 0.01, equality=True), True),
        (Outcome(1.94, 2.0, 0.01, equality=True), False),
        (Outcome(-2.0, -2.0, equality=True), True),
        (Outcome(np.nan, 2.0), False),
        (Outcome(1.0, np.nan), False),
        (Outcome(1.0, 2.0, np.nan), False),
        (Outcome(1.0, np.inf), False),
        (Outcome(-np.inf, 2.0), False),
        (Outcome(np.inf, np.inf), False),
        (Outcome(1.0, 2.0, np.inf), False),
    ],
)
def test_an_outcome_holds_up_to_rounding_and_noise(outcome, holds):
    """What is not finite shows nothing."""
    assert outcome.holds is holds or outcome.holds == np.bool_(holds)


@pytest.mark.parametrize(
    ("outcome", "ratio"),
    [
        (Outcome(1.0, 2.0), 0.5),
        (Outcome(3.0, 2.0, error=10.0), 1.5),
        (Outcome(0.0, 0.0), 0.0),
        (Outcome(1.0, 0.0), np.inf),
        (Outcome(1e-12, 1e-12, scale=1.0), 0.0),
        (Outcome(1e-8, 1e-12, scale=1.0), np.inf),
        (Outcome(1e-12, 2e-12), 0.5),
    ],
)
def test_ratio_is_0_where_both_sides_are(outcome, ratio):
    assert outcome.ratio == ratio


def test_need_names_the_first_hypothesis_that_fails():
    need("here", [Condition("a", True, "a = 1")])
    with pytest.raises(ValueError, match=r"^here: b = 2: need b$"):
        need("here", [Condition("a", True, "a = 1"), Condition("b", False, "b = 2"), Condition("c", False, "c = 3")])
