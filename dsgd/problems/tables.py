"""CSV files with a header line; one column is the class."""

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
    """Reads a CSV file. Returns the feature columns, float64 `[M, d]`, and the class column `[M]`:
    numbers if all its entries are numbers, else text.

    Args:
        path: the file, with commas between entries and the column names in its first line.
        target: name of the column with the classes.

    Raises:
        ValueError: if the target column does not exist, or another column has an entry that is not
            a number. The message names the file, column and row.
    """
    try:
        names, cells = _cells(path)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); expected a CSV file in UTF-8"
        ) from error
    if len(set(names)) < len(names) or len(names) < 2:
        raise ValueError(
            f"{path}: the columns are {checks.show(names)}; expected at least two different "
            "names in the first line"
        )
    if target not in names:
        need = "expected the name of the column with the classes"
        raise ValueError(
            f"{path}: target = {target!r}, but the columns are {checks.show(names)}; {need}"
        )
    inputs = [
        _numbers(path, name, column)
        for name, column in zip(names, cells, strict=True)
        if name != target
    ]
    classes = np.array(cells[names.index(target)])
    if not all(entry.strip() for entry in cells[names.index(target)]):
        raise ValueError(
            f"{path}: column {target!r} has empty entries; expected a class in each row: remove "
            "these rows"
        )
    with suppress(ValueError):
        classes = classes.astype(float)
    return np.stack(inputs, axis=1), classes


def columns(path: Path) -> dict[str, tuple[float | str, ...]]:
    """Reads a CSV file and returns its columns by name: integers or numbers if all
    entries are, else text.

    Raises:
        ValueError: if the file cannot be read.
    """
    try:
        names, cells = _cells(path)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise ValueError(
            f"read_clients: {path} cannot be read ({error}); expected a CSV file in UTF-8"
        ) from error
    found: dict[str, tuple[float | str, ...]] = {}
    for name, column in zip(names, cells, strict=True):
        found[name] = column
        for kind in (float, int):
            with suppress(ValueError):
                found[name] = tuple(map(kind, column))
    return found


def _cells(path: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    """Returns the column names and the entries of each column."""
    with _open(path) as file:
        names, *rows = [row for row in csv.reader(file) if row] or [[]]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise csv.Error(
                f"row {number} below the header has {len(row)} entries, the header {len(names)}"
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
                "encode categories first, with pandas.get_dummies(table)"
                if entry.strip()
                else "fill it, or remove the row"
            )
            raise ValueError(
                f"{path}: column {name!r} has {entry!r} in row {row} below the header; expected "
                f"numbers: {remedy}"
            ) from None
    return np.array(column, np.float64)
