r"""Every round of each method, compared with the recursion of its paper in
`theory_checks.recursions`, symbol by symbol.

The recursion receives the random choices of the method (which worker computes a gradient, which
workers average), and the noise of each gradient is determined by the round's key and the worker's
number. Both sides are then equal up to rounding: the models, the other variables that the paper
names (errors, estimates, trackers, push-sum weights, control variates), and the final model. The
compressors are deterministic: half of the elements, short mantissas, signs.
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
    differences,
    dropcompute,
    edges,
    federated,
    kimad,
    memories,
    one_bit,
    outer,
    proximal,
    sketches,
    slow_links,
    synchronous,
    variance_reduction,
)

CASES: dict[str, Case] = {
    case.name: case
    for family in (
        synchronous,
        outer,
        federated,
        slow_links,
        dropcompute,
        compressed,
        sketches,
        memories,
        differences,
        one_bit,
        kimad,
        decentralized,
        edges,
        proximal,
        variance_reduction,
        asynchronous,
    )
    for case in family.CASES
}
STATEMENTS = [
    Statement(
        f"{case.name}, every round", case.reference, case.hypotheses, partial(cases.trial, case)
    )
    for case in CASES.values()
]
