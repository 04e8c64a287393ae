"""Runs all tests of this folder in float64."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def in_float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield
