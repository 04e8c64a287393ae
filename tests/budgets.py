"""What runs without --long: of cases that are all of one kind, some."""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import Any

import pytest


def smoke_cases(cases: Collection[str], kept: Set[str]) -> list[Any]:
    """For `parametrize`: all cases, those that are not kept with --long only; a ValueError where
    what is to be kept is none of them.
    """
    if unknown := kept - set(cases):
        raise ValueError(f"smoke_cases: {sorted(unknown)} are no cases; need names of them")
    return [pytest.param(case, marks=() if case in kept else pytest.mark.long) for case in cases]
