"""Results on disk, written atomically: a reader, or a crash, never sees half a file."""

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


def expanded(where: str, path: str | Path) -> Path:
    """The path that a user gave, with the home folder in the place of `~`.

    Args:
        where: names the argument.
        path: as it was given.

    Raises:
        ValueError: a path with a null byte, or of the home of a user that is not known.
    """
    if "\0" in str(path):
        raise ValueError(f"{where} = {str(path)!r}: expected a path without null bytes")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"{where} = {str(path)!r}: the home folder of '~' is not known; pass the whole path"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place when the block ends well and vanishes
    when it does not.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # as any other new file; mkstemp's are private
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Numbers, texts, lists and dictionaries as JSON; numbers that are not finite, which JSON does
    not have, as null; anything else as its text.

    Raises:
        ValueError: keys that JSON does not have, or lists and dictionaries that contain themselves,
            or are nested too deep.
    """
    try:
        text = json.dumps(finite(data), indent=2, default=str, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        needed = "keys that are texts or finite numbers, and nothing that contains itself"
        raise ValueError(
            f"{path}: not written, as it has no form in JSON ({error}); expected {needed}"
        ) from error
    with replacing(path) as temporary:
        temporary.write_text(f"{text}\n")


def finite(data: Any) -> Any:
    """The same lists and dictionaries, with numbers of numpy and arrays as Python's, and None for
    numbers that are not finite.
    """
    if isinstance(data, np.ndarray | np.generic | jax.Array) and data.dtype.kind in "biuf":
        data = data.tolist()
    if isinstance(data, Mapping):
        return {name: finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def write_rows(path: Path, heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A CSV file with a heading."""
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(heading)
        writer.writerows(rows)


def write_histories(path: Path, histories: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Histories as one CSV in long form, one row for each method, seed and record.

    Args:
        path: where to.
        histories: by method; each as in `dsgd.Result` with seeds: `step` `[records]`, all else
            `[seeds, records]`. A column that a method lacks is empty there. What has one number a
            worker, `[seeds, records, N]`, has N columns, `samples[0]` and so on.
    """
    histories = {method: dict(by_worker(history)) for method, history in histories.items()}
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


def by_worker(history: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """The series of a history with seeds, those of one number a worker, `[seeds, records, N]`, as N
    of `[seeds, records]`.
    """
    for name, values in history.items():
        if np.ndim(values) < 3:
            yield name, values
        else:
            yield from (
                (f"{name}[{worker}]", values[..., worker]) for worker in range(values.shape[-1])
            )
