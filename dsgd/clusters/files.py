"""Clusters of equal workers as JSON files: numbers that were measured once, for all experiments after that."""

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
        return Cluster(constant(self.compute), per_sample=constant(self.per_sample) if self.per_sample else None, **ports)


@checks.arguments
def save(path: str | Path, cluster: Equal, about: Mapping[Any, Any] | None = None) -> None:
    """Writes a cluster for `load`.

    Args:
        path: of the file, which is replaced in one step.
        cluster: of equal workers.
        about: what else is worth keeping, as JSON; nobody reads it.

    Raises:
        ValueError: numbers that make no cluster; a file that cannot be written; an `about` that has no form in JSON.
    """
    _need("clusters.save", cluster)
    file = records.expanded("clusters.save: path", path)
    try:
        records.write_json(file, {"kind": _KIND, **cluster._asdict(), "about": dict(about or {})})
    except OSError as error:
        raise ValueError(f"clusters.save: path = {path}: it cannot be written ({error.strerror})") from error


@checks.arguments
def load(path: str | Path) -> Equal:
    """The cluster that was saved there.

    Args:
        path: of the file.

    Raises:
        ValueError: no such file, or one that is no cluster of equal workers: it says what is wrong, and where.
    """
    file = records.expanded("clusters.load: path", path)
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        raise ValueError(f"clusters.load: {path}: it cannot be read ({error.strerror})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"clusters.load: {path}: it is no JSON, in line {error.lineno}, column {error.colno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"clusters.load: {path}: it is no text (byte {error.start})") from error
    where = f"clusters.load: {path}"
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        given = found.get("kind") if isinstance(found, dict) else checks.shown(found)
        raise ValueError(f"{where}: kind = {given!r}: need {_KIND!r}, as python -m experiments.calibrate writes it")
    if missing := [name for name in ("latency", "bandwidth") if name not in found]:
        raise ValueError(f"{where}: {', '.join(missing)}: missing; need a number")
    if unknown := found.keys() - {"kind", "about", *Equal._fields}:
        raise ValueError(f"{where}: {', '.join(sorted(unknown))}: unknown; need some of {', '.join(Equal._fields)}")
    numbers = {name: found[name] for name in Equal._fields if name in found}
    _need(where, Equal(**numbers))
    return Equal(**{name: float(value) for name, value in numbers.items()})


def _need(where: str, cluster: Equal) -> None:
    for name, value in cluster._asdict().items():
        if not checks.is_number(value):
            raise ValueError(f"{where}: {name} = {checks.shown(value)}: need a number")
        need_number(f"{where}: {name}", value, least=0, more=name == "bandwidth")
