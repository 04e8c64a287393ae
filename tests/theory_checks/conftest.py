"""All of it in float64, and compiled in haste."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def in_float64(in_haste) -> Iterator[None]:
    with jax.enable_x64(True):
        yield
