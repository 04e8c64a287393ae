"""All experiments: the list, their small budgets, and the page of their results."""

from __future__ import annotations

import base64
import importlib
import os
import runpy
import shlex
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tyro

from experiments.shared import catalogue, commands, documented, page, printout

everything = importlib.import_module("experiments.all")
FOLDER = Path(everything.__file__).parent
NAMES = {path.stem for path in FOLDER.glob("*.py")} | {path.parent.name for path in FOLDER.glob("*/__main__.py")}
NAMES -= {"__main__"}
RUN = ("switch_timelines", "benchmark")  # quick even among the quick
PNG = b"\x89PNG\r\n\x1a\n"


def test_the_list_has_every_experiment_on_a_line_of_its_own(capsys):
    runpy.run_module("experiments", run_name="__main__")
    heading, blank, *lines = capsys.readouterr().out.splitlines()
    assert "python -m experiments.<name>" in heading
    assert not blank
    assert [line.split()[0] for line in lines] == sorted(NAMES)
    assert all(len(line) <= 80 for line in lines)
    starts = {len(line) - len(line.split(maxsplit=1)[1]) for line in lines}
    assert len(starts) == 1, "aligned"
    assert all(line.endswith(".") for line in lines), "whole sentences"


def test_each_has_a_small_budget_that_its_flags_take():
    assert set(catalogue.QUICK) == NAMES - {"all"}
    for name in catalogue.QUICK:
        module = importlib.import_module(f"experiments.{name}.__main__" if (FOLDER / name).is_dir() else f"experiments.{name}")
        flags = [*everything.flags_of(name, quick=True), "--out", "there"]
        args = tyro.cli(module.Choice if name == "benchmark" else module.Args, args=flags)
        commands.check_flags(args)
        getattr(module, "check", bool)(args)
        assert args.out == Path("there")
        assert everything.flags_of(name, quick=False) == []


def test_help_reads_well_in_80_columns(monkeypatch, capsys):
    """But for the usage of a few, which tyro does not break."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["", "--help"])
    for name in NAMES - {"benchmark"}:
        with pytest.raises(SystemExit) as end:
            commands.parsed(importlib.import_module(f"experiments.{name}").Args)
        usage, *lines = capsys.readouterr().out.splitlines()
        assert end.value.code == 0
        assert usage.startswith(f"usage: python -m experiments.{name} [-h]")
        assert max(map(len, lines)) <= 80, name
        assert any("--out PATH" in line for line in lines)


def test_all_of_them_are_run_where_none_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(everything, "run", lambda args, name: page.Outcome(name, name, "", tmp_path, 0.0, "", ""))
    commands.launch(everything.main, tyro.cli(everything.Args, args=["--quick", "--out", str(tmp_path)]))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == sorted(NAMES - {"all"})


class Page(HTMLParser):
    """What is on a page: its elements with their attributes, the text of each, and what is not closed."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def values(self, tag: str, name: str) -> list[str]:
        return [attributes[name] for kind, attributes in self.found if kind == tag and name in attributes]


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    """Two that end well, and one that does not, in processes of their own."""
    out = tmp_path_factory.mktemp("all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSGD_CACHE", "off")
        patch.setitem(catalogue.QUICK, "benchmark", "rounds --methods mb-sgd --workers 2 --dimensions 3 --seconds 0.01 --repeats 1")
        patch.setitem(catalogue.QUICK, "topology", "--workers 0")
        with pytest.raises(SystemExit) as end:
            everything.main(everything.Args(quick=True, only=("topology", *RUN), out=out))
    return out, end.value.code, (out / "index.html").read_text(encoding="utf-8")


def test_one_that_fails_is_reported_and_the_others_go_on(ran):
    out, status, text = ran
    assert status == 1
    assert "Error: --workers (0,): need whole numbers, at least 1\nit ended with status 2" in Page(text).texts["pre"]
    assert (out / "quick/switch_timelines/figure.png").exists()
    assert (out / "quick/benchmark/rounds.csv").exists()


def test_the_page_stands_alone_with_every_figure_and_table(ran):
    out, _, text = ran
    found = Page(text)
    assert found.open == []
    assert found.values("section", "id") == ["topology", *RUN]
    assert found.values("a", "href") == [f"#{name}" for name in ("topology", *RUN)]
    images = found.values("img", "src")
    assert [base64.b64decode(image.removeprefix("data:image/png;base64,")) for image in images] == [
        path.read_bytes() for path in sorted((out / "quick").rglob("*.png"))
    ]
    assert images
    assert base64.b64decode(images[0].removeprefix("data:image/png;base64,")).startswith(PNG)
    assert not [tag for tag, attributes in found.found if tag in ("script", "link", "iframe") or "url(" in str(attributes)]
    assert "url(" not in text
    cells = found.texts["td"]
    assert {"ring all-reduce", "16.5", "mb-sgd"} <= set(cells)
    about = " ".join(found.texts["p"])
    assert "3 experiments in" in about
    assert "1 failed" in about
    assert f"python {sys.version.split()[0]}" in about
    assert "cpu" in about


def test_docs_shows_what_its_runs_draw():
    """Each figure is of one run; and flags of runs are flags of their experiments."""
    shown = [name for run in documented.RUNS.values() for name in run.figures.values()]
    assert sorted(shown) == sorted(path.stem for path in (FOLDER.parent / "docs").glob("*.png"))
    for run in documented.RUNS.values():
        name, *flags = shlex.split(run.command)
        module = importlib.import_module(f"experiments.{name}.__main__" if name == "benchmark" else f"experiments.{name}")
        commands.check_flags(tyro.cli(module.Choice if name == "benchmark" else module.Args, args=flags))


def test_figures_go_to_docs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"--docs: .* has no docs/; need the sources' folder"):
        everything.main(everything.Args(docs=True))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/dropcompute_text.png").write_bytes(b"old")
    ran = []

    def call(command, environment, limit):
        ran.append(command[1:])
        folder = Path(command[-1])
        folder.mkdir(parents=True)
        (folder / "training.png").write_bytes(PNG + bytes(16))
        return "", "", 0

    monkeypatch.setattr(everything, "call", call)
    everything.main(everything.Args(docs=True, only=("dropcompute_text",)))
    folder = "results/docs/dropcompute_text"
    assert ran == [["-m", "experiments.dropcompute_training", "--problem", "text", "--out", folder]]
    assert [(path.name, path.read_bytes()) for path in Path("docs").iterdir()] == [("dropcompute_text.png", PNG + bytes(16))]
    text = Path("results/index.html").read_text(encoding="utf-8")
    assert Page(text).values("section", "id") == ["dropcompute_text"]
    assert "Trains with DropCompute." in text


def test_sketches_are_not_for_docs(tmp_path):
    with pytest.raises(ValueError, match=r"--quick and --docs: .* need one of the two"):
        everything.main(everything.Args(quick=True, docs=True, out=tmp_path))


def test_other_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--only nothing: need some of asynchrony, "):
        everything.main(everything.Args(only=("nothing",), out=tmp_path))


def test_one_that_takes_too_long_keeps_what_it_printed():
    """It is asked to end, as by Ctrl-C."""
    code = "import time, sys; print('so far', flush=True)\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('last words', flush=True)"
    code = f"import signal; signal.signal(signal.SIGTERM, signal.default_int_handler)\n{code}"
    printed, _, status = everything.call([sys.executable, "-c", code], dict(os.environ), limit=2.0)
    assert printed.split("\n")[:2] == ["so far", "last words"]
    assert status is None


TWO_TABLES = """\
some words
   one   \n\
┏━━━┳━━━┓
┃ a ┃ b ┃
┡━━━╇━━━┩
│ x │ 1 │
├───┼───┤
│ y │ 2 │
└───┴───┘
 below 1 \n\
   two   \n\
┏━━━━━━━┓
┃ <c>   ┃
┡━━━━━━━┩
│ z & z │
└───────┘
more words
Written: there
"""


def test_tables_are_read_as_they_were_printed():
    words, one, two, more = printout.parse(TWO_TABLES.splitlines())
    assert words == "some words"
    assert one == printout.Table(["one"], ["a", "b"], [[["x", "1"]], [["y", "2"]]], ["below 1"])
    assert two == printout.Table(["two"], ["<c>"], [[["z & z"]]], [])
    assert more == "more words\nWritten: there"
    html = printout.to_html(TWO_TABLES)
    assert "<h3>two</h3>" in html
    assert "&lt;c&gt;" in html
    assert "z &amp; z" in html
    assert "Written" not in html


def test_what_was_done_is_on_the_page_before_all_is_done(tmp_path, monkeypatch):
    """The second is interrupted."""

    def run(args, name):
        if name == "compare":
            raise KeyboardInterrupt
        return page.Outcome(name, name, f"python -m experiments.{name}", tmp_path / name, 1.0, "said", "")

    monkeypatch.setattr(everything, "run", run)
    with pytest.raises(KeyboardInterrupt):
        everything.main(everything.Args(only=("topology", "compare"), out=tmp_path))
    assert Page((tmp_path / "index.html").read_text(encoding="utf-8")).values("section", "id") == ["topology"]
