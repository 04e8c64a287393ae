"""Clusters of equal workers as JSON files: numbers that were measured once, for all experiments
after that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dsgd import checks, records
from dsgd.clusters.cluster import Cluster
from dsgd.clusters.quantities import constant
from dsgd.clusters.quantity import need_number

_KIND = "dsgd cluster of equal workers"


class Equal(NamedTuple):
    """The numbers of a cluster whose workers and ports are equal, and always the same.

    Args:
        latency: seconds of a message.
        bandwidth: bits per second of a port, both ways.
        compute: seconds of a micro-batch, besides those of its samples.
        per_sample: seconds of a sample.
    """

    latency: float
    bandwidth: float
    compute: float = 0.0
    per_sample: float = 0.0

    @property
    def cluster(self) -> Cluster:
        """The cluster, which has any number of workers."""
        ports = {"up": constant(self.bandwidth), "latency": self.latency}
        return Cluster(
            constant(self.compute),
            per_sample=constant(self.per_sample) if self.per_sample else None,
            **ports,
        )


@checks.arguments
def save(path: str | Path, cluster: Equal, about: Mapping[Any, Any] | None = None) -> None:
    """Writes a cluster for `load`.

    Args:
        path: of the file, which is replaced in one step.
        cluster: of equal workers.
        about: what else is worth keeping, as JSON; nobody reads it.

    Raises:
        ValueError: numbers that make no cluster; a file that cannot be written; an `about` that has
            no form in JSON.
    """
    _need("clusters.save", cluster)
    file = records.expanded("clusters.save: path", path)
    try:
        numbers = {name: float(value) for name, value in cluster._asdict().items()}
        records.write_json(file, {"kind": _KIND, **numbers, "about": dict(about or {})})
    except OSError as error:
        raise ValueError(
            f"clusters.save: path = {path}: it cannot be written ({error.strerror})"
        ) from error


@checks.arguments
def load(path: str | Path) -> Equal:
    """The cluster that was saved there.

    Args:
        path: of the file.

    Raises:
        ValueError: no such file, or one that is no cluster of equal workers: it says what is wrong,
            and where.
    """
    where = f"clusters.load: {path}"
    found = _read(where, records.expanded("clusters.load: path", path))
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        given = found.get("kind") if isinstance(found, dict) else found
        raise ValueError(
            f"{where}: kind = {checks.shown(given)}: need {_KIND!r}, as python -m "
            "experiments.calibrate writes it"
        )
    if missing := [name for name in ("latency", "bandwidth") if name not in found]:
        raise ValueError(f"{where}: {', '.join(missing)}: missing; need a number")
    if unknown := found.keys() - {"kind", "about", *Equal._fields}:
        raise ValueError(
            f"{where}: {checks.shown(', '.join(sorted(unknown)))[1:-1]}: unknown; need some of "
            f"{', '.join(Equal._fields)}"
        )
    numbers = {name: found[name] for name in Equal._fields if name in found}
    _need(where, Equal(**numbers))
    return Equal(**{name: float(value) for name, value in numbers.items()})


def _read(where: str, file: Path) -> Any:
    """What a JSON file says.

    Raises:
        ValueError: a file that cannot be read, or is no JSON in UTF-8; a number that JSON does not
            have; a name twice in one object.
    """
    try:
        if file.exists() and not file.is_file():
            raise ValueError(f"{where}: it is no file; expected a JSON file")
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{where}: it cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: it is no text in UTF-8 (byte {error.start}); expected a JSON file"
        ) from error
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where}: it is no JSON, in line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except RecursionError as error:
        raise ValueError(
            f"{where}: lists or objects are nested too deep; expected numbers by name"
        ) from error
    except ValueError as error:  # an integer of thousands of digits, too
        raise ValueError(
            f"{where}: {error}; expected each name once, with a finite number"
        ) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"{checks.shown(next(name for name in found if names.count(name) > 1))} is there twice"
        )
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _need(where: str, cluster: Equal) -> None:
    for name, value in cluster._asdict().items():
        if not checks.is_number(value):
            raise ValueError(f"{where}: {name} = {checks.shown(value)}: need a number")
        need_number(f"{where}: {name}", value, least=0, more=name == "bandwidth")
