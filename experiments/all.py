"""Every experiment, one after the other, each in a process of its own; all figures and tables on one page.

    python -m experiments.all --quick
    python -m experiments.all --docs

The page is written anew after each, so that an interruption, or an experiment that fails, costs nothing of the others. It stands alone as a
file: figures are inside it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from dsgd import records
from experiments.shared import catalogue, commands, common, documented, page

LIMITS = {True: 900.0, False: 6 * 3600.0}  # seconds that one experiment may take, quick or not
LAST_WORDS = 60.0  # seconds that one has to write what it has when it is to end


@dataclass(frozen=True)
class Args:
    """Runs all experiments, and puts their results on one page."""

    quick: bool = False
    """With small budgets: a quarter of an hour in all, on two cores, instead of hours."""
    docs: bool = False
    """The runs that docs/ shows, with their flags; their figures are put there. On a machine where nothing else runs, in its sources."""
    only: tuple[str, ...] = ()
    """Some of them, by name; if nothing is said, all."""
    out: Path = field(default=Path("results"))
    """Folder for index.html, and a folder for each experiment; those of quick ones are in its folder quick, of docs/ in docs."""


def main(args: Args) -> None:
    if args.quick and args.docs:
        raise ValueError("--quick and --docs: docs/ shows no sketches; need one of the two")
    if args.docs and not documented.DOCS.is_dir():
        raise ValueError(f"--docs: {Path.cwd()} has no docs/; need the sources' folder")
    known = list(documented.RUNS) if args.docs else [name for name in catalogue.names() if name != catalogue.ALL]
    if unknown := set(args.only) - set(known):
        raise ValueError(f"--only {' '.join(sorted(unknown))}: need some of {', '.join(known)}")
    outcomes: list[page.Outcome] = []
    screen = common.console()
    for name in args.only or known:
        outcomes.append(run(args, name))
        with records.replacing(args.out / "index.html") as temporary:
            temporary.write_text(page.render(outcomes, args.quick), encoding="utf-8")
        said = (
            f"{outcomes[-1].seconds:6.1f} s" if outcomes[-1].ended_well else f"failed: {'; '.join(outcomes[-1].failure.splitlines()[-2:])}"
        )
        if args.docs and outcomes[-1].ended_well:
            documented.place(name, outcomes[-1].folder)
        screen.print(f"{name:<24}{said}", soft_wrap=True, highlight=False)
    screen.print(f"Written: {args.out}/index.html", soft_wrap=True)
    if failed := [outcome.name for outcome in outcomes if not outcome.ended_well]:
        screen.print(f"Failed: {', '.join(failed)}.")
        sys.exit(1)


def flags_of(name: str, quick: bool) -> list[str]:
    """On its command line, but for where to."""
    return shlex.split(catalogue.QUICK[name]) if quick else []


def run(args: Args, name: str) -> page.Outcome:
    """One experiment, from its start to its end, which may be a bad one."""
    folder, limit = args.out / ("quick" if args.quick else "docs" if args.docs else "") / name, LIMITS[args.quick]
    experiment, *flags = shlex.split(documented.RUNS[name].command) if args.docs else (name, *flags_of(name, args.quick))
    command = [sys.executable, "-m", f"experiments.{experiment}", *flags, "--out", str(folder)]
    path = os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    began = time.perf_counter()
    printed, complaints, status = call(command, environment, limit)
    ended = {0: "", None: f"it took more than {limit:g} s"}.get(status, f"it ended with status {status}")
    failure = f"{complaints.strip()}\n{ended}".strip() if ended else ""
    return page.Outcome(name, experiment, shlex.join(["python", *command[1:]]), folder, time.perf_counter() - began, printed, failure)


def call(command: list[str], environment: dict[str, str], limit: float) -> tuple[str, str, int | None]:
    """What the process prints, also as errors, and its status, None where it took too long. It is interrupted when this one is."""
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace", env=environment) as process:
        try:
            printed, complaints = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return *_ended(process), None
        except BaseException:
            _ended(process)
            raise
    return printed, complaints, process.returncode


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """It is asked to end, as by Ctrl-C, and if it does not, ended."""
    process.terminate()
    try:
        return process.communicate(timeout=LAST_WORDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


if __name__ == "__main__":
    commands.launch(main, commands.parsed(Args))
