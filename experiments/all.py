"""Runs every experiment in its own process, and puts all figures and tables on one page.

    python -m experiments.all --quick
    python -m experiments.all --on slurm
    python -m experiments.all --docs

The page is rewritten after each experiment, so that an interruption or a failing experiment does
not affect the others. It is a self-contained file that includes the figures.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dsgd import records
from experiments.shared import catalogue, commands, page, tables

LIMITS = {
    True: 900.0,
    False: 6 * 3600.0,
}  # time limit of an experiment with and without --quick, seconds
LAST_WORDS = 60.0  # seconds for an interrupted experiment to write its results


@dataclass(frozen=True)
class Args(commands.Tasks):
    """Runs all experiments, and puts their results on one page."""

    quick: bool = False
    """Run with small budgets: about half an hour on two cores instead of hours. The costs of each
    are in costs.csv.
    """
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
    kind = "quick" if args.quick else "docs" if args.docs else ""
    folders = [args.out / kind / name for name in args.only or known]
    outcomes: list[page.Outcome] = []
    screen = tables.console()
    for _, outcome in commands.run_each(args, "experiments", partial(run, args), folders, screen):
        outcomes.append(outcome)
        outcomes.sort(key=lambda each: folders.index(each.folder))
        name = outcome.name
        with records.replacing(args.out / "index.html") as temporary:
            temporary.write_text(page.render(outcomes, args.quick), encoding="utf-8")
        if args.docs and not outcome.failure:
            catalogue.place(name, outcome.folder)
        ended = (
            f"failed: {'; '.join(outcome.failure.splitlines()[-2:])}"
            if outcome.failure
            else f"{outcome.seconds:6.1f} s  {outcome.memory / 1e9:5.2f} GB"
        )
        screen.print(f"{name:<24}{ended}", soft_wrap=True, highlight=False)
    show_costs(outcomes, args.out)
    screen.print(f"Written: {args.out}/index.html, costs.csv", soft_wrap=True)
    if failed := [outcome.name for outcome in outcomes if outcome.failure]:
        screen.print(f"Failed: {', '.join(failed)}.")
        sys.exit(1)


def show_costs(outcomes: list[page.Outcome], out: Path) -> None:
    """Writes the table of the experiments' seconds and memory, the largest first."""
    table = tables.table(
        "all experiments",
        ("experiment", "seconds", "CPU seconds", "peak memory, GB"),
        "CPU seconds include processes that the experiment starts; the memory is that of the "
        "largest process.",
    )
    for outcome in sorted(outcomes, key=lambda outcome: -outcome.seconds):
        numbers = outcome.seconds, outcome.cpu, outcome.memory / 1e9
        table.add_row(
            outcome.name, *(f"{x:.{d}f}" for x, d in zip(numbers, (0, 0, 2), strict=True))
        )
    total = sum(outcome.seconds for outcome in outcomes), sum(outcome.cpu for outcome in outcomes)
    table.add_row("all", *(f"{seconds:.0f}" for seconds in total), "")
    tables.show(tables.console(), table, out / "costs.csv")


def run(args: Args, folder: Path) -> page.Outcome:
    """Runs the experiment whose results are in a folder of its name, and returns its outcome, which
    may be a failure.
    """
    name = folder.name
    flags = catalogue.COMMANDS[name].quick if args.quick else ""
    experiment, *words = shlex.split(catalogue.DOCUMENTED[name] if args.docs else f"{name} {flags}")
    command = ["-m", f"experiments.{experiment}", *words, "--out", str(folder)]
    path = os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    began = time.perf_counter()
    ended = call([sys.executable, *command], environment, LIMITS[args.quick])
    reason = {0: "", None: f"it took more than {LIMITS[args.quick]:g} s"}.get(
        ended.status, f"it ended with status {ended.status}"
    )
    failure = f"{ended.complaints.strip()}\n{reason}".strip() if reason else ""
    return page.Outcome(
        name,
        experiment,
        shlex.join(["python", *command]),
        folder,
        time.perf_counter() - began,
        ended.cpu,
        ended.memory,
        failure,
    )


class Ended(NamedTuple):
    """A process that has ended.

    Args:
        complaints: its error output.
        status: its exit status; None if it took too long.
        cpu: CPU seconds, with the processes that it started.
        memory: peak memory of the largest of these processes, bytes.
    """

    complaints: str
    status: int | None
    cpu: float
    memory: float


def call(command: list[str], environment: dict[str, str], limit: float) -> Ended:
    """Runs a process. It is interrupted, as by Ctrl-C, after `limit` seconds, and when this process
    is; if it does not end then, it is killed.
    """
    quiet = subprocess.DEVNULL
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command, env=environment, stdin=quiet, stdout=quiet, stderr=errors
        )
        began = time.perf_counter()
        late = [
            threading.Timer(seconds, os.kill, (process.pid, number))
            for seconds, number in (
                (limit, signal.SIGTERM),
                (limit + LAST_WORDS, signal.SIGKILL),
            )
        ]
        for timer in late:
            timer.start()
        try:
            # unlike the methods of `process`, it returns the resources that this process used
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.terminate()
            try:
                process.wait(LAST_WORDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise
        finally:
            for timer in late:
                timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        in_time = time.perf_counter() - began < limit
        kilobyte = 1 if sys.platform == "darwin" else 1024  # the unit of `ru_maxrss`
        return Ended(
            errors.read(),
            process.returncode if in_time else None,
            used.ru_utime + used.ru_stime,
            used.ru_maxrss * kilobyte,
        )


if __name__ == "__main__":
    commands.launch(main, commands.parse(Args))
