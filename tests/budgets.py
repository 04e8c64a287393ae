"""Selection of the test cases that run without --long and --exhaustive."""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import Any

import pytest

EVERY = 6  # of the cases that --long adds, one in so many


def smoke_cases(cases: Collection[str], kept: Set[str], often: Set[str] = frozenset()) -> list[Any]:
    """Returns all cases for `parametrize`. Those that are kept always run; of the others, `often`
    and every sixth run with --long, and the rest with --exhaustive: they are of the same kinds.

    Raises:
        ValueError: if a kept case does not exist.
    """
    if unknown := kept - set(cases):
        raise ValueError(f"smoke_cases: {sorted(unknown)} are no cases; need names of them")
    others = [case for case in cases if case not in kept]
    often = {*others[::EVERY], *often}
    return [
        pytest.param(
            case,
            marks=()
            if case in kept
            else pytest.mark.long
            if case in often
            else pytest.mark.exhaustive,
        )
        for case in cases
    ]


def sampled(cases: Collection[str], *kept: str) -> list[Any]:
    """Returns all cases for `parametrize`, if the recursion of each method finds the same mistakes
    (`tests/methods`), except for those that are kept: every sixth always runs, as many others with
    --long, the rest with --exhaustive.
    """
    return smoke_cases(cases, {*list(cases)[::EVERY], *kept})
