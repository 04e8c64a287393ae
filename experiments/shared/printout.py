"""What a script prints as HTML: rich's tables as tables, all else as text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from string import Template
from typing import NamedTuple

TABLE = Template("""\
$title
<div class="scroll"><table>
<thead><tr>$head</tr></thead>
$bodies
</table></div>
$caption""")
HEADING = Template("<h3>$text</h3>")
CAPTION = Template('<p class="cost">$text</p>')
TEXT = Template('<pre class="text">$text</pre>')
_TOP, _HEAD, _RULE, _ROW, _BOTTOM = "┏", "┃", "├", "│", "└"  # with which lines of a table begin


class Table(NamedTuple):
    """One of rich's tables, read from its lines.

    Args:
        title: above it, in lines.
        heading: of each column, in lines.
        sections: rows of cells between two rules.
        caption: below it, in lines.
    """

    title: list[str]
    heading: list[str]
    sections: list[list[list[str]]]
    caption: list[str]


def to_html(printed: str) -> str:
    """Tables and texts in their order; without what it says of files."""
    parts = parse([line for line in printed.splitlines() if not line.startswith("Written:")])
    return "\n".join(_table(part) if isinstance(part, Table) else TEXT.substitute(text=escape(part)) for part in parts)


def parse(lines: Sequence[str]) -> list[Table | str]:
    """The tables, and the texts between them."""
    parts: list[Table | str] = []
    at = 0
    for first, last in _places(lines):
        width = len(lines[first])
        above = first - _as_wide(lines[at:first][::-1], width)
        parts += _texts(lines[at:above])
        at = last + 1 + _as_wide(lines[last + 1 :], width)
        if lines[at : at + 1] and lines[at].startswith(_TOP):  # it is as wide as this one, and its title is one line
            at -= 1
        heading, sections = _cells(lines[first:last])
        parts.append(Table(_stripped(lines[above:first]), heading, sections, _stripped(lines[last + 1 : at])))
    return parts + _texts(lines[at:])


def _as_wide(lines: Sequence[str], width: int) -> int:
    """How many at the beginning are as wide as a table: its title, or its caption."""
    return len(list(itertools.takewhile(lambda line: len(line) == width and not line.startswith(_TOP), lines)))


def _places(lines: Sequence[str]) -> list[tuple[int, int]]:
    """First and last line of each table that is whole."""
    first = [i for i, line in enumerate(lines) if line.startswith(_TOP)]
    last = [i for i, line in enumerate(lines) if line.startswith(_BOTTOM)]
    return list(zip(first, last, strict=False))


def _stripped(lines: Sequence[str]) -> list[str]:
    return [line.strip() for line in lines]


def _texts(lines: Sequence[str]) -> list[Table | str]:
    joined = "\n".join(lines).strip("\n")
    return [joined] if joined.strip() else []


def _cells(lines: Sequence[str]) -> tuple[list[str], list[list[list[str]]]]:
    """Of a table's lines: the headings, and the rows of each section, whose padding is taken away."""
    heading: list[list[str]] = []
    sections: list[list[list[str]]] = [[]]
    for line in lines:
        if line.startswith(_HEAD):
            heading.append([cell.strip() for cell in line.strip(_HEAD).split(_HEAD)])
        elif line.startswith(_ROW):
            sections[-1].append([cell[1:-1] for cell in line.strip(_ROW).split(_ROW)])
        elif line.startswith(_RULE):
            sections.append([])
    return ["\n".join(filter(None, column)) for column in zip(*heading, strict=True)], [section for section in sections if section]


def _table(table: Table) -> str:
    columns = list(zip(*itertools.chain(*table.sections), strict=True))
    left = [at == 0 or _is_left(column) for at, column in enumerate(columns)]

    def row(cells: Sequence[str], tag: str) -> str:
        made = (
            f'<{tag} class="left">{escape(cell.rstrip())}</{tag}>' if aside else f"<{tag}>{escape(cell.strip())}</{tag}>"
            for cell, aside in zip(cells, left or [True] * len(cells), strict=True)
        )
        return "".join(made)

    bodies = ("<tbody>" + "\n".join(f"<tr>{row(cells, 'td')}</tr>" for cells in section) + "</tbody>" for section in table.sections)
    return TABLE.substitute(
        title=HEADING.substitute(text=escape(" ".join(table.title))) if table.title else "",
        head=row(table.heading, "th"),
        bodies="\n".join(bodies),
        caption=CAPTION.substitute(text=escape(" ".join(table.caption))) if table.caption else "",
    )


def _is_left(column: Sequence[str]) -> bool:
    """Whether its cells begin at its left edge, and not all end at its right one."""
    full = [cell for cell in column if cell.strip()]
    return bool(full) and not any(cell.startswith(" ") for cell in full) and any(cell.endswith(" ") for cell in full)
