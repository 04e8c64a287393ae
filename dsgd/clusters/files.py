"""Clusters as JSON files: measured ones, which experiments share, and hand-written ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dsgd import checks, records, spelling
from dsgd.clusters.cluster import Cluster
from dsgd.clusters.collectives import Collectives
from dsgd.clusters.nodes import Nodes
from dsgd.clusters.quantities import constant
from dsgd.clusters.quantity import Quantity, require_number, require_numbers

_KIND = "dsgd cluster"
_KINDS = (_KIND, "dsgd cluster of equal workers")  # the second one has no groups
_POSITIVE = ("bandwidth", "memory", "memory_bandwidth")


@checks.arguments
@dataclass(frozen=True)
class Group:
    """Equal workers among those of `Hardware`, and how they differ from the others.

    Args:
        workers: number of workers of the group.
        bandwidth, compute, per_sample, price, memory, memory_bandwidth: as in `Hardware`; None: its
            number.

    Raises:
        ValueError: if `workers` is less than 1, or another argument is not valid in `Hardware`.
    """

    workers: int
    bandwidth: float | None = None
    compute: float | None = None
    per_sample: float | None = None
    price: float | None = None
    memory: float | None = None
    memory_bandwidth: float | None = None

    def __post_init__(self) -> None:
        checks.positive_int("Group: workers", self.workers)
        _require("Group", {name: getattr(self, name) for name in _OF_WORKERS})


_OF_WORKERS = tuple(field.name for field in fields(Group) if field.name != "workers")


@checks.arguments
@dataclass(frozen=True)
class Hardware:
    """The numbers of a cluster that does not change over time, as a file stores them.

    Args:
        latency: seconds per message.
        bandwidth: bits per second of a worker's port, in each direction; with `nodes`, of a
            machine's network card.
        compute: seconds of a micro-batch, in addition to `per_sample`.
        per_sample: seconds per sample.
        groups: groups of equal workers, in the order of the workers' numbers; (): any number of
            equal workers.
        nodes: machines with several workers, as in `Cluster`; None: each worker is a machine.
        price: price of a machine per hour, in any currency; None: unknown.
        memory: bytes of a worker's device; None: unknown.
        memory_bandwidth: bytes per second that a worker's device reads or writes; None: unknown.
        bucket: bits up to which arrays of one message are sent together, as in `Cluster`; None:
            infinite.
        collectives: as in `Cluster`; a file has a list of two factors for each kind.

    Raises:
        ValueError: if an argument is not a finite number, is negative, or is a bandwidth or a
            memory of 0; if it is outside the range of float32; if `groups` has other members than
            groups; or if the workers of a group do not fill machines.
    """

    latency: float
    bandwidth: float
    compute: float = 0.0
    per_sample: float = 0.0
    groups: Sequence[Group] = ()
    nodes: Nodes | None = None
    price: float | None = None
    memory: float | None = None
    memory_bandwidth: float | None = None
    bucket: float | None = None
    collectives: Collectives | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(group, Group) for group in self.groups):
            raise ValueError(
                f"Hardware: groups = {checks.show(self.groups)}; expected groups, such as "
                "(clusters.Group(4), clusters.Group(2, compute=0.1))"
            )
        object.__setattr__(self, "groups", tuple(self.groups))
        for i, group in enumerate(self.groups):
            if group.workers % self._size:
                raise ValueError(
                    f"Hardware: groups[{i}]: workers = {group.workers} in nodes of {self._size}; "
                    f"expected a multiple of {self._size}, as the workers of a node are equal"
                )
        _require("Hardware", {name: getattr(self, name) for name in _OF_CLUSTER})

    @property
    def _size(self) -> int:
        """Number of workers on a machine."""
        return 1 if self.nodes is None else self.nodes.size

    @property
    def workers(self) -> int | None:
        """Number of workers; None: any number of equal workers."""
        return sum(group.workers for group in self.groups) or None

    def kinds(self, workers: int | None = None) -> tuple[tuple[int, Hardware], ...]:
        """Returns the kinds of workers: for each group its number of workers and their numbers.

        Args:
            workers: number of workers; required if there are no groups.

        Raises:
            ValueError: if it is missing, or is not that of the groups.
        """
        if workers is not None and self.workers not in (None, workers):
            raise ValueError(
                f"kinds: workers = {workers}, but the groups have {self.workers}; expected "
                f"{self.workers}"
            )
        groups = self.groups or (Group(checks.positive_int("kinds: workers", workers)),)
        return tuple((group.workers, self._of(group)) for group in groups)

    def _of(self, group: Group) -> Hardware:
        """Returns the numbers of the group's workers."""
        own = {name: getattr(group, name) for name in _OF_WORKERS}
        return replace(
            self, groups=(), **{name: value for name, value in own.items() if value is not None}
        )

    def hourly_price(self, workers: int | None = None) -> float | None:
        """Returns the price of the machines of all workers per hour; None: a price is unknown.

        Args:
            workers: as for `kinds`.

        Raises:
            ValueError: as `kinds`.
        """
        total = 0.0
        for number, kind in self.kinds(workers):
            if kind.price is None:
                return None
            total += -(-number // self._size) * kind.price
        return total

    @property
    def cluster(self) -> Cluster:
        """The `Cluster`; for any number of workers if there are no groups."""
        has_per_sample = any(each.per_sample for each in (self, *self.groups))
        return Cluster(
            self._quantity("compute"),
            up=self._quantity("bandwidth"),
            latency=self.latency,
            per_sample=self._quantity("per_sample") if has_per_sample else None,
            nodes=self.nodes,
            bucket=math.inf if self.bucket is None else self.bucket,
            collectives=self.collectives,
        )

    def _quantity(self, name: str) -> Quantity:
        """Returns one of the numbers as a quantity, which is the same for all workers if it is
        equal in all groups.
        """
        kinds = self.kinds() if self.groups else ((1, self),)
        by_worker = [getattr(kind, name) for number, kind in kinds for _ in range(number)]
        return constant(by_worker if len({*by_worker}) > 1 else by_worker[0])


_OF_CLUSTER = ("latency", "bucket", *_OF_WORKERS)


@checks.arguments
def save(path: str | Path, cluster: Hardware, about: Mapping[Any, Any] | None = None) -> None:
    """Writes the numbers of a cluster to a JSON file, to be read by `load`.

    Args:
        path: path of the file; an existing file is replaced atomically.
        cluster: the numbers.
        about: additional information to store, convertible to JSON; `load` ignores it.

    Raises:
        ValueError: if the file cannot be written, or `about` cannot be converted to JSON.
    """
    file = records.user_path("clusters.save: path", path)
    numbers = _given(asdict(cluster) | {"groups": [_given(asdict(g)) for g in cluster.groups]})
    try:
        records.write_json(file, {"kind": _KIND, **numbers, "about": dict(about or {})})
    except OSError as error:
        raise ValueError(
            f"clusters.save: path = {path} cannot be written ({error.strerror}); expected the path "
            "of a writable file"
        ) from error


@checks.arguments
def load(path: str | Path) -> Hardware:
    """Reads the numbers of a cluster from a JSON file.

    The file has the arguments of `Hardware` by name, with `nodes` as those of `Nodes`, and `groups`
    as a list of those of `Group`.

    Args:
        path: path of the file.

    Returns:
        The numbers; their attribute `cluster` is the cluster.

    Raises:
        ValueError: if the file does not exist or does not describe a cluster; the message says what
            is wrong and where.
    """
    where = f"clusters.load: {path}"
    found = _read(where, records.user_path("clusters.load: path", path))
    if not isinstance(found, dict):
        raise ValueError(
            f"{where}: {checks.show(found)}; expected names and values in braces: "
            '{"latency": 1e-4, "bandwidth": 1e9}'
        )
    if (kind := found.get("kind", _KIND)) not in _KINDS:
        raise ValueError(
            f"{where}: kind = {checks.show(kind)}; expected {_KIND!r}, as python -m "
            "experiments.calibrate writes it, or none"
        )
    numbers = {name: value for name, value in found.items() if name not in ("kind", "about")}
    groups = numbers.pop("groups", [])
    if not isinstance(groups, list):
        raise ValueError(f"{where}: groups = {checks.show(groups)}; expected a list of groups")
    others: dict[str, Any] = {}
    if "nodes" in numbers:
        others["nodes"] = _make(Nodes, f"{where}: nodes", numbers.pop("nodes"))
    others["groups"] = tuple(
        _make(Group, f"{where}: groups[{i}]", group) for i, group in enumerate(groups)
    )
    if "collectives" in numbers:
        others["collectives"] = _factors(f"{where}: collectives", numbers.pop("collectives"))
    return _make(Hardware, where, numbers, **others)


def _factors(where: str, pairs: Any) -> Collectives:
    """Returns the factors of a file; errors begin with `where`."""
    known = [field.name for field in fields(Collectives)]
    if not isinstance(pairs, dict) or not pairs.keys() <= {*known}:
        raise ValueError(
            f"{where} = {checks.show(pairs)}; expected factors of latency and transfer time for "
            f"some of {', '.join(known)}: "
            '{"permute": [2, 1.5]}'
        )
    for name, pair in pairs.items():
        if not isinstance(pair, list) or [checks.is_number(each) for each in pair] != [True, True]:
            raise ValueError(f"{where}: {name} = {checks.show(pair)}; expected two numbers")
    try:
        return Collectives(**{name: (float(f), float(g)) for name, (f, g) in pairs.items()})
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).removeprefix('Collectives: ')}") from error


def _make(kind: type[Any], where: str, numbers: Any, **others: Any) -> Any:
    """Returns an instance with the numbers of a file; errors begin with `where`."""
    known = [field.name for field in fields(kind)]
    if not isinstance(numbers, dict):
        raise ValueError(
            f"{where} = {checks.show(numbers)}; expected names and values in braces: "
            f'{{"{known[0]}": 4, ...}}'
        )
    if unknown := sorted(numbers.keys() - {*known}):
        hint = spelling.suggest(unknown[0], known)
        raise ValueError(
            f"{where}: unknown {checks.show(', '.join(unknown))[1:-1]}; expected only "
            f"{', '.join(known)}{hint}"
        )
    required = [field.name for field in fields(kind) if field.default is MISSING]
    if missing := [name for name in required if name not in numbers]:
        raise ValueError(f"{where}: missing {', '.join(missing)}; expected a number for each")
    for name, value in numbers.items():
        if not checks.is_number(value):
            raise ValueError(f"{where}: {name} = {checks.show(value)}; expected a number")
    if known[0] in ("workers", "size"):  # of a group, of nodes
        checks.positive_int(f"{where}: {known[0]}", numbers[known[0]])
    try:
        return kind(**numbers, **others)
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).removeprefix(f'{kind.__name__}: ')}") from error


def _given(numbers: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what is not given."""
    return {name: value for name, value in numbers.items() if value not in (None, [])}


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


def _require(where: str, numbers: Mapping[str, Any]) -> None:
    """Raises ValueError if one of the numbers is not a finite number, or is negative or 0 where
    that is not valid.
    """
    for name, value in numbers.items():
        if value is not None:
            require_number(f"{where}: {name}", value, least=0, more=name in _POSITIVE)
            require_numbers(f"{where}: {name}", value, least=0)  # in the range of float32
