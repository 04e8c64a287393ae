"""`python -m experiments.published`: the list, verdicts from both sides, the page, and one run."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scripts

from experiments import published
from experiments.published.outcomes import Claim, Number, Outcome, Panel
from experiments.shared import catalogue, gallery, tables

NOT = "not reproduced: "
# together about 40 CPU seconds
QUICKEST = ("exponential-one-peer", "exponential-gap", "fed-nova", "base-graph", "decentlam")
KNOWN = gallery.reproductions()


def test_the_list_has_every_function_that_returns_an_outcome(capsys):
    published.main(published.Args())
    first, *lines = capsys.readouterr().out.splitlines()
    assert "python -m experiments.published" in first
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(KNOWN)
    assert max(map(len, lines)) <= 80
    assert KNOWN["relaysgd-8"][1:3] == ("relaysgd_8", "relaysgd")


def test_each_names_its_paper_and_what_it_reproduces_and_is_a_run_of_docs():
    for one in KNOWN.values():
        assert re.match(r"[\w\-+() ]+: .*(19|20)\d\d\.$", one.about[0]), one.module
        assert one.title.endswith("."), one.name
        assert one.load().__name__ == one.function
        assert catalogue.DOCUMENTED[one.run] == f"published {one.name}"
        lines = (gallery.FOLDER / f"{one.module}.py").read_text().splitlines()
        together = sum(each.module == one.module for each in KNOWN.values())
        assert len(lines) <= 130 * together, one.module


def test_private_functions_and_other_annotations_are_no_reproductions(tmp_path, monkeypatch):
    (tmp_path / "some.py").write_text(
        '"""Some: a paper, 2020.\n\nA set-up\nin two lines.\n"""\n'
        "def some_3(quick: bool) -> Outcome:\n"
        '    """Figure 3: a title\n    in two lines.\n\n    More.\n    """\n'
        "def _some_4(quick: bool) -> Outcome: ...\n"
        "def some_5(quick: bool) -> int: ...\n"
        "def compare(found: dict) -> Outcome: ...\n"
    )
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    (one,) = gallery.reproductions().values()
    assert one == (
        "some-3",
        "some_3",
        "some",
        "Figure 3: a title in two lines.",
        ("Some: a paper, 2020.", "A set-up in two lines."),
    )


@pytest.mark.parametrize(
    ("ours", "over", "tolerance", "holds"),
    [
        ([7.0, 9.0], None, 0.0, True),
        ([7.0, 7.9], None, 0.0, False),
        ([8.1, 9.0], None, 0.0, False),
        ([8.1, 9.0], (6.0, 8.2), 0.0, True),
        ([8.3, 9.0], (6.0, 8.2), 0.0, False),
        (8.3, None, 0.04, True),
        (8.3, None, 0.03, False),
        (7.7, None, 0.04, True),
        (7.7, None, 0.03, False),
        (np.inf, None, 0.5, False),
        (np.nan, None, 0.5, False),
    ],
)
def test_a_number_is_reproduced_if_the_ranges_overlap_up_to_the_tolerance(
    ours, over, tolerance, holds
):
    row = Number("steps", 8.0, ours, "paper's text", over, tolerance)
    assert (row.verdict == "reproduced") == holds == (not row.verdict.startswith(NOT))
    assert row.cells[-1] == row.verdict


@pytest.mark.parametrize(
    ("ours", "bounds", "verdict"),
    [
        ([3.0, 4.0], {"at_least": 3}, "reproduced"),
        ([2.9, 4.0], {"at_least": 3}, NOT + "2.9 is below 3"),
        ([3.0, 4.0], {"at_most": 4}, "reproduced"),
        ([3.0, 4.1], {"at_most": 4}, NOT + "4.1 is above 4"),
        ([3.0, 4.1], {"at_least": 2, "at_most": 4}, NOT + "4.1 is above 4"),
        (np.nan, {"at_least": 2}, NOT + "nan is below 2"),
    ],
)
def test_a_claim_holds_if_the_numbers_of_all_seeds_are_within_its_bounds(ours, bounds, verdict):
    assert Claim("slope", "slow", ours, "paper's text", **bounds).verdict == verdict


def test_cells_and_circles_of_an_outcome():
    rows = [
        Number("steps", 8.0, [6.0, 7.0, 9.0], "authors' outputs", over=(7.5, 8.5)),
        Claim("slope", "linear", 0.98, "paper's text", at_least=0.9, at_most=1.1),
    ]
    assert rows[0].cells[:5] == ("steps", "8 [7.5, 8.5]", "7 [6, 9]", "0.875", "authors' outputs")
    assert rows[1].cells[:4] == ("slope", "linear (≥ 0.9 and ≤ 1.1)", "0.98", "")
    lines = {"a": ([2, 3], [[5.0, 6.0], [7.0, 8.0]]), "b": ([2, 3], [[3.0, 4.0]])}
    made = Outcome(rows, [Panel("n", "steps", lines, {"b": ([2, 3], [3.5, 4.5])})], "None.")
    axes = made.figure("title").axes[0]
    a, b, circles = axes.get_lines()
    np.testing.assert_allclose(np.asarray(a.get_ydata()), [6, 7])
    assert circles.get_color() == b.get_color() != a.get_color()
    assert circles.get_linestyle() == "None"


def test_the_page_is_made_from_the_committed_tables():
    """Those of all reproductions that have one, with the counts of the verdicts."""
    text = (catalogue.DOCS / gallery.PAGE).read_text(encoding="utf-8")
    expected = tables.include(gallery.page(catalogue.DOCS), catalogue.DOCS / "tables")
    assert text == expected, "python -m experiments.shared.catalogue"


def test_a_run_goes_to_docs_with_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "DOCS", tmp_path / "docs")
    for name in ("tables", "figures", "papers"):
        (tmp_path / "docs" / name).mkdir(parents=True)
    (tmp_path / "docs" / gallery.PAGE).touch()
    (tmp_path / "table.csv").write_text(
        "# A title\nwhat,verdict\na,reproduced\nb,not reproduced: more\n# 2.5 CPU minutes.\n"
    )
    (tmp_path / "figure.png").write_bytes(b"picture")
    catalogue.place("published_relaysgd_8", tmp_path)
    text = (tmp_path / "docs" / gallery.PAGE).read_text()
    assert "| 1 of 2 | 2.5 |" in text
    assert "](../figures/published_relaysgd_8.png)" in text
    assert "| b | not reproduced: more |" in text
    assert (tmp_path / "docs/figures/published_relaysgd_8.png").read_bytes() == b"picture"


def test_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"name relaysgd-9: expected some of .*relaysgd-8"):
        published.main(published.Args("relaysgd-9", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:.*of the run's time is spent evaluating")
@pytest.mark.parametrize(
    "name", [QUICKEST[0], *(pytest.param(name, marks=pytest.mark.long) for name in QUICKEST[1:])]
)
def test_a_quick_run(name, tmp_path):
    scripts.ran(published.main, published.Args(name, quick=True, out=tmp_path))
    assert {"config.json", "figure.png", "table.csv"} <= {path.name for path in tmp_path.iterdir()}
    found = scripts.rows(tmp_path / "table.csv")
    assert {row["verdict"].partition(":")[0] for row in found} <= {"reproduced", "not reproduced"}
    title, *_ = (tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()
    assert title.endswith("with --quick")
