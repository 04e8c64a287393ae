"""How many of the mistakes are planted."""

from __future__ import annotations

import pytest


@pytest.fixture
def stride(request, long) -> int:
    """Every sixth mistake of an area is planted with --long, each one with --exhaustive: they take
    half an hour.
    """
    return 1 if request.config.getoption("--exhaustive") else 6
