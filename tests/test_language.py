"""The project's prose uses plain terms of the field, and no word of its former dialect."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [
    path
    for folder in (
        "dsgd",
        "algorithms",
        "topologies",
        "theory_checks",
        "experiments",
        "tests",
        ".ci",
    )
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != Path(__file__)
]
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted(
        path
        for path in (ROOT / "docs").rglob("*.md")
        # copies that a build made of notebooks may be old
        if not {"papers", "notebooks", "_build"} & {*path.relative_to(ROOT).parts}
    ),
]
# told: reports, records; held against: checked against; anew: again; beside: next to, compared with
DIALECT = re.compile(
    r"\b(told|whoever|anew|likewise|beside|everybody|hangs on|held (to|against)"
    r"|who (is|are|was|were) away|one's own|where there is (one|none))\b",
    re.IGNORECASE,
)


WORDS = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))


def prose(path: Path) -> str:
    """Returns the text of a page, or the comments and strings of a source file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(each.string for each in tokens if each.type in WORDS)


def test_prose_has_no_word_of_the_dialect():
    found = {
        str(path.relative_to(ROOT)): [match.group(0) for match in DIALECT.finditer(prose(path))]
        for path in (*SOURCES, *PAGES)
    }
    assert {path: words for path, words in found.items() if words} == {}
