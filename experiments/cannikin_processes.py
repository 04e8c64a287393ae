"""Cannikin in real time: processes on this machine with artificially different speeds, whose
learned model predicts the time of splits that it has not measured.

    python -m experiments.cannikin_processes --competitors 0 2

Each process is pinned to a core; on some cores other processes compute all the time, so that the
training process gets only a share. A network on digits is trained while the processes measure their
timings. The cluster's model is learned from one epoch with equal parts and one with equation 8's
parts. It computes the optimal split, and predicts the time of it, of equal parts, and of some other
splits. Then all of them are measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

import dsgd
from algorithms import cannikin
from algorithms.cannikin.policies import equal_parts, whole
from dsgd import plots, problems, records
from experiments.cannikin import competitors
from experiments.shared import commands, figures, statistics, tables

# epoch of equal parts that is not counted: the first rounds of processes take longer than all later
# ones
WARM = 1
# epochs from which the first model is learned: one with equal parts and one with equation 8's
LEARNED = 2
Part = Annotated[float, commands.Bound("shares above 0, below 1", lambda number: 0 < number < 1)]
_SMALLEST = 0.02  # smallest share of the first process in the drawn curve of splits


@dataclass(frozen=True)
class Args(commands.Flags):
    """Compares predicted and measured seconds of processes."""

    competitors: tuple[commands.Natural, ...] = (0, 2)
    """For each process, the number of others that always compute on its core; the number of entries
    is the number of processes, at most that of the cores.
    """
    nice: int = 0
    """Niceness of these competitors, 0 to 19: with 0 a process gets the same share of its core as
    each of them, with 5 three times as much.
    """
    total: commands.Count = 1920
    """B, number of samples of a round."""
    shares: tuple[Part, ...] = (0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
    """Shares of the first process in the measured splits; the others share the rest equally."""
    piece: commands.Count = 16
    """Granularity of batches, in samples."""
    rounds: commands.Count = 20
    """Number of rounds of each epoch."""
    passes: commands.Count = 4
    """Number of epochs of each split; each pass has its own order."""
    width: commands.Count = 1000
    """Width of both hidden layers of the network; a larger one makes samples slower."""
    learning_rate: commands.Positive = 0.1
    """Step size of SGD."""
    out: Path = Path("results/cannikin_processes")
    """Folder for config.json, epochs.csv and figure.png."""


def main(args: Args) -> None:
    check(args)
    commands.begin(args)
    epochs = WARM + LEARNED + args.passes * (len(args.shares) + 2)
    with commands.waiting(args, f"{len(args.competitors)} processes, {epochs} epochs"):
        trials = train(args)
    write(args.out / "epochs.csv", trials)
    judged = judge(trials, args.passes)
    shown = {
        "splits": tabulate(args, judged),
        "gain": tabulate_gain(trials, judged),
        "model": tabulate_model(args, trials),
    }
    commands.finish(args, {"figure": draw(args, trials, judged)}, shown)


class Trial(NamedTuple):
    """Results of an epoch: samples of each process, int `[N]`, the measurements, and seconds of a
    round.
    """

    seen: cannikin.Observation
    batch_time: float


def check(args: Args) -> None:
    """Raises a ValueError if the arguments cannot be run, or leave nothing to compare."""
    if len(args.competitors) < 2:
        raise ValueError(
            f"--competitors {args.competitors}: expected at least two numbers, one for each process"
        )
    if not 0 <= args.nice <= 19:
        raise ValueError(f"--nice {args.nice}: expected 0 to 19")
    least = 2 * args.piece * len(args.competitors)
    if args.total < least:
        raise ValueError(
            f"--total {args.total}: expected at least {least}, two pieces for each process"
        )
    competitors.cores()


def split(share: float, N: int, total: int) -> np.ndarray:
    """Returns batches of which the first process has this share, and the others equal shares of the
    rest.
    """
    parts = np.array([share] + (N - 1) * [(1 - share) / (N - 1)])
    return whole(total * parts, total, np.full(N, total))


def train(args: Args) -> list[Trial]:
    """Starts and ends the processes; raises a ChildProcessError if one fails."""
    with competitors.competing(args.competitors, args.nice) as cores:
        return dsgd.run_local_processes(len(cores), partial(_train, args, cores), timeout=math.inf)[
            0
        ]


def _train(args: Args, cores: list[int]) -> list[Trial]:
    """Runs in each process."""
    competitors.stay_on(cores[jax.process_index()])
    N, log = len(cores), list[cannikin.Observation]()
    model, key = problems.MLP(10, (args.width, args.width)), jax.random.key(args.seed)
    problem = problems.neural_network(model, workers=N, batch_size=args.piece, seed=args.seed)
    trained = cannikin.train_processes(
        problem,
        optax.sgd(args.learning_rate),
        touring(args, log),
        epochs=WARM + LEARNED + args.passes * (len(args.shares) + 2),
        key=key,
        micro_batches=-(-args.total // args.piece),
        samples=args.rounds * args.total,
    )
    return [Trial(seen, epoch.batch_time) for seen, epoch in zip(log, trained.epochs, strict=True)][
        WARM:
    ]


class _Tour(NamedTuple):
    """State of a tour: the epoch, Cannikin's state, and the remaining splits."""

    epoch: int
    inner: Any
    ahead: tuple[np.ndarray, ...]


def touring(args: Args, log: list[cannikin.Observation]) -> cannikin.System:
    """Returns a system that first makes Cannikin's first epochs, and then measures equal parts,
    Cannikin's optimum, and the splits, in passes with their own order.

    Args:
        args: the command's arguments.
        log: receives the measurements of each epoch.
    """
    N = len(args.competitors)
    inner, limits = cannikin.cannikin(args.total), np.full(N, args.total)

    def decide(memory):
        if memory.epoch < WARM:
            return equal_parts(args.total, limits), memory
        if memory.epoch < WARM + LEARNED:
            batches, after = inner.decide(memory.inner)
            return batches, memory._replace(inner=after)
        if memory.epoch == WARM + LEARNED:
            memory = memory._replace(ahead=tuple(_passes(args, inner.decide(memory.inner)[0])))
        return memory.ahead[0], memory._replace(ahead=memory.ahead[1:])

    def observe(memory, seen):
        log.append(seen)
        known = (
            inner.observe(memory.inner, seen)
            if WARM <= memory.epoch < WARM + LEARNED
            else memory.inner
        )
        return memory._replace(epoch=memory.epoch + 1, inner=known)

    def resize(memory, stay, joined, limits):
        raise AssertionError(f"{N} processes stay")

    return cannikin.System(
        lambda cluster: _Tour(0, inner.start(cluster), ()), decide, observe, resize, "a tour"
    )


def _passes(args: Args, best: np.ndarray) -> list[np.ndarray]:
    """Returns passes that each contain all splits, shuffled."""
    N, rng = len(args.competitors), np.random.default_rng(args.seed)
    each = [
        equal_parts(args.total, np.full(N, args.total)),
        best,
        *(split(share, N, args.total) for share in args.shares),
    ]
    return [each[i] for _ in range(args.passes) for i in rng.permutation(len(each))]


# --- The models learned from the measurements.


def learn_model(trials: Sequence[Trial]) -> cannikin.ClusterModel:
    """Returns the cluster's model learned from these epochs."""
    known = cannikin.learner(len(trials[0].seen.batches), 1.0)
    for seen, _ in trials:
        known = known.observe(
            seen.batches, seen.compute, seen.backward, seen.first, seen.communication
        )
    model = known.model()
    if model is None:
        raise ValueError(
            "the model needs two batch sizes of each process; expected more samples (--total), or "
            "other splits (--shares)"
        )
    return model


class Judged(NamedTuple):
    """A split: samples of each process, mean seconds of a round in each pass, and the
    predictions of the model of the first two epochs and of the model of all epochs except its own.
    """

    batches: np.ndarray
    measured: np.ndarray
    first: float
    others: float

    def errors(self) -> tuple[float, float]:
        """Returns the relative errors of both predictions of the mean measured time."""
        mean = self.measured.mean()
        return self.first / mean - 1, self.others / mean - 1


def judge(trials: Sequence[Trial], passes: int) -> list[Judged]:
    """Returns all splits of the tour, in the order of the first process's samples. A pass has a
    split more than once if OptPerf, equal parts or the given shares agree.
    """
    early, tour = learn_model(trials[:LEARNED]), trials[LEARNED:]
    found = []
    for sizes in dict.fromkeys(tuple(trial.seen.batches.tolist()) for trial in tour):
        own = [tuple(trial.seen.batches.tolist()) == sizes for trial in trials]
        others = learn_model([trial for trial, mine in zip(trials, own, strict=True) if not mine])
        times = [trial.batch_time for trial in tour if tuple(trial.seen.batches.tolist()) == sizes]
        batches, by_pass = np.array(sizes), np.reshape(times, (passes, -1)).mean(axis=1)
        found.append(
            Judged(batches, by_pass, early.batch_time(batches), others.batch_time(batches))
        )
    return sorted(found, key=lambda judged: judged.batches[0])


def family(model: cannikin.ClusterModel, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a curve of splits: shares of the first process, and seconds of a round in which the
    others share the rest equally.
    """
    shares, N = np.linspace(_SMALLEST, 1 - _SMALLEST, 200), model.nodes
    parts = np.column_stack([shares, *(N - 1) * [(1 - shares) / (N - 1)]])
    return shares, model.batch_time(total * parts)


def write(path: Path, trials: list[Trial]) -> None:
    """Writes one row per epoch: samples of each process, seconds of a round, and means of the
    measurements.
    """
    N, names = len(trials[0].seen.batches), ("compute", "backward", "communication")
    heading = (
        "epoch",
        "batch_time",
        *(f"{name}[{n}]" for name in ("batches", *names) for n in range(N)),
    )

    def rows():
        for epoch, (seen, seconds) in enumerate(trials):
            means = np.concatenate([getattr(seen, name).mean(axis=0) for name in names])
            yield [epoch, f"{seconds:.6g}", *seen.batches, *(f"{mean:.6g}" for mean in means)]

    records.write_rows(path, heading, rows())


def describe(args: Args) -> str:
    """Describes the processes, for titles."""
    others = ", ".join(map(str, args.competitors))
    return f"{len(args.competitors)} processes; others on their cores: {others}"


def name_of(judged: Judged, trials: list[Trial]) -> str:
    """Returns the name of the split, if it has one."""
    if (judged.batches == trials[0].seen.batches).all():
        return "equal parts"
    return "OptPerf" if (judged.batches == best_of(trials)).all() else ""


def best_of(trials: list[Trial]) -> np.ndarray:
    """Returns the optimum of the first model."""
    total = int(trials[0].seen.batches.sum())
    return learn_model(trials[:LEARNED]).optperf_integer(total).batches


def tabulate(args: Args, judged: list[Judged]) -> Table:
    """Tabulates the splits with measured and predicted times."""
    table = tables.table(
        f"{describe(args)},\n{args.total} samples a round",
        ("samples", "measured, ms", "from two", "error, %", "from others", "error, %"),
        f"measured: the mean over {args.passes} epochs of {args.rounds} rounds, ± half-width of "
        "its 95 % interval.\nPredicted by the model of the first two epochs (with equal parts, "
        "and with\nequation 8), and by the model of all epochs with other splits.",
    )
    for each in judged:
        errors = (f"{100 * error:+.1f}" for error in each.errors())
        cells = [f"{1e3 * each.first:.1f}", next(errors), f"{1e3 * each.others:.1f}", next(errors)]
        table.add_row(
            " + ".join(map(str, each.batches)),
            statistics.format_with_interval(1e3 * each.measured, 1),
            *cells,
        )
    sizes = np.abs([each.errors() for each in judged])
    table.add_section()
    for words, numbers in (("mean |error|", sizes.mean(axis=0)), ("largest", sizes.max(axis=0))):
        first, others = (f"{100 * number:.1f}" for number in numbers)
        table.add_row(words, "", "", first, "", others)
    return table


def tabulate_gain(trials: list[Trial], judged: list[Judged]) -> Table:
    """Tabulates the gain of OptPerf over equal parts, predicted and measured."""
    of = {name_of(each, trials): each for each in judged}
    table = tables.table(
        "OptPerf compared with equal parts",
        ("", "expected", "measured"),
        "± half-width of the 95 % interval over passes.",
    )
    for name in ("equal parts", "OptPerf"):
        if name in of:
            words = f"{name}, {' + '.join(map(str, of[name].batches))}, ms"
            table.add_row(
                words,
                f"{1e3 * of[name].first:.1f}",
                statistics.format_with_interval(1e3 * of[name].measured, 1),
            )
    if len(of.keys() & {"equal parts", "OptPerf"}) == 2:
        equal, best = of["equal parts"], of["OptPerf"]
        measured = statistics.format_with_interval(100 * (1 - best.measured / equal.measured), 1)
        table.add_row("less time, %", f"{100 * (1 - best.first / equal.first):.1f}", measured)
    return table


def tabulate_model(args: Args, trials: list[Trial]) -> Table:
    """Tabulates the parameters of each process learned from all epochs."""
    model = learn_model(trials)
    table = tables.table(
        "model of all epochs",
        ("process", "others", "q, us", "s, ms", "k, us", "m, ms"),
        "a = q b + s before the backward pass, P = k b + m in it; T_comm "
        f"{1e3 * (model.t_overlap + model.t_last):.1f} ms.",
        left=0,
    )
    for n, count in enumerate(args.competitors):
        numbers = (1e6 * model.q[n], 1e3 * model.s[n], 1e6 * model.k[n], 1e3 * model.m[n])
        table.add_row(str(n), str(count), *(f"{number:.1f}" for number in numbers))
    return table


def draw(args: Args, trials: list[Trial], judged: list[Judged]) -> Figure:
    """Draws the seconds of a round against the split, and of each process against its samples."""
    sheet, (splits, each) = plots.figure(2, width=figures.WIDTH / 2, height=3.8, sharey=False)
    draw_splits(args, splits, trials, judged)
    model, hollow = learn_model(trials[:LEARNED]), {"markersize": 7, "markerfacecolor": "none"}
    for n, count in enumerate(args.competitors):
        colour = plots.COLOURS[n]
        label = f"process {n}, {count} other{'s' * (count != 1)} on its core"
        sizes = np.array([trial.seen.batches[n] for trial in trials])
        ms = 1e3 * np.array([trial.seen.compute[:, n].mean() for trial in trials])
        each.plot(sizes[LEARNED:], ms[LEARNED:], ".", color=colour, markersize=5, label=label)
        each.plot(sizes[:LEARNED], ms[:LEARNED], "s", color=colour, **hollow)
        ends = np.array([0, sizes.max()])
        line = 1e3 * ((model.q[n] + model.k[n]) * ends + model.s[n] + model.m[n])
        each.plot(ends, line, color=colour, linewidth=1.2)
    each.plot([], [], "ks", label="the first two epochs, and their fit", **hollow)
    each.set(xlim=(0, None), ylim=(0, None))
    x, y = "samples of the process", "ms of computation in a round"
    figures.describe(each, x, y, legend=True)
    figures.title(sheet, f"{describe(args)}, {args.total} samples a round")
    return sheet


def draw_splits(args: Args, axes: Axes, trials: list[Trial], judged: list[Judged]) -> None:
    """Draws the seconds over the first process's share; the others share the rest equally, except
    in OptPerf's split with more than two processes.
    """
    for line, words, of in (("--", "two", trials[:LEARNED]), ("-", "all", trials)):
        shares, seconds = family(learn_model(of), args.total)
        look = {"color": "black", "linewidth": 1.2, "linestyle": line}
        axes.plot(100 * shares, 1e3 * seconds, label=f"model of {words} epochs", **look)
    blue, red, green = plots.COLOURS[:3]
    colours = {"": blue, "equal parts": red, "OptPerf": green}
    # named splits are drawn on top
    for each in sorted(judged, key=lambda each: name_of(each, trials)):
        name = name_of(each, trials)
        at, values = 100 * each.batches[0] / args.total, 1e3 * each.measured
        look = {"color": colours[name], "markersize": 4, "alpha": 0.5}
        axes.plot(np.full(len(values), at), values, ".", **look)
        figures.points(axes, [at], [values], color=colours[name], label=name or None)
    axes.set(
        xlabel="share of the first process, %",
        ylabel="ms of a round",
        xlim=(0, 100),
        ylim=(0, 1.15e3 * max(e.measured.max() for e in judged)),
    )
    axes.legend(frameon=False, fontsize="small")


if __name__ == "__main__":
    commands.launch(main, commands.parse(Args))
