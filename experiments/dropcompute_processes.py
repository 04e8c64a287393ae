"""DropCompute on the real clock: processes of this machine, one of them slower, each of which stops by its own clock.

    python -m experiments.dropcompute_processes --processes 2 --slow 1 --factor 2

A small network on digits is trained twice, in the same processes, on the same batches and among the same stragglers: lognormal delays in
every micro-batch (appendix B.1), and one process that takes longer for all. What a step takes, and what is dropped, beside what the
planner expects from the first steps.
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
from experiments.dropcompute import real_clock
from experiments.dropcompute.real_clock import Found, Pair, Race, Setting
from experiments.shared import commands, common, figures


@dataclass(frozen=True)
class Args:
    """Measures DropCompute in real processes of this machine."""

    processes: commands.Count = 2
    """N, one worker each; more than the machine has cores slow each other down."""
    slow: int | None = 1
    """The process, from 0, that takes longer; None: there is none."""
    factor: commands.Positive = 2.0
    """How many times as long it takes for each micro-batch, at least 1."""
    micro_batches: commands.Count = 12
    """M, of each step, as in the paper."""
    batch_size: commands.Count = 256
    """Samples of each."""
    steps: commands.Count = 150
    """Of each of the two runs."""
    rounds: commands.Count = 20
    """Steps that are measured before the threshold is chosen."""
    learning_rate: commands.Positive = 0.1
    """Of SGD."""
    width: commands.Count = 2048
    """Of the network's hidden layer: the more, the longer a micro-batch takes."""
    seed: commands.Seed = 0
    """Of everything random, but for what the clock says."""
    out: Path = field(default=Path("results/dropcompute_processes"))
    """Folder for config.json, steps.csv and figure.png."""
    progress: bool = True
    """Show that it works."""


def main(args: Args) -> None:
    setting = Setting(**{name: getattr(args, name) for name in Setting._fields})
    real_clock.check(setting)
    commands.begin(args)
    screen = common.console()
    waiting = screen.status(f"{args.processes} processes, {args.steps} steps without, and {args.steps} with DropCompute")
    with waiting if args.progress else nullcontext():
        pair = real_clock.compare(setting)
    write(args.out / "steps.csv", pair)
    found, race = real_clock.judge(setting, pair), real_clock.race(setting, pair)
    figures.save_figure(draw(args, pair, found), args.out / "figure.png")
    screen.print(tabulate(args, pair, found))
    screen.print(tabulate_race(race))
    screen.print(f"Written: {args.out}/config.json, steps.csv, figure.png", soft_wrap=True)


def write(path: Path, pair: Pair) -> None:
    """One row a run and step; of each worker how many micro-batches, and the seconds that it computed."""
    N = pair.without["latencies"].shape[1]
    heading = ("run", "step", "seconds", "communication", "threshold", "dropped", "loss")
    heading += tuple(f"{name}[{n}]" for name in ("micro_batches", "computing") for n in range(N))

    def rows():
        for name, run in pair.histories().items():
            done, spent = np.sum(~np.isnan(run["latencies"]), axis=-1), np.nansum(run["latencies"], axis=-1)
            for i, step in enumerate(run["step"]):
                numbers = (run[column][i] for column in heading[2:7])
                yield [name, step, *(f"{number:.6g}" for number in numbers), *done[i], *(f"{number:.6g}" for number in spent[i])]

    records.write_rows(path, heading, rows())


def stragglers(args: Args) -> str:
    """Who there is, for titles."""
    slow = "" if args.slow is None else f", one taking {args.factor:g} times as long"
    return f"{args.processes} process{'es' * (args.processes > 1)}{slow}, B.1's delays"


def tabulate(args: Args, pair: Pair, found: dict[str, Found]) -> Table:
    """Steps, drops and speedup: expected and measured."""
    alone, tau = 1e3 * pair.alone, 1e3 * pair.with_threshold["threshold"][-1]
    table = Table(
        title=f"{stragglers(args)},\n{args.micro_batches} micro-batches of {alone:.2g} ms, tau = {tau:.4g} ms",
        caption=f"planned: from the {args.rounds} steps before the threshold.\nhindsight: from the steps after them in the run without,\n"
        "at the same threshold. measured: the same steps, on the clock,\n± half the 95 % interval over steps. Paper's S_eff: 1.18, 162\n"
        "workers, with stragglers; 1.05, 196 workers, a tuned system.",
    )
    table.add_column("", no_wrap=True)
    for heading in ("planned", "hindsight", "measured"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = {"without": ("step without, ms", 1e3, 1), "with": ("step with, ms", 1e3, 1), "dropped": ("dropped, %", 100, 1)}
    for name, (words, unit, digits) in {**rows, "speedup": ("S_eff", 1, 3)}.items():
        planned, hindsight, measured, half = (f"{unit * number:.{digits}f}" for number in found[name])
        table.add_row(words, planned, hindsight, f"{measured} ± {half}")
        if name == "dropped":
            for n, share in enumerate(np.isnan(pair.with_threshold["latencies"][args.rounds :]).mean(axis=(0, 2))):
                table.add_row(f"  by process {n}{', the slow one' * (n == args.slow)}", "", "", f"{100 * share:.1f}")
    return table


def tabulate_race(race: Race) -> Table:
    """Steps and seconds to one loss, losses at one time."""
    table = Table(
        title="to the same loss",
        caption="The first steps, in which it measures, count, too.\nPaper: figure 5, 64 workers, B.1's delays alone.",
    )
    table.add_column("", no_wrap=True)
    for heading in ("without", "with", "change", "paper"):
        table.add_column(heading, justify="right", no_wrap=True)
    for words, (before, after), digits, paper in (
        (f"steps to {race.loss:.3g}", race.steps, 0, "+3 %"),
        (f"seconds to {race.loss:.3g}", race.seconds, 1, "-13 %"),
        (f"loss after {race.end:.1f} s", race.losses, 3, "-"),
    ):
        table.add_row(words, f"{before:.{digits}f}", f"{after:.{digits}f}", f"{100 * (after / before - 1):+.0f} %", paper)
    return table


def draw(args: Args, pair: Pair, found: dict[str, Found]) -> Figure:
    """Seconds of steps, one after the other and in order of length, and the loss over seconds."""
    sheet = Figure(figsize=(14, 4), layout="constrained")
    over_steps, ordered, losses = plots.panels(sheet, 3, sharey=False)
    for line, (name, run) in enumerate(pair.histories().items()):
        colour = plots.COLOURS[line]
        after = np.sort(run["seconds"][args.rounds :])
        over_steps.plot(run["step"], 1e3 * run["seconds"], color=colour, linewidth=1, marker=".", markersize=3, label=f"{name} DropCompute")
        ordered.ecdf(1e3 * after, color=colour)
        losses.plot(np.cumsum(run["seconds"]), real_clock.smoothed(run["loss"], args.steps), color=colour)
    for line, name in enumerate(("without", "with")):
        draw_planned(over_steps, ordered, 1e3 * found[name].planned, plots.COLOURS[line], "planned" if line == 0 else None)
    over_steps.axvline(args.rounds + 0.5, color="black", linewidth=0.8, linestyle=":", label="threshold chosen")
    over_steps.set(xlabel="step", ylabel="ms of a step", ylim=(0, None))
    ordered.set(xlabel="ms of a step, after the threshold was chosen", ylabel="share of steps")
    losses.set(xlabel="seconds", ylabel="loss on the micro-batches computed", yscale="log")
    plots.plain_log(losses.yaxis)
    sheet.legend(*over_steps.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    speedup = found["speedup"]
    measured = f"S_eff {speedup.measured:.2f} measured, {speedup.planned:.2f} planned"
    figures.title(sheet, f"{stragglers(args)}, {args.micro_batches} micro-batches: {measured}")
    return sheet


def draw_planned(over_steps: Axes, ordered: Axes, level: float, colour: str, label: str | None) -> None:
    """What a step was expected to take."""
    over_steps.axhline(level, color=colour, linestyle="--", linewidth=1.2, label=label)
    ordered.axvline(level, color=colour, linestyle="--", linewidth=1.2)


if __name__ == "__main__":
    commands.run(main, Args)
