"""What runs without --long: of cases that are all of one kind, some."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def briefly(cases: Iterable[str], kept: Container[str]) -> list[Any]:
    """For `parametrize`: all cases, those that are not kept with --long only."""
    return [pytest.param(case, marks=() if case in kept else pytest.mark.long) for case in cases]
