"""What the tests of the loop run on."""

from __future__ import annotations

import pytest

import dsgd
from dsgd import problems


@pytest.fixture(scope="module")
def problem() -> dsgd.Problem:
    """Four workers, three dimensions, with noise."""
    return problems.random_quadratic(4, 3, noise=0.3, seed=0)
