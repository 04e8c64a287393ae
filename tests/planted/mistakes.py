"""A test of the tests: mistakes (`test_mistakes.py`) are planted in the source one at a time, and
each must be found by the tests that it names.

One process imports the libraries once and is forked for each mistake, before JAX starts its
threads. The forked process imports the project with one file's text changed and runs the tests;
nothing is written to disk.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
WRONG = {
    0: "the tests pass",
    2: "the tests cannot be imported",
    3: "pytest fails",
    4: "there is no such test",
    5: "no test is run",
}
SECONDS = 120  # time limit of a test; a slower test counts as failed
LIBRARIES = (
    "jax",
    "matplotlib.pyplot",
    "networkx",
    "numpy",
    "optax",
    "rich",
    "scipy.stats",
    "tyro",
)


class Mistake(NamedTuple):
    """One edit of the source.

    Args:
        file: relative to the repository's root.
        right: text that occurs in it exactly once.
        wrong: its replacement.
        tests: node ids for pytest, separated by spaces, those with spaces in quotes; the fewest and
            fastest that find the mistake.
    """

    file: str
    right: str
    wrong: str
    tests: str


def survivors(mistakes: Iterable[Mistake]) -> list[str]:
    """Returns the mistakes that no test finds, and those that can no longer be planted, each with
    the reason.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    words = json.dumps(list(mistakes))
    done = subprocess.run(
        [sys.executable, __file__],
        input=words,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def _reason(mistake: Mistake) -> str | None:
    """Returns why the mistake is a survivor; None if the tests find it."""
    text = (ROOT / mistake.file).read_text()
    if text.count(mistake.right) != 1:
        return f"the text occurs {text.count(mistake.right)} times"
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _run(mistake, text.replace(mistake.right, mistake.wrong))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return WRONG.get(status)


def _run(mistake: Mistake, text: str) -> None:
    """Ends this process with pytest's status; a signal ends it if the tests take too long."""
    signal.alarm(SECONDS)
    os.dup2(2, 1)
    changed = str(ROOT / mistake.file)
    read, stats = SourceFileLoader.get_data, SourceFileLoader.path_stats
    sys.dont_write_bytecode = True
    SourceFileLoader.get_data = lambda self, path: (
        text.encode() if path == changed else read(self, path)
    )
    SourceFileLoader.path_stats = lambda self, path: (
        {"mtime": 0, "size": 0} if path == changed else stats(self, path)
    )
    try:
        # Types of arguments are not checked, which would take longer than most of these tests.
        status = int(
            pytest.main(
                [
                    "-n0",
                    "-x",
                    "-q",
                    "--exhaustive",
                    "--jaxtyping-packages=none,typecheck.check",
                    *shlex.split(mistake.tests),
                ]
            )
        )
    except BaseException:
        traceback.print_exc()
        status = 3
    os._exit(status)


def main() -> None:
    """Reads mistakes from the input, and prints the survivors."""
    for name in LIBRARIES:
        importlib.import_module(name)
    warnings.filterwarnings("ignore", message=".*fork.*")
    mistakes = [Mistake(*fields) for fields in json.load(sys.stdin)]
    reasons = ((mistake, _reason(mistake)) for mistake in mistakes)
    found = [
        f"{mistake.file}: {mistake.right!r} -> {mistake.wrong!r}: {reason}"
        for mistake, reason in reasons
        if reason
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
