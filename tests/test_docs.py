"""Code in the documentation runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


FIRST = ("README.md",)
OTHERS = (
    "docs/index.md",
    "docs/how_to/which_method.md",
    "docs/how_to/sweep.md",
    "docs/how_to/figures.md",
    "docs/how_to/decentralized.md",
    "docs/how_to/own_method.md",
    "docs/how_to/own_method/check.md",
    "docs/how_to/own_method/local_steps.md",
    "docs/how_to/own_method/queries.md",
    "docs/how_to/own_method/compressed.md",
    "docs/how_to/own_method/participation.md",
    "docs/how_to/own_method/asynchronous.md",
    "docs/how_to/own_compressor.md",
    "docs/how_to/own_problem.md",
    "docs/how_to/own_problem/files.md",
    "docs/how_to/own_problem/unequal.md",
    "docs/how_to/own_problem/modules.md",
    "docs/how_to/own_problem/per_sample.md",
    "docs/how_to/own_problem/language_model.md",
    "docs/how_to/own_problem/hand_written.md",
    "docs/how_to/regularizers.md",
    "docs/how_to/train_over_slow_links.md",
    "docs/how_to/federated.md",
    "docs/how_to/compression.md",
    "docs/how_to/kimad.md",
    "docs/how_to/clusters.md",
    "docs/how_to/clusters/participation.md",
    "docs/how_to/clusters/asynchronous.md",
    "docs/how_to/clusters/overlap.md",
    "docs/how_to/calibrate.md",
    "docs/how_to/dropcompute.md",
    "docs/how_to/dropcompute/plan.md",
    "docs/how_to/dropcompute/processes.md",
    "docs/how_to/cannikin.md",
    "docs/how_to/runs.md",
    "docs/how_to/diverged.md",
    "docs/how_to/machines.md",
    "docs/how_to/ray.md",
    "docs/tutorial/notebooks.md",
    "docs/explanation/round.md",
    "docs/explanation/bits.md",
    "docs/explanation/clock.md",
    "docs/explanation/numerics.md",
    "docs/explanation/theory.md",
    "docs/explanation/worst_cases.md",
    "docs/papers/kimad.md",
    "docs/papers/dropcompute.md",
    "docs/papers/cannikin.md",
)
# Need optional packages; tests/integrations runs them.
ELSEWHERE = ("docs/how_to/own_problem/streaming.md", "docs/how_to/log.md")


@pytest.mark.parametrize(
    "page", [*FIRST, *(pytest.param(page, marks=pytest.mark.long) for page in OTHERS)]
)
def test_python_blocks_run(page, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages write files
    # their runs are so long that fast compilation costs more than it saves
    if page in ("README.md", "docs/how_to/sweep.md"):
        request.getfixturevalue("optimised")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": page})


PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (
        ROOT / "README.md",
        *(
            path
            for path in (ROOT / "docs").rglob("*.md")
            if not {"notebooks", "_build"} & {*path.relative_to(ROOT / "docs").parts[:-1]}
        ),
    )
]


CELLS = re.compile(r"```\{code-cell\}\n(?::[^\n]*\n+)*(.*?)```", re.DOTALL)
EXECUTED = [page for page in PAGES if "```{code-cell}" in (ROOT / page).read_text()]


def cells(page):
    """Returns the code of an executed page, without the lines that only IPython understands."""
    code = "\n".join(CELLS.findall((ROOT / page).read_text()))
    return re.sub(r"^%.*$", "", code, flags=re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize("page", sorted(EXECUTED))
def test_cells_run_and_print_the_numbers_that_the_text_quotes(page, capsys):
    exec(compile(cells(page), page, "exec"), {"__name__": page})
    printed = capsys.readouterr().out
    prose = re.sub(r"```.*?```|\$[^$]*\$|\]\(.*?\)", "", (ROOT / page).read_text(), flags=re.DOTALL)
    body = prose.partition("\n# ")[2].partition("\n")[2]
    quoted = re.findall(r"(?<![\w.])\d+\.\d+(?!\.?\w)", body)
    assert [number for number in quoted if number not in printed + cells(page)] == []


@pytest.mark.parametrize("page", sorted(EXECUTED))
def test_cells_are_formatted_and_fit_the_column(page):
    for cell in CELLS.findall((ROOT / page).read_text()):
        if not cell.startswith("%"):
            command = [
                sys.executable,
                "-m",
                "ruff",
                "format",
                "--line-length",
                "88",
                "--stdin-filename",
                "cell.py",
                "-",
            ]
            formatted = subprocess.run(
                command, input=cell, capture_output=True, text=True, check=True
            ).stdout
            assert cell == formatted
            assert max(map(len, cell.splitlines())) <= 88
    lines = [line for line in cells(page).splitlines() if line.strip()]
    assert not page.startswith("docs/cookbook/") or len(lines) < 30


def test_every_page_with_python_blocks_is_run():
    assert sorted([*FIRST, *OTHERS, *ELSEWHERE]) == sorted(
        page for page in PAGES if "```python\n" in (ROOT / page).read_text()
    )


@pytest.mark.parametrize("page", sorted(PAGES))
def test_files_that_pages_link_to_exist(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text())
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert not missing


def first_page(page: Path) -> str:
    """Returns the text of the page `x.md` to which a page in the folder `x/` belongs; the site's
    contents have the page if this text links to it.
    """
    first = ROOT / page.parent.with_suffix(".md")
    return first.read_text() if first.exists() else ""


def test_every_page_is_in_the_contents():
    contents = (ROOT / "docs/index.md").read_text().splitlines()
    missing = [
        page.relative_to("docs").as_posix()
        for page in map(Path, PAGES)
        if page.name != "README.md"
        and page.relative_to("docs").with_suffix("").as_posix() not in contents
        and f"({page.parent.name}/{page.name})" not in first_page(page)
    ]
    assert missing == ["index.md"]
    room = (ROOT / "docs/reference/api/index.rst").read_text().split()
    assert [
        path.stem for path in (ROOT / "docs/reference/api").glob("*.rst") if path.stem not in room
    ] == ["index"]


def test_every_figure_is_shown():
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    hidden = [
        path.name
        for path in (ROOT / "docs/figures").glob("*.png")
        if f"figures/{path.name})" not in pages
    ]
    assert hidden == []


def test_readme_has_the_commands_that_ci_runs():
    first, second = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "experiments.compare" in first
    assert ".venv/bin/pytest" in second
    assert re.findall(r"\.ci/readme (\d)", (ROOT / ".ci/run").read_text()) == ["1", "2"]


def test_the_own_problem_is_under_20_lines():
    block = re.search(
        r"def least_squares.*?(?=```)",
        (ROOT / "docs/how_to/own_problem/hand_written.md").read_text(),
        re.DOTALL,
    )
    assert block
    assert len(block.group().strip().splitlines()) < 20


@pytest.mark.parametrize(
    ("page", "method", "most"),
    [
        ("tutorial/own_method", "distributed_gradient_descent", 15),
        ("how_to/own_method", "with_any_optimizer", 15),
        ("how_to/own_method/local_steps", "scaffold", 25),
        ("how_to/own_method/queries", "svrg", 20),
        ("how_to/own_method/queries", "saga", 18),
        ("how_to/own_method/compressed", "choco_sgd", 25),
        ("how_to/own_method/asynchronous", "delay_compensated_sgd", 12),
        ("how_to/own_method/asynchronous", "asynchronous_sgd", 25),
    ],
)
def test_methods_on_the_pages_are_short(page, method, most):
    page = f"docs/{page}.md"
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    code = "\n".join([*blocks, cells(page)]).splitlines()
    (found,) = (
        node
        for node in ast.parse("\n".join(code)).body
        if isinstance(node, ast.FunctionDef) and node.name == method
    )
    lines = [line.strip() for line in code[found.lineno - 1 : found.end_lineno]]
    assert len([line for line in lines if line and not line.startswith("#")]) <= most
