"""All commands: the list, their flags and small budgets, the page of their results, and what docs/
shows of them.
"""

from __future__ import annotations

import base64
import importlib
import os
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import scripts
import tyro

from experiments.shared import catalogue, commands, tables

everything = importlib.import_module("experiments.all")
FOLDER = Path(everything.__file__).parent
DOCS = FOLDER.parent / "docs"
NAMES = {path.stem for path in FOLDER.glob("*.py")} | {
    path.parent.name for path in FOLDER.glob("*/__main__.py")
}
NAMES -= {"__main__", "all"}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)


def parse_arguments(name: str, flags: list[str]):
    """Returns the arguments of a command, which must be valid."""
    module = importlib.import_module(
        f"experiments.{name}.__main__" if name == "benchmark" else f"experiments.{name}"
    )
    for flag, other in getattr(module, "INSTEAD", {}).items():
        if flag in flags:  # has flags of its own
            module, flags = other, [each for each in flags if each != flag]
    args = tyro.cli(module.Choice if name == "benchmark" else module.Args, args=flags)
    commands.check_flags(args)
    getattr(module, "check", bool)(args)
    return args


def test_the_list_has_every_command_below_its_paper(capsys):
    runpy.run_module("experiments", run_name="__main__")
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(":")] == [
        f"{paper}:" for paper in catalogue.papers()
    ]
    rows = [line for line in lines if line.startswith("  ")]
    assert {line.split()[0] for line in rows} == set(catalogue.COMMANDS) == NAMES
    assert len({len(line) - len(line.split(maxsplit=1)[1]) for line in rows}) == 1, "aligned"
    assert all(line.endswith(".") and len(line) <= 80 for line in rows)


def test_the_readme_has_every_command_with_its_paper():
    text = catalogue.README.read_text(encoding="utf-8")
    assert text == catalogue.readme(), "python -m experiments.shared.catalogue"
    assert all(f"\n| `{name}` | " in text for name in NAMES)
    for link in re.findall(r"\]\((\S+)\)", text):
        assert (FOLDER / link).exists(), link


def test_help_of_each_reads_well_in_80_columns_and_names_every_flag(monkeypatch, capsys):
    """Except for the usage of a few, which tyro does not wrap. One command is run as a script."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["", "--help"])
    for name in NAMES - {"benchmark"}:
        module = importlib.import_module(f"experiments.{name}")
        with pytest.raises(SystemExit) as end:
            commands.parse(module.Args) if name != "compression" else runpy.run_path(
                module.__file__, run_name="__main__"
            )
        usage, *lines = capsys.readouterr().out.splitlines()
        assert end.value.code == 0
        assert (
            usage.startswith(f"usage: python -m experiments.{name} [-h]") or name == "compression"
        )
        assert max(map(len, lines)) <= 80, name
        assert all(
            re.search(f"--{field.replace('_', '-')}|{field.upper()}", "".join(lines))
            for field in module.Args.__dataclass_fields__
        )


def test_each_command_accepts_the_flags_of_its_small_budget():
    for name, command in catalogue.COMMANDS.items():
        assert parse_arguments(name, [*shlex.split(command.quick), "--out", "there"]).out == Path(
            "there"
        )


def test_docs_shows_the_files_written_by_its_runs():
    """Each figure and table belongs to one run; flags of runs are flags of their commands."""
    for run in catalogue.DOCUMENTED.values():
        name, *flags = shlex.split(run)
        parse_arguments(name, flags)
    figures, included = set(), []
    for path in (FOLDER.parent / "README.md", *DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        figures |= {Path(name).stem for name in re.findall(r"!\[[^\]]*\]\((\S+)\.png\)", text)}
        shown = [name for _, name, _ in tables.BLOCK.findall(text)]
        included += shown
        assert not (shown and scripts.TOPS & set(text)), f"{path}: a table that is pasted"
        assert text == tables.include(text, DOCS / "tables"), (
            f"{path}: python -m experiments.all --docs writes tables from docs/tables"
        )
    assert sorted(included) == sorted(path.stem for path in (DOCS / "tables").glob("*.csv"))
    assert figures == {path.stem for path in (DOCS / "figures").glob("*.png")}
    for name in (*figures, *included):
        assert name in catalogue.DOCUMENTED or name.startswith(
            tuple(f"{run}_" for run in catalogue.DOCUMENTED)
        ), name


def test_a_table_is_the_same_in_the_terminal_in_its_file_and_in_docs(tmp_path):
    made = tables.table(
        "f(|x|),\n2 workers", ("method", "step\nsize", ""), "*: at an edge.\n<: less."
    )
    for row in (("first",), ("  a", "*0.1", "[1, 2]"), ("b", "3|4", "")):
        made.add_row(*row)
    screen = tables.Console(width=80)
    with screen.capture() as captured:
        tables.show(screen, made, tmp_path / "one.csv")
    assert [row[0] for row in scripts.cells(captured.get().splitlines())] == ["first", "a", "b"]
    assert scripts.rows(tmp_path / "one.csv")[1:] == [
        {"method": "a", "step size": "*0.1", "": "[1, 2]"},
        {"method": "b", "step size": "3|4", "": ""},
    ]
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert tables.find_written(tmp_path) == [tmp_path / "one.csv"]
    text = tables.include("words\n<!-- table: one -->\nold\n<!-- end -->\nmore", tmp_path)
    assert text.splitlines() == [
        "words",
        "<!-- table: one -->",
        r"**f(\|x\|), 2 workers**",
        "",
        "| method | step size |  |",
        "| :-- | --: | --: |",
        "| **first** |  |  |",
        r"| a | \*0.1 | [1, 2] |",
        r"| b | 3\|4 |  |",
        "",
        r"\*: at an edge. \<: less.",
        "<!-- end -->",
        "more",
    ]


def headings(text: str) -> list[str]:
    """Returns the runs on a page, each with a heading that is linked in the list of contents."""
    found = re.findall(r'<h2 id="(\w+)">', text)
    assert re.findall(r'href="#(\w+)"', text) == found
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    """One run that succeeds, and one that fails, in separate processes."""
    out = tmp_path_factory.mktemp("all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSGD_CACHE", "off")
        patch.setitem(
            catalogue.COMMANDS,
            "topology",
            catalogue.COMMANDS["topology"]._replace(quick="--workers 0"),
        )
        with pytest.raises(SystemExit) as end:
            everything.main(
                everything.Args(quick=True, only=("topology", "switch_timelines"), out=out)
            )
    return out, end.value.code, (out / "index.html").read_text(encoding="utf-8")


def test_a_failure_is_reported_and_the_other_runs_are_on_the_page_with_every_figure_and_table(ran):
    out, status, text = ran
    assert status == 1
    assert headings(text) == ["topology", "switch_timelines"]
    said = "Error: --workers (0,): expected whole numbers, at least 1\nit ended with status 2\n"
    assert said in text
    (image,) = re.findall(r'src="data:image/png;base64,([^"]*)"', text)
    assert base64.b64decode(image) == (out / "quick/switch_timelines/figure.png").read_bytes()
    assert not re.search(r"<script|<link|<iframe|url\(", text), "it stands alone"
    python = f"python {sys.version.split()[0]}"
    for words in (
        ">ring all-reduce</td>",
        ">16.5</td>",
        "2 experiments in",
        "1 failed",
        python,
        "cpu",
    ):
        assert words in text


def test_figures_and_tables_of_a_run_go_to_docs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"--docs: .* has no docs/; run in the folder of the sources"
    ):
        everything.main(everything.Args(docs=True))
    for folder in ("tables", "figures"):
        (tmp_path / "docs" / folder).mkdir(parents=True)
    (tmp_path / "docs/page.md").write_text(
        "![](figures/dropcompute_text.png)\n<!-- table: dropcompute_text_costs -->\n<!-- end -->\n"
    )
    ran = []

    def call(command, environment, limit):
        ran.append(command[1:])
        folder = Path(command[-1])
        folder.mkdir(parents=True)
        for name in ("figure", "more"):
            (folder / f"{name}.png").write_bytes(PNG)
        for name in ("costs", "others"):
            (folder / f"{name}.csv").write_text("# title\na,b\n1,2\n")
        return everything.Ended("", 0, 2.5, 3e9)

    monkeypatch.setattr(everything, "call", call)
    everything.main(everything.Args(docs=True, only=("dropcompute_text",)))
    assert ran == [
        [
            "-m",
            "experiments.dropcompute_training",
            "--problem",
            "text",
            "--out",
            "results/docs/dropcompute_text",
        ]
    ]
    written = sorted(str(path) for path in Path("docs").rglob("*.*"))
    assert written == [
        "docs/figures/dropcompute_text.png",
        "docs/page.md",
        "docs/tables/dropcompute_text_costs.csv",
    ], "what pages show"
    assert "| 1 | 2 |" in Path("docs/page.md").read_text()
    text = Path("results/index.html").read_text(encoding="utf-8")
    assert headings(text) == ["dropcompute_text"]
    assert "Trains with DropCompute." in text


def test_an_experiment_over_its_time_limit_is_interrupted():
    code = "import time, sys; print('so far', file=sys.stderr, flush=True)\ntry: time.sleep(60)\n"
    code = (
        "import signal; signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        f"{code}except KeyboardInterrupt: sys.exit('last words')"
    )
    ended = everything.call([sys.executable, "-c", code], dict(os.environ), limit=2.0)
    assert ended.complaints.split("\n")[:2] == ["so far", "last words"]
    assert ended.status is None


# The memory of a new process counts from that of its parent, so that these run in a small one.
