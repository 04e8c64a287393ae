"""Selection of the test cases that run without --long."""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import Any

import pytest


def smoke_cases(cases: Collection[str], kept: Set[str]) -> list[Any]:
    """Returns all cases for `parametrize`, of which those that are not kept run only with --long;
    raises a ValueError if a kept case does not exist.
    """
    if unknown := kept - set(cases):
        raise ValueError(f"smoke_cases: {sorted(unknown)} are no cases; need names of them")
    return [pytest.param(case, marks=() if case in kept else pytest.mark.long) for case in cases]
