"""Every statement, on hard instances and on random ones; and the ratio to its bound on the hard
ones, term by term.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from theory_checks import (
    asynchronous_sgd,
    compressed_sgd,
    dropcompute,
    dropcompute_convex,
    ef21,
    error_compensated_sgd,
    gradient_descent,
    minibatch_sgd,
    sgd,
)
from theory_checks.machinery import registry
from theory_checks.machinery.statement import Outcome, Statement

STATEMENTS = {statement.name: statement for statement in registry.STATEMENTS}
FAMILIES = {
    "GD": gradient_descent,
    "SGD": sgd,
    "mb-SGD": minibatch_sgd,
    "CSGD": compressed_sgd,
    "EC-SGD": error_compensated_sgd,
    "ASGD": asynchronous_sgd,
    "EF21": ef21,
    "Kimad": ef21,  # its bound is that of EF21
    "DropCompute": dropcompute,
    "DropCompute-convex": dropcompute_convex,
}
TERMS: dict[str, dict[str, float]] = {
    "GD": {"gap": 0.97},
    "SGD, quadratics, exact": {"gap": 0.97, "noise": 0.97},
    "SGD, non-convex": {"gap": 0.97, "noise": 0.97},
    "mb-SGD, quadratics, exact": {"gap": 0.97, "noise": 0.97},
    "mb-SGD, non-convex, batches": {"gap": 0.97, "noise": 0.97},
    "CSGD, server, absolute, exact": {"gap": 0.97, "noise": 0.97, "compression": 0.97},
    "CSGD, ring, absolute, exact": {"gap": 0.97, "noise": 0.97, "compression": 0.97},
    "CSGD, server, relative": {"gap": 0.97, "noise": 0.97, "heterogeneity": 0.97, "omega": 0.97},
    # sum_{j <= k} c_j is at most a quarter of the allowed value, if f' does not point in its
    # direction.
    "CSGD, ring, relative": {"gap": 0.97, "noise": 0.9, "heterogeneity": 0.2, "omega": 0.93},
    # |f'(virtual x)|^2 is omitted, which is as large as |f'(x)|^2 if errors are small. Independent
    # errors are (1 + 1/N) / 4 of the allowed value; aligned errors are in the next row.
    "EC-SGD, quadratics, exact": {"gap": 0.48, "noise": 0.45, "compression": 0.3},
    "EC-SGD, biased Q, non-convex": {"gap": 0.48, "compression": 0.97},
    "ASGD, quadratics, exact": {"gap": 0.97, "noise": 0.97},
    # At tau = 1, 0.7 and 0.6 are attained: the bound counts more gradients than arrive.
    "ASGD, tau >= 1, exact": {"gap": 0.65, "noise": 0.55},
    "ASGD, non-convex": {"gap": 0.97, "noise": 0.95},
    "EF21, layer by layer": {"gap": 0.97},
    "Kimad, varying compressors": {"gap": 0.97},
    "DropCompute, quadratics, exact": {"gap": 0.97, "noise": 0.97},
    "DropCompute, non-convex": {"gap": 0.97, "noise": 0.93},
    "DropCompute, stopping times, exact": {"gap": 0.97, "noise": 0.95},
    "DropCompute-convex, exact": {"distance": 0.97, "noise": 0.97},
    "DropCompute-convex, stopping times, exact": {"distance": 0.97, "noise": 0.45},
}
"""Factor by which each term of a bound may be smaller, so that the bound is found to be false.
Reasons for factors below 0.9 are given above.
"""

REACHED = {
    "delta of two_bit": 0.5,
    "delta of eden(2)": 0.6,
    "DIANA, largest step, exact": 0.45,
    "EF-BV, linear, exact": 0.7,
    "EF-BV, largest step, exact": 0.23,
    "EF21, largest step, exact": 0.46,
    "MARINA, largest step, exact": 0.39,
    "no bias with redrawn samples": 0.2,
    "CSGD, ring of four, relative": 0.7,
    "EC-SGD, quadratics, exact": 0.48,
    "ASGD, tau >= 1, exact": 0.69,
    "Birch SGD, exact": 0.66,  # the step size is half of the largest
    # the seconds of steps count two unused gradients of each worker
    "Rennala, seconds, exact": 0.57,
    "Malenia, seconds, exact": 0.65,
    "Fragile, seconds, exact": 0.72,
    "Amelie, seconds, exact": 0.65,
    # and its step size is that of delays that are rare
    "Ringmaster, seconds, exact": 0.18,
    "Asynchronous SGD, seconds, exact": 0.44,
    "Delay-adaptive SGD, seconds, exact": 0.21,  # half of the gradients may be late
    "Ringleader, seconds, exact": 0.22,
    "lower bound of seconds": 0.17,  # a fourth of the mean time of the fastest method
    "staleness of gradients": 0.49,
    "consensus, by gradients at the mean": 0.7,
}
"""Ratio to loose bounds on the hard instances; for all others it is 0.95."""
REACHED_BY_EACH = (
    "DSGD, ",
    "local SGD, consensus",
    "exact diffusion, linear",
    "D2, linear",
    "Scaffnew, linear",
)
"""Statements each of whose hard instances attains another term of the bound."""

VARIANTS = {"CSGD, ring of four, relative"}
"""Rows of methods that also have other rows; they run with --long."""

Numbers = dict[str, Any]


def check_extremes(
    statement: Statement, patch: pytest.MonkeyPatch
) -> tuple[list[list[Outcome]], list[Numbers]]:
    """Returns the outcomes of each hard instance, and the numbers of the family's bound."""
    family, asked = (
        FAMILIES.get(statement.name.partition(" ")[0].rstrip(","), gradient_descent),
        list[Numbers](),
    )
    true = family.bound

    def bound(**numbers):
        asked.append(numbers)
        return true(**numbers)

    with patch.context() as patched:
        patched.setattr(family, "bound", bound)
        return [extreme() for extreme in statement.extremes], asked


def smaller(numbers: Numbers, term: str, share: float) -> Numbers:
    """Returns the numbers with this share of the term: bounds are linear in D, and in squares of
    the others.
    """
    return {
        **numbers,
        term: numbers[term] * (share if term in ("gap", "omega") else math.sqrt(share)),
    }


@pytest.fixture
def trials(request) -> int:
    """A random instance, three with --long, ten with --exhaustive."""
    asked = request.config.getoption
    return 10 if asked("--exhaustive") else 3 if asked("--long") else 1


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name in VARIANTS)) for name in STATEMENTS],
)
def test_statement_holds(name, trials, monkeypatch):
    statement = STATEMENTS[name]
    each, asked = check_extremes(statement, monkeypatch)
    outcomes = [outcome for some in each for outcome in some]
    assert all(each), "an instance without an outcome"
    assert [outcome for outcome in outcomes if not outcome.holds] == []
    drawn = registry.check(statement._replace(extremes=()), trials)
    assert drawn.holds, drawn.violations
    if "exact" in name:
        assert drawn.worst.error == 0, "exact moments have no sampling noise"
    bounds = [[outcome.ratio for outcome in some if not outcome.equality] for some in each]
    reached = [max(ratios) for ratios in bounds if ratios]
    if reached:
        worst = min(reached) if name.startswith(REACHED_BY_EACH) else max(reached)
        assert worst > REACHED.get(name, 0.95), (
            "a bound that is never met has a constant that is too large"
        )
    if name in TERMS:
        pairs = list(
            zip((outcome for outcome in outcomes if not outcome.equality), asked, strict=True)
        )
        family = FAMILIES[name.partition(" ")[0].rstrip(",")]
        for term, share in TERMS[name].items():
            false = [
                outcome._replace(bound=family.bound(**smaller(numbers, term, share)))
                for outcome, numbers in pairs
                if term in numbers
            ]
            assert not all(outcome.holds for outcome in false), (
                f"a {term} that counts {share} as much goes unseen"
            )


def test_statements_have_unique_names_references_and_hypotheses():
    assert len(STATEMENTS) == len(registry.STATEMENTS)
    assert all(statement.reference and statement.hypotheses for statement in registry.STATEMENTS)
    assert set(TERMS) | set(REACHED) | VARIANTS <= set(STATEMENTS)
    assert {name.partition(",")[0] for name in STATEMENTS} >= {
        "GD",
        "SGD",
        "mb-SGD",
        "CSGD",
        "EC-SGD",
        "ASGD",
        "DSGD",
        "EF21",
    }
    references = " ".join(statement.reference for statement in registry.STATEMENTS)
    for lemma in ("1.2.2", "3.4.1", "4.2.1", "5.2.1", "5.2.3", "5.2.5", "5.2.7", "5.2.9"):
        assert f"Lemma {lemma}" in references
