"""Statements tried side by side, each in one of several processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import jax

from dsgd import cache
from theory_checks.machinery import registry
from theory_checks.machinery.registry import Finding
from theory_checks.machinery.statement import Statement


def prepare(cached: str | None, haste: bool) -> None:
    """This process for trying statements.

    Args:
        cached: as in `dsgd.cache.enable`.
        haste: compile without most optimisations, which pays where programs run for milliseconds.
    """
    cache.enable(cached)
    jax.config.update("jax_disable_most_optimizations", haste)


def hold_all(
    statements: Sequence[Statement], trials: int, seed: int, *, processes: int, cached: str | None, haste: bool
) -> Iterator[Finding]:
    """The findings of `registry.hold`, in order.

    Args:
        statements: of `registry.STATEMENTS`: another process knows them by name.
        trials, seed: of each.
        processes: how many.
        cached, haste: of `prepare`, for each process.
    """
    with ProcessPoolExecutor(processes, get_context("spawn"), prepare, (cached, haste)) as pool:
        found = pool.map(partial(_hold, trials=trials, seed=seed), [statement.name for statement in statements])
        yield from (Finding(statement, *rest) for statement, rest in zip(statements, found, strict=True))


def _hold(name: str, *, trials: int, seed: int) -> tuple[Any, ...]:
    """What is found of the statement of this name, less the statement, which cannot be sent."""
    (statement,) = (statement for statement in registry.STATEMENTS if statement.name == name)
    return registry.hold(statement, trials, seed)[1:]
