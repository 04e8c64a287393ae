"""Clusters of equal workers as JSON files, so that experiments can share measured numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dsgd import checks, records
from dsgd.clusters.cluster import Cluster
from dsgd.clusters.quantities import constant
from dsgd.clusters.quantity import require_number

_KIND = "dsgd cluster of equal workers"


@checks.arguments
@dataclass(frozen=True)
class Equal:
    """A cluster whose workers and ports are equal and do not change over time.

    Args:
        latency: seconds per message.
        bandwidth: bits per second of a port, in each direction.
        compute: seconds of a micro-batch, in addition to `per_sample`.
        per_sample: seconds per sample.

    Raises:
        ValueError: if an argument is not a finite number, is negative, or is a bandwidth of 0, or
            if the cluster's numbers are outside the range of float32.
    """

    latency: float
    bandwidth: float
    compute: float = 0.0
    per_sample: float = 0.0

    def __post_init__(self) -> None:
        _need("Equal", asdict(self))
        self.cluster  # noqa: B018 (validates the range of the numbers)

    @property
    def cluster(self) -> Cluster:
        """The `Cluster`, for any number of workers."""
        ports = {"up": constant(self.bandwidth), "latency": self.latency}
        return Cluster(
            constant(self.compute),
            per_sample=constant(self.per_sample) if self.per_sample else None,
            **ports,
        )


_NUMBERS = tuple(field.name for field in fields(Equal))


@checks.arguments
def save(path: str | Path, cluster: Equal, about: Mapping[Any, Any] | None = None) -> None:
    """Writes a cluster of equal workers to a JSON file, to be read by `load`.

    Args:
        path: path of the file; an existing file is replaced atomically.
        cluster: the cluster.
        about: additional information to store, convertible to JSON; `load` ignores it.

    Raises:
        ValueError: if the file cannot be written, or `about` cannot be converted to JSON.
    """
    file = records.user_path("clusters.save: path", path)
    try:
        records.write_json(file, {"kind": _KIND, **asdict(cluster), "about": dict(about or {})})
    except OSError as error:
        raise ValueError(
            f"clusters.save: path = {path} cannot be written ({error.strerror}); expected the path "
            "of a writable file"
        ) from error


@checks.arguments
def load(path: str | Path) -> Equal:
    """Reads a cluster of equal workers from a JSON file.

    Args:
        path: path of the file.

    Returns:
        The numbers; their attribute `cluster` is the cluster.

    Raises:
        ValueError: if the file does not exist or does not describe a cluster of equal workers; the
            message says what is wrong and where.
    """
    where = f"clusters.load: {path}"
    found = _read(where, records.user_path("clusters.load: path", path))
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        given = found.get("kind") if isinstance(found, dict) else found
        raise ValueError(
            f"{where}: kind = {checks.show(given)}; expected {_KIND!r}, as python -m "
            "experiments.calibrate writes it"
        )
    if missing := [name for name in ("latency", "bandwidth") if name not in found]:
        raise ValueError(f"{where}: missing {', '.join(missing)}; expected a number for each")
    if unknown := found.keys() - {"kind", "about", *_NUMBERS}:
        raise ValueError(
            f"{where}: unknown {checks.show(', '.join(sorted(unknown)))[1:-1]}; expected only "
            f"{', '.join(_NUMBERS)}"
        )
    numbers = {name: found[name] for name in _NUMBERS if name in found}
    _need(where, numbers)
    return Equal(**numbers)


def _read(where: str, file: Path) -> Any:
    """Returns the contents of a JSON file.

    Raises:
        ValueError: if the file cannot be read or is not JSON in UTF-8, a number is not a JSON
            number, or a name occurs twice in one object.
    """
    try:
        if file.exists() and not file.is_file():
            raise ValueError(f"{where}: it is not a file; expected a JSON file")
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(
            f"{where}: it cannot be read ({error.strerror}); expected a JSON file"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: it is not UTF-8 text (byte {error.start}); expected a JSON file"
        ) from error
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where}: it is not JSON, in line {error.lineno}, column {error.colno}: {error.msg}; "
            "expected a file that clusters.save has written"
        ) from error
    except RecursionError as error:
        raise ValueError(
            f"{where}: lists or objects are nested too deep; expected numbers by name"
        ) from error
    except ValueError as error:  # also raised for an integer of thousands of digits
        raise ValueError(
            f"{where}: {error}; expected each name once, with a finite number"
        ) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"{checks.show(next(name for name in found if names.count(name) > 1))} occurs twice"
        )
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _need(where: str, numbers: dict[str, Any]) -> None:
    for name, value in numbers.items():
        if not checks.is_number(value):
            raise ValueError(f"{where}: {name} = {checks.show(value)}; expected a number")
        require_number(f"{where}: {name}", value, least=0, more=name == "bandwidth")
