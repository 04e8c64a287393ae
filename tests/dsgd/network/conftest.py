"""The event simulation as users call it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import dsgd.network.switch


@pytest.fixture(scope="session")
def simulate():
    """Returns `network.simulate` without the checks of annotations, which for many thousands of
    messages take ten times as long as the simulation.
    """
    spec = importlib.util.spec_from_file_location(
        "unchecked_switch", Path(dsgd.network.switch.__file__)
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["Message"] = dsgd.network.Message
    return module.simulate
