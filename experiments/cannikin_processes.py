"""Cannikin on the real clock: processes of this machine, made unequal, whose model says how long a split takes that it has not seen.

    python -m experiments.cannikin_processes --competitors 0 2

Each process is kept on a core; on some of these others compute all the time, so that the process has a share of it only. A network on
digits is trained; the processes measure what they do. From an epoch of equal parts and one of equation 8's the cluster's model is learned:
it decides what is best, and says how long that, equal parts, and some other splits take. Then all of them are tried.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dsgd import plots, records
from experiments.cannikin import real_cluster
from experiments.cannikin.real_cluster import LEARNED, WARM, Judged, Setting, Trial
from experiments.shared import commands, common, figures, intervals


@dataclass(frozen=True)
class Args:
    """Measures what a model of the real clock predicts."""

    competitors: tuple[int, ...] = (0, 2)
    """On the core of each process, how many others always compute there; as many processes as numbers, and no more than cores."""
    nice: int = 0
    """How nice those are, 0 to 19: 0, and a process has as much of its core as each of them; 5, three times as much."""
    total: int = 1920
    """B, samples of a round."""
    shares: tuple[float, ...] = (0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
    """Of the first process, in the splits that are tried; the others share the rest equally."""
    piece: int = 16
    """Samples in which batches are counted."""
    rounds: commands.Count = 20
    """Of each epoch."""
    passes: int = 4
    """Epochs of each split, each pass in an order of its own."""
    width: commands.Count = 1000
    """Of both hidden layers of the network: the more, the longer a sample takes."""
    learning_rate: commands.Positive = 0.1
    """Of SGD."""
    seed: commands.Seed = 0
    """Of everything random, but for what the clock says."""
    out: Path = field(default=Path("results/cannikin_processes"))
    """Folder for config.json, epochs.csv and figure.png."""
    progress: bool = True
    """Show that it works."""


def main(args: Args) -> None:
    setting = Setting(**{name: getattr(args, name) for name in Setting._fields})
    real_cluster.check(setting)
    commands.begin(args)
    screen = common.console()
    waiting = screen.status(f"{len(args.competitors)} processes, {WARM + LEARNED + args.passes * (len(args.shares) + 2)} epochs")
    with waiting if args.progress else nullcontext():
        trials = real_cluster.train(setting)
    write(args.out / "epochs.csv", trials)
    judged = real_cluster.judge(trials)
    figures.save_figure(draw(args, trials, judged), args.out / "figure.png")
    screen.print(tabulate(args, judged))
    screen.print(tabulate_gain(trials, judged))
    screen.print(tabulate_model(args, trials))
    screen.print(f"Written: {args.out}/config.json, epochs.csv, figure.png", soft_wrap=True)


def write(path: Path, trials: list[Trial]) -> None:
    """One row an epoch: samples of each process, seconds of a round, and means of what each measured."""
    N, names = len(trials[0].seen.batches), ("compute", "backward", "communication")
    heading = ("epoch", "batch_time", *(f"{name}[{n}]" for name in ("batches", *names) for n in range(N)))

    def rows():
        for epoch, (seen, seconds) in enumerate(trials):
            means = np.concatenate([getattr(seen, name).mean(axis=0) for name in names])
            yield [epoch, f"{seconds:.6g}", *seen.batches, *(f"{mean:.6g}" for mean in means)]

    records.write_rows(path, heading, rows())


def who(args: Args) -> str:
    """The processes, for titles."""
    return f"{len(args.competitors)} processes; others on their cores: {', '.join(map(str, args.competitors))}"


def name_of(judged: Judged, trials: list[Trial]) -> str:
    """What the split is, where it has a name."""
    if (judged.batches == trials[0].seen.batches).all():
        return "equal parts"
    return "OptPerf" if (judged.batches == best_of(trials)).all() else ""


def best_of(trials: list[Trial]) -> np.ndarray:
    """What the first model has found to be best."""
    total = int(trials[0].seen.batches.sum())
    return real_cluster.learned(trials[:LEARNED]).optperf_integer(total).batches


def tabulate(args: Args, judged: list[Judged]) -> Table:
    """Splits, with what they take, and what the models said of it."""
    table = Table(
        title=f"{who(args)},\n{args.total} samples a round",
        caption=f"measured: the mean over {args.passes} epochs of {args.rounds} rounds, ± half its 95 % interval.\n"
        "Expected by the model of the first two epochs (of equal parts, and of\nequation 8), and by that of all epochs with other splits.",
    )
    table.add_column("samples", no_wrap=True)
    for heading in ("measured, ms", "from two", "error, %", "from others", "error, %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in judged:
        errors = (f"{100 * error:+.1f}" for error in each.errors())
        cells = [f"{1e3 * each.first:.1f}", next(errors), f"{1e3 * each.others:.1f}", next(errors)]
        table.add_row(" + ".join(map(str, each.batches)), intervals.within(1e3 * each.measured, 1), *cells)
    sizes = np.abs([each.errors() for each in judged])
    table.add_section()
    for words, numbers in (("mean |error|", sizes.mean(axis=0)), ("largest", sizes.max(axis=0))):
        first, others = (f"{100 * number:.1f}" for number in numbers)
        table.add_row(words, "", "", first, "", others)
    return table


def tabulate_gain(trials: list[Trial], judged: list[Judged]) -> Table:
    """OptPerf beside equal parts: expected and measured."""
    of = {name_of(each, trials): each for each in judged}
    table = Table(title="OptPerf beside equal parts", caption="± half the 95 % interval over passes.")
    table.add_column("", no_wrap=True)
    for heading in ("expected", "measured"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in ("equal parts", "OptPerf"):
        if name in of:
            words = f"{name}, {' + '.join(map(str, of[name].batches))}, ms"
            table.add_row(words, f"{1e3 * of[name].first:.1f}", intervals.within(1e3 * of[name].measured, 1))
    if len(of.keys() & {"equal parts", "OptPerf"}) == 2:
        equal, best = of["equal parts"], of["OptPerf"]
        measured = intervals.within(100 * (1 - best.measured / equal.measured), 1)
        table.add_row("less time, %", f"{100 * (1 - best.first / equal.first):.1f}", measured)
    return table


def tabulate_model(args: Args, trials: list[Trial]) -> Table:
    """What is learned of each process from all epochs."""
    model = real_cluster.learned(trials)
    table = Table(
        title="the model of all epochs",
        caption=f"a = q b + s before the backward pass, P = k b + m in it; T_comm {1e3 * (model.t_overlap + model.t_last):.1f} ms.",
    )
    table.add_column("process", justify="right")
    for heading in ("others", "q, us", "s, ms", "k, us", "m, ms"):
        table.add_column(heading, justify="right")
    for n, count in enumerate(args.competitors):
        numbers = (1e6 * model.q[n], 1e3 * model.s[n], 1e6 * model.k[n], 1e3 * model.m[n])
        table.add_row(str(n), str(count), *(f"{number:.1f}" for number in numbers))
    return table


def draw(args: Args, trials: list[Trial], judged: list[Judged]) -> Figure:
    """Seconds of a round over the split, and of each process over its samples."""
    sheet = Figure(figsize=(11, 4.2), layout="constrained")
    splits, each = plots.panels(sheet, 2, sharey=False)
    draw_splits(args, splits, trials, judged)
    model = real_cluster.learned(trials[:LEARNED])
    for n, count in enumerate(args.competitors):
        colour = plots.COLOURS[n]
        label = f"process {n}, {count} other{'s' * (count != 1)} on its core"
        sizes = np.array([trial.seen.batches[n] for trial in trials])
        seconds = np.array([trial.seen.compute[:, n].mean() for trial in trials])
        each.plot(sizes[LEARNED:], 1e3 * seconds[LEARNED:], ".", color=colour, markersize=5, label=label)
        each.plot(sizes[:LEARNED], 1e3 * seconds[:LEARNED], "s", color=colour, markersize=7, markerfacecolor="none")
        ends = np.array([0, sizes.max()])
        each.plot(ends, 1e3 * ((model.q[n] + model.k[n]) * ends + model.s[n] + model.m[n]), color=colour, linewidth=1.2)
    each.plot([], [], "ks", markersize=7, markerfacecolor="none", label="the first two epochs, and their line")
    each.set(xlabel="samples of the process", ylabel="ms that it computes in a round", xlim=(0, None), ylim=(0, None))
    each.legend(frameon=False, fontsize="small")
    figures.title(sheet, f"{who(args)}, {args.total} samples a round")
    return sheet


def draw_splits(args: Args, axes: Axes, trials: list[Trial], judged: list[Judged]) -> None:
    """Of the first process's share; the others share the rest equally, but for OptPerf's where there are more than two."""
    for line, words, of in (("--", "two", trials[:LEARNED]), ("-", "all", trials)):
        shares, seconds = real_cluster.family(real_cluster.learned(of), args.total)
        axes.plot(100 * shares, 1e3 * seconds, color="black", linewidth=1.2, linestyle=line, label=f"model of {words} epochs")
    for each in sorted(judged, key=lambda each: name_of(each, trials)):  # those with a name are on top
        name = name_of(each, trials)
        colour = {"equal parts": plots.COLOURS[1], "OptPerf": plots.COLOURS[2]}.get(name, plots.COLOURS[0])
        at, values = 100 * each.batches[0] / args.total, 1e3 * each.measured
        axes.plot(np.full(len(values), at), values, ".", color=colour, markersize=4, alpha=0.5)
        half = intervals.half_interval(values)
        axes.errorbar(at, values.mean(), half if np.isfinite(half) else 0, fmt="o", color=colour, capsize=3, label=name or None)
    axes.set(
        xlabel="share of the first process, %",
        ylabel="ms of a round",
        xlim=(0, 100),
        ylim=(0, 1.15e3 * max(e.measured.max() for e in judged)),
    )
    axes.legend(frameon=False, fontsize="small")


if __name__ == "__main__":
    commands.launch(main, commands.parsed(Args))
