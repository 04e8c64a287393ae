"""Texts, as bytes: Python's own documentation, sentences of a grammar, files of the user's. Nothing
is downloaded.
"""

from __future__ import annotations

import ast
import functools
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from dsgd import checks, records
from dsgd.problems import grammar
from dsgd.problems.files import is_there

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def documents(text: str | Path, seed: int) -> list[bytes]:
    """The documents of a text, none empty: modules' docstrings, a grammar's pages, or files.

    Args:
        text: "docstrings", "grammar", or a file or folder, as in `language_model`.
        seed: of the grammar's sentences.

    Raises:
        ValueError: no such file or folder, or nothing in it.
    """
    if text == "docstrings":
        return docstrings(Path(sysconfig.get_path("stdlib")))
    if text == "grammar":
        return grammar.documents(seed)
    path, given = (
        records.expanded("language_model: text", text),
        f"language_model: text = {checks.shown(str(text))}",
    )
    if text == "" or not is_there(path, Path.exists):  # False for a text itself, as a name too long
        raise ValueError(
            f"{given}, and no such file is there: need 'docstrings', 'grammar', a file or a folder"
        )
    read = [_read(file, given) for file in (_below(path) if path.is_dir() else [path])]
    if not any(read):
        raise ValueError(
            f"{given}: all of its files ({len(read)} that are not hidden) are empty; need some text"
        )
    return [raw for raw in read if raw]


def _read(file: Path, given: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{given}: {str(file)!r} cannot be read ({error.strerror}); expected files of text "
            "that can be read"
        ) from error


def _below(folder: Path) -> list[Path]:
    """The files below it, sorted; none whose name, or whose folder's, begins with a dot."""
    there = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return [
        folder / path
        for path in sorted(there)
        if not any(part.startswith(".") for part in path.parts)
    ]


@functools.cache
def docstrings(library: Path) -> list[bytes]:
    """The docstrings of the public modules in a folder, and of their classes and functions, a
    document for each module; without packages.

    Args:
        library: the folder.

    Raises:
        ValueError: it has no sources with docstrings.
    """
    read = [_document(ast.parse(path.read_bytes())) for path in sorted(library.glob("[!_]*.py"))]
    if not any(read):
        raise ValueError(
            f"language_model: text = 'docstrings': {library} has no sources with docstrings; need "
            "'grammar', or files"
        )
    return [document for document in read if document]


def _document(module: ast.Module) -> bytes:
    return "".join(f"{said}\n\n" for said in _said(module)).encode(errors="replace")


def _said(node: ast.AST) -> Iterator[str]:
    """The docstrings in a module, class or function, in their order; those in branches are left
    out, so that this is quick.
    """
    assert isinstance(node, _DOCUMENTED)
    said = ast.get_docstring(node)
    if said:
        yield said
    for inner in node.body:
        if isinstance(inner, _DOCUMENTED):
            yield from _said(inner)
