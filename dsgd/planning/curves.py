"""Recorded curves of methods, and the files that they are read from."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsgd.planning.candidates import RATE

HISTORY = "history.csv"
_STEP, _TOKENS, _EACH = "step", "tokens", "tokens_per_step"
_READ = ("method", "elements", "seed", _STEP, _TOKENS, _EACH)


class Curve(NamedTuple):
    """The recorded metric of a method with one setting, for a model of one size.

    Args:
        method: the candidate's name.
        values: its hyperparameters by name, besides the step size.
        learning_rate: its step size; NaN if it is not recorded.
        elements: number of elements of the model.
        seeds: rounds and metric of each run, `[records]` each.
    """

    method: str
    values: dict[str, float]
    learning_rate: float
    elements: int
    seeds: list[tuple[np.ndarray, np.ndarray]]

    @property
    def label(self) -> str:
        """The method with its hyperparameters."""
        return label(self.method, self.values)


class _Record(NamedTuple):
    """A row of a file, at the place `where`, with the numbers in all other columns."""

    where: str
    method: str
    elements: int
    seed: str
    step: float
    value: float
    others: dict[str, float]

    @property
    def run(self) -> tuple[str, int, str]:
        return self.method, self.elements, self.seed


def label(method: str, values: Mapping[str, float]) -> str:
    """Returns the name of a method with its hyperparameters."""
    return ", ".join([method, *(f"{name} = {value:g}" for name, value in values.items())])


def read(path: Path, metric: str, given: Mapping[str, Any]) -> tuple[str, list[Curve]]:
    """Returns the title and the curves of a file or folder; see `Pilot.read`.

    Args:
        path: the file or folder.
        metric: name of the column.
        given: method, elements and tokens_per_step in place of columns, or None.
    """
    files = {path: given}
    if path.is_dir():
        found = sorted(path.glob(f"*/{HISTORY}"))
        files = {each: {**given, "method": each.parent.name} for each in found}
    if not files:
        raise ValueError(
            f"Pilot.read: the folder {path} has no files <method>/{HISTORY}; expected one for each "
            "method, or the path of a file"
        )
    each = [_read_file(file, metric, own) for file, own in files.items()]
    return each[0][0], _join([record for _, records in each for record in records])


def _read_file(path: Path, metric: str, given: Mapping[str, Any]) -> tuple[str, list[_Record]]:
    with path.open(encoding="utf-8", newline="") as file:
        lines = file.read().splitlines()
    comments = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    title = " ".join(line.lstrip("# ") for line in comments)
    heading, *rows = [*csv.reader(lines[len(comments) :])] or [[]]
    known = {*heading, *(name for name, value in given.items() if value is not None)}
    _require_columns(path, metric, known, heading)
    found = list[_Record]()
    for number, row in enumerate(rows, len(comments) + 2):
        where = f"{path.name}, line {number}"
        if len(row) != len(heading):
            raise ValueError(
                f"Pilot.read: {where}: {len(row)} columns; expected {len(heading)}, as the header"
            )
        cells: dict[str, Any] = dict(zip(heading, row, strict=True))
        found.append(_record(where, metric, {**cells, **_not_none(given)}))
    if not found:
        raise ValueError(f"Pilot.read: {path.name} has no rows; expected one for each record")
    return title, found


def _require_columns(path: Path, metric: str, known: set[str], heading: Sequence[str]) -> None:
    """Raises a ValueError if a column is missing that is not given as an argument."""
    steps = {_TOKENS, _EACH} if _STEP not in known and _TOKENS in known else {_STEP}
    for name in ("method", "elements", *sorted(steps), metric):
        if name not in known:
            how = f"; or pass {name}=" if name in ("method", "elements", _EACH) else ""
            how = "; or pass metric=" if name == metric else how
            raise ValueError(
                f"Pilot.read: {path.name} has no column {name!r}; expected it among "
                f"{', '.join(heading) or 'none'}{how}"
            )


def _record(where: str, metric: str, cells: dict[str, Any]) -> _Record:
    def number(name: str) -> float:
        found = _number(cells[name])
        if math.isnan(found) or (name != metric and not math.isfinite(found)):
            raise ValueError(
                f"Pilot.read: {where}: {name} = {cells[name]!r}; expected a number"
                + (" (inf after a run has diverged)" if name == metric else "")
            )
        return found

    elements = number("elements")
    if elements < 1 or elements % 1:
        raise ValueError(
            f"Pilot.read: {where}: elements = {elements:g}; expected a count, at least 1"
        )
    step = number(_STEP) if _STEP in cells else number(_TOKENS) / number(_EACH)
    others = {name: _number(cell) for name, cell in cells.items() if name not in (*_READ, metric)}
    seed = str(cells.get("seed", ""))
    return _Record(where, cells["method"], int(elements), seed, step, number(metric), others)


def _join(records: Sequence[_Record]) -> list[Curve]:
    """Returns the curves of the records, in order; see `_split` for what a run is."""
    runs = list(_split(records))
    constant = [
        name
        for name in dict.fromkeys(name for record in records for name in record.others)
        if all(len({str(record.others.get(name, math.nan)) for record in run}) == 1 for run in runs)
    ]
    curves = dict[Any, Curve]()
    ends = dict[Any, float]()
    for run in runs:
        first, last = run[0], run[-1]
        own = {name: first.others.get(name, math.nan) for name in constant}
        own = {name: value for name, value in own.items() if not math.isnan(value)}
        rate = own.pop(RATE, math.nan)
        key = (first.method, first.elements, *own.items())
        name = f"{label(first.method, own)}, {first.elements:,} elements, seed {first.seed or 0}"
        if (key, first.seed) in ends:
            raise ValueError(
                f"Pilot.read: {first.where}: step = {first.step:g} of {name}, after "
                f"{ends[key, first.seed]:g}; expected steps that increase within a run, and one "
                "run for each seed, at its best step size"
            )
        if first is last:
            raise ValueError(
                f"Pilot.read: {first.where}: one record of {name}; expected several, in rows "
                "that follow each other"
            )
        ends[key, first.seed] = last.step
        curve = curves.setdefault(key, Curve(first.method, own, rate, first.elements, []))
        steps, values = (
            np.array([getattr(record, name) for record in run]) for name in ("step", "value")
        )
        curve.seeds.append((steps, values))
    return list(curves.values())


def _split(records: Sequence[_Record]) -> Iterator[list[_Record]]:
    """Yields the runs: records that follow each other, of one method, size and seed, with
    increasing steps.
    """
    run = list[_Record]()
    for record in records:
        if run and (record.run != run[-1].run or record.step <= run[-1].step):
            yield run
            run = []
        run.append(record)
    yield run


def _not_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _number(cell: Any) -> float:
    """Returns the number in a cell; NaN if it has none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan
