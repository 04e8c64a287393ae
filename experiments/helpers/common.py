"""What the scripts share: how they start and end, statistics over seeds, figures, and the house style."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import shlex
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import LogLocator, NullFormatter
from rich.console import Console
from rich.progress import track

import dsgd
from dsgd import cache, clusters, records

DataDir = Annotated[Path | None, tyro.conf.arg(help="Folder with the files of mnist or cifar-10 as published.")]
Cache = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="{off}|PATH",
        help=f"Folder of compiled programs, for the next run to find; by default {cache.VARIABLE} in the environment, or the user's cache.",
    ),
]

SHARE = 0.5  # of a run, from its end, that decides between step sizes

# Okabe and Ito's colours, told apart by all common kinds of colour blindness; line styles differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))


# What numbers on command lines need to be, by flag; what depends on other flags, scripts check themselves.
COUNTS = ("workers", "batch_size", "steps", "exact_steps", "rounds", "seeds", "repeats", "problems", "dimension", "dimensions", "sizes")
COUNTS += ("fixed_steps", "longest_run", "run_workers")
POSITIVE = ("learning_rates", "exact_learning_rate", "target", "bandwidth", "seconds", "alpha", "alphas", "factor")
NOT_NEGATIVE = ("seed", "latency", "compute", "delay", "l2", "exact_l2")


def launch(main: Callable[[Any], Any], args: Any) -> None:
    """Runs a script from its command line: what the user got wrong is one line and status 2, an interruption one line and status 130.

    Programs that other runs have compiled are at hand, where there is a flag `cache`.

    Args:
        main: of the script. It writes what it has when it is interrupted.
        args: its arguments, with `out`.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        check_flags(args)
        if hasattr(args, "cache"):
            cache.enable(args.cache)
        main(args)
    except KeyboardInterrupt:
        print(f"Interrupted: what was done until then is in {args.out}.", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError, dsgd.Diverged) as error:
        if not is_refusal(error):
            raise
        print(f"Error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    finally:
        signal.signal(signal.SIGTERM, before)


def check_flags(args: Any) -> None:
    """Raises a ValueError where a flag has a number that makes no sense, or nothing at all."""
    for name, value in vars(args).items():
        values = value if isinstance(value, tuple) else (value,)
        flag = f"--{name.replace('_', '-')}"
        if not values and name != "sizes":  # without larger models there is less to time
            raise ValueError(f"{flag}: need at least one")
        if name in COUNTS and not all(number >= 1 for number in values):
            raise ValueError(f"{flag} {value}: need whole numbers, at least 1")
        if name in POSITIVE and not all(number is None or 0 < number < math.inf for number in values):
            raise ValueError(f"{flag} {value}: need finite numbers above 0")
        if name in NOT_NEGATIVE and not all(0 <= number < math.inf for number in values):
            raise ValueError(f"{flag} {value}: need finite numbers, at least 0")


def is_refusal(error: BaseException) -> bool:
    """Whether it is about what the user asked for: a missing file, or an error that this project raises itself, and no library."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    room = frame.f_globals.get("__name__", "").split(".")[0]
    return isinstance(error, OSError) or room in ("__main__", "dsgd", "topologies", "algorithms", "theory_checks", "experiments")


def begin(args: Any) -> None:
    """Makes the folder of results, and writes there what is run, and on what; before the work, so that what cannot be is told at once.

    Args:
        args: a script's arguments.

    Raises:
        ValueError: the folder has results of another configuration.
    """
    path, chosen = args.out / "config.json", dataclasses.asdict(args)
    if path.exists() and any(other != path for other in args.out.iterdir()):
        refuse_others(args.out, path, chosen)
    versions = {"dsgd": dsgd.__version__, "jax": jax.__version__, "python": platform.python_version()}
    device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    records.write_json(path, {**chosen, "run": {"command": shlex.join(sys.orig_argv), "device": device, **versions}})


def refuse_others(out: Path, path: Path, chosen: dict[str, Any]) -> None:
    """Raises a ValueError where the configuration in a file is another one, but for where results go and how a run looks."""
    mine = json.loads(json.dumps(chosen, default=str))
    try:
        there = json.loads(path.read_text())
    except ValueError:
        there = {}
    free = ("out", "progress", "cache", "data_dir")
    if there.keys() - {"run"} != mine.keys():
        whose = "another script, or of another version of it"
    elif others := [f"{name} = {there[name]}, not {mine[name]}" for name in mine if name not in free and there[name] != mine[name]]:
        whose = f"another configuration ({'; '.join(others)})"
    else:
        return
    raise ValueError(f"{out} has results of {whose}: need another folder (--out), or that one removed")


@contextmanager
def kept(write: Callable[[Path, Any], None], path: Path, found: Sized) -> Iterator[None]:
    """At the end of the block, also where it fails or is interrupted, what was found by then is written.

    Args:
        write: (path, found) -> None.
        path: where to.
        found: what the block fills; nothing is written where it is empty.
    """
    try:
        yield
    finally:
        if len(found):
            write(path, found)


def console() -> Console:
    """The terminal; 80 columns where there is none."""
    return Console(width=None if os.environ.get("COLUMNS") or Console().is_terminal else 80)


class Tuned(NamedTuple):
    """A method at its best step size. `history` is of all seeds, `[seeds, records]`."""

    learning_rate: float
    history: dict[str, np.ndarray]


def tune(
    build: Callable[..., dsgd.Algorithm],
    problem: dsgd.Problem,
    learning_rates: Sequence[float],
    *,
    steps: int,
    seeds: int,
    seed: int,
    progress: bool,
    cluster: clusters.Cluster | None = None,
) -> Tuned | None:
    """The history at the step size with the smallest loss over the second half of the run; None where every one diverged.

    Args:
        build: (learning_rate) -> method.
        problem: on whose workers it runs, spread over as many devices as divide them.
        learning_rates: to choose from.
        steps, seeds: rounds, and independent runs.
        seed: of everything random.
        progress: show a bar.
        cluster: whose clock is in the history.
    """
    sweep = dsgd.sweep(
        build,
        problem,
        steps=steps,
        key=jax.random.key(seed),
        seeds=seeds,
        cluster=cluster,
        record_every=max(1, steps // 200),
        mesh=devices_for(problem.workers),
        progress=progress,
        learning_rate=learning_rates,
    )
    if not np.isfinite(dsgd.tail_mean(sweep.history["loss"], SHARE)).all(axis=-1).any():
        return None
    best = sweep.best(share=SHARE)
    return Tuned(sweep.point(best)["learning_rate"], sweep.at(best))


def devices_for(workers: int) -> jax.sharding.Mesh:
    """As many of the devices as divide the workers."""
    return dsgd.workers.mesh(max(d for d in range(1, len(jax.devices()) + 1) if workers % d == 0))


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and its standard error, `[seeds, ...]` to two `[...]`; the error of one seed is 0."""
    seeds = values.shape[0]
    error = values.std(axis=0, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.zeros(values.shape[1:])
    return values.mean(axis=0), error


def with_error(values: np.ndarray) -> str:
    """The mean over seeds, `[seeds]`, and its standard error where there are several."""
    middle, error = mean_and_error(values)
    return f"{middle:.1f} ± {error:.1f}" if len(values) > 1 else f"{middle:.1f}"


def runs(seeds: int) -> str:
    """How many, for titles."""
    return f"{seeds} seeds" if seeds > 1 else "one seed"


def errors(what: str, seeds: int) -> str:
    """What bands, or bars, are, for titles; one seed has none."""
    return f"{what}: standard error over {seeds} seeds" if seeds > 1 else runs(seeds)


def first_reaching(values: np.ndarray, target: float) -> int | None:
    """Index of the first record whose mean over seeds is at most the target; None where there is none."""
    reached = np.flatnonzero(values.mean(axis=0) <= target)
    return int(reached[0]) if reached.size else None


def bar(items: Sequence[Any], what: str, shown: bool) -> Iterable[Any]:
    """The items, with a progress bar that goes when they are done."""
    return track(items, what, disable=not shown, transient=True)


def program(function: Callable, *args: Any) -> Callable[[], Any]:
    """The compiled function of these arguments, run once, as a function that waits for its result.

    The result takes the place of the last one: in fresh memory a large array would cost ten times as much, for its pages.
    """
    out = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, *args))
    compiled = jax.jit(lambda out, *args: function(*args), donate_argnums=0, keep_unused=True).lower(out, *args).compile()

    def run():
        nonlocal out
        out = jax.block_until_ready(compiled(out, *args))
        return out

    run()
    return run


def seconds(run: Callable[[], Any]) -> float:
    """That one call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def draw_lines(axes: Axes, lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """One line a method, with a band of one standard error over seeds.

    Args:
        axes: where to.
        lines: (x `[records]`, y `[seeds, records]`) by method; the n-th method always has the n-th colour and style. Where the x axis
            is logarithmic, what cost nothing has no place on it.
    """
    for i, (label, (cost, y)) in enumerate(lines.items()):
        on_axis = cost > (0 if axes.get_xscale() == "log" else -np.inf)
        if not on_axis.any():
            continue
        x, (middle, error) = cost[on_axis], mean_and_error(y[:, on_axis])
        colour, style = COLOURS[i % len(COLOURS)], STYLES[(i + i // len(COLOURS)) % len(STYLES)]
        axes.plot(x, middle, color=colour, linestyle=style, linewidth=1.8, label=label)
        axes.fill_between(x, middle - error, middle + error, color=colour, alpha=0.2, linewidth=0)


def figure(columns: int, rows: int = 1, *, width: float = 4.2, height: float = 3.6) -> tuple[Figure, np.ndarray]:
    """Panels in the house style with one y axis, row by row."""
    sheet = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return sheet, panels(sheet, columns, rows)


def panels(sheet: FigureBase, columns: int, rows: int = 1, *, sharey: bool | Literal["row"] = True) -> np.ndarray:
    """Panels in the house style on a figure or a part of one, row by row."""
    style: dict[Any, Any] = {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        return sheet.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()


def save_figure(sheet: Figure, path: Path) -> None:
    """As PNG, atomically."""
    with records.replacing(path) as temporary:
        sheet.savefig(temporary, dpi=150)


def title(sheet: Figure, text: str) -> None:
    """A title above all panels, each of its lines wrapped."""
    width = round(11 * sheet.get_figwidth())
    sheet.suptitle("\n".join(textwrap.fill(line, width) for line in text.splitlines()), fontsize=11)


def plain_log(axis: Axis) -> None:
    """A logarithmic axis with a few plain numbers: 0.1, 0.3, 1, ..."""
    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
