r"""Converts docstrings to reStructuredText: Markdown's `$...$`, `$$...$$`, backticks and indented
code.
"""

from __future__ import annotations

import re

TOKENS = re.compile(
    r"\$\$(?P<display>.+?)\$\$|`(?P<code>[^`]+)`|\$(?P<inline>[^$]+?)\$|(?P<special>[|*]|(?<=\w)_(?!\w))",
    re.DOTALL,
)
PARAMETER = re.compile(r"\s+\*{0,2}\w+(?:, \*{0,2}\w+)*: ")
LETTER = re.compile(r"(\w)\.(?=\s|$)")  # a description "N." would start a numbered list
RETURNS = re.compile(r"^Returns:\n((?:    .*\n?|\n(?=    ))+)", re.MULTILINE)


def from_markdown(text: str) -> str:
    """Returns the docstring in reStructuredText; napoleon then formats its sections."""
    lines = _mark_code(RETURNS.sub(_return_field, text).split("\n"))
    return "\n".join(block if code else _prose(block) for block, code in _blocks(lines))


def _return_field(section: re.Match[str]) -> str:
    """Returns `Returns:` as a field, since napoleon would read words before a colon as a type."""
    first, _, rest = section[1].strip().partition("\n")
    return f":returns: {first}\n{rest}\n\n"


def _mark_code(lines: list[str]) -> list[tuple[str, bool]]:
    """Returns each line, and whether it is code: indented by four, after an empty line, below text
    that is not a section title.
    """
    out: list[tuple[str, bool]] = []
    code, margin = False, ""
    for line in lines:
        indented = line.startswith("    ")
        if code and line.strip() and not indented:
            code = False
        if (
            not code
            and indented
            and out
            and not out[-1][0].strip()
            and not re.fullmatch(r"\w+:", margin)
        ):
            code = True
            out += [("::", True), ("", True)]
        if line.strip() and not indented:
            margin = line.strip()
        out.append((line, code))
    return out


def _blocks(lines: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Joins consecutive lines of prose, so that a formula may span several lines."""
    out: list[tuple[str, bool]] = []
    for line, code in lines:
        if out and not code and not out[-1][1] and line.strip() and out[-1][0].strip():
            out[-1] = (f"{out[-1][0]}\n{line}", False)
        else:
            out.append((line, code))
    return out


def _prose(block: str) -> str:
    joined = TOKENS.sub(lambda token: token[0].replace("\n", " "), block)
    return "\n".join(_line(line) for line in joined.split("\n"))


def _line(line: str) -> str:
    name = PARAMETER.match(line)
    start = name.end() if name else 0
    text = TOKENS.sub(_markup, line[start:])
    return line[:start] + (
        LETTER.sub(r"\1\\.", text, count=1) if name and LETTER.match(text) else text
    )


def _markup(token: re.Match[str]) -> str:
    if display := token["display"]:
        margin = " " * (len(token.string) - len(token.string.lstrip()))
        lines = [
            "",
            "",
            ".. math::",
            "    :nowrap:",
            "",
            f"    \\[ {' '.join(display.split())} \\]",
        ]
        return (
            "\n".join(f"{margin}{line}" if line else "" for line in lines)
            + f"\n\n{margin}"
        )
    if code := token["code"]:
        return _apart(token, f"``{' '.join(code.split())}``")
    if inline := token["inline"]:
        return _apart(token, f":math:`{' '.join(inline.split())}`")
    return "\\" + token["special"]


def _apart(token: re.Match[str], markup: str) -> str:
    """Surrounds markup with escaped spaces, which are not printed, if it is not between spaces or
    punctuation.
    """
    before, after = token.string[: token.start()][-1:], token.string[token.end() :][:1]
    left = "" if not before or before.isspace() or before in "([{<'\"-/:" else "\\ "
    right = "" if not after or after.isspace() or after in ")]}>'\"-/:.,;!?" else "\\ "
    return left + markup + right
