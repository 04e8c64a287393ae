"""Runs every experiment, one after the other, each in its own process, and puts all figures and
tables on one page.

    python -m experiments.all --quick
    python -m experiments.all --docs

The page is rewritten after each experiment, so that an interruption or a failing experiment does
not affect the others. It is a self-contained file that includes the figures.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsgd import records
from experiments.shared import catalogue, commands, page, tables

LIMITS = {
    True: 900.0,
    False: 6 * 3600.0,
}  # time limit of an experiment with and without --quick, seconds
LAST_WORDS = 60.0  # seconds for an interrupted experiment to write its results


@dataclass(frozen=True)
class Args:
    """Runs all experiments, and puts their results on one page."""

    quick: bool = False
    """Run with small budgets: a quarter of an hour on two cores instead of hours."""
    docs: bool = False
    """Make the runs that docs/ shows, with their flags, and copy their figures and tables there.
    Use a machine on which nothing else runs.
    """
    only: tuple[str, ...] = ()
    """Names of the experiments to run; by default all."""
    out: Path = field(default=Path("results"))
    """Folder for index.html and one folder per experiment; with --quick in its folder quick, with
    --docs in docs.
    """


def main(args: Args) -> None:
    if args.quick and args.docs:
        raise ValueError("--quick and --docs: docs/ shows only full runs; pass one of the two")
    if args.docs and not catalogue.DOCS.is_dir():
        raise ValueError(f"--docs: {Path.cwd()} has no docs/; run in the folder of the sources")
    known = list(catalogue.DOCUMENTED if args.docs else catalogue.COMMANDS)
    commands.require_known("--only", args.only, known)
    outcomes: list[page.Outcome] = []
    screen = tables.console()
    for name in args.only or known:
        outcome = run(args, name)
        outcomes.append(outcome)
        with records.replacing(args.out / "index.html") as temporary:
            temporary.write_text(page.render(outcomes, args.quick), encoding="utf-8")
        if args.docs and not outcome.failure:
            catalogue.place(name, outcome.folder)
        ended = (
            f"failed: {'; '.join(outcome.failure.splitlines()[-2:])}"
            if outcome.failure
            else f"{outcome.seconds:6.1f} s"
        )
        screen.print(f"{name:<24}{ended}", soft_wrap=True, highlight=False)
    screen.print(f"Written: {args.out}/index.html", soft_wrap=True)
    if failed := [outcome.name for outcome in outcomes if outcome.failure]:
        screen.print(f"Failed: {', '.join(failed)}.")
        sys.exit(1)


def run(args: Args, name: str) -> page.Outcome:
    """Runs one experiment, and returns its outcome, which may be a failure."""
    kind = "quick" if args.quick else "docs" if args.docs else ""
    flags = catalogue.COMMANDS[name].quick if args.quick else ""
    experiment, *words = shlex.split(catalogue.DOCUMENTED[name] if args.docs else f"{name} {flags}")
    folder = args.out / kind / name
    command = ["-m", f"experiments.{experiment}", *words, "--out", str(folder)]
    path = os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    began = time.perf_counter()
    complaints, status = call([sys.executable, *command], environment, LIMITS[args.quick])
    ended = {0: "", None: f"it took more than {LIMITS[args.quick]:g} s"}.get(
        status, f"it ended with status {status}"
    )
    failure = f"{complaints.strip()}\n{ended}".strip() if ended else ""
    return page.Outcome(
        name,
        experiment,
        shlex.join(["python", *command]),
        folder,
        time.perf_counter() - began,
        failure,
    )


def call(command: list[str], environment: dict[str, str], limit: float) -> tuple[str, int | None]:
    """Returns the error output of the process and its status, None if it took too long. The process
    is interrupted when this one is.
    """
    quiet = subprocess.DEVNULL
    pipes: dict[str, Any] = {
        "stdin": quiet,
        "stdout": quiet,
        "stderr": subprocess.PIPE,
        "encoding": "utf-8",
        "errors": "replace",
    }
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            _, complaints = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return _ended(process), None
        except BaseException:
            _ended(process)
            raise
    return complaints, process.returncode


def _ended(process: subprocess.Popen[str]) -> str:
    """Returns what the process prints after it is asked to end, as by Ctrl-C; if it does not end,
    it is killed.
    """
    process.terminate()
    try:
        return process.communicate(timeout=LAST_WORDS)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[1]


if __name__ == "__main__":
    commands.launch(main, commands.parsed(Args))
