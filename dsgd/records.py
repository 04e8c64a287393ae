"""Results on disk, written atomically, so that neither a reader nor a crash leaves a
partial file.
"""

from __future__ import annotations

import csv
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np


def user_path(where: str, path: str | Path) -> Path:
    """Returns a path given by the user, with `~` replaced by the home folder.

    Args:
        where: name of the argument, for messages.
        path: the path.

    Raises:
        ValueError: if the path contains a null byte, or the home folder is not known.
    """
    if "\0" in str(path):
        raise ValueError(f"{where} = {str(path)!r}: expected a path without null bytes")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"{where} = {str(path)!r}: the home folder of '~' is not known; expected an absolute "
            "path"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary file next to `path`, which replaces `path` if the block succeeds.

    If the block raises an exception, the temporary file is deleted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # the default mode; files of mkstemp are private
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Writes numbers, texts, lists and dictionaries as JSON.

    Numbers that are not finite, which JSON does not have, become null. Other objects are written as
    text.

    Raises:
        ValueError: if a key has no representation in JSON, or lists and dictionaries contain
            themselves or are nested too deeply.
    """
    try:
        text = json.dumps(finite(data), indent=2, default=str, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: the data cannot be represented in JSON ({error}); expected keys that are "
            "texts or finite numbers, and no container that contains itself"
        ) from error
    with replacing(path) as temporary:
        temporary.write_text(f"{text}\n")


def finite(data: Any) -> Any:
    """Converts the numbers and arrays in lists and dictionaries to Python numbers, and non-finite
    numbers to None.
    """
    if isinstance(data, np.ndarray | np.generic | jax.Array) and data.dtype.kind in "biuf":
        data = data.tolist()
    if isinstance(data, Mapping):
        return {name: finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def write_rows(path: Path, heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV file with a header row."""
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(heading)
        writer.writerows(rows)


def write_histories(path: Path, histories: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Writes histories as one CSV file in long form, with one row for each method, seed and
    record.

    Args:
        path: path of the file.
        histories: histories by method, each as in a `dsgd.Result` with seeds: `step` is
            `[records]`, all other series are `[seeds, records]`. A column that a method does not
            have is empty. A series with one number per worker, `[seeds, records, N]`, becomes N
            columns `samples[0]`, `samples[1]`, and so on.
    """
    histories = {method: dict(worker_columns(history)) for method, history in histories.items()}
    columns = list(
        dict.fromkeys(name for history in histories.values() for name in history if name != "step")
    )

    def rows() -> Iterator[list[Any]]:
        for method, history in histories.items():
            for seed in range(history["loss"].shape[0]):
                series = [history[name][seed] if name in history else None for name in columns]
                for record, step in enumerate(history["step"]):
                    yield [
                        method,
                        seed,
                        step,
                        *("" if values is None else values[record] for values in series),
                    ]

    write_rows(path, ["method", "seed", "step", *columns], rows())


def read_histories(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Returns the histories in a file of `write_histories`.

    A series with one number per worker stays N series. Columns that a method does not have are
    omitted.
    """
    with path.open(encoding="utf-8", newline="") as file:
        heading, *rows = csv.reader(file)
    histories: dict[str, dict[str, np.ndarray]] = {}
    for method in dict.fromkeys(row[0] for row in rows):
        columns = np.array([row[1:] for row in rows if row[0] == method]).T
        seeds = len(set(columns[0]))
        histories[method] = {
            name: column.astype(float).reshape(seeds, -1)
            for name, column in zip(heading[3:], columns[2:], strict=True)
            if column[0] and column[0] not in ("True", "False")
        }
        histories[method]["step"] = columns[1].reshape(seeds, -1)[0].astype(int)
    return histories


def worker_columns(history: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the series of a history with seeds. A series `[seeds, records, N]` becomes N series
    `[seeds, records]`.
    """
    for name, values in history.items():
        if np.ndim(values) < 3:
            yield name, values
        else:
            yield from (
                (f"{name}[{worker}]", values[..., worker]) for worker in range(values.shape[-1])
            )
