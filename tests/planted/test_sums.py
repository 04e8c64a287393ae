"""Mistakes in sums over workers."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

MISTAKES = [
    Mistake("dsgd/sums.py", "    m = -(-n // most)\n", "    m = n // most\n", "tests/dsgd/test_sums.py"),
    Mistake("dsgd/sums.py", "several[:, :1].astype(wide)", "0 * several[:, :1].astype(wide)", "tests/dsgd/test_sums.py"),
]


def test_mistakes_are_found(long):
    assert mistakes.survivors(MISTAKES) == []
