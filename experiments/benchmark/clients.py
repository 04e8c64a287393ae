"""Many clients, of which few participate: seconds and memory of a communication round against the
number of clients N, in dsgd and in other libraries for federated learning.

    python -m experiments.benchmark clients

In each communication round 10 of N clients make 20 local steps on batches of 20 generated images,
with the convolutional network for EMNIST (1.2 million parameters), or 100 of N clients make 5 local
steps of logistic regression (7,850 parameters). FedAvg keeps nothing for clients that do not
participate; SCAFFOLD keeps a vector for each client, and EF21, which has no local steps, too, in
files of the folder for temporary files. The numbers of samples of the clients differ. Sizes whose
samples need more memory than --memory, or files more than the disk has, are left out.

Every case runs in a separate process on the CPU; versions take turns, and medians are reported.
Seconds are means over the communication rounds after the first. Memory is the peak during the
rounds, without the data.

fedjax, pfl-research and Flower each have their own Python environment, see `benchmark peers`. They
train the same model with FedAvg, from the same parameters, on the same clients, with the same
numbers and sizes of batches. Before anything is timed, this is checked on clients that all
participate, each of which has one batch: all versions must then compute the same parameters.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dsgd import plots, records
from experiments.benchmark import environments, peers, timing
from experiments.benchmark.jobs import clients as jobs
from experiments.benchmark.peers import distinct
from experiments.shared import commands, figures, tables

METHODS = {"fed_avg": 0, "scaffold": 1, "ef21": 1}  # vectors that a client keeps
LEAST = 20  # samples of the smallest client
TEST = 256  # samples of the test set
SIDE = 28  # pixels
AGREE = 0.01  # maximal difference of two versions' changes of the parameters, relative to dsgd's
JOB = "experiments.benchmark.jobs.clients"


class Setting(NamedTuple):
    """What is trained.

    Args:
        sampled: m, clients of a communication round.
        local_steps: H.
        batch_size: B.
        rounds: communication rounds, in multiples of --rounds.
        classes: number of classes.
        learning_rate: step size of the clients.
    """

    sampled: int
    local_steps: int
    batch_size: int
    rounds: int
    classes: int
    learning_rate: float


SETTINGS = {
    "cnn": Setting(10, 20, 20, 1, 62, 0.05),
    "logistic": Setting(100, 5, 20, 25, 10, 0.01),
}
QUICK = {
    "cnn": Setting(2, 2, 4, 1, 62, 0.05),
    "logistic": Setting(4, 3, 5, 1, 10, 0.01),
}
SHOWN = {"seconds": "seconds of a round", "memory": "memory without data, MB"}
TITLES = {"cnn": "convolutional network", "logistic": "logistic regression"}


@dataclass(frozen=True)
class Args:
    """Times communication rounds with few of many clients."""

    models: tuple[str, ...] = tuple(SETTINGS)
    """Models: cnn, logistic."""
    methods: tuple[str, ...] = tuple(METHODS)
    """Methods of dsgd: fed_avg, scaffold, ef21. Other libraries run fed_avg."""
    versions: tuple[str, ...] = tuple(jobs.VERSIONS)
    """Versions: dsgd, fedjax, pfl, flower."""
    clients: tuple[commands.Count, ...] = (10, 100, 1_000, 10_000, 100_000)
    """Numbers of clients N. Those below the number of clients of a round are left out."""
    rounds: commands.Several = 5
    """Number of communication rounds of the network; of logistic regression, 25 times as many."""
    repeats: commands.Count = 1
    """Number of processes of each case."""
    quick: bool = False
    """Use fewer local steps and smaller batches, and 4 and 12 clients."""
    memory: commands.Positive = field(
        default_factory=lambda: 0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    )
    """Largest memory of the data and the vectors that clients keep, GB; by default half of this
    machine's memory.
    """
    longest: commands.Positive = 600.0
    """Seconds after which a process is ended."""
    environments: Path = field(default_factory=environments.default_folder)
    """Folder for the environments of other libraries; existing ones are reused."""
    out: Path = Path("results/benchmark/clients")
    """Folder for config.json, clients.csv, versions.json, clients.png and the tables."""


class Row(NamedTuple):
    """Medians of one case; NaN if there are none.

    Args:
        seconds: of a communication round.
        memory: peak during the rounds, without the data, bytes.
        loading: peak until the data are loaded, bytes.
        data: bytes of the data.
        loss: test loss after all rounds.
    """

    model: str
    method: str
    version: str
    clients: int
    seconds: float
    memory: float
    loading: float
    data: float
    loss: float


def main(args: Args) -> None:
    check(args)
    commands.begin(args)
    rows: list[Row] = []
    reported: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = environments.path_for(Path(tempfile.mkdtemp(dir=folder)))
        programs = peers.programs(JOB, args.versions, args.environments, path)
        if "dsgd" in programs and len(programs) > 1:
            for model in args.models:
                require_equal(args, model, programs, folder)
        with commands.keep_rows(args.out / "clients.csv", Row._fields, rows):
            for N in args.clients if not args.quick else (4, 12):
                for model in args.models:
                    if setting(args, model).sampled <= N:
                        rows += compare(args, model, N, programs, folder, reported)
    records.write_json(args.out / "versions.json", reported)
    made = {
        f"{model}_{what}": tabulate(args, model, what, rows)
        for model in args.models
        for what in SHOWN
    }
    commands.finish(args, {"clients": draw(args, rows)}, made)


def check(args: Args) -> None:
    """Raises a ValueError if the arguments do not fit together."""
    commands.require_known("--models", args.models, SETTINGS)
    commands.require_known("--methods", args.methods, METHODS)
    commands.require_known("--versions", args.versions, jobs.VERSIONS)
    for model in args.models:
        least = setting(args, model).sampled
        if not args.quick and max(args.clients) < least:
            raise ValueError(
                f"--clients {' '.join(map(str, args.clients))}: {model} draws {least} clients in "
                f"a round; expected a number of at least {least}"
            )


def setting(args: Args, model: str) -> Setting:
    """Returns what is trained with a model."""
    return (QUICK if args.quick else SETTINGS)[model]


def write_data(folder: Path, model: str, sizes: np.ndarray, classes: int) -> None:
    """Writes the data of all versions, see `jobs.Job`: an image is the sum of its class's image and
    of noise.

    Args:
        folder: is filled.
        model: cnn or logistic.
        sizes: number of samples of each client, `[N]`.
        classes: number of classes.
    """
    rng = np.random.default_rng(0)
    means = rng.integers(128, size=(classes, SIDE, SIDE), dtype=np.uint8)

    def write(prefix: str, count: int) -> None:
        labels = rng.integers(classes, size=count, dtype=np.int32)
        images = np.lib.format.open_memmap(
            folder / f"{prefix}images.npy", "w+", np.uint8, (count, SIDE, SIDE)
        )
        for some in np.array_split(np.arange(count), -(-count // 100_000)):
            noise = np.frombuffer(rng.bytes(len(some) * SIDE * SIDE), np.uint8) >> 1
            images[some[0] : some[-1] + 1] = means[labels[some]] + noise.reshape(-1, SIDE, SIDE)
        np.save(folder / f"{prefix}labels.npy", labels)

    np.save(folder / "sizes.npy", sizes)
    write("", int(sizes.sum()))
    write("test_", TEST)
    np.savez(folder / "start.npz", *start(rng, model, classes))


def start(rng: np.random.Generator, model: str, classes: int) -> list[np.ndarray]:
    """Returns the parameters that training starts from, see `jobs.forward`."""
    pooled = (SIDE - 4) // 2
    shapes = {
        "cnn": [(3, 3, 1, 32), (3, 3, 32, 64), (pooled * pooled * 64, 128), (128, classes)],
        "logistic": [(SIDE * SIDE, classes)],
    }[model]
    params = []
    for shape in shapes:
        weights = rng.standard_normal(shape) * (2 / np.prod(shape[:-1])) ** 0.5
        params += [weights.astype(np.float32), np.zeros(shape[-1], np.float32)]
    return params


def require_equal(args: Args, model: str, programs: dict[str, peers.Version], folder: Path) -> None:
    """Raises a RuntimeError if another version differs from dsgd after two rounds in which all
    clients participate, each with one batch.
    """
    each = setting(args, model)
    # with larger steps rounding errors grow where a ReLU or a maximum has its kink
    few = each._replace(sampled=3, local_steps=min(each.local_steps, 5), learning_rate=0.01)
    write_data(folder, model, np.full(few.sampled, few.batch_size), few.classes)
    began = jobs.load_parameters(folder / "start.npz")
    found = {}
    for name, program in programs.items():
        if run(args, program, folder, "fed_avg", few, rounds=2) is not None:
            found[name] = jobs.load_parameters(folder / "end.npz")
    for name, params in found.items():
        change, apart = (distance(found["dsgd"], others) for others in (began, params))
        if not apart <= AGREE * change:
            raise RuntimeError(
                f"{model}: after two rounds in which all clients participate, {name} differs from "
                f"dsgd by {apart / change:.1g} of the change; expected at most {AGREE:g}"
            )


def distance(some: list[np.ndarray], others: list[np.ndarray]) -> float:
    """Returns the Euclidean distance of two models."""
    return sum(float(np.sum((a - b) ** 2)) for a, b in zip(some, others, strict=True)) ** 0.5


def run(
    args: Args, program: peers.Version, folder: Path, method: str, each: Setting, rounds: int
) -> dict[str, Any] | None:
    """Returns the values that a process reports; None if it took too long, or if another library
    fails, which prints a message.
    """
    job = jobs.Job(
        str(folder),
        method,
        each.sampled,
        1 if method == "ef21" else each.local_steps,
        each.batch_size,
        rounds,
        each.learning_rate,
        str(folder / "end.npz"),
    )
    *_, name = program.command
    try:
        ended = timing.process(
            [*program.command, json.dumps(vars(job))], program.environment, args.longest
        )
    except RuntimeError:
        if name == "dsgd":
            raise
        tables.console().print(f"Left out: {name} failed, see above", markup=False)
        return None
    return ended and json.loads(ended.lines[-1])


def compare(
    args: Args,
    model: str,
    N: int,
    programs: dict[str, peers.Version],
    folder: Path,
    reported: dict[str, dict[str, str]],
) -> list[Row]:
    """Returns rows of all versions and methods for N clients.

    Args:
        reported: is filled with the versions of packages, by version.
    """
    each, rng = setting(args, model), np.random.default_rng(1)
    sizes = LEAST + rng.exponential(LEAST, N).astype(int)
    data = int(sizes.sum()) * (SIDE * SIDE + 4)
    elements = sum(leaf.size for leaf in start(rng, model, each.classes))
    free = shutil.disk_usage(folder).free
    cases = [
        (name, method)
        for name in programs
        for method in (args.methods if name == "dsgd" else ("fed_avg",))
        if data <= args.memory * 1e9 and METHODS[method] * 4 * elements * N <= free
    ]
    if not cases:
        return []
    write_data(folder, model, sizes, each.classes)
    taken: dict[tuple[str, str], list[tuple]] = {case: [] for case in cases}
    for _ in range(args.repeats):
        for (name, method), ends in taken.items():
            ended = run(args, programs[name], folder, method, each, args.rounds * each.rounds)
            if ended is None:
                continue
            reported[name] = ended["versions"]
            # Flower's clients are computed in other processes
            memory = float("nan") if name == "flower" else ended["memory"] - data
            loss = test_loss(folder, jobs.load_parameters(folder / "end.npz"))
            ends.append((ended["seconds"], memory, ended["loading"], loss))
    missing = [(float("nan"),) * 4]
    rows = []
    for (name, method), ends in taken.items():
        seconds, memory, loading, loss = np.median(ends or missing, axis=0).tolist()
        rows.append(Row(model, method, name, N, seconds, memory, loading, data, loss))
    return rows


def test_loss(folder: Path, params: list[np.ndarray]) -> float:
    """Returns the loss on the test set."""
    images, labels = (np.load(folder / f"test_{name}.npy") for name in ("images", "labels"))
    return float(jobs.cross_entropy(jobs.forward(params, images, jobs.convolve), labels).mean())


def tabulate(args: Args, model: str, what: str, rows: list[Row]) -> Table:
    """Tabulates a measure of a model: one row for each number of clients, one column for each
    version and method.
    """
    mine, each = [row for row in rows if row.model == model], setting(args, model)
    columns = distinct((row.version, row.method) for row in mine)
    most = max((row.clients for row in mine), default=0)
    final = [row for row in mine if row.clients == most and row.method == "fed_avg"]
    losses = ", ".join(f"{row.version} {row.loss:.3g}" for row in final)
    captions = {
        "seconds": f"{each.local_steps} local steps (ef21: 1) on batches of {each.batch_size}.\n"
        f"-: left out. Test loss of fed_avg after {args.rounds * each.rounds} rounds with {most:,} "
        f"clients:\n{losses}; {np.log(each.classes):.3g} with equal probabilities",
        "memory": "peak during the rounds, without the data.\n-: left out, or several processes",
    }
    title = f"{TITLES[model]}, {each.sampled} clients in a round: {SHOWN[what]}"
    sizes = {row.clients: row.data for row in mine}
    headings = [f"{version}\n{method}" for version, method in columns]
    table = tables.table(title, ("clients", "data,\nMB", *headings), captions[what], left=0)
    for N, data in sizes.items():
        found = {(row.version, row.method): row for row in mine if row.clients == N}
        cells = (cell(found.get(column), what) for column in columns)
        table.add_row(f"{N:,}", f"{data / 1e6:,.1f}", *cells)
    return table


def cell(row: Row | None, what: str) -> str:
    """Formats a measure of a case."""
    if row is None or np.isnan(number(row, what)):
        return "-"
    value = number(row, what)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def number(row: Row, what: str) -> float:
    """Returns a measure in the unit in which it is shown."""
    return getattr(row, what) / (1e6 if what == "memory" else 1)


def draw(args: Args, rows: list[Row]) -> Figure:
    """Draws seconds and memory against the number of clients, for each model."""
    lines = distinct((row.method, row.version) for row in rows)
    panels = [
        partial(draw_panel, lines, [row for row in rows if row.model == model], what, model)
        for what in ("seconds", "memory")
        for model in args.models
    ]
    return figures.sheet(panels, len(args.models), sharey=False)


def draw_panel(
    lines: Iterable[tuple[str, str]], rows: list[Row], what: str, model: str, axes: Axes
) -> None:
    """Draws one measure of one model, with a line for each version and method."""
    plots.log_scale(axes, "xy")
    drawn = {}
    for method, version in lines:
        mine = [row for row in rows if (row.method, row.version) == (method, version)]
        name = method if version == "dsgd" else f"{method} in {version}"
        drawn[name] = (
            np.array([row.clients for row in mine], float),
            np.array([[number(row, what) for row in mine]]),
        )
    plots.draw_lines(axes, drawn)
    for line in axes.lines:
        line.set_marker("o")
    axes.set(xlabel="clients", ylabel=SHOWN[what], title=TITLES[model] if what == "seconds" else "")
