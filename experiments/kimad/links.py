"""Kimad and fixed ratios over real links whose rate changes while they train."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from matplotlib.figure import Figure
from rich.table import Table

import dsgd
from algorithms import kimad
from algorithms.kimad import processes
from dsgd import plots, problems, records
from dsgd.machines.links import Rate
from experiments.shared import figures, tables

KIMAD = "Kimad"
CHOICES = tuple(float(ratio) for ratio in np.geomspace(0.005, 1.0, 12))  # of Kimad
CLASSES = 10
# a message that fits into a link's bucket, and so seems fast for once, counts for little
MONITOR = kimad.harmonic_mean(3)
LAST = 0.25  # of a training, whose mean loss decides between step sizes

History = dict[str, np.ndarray]
Runs = dict[tuple[str, float], History]  # by method and step size


class Setting(NamedTuple):
    """What is trained: arguments of the script."""

    processes: int
    width: int
    batch_size: int
    ratios: tuple[float, ...]
    round_times: tuple[float, ...]
    learning_rates: tuple[float, ...]
    seconds: float
    seed: int


class Method(NamedTuple):
    """Of which ratios it chooses, to fill how many seconds."""

    ratios: tuple[float, ...]
    round_time: float


def methods(setting: Setting) -> dict[str, Method]:
    """By name. What has one ratio has nothing to choose, and rounds of any length."""
    adapting = {
        f"{KIMAD}, {1e3 * seconds:g} ms": Method(CHOICES, seconds)
        for seconds in setting.round_times
    }
    return adapting | {
        f"top {100 * ratio:g} %": Method((ratio,), setting.round_times[0])
        for ratio in setting.ratios
    }


def task(setting: Setting) -> dsgd.Problem:
    """A network on digits; made before there are many processes, since the server is none of the
    workers.
    """
    model = problems.MLP(CLASSES, (setting.width,))
    return problems.neural_network(
        model, workers=setting.processes, batch_size=setting.batch_size, seed=setting.seed
    )


def train(setting: Setting, problem: dsgd.Problem, rate: Rate) -> Runs | None:
    """Called in every process: the server's histories. Each training begins at the same time of the
    rate's period.
    """
    runs: Runs = {}
    for name, method in methods(setting).items():
        for learning_rate in setting.learning_rates:
            history = processes.train_processes(
                problem,
                optax.sgd(learning_rate),
                method.ratios,
                method.round_time,
                seconds=setting.seconds,
                key=jax.random.key(setting.seed),
                monitor=MONITOR,
                wait=lambda: time.sleep(rate.period - time.monotonic() % rate.period),
            ).history
            if history is not None:
                runs[name, learning_rate] = history
    return runs or None


def best(runs: Runs) -> dict[str, tuple[float, History]]:
    """Of each method the step size with the smallest mean loss in the last seconds, and its
    history.
    """
    found: dict[str, tuple[float, History]] = {}
    for (name, learning_rate), history in runs.items():
        if name not in found or _end(history) < _end(found[name][1]):
            found[name] = learning_rate, history
    return found


def _end(history: History) -> float:
    late = history["seconds"] >= (1 - LAST) * history["seconds"][-1]
    return float(np.nan_to_num(history["loss"][late], nan=np.inf).mean())


def write(path: Path, runs: Runs) -> None:
    """One row a method, step size and round."""
    names = ("seconds", "loss", "bits_up", "bits_down", "rate_up", "rate_down")
    rows = (
        (method, learning_rate, i + 1, *(f"{history[name][i]:.6g}" for name in names))
        for (method, learning_rate), history in runs.items()
        for i in range(len(history["seconds"]))
    )
    records.write_rows(path, ("method", "learning_rate", "round", *names), rows)


def tabulate(setting: Setting, found: dict[str, tuple[float, History]], where: str) -> Table:
    """Rounds, messages, and the seconds to one loss: the largest of those at the ends."""
    ends = {name: _end(history) for name, (_, history) in found.items()}
    target = max(ends.values())
    table = tables.table(
        f"{setting.processes} workers and a server, {where}",
        ("", "step", "rounds", "ms", "Kbit", f"to {target:.3g}", "loss"),
        f"loss: mean over the last {LAST:.0%} of {setting.seconds:g} s. to {target:.3g}: seconds "
        "until the"
        "\nmean loss over a twentieth of the rounds is there. ms: of a round,\nmedian and 95th "
        "percentile. Kbit: of a worker's message.",
    )
    for name, (learning_rate, history) in found.items():
        each = 1e3 * np.diff(history["seconds"], prepend=0)
        kbit = history["bits_up"] / 1e3
        table.add_row(
            name,
            f"{learning_rate:g}",
            f"{len(each)}",
            f"{np.median(each):.0f}, {np.quantile(each, 0.95):.0f}",
            f"{kbit.min():.0f}-{kbit.max():.0f}",
            f"{reached(history, target):.1f}",
            f"{ends[name]:.3f}",
        )
    return table


def reached(history: History, target: float) -> float:
    """When the mean loss over a twentieth of the rounds is first at most the target; infinite where
    it never is.
    """
    width = max(1, len(history["loss"]) // 20)
    smooth = np.convolve(history["loss"], np.ones(width) / width, "valid")
    there = np.flatnonzero(smooth <= target)
    return float(history["seconds"][there[0] + width - 1]) if there.size else float("inf")


def draw(setting: Setting, rate: Rate, found: dict[str, tuple[float, History]]) -> Figure:
    """Loss over seconds, and messages over the rate of the links."""
    sheet, (losses, messages) = plots.figure(2, width=6, height=4.5, sharey=False)
    for i, (name, (learning_rate, history)) in enumerate(found.items()):
        seconds, look = history["seconds"], figures.look(i)
        losses.plot(seconds, history["loss"], label=f"{name}, step {learning_rate:g}", **look)
        messages.plot(seconds, history["bits_up"] / 1e6, drawstyle="steps-post", **look)
    clock = np.linspace(0, setting.seconds, 1000, endpoint=False)
    level = [rate.at(second) / 1e6 for second in clock]
    messages.plot(clock, level, color="black", linewidth=0.8, linestyle=":")
    losses.set(xlabel="seconds", ylabel="loss", yscale="log")
    messages.set(
        xlabel="seconds",
        ylabel="Mbit of a worker's message\n(dotted, black: Mbit/s of its link)",
        yscale="log",
    )
    losses.legend(frameon=False, fontsize=9)
    shape = ":".join(f"{bits / 1e6:g}" for bits in rate.bits)
    figures.title(
        sheet,
        f"{setting.processes} workers, links of {shape} Mbit/s in turns, {rate.period:g} s: Kimad "
        "and fixed ratios",
    )
    return sheet
