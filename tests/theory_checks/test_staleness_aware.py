"""The bound for steps that vary: of steps that do not, it is the theorem's; and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from theory_checks import asynchronous_sgd
from theory_checks.statements import staleness_aware

L, TAU, T = 1.3, 5, 400
STALENESS = np.minimum(TAU, np.arange(T))
NUMBERS = {"gap": 2.0, "smoothness": L, "noise": 0.7}


def test_of_constant_steps_it_is_theorem_4_2_3():
    """But for the first updates, which cannot be as stale as tau."""
    gamma = asynchronous_sgd.largest_step(smoothness=L, staleness=TAU)
    found = staleness_aware.bound(**NUMBERS, staleness=STALENESS, steps=np.full(T, gamma))
    theorem = asynchronous_sgd.bound(**NUMBERS, steps=T, staleness=TAU, learning_rate=gamma)
    younger = 2 * (gamma * L * NUMBERS["noise"]) ** 2 * (TAU - STALENESS.mean())
    assert found == pytest.approx(theorem - younger, rel=1e-12)


def test_the_largest_constant_step_is_the_theorems():
    gamma = asynchronous_sgd.largest_step(smoothness=L, staleness=TAU)
    for share, holds in ((1.0, True), (1 + 1e-9, False)):
        conditions = staleness_aware.hypotheses(L, STALENESS, np.full(T, share * gamma))
        assert all(condition.holds for condition in conditions) == holds


def test_the_largest_gamma_of_staleness_aware_steps_is_at_the_limit():
    gamma = staleness_aware.largest_step(L, STALENESS)
    for share, holds in ((1.0, True), (1 + 1e-9, False)):
        conditions = staleness_aware.hypotheses(L, STALENESS, staleness_aware.steps_of(STALENESS, share * gamma))
        assert all(condition.holds for condition in conditions) == holds


@pytest.mark.parametrize(
    ("staleness", "gamma", "says"),
    [
        (np.array([0, 2]), 0.01, r"need 0 <= t - D\(t\) <= t"),
        (np.array([0, -1]), 0.01, r"need 0 <= t - D\(t\) <= t"),
        (np.array([0, 1]), 0.0, "need gamma_t > 0"),
        (np.array([0, 1]), 1.0, r"at its largest it is 4\.68: need gamma_s L"),
    ],
)
def test_what_the_theorem_does_not_allow_is_refused(staleness, gamma, says):
    with pytest.raises(ValueError, match=rf"^staleness_aware.bound: .*{says}"):
        staleness_aware.bound(**NUMBERS, staleness=staleness, steps=np.full(len(staleness), gamma))


@pytest.mark.parametrize(("name", "value"), [("gap", -1.0), ("smoothness", 0.0), ("noise", np.nan)])
def test_numbers_that_there_cannot_be_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"^staleness_aware.bound: {name} = "):
        staleness_aware.bound(**{**NUMBERS, name: value}, staleness=STALENESS, steps=np.full(T, 1e-3))
