"""`python -m theory_checks`: its tables, its exit status, and that incorrect methods change it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from theory_checks.__main__ import Args, main
from theory_checks.machinery import registry
from theory_checks.machinery.statement import Misprint, Outcome, Statement
from theory_checks.statements.misprints import MISPRINTS


def test_prints_both_tables_and_succeeds(capsys, tmp_path):
    path = tmp_path / "all.json"
    chosen = [
        statement for statement in registry.STATEMENTS if statement.reference == "Lemma 5.2.3"
    ]
    assert main(Args(quick=True, json=path, progress=False), chosen) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "discounted sums" in shown
    assert all(misprint.reference.split(",")[0].split(" ")[0] in shown for misprint in MISPRINTS)
    found = json.loads(path.read_text())
    assert [row["name"] for row in found["statements"]] == ["discounted sums"]
    assert found["statements"][0]["holds"]
    assert found["statements"][0]["instances"] == 10
    assert found["statements"][0]["worst"]["ratio"] <= 1 + 1e-9
    assert len(found["misprints"]) == len(MISPRINTS)
    assert [row["reference"] for row in found["misprints"] if not row["confirmed"]] == []
    pages = "".join(
        (Path(__file__).parents[2] / f"docs/papers/{paper}.md").read_text()
        for paper in ("survey", "dropcompute")
    )
    assert [row["reference"] for row in found["misprints"] if table_row(row) not in pages] == []


def table_row(row):
    """Returns the row of a misprint on the page of its paper."""
    formulas = (
        f"`{row[name]}`".replace("|", "\\|") for name in ("printed", "corrected", "example")
    )
    left, printed, corrected = (
        row["printed_outcome"]["measured"],
        row["printed_outcome"]["bound"],
        row["corrected_outcome"]["bound"],
    )
    cells = (
        row["reference"].removeprefix("DropCompute, "),
        *formulas,
        *(f"{number:.3g}" for number in (left, printed, corrected)),
    )
    return f"| {' | '.join(cells)} |"


def test_only_the_chosen_statements_are_checked(capsys):
    assert main(Args(trials=3, only="lemma 5.2.3", progress=False)) == 0
    shown = capsys.readouterr().out
    assert "discounted sums" in shown
    assert "instances where they fail" not in shown
    assert "Theorem" not in shown.replace("theorems", "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(Args(only="nonesuch"), "nonesuch"), (Args(trials=0), "--trials 0: need at least 1")],
)
def test_invalid_arguments_are_refused(arguments, says, capsys):
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


@pytest.mark.long
def test_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "theory_checks", "--quick", "--only", "spectral gap"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "spectral gap of the ring" in done.stdout


def _inequality(measured: float, bound: float) -> Statement:
    return Statement(
        "a statement",
        "nowhere",
        "none",
        lambda draws: [Outcome(measured, bound, case="the only one")],
    )


def test_a_violated_bound_is_named_and_fails(capsys):
    assert main(Args(trials=1, progress=False), [_inequality(1.0, 2.0)], []) == 0
    assert main(Args(trials=2, progress=False), [_inequality(2.0, 1.0)], []) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"dsgd {version('dsgd')}")
    assert "loose: at most 0.50 was reached" in shown
    assert "FAILS: a statement (nowhere), 2 of 2 instances; 2 against 1: the only one" in shown
    assert shown.endswith("FAILED: 1 of 1 statements, on 2 instances.")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_results_that_are_not_finite_fail_and_are_null_in_json(value, capsys, tmp_path):
    path = tmp_path / "found.json"
    assert main(Args(trials=1, progress=False, json=path), [_inequality(value, 1.0)], []) == 1
    assert "no number" in capsys.readouterr().out
    (row,) = json.loads(
        path.read_text(), parse_constant=lambda text: pytest.fail(f"{text} is no JSON")
    )["statements"]
    assert row["worst"]["measured"] is None
    assert row["worst"]["bound"] == 1
    assert not row["holds"]


def test_a_check_that_raises_fails_and_the_others_are_run(capsys):
    def refuse(*draws):
        raise ValueError("rounds differ from one another")

    first, last = _inequality(1.0, 2.0), _inequality(1.0, 1.0)
    raising = [
        first._replace(trial=refuse),
        first._replace(extremes=[refuse]),
        first._replace(trial=lambda draws: []),
    ]
    for statement in raising:
        assert main(Args(trials=3, progress=False), [statement, last], []) == 1
        shown = " ".join(capsys.readouterr().out.split())
        assert "FAILS: a statement" in shown
        assert "FAILED: 1 of 2 statements" in shown
        assert ("raised ValueError: rounds differ" in shown) == (statement is not raising[2])


@pytest.mark.long
def test_checks_give_the_same_results_in_another_process():
    chosen = [
        statement
        for statement in registry.STATEMENTS
        if statement.reference in ("Lemma 5.2.3", "section 5.2.1")
    ][:2]
    found = list(registry.check_all(chosen, 3, 5, processes=1, cached="off", fast_compile=True))
    assert [finding.statement for finding in found] == chosen
    for finding, statement in zip(found, chosen, strict=True):
        alone = registry.check(statement, 3, 5)
        assert finding.instances == alone.instances
        assert finding.worst.measured == pytest.approx(alone.worst.measured, rel=1e-12)


def test_a_correct_formula_listed_as_a_misprint_fails(capsys):
    right = Misprint(
        "(0.0)", "1 <= 2", "1 <= 2", "numbers", lambda: (Outcome(1.0, 2.0), Outcome(1.0, 2.0))
    )
    assert main(Args(trials=1, progress=False), [_inequality(1.0, 2.0)], [right]) == 1
    assert "the printed formula holds" in " ".join(capsys.readouterr().out.split())


def test_instances_are_reproducible():
    first, second = (registry.check(_named("discounted sums"), 5, seed=3) for _ in range(2))
    assert first == second
    assert registry.check(_named("discounted sums"), 5, seed=4) != first


def _named(name: str) -> Statement:
    return next(statement for statement in registry.STATEMENTS if statement.name == name)


def test_worst_adds_exact_worst_cases(capsys, tmp_path):
    path = tmp_path / "worst.json"
    chosen = [statement for statement in registry.STATEMENTS if statement.name == "GD"]
    assert main(Args(trials=3, worst=True, json=path, progress=False), chosen, []) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "exact: 0.133333 of 0.133333" in shown
    worst = json.loads(path.read_text())["statements"][0]["worst_case"]
    assert worst["ratio"] == pytest.approx(1, rel=1e-6)
    assert worst["certified_bound"] == pytest.approx(2 / 15, rel=1e-5)
