"""Statements tried side by side, each in one of several processes."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, groupby
from multiprocessing import get_context
from typing import Any

import jax

from dsgd import cache
from theory_checks.machinery import registry
from theory_checks.machinery.registry import Finding
from theory_checks.machinery.statement import Statement
from theory_checks.machinery.trajectories import OLDER_LOOPS


def prepare(cached: str | None, haste: bool) -> None:
    """This process for trying statements.

    Args:
        cached: as in `dsgd.cache.enable`.
        haste: compile without most optimisations, which pays where programs run for milliseconds.
    """
    gc.set_threshold(100_000, 20, 100)  # tracing makes many objects that live
    if haste and OLDER_LOOPS:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"  # for the backend to come
    cache.enable(cached)
    jax.config.update("jax_disable_most_optimizations", haste)


def hold_all(
    statements: Sequence[Statement], trials: int, seed: int, *, processes: int, cached: str | None, haste: bool
) -> Iterator[Finding]:
    """The findings of `registry.hold`, in order. Statements of one family, which share programs, are tried by one process.

    Args:
        statements: of `registry.STATEMENTS`: another process knows them by name.
        trials, seed: of each.
        processes: how many.
        cached, haste: of `prepare`, for each process.
    """
    with ProcessPoolExecutor(processes, get_context("spawn"), prepare, (cached, haste)) as pool:
        names = [statement.name for statement in statements]
        families = [list(family) for _, family in groupby(names, registry.FAMILY.get)]
        found = chain.from_iterable(pool.map(partial(_hold, trials=trials, seed=seed), families))
        yield from (Finding(statement, *rest) for statement, rest in zip(statements, found, strict=True))


def _hold(names: Sequence[str], *, trials: int, seed: int) -> list[tuple[Any, ...]]:
    """What is found of the statements of these names, less the statements, which cannot be sent."""
    known = {statement.name: statement for statement in registry.STATEMENTS}
    return [registry.hold(known[name], trials, seed)[1:] for name in names]
