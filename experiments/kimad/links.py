"""Kimad and fixed ratios over real links whose rate changes during training."""

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
CHOICES = tuple(float(ratio) for ratio in np.geomspace(0.005, 1.0, 12))  # ratios of Kimad
CLASSES = 10
# A message that fits into a link's bucket seems fast once; small messages therefore have little
# weight.
MONITOR = kimad.harmonic_mean(3)
# share of a training run at its end, over which the mean loss decides between step sizes
LAST = 0.25

History = dict[str, np.ndarray]
Runs = dict[tuple[str, float], History]  # by method and step size


class Setting(NamedTuple):
    """Arguments of the script."""

    processes: int
    width: int
    batch_size: int
    ratios: tuple[float, ...]
    round_times: tuple[float, ...]
    learning_rates: tuple[float, ...]
    seconds: float
    seed: int


class Method(NamedTuple):
    """A method: the ratios to choose from, and its round time, seconds."""

    ratios: tuple[float, ...]
    round_time: float


def methods(setting: Setting) -> dict[str, Method]:
    """Returns the methods by name. With one ratio there is no choice, and rounds have any
    length.
    """
    adapting = {
        f"{KIMAD}, {1e3 * seconds:g} ms": Method(CHOICES, seconds)
        for seconds in setting.round_times
    }
    return adapting | {
        f"top {100 * ratio:g} %": Method((ratio,), setting.round_times[0])
        for ratio in setting.ratios
    }


def task(setting: Setting) -> dsgd.Problem:
    """Returns a network on digits; made before the processes join, because the server is not one of
    the workers.
    """
    model = problems.MLP(CLASSES, (setting.width,))
    return problems.neural_network(
        model, workers=setting.processes, batch_size=setting.batch_size, seed=setting.seed
    )


def train(setting: Setting, problem: dsgd.Problem, rate: Rate) -> Runs | None:
    """Trains all methods; called in every process. Returns the server's histories. Each training
    run starts at the same phase of the rate's period.
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
    """Returns, for each method, the step size with the smallest mean loss in the last seconds, and
    its history.
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
    """Writes one row per method, step size and round."""
    names = ("seconds", "loss", "bits_up", "bits_down", "rate_up", "rate_down")
    rows = (
        (method, learning_rate, i + 1, *(f"{history[name][i]:.6g}" for name in names))
        for (method, learning_rate), history in runs.items()
        for i in range(len(history["seconds"]))
    )
    records.write_rows(path, ("method", "learning_rate", "round", *names), rows)


def tabulate(setting: Setting, found: dict[str, tuple[float, History]], where: str) -> Table:
    """Tabulates rounds, messages, and the seconds to the same loss, which is the largest final
    loss.
    """
    ends = {name: _end(history) for name, (_, history) in found.items()}
    target = max(ends.values())
    table = tables.table(
        f"{setting.processes} workers and a server, {where}",
        ("", "step", "rounds", "ms", "Kbit", f"to {target:.3g}", "loss"),
        f"loss: mean over the last {LAST:.0%} of {setting.seconds:g} s. to {target:.3g}: seconds "
        "until the\nmean loss over a twentieth of the rounds is that small. ms: of a round,\n"
        "median and 95th percentile. Kbit: of a worker's message.",
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
            f"{seconds_to_target(history, target):.1f}",
            f"{ends[name]:.3f}",
        )
    return table


def seconds_to_target(history: History, target: float) -> float:
    """Returns the seconds after which the mean loss over a twentieth of the rounds is first at most
    the target; infinite if it never is.
    """
    width = max(1, len(history["loss"]) // 20)
    smooth = np.convolve(history["loss"], np.ones(width) / width, "valid")
    there = np.flatnonzero(smooth <= target)
    return float(history["seconds"][there[0] + width - 1]) if there.size else float("inf")


def draw(setting: Setting, rate: Rate, found: dict[str, tuple[float, History]]) -> Figure:
    """Draws the loss against seconds, and the messages with the rate of the links."""
    sheet, (losses, messages) = plots.figure(2, width=figures.WIDTH / 2, height=4, sharey=False)
    for i, (name, (learning_rate, history)) in enumerate(found.items()):
        seconds, look = history["seconds"], figures.look(i)
        losses.plot(seconds, history["loss"], label=f"{name}, step {learning_rate:g}", **look)
        messages.plot(seconds, history["bits_up"] / 1e6, drawstyle="steps-post", **look)
    clock = np.linspace(0, setting.seconds, 1000, endpoint=False)
    level = [rate.at(second) / 1e6 for second in clock]
    messages.plot(clock, level, color="black", linewidth=0.8, linestyle=":")
    figures.describe(losses, "seconds", "loss", log="y", legend=True)
    words = "Mbit of a worker's message\n(dotted, black: Mbit/s of its link)"
    figures.describe(messages, "seconds", words, log="y")
    shape = ":".join(f"{bits / 1e6:g}" for bits in rate.bits)
    figures.title(
        sheet,
        f"{setting.processes} workers, links of alternately {shape} Mbit/s, period "
        f"{rate.period:g} s: Kimad and fixed ratios",
    )
    return sheet
