"""Suggestions for names of arguments and attributes that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SYNONYMS: dict[str, tuple[str, ...]] = {
    "H": ("period",),
    "lr": ("optimizer", "step_size", "learning_rate"),
}
"""Terms of papers and other libraries, with the names that this project has for them. A message
about an unknown name suggests those that exist in its place."""


def suggest(given: str, known: Iterable[str]) -> str:
    """Returns the end of an error message about an unknown name.

    Args:
        given: the name.
        known: the names that exist.

    Returns:
        "; did you mean x?" with the synonyms of the name, or else the most similar name; "" if
        there is neither.
    """
    exact = list(known)
    close = [name for name in SYNONYMS.get(given, ()) if name in exact]
    if not close:
        folded = {name.casefold(): name for name in exact}
        close = [folded[name] for name in difflib.get_close_matches(given.casefold(), folded, 1)]
    return f"; did you mean {' or '.join(close)}?" if close else ""
