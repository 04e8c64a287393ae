"""All that is held against the code, and what came of it."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, groupby
from multiprocessing import get_context
from typing import Any, NamedTuple

import jax
import numpy as np

from dsgd import cache
from theory_checks.machinery import search
from theory_checks.machinery.search import Tape
from theory_checks.machinery.statement import Outcome, Statement
from theory_checks.machinery.trajectories import OLDER_LOOPS
from theory_checks.statements import (
    asynchronous_sgd,
    compressed_gossip,
    compressed_sgd,
    consensus_lemmas,
    corrected_gossip,
    decentralized_sgd,
    dropcompute,
    dropcompute_convex,
    dropcompute_noise,
    dropcompute_stochastic,
    ef21,
    error_compensated_sgd,
    gradient_descent,
    gradient_tracking,
    kimad,
    lemmas,
    local_sgd,
    minibatch_sgd,
    mixing,
    push_sum,
    recursions,
    scaffold,
    sgd,
    staleness_aware,
)

_MODULES = (
    gradient_descent,
    sgd,
    minibatch_sgd,
    dropcompute,
    dropcompute_convex,
    dropcompute_stochastic,
    dropcompute_noise,
    compressed_sgd,
    error_compensated_sgd,
    ef21,
    kimad,
    asynchronous_sgd,
    staleness_aware,
    decentralized_sgd,
    local_sgd,
    gradient_tracking,
    corrected_gossip,
    compressed_gossip,
    push_sum,
    scaffold,
    lemmas,
    consensus_lemmas,
    mixing,
    recursions,
)
STATEMENTS: tuple[Statement, ...] = tuple(
    statement for module in _MODULES for statement in module.STATEMENTS
)
FAMILY = {statement.name: module.__name__ for module in _MODULES for statement in module.STATEMENTS}
"""The module of each statement, by name: those of one share programs."""

LOOSE = 0.95  # a bound of which less than this was reached is called loose
_CLIMBING = 3  # of so many trials one goes on from the worst that was drawn


class Finding(NamedTuple):
    """What came of all instances of one statement.

    Args:
        statement: which.
        instances: how many were tried.
        worst: of them, by ratio; of an equation, by deviation; one that does not hold before all
            others.
        how: where the worst one is from: "built", "drawn" or "climbed to".
        median: of the ratios of those drawn at random.
        violations: those that do not hold.
    """

    statement: Statement
    instances: int
    worst: Outcome
    how: str
    median: float
    violations: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """Whether all do."""
        return not self.violations

    @property
    def loose(self) -> bool:
        """Whether the statement is a bound that no instance came near to: its constants may be too
        large, and smaller ones go unseen.
        """
        return self.holds and not self.worst.equality and self.worst.ratio < LOOSE


def hold(statement: Statement, trials: int, seed: int = 0) -> Finding:
    """Tries one statement in float64: on the instances that are built to be hard, on random ones,
    and from the worst of these uphill.

    Only exact inequalities are climbed: of measurements with sampling noise the search would find
    the noise, of equations the rounding.

    Args:
        statement: of `STATEMENTS`, or one's own. What raises has failed; the others are tried all
            the same.
        trials: how many besides those that are built; some have several instances.
        seed: of them.

    Raises:
        ValueError: trials < 1.
    """
    if trials < 1:
        raise ValueError(f"trials = {trials}: need at least 1")
    rng, more = np.random.default_rng(seed), trials // _CLIMBING
    with jax.enable_x64(True):
        built = [outcome for extreme in statement.extremes for outcome in attempt(extreme)]
        tapes = [Tape(rng) for _ in range(trials - more)]
        tried = [(tape, attempt(statement.trial, tape)) for tape in tapes]
        drawn = [outcome for _, outcomes in tried for outcome in outcomes]
        if any(outcome.error or outcome.equality for outcome in drawn):
            drawn += [
                outcome for _ in range(more) for outcome in attempt(statement.trial, Tape(rng))
            ]
            climbed = []
        else:
            climbed = search.climb(lambda tape: attempt(statement.trial, tape), tried, more)
    return summarize(statement, drawn, built=built, climbed=climbed)


def attempt(trial: Callable[..., list[Outcome]], *arguments: Any) -> list[Outcome]:
    """Its outcomes; one that does not hold where it raises, or has none."""
    try:
        found = list(trial(*arguments))
    except Exception as error:
        # whatever a method under test does, the other statements are still to be tried
        return [Outcome(math.nan, math.nan, case=f"raised {type(error).__name__}: {error}")]
    return found or [Outcome(math.nan, math.nan, case="no instance came of the trial")]


def summarize(
    statement: Statement,
    drawn: Sequence[Outcome],
    *,
    built: Sequence[Outcome] = (),
    climbed: Sequence[Outcome] = (),
) -> Finding:
    """The finding of these outcomes."""
    found = [*((outcome, "drawn") for outcome in drawn), *((outcome, "built") for outcome in built)]
    found += [(outcome, "climbed to") for outcome in climbed]
    worst, how = max(found, key=lambda one: one[0].badness)
    median = float(np.median([outcome.ratio for outcome in drawn]))
    return Finding(
        statement,
        len(found),
        worst,
        how,
        median,
        tuple(outcome for outcome, _ in found if not outcome.holds),
    )


# --- Side by side, in several processes.


def prepare(cached: str | None, haste: bool) -> None:
    """This process for trying statements.

    Args:
        cached: as in `dsgd.cache.enable`.
        haste: compile without most optimisations, which pays where programs run for milliseconds.
    """
    gc.set_threshold(100_000, 20, 100)  # tracing makes many objects that live
    if haste and OLDER_LOOPS:
        # for the backend to come
        os.environ["XLA_FLAGS"] = (
            f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
        )
    cache.enable(cached)
    jax.config.update("jax_disable_most_optimizations", haste)


def hold_all(
    statements: Sequence[Statement],
    trials: int,
    seed: int,
    *,
    processes: int,
    cached: str | None,
    haste: bool,
) -> Iterator[Finding]:
    """The findings of `hold`, in order. Statements of one family, which share programs, are tried
    by one process.

    Args:
        statements: of `STATEMENTS`: another process knows them by name.
        trials, seed: of each.
        processes: how many.
        cached, haste: of `prepare`, for each process.
    """
    with ProcessPoolExecutor(processes, get_context("spawn"), prepare, (cached, haste)) as pool:
        names = [statement.name for statement in statements]
        families = [list(family) for _, family in groupby(names, FAMILY.get)]
        found = chain.from_iterable(pool.map(partial(_hold, trials=trials, seed=seed), families))
        yield from (
            Finding(statement, *rest) for statement, rest in zip(statements, found, strict=True)
        )


def _hold(names: Sequence[str], *, trials: int, seed: int) -> list[tuple[Any, ...]]:
    """What is found of the statements of these names, less the statements, which cannot be sent."""
    known = {statement.name: statement for statement in STATEMENTS}
    return [hold(known[name], trials, seed)[1:] for name in names]
