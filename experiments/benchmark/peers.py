"""The same rounds in dsgd, hand-written in JAX, numpy and PyTorch, and in other libraries of the
field: speed, time to a result, memory.

    python -m experiments.benchmark peers

Ring DSGD of logistic regression, with 8 samples per worker, all of which are in every gradient, in
float64: nothing is random, and the models of all versions are compared before anything is timed.
fedjax has a server and no ring; it runs mini-batch SGD, next to dsgd and a scan that do the same.
Nothing is recorded during the runs.

Every version runs in separate processes on the CPU; versions take turns, and medians are reported.
A process makes its rounds up to a first result, whose time is measured from the start of the
process and includes compilation, and then times more rounds. Memory is the peak up to then.

PyTorch, decent-bench (which needs Python 3.13) and fedjax (which needs an older JAX) each have
their own Python environment, which is created with pip when it is first needed. Unavailable
libraries are left out, with a message that states the reason. So are sizes of more than 16 M
elements of all models together. A version that takes longer than --longest for a process has no
number there.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from dsgd import plots, records
from experiments.benchmark import environments, start, timing
from experiments.benchmark.jobs import peers as jobs
from experiments.shared import commands, figures, tables

SAMPLES = 8  # samples of a worker
MOST = 16_000_000  # maximal number of elements of all models
AGREE = 1e-13  # maximal difference between two versions' models, relative to the largest element
TITLES = {"decentralized_sgd": "DSGD on a ring", "minibatch_sgd": "mini-batch SGD"}
# Versions by method: those of `jobs.peers`, some of which need their own Python
# (`environments.PEERS`).
VERSIONS: dict[str, tuple[str, ...]] = {
    "decentralized_sgd": ("dsgd", "scan", "numpy", "torch", "decent-bench"),
    "minibatch_sgd": ("dsgd", "scan", "fedjax"),
}
NAMES = tuple(dict.fromkeys(name for versions in VERSIONS.values() for name in versions))


@dataclass(frozen=True)
class Args:
    """Times the same rounds in dsgd, in hand-written code, and in other libraries."""

    methods: tuple[str, ...] = tuple(VERSIONS)
    """Methods: decentralized_sgd, minibatch_sgd."""
    versions: tuple[str, ...] = NAMES
    """Versions: dsgd, scan, numpy, torch, decent-bench, fedjax."""
    workers: tuple[commands.Count, ...] = (16, 128, 1024)
    """Numbers of workers N, at least 3."""
    dimensions: tuple[commands.Count, ...] = (100, 10_000, 100_000)
    """Elements d of a model; every N runs with every d."""
    rounds: commands.Count = 20
    """Number of rounds to the first result; also the minimal number of rounds of a timing."""
    seconds: commands.Positive = 0.5
    """Approximate seconds of the timing of rounds."""
    repeats: commands.Count = 3
    """Number of timed processes of each version and size, after one for the comparison of
    models.
    """
    longest: commands.Positive = 90.0
    """Seconds after which a process is ended."""
    environments: Path = field(default_factory=environments.default_folder)
    """Folder for the environments of other libraries; existing ones are reused."""
    out: Path = Path("results/benchmark/peers")
    """Folder for config.json, peers.csv, versions.json, peers.png and the tables."""


class Version(NamedTuple):
    """A version: its command and its environment."""

    command: list[str]
    environment: dict[str, str]


class Row(NamedTuple):
    """Medians of one version and size; NaN if it took too long.

    Args:
        seconds: from the start of the process to the first result.
        memory: peak, bytes.
        apart: largest difference of a model from the first version's, relative to its largest
            element.
    """

    method: str
    version: str
    workers: int
    dimension: int
    rounds_per_second: float
    seconds: float
    memory: float
    apart: float


SHOWN = {
    "rounds_per_second": "rounds/s",
    "seconds": "seconds to the result",
    "memory": "memory, MB",
}


def main(args: Args) -> None:
    check(args)
    commands.begin(args)
    rows: list[Row] = []
    reported: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = environments.path_for(Path(tempfile.mkdtemp(dir=folder)))
        names = [name for method in args.methods for name in VERSIONS[method]]
        found = programs(
            "experiments.benchmark.jobs.peers",
            [name for name in distinct(names) if name in args.versions],
            args.environments,
            path,
        )
        with commands.keep_rows(args.out / "peers.csv", Row._fields, rows):
            for method in args.methods:
                for N, d in sizes(args):
                    write_data(Path(folder), N, d)
                    rows += compare(
                        args, method, versions(args, method, found), Path(folder), reported
                    )
    records.write_json(args.out / "versions.json", reported)
    sheets = (
        {"peers": draw([row for row in rows if row.method == "decentralized_sgd"])}
        if "decentralized_sgd" in args.methods
        else {}
    )
    commands.finish(
        args,
        sheets,
        {
            f"{method}_{what}": tabulate(args, method, what, rows)
            for method in args.methods
            for what in SHOWN
        },
    )


def check(args: Args) -> None:
    """Raises a ValueError if the arguments do not fit together."""
    commands.require_known("--methods", args.methods, VERSIONS)
    commands.require_known("--versions", args.versions, NAMES)
    if few := [N for N in args.workers if N < 3]:
        raise ValueError(
            f"--workers {' '.join(map(str, few))}: expected at least 3, so that each has two "
            "neighbours on the ring"
        )
    if not sizes(args):
        raise ValueError(
            f"--workers, --dimensions: all sizes have more than {MOST:,} elements; expected "
            "smaller ones"
        )
    for method in args.methods:
        if not set(args.versions) & set(VERSIONS[method]):
            raise ValueError(
                f"--versions {' '.join(args.versions)}: {method} needs some of "
                f"{', '.join(VERSIONS[method])}"
            )


def sizes(args: Args) -> list[tuple[int, int]]:
    """Returns the numbers of workers and elements to run."""
    return [(N, d) for d in args.dimensions for N in args.workers if N * d <= MOST]


def find(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """Returns, by name, the Pythons of the available libraries; prints a message for each
    unavailable one.

    Args:
        names: versions; those that need no other Python are passed over.
        folder: folder of the environments.
    """
    found: dict[str, Path] = {}
    for name in distinct(names):
        if name not in environments.PEERS:
            continue
        if environments.find(name, folder) is None:
            tables.console().print(
                f"Creating an environment for {name} in {folder / name}",
                markup=False,
                soft_wrap=True,
            )
        try:
            found[name] = environments.make(name, folder)
        except environments.Unavailable as reason:
            tables.console().print(f"Left out: {reason}", markup=False, soft_wrap=True)
    return found


def programs(job: str, names: Sequence[str], folder: Path, path: Path) -> dict[str, Version]:
    """Returns, by name, the programs of the available versions.

    Args:
        job: module that runs a version.
        names: the versions.
        folder: folder of the environments.
        path: folder on the path of the other Pythons, see `environments.path_for`.
    """
    pythons = find(names, folder)
    on_cpu = start.COLD | {"JAX_PLATFORMS": "cpu"}
    chosen = {}
    for name in names:
        python = pythons.get(name) if name in environments.PEERS else Path(sys.executable)
        if python is None:
            continue
        ours = python == Path(sys.executable)
        # the path contains nothing of this folder except the jobs
        apart = {} if ours else {"PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"}
        chosen[name] = Version([str(python), "-m", job, name], on_cpu | apart)
    return chosen


def versions(args: Args, method: str, found: dict[str, Version]) -> dict[str, Version]:
    """Returns, by name, the versions of a method to run."""
    double = {"JAX_ENABLE_X64": "true"}
    return {
        name: found[name]._replace(environment=found[name].environment | double)
        for name in VERSIONS[method]
        if name in args.versions and name in found
    }


def write_data(folder: Path, N: int, d: int) -> None:
    """Writes the data of all versions: inputs `[N, 8, d]` of length about 1, and the same number of
    targets of each class for every worker.
    """
    rng = np.random.default_rng(0)
    np.save(folder / "inputs.npy", rng.standard_normal((N, SAMPLES, d)) / np.sqrt(d))
    np.save(folder / "targets.npy", np.tile(np.arange(SAMPLES) % 2.0, (N, 1)))


def compare(
    args: Args,
    method: str,
    chosen: dict[str, Version],
    folder: Path,
    reported: dict[str, dict[str, str]],
) -> list[Row]:
    """Returns rows of all versions on the data in the folder.

    Args:
        reported: is filled with the versions of packages, by version.

    Raises:
        RuntimeError: if two versions do not agree.
    """
    apart: dict[str, float] = {}
    reference = None
    for name, version in chosen.items():
        saved = folder / "models.npy"
        ended = time_version(
            version,
            args.longest,
            data=str(folder),
            rounds=args.rounds,
            save=str(saved),
            method=method,
        )
        if ended is None:
            continue
        reported[name] = ended[1]["versions"]
        models = np.load(saved)
        reference = models if reference is None else reference
        apart[name] = float(np.abs(models - reference).max() / np.abs(reference).max())
        if not apart[name] <= AGREE:
            raise RuntimeError(
                f"{method}: after {args.rounds} rounds {name} differs by {apart[name]:.1g} from "
                f"the first version; expected at most {AGREE:g}"
            )
    taken: dict[str, list[tuple[float, dict[str, Any]]]] = {name: [] for name in apart}
    for _ in range(args.repeats):
        for name, ends in taken.items():
            ended = time_version(
                chosen[name],
                args.longest,
                data=str(folder),
                rounds=args.rounds,
                seconds=args.seconds,
                method=method,
            )
            if ended is not None:
                ends.append(ended)
    N, _, d = np.load(folder / "inputs.npy", mmap_mode="r").shape
    return [
        row(method, name, N, d, taken.get(name, []), apart.get(name, float("nan")))
        for name in chosen
    ]


def time_version(
    version: Version, longest: float, **what: Any
) -> tuple[float, dict[str, Any]] | None:
    """Returns the seconds to the first result, and the values that the process reports; None if it
    took too long.
    """
    ended = timing.process([*version.command, json.dumps(what)], version.environment, longest)
    return ended and (ended.at[ended.lines.index(jobs.RESULT)], json.loads(ended.lines[-1]))


def row(
    method: str, name: str, N: int, d: int, ends: list[tuple[float, dict[str, Any]]], apart: float
) -> Row:
    """Returns the medians over the processes."""
    if not ends:
        return Row(method, name, N, d, float("nan"), float("nan"), float("nan"), apart)
    rate, memory = (
        float(np.median([values[what] for _, values in ends]))
        for what in ("rounds_per_second", "memory")
    )
    return Row(
        method, name, N, d, rate, float(np.median([seconds for seconds, _ in ends])), memory, apart
    )


def draw(rows: list[Row]) -> Figure:
    """Draws a panel for each dimension and measure, against the number of workers."""
    dimensions, names = (
        distinct(row.dimension for row in rows),
        distinct(row.version for row in rows),
    )
    sheet, panels = plots.figure(
        len(dimensions), len(SHOWN), width=figures.WIDTH / len(dimensions), height=2.4, sharey="row"
    )
    for panel, (what, d) in zip(
        panels, [(what, d) for what in SHOWN for d in dimensions], strict=True
    ):
        panel.set_xscale("log", base=2)
        plots.log_scale(panel, "y")
        lines = {}
        for name in names:
            mine = [row for row in rows if (row.version, row.dimension) == (name, d)]
            lines[name] = (
                np.array([row.workers for row in mine], float),
                np.array([[number(row, what) for row in mine]]),
            )
        plots.draw_lines(panel, lines)
        for line in panel.lines:
            line.set_marker("o")
        panel.set_xlabel("workers")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_xticks(distinct(row.workers for row in rows))
        if d == dimensions[0]:
            panel.set_ylabel(SHOWN[what])
        if what == "rounds_per_second":
            panel.set_title(f"{d:,} elements")
    figures.legend(sheet, len(names), panels[0])
    return sheet


def distinct(values: Any) -> list:
    """Returns the distinct values in their order."""
    return list(dict.fromkeys(values))


def number(row: Row, what: str) -> float:
    """Returns a measure of a row in the unit in which it is shown."""
    return getattr(row, what) / (1e6 if what == "memory" else 1)


def tabulate(args: Args, method: str, what: str, rows: list[Row]) -> Table:
    """Tabulates one row per size, with one column per version."""
    mine = [row for row in rows if row.method == method]
    left_out = len(args.workers) * len(args.dimensions) - len(sizes(args))
    caption = f"medians. result: after {args.rounds} rounds" + (
        f"\nnumber of larger sizes left out: {left_out}" if left_out else ""
    )
    names = distinct(row.version for row in mine)
    table = tables.table(f"{TITLES[method]}: {SHOWN[what]}", ("N x d", *names), caption, left=0)
    for N, d in sizes(args):
        values = {
            row.version: number(row, what) for row in mine if (row.workers, row.dimension) == (N, d)
        }
        table.add_row(
            f"{N:,} x {d:,}", *(format_number(values[name], args.longest) for name in names)
        )
    return table


def format_number(value: float, longest: float) -> str:
    """Formats a number with three digits or as a whole number, whichever is longer."""
    if np.isnan(value):
        return f"> {longest:g} s"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
