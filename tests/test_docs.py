"""Code in the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/own_method.md",
        "docs/own_problem.md",
        "docs/compression.md",
        "docs/decentralized.md",
        "docs/clock.md",
        "docs/runs.md",
        "docs/theory.md",
    ],
)
def test_python_blocks_run(page, request):
    if page == "README.md":  # its runs are so long that haste costs more than it saves
        request.getfixturevalue("optimised")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": page})


def test_readme_has_the_commands_that_ci_runs():
    assert "pytest" in (ROOT / ".ci/run").read_text()
    assert ".venv/bin/pytest" in (ROOT / "README.md").read_text()


def test_the_own_problem_is_under_20_lines():
    block = re.search(r"def least_squares.*?(?=```)", (ROOT / "docs/own_problem.md").read_text(), re.DOTALL)
    assert block
    assert len(block.group().strip().splitlines()) < 20
