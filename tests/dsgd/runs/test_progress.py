"""The progress bar: where it appears, and how wide it is."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stderr
from typing import Any

import pytest
from rich.console import Console
from rich.file_proxy import FileProxy

from dsgd.runs import progress

NAME = "decentralized_sgd(ring(16))"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    """A terminal; by default bars appear after a twentieth of a second."""
    monkeypatch.setattr(progress, "_DELAY", 0.05)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    return Terminal()


def show(shown: bool | None, stderr: Any, seconds: float = 0.3) -> None:
    """A run of 200,000 rounds from round 50,000 on, of which two chunks are read."""
    with redirect_stderr(stderr), progress.Progress(NAME, 50_000, 200_000, shown) as bar:
        bar.update(57_400, 12345.678)
        time.sleep(seconds)
        bar.update(57_500, -0.00123456)


@pytest.mark.parametrize("columns", [60, 80])
def test_a_line_fits_narrow_terminals(terminal, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    show(None, terminal)
    *_, line, cleared = terminal.getvalue().rstrip("\r").split("\r")
    assert line.startswith("decentralized_sg…: 57500/200000 ")
    assert line.endswith(" left, loss -0.001235")
    assert len(line) <= columns
    assert not cleared.strip()


def test_it_appears_after_the_delay_also_while_the_first_chunk_takes_long(terminal):
    with redirect_stderr(terminal), progress.Progress(NAME, 0, 200_000, None) as bar:
        assert terminal.getvalue() == ""
        time.sleep(0.4)
        assert "0/200000" in terminal.getvalue()
        with bar.hidden():
            print("a line of the user", file=terminal)
    assert "\ra line of the user\n" in terminal.getvalue()


def test_short_runs_show_nothing_also_around_other_output(terminal, monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 5.0)
    with redirect_stderr(terminal), progress.Progress(NAME, 0, 100, None) as bar:
        bar.update(50, 0.5)
        with bar.hidden():
            pass
    show(False, terminal)
    assert terminal.getvalue() == ""


def test_it_is_not_in_files_or_below_other_displays_unless_asked_for(terminal):
    show(None, FileProxy(Console(file=terminal), terminal))
    file = io.StringIO()
    show(None, file)
    assert terminal.getvalue() == file.getvalue() == ""
    show(True, file, 0.0)
    assert "57500/200000" in file.getvalue()
