"""Files in the format of LIBSVM and SVMlight: each line is a label, followed by index:value pairs
of the nonzero features.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dsgd.problems import files

_NAMES = (
    "",
    ".txt",
    ".libsvm",
    ".svm",
    ".svmlight",
    ".binary",
    ".libsvm.binary",
    "_train.binary",
    ".tr",
)
_OPENED: dict[str, Any] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}
_NUMBER = rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_LINE = re.compile(
    rb"\s*(?:%b(?:\s+qid:\d+)?((?:\s+\d+:%b)*)\s*)?(?:#.*)?" % (_NUMBER, _NUMBER), re.DOTALL
)
_MOST_FEATURES = np.iinfo(np.int32).max


def find(path: Path) -> tuple[Path, Path | None] | None:
    """Returns the file for training and, if it exists next to it, the file for testing, else None
    in its place; None if there is no training file.

    Args:
        path: path of the training file; it may lack the suffixes of published files, e.g. a9a, or
            rcv1 for `rcv1_train.binary.bz2`.
    """
    train = next(_existing(path.parent, [f"{path.name}{end}" for end in _NAMES]), None)
    if train is None:
        return None
    name = train.name.removesuffix(train.suffix) if train.suffix in _OPENED else train.name
    stem, dot, end = name.rpartition(".")
    tests = [f"{name}.t", f"{stem}.t{dot}{end}", *([f"{stem}.t"] if end == "tr" else [])]
    tests += [name.replace("train", "test")] if "train" in name else []
    return train, next(
        (candidate for candidate in _existing(path.parent, tests) if candidate != train), None
    )


def _existing(folder: Path, names: list[str]) -> Iterator[Path]:
    return (
        candidate
        for name in names
        for packed in ("", *_OPENED)
        if files.is_there(candidate := folder / f"{name}{packed}")
    )


def read(*paths: Path) -> list[tuple[csr_array, np.ndarray]]:
    """Reads files. Returns for each one its features `[M, d]`, with the same d for all, and its
    labels `[M]`, unchanged.

    Feature indices start at 1, as published, or at 0 if one of the files has a feature 0.

    Raises:
        ValueError: if a file is damaged or has another format. The message names the file and the
            line.
    """
    tables = [_read(path) for path in paths]
    first = (
        0 if any(matrix.indices.size and matrix.indices.min() == 0 for matrix, _ in tables) else 1
    )
    features = max(matrix.shape[1] for matrix, _ in tables)
    for path, (matrix, labels) in zip(paths, tables, strict=True):
        if not len(labels) or features <= first:
            raise ValueError(
                f"{path}: no samples with features; expected lines like '+1 3:0.5 7:1', a label "
                "followed by index:value"
            )
        if not (np.isfinite(matrix.data).all() and np.isfinite(labels).all()):
            raise ValueError(f"{path}: a label or value is not finite; expected finite numbers")
        matrix.resize((len(labels), features))
    return [(csr_array(matrix[:, first:]), labels) for matrix, labels in tables]


def _read(path: Path) -> tuple[Any, np.ndarray]:
    from sklearn.datasets import load_svmlight_file  # noqa: PLC0415 (takes a second to import)

    read: Any = load_svmlight_file

    try:
        with _open(path) as file:
            matrix, labels = read(file, zero_based=True)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); expected a LIBSVM file, plain or as an intact "
            ".bz2, .gz or .xz file"
        ) from error
    except (ValueError, OverflowError) as error:
        need = (
            "expected one label, then index:value with increasing indices, as in LIBSVM files "
            "(CSV files end in .csv)"
        )
        raise ValueError(f"{path}{_where(path)} ({error}); {need}") from error
    return csr_array(matrix), labels


def _open(path: Path) -> Any:
    return _OPENED[path.suffix](path, "rb") if path.suffix in _OPENED else path.open("rb")


def _where(path: Path) -> str:
    """Returns the first line that violates the format, for a message."""
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            matched = _LINE.fullmatch(line)
            places = (
                [int(pair.split(b":")[0]) for pair in (matched[1] or b"").split()]
                if matched
                else []
            )
            if not matched or any(np.diff([*places, _MOST_FEATURES]) <= 0):
                return f", line {number}: {line[:60].decode(errors='replace')!r}"
    return ""
