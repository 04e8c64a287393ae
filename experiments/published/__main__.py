"""`python -m experiments.published`."""

from __future__ import annotations

from experiments import published
from experiments.shared import commands

if __name__ == "__main__":
    commands.launch(published.main, commands.parse(published.Args))
