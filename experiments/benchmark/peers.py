"""The same rounds in dsgd, by hand in JAX, numpy and PyTorch, and in the field's libraries: speed,
time to a result, memory.

    python -m experiments.benchmark peers

Ring DSGD of logistic regression, 8 samples a worker and all of them in every gradient, in float64:
nothing is random, and the models of all versions are compared before anything is timed.
fedjax has a server and no ring: it does mini-batch SGD, beside dsgd and a scan that do the same.
Nothing is recorded on the way.

Every version runs in processes of its own, on the CPU, in turn; medians are reported. A process
makes its rounds to a first result, whose time counts from the start of the process, compiling
included, and then times more rounds. Memory is the most that it had by then.

PyTorch, decent-bench (which needs Python 3.13) and fedjax (which needs an older JAX) each have a
Python of their own, in environments that are made with pip when they are first needed. What cannot
be had is left out, with a message that says why. So are sizes of more than 16 M elements of all
models together; a version that takes longer than --longest for a process has no number there.
"""

from __future__ import annotations

import json
import sys
import tempfile
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

SAMPLES = 8  # of a worker
MOST = 16_000_000  # elements of all models
AGREE = 1e-13  # at most between two versions' models, over the largest element
TITLES = {"dsgd": "DSGD on a ring", "mb-sgd": "mini-batch SGD"}
# By method, its versions: those of `jobs.peers`, some of which need a Python of their own
# (`environments.PEERS`).
VERSIONS: dict[str, tuple[str, ...]] = {
    "dsgd": ("dsgd", "scan", "numpy", "torch", "decent-bench"),
    "mb-sgd": ("dsgd", "scan", "fedjax"),
}
NAMES = tuple(dict.fromkeys(name for versions in VERSIONS.values() for name in versions))


@dataclass(frozen=True)
class Args:
    """Times the same rounds in dsgd, by hand, and in other libraries."""

    methods: tuple[str, ...] = tuple(VERSIONS)
    """Which of dsgd and mb-sgd."""
    versions: tuple[str, ...] = NAMES
    """Which of dsgd, scan, numpy, torch, decent-bench and fedjax."""
    workers: tuple[commands.Count, ...] = (16, 128, 1024)
    """Numbers of workers N, at least 3."""
    dimensions: tuple[commands.Count, ...] = (100, 10_000, 100_000)
    """Elements d of a model; every N runs with every d."""
    rounds: commands.Count = 20
    """Rounds to the first result, and at least so many in a timing."""
    seconds: commands.Positive = 0.5
    """Length of the timing of rounds, about."""
    repeats: commands.Count = 3
    """Timed processes of each version and size, after one whose models are compared."""
    longest: commands.Positive = 90.0
    """Seconds after which a process is ended."""
    environments: Path = field(default_factory=environments.default_folder)
    """Folder for the environments of other libraries; those that are there are used again."""
    out: Path = Path("results/benchmark/peers")
    """Folder for config.json, peers.csv, versions.json, peers.png and the tables."""


class Version(NamedTuple):
    """What is started, and in which environment."""

    command: list[str]
    environment: dict[str, str]


class Row(NamedTuple):
    """Medians of one version and size; NaN where it took too long.

    Args:
        seconds: from the start of the process to the first result.
        memory: bytes, at the most.
        apart: the largest difference of a model from the first version's, over its largest element.
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
    told: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = environments.path_for(Path(tempfile.mkdtemp(dir=folder)))
        pythons = find(args)
        with commands.kept_rows(args.out / "peers.csv", Row._fields, rows):
            for method in args.methods:
                for N, d in sizes(args):
                    write_data(Path(folder), N, d)
                    rows += compare(
                        args, method, versions(args, method, pythons, path), Path(folder), told
                    )
    records.write_json(args.out / "versions.json", told)
    sheets = (
        {"peers": draw([row for row in rows if row.method == "dsgd"])}
        if "dsgd" in args.methods
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
    """Raises a ValueError where the arguments do not fit."""
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
    """Workers and elements of what is run."""
    return [(N, d) for d in args.dimensions for N in args.workers if N * d <= MOST]


def find(args: Args) -> dict[str, Path]:
    """By name, the Pythons of those peers that can be had; a message for each that cannot."""
    found: dict[str, Path] = {}
    for name in dict.fromkeys(
        name for method in args.methods for name in VERSIONS[method] if name in args.versions
    ):
        if name not in environments.PEERS:
            continue
        if environments.found(name, args.environments) is None:
            tables.console().print(
                f"Making an environment for {name} in {args.environments / name}",
                markup=False,
                soft_wrap=True,
            )
        try:
            found[name] = environments.made(name, args.environments)
        except environments.Unavailable as reason:
            tables.console().print(f"Left out: {reason}", markup=False, soft_wrap=True)
    return found


def versions(args: Args, method: str, pythons: dict[str, Path], path: Path) -> dict[str, Version]:
    """By name, what is run of a method."""
    on_cpu = start.COLD | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "true"}
    chosen = {}
    for name in VERSIONS[method]:
        python = pythons.get(name) if name in environments.PEERS else Path(sys.executable)
        if name not in args.versions or python is None:
            continue
        ours = python == Path(sys.executable)
        # nothing of this folder but the jobs
        apart = {} if ours else {"PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"}
        chosen[name] = Version(
            [str(python), "-m", "experiments.benchmark.jobs.peers", name], on_cpu | apart
        )
    return chosen


def write_data(folder: Path, N: int, d: int) -> None:
    """What all versions read: inputs `[N, 8, d]` of length about 1, and as many targets of each
    class at every worker.
    """
    rng = np.random.default_rng(0)
    np.save(folder / "inputs.npy", rng.standard_normal((N, SAMPLES, d)) / np.sqrt(d))
    np.save(folder / "targets.npy", np.tile(np.arange(SAMPLES) % 2.0, (N, 1)))


def compare(
    args: Args,
    method: str,
    chosen: dict[str, Version],
    folder: Path,
    told: dict[str, dict[str, str]],
) -> list[Row]:
    """Rows of all versions on the data in the folder.

    Args:
        told: gets the versions of packages, by version.

    Raises:
        RuntimeError: two versions do not agree.
    """
    apart: dict[str, float] = {}
    reference = None
    for name, version in chosen.items():
        saved = folder / "models.npy"
        ended = timed(
            version,
            args.longest,
            data=str(folder),
            rounds=args.rounds,
            save=str(saved),
            method=method,
        )
        if ended is None:
            continue
        told[name] = ended[1]["versions"]
        models = np.load(saved)
        reference = models if reference is None else reference
        apart[name] = float(np.abs(models - reference).max() / np.abs(reference).max())
        if not apart[name] <= AGREE:
            raise RuntimeError(
                f"{method}: after {args.rounds} rounds {name} is {apart[name]:.1g} from the first "
                f"version: expected {AGREE:g}"
            )
    taken: dict[str, list[tuple[float, dict[str, Any]]]] = {name: [] for name in apart}
    for _ in range(args.repeats):
        for name, ends in taken.items():
            ended = timed(
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


def timed(version: Version, longest: float, **what: Any) -> tuple[float, dict[str, Any]] | None:
    """Seconds to the first result, and what the process told; None where it took too long."""
    ended = timing.process([*version.command, json.dumps(what)], version.environment, longest)
    return ended and (ended.at[ended.lines.index(jobs.RESULT)], json.loads(ended.lines[-1]))


def row(
    method: str, name: str, N: int, d: int, ends: list[tuple[float, dict[str, Any]]], apart: float
) -> Row:
    """Medians over the processes."""
    if not ends:
        return Row(method, name, N, d, float("nan"), float("nan"), float("nan"), apart)
    rate, memory = (
        float(np.median([told[what] for _, told in ends]))
        for what in ("rounds_per_second", "memory")
    )
    return Row(
        method, name, N, d, rate, float(np.median([seconds for seconds, _ in ends])), memory, apart
    )


def draw(rows: list[Row]) -> Figure:
    """A panel for each dimension and number that is shown, over the workers."""
    dimensions, names = ordered(row.dimension for row in rows), ordered(row.version for row in rows)
    sheet, panels = plots.figure(len(dimensions), len(SHOWN), height=2.6, sharey="row")
    for panel, (what, d) in zip(
        panels, [(what, d) for what in SHOWN for d in dimensions], strict=True
    ):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
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
        panel.set_xticks(ordered(row.workers for row in rows))
        if d == dimensions[0]:
            panel.set_ylabel(SHOWN[what])
        if what == "rounds_per_second":
            panel.set_title(f"{d:,} elements")
    figures.legend(sheet, len(names), panels[0])
    return sheet


def ordered(values: Any) -> list:
    """Each once, as they come."""
    return list(dict.fromkeys(values))


def number(row: Row, what: str) -> float:
    """In the units that are shown."""
    return getattr(row, what) / (1e6 if what == "memory" else 1)


def tabulate(args: Args, method: str, what: str, rows: list[Row]) -> Table:
    """One row a size, one column a version."""
    mine = [row for row in rows if row.method == method]
    left_out = len(args.workers) * len(args.dimensions) - len(sizes(args))
    caption = f"medians; result: after {args.rounds} rounds" + (
        f"\nlarger sizes left out: {left_out}" if left_out else ""
    )
    names = ordered(row.version for row in mine)
    table = tables.table(f"{TITLES[method]}: {SHOWN[what]}", ("N x d", *names), caption, left=0)
    for N, d in sizes(args):
        values = {
            row.version: number(row, what) for row in mine if (row.workers, row.dimension) == (N, d)
        }
        table.add_row(f"{N:,} x {d:,}", *(written(values[name], args.longest) for name in names))
    return table


def written(value: float, longest: float) -> str:
    """With three digits or as a whole number, whichever is longer."""
    if np.isnan(value):
        return f"> {longest:g} s"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
