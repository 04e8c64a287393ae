"""Titles and files of figures; all else is in `dsgd.plots`."""

from __future__ import annotations

import textwrap
from pathlib import Path

from matplotlib.figure import Figure

from dsgd import records


def save_figure(sheet: Figure, path: Path) -> None:
    """As PNG, atomically."""
    with records.replacing(path) as temporary:
        sheet.savefig(temporary, dpi=150)


def title(sheet: Figure, text: str) -> None:
    """A title above all panels, each of its lines wrapped."""
    width = round(11 * sheet.get_figwidth())
    sheet.suptitle("\n".join(textwrap.fill(line, width) for line in text.splitlines()), fontsize=11)
