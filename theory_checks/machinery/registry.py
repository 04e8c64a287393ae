"""The registry of statements, and their checks against the code."""

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
from theory_checks.machinery.search import ReplayableDraws
from theory_checks.machinery.statement import Outcome, Statement
from theory_checks.machinery.trajectories import OLDER_LOOPS
from theory_checks.statements import (
    asynchronous_sgd,
    birch_sgd,
    compressed_gossip,
    compressed_linear,
    compressed_sgd,
    compressor_constants,
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
    lower_bound,
    methods_on_the_clock,
    minibatch_sgd,
    mixing,
    push_sum,
    scaffnew,
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
    compressed_linear,
    asynchronous_sgd,
    staleness_aware,
    birch_sgd,
    methods_on_the_clock,
    lower_bound,
    decentralized_sgd,
    local_sgd,
    gradient_tracking,
    corrected_gossip,
    compressed_gossip,
    push_sum,
    scaffold,
    scaffnew,
    compressor_constants,
    lemmas,
    consensus_lemmas,
    mixing,
)
STATEMENTS: tuple[Statement, ...] = tuple(
    statement for module in _MODULES for statement in module.STATEMENTS
)
FAMILY = {statement.name: module.__name__ for module in _MODULES for statement in module.STATEMENTS}
"""The module of each statement, by name. Statements of the same module share programs."""

LOOSE = 0.95  # a bound is called loose if its largest ratio is below this
_CLIMBING = 3  # one in this many trials climbs from the worst random instance


class StatementResult(NamedTuple):
    """The result of checking a statement on all instances.

    Args:
        statement: the statement.
        instances: number of instances.
        worst: the worst outcome: by ratio, or by deviation for an equation; outcomes that do not
            hold rank first.
        how: origin of the worst outcome: "built", "drawn" or "climbed to".
        median: median of the ratios of random instances.
        violations: outcomes that do not hold.
    """

    statement: Statement
    instances: int
    worst: Outcome
    how: str
    median: float
    violations: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """Whether the statement holds on all instances."""
        return not self.violations

    @property
    def loose(self) -> bool:
        """Whether the statement is a bound that no instance comes near. Its constants may be larger
        than necessary, and a mistake that makes them smaller would not be found.
        """
        return self.holds and not self.worst.equality and self.worst.ratio < LOOSE


def check(statement: Statement, trials: int, seed: int = 0) -> StatementResult:
    """Checks a statement in float64: on the instances that are built to be hard, on random ones,
    and by climbing from the worst random one.

    Only exact inequalities are climbed. For measurements with sampling noise, the search would
    maximise the noise; for equations, the rounding error.

    Args:
        statement: one of `STATEMENTS`, or a custom one. If an instance raises, the statement fails.
        trials: number of trials in addition to the built instances; a trial may have several
            instances.
        seed: seed of the trials.

    Raises:
        ValueError: if trials < 1.
    """
    if trials < 1:
        raise ValueError(f"hold: trials = {trials}; expected at least 1")
    rng, steps = np.random.default_rng(seed), trials // _CLIMBING
    with jax.enable_x64(True):
        built = [outcome for extreme in statement.extremes for outcome in attempt(extreme)]
        tapes = [ReplayableDraws(rng) for _ in range(trials - steps)]
        tried = [(tape, attempt(statement.trial, tape)) for tape in tapes]
        drawn = [outcome for _, outcomes in tried for outcome in outcomes]
        if any(outcome.error or outcome.equality for outcome in drawn):
            drawn += [
                outcome
                for _ in range(steps)
                for outcome in attempt(statement.trial, ReplayableDraws(rng))
            ]
            climbed = []
        else:
            climbed = search.hill_climb(lambda tape: attempt(statement.trial, tape), tried, steps)
    return summarize(statement, drawn, built=built, climbed=climbed)


def attempt(trial: Callable[..., list[Outcome]], *arguments: Any) -> list[Outcome]:
    """Returns the outcomes of a trial; an outcome that does not hold if the trial raises or returns
    none.
    """
    try:
        found = list(trial(*arguments))
    except Exception as error:
        # A method under test may raise any exception; the other statements must still be checked.
        return [Outcome(math.nan, math.nan, case=f"raised {type(error).__name__}: {error}")]
    return found or [Outcome(math.nan, math.nan, case="the trial returned no instance")]


def summarize(
    statement: Statement,
    drawn: Sequence[Outcome],
    *,
    built: Sequence[Outcome] = (),
    climbed: Sequence[Outcome] = (),
) -> StatementResult:
    """Returns the finding for these outcomes."""
    found = [*((outcome, "drawn") for outcome in drawn), *((outcome, "built") for outcome in built)]
    found += [(outcome, "climbed to") for outcome in climbed]
    worst, how = max(found, key=lambda one: one[0].badness)
    median = float(np.median([outcome.ratio for outcome in drawn]))
    return StatementResult(
        statement,
        len(found),
        worst,
        how,
        median,
        tuple(outcome for outcome, _ in found if not outcome.holds),
    )


# --- Checks in several processes.


def prepare(cached: str | None, fast_compile: bool) -> None:
    """Configures this process for checking statements.

    Args:
        cached: as in `dsgd.cache.enable`.
        fast_compile: whether to compile without most optimisations, which is faster for programs
            that run for milliseconds.
    """
    gc.set_threshold(100_000, 20, 100)  # tracing creates many long-lived objects
    if fast_compile and OLDER_LOOPS:
        # read when the backend is initialised
        os.environ["XLA_FLAGS"] = (
            f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
        )
    cache.enable(cached)
    jax.config.update("jax_disable_most_optimizations", fast_compile)


def check_all(
    statements: Sequence[Statement],
    trials: int,
    seed: int,
    *,
    processes: int,
    cached: str | None,
    fast_compile: bool,
) -> Iterator[StatementResult]:
    """Yields the results of `check`, in order. Statements of the same module, which share
    programs, are checked by the same process.

    Args:
        statements: from `STATEMENTS`, since processes look them up by name.
        trials, seed: as in `check`.
        processes: number of processes.
        cached, fast_compile: as in `prepare`.
    """
    with ProcessPoolExecutor(
        processes, get_context("spawn"), prepare, (cached, fast_compile)
    ) as pool:
        names = [statement.name for statement in statements]
        families = [list(family) for _, family in groupby(names, FAMILY.get)]
        found = chain.from_iterable(pool.map(partial(_check, trials=trials, seed=seed), families))
        yield from (
            StatementResult(statement, *rest)
            for statement, rest in zip(statements, found, strict=True)
        )


def _check(names: Sequence[str], *, trials: int, seed: int) -> list[tuple[Any, ...]]:
    """Returns the findings of the statements with these names, without the statements, which cannot
    be pickled.
    """
    by_name = {statement.name: statement for statement in STATEMENTS}
    return [check(by_name[name], trials, seed)[1:] for name in names]
