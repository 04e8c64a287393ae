"""Each notebook is generated from its text, and names it; cells are run when the documentation is
built.
"""

from __future__ import annotations

import ast
import json
import re

import pytest

from experiments.shared import notebooks

TEXTS = sorted(notebooks.FOLDER.glob("*.md"))
NAMES = [path.stem for path in TEXTS]


def code(notebook) -> list[str]:
    """Cells of code, without the lines that are not Python."""
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [re.sub(r"^(\s*)%.*$", r"\1pass", cell, flags=re.MULTILINE) for cell in cells]


def test_there_are_seven_notebooks():
    assert [name[:2] for name in NAMES] == [f"{i:02}" for i in range(1, 8)]
    assert sorted(path.stem for path in notebooks.FOLDER.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("path", TEXTS, ids=NAMES)
def test_the_notebook_is_the_one_made_of_its_text(path):
    import nbformat  # takes a second, which each process of tests would wait before its first test

    text = path.read_text()
    assert notebooks.with_header(text, path.stem) == text
    assert notebooks.converted(text) == path.with_suffix(".ipynb").read_text(), (
        "python -m experiments.shared.notebooks"
    )
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(notebook)
    assert (notebook.metadata.kernelspec.name, notebook.metadata.language_info.name) == (
        "python3",
        "python",
    )
    assert len({cell["id"] for cell in notebook.cells}) == len(notebook.cells)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    cells = code(notebook)
    assert len(cells) <= 16  # including the one that installs
    for cell in cells:
        ast.parse(cell)
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (path.parent / link).exists(), link


def test_each_notebook_starts_with_a_badge_and_a_cell_that_installs_on_colab_only():
    for path in TEXTS:
        badge, install, title, *_ = json.loads(path.with_suffix(".ipynb").read_text())["cells"]
        address = notebooks.address(path.stem)
        assert f"({address})" in "".join(badge["source"])
        assert (
            f"blob/main/{path.relative_to(notebooks.FOLDER.parents[1]).with_suffix('.ipynb')}"
            in address
        )
        assert "".join(title["source"]).startswith("# ")
        assert f"git+https://github.com/{notebooks.REPOSITORY}" in "".join(install["source"])
        (body,) = (
            node
            for node in ast.parse(code({"cells": [install]})[0]).body
            if not isinstance(node, ast.Import)
        )
        assert isinstance(body, ast.If)
        assert ast.unparse(body.test) == "'google.colab' in sys.modules"


def test_the_page_of_notebooks_has_all_of_them_with_their_titles():
    page = (notebooks.FOLDER.parents[1] / "docs/tutorial/notebooks.md").read_text()
    for path in TEXTS:
        (title,) = re.findall(r"^# (.*)$", path.read_text(), re.MULTILINE)
        assert f"[{title}](../../experiments/notebooks/{path.name})" in page
        assert notebooks.address(path.stem) in page


def test_the_id_of_a_cell_changes_only_with_the_cell():
    cell = "```{code-cell} ipython3\nx = 1\n```\n"
    text = notebooks.with_header(f"\n# A title\n\n{cell}\nWords.\n\n{cell}", "one")
    other = text.replace("Words.", "Other words.")
    before, after = (json.loads(notebooks.converted(each))["cells"] for each in (text, other))
    assert [a["id"] == b["id"] for a, b in zip(before, after, strict=True)] == [
        True,
        True,
        True,
        True,
        False,
        True,
    ]
    assert len({cell["id"] for cell in before}) == 6
    with pytest.raises(ValueError, match=r"one\.md has no title"):
        notebooks.with_header("no title", "one")
