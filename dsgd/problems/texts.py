"""Texts as bytes: Python's own documentation, sentences of a grammar, or the user's files. Nothing
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
    """Returns the nonempty documents of a text: docstrings of modules, documents of the grammar, or
    files.

    Args:
        text: "docstrings", "grammar", or the path of a file or folder, as in `language_model`.
        seed: seed of the grammar's sentences.

    Raises:
        ValueError: if the file or folder does not exist, or all files are empty.
    """
    if text == "docstrings":
        return docstrings(Path(sysconfig.get_path("stdlib")))
    if text == "grammar":
        return grammar.documents(seed)
    path, given = (
        records.user_path("language_model: text", text),
        f"language_model: text = {checks.show(str(text))}",
    )
    if text == "" or not is_there(
        path, Path.exists
    ):  # also False if a whole text is passed by mistake, which is too long for a path
        raise ValueError(
            f"{given}, and there is no such file; expected 'docstrings', 'grammar', a file or a "
            "folder"
        )
    read = [_read(file, given) for file in (_below(path) if path.is_dir() else [path])]
    if not any(read):
        raise ValueError(
            f"{given}: all of its files ({len(read)} that are not hidden) are empty; expected "
            "some text"
        )
    return [raw for raw in read if raw]


def _read(file: Path, given: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{given}: {str(file)!r} cannot be read ({error.strerror}); expected readable files"
        ) from error


def _below(folder: Path) -> list[Path]:
    """Returns all files below the folder, sorted, except those whose name, or a folder of theirs,
    begins with a dot.
    """
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return [
        folder / path
        for path in sorted(files)
        if not any(part.startswith(".") for part in path.parts)
    ]


@functools.cache
def docstrings(library: Path) -> list[bytes]:
    """Returns the docstrings of the public modules in a folder and of their classes and functions,
    one document for each module. Packages are left out.

    Args:
        library: the folder.

    Raises:
        ValueError: if the folder has no sources with docstrings.
    """
    read = [_document(ast.parse(path.read_bytes())) for path in sorted(library.glob("[!_]*.py"))]
    if not any(read):
        raise ValueError(
            f"language_model: text = 'docstrings': {library} has no sources with docstrings; pass "
            "'grammar', or the path of a file or folder"
        )
    return [document for document in read if document]


def _document(module: ast.Module) -> bytes:
    return "".join(f"{text}\n\n" for text in _docstrings(module)).encode(errors="replace")


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Yields the docstrings in a module, class or function, in order. For speed, definitions nested
    in statements such as `if` are left out.
    """
    assert isinstance(node, _DOCUMENTED)
    text = ast.get_docstring(node)
    if text:
        yield text
    for inner in node.body:
        if isinstance(inner, _DOCUMENTED):
            yield from _docstrings(inner)
