"""Docstrings and types for autodoc: docstrings in reStructuredText, docstrings of data from their
assignments, and annotations without the words of error messages.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import jax.typing
import numpy.typing
import rst
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.typing import stringify_annotation

PACKAGES = ("dsgd", "algorithms", "topologies", "theory_checks")
WORDS = re.compile(r"""~?(?:\w+\.)*Annotated\[(.+?), (['"]).*?\2\]""")
LONG = {
    stringify_annotation(each, "smart"): "~numpy.typing.ArrayLike"
    for each in (numpy.typing.ArrayLike, jax.typing.ArrayLike)
}

# docstrings of data and properties, in which napoleon would read the words before a colon as a type
_held_back: dict[str, list[str]] = {}


def _prepare(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    found = _data_lines(name, thing) if what == "data" else lines
    if not any(found):
        logging.getLogger(__name__).warning("%s has no docstring", name)
    lines[:] = rst.from_markdown("\n".join(found)).split("\n")
    if what in ("attribute", "data", "property"):
        _held_back[name] = lines[:]
        lines.clear()


def _restore(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    lines[:] = _held_back.pop(name, lines)


def _data_lines(name: str, thing: Any) -> list[str]:
    """Returns the docstring below the assignment of a value, from the module that assigns it."""
    last = name.rpartition(".")[2]
    for module_name, module in sorted(sys.modules.items()):
        if (
            module_name.split(".")[0] in PACKAGES
            and getattr(module, last, None) is thing
        ):
            found = (
                ModuleAnalyzer.for_module(module_name).find_attr_docs().get(("", last))
            )
            if found:
                return found
    return []


def _plain_types(app: Any, domain: str, kind: str, content: Any) -> None:
    """Removes the words for error messages from `Annotated[int, "an integer"]`, and shows the name
    `ArrayLike` instead of its union.
    """
    for types in app.env.current_document.autodoc_annotations.values():
        for argument, annotation in types.items():
            plain = WORDS.sub(r"\1", annotation)
            for union, name in LONG.items():
                plain = plain.replace(union, name)
            types[argument] = plain


def _skip(
    app: Any, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """Skips fields of named tuples, which are described in `Args` of their class."""
    return True if type(thing).__name__ == "_tuplegetter" else None


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _prepare, priority=400)
    app.connect("autodoc-process-docstring", _restore, priority=600)
    app.connect("autodoc-skip-member", _skip)
    # before autodoc merges types and arguments
    app.connect("object-description-transform", _plain_types, priority=400)
    return {"parallel_read_safe": True}
