"""CSV files with a heading, of which one column is the class."""

from __future__ import annotations

import csv
import gzip
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from dsgd import checks

ENDS = (".csv", ".csv.gz")


def read(path: Path, target: str | None) -> tuple[np.ndarray, np.ndarray]:
    """The other columns `[M, d]`, and that of the classes `[M]`: numbers if all its entries are,
    else text.

    Args:
        path: the file, with commas between its entries and the columns' names in its first line.
        target: the name of the column with the classes.

    Raises:
        ValueError: if there is no such column, or another one has an entry that is no number; it
            names the file, column and line.
    """
    try:
        names, cells = _cells(path)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); expected a CSV file in UTF-8"
        ) from error
    if len(set(names)) < len(names) or len(names) < 2:
        raise ValueError(
            f"{path}: has the columns {checks.shown(names)}; expected at least two different "
            "names in its first line"
        )
    if target not in names:
        need = f"expected target to be the name of the one with the classes, got {target!r}"
        raise ValueError(f"{path}: has the columns {checks.shown(names)}; {need}")
    inputs = [
        _numbers(path, name, column)
        for name, column in zip(names, cells, strict=True)
        if name != target
    ]
    classes = np.array(cells[names.index(target)])
    if not all(entry.strip() for entry in cells[names.index(target)]):
        raise ValueError(
            f"{path}: column {target!r} has empty entries; expected a class in each row: leave "
            "these rows out"
        )
    with suppress(ValueError):
        classes = classes.astype(float)
    return np.stack(inputs, axis=1), classes


def _cells(path: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    """The columns' names, and their entries."""
    with _open(path) as file:
        names, *rows = [row for row in csv.reader(file) if row] or [[]]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise csv.Error(
                f"row {number} below the heading has {len(row)} entries, the heading {len(names)}"
            )
    return [name.strip() for name in names], list(zip(*rows, strict=True)) or [() for _ in names]


def _open(path: Path) -> IO[str]:
    return (
        gzip.open(path, "rt", encoding="utf-8-sig", newline="")
        if path.suffix == ".gz"
        else path.open(encoding="utf-8-sig", newline="")
    )


def _numbers(path: Path, name: str, column: tuple[str, ...]) -> np.ndarray:
    for row, entry in enumerate(column, start=1):
        try:
            float(entry)
        except ValueError:
            remedy = (
                "encode categories first, by pandas.get_dummies(table)"
                if entry.strip()
                else "fill it, or leave the row out"
            )
            raise ValueError(
                f"{path}: column {name!r} has {entry!r} in row {row} below the heading; expected "
                f"numbers: {remedy}"
            ) from None
    return np.array(column, np.float64)
