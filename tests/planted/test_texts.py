"""All mistakes can be planted, though few of them are in each run of the tests."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path

import pytest
from planted.mistakes import ROOT

AREAS = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
AREAS.remove(Path(__file__).stem)


@pytest.mark.parametrize("area", AREAS)
def test_each_text_occurs_once_and_its_tests_exist(area):
    for mistake in importlib.import_module(f"planted.{area}").MISTAKES:
        assert (ROOT / mistake.file).read_text().count(mistake.right) == 1, mistake
        files = [word.partition("::")[0] for word in shlex.split(mistake.tests)]
        assert files[0].startswith("tests/"), mistake
        assert all((ROOT / file).exists() for file in files if file.startswith("tests/")), mistake
