"""Checks every theorem and lemma numerically against the implementation, on random instances that
satisfy its hypotheses, and shows the papers' misprints with counterexamples.

    python -m theory_checks --quick

With `--worst`, the rows of the theorems that bound what a method reaches also have the exact worst
case of the theorem's class of functions, without noise.

The exit status is 1 if a bound is violated, and 2 if the arguments are invalid or select no
statement.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.progress import track
from rich.table import Table
from rich.text import Text

from dsgd import records
from theory_checks.machinery import registry
from theory_checks.machinery.registry import StatementResult
from theory_checks.machinery.statement import STANDARD_ERRORS, Misprint, Outcome, Statement
from theory_checks.statements.misprints import MISPRINTS
from theory_checks.worst_cases.theorems import COMPARISONS, Comparison

QUICK = 10
TEXT = (
    "J. Liu and C. Zhang, Distributed Learning Systems with First-order Methods (2020), with its "
    "misprints corrected, and against the other papers that the rows name"
)
LOOKS: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "caption_justify": "left"}


@dataclass(frozen=True)
class Args:
    """Checks every theorem and lemma against the implementation, and shows misprints."""

    quick: bool = False
    """Run ten random trials per statement, with programs compiled without most optimizations."""
    trials: int = 200
    """Number of random trials per statement; a third of them start from the worst of the others."""
    seed: int = 0
    """Seed of the random instances."""
    only: str = ""
    """Check only statements whose name or reference contains this text."""
    worst: bool = False
    """Also compute exact worst cases, for statements that have one; needs the extra 'theory'."""
    json: Path | None = None
    """Also write all results to this file."""
    jobs: int | None = None
    """Number of processes; by default one per core, but only one if JAX uses a GPU or TPU."""
    progress: bool = True
    """Show a progress bar."""
    cache: str | None = None
    """Folder that caches compiled programs for later runs, or "off"; by default the environment
    variable DSGD_CACHE, or the user's cache folder.
    """


def main(
    args: Args,
    statements: Sequence[Statement] = registry.STATEMENTS,
    misprints: Sequence[Misprint] = MISPRINTS,
) -> int:
    """Prints both tables and returns the exit status."""
    chosen = [
        statement
        for statement in statements
        if args.only.lower() in f"{statement.name} {statement.reference}".lower()
    ]
    if not chosen:
        return usage_error(
            f"--only {args.only!r} matches no statement; expected a part of a statement's name or "
            f"reference; omit --only to check all {len(statements)}"
        )
    screen = Console(width=None if os.environ.get("COLUMNS") or Console().is_terminal else 80)
    trials = QUICK if args.quick else args.trials
    if trials < 1:
        return usage_error(f"--trials {trials}: need at least 1")
    if args.jobs is not None and args.jobs < 1:
        return usage_error(f"--jobs {args.jobs}: need at least 1")
    header = (
        f"dsgd {version('dsgd')}: the implementation in float64, checked against {TEXT}. "
        f"{trials} trials per statement, seed {args.seed}."
    )
    screen.print(header, highlight=False)
    findings = list(_findings(chosen, trials, args, custom=statements is not registry.STATEMENTS))
    exact = _worst_cases(chosen, args) if args.worst else {}
    compared = [] if args.only else [(misprint, *misprint.compare()) for misprint in misprints]
    screen.print(
        Group(tabulate(findings, exact), *([tabulate_misprints(compared)] if compared else []))
    )
    wrong = [_violation(finding) for finding in findings if not finding.holds]
    wrong += [
        f"FAILS: {misprint.reference}: the printed formula holds, or the corrected one fails"
        for misprint, *both in compared
        if not _is_confirmed(*both)
    ]
    wrong += [
        f"FAILS: {name}: the worst case {one.worst.value:.6g} exceeds {one.theorem:.6g}; {one.case}"
        for name, one in exact.items()
        if not one.holds
    ]
    for line in wrong:
        screen.print(Text(line, style="bold red"))
    screen.print(Text(closing(findings, compared), style="bold red" if wrong else "bold"))
    if args.json:
        records.write_json(
            records.user_path("--json", args.json), json_data(findings, compared, exact)
        )
    return 1 if wrong else 0


def _worst_cases(statements: Sequence[Statement], args: Args) -> dict[str, Comparison]:
    """Returns the exact worst cases of the statements that have one, by name."""
    names = [statement.name for statement in statements if statement.name in COMPARISONS]
    shown = track(
        names,
        "worst cases",
        console=Console(stderr=True),
        transient=True,
        disable=not args.progress,
    )
    return {name: COMPARISONS[name]() for name in shown}


def _findings(
    statements: Sequence[Statement], trials: int, args: Args, *, custom: bool
) -> Iterable[StatementResult]:
    """Yields the findings of the statements one by one. Custom statements, which other processes
    cannot look up by name, are checked in this process.
    """
    jobs = min(
        args.jobs or (os.cpu_count() or 1 if jax.default_backend() == "cpu" else 1), len(statements)
    )
    if custom or jobs == 1:
        found = (registry.check(statement, trials, args.seed) for statement in statements)
    else:
        found = registry.check_all(
            statements,
            trials,
            args.seed,
            processes=jobs,
            cached=args.cache,
            fast_compile=args.quick,
        )
    screen = Console(stderr=True)
    return track(
        found,
        "statements",
        len(statements),
        console=screen,
        transient=True,
        disable=not args.progress,
    )


def closing(
    findings: Sequence[StatementResult], compared: Sequence[tuple[Misprint, Outcome, Outcome]]
) -> str:
    """Returns the last line of the output, which summarizes all findings."""
    count = f"{sum(finding.instances for finding in findings):,} instances"
    failed = [finding for finding in findings if not finding.holds]
    confirmed = sum(_is_confirmed(*both) for _, *both in compared)
    misprints = f"; {confirmed} of {len(compared)} misprints confirmed" if compared else ""
    if failed:
        return f"FAILED: {len(failed)} of {len(findings)} statements, on {count}{misprints}."
    loose = sum(finding.loose for finding in findings)
    return f"{len(findings)} statements hold on {count}, {loose} of them loosely{misprints}."


def usage_error(line: str) -> int:
    """Prints an error in the command's arguments, and returns the exit status 2."""
    print(f"Error: {line}", file=sys.stderr)
    return 2


def _is_confirmed(printed: Outcome, corrected: Outcome) -> bool:
    """Whether the counterexample confirms the misprint: the printed formula fails and the corrected
    one holds.
    """
    return not printed.holds and corrected.holds


def _violation(finding: StatementResult) -> str:
    worst, which = finding.worst, finding.statement
    error = f" +- {worst.error:.2g}" if worst.error else ""
    sides = (
        "" if np.isnan(worst.bound) else f"{worst.measured:.6g}{error} against {worst.bound:.6g}: "
    )
    return (
        f"FAILS: {which.name} ({which.reference}), {len(finding.violations)} of "
        f"{finding.instances} instances; {sides}{worst.case}"
    )


def tabulate(
    findings: Sequence[StatementResult], exact: Mapping[str, Comparison] | None = None
) -> Table:
    """Returns a table with one row per statement. Below the name are the hypotheses, if the bound
    is loose the largest fraction of it that was reached, and the exact worst case if it is given.
    """
    caption = (
        "worst: largest ratio measured / bound over all instances (constructed, random,\n"
        "  found by hill climbing); 1 is tight. median: over the random instances.\n"
        f"+-: standard error, if there is sampling noise; {STANDARD_ERRORS:g} are allowed.\n"
        "=: an equation, and the difference of its sides (se: in standard errors)."
    )
    if exact:
        caption += (
            "\nexact: exact worst case / bound over all functions of the theorem's class,\n"
            "  without noise, for the numbers in the row."
        )
    table = Table(title="theorems and lemmas, checked against the code", caption=caption, **LOOKS)
    table.add_column("statement and its hypotheses", ratio=1)
    table.add_column("reference", max_width=15)
    for heading in ("worst", "median", "cases", *(["exact"] if exact else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for finding in findings:
        which = finding.statement
        name = Text(which.name) if finding.holds else Text(f"FAILS: {which.name}", style="bold red")
        loose = (
            [f"loose: at most {_format_ratio(finding.worst.ratio)} was reached"]
            if finding.loose
            else []
        )
        median = "" if finding.worst.equality else f"{finding.median:.3f}"
        one = (exact or {}).get(which.name)
        if one:
            loose.append(f"exact: {one.worst.value:.6g} of {one.theorem:.6g}; {one.case}")
        ratio = [f"{one.ratio:.4f}" if one else ""] if exact else []
        table.add_row(
            _cell(name, which.hypotheses, *loose),
            which.reference,
            worst(finding.worst),
            median,
            f"{finding.instances:,}",
            *ratio,
        )
    return table


def _format_ratio(ratio: float) -> str:
    """Formats a ratio below 1 with two decimals, or with one significant digit if it is below
    0.01.
    """
    return f"{ratio:.2f}" if ratio >= 0.01 else f"{ratio:.0e}"


def _cell(first: Text, *below: str) -> Group:
    """Returns a table cell with several lines, of which all but the first are indented."""
    return Group(first, *(Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in below))


def worst(outcome: Outcome) -> str:
    """Returns the table cell of the worst instance."""
    if not np.isfinite([outcome.measured, outcome.bound]).all():
        return "no number"
    if outcome.equality:
        return f"= {outcome.deviation:.1f} se" if outcome.error else f"= {outcome.deviation:.0e}"
    error = f" +-{outcome.error / outcome.bound:.3f}" if outcome.error and outcome.bound else ""
    return f"{outcome.ratio:.4f}{error}"


def tabulate_misprints(compared: Sequence[tuple[Misprint, Outcome, Outcome]]) -> Table:
    """Returns a table with one row per misprint: the printed formula, evaluated on an instance
    where it fails, next to the corrected one.
    """
    caption = (
        "left: left side (measured, exact or derived), to be compared with the right\n"
        "  sides, printed and corrected: it is at most as large (=: equal) if they hold."
    )
    table = Table(title="misprints, and instances where they fail", caption=caption, **LOOKS)
    table.add_column("reference: printed\n  -> corrected\n  instance", ratio=1)
    for heading in ("left", "printed", "corrected"):
        table.add_column(heading, justify="right", no_wrap=True)
    for misprint, printed, corrected in compared:
        what = _cell(
            Text(f"{misprint.reference}: {misprint.printed}"),
            f"-> {misprint.corrected}",
            misprint.example,
        )
        sign = "= " if printed.equality else ""
        left = (
            f"{printed.measured:.4g}"
            if printed.measured == corrected.measured
            else f"{printed.measured:.3g}, {corrected.measured:.3g}"
        )
        table.add_row(what, left, f"{sign}{printed.bound:.4g}", f"{sign}{corrected.bound:.4g}")
    return table


def json_data(
    findings: Sequence[StatementResult],
    compared: Sequence[tuple[Misprint, Outcome, Outcome]],
    exact: Mapping[str, Comparison],
) -> dict[str, Any]:
    """Returns all findings, misprints and worst cases as JSON-compatible data, for `--json`."""
    return {
        "statements": [
            {
                "name": finding.statement.name,
                "reference": finding.statement.reference,
                "hypotheses": finding.statement.hypotheses,
                "instances": finding.instances,
                "holds": finding.holds,
                "loose": finding.loose,
                "median_ratio": finding.median,
                "worst": _outcome(finding.worst),
                "worst_was": finding.how,
                "violations": [_outcome(outcome) for outcome in finding.violations],
                "worst_case": _worst_case(exact.get(finding.statement.name)),
            }
            for finding in findings
        ],
        "misprints": [
            {
                "reference": misprint.reference,
                "printed": misprint.printed,
                "corrected": misprint.corrected,
                "example": misprint.example,
                "confirmed": _is_confirmed(printed, corrected),
                "printed_outcome": _outcome(printed),
                "corrected_outcome": _outcome(corrected),
            }
            for misprint, printed, corrected in compared
        ],
    }


def _worst_case(one: Comparison | None) -> dict[str, Any] | None:
    return one and {
        "value": one.worst.value,
        "certified_bound": one.worst.bound,
        "exact": one.worst.exact,
        "solver_status": one.worst.status,
        "theorem": one.theorem,
        "ratio": one.ratio,
        "case": one.case,
        "holds": one.holds,
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    numbers = {
        name: float(getattr(outcome, name)) for name in ("measured", "bound", "error", "ratio")
    }
    return {
        **numbers,
        "case": outcome.case,
        "equality": outcome.equality,
        "holds": bool(outcome.holds),
    }


if __name__ == "__main__":
    given: Args = tyro.cli(Args, prog="python -m theory_checks")
    registry.prepare(given.cache, given.quick)
    sys.exit(main(given))
