"""Holds every theorem and lemma against the code, on random instances within its hypotheses, and
shows where the papers misprint.

    python -m theory_checks --quick

Exit status 1 where a bound is violated, 2 where there is nothing to check.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
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
from theory_checks.machinery.registry import Finding
from theory_checks.machinery.statement import STANDARD_ERRORS, Misprint, Outcome, Statement
from theory_checks.statements.misprints import MISPRINTS

QUICK = 10
TEXT = (
    "J. Liu and C. Zhang, Distributed Learning Systems with First-order Methods (2020), its "
    "misprints corrected, and against the other"
    " papers that rows name"
)
LOOKS: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "caption_justify": "left"}


@dataclass(frozen=True)
class Args:
    """Holds every theorem and lemma against the code, and shows misprints."""

    quick: bool = False
    """Ten random trials of each statement, of programs that are compiled in haste."""
    trials: int = 200
    """Random trials of each statement, a third of which go on from the worst of the others."""
    seed: int = 0
    """Of the instances."""
    only: str = ""
    """Only statements whose name or reference has this in it."""
    json: Path | None = None
    """Write all results here, too."""
    jobs: int | None = None
    """Processes; by default one for each core, and only one where JAX has a GPU or TPU."""
    progress: bool = True
    """Show a progress bar."""
    cache: str | None = None
    """Folder of compiled programs, for the next run to find, or "off"; by default DSGD_CACHE in the
    environment, or the user's cache.
    """


def main(
    args: Args,
    statements: Sequence[Statement] = registry.STATEMENTS,
    misprints: Sequence[Misprint] = MISPRINTS,
) -> int:
    """Prints both tables; the exit status."""
    chosen = [
        statement
        for statement in statements
        if args.only.lower() in f"{statement.name} {statement.reference}".lower()
    ]
    if not chosen:
        return refused(
            f"no statement has {args.only!r} in its name or reference; without --only there are "
            f"{len(statements)}"
        )
    screen = Console(width=None if os.environ.get("COLUMNS") or Console().is_terminal else 80)
    trials = QUICK if args.quick else args.trials
    if trials < 1:
        return refused(f"--trials {trials}: need at least 1")
    if args.jobs is not None and args.jobs < 1:
        return refused(f"--jobs {args.jobs}: need at least 1")
    about = f"dsgd {version('dsgd')}, its own code in float64, held against {TEXT}. {trials} trials a statement, seed {args.seed}."
    screen.print(about, highlight=False)
    findings = list(_tried(chosen, trials, args, own=statements is not registry.STATEMENTS))
    compared = [] if args.only else [(misprint, *misprint.compare()) for misprint in misprints]
    screen.print(Group(tabulate(findings), *([tabulate_misprints(compared)] if compared else [])))
    wrong = [_violation(finding) for finding in findings if not finding.holds]
    wrong += [
        f"FAILS: {misprint.reference}: the printed formula holds, or the corrected one does not"
        for misprint, *both in compared
        if not _told(*both)
    ]
    for line in wrong:
        screen.print(Text(line, style="bold red"))
    screen.print(Text(closing(findings, compared), style="bold red" if wrong else "bold"))
    if args.json:
        records.write_json(records.expanded("--json", args.json), as_data(findings, compared))
    return 1 if wrong else 0


def _tried(
    statements: Sequence[Statement], trials: int, args: Args, *, own: bool
) -> Iterable[Finding]:
    """The findings one by one; of statements of one's `own`, which another process does not know,
    in this one.
    """
    jobs = min(
        args.jobs or (os.cpu_count() or 1 if jax.default_backend() == "cpu" else 1), len(statements)
    )
    if own or jobs == 1:
        found = (registry.hold(statement, trials, args.seed) for statement in statements)
    else:
        found = registry.hold_all(
            statements, trials, args.seed, processes=jobs, cached=args.cache, haste=args.quick
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
    findings: Sequence[Finding], compared: Sequence[tuple[Misprint, Outcome, Outcome]]
) -> str:
    """What came of all, in a sentence."""
    count = f"{sum(finding.instances for finding in findings):,} instances"
    failed = [finding for finding in findings if not finding.holds]
    misprints = (
        f"; {sum(_told(*both) for _, *both in compared)} of {len(compared)} misprints told apart"
        if compared
        else ""
    )
    if failed:
        return f"FAILED: {len(failed)} of {len(findings)} statements, on {count}{misprints}."
    loose = sum(finding.loose for finding in findings)
    return f"{len(findings)} statements hold on {count}, {loose} of them loosely{misprints}."


def refused(line: str) -> int:
    """Says what the user got wrong; the exit status."""
    print(f"Error: {line}", file=sys.stderr)
    return 2


def _told(printed: Outcome, corrected: Outcome) -> bool:
    """Whether a counterexample tells the two apart."""
    return not printed.holds and corrected.holds


def _violation(finding: Finding) -> str:
    worst, which = finding.worst, finding.statement
    error = f" +- {worst.error:.2g}" if worst.error else ""
    sides = (
        "" if np.isnan(worst.bound) else f"{worst.measured:.6g}{error} against {worst.bound:.6g}: "
    )
    return f"FAILS: {which.name} ({which.reference}), {len(finding.violations)} of {finding.instances} instances; {sides}{worst.case}"


def tabulate(findings: Sequence[Finding]) -> Table:
    """One row a statement: its hypotheses below its name, and how much of a bound was reached where
    that is little.
    """
    caption = (
        "worst: the largest measured / bound of all instances (built to be hard, drawn,\n"
        "  climbed to); 1 is tight. median: of those drawn.\n"
        f"+-: a standard error, where there is sampling noise; {STANDARD_ERRORS:g} are allowed.\n"
        "=: an equation, and how far its sides are apart (se: in standard errors)."
    )
    table = Table(
        title="theorems, lemmas and recursions, held against the code", caption=caption, **LOOKS
    )
    table.add_column("statement, and its hypotheses", ratio=1)
    table.add_column("reference", max_width=15)
    for heading in ("worst", "median", "cases"):
        table.add_column(heading, justify="right", no_wrap=True)
    for finding in findings:
        which = finding.statement
        name = Text(which.name) if finding.holds else Text(f"FAILS: {which.name}", style="bold red")
        loose = (
            [f"loose: at most {_down(finding.worst.ratio)} was reached"] if finding.loose else []
        )
        median = "" if finding.worst.equality else f"{finding.median:.3f}"
        table.add_row(
            _cell(name, which.hypotheses, *loose),
            which.reference,
            worst(finding.worst),
            median,
            f"{finding.instances:,}",
        )
    return table


def _down(ratio: float) -> str:
    """A ratio below 1 to two digits behind the point; a smaller one to one that counts."""
    return f"{ratio:.2f}" if ratio >= 0.01 else f"{ratio:.0e}"


def _cell(first: Text, *below: str) -> Group:
    """Lines of which all but the first are indented."""
    return Group(first, *(Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in below))


def worst(outcome: Outcome) -> str:
    """The cell of the worst instance."""
    if not np.isfinite([outcome.measured, outcome.bound]).all():
        return "no number"
    if outcome.equality:
        return f"= {outcome.deviation:.1f} se" if outcome.error else f"= {outcome.deviation:.0e}"
    error = f" +-{outcome.error / outcome.bound:.3f}" if outcome.error and outcome.bound else ""
    return f"{outcome.ratio:.4f}{error}"


def tabulate_misprints(compared: Sequence[tuple[Misprint, Outcome, Outcome]]) -> Table:
    """One row a misprint: the printed formula evaluated where it fails, beside the corrected
    one.
    """
    caption = "left: measured, exact or derived; at most what is right of it (=: equal to it)."
    table = Table(title="misprints, and where they fail", caption=caption, **LOOKS)
    table.add_column("reference: printed\n  -> corrected\n  on which instance", ratio=1)
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


def as_data(
    findings: Sequence[Finding], compared: Sequence[tuple[Misprint, Outcome, Outcome]]
) -> dict[str, Any]:
    """All of it for `json`."""
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
            }
            for finding in findings
        ],
        "misprints": [
            {
                "reference": misprint.reference,
                "printed": misprint.printed,
                "corrected": misprint.corrected,
                "example": misprint.example,
                "told_apart": _told(printed, corrected),
                "printed_outcome": _outcome(printed),
                "corrected_outcome": _outcome(corrected),
            }
            for misprint, printed, corrected in compared
        ],
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
