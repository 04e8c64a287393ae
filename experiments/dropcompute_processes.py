"""DropCompute in real time: processes on this machine, one of them slower, each of which stops by
its own clock.

    python -m experiments.dropcompute_processes --processes 2 --slow 1 --factor 2

A small network on digits is trained twice, in the same processes, with the same batches and the
same stragglers: lognormal delays in every micro-batch (appendix B.1), and one process that is
slower in all of them. Step times and drop rates are compared with the planner's predictions from
the first steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from matplotlib.figure import Figure
from rich.table import Table

import dsgd
from algorithms import dropcompute
from dsgd import plots, problems, records
from experiments.dropcompute.noises import ALPHA, MOST
from experiments.shared import commands, figures, statistics, tables

TRIAL = 6  # steps in which a micro-batch is timed; the first is not counted
History = dict[str, np.ndarray]


@dataclass(frozen=True)
class Args(commands.Flags):
    """Measures DropCompute in real processes on this machine."""

    processes: commands.Count = 2
    """N, number of processes, one per worker; more than the machine has cores slow each other down.
    """
    slow: int | None = 1
    """Number of the slow process, from 0; None: no process is slow."""
    factor: commands.Factor = 2.0
    """Factor by which its micro-batches are slower, at least 1."""
    micro_batches: commands.Count = 12
    """M, micro-batches of each step, as in the paper."""
    batch_size: commands.Count = 256
    """Number of samples of a micro-batch."""
    steps: commands.Count = 150
    """Number of steps of each of the two runs."""
    rounds: commands.Count = 20
    """Number of steps that are measured before the threshold is chosen."""
    learning_rate: commands.Positive = 0.1
    """Step size of SGD."""
    width: commands.Count = 2048
    """Width of the network's hidden layer; a larger one makes micro-batches slower."""
    out: Path = Path("results/dropcompute_processes")
    """Folder for config.json, steps.csv and figure.png."""


def main(args: Args) -> None:
    check(args)
    commands.begin(args)
    what = f"{args.processes} processes, {args.steps} steps each without and with DropCompute"
    with commands.waiting(args, what):
        pair = dsgd.run_local_processes(
            args.processes, partial(_train_twice, args), timeout=math.inf
        )[0]
    write(args.out / "steps.csv", pair)
    found = judge(args, pair)
    shown = {"table": tabulate(args, pair, found), "race": tabulate_race(race(args, pair))}
    commands.finish(args, {"figure": draw(args, pair, found)}, shown)


class Pair(NamedTuple):
    """The histories of both runs (`dropcompute.train_processes`), with the same batches and delays,
    and the seconds of a micro-batch without delays.
    """

    alone: float
    without: History
    with_threshold: History

    def histories(self) -> dict[str, History]:
        """Both histories, by name."""
        return {"without": self.without, "with": self.with_threshold}


def check(args: Args) -> None:
    """Raises a ValueError if the slow process does not exist, the factor is below 1, or there are
    too few steps after the measured ones.
    """
    if args.slow is not None and not 0 <= args.slow < args.processes:
        raise ValueError(
            f"--slow {args.slow} of {args.processes} processes: expected one from 0 to "
            f"{args.processes - 1}, or None"
        )
    if not args.rounds < args.steps - 1:
        raise ValueError(
            f"--rounds {args.rounds} of {args.steps} steps: expected at least two more steps, with "
            "the threshold"
        )


def _train_twice(args: Args) -> Pair:
    """Trains without and with a threshold; all processes call it together."""
    model, optimizer, key = (
        problems.MLP(10, (args.width,)),
        optax.sgd(args.learning_rate),
        jax.random.key(args.seed),
    )
    problem = problems.neural_network(
        model, workers=args.processes, batch_size=args.batch_size, seed=args.seed
    )

    def train(threshold, steps: int, delay: Callable[[int, int], float] | None) -> History:
        return dropcompute.train_processes(
            problem, optimizer, threshold, args.micro_batches, steps=steps, key=key, delay=delay
        ).history

    alone = float(np.median(train(math.inf, TRIAL, None)["latencies"][1:]))
    late = delays(args, jax.process_index(), alone)

    def delay(step, m):
        return float(late[step, m])

    return Pair(
        alone,
        train(math.inf, args.steps, delay),
        train(dropcompute.auto_threshold(args.rounds), args.steps, delay),
    )


def delays(args: Args, process: int, alone: float) -> np.ndarray:
    r"""Returns the seconds for which a process sleeps in each micro-batch, `[steps, M]`, so that it
    takes $f \mu (1 + \epsilon)$ instead of $\mu$.

    $$ \epsilon = \min(Z / \alpha, 5.5), \qquad Z \sim \mathrm{LogNormal}(4, 1), \qquad \alpha = 2
    e^{4.5} $$

    Args:
        args: contain f, the factor of the slow process; the factor of the others is 1.
        process: its number.
        alone: mu, seconds.

    Source: Giladi et al., "DropCompute", appendix B.1.
    """
    draws = np.random.default_rng((args.seed, process)).lognormal(
        4, 1, (args.steps, args.micro_batches)
    )
    factor = args.factor if process == args.slow else 1.0
    return alone * (factor * (1 + np.minimum(draws / ALPHA, MOST)) - 1)


class Found(NamedTuple):
    """One quantity in three ways: the planner's prediction from the measured steps; its prediction,
    at the same threshold, from the later steps of the run without it; and the measurement on these
    steps, with the half-width of its 95 % interval over steps.
    """

    planned: float
    hindsight: float
    measured: float
    half: float


def judge(args: Args, pair: Pair) -> dict[str, Found]:
    """Returns the seconds of a step without and with the threshold, drop rate, and effective
    speedup, by name.
    """
    before, after = slice(args.rounds), slice(args.rounds, None)
    tau = float(pair.with_threshold["threshold"][-1])
    planned, hindsight = (
        predict(pair.with_threshold, before, tau),
        predict(pair.without, after, tau),
    )
    without, with_it = (run["seconds"][after] for run in pair.histories().values())
    dropped = pair.with_threshold["dropped"][after]
    measured = {
        "without": without,
        "with": with_it,
        "dropped": dropped,
        "speedup": (1 - dropped) * without / with_it,
    }
    return {
        name: Found(
            planned[name], hindsight[name], float(values.mean()), statistics.half_interval(values)
        )
        for name, values in measured.items()
    }


def predict(history: History, steps: slice, tau: float) -> dict[str, float]:
    """Returns the planner's predictions from steps without drops."""
    latencies, communication = history["latencies"][steps], history["communication"][steps]
    serial = communication.mean()
    effect = dropcompute.measured_effect(latencies, tau, communication, "between")
    numbers = {
        "without": effect.without + serial,
        "with": effect.step_time + serial,
        "dropped": effect.drop_rate,
        "speedup": effect.speedup,
    }
    return {name: float(value) for name, value in numbers.items()}


class Race(NamedTuple):
    """Comparison at the loss that both runs reach, the larger of their final losses: steps and
    seconds, without and with the threshold; and both losses at the time at which the first run
    ends.
    """

    loss: float
    steps: tuple[int, int]
    seconds: tuple[float, float]
    end: float
    losses: tuple[float, float]


def race(args: Args, pair: Pair) -> Race:
    """Returns the comparison; losses are means over a twentieth of the steps, at least one."""
    runs = pair.histories().values()
    smooth, clocks = (
        [smooth_losses(run["loss"], args.steps) for run in runs],
        [np.cumsum(run["seconds"]) for run in runs],
    )
    target, end = max(loss[-1] for loss in smooth), min(clock[-1] for clock in clocks)
    at = [statistics.first_reaching(loss[None], target) or 0 for loss in smooth]
    seen = [int(np.searchsorted(clock, end, side="right")) - 1 for clock in clocks]
    return Race(
        float(target),
        (at[0] + 1, at[1] + 1),
        (float(clocks[0][at[0]]), float(clocks[1][at[1]])),
        float(end),
        (float(smooth[0][seen[0]]), float(smooth[1][seen[1]])),
    )


def smooth_losses(loss: np.ndarray, steps: int) -> np.ndarray:
    """Returns the means over each step and those before it, a twentieth of all steps or fewer,
    `[steps]`.
    """
    ones = np.ones(max(1, steps // 20))
    sums, counts = (np.convolve(each, ones)[: len(loss)] for each in (loss, np.ones(len(loss))))
    return sums / counts


def write(path: Path, pair: Pair) -> None:
    """Writes one row per run and step, with the number of micro-batches of each worker and its
    seconds of computation.
    """
    N = pair.without["latencies"].shape[1]
    heading = ("run", "step", "seconds", "communication", "threshold", "dropped", "loss")
    heading += tuple(f"{name}[{n}]" for name in ("micro_batches", "computing") for n in range(N))

    def rows():
        for name, run in pair.histories().items():
            done, spent = (
                np.sum(~np.isnan(run["latencies"]), axis=-1),
                np.nansum(run["latencies"], axis=-1),
            )
            for i, step in enumerate(run["step"]):
                numbers = (run[column][i] for column in heading[2:7])
                yield [
                    name,
                    step,
                    *(f"{number:.6g}" for number in numbers),
                    *done[i],
                    *(f"{number:.6g}" for number in spent[i]),
                ]

    records.write_rows(path, heading, rows())


def stragglers(args: Args) -> str:
    """Describes the processes, for titles."""
    slow = "" if args.slow is None else f", one taking {args.factor:g} times as long"
    return f"{args.processes} process{'es' * (args.processes > 1)}{slow}, B.1's delays"


def tabulate(args: Args, pair: Pair, found: dict[str, Found]) -> Table:
    """Tabulates predicted and measured steps, drops and speedup."""
    alone, tau = 1e3 * pair.alone, 1e3 * pair.with_threshold["threshold"][-1]
    table = tables.table(
        f"{stragglers(args)},\n{args.micro_batches} micro-batches of {alone:.2g} ms, tau = "
        f"{tau:.4g} ms",
        ("", "planned", "hindsight", "measured"),
        f"planned: from the {args.rounds} steps before the threshold.\nhindsight: from the steps "
        "after them in the run without threshold,\nat the same threshold. measured: the same "
        "steps by the clock,\n± half-width of the 95 % interval over steps. Paper's S_eff: 1.18, "
        "162\nworkers, with stragglers; 1.05, 196 workers, a tuned system.",
    )
    rows = {
        "without": ("step without, ms", 1e3, 1),
        "with": ("step with, ms", 1e3, 1),
        "dropped": ("dropped, %", 100, 1),
    }
    for name, (words, unit, digits) in {**rows, "speedup": ("S_eff", 1, 3)}.items():
        planned, hindsight, measured, half = (
            f"{unit * number:.{digits}f}" for number in found[name]
        )
        table.add_row(words, planned, hindsight, f"{measured} ± {half}")
        if name == "dropped":
            for n, share in enumerate(
                np.isnan(pair.with_threshold["latencies"][args.rounds :]).mean(axis=(0, 2))
            ):
                table.add_row(
                    f"  by process {n}{', the slow process' * (n == args.slow)}",
                    "",
                    "",
                    f"{100 * share:.1f}",
                )
    return table


def tabulate_race(race: Race) -> Table:
    """Tabulates steps and seconds to the same loss, and losses at the same time."""
    table = tables.table(
        "cost to reach the same loss",
        ("", "without", "with", "change", "paper"),
        "The first steps, in which times are measured, are included.\nPaper: figure 5, 64 "
        "workers, B.1's delays only.",
    )
    for words, (before, after), digits, paper in (
        (f"steps to {race.loss:.3g}", race.steps, 0, "+3 %"),
        (f"seconds to {race.loss:.3g}", race.seconds, 1, "-13 %"),
        (f"loss after {race.end:.1f} s", race.losses, 3, "-"),
    ):
        table.add_row(
            words,
            f"{before:.{digits}f}",
            f"{after:.{digits}f}",
            f"{100 * (after / before - 1):+.0f} %",
            paper,
        )
    return table


def draw(args: Args, pair: Pair, found: dict[str, Found]) -> Figure:
    """Draws the seconds of steps in order of time and of length, and the loss against seconds."""
    sheet, (over_steps, ordered, losses) = plots.figure(
        3, width=figures.WIDTH / 3, height=3.4, sharey=False
    )
    for i, (name, run) in enumerate(pair.histories().items()):
        ms, colour = 1e3 * run["seconds"], plots.COLOURS[i]
        look = {"linewidth": 1, "marker": ".", "markersize": 3, "label": f"{name} DropCompute"}
        over_steps.plot(run["step"], ms, color=colour, **look)
        ordered.ecdf(np.sort(ms[args.rounds :]), color=colour)
        losses.plot(np.cumsum(run["seconds"]), smooth_losses(run["loss"], args.steps), color=colour)
        planned = {"color": colour, "linestyle": "--", "linewidth": 1.2}
        level = 1e3 * found[name].planned
        over_steps.axhline(level, label="planned" if i == 0 else None, **planned)
        ordered.axvline(level, **planned)
    chosen = {"color": "black", "linewidth": 0.8, "linestyle": ":"}
    over_steps.axvline(args.rounds + 0.5, label="threshold chosen", **chosen)
    over_steps.set(xlabel="step", ylabel="ms of a step", ylim=(0, None))
    ordered.set(xlabel="ms of a step after\nthe choice of the threshold", ylabel="share of steps")
    figures.describe(losses, "seconds", "loss of computed batches", log="y")
    figures.legend(sheet, 4, over_steps)
    speedup = found["speedup"]
    measured = f"S_eff {speedup.measured:.2f} measured, {speedup.planned:.2f} planned"
    figures.title(sheet, f"{stragglers(args)}, {args.micro_batches} micro-batches: {measured}")
    return sheet


if __name__ == "__main__":
    commands.run(main, Args)
