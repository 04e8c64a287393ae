"""Each notebook is made from its text, and can install the framework in Colab. Building the
documentation runs the cells.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest

from experiments.shared import notebooks

TEXTS = sorted(notebooks.FOLDER.glob("*.md"))
NAMES = [path.stem for path in TEXTS]


def code(notebook) -> list[str]:
    """Cells of code, without the lines that are not Python."""
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [re.sub(r"^(\s*)%.*$", r"\1pass", cell, flags=re.MULTILINE) for cell in cells]


def test_there_are_eight_notebooks():
    assert [name[:2] for name in NAMES] == [f"{i:02}" for i in range(1, 9)]
    assert sorted(path.stem for path in notebooks.FOLDER.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("path", TEXTS, ids=NAMES)
def test_the_notebook_is_the_one_made_of_its_text(path):
    import nbformat  # takes a second, which each process of tests would wait before its first test

    text = path.read_text()
    assert notebooks.with_header(text, path.stem) == text
    assert notebooks.convert(text) == path.with_suffix(".ipynb").read_text(), (
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


@pytest.mark.parametrize("repository", [None, "owner/name"])
def test_the_first_cell_installs_on_colab_only(repository, monkeypatch):
    from IPython.core.inputtransformer2 import TransformerManager

    text = notebooks.with_header("\n# A title\n", "one", repository)
    *badge, install, title = json.loads(notebooks.convert(text))["cells"]
    assert title["source"] == ["# A title"]
    link = "https://colab.research.google.com/github/owner/name/blob/main/experiments/notebooks/one"
    assert [f"({link}.ipynb)" in "".join(cell["source"]) for cell in badge] == (
        [] if repository is None else [True]
    )
    cell = TransformerManager().transform_cell("".join(install["source"]))
    commands = []
    shell = SimpleNamespace(run_line_magic=lambda *command: commands.append(command))
    variables = {"get_ipython": lambda: shell}
    exec(cell, variables)
    assert commands == []
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    exec(cell, variables)
    assert commands == [("pip", "install -q {SOURCE}")]
    assert variables["SOURCE"] == (
        "dsgd-*.whl" if repository is None else "git+https://github.com/owner/name"
    )


def test_the_page_of_notebooks_has_all_of_them_with_their_titles():
    page = (notebooks.FOLDER.parents[1] / "docs/tutorial/notebooks.md").read_text()
    for path in TEXTS:
        (title,) = re.findall(r"^# (.*)$", path.read_text(), re.MULTILINE)
        assert f"[{title}](../../experiments/notebooks/{path.name})" in page
