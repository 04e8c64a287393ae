r"""Every round is the paper's: each method beside the recursion of its paper in
`theory_checks.recursions`, symbol by symbol.

The recursion is given what the method draws (who is asked, with whom one averages), and what noise
each gradient has follows from the round's key and the worker's number: both sides are then equal up
to rounding, models as well as what else the paper names (errors, estimates, trackers, masses,
control variates), and the model to take home. Compressors draw nothing: half of the elements, short
mantissas, signs.
"""

from __future__ import annotations

from functools import partial

from theory_checks.machinery import cases
from theory_checks.machinery.cases import Case
from theory_checks.machinery.statement import Statement
from theory_checks.statements.recursions import (
    asynchronous,
    compressed,
    decentralized,
    dropcompute,
    kimad,
    synchronous,
)

CASES: dict[str, Case] = {
    case.name: case
    for family in (synchronous, dropcompute, compressed, kimad, decentralized, asynchronous)
    for case in family.CASES
}
STATEMENTS = [
    Statement(
        f"{case.name}, every round", case.reference, case.hypotheses, partial(cases.trial, case)
    )
    for case in CASES.values()
]
