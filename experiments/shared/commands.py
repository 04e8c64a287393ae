"""Start and end of the commands: flags, errors, interruptions, and the files written with the
results.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import platform
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import jax
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import dsgd
from dsgd import cache, clusters, optional, plots, records
from dsgd.engine import programs
from dsgd.machines import agreement, heartbeat, runtime, tasks
from dsgd.machines.remote_calls import RemoteTraceback
from experiments.shared import page, resuming, tables

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
DataDir = Annotated[
    Path | None,
    tyro.conf.arg(
        help="Folder with the files of --data: images in their published format, LIBSVM or CSV."
    ),
]
Cache = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="{off}|PATH",
        help="Folder of compiled programs, which later runs reuse; by default "
        f"{cache.VARIABLE} in the environment, or the user's cache.",
    ),
]
ClusterFile = Annotated[
    Path | None,
    tyro.conf.arg(
        metavar="{None}|PATH",
        help="File of a cluster (experiments.calibrate); its latency, bandwidth and seconds of "
        "computing replace these.",
    ),
]
Resume = Annotated[
    bool | None,
    tyro.conf.arg(
        help="Keep checkpoints, from which the same command continues after an interruption. "
        "By default only if there are several processes. Costs about half a second per run.",
    ),
]
On = Annotated[
    Literal["processes", "ray", "slurm"] | None,
    tyro.conf.arg(
        help="Where independent programs run: in processes that share this machine's cores, on "
        "Ray (RAY_ADDRESS) or as jobs of Slurm (SBATCH_*); by default one after the other."
    ),
]
OF_SAMPLE = "seconds of a sample"  # marks a number in its annotation as seconds per sample


class Bound(NamedTuple):
    """A condition on the numbers of a flag, in the annotation of its field. Commands check
    conditions that depend on several flags.

    Args:
        words: the numbers that are accepted, for the error.
        holds: whether a number is accepted; or whether all are, if it takes all together.
        together: whether `holds` takes the tuple of all numbers.
    """

    words: str
    holds: Callable[[Any], bool]
    together: bool = False


def increasing(least: int) -> Bound:
    """Returns the condition that the numbers of a flag increase, and that there are enough."""
    return Bound(
        f"increasing numbers, {least} or more",
        lambda numbers: len(numbers) >= least and sorted(set(numbers)) == list(numbers),
        together=True,
    )


ABOVE_ZERO = Bound("finite numbers above 0", lambda number: 0 < number < math.inf)
NOT_NEGATIVE = Bound("finite numbers, at least 0", lambda number: 0 <= number < math.inf)
Count = Annotated[int, Bound("whole numbers, at least 1", lambda number: number >= 1)]
Several = Annotated[int, Bound("whole numbers, at least 2", lambda number: number >= 2)]
Natural = Annotated[int, NOT_NEGATIVE]
Positive = Annotated[float, ABOVE_ZERO]
Counts = tuple[Count, ...]
Positives = tuple[Positive, ...]
NotNegative = Annotated[float, NOT_NEGATIVE]
AT_LEAST_1 = Bound("finite numbers, at least 1", lambda number: 1 <= number < math.inf)
Factor = Annotated[float, AT_LEAST_1]
Share = Annotated[float, Bound("shares above 0, at most 1", lambda number: 0 < number <= 1)]
Rate = Annotated[float, Bound("shares of at least 0, below 1", lambda number: 0 <= number < 1)]
SampleSeconds = Annotated[float, NOT_NEGATIVE, OF_SAMPLE]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags that most commands have."""

    seed: Natural = 0
    """Seed of everything random."""
    progress: bool = True
    """Show progress."""
    html: bool = False
    """Also write report.html: curves that can be zoomed, figures, tables and settings."""


@dataclass(frozen=True, kw_only=True)
class Common(Flags):
    """Flags of commands that compute in this process."""

    cache: Cache = None
    log: tuple[Literal["tensorboard", "wandb", "mlflow", "csv", "console"], ...] = ()
    """Write records of the runs during training to the folder logs, or to the console."""


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Flags of commands whose programs are independent of each other, see `run_each`."""

    on: On = None
    jobs: Count | None = None
    """Number of programs that run at the same time with --on."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Flags of commands with a simulated network."""

    latency: NotNegative = 1e-4
    """Seconds of latency of a message, in addition to its transfer."""
    bandwidth: Positive = 1e8
    """Bits per second of a worker's port."""
    cluster: ClusterFile = None


@dataclass(frozen=True, kw_only=True)
class Workers(Switch):
    """Flags of commands with workers on a simulated network, see `tuning.make_cluster`. They are
    equal, except for those of a file.
    """

    compute: SampleSeconds = 1e-4
    """Computation time of one sample, seconds."""
    delay: NotNegative = 0.0
    """Mean of an exponentially distributed random delay of each worker's batch, seconds."""


@dataclass(frozen=True, kw_only=True)
class Tuning(Common, Tasks):
    """Flags of commands that tune step sizes, see `studies.tune`."""

    learning_rates: Positives = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    """Candidate step sizes."""
    seeds: Count = 3
    """Independent runs at each step size."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Flags of commands that train one of several models, see `tuning.make_problem`."""

    model: Literal["logistic", "mlp", "cnn", "resnet-18", "language-model"] = "logistic"
    """Model to train."""
    data: str | None = None
    """Data: digits (default), breast-cancer, or files in --data-dir (mnist, a9a); for the language
    model docstrings (default), grammar, or a path.
    """
    data_dir: DataDir = None
    partition: str | None = None
    """Partition of the samples: iid, by-label (default), dirichlet or another one of
    `problems.split`; for the language model blocks (default) or files.
    """
    alpha: Positive | None = None
    """Concentration of the Dirichlet partitions (default: 0.5); smaller values are more
    heterogeneous.
    """
    workers: Count = 16
    """Number of workers."""
    batch_size: Count = 16
    """Number of samples that each worker draws in a round."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Flags of commands that train on a data set."""

    data: str = "digits"
    """digits, breast-cancer, or images or a LIBSVM file of --data-dir (mnist, a9a; see
    `problems.load`), for logistic regression.
    """
    data_dir: DataDir = None
    batch_size: Count = 16
    """Samples that each worker draws in a round."""


@dataclass(frozen=True)
class Machines:
    """This process among those of a run. Slurm's tasks, mpirun's processes and the pods of an
    indexed Job need no flags.
    """

    coordinator: str | None = None
    """Address host:port of process 0, in a run of several processes; auto: as detected by JAX, for
    example on TPU pods.
    """
    processes: int | None = None
    """Number of processes."""
    process_id: int | None = None
    """Number of this process, from 0; only process 0 prints and writes."""
    lost_after: float = 30.0
    """Seconds without a heartbeat after which a process counts as lost, and the others end."""
    resume: Resume = None


def run(main: Callable[[Any], Any], kind: Any) -> None:
    """Runs a command from its command line, with the flags of `Machines` added: as one of several
    processes, or alone.

    Args:
        main: see `launch`.
        kind: the dataclass of the command's arguments.
    """
    own = [field.name for field in dataclasses.fields(kind)]
    if "processes" in own:  # the command starts processes on this machine itself
        return launch(main, parse(kind))
    flags = (
        "machines",
        Annotated[Machines, tyro.conf.arg(name="")],
        dataclasses.field(default=Machines()),
    )
    both = dataclasses.make_dataclass(kind.__name__, [flags], bases=(kind,), frozen=True)
    both.__doc__ = kind.__doc__
    given = tyro.cli(both, prog=program(kind))
    return launch(main, kind(**{name: getattr(given, name) for name in own}), given.machines)


def parse(kind: type[T], name: str | None = None) -> T:
    """Parses the arguments of a command from its command line, for `launch`.

    Args:
        kind: the dataclass of the arguments.
        name: how the command is called; None: as `program`.
    """
    return tyro.cli(kind, prog=name or program(kind))


def program(kind: type) -> str | None:
    """Returns how the command with these arguments is called, for example
    `python -m experiments.compare`; None: by its path.
    """
    spec = sys.modules[kind.__module__].__spec__
    return f"python -m {spec.name}" if spec else None


def launch(main: Callable[[Any], Any], args: Any, machines: Machines | None = None) -> None:
    """Runs a command. An invalid argument prints one line and exits with status 2, an interruption
    prints one line and exits with status 130, and the loss of another process prints one line and
    exits with status 75; the same command then resumes from the last checkpoint, if there is one.

    Compiled programs of other runs are reused if there is a flag `cache`.

    Args:
        main: function of the command. It writes its results so far when it is interrupted.
        args: its arguments, with `out`; if there is a flag `cluster`, the numbers of that file
            replace those of the flags.
        machines: this process among others; None: it runs alone, however it was started.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # handled like Ctrl-C
    try:
        with ExitStack() as silence:
            args = apply_cluster(expand_home(args))
            check_flags(args)
            if machines:
                runtime.join(
                    machines.coordinator,
                    machines.processes,
                    machines.process_id,
                    lost_after=machines.lost_after,
                )
            if getattr(args, "on", None) is not None:
                require_alone(args)
            mine = args if agreement.process_index() == 0 else silence.enter_context(_silent(args))
            if hasattr(args, "cache"):
                cache.enable(args.cache)
            if not getattr(mine, "progress", True):
                os.environ["TQDM_DISABLE"] = "1"
            logging.getLogger(programs.__name__).setLevel(logging.ERROR)  # it suggests sweeps
            if getattr(args, "html", False):
                optional.load("--html", "bokeh", "report")
            kept = resumes(machines) or getattr(args, "on", None) is not None
            with (
                resuming.log_runs(mine.out, getattr(args, "log", ())),
                resuming.keep_checkpoints(mine.out, kept),
            ):
                main(mine)
    except KeyboardInterrupt as stopped:
        _end(f"Interrupted: what was done until then is in {args.out}.", 130, stopped)
    except (heartbeat.PeerLost, agreement.PeerFailed) as error:
        _end(f"Error: {error}", heartbeat.STATUS, error)
    except (ValueError, OSError, ImportError, dsgd.Diverged) as error:
        if not is_refusal(error):
            raise
        _end(f"Error: {' '.join(str(error).split())}", 2, error)
    finally:
        signal.signal(signal.SIGTERM, before)


def resumes(machines: Machines | None) -> bool:
    """Returns whether runs keep checkpoints."""
    if machines is None or machines.resume is None:
        return agreement.process_count() > 1
    return machines.resume


def require_alone(args: Any) -> None:
    """Raises a ValueError if `--on` is given with flags that need all runs in this process."""
    if getattr(args, "log", ()):
        raise ValueError("--log with --on: runs of other processes are not logged; pass one")
    if agreement.process_count() > 1:
        raise ValueError(
            f"--on {args.on} in one of {agreement.process_count()} processes; expected a single "
            "process, which starts the others"
        )


def expand_home(args: Any) -> Any:
    """Returns the arguments with the home folder in place of `~`, which a shell does not expand in
    `--out=~/results`.
    """
    paths = {name: value for name, value in vars(args).items() if isinstance(value, Path)}
    return dataclasses.replace(
        args,
        **{
            name: records.user_path(f"--{name.replace('_', '-')}", path)
            for name, path in paths.items()
        },
    )


def apply_cluster(args: Any) -> Any:
    """Returns the arguments with the numbers of the file `cluster` if it is given; otherwise the
    arguments unchanged.

    Raises:
        ValueError: if the file contains no cluster, a number is given both in the file and by its
            flag, or the workers are unequal in a command without the flags `Workers`.
    """
    path = getattr(args, "cluster", None)
    # None, or the name of a cluster in a command with built-in clusters
    if not isinstance(path, Path):
        return args
    found = clusters.load(path)
    if (found.groups or found.nodes) and not issubclass(type(args), Workers):
        raise ValueError(
            f"--cluster {path}: the file has {'groups' if found.groups else 'nodes'}; expected "
            "equal workers, each on its own machine, for this command (compare, availability and "
            "plan accept others)"
        )
    numbers = {"latency": found.latency, "bandwidth": found.bandwidth}
    flags = {field.name: field.default for field in dataclasses.fields(args)}
    if "compute" in flags and (found.compute or found.per_sample):
        of_sample = OF_SAMPLE in getattr(
            get_type_hints(type(args), include_extras=True)["compute"], "__metadata__", ()
        )
        gradient = found.compute + args.batch_size * found.per_sample
        numbers["compute"] = gradient / args.batch_size if of_sample else gradient
    for name in numbers:
        if getattr(args, name) != flags[name]:
            raise ValueError(
                f"--{name} {getattr(args, name):g} and --cluster {path}: both set it; "
                "pass only one of the two"
            )
    return dataclasses.replace(args, **numbers)


def _end(words: str, status: int, error: BaseException) -> None:
    """Ends the command, with a message for users and a status for other processes."""
    runtime.leave(words, status)
    print(words, file=sys.stderr)
    raise SystemExit(status) from error


@contextmanager
def _silent(args: Any) -> Iterator[Any]:
    """Returns arguments with which a command computes the same as in process 0, but prints nothing
    and writes to a temporary folder.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    unseen = {"progress": False} if hasattr(args, "progress") else {}
    try:
        with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            yield dataclasses.replace(args, out=Path(folder), **unseen)
            sys.stdout.flush()
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def check_flags(args: Any) -> None:
    """Raises a ValueError if a number is outside the bounds of its flag, or a flag has no
    values.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    for name, annotation in get_type_hints(type(args), include_extras=True).items():
        value, flag = getattr(args, name), f"--{name.replace('_', '-')}"
        if value == () and defaults[name] != ():
            raise ValueError(f"{flag}: expected at least one value")
        numbers = [
            number
            for number in (value if isinstance(value, tuple) else (value,))
            if number is not None
        ]
        for bound in bounds(annotation):
            if not (bound.holds(value) if bound.together else all(map(bound.holds, numbers))):
                raise ValueError(f"{flag} {value}: expected {bound.words}")


def bounds(annotation: Any) -> Iterator[Bound]:
    """Yields all bounds in an annotation such as that of `tuple[Count, ...] | None`."""
    if isinstance(annotation, Bound):
        yield annotation
    for part in get_args(annotation):
        yield from bounds(part)


def is_refusal(error: BaseException) -> bool:
    """Returns whether an error concerns the user's input: a missing file, or an error that this
    project raises itself.
    """
    if isinstance(error.__cause__, RemoteTraceback):
        module = error.__cause__.module
    else:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        module = frame.f_globals.get("__name__", "")
    return isinstance(error, OSError) or module.split(".")[0] in (
        "__main__",
        "dsgd",
        "topologies",
        "algorithms",
        "theory_checks",
        "experiments",
    )


def begin(args: Any, problems: Iterable[dsgd.Problem] = ()) -> None:
    """Creates the folder of results, and writes the configuration and the environment to it before
    the run starts, so that mistakes are reported immediately.

    Args:
        args: the command's arguments.
        problems: the problems, which are described in the configuration.

    Raises:
        ValueError: if the folder contains results of another configuration.
    """
    path, chosen = args.out / "config.json", dataclasses.asdict(args)
    if path.exists() and any(other != path for other in args.out.iterdir()):
        refuse_others(args.out, path, chosen)
    versions = {
        "dsgd": dsgd.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    run: dict[str, Any] = {"command": shlex.join(sys.orig_argv), "device": device, **versions}
    run["problems"] = list(dict.fromkeys(map(repr, problems)))
    records.write_json(path, {**chosen, "run": run})


def refuse_others(out: Path, path: Path, chosen: dict[str, Any]) -> None:
    """Raises a ValueError if the configuration in a file differs, except for the folder of the
    results and the display of the run.
    """
    mine = json.loads(json.dumps(records.finite(chosen), default=str))
    try:
        there = json.loads(path.read_text())
    except ValueError:
        there = {}
    free = ("out", "progress", "cache", "data_dir", "html", "log", "on", "jobs", "coordinator")
    if there.keys() - {"run"} != mine.keys():
        origin = "another script, or of another version of it"
    elif others := [
        f"{name} = {there[name]}, not {mine[name]}"
        for name in mine
        if name not in free and there[name] != mine[name]
    ]:
        origin = f"another configuration ({'; '.join(others)})"
    else:
        return
    raise ValueError(
        f"{out} contains results of {origin}; pass another folder (--out), or remove this one"
    )


def finish(args: Any, sheets: Mapping[str, Figure], made: Mapping[str, Table]) -> None:
    """Writes figures and tables to the folder of results, prints the tables, and lists the files.

    Args:
        args: the command's arguments.
        sheets: figures by the name of their file.
        made: tables by the name of their file.
    """
    screen = tables.console()
    for name, sheet in sheets.items():
        plots.save(sheet, args.out / f"{name}.png")
    for name, table in made.items():
        tables.show(screen, table, args.out / f"{name}.csv")
    if getattr(args, "html", False):
        name = (program(type(args)) or type(args).__module__).rpartition("experiments.")[2]
        page.write_report(args.out, name)
    files = sorted(path.name for path in args.out.iterdir() if path.is_file())
    screen.print(f"Written: {args.out}/{', '.join(files)}", soft_wrap=True)


def collect(
    args: Any,
    what: str,
    cases: Mapping[K, T],
    run: Callable[[T], V | None],
    write: Callable[[Path, dict[K, V]], None],
    path: Path,
) -> dict[K, V]:
    """Runs the cases with a progress bar, see `run_each`, and writes the results, also if a run
    fails or is interrupted.

    Args:
        args: a command's arguments.
        what: label of the progress bar.
        cases: by the keys of the results; two keys with one case share its result.
        run: case -> its result; None, if it diverged, leaves the case out.
        write: (path, results) -> None.
        path: the file or folder that is written.

    Returns:
        The results by key.

    Raises:
        ValueError: if all cases are left out.
    """
    each = {id(case): case for case in cases.values()}
    found: dict[int, V] = {}

    def by_key() -> dict[K, V]:
        return {key: found[id(case)] for key, case in cases.items() if id(case) in found}

    with keep(lambda path, _: write(path, by_key()), path, found):
        for i, result in run_each(args, what, run, [*each.values()]):
            if result is not None:
                found[[*each][i]] = result
    if not found:
        raise ValueError(
            f"{what}: all runs diverged at every step size of {args.learning_rates}; pass "
            "smaller ones (--learning-rates)"
        )
    return by_key()


def run_each(
    args: Any,
    what: str,
    function: Callable[[Any], Any],
    items: Sequence[Any],
    screen: Console | None = None,
) -> Iterable[tuple[int, Any]]:
    """Yields the index and the result of each item as soon as it is known, with a progress bar: in
    this process, or where `--on` says. Then finished results are kept until the command ends.

    Args:
        args: a command's arguments.
        what: label of the progress bar.
        function: item -> result.
        items: its arguments.
        screen: the terminal on which the caller prints lines; None: there are none.
    """
    on, jobs = getattr(args, "on", None), getattr(args, "jobs", None)
    folder = None if on is None else resuming.next_folder()
    done = tasks.completed(what, function, items, on=on, jobs=jobs, folder=folder)
    shown = args.progress if screen is None else screen.is_terminal
    return tables.bar(done, what, shown, len(items), screen)


def waiting(args: Any, what: str) -> AbstractContextManager[Any]:
    """Shows in the terminal that the block is running, unless --no-progress is given."""
    return tables.console().status(what) if args.progress else nullcontext()


def require_slow(slow: int, workers: int) -> None:
    """Raises a ValueError if `--slow` is not a number of workers, or all of them."""
    if not 0 <= slow < workers:
        raise ValueError(
            f"--slow {slow} of {workers} workers: expected at least 0, and fewer than all"
        )


def require_known(flag: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises a ValueError if a flag has a name that is not known."""
    if unknown := [name for name in given if name not in known]:
        raise ValueError(f"{flag} {' '.join(unknown)}: expected some of {', '.join(known)}")


@contextmanager
def keep(write: Callable[[Path, Any], None], path: Path, found: Sized) -> Iterator[None]:
    """Context at whose end the results that its block has collected are written, also if the block
    fails or is interrupted.

    Args:
        write: (path, found) -> None.
        path: the file or folder.
        found: filled by the block; nothing is written if it is empty.
    """
    try:
        yield
    finally:
        if len(found):
            write(path, found)


def keep_rows(
    path: Path, heading: Sequence[str], rows: Collection[Sequence[Any]]
) -> AbstractContextManager[None]:
    """Returns a context at whose end the rows that its block has collected are written to a CSV
    file, also if the block fails; see `keep`.
    """
    return keep(lambda path, rows: records.write_rows(path, heading, rows), path, rows)
