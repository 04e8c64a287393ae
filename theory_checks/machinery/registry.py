"""All that is held against the code, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np

from theory_checks.machinery.statement import Outcome, Random, Statement
from theory_checks.statements import (
    asynchronous_sgd,
    compressed_sgd,
    compression,
    consensus_lemmas,
    decentralized_sgd,
    ef21,
    error_compensated_sgd,
    gradient_descent,
    lemmas,
    minibatch_sgd,
    mixing,
    sgd,
)

_MODULES = (
    gradient_descent,
    sgd,
    minibatch_sgd,
    compressed_sgd,
    error_compensated_sgd,
    asynchronous_sgd,
    decentralized_sgd,
    ef21,
    lemmas,
    consensus_lemmas,
    compression,
    mixing,
)
STATEMENTS: tuple[Statement, ...] = tuple(statement for module in _MODULES for statement in module.STATEMENTS)


class Finding(NamedTuple):
    """What came of all instances of one statement.

    Args:
        statement: which.
        instances: how many were tried.
        worst: of them, by ratio; of an equation, by deviation; one that does not hold before all others.
        median: of the ratios.
        violations: those that do not hold.
    """

    statement: Statement
    instances: int
    worst: Outcome
    median: float
    violations: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """Whether all do."""
        return not self.violations


def hold(statement: Statement, trials: int, seed: int = 0) -> Finding:
    """Tries one statement on random instances, in float64.

    Args:
        statement: of `STATEMENTS`, or one's own.
        trials: how many; some have several instances.
        seed: of them.

    Raises:
        ValueError: trials < 1.
    """
    if trials < 1:
        raise ValueError(f"trials = {trials}: need at least 1")
    draws = Random(np.random.default_rng(seed))
    with jax.enable_x64(True):
        outcomes = [outcome for _ in range(trials) for outcome in statement.trial(draws)]
    return summarize(statement, outcomes)


def summarize(statement: Statement, outcomes: Iterable[Outcome]) -> Finding:
    """The finding of these outcomes."""
    found = list(outcomes)
    worst = max(found, key=lambda outcome: outcome.badness)
    ratios = [outcome.ratio for outcome in found]
    return Finding(statement, len(found), worst, float(np.median(ratios)), tuple(outcome for outcome in found if not outcome.holds))
