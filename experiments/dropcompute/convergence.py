"""Figure 5 of DropCompute: increase of the steps and decrease of the seconds to the same loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from algorithms import dropcompute
from algorithms.dropcompute.stopping import Stop
from dsgd import plots
from experiments.dropcompute.training import (
    LAMB,
    Histories,
    Point,
    Setting,
    choose_and_run,
    delayed_cluster,
    format_difference,
    latencies,
)
from experiments.shared import figures, statistics, tables

PAPER = {"steps": 3.0, "time": 13.0}  # %: more steps, less time
# ratio of the seconds of a step that follows from these numbers
RATIO = (1 - PAPER["time"] / 100) / (1 + PAPER["steps"] / 100)
WINDOW = 9  # number of rounds whose mean loss is one point of a curve
# shares of the rounds after which the losses without drops are the goals
GOALS = (0.35, 0.7)


class Gain(NamedTuple):
    """Ratios at one goal, `[seeds]`; NaN if it was not reached.

    Args:
        steps: steps with DropCompute over steps without.
        seconds: the same ratio of seconds.
    """

    steps: np.ndarray
    seconds: np.ndarray


def whole(optimizer: str) -> Point:
    """Returns the run without drops at a constant step size."""
    return Point(f"{optimizer}, all computed", math.inf, math.inf)


class Way(NamedTuple):
    """A configuration of DropCompute.

    Args:
        optimizer: name of the optimizer.
        communication: T^c, seconds.
        stop: "preempt" or "between".
    """

    optimizer: str
    communication: float
    stop: Stop

    @property
    def name(self) -> str:
        """Name of the history."""
        return f"{self.optimizer}, DropCompute, T^c {self.communication:g} s, {self.stop}"


def ways(setting: Setting, communications: Sequence[float]) -> list[Way]:
    """Returns the configurations: LAMB with all values of T^c; with the first T^c, a clock that is
    read only between micro-batches, and other optimizers.
    """
    first = communications[0]
    others = [optimizer for optimizer in setting.learning_rates if optimizer != LAMB]
    return [
        *(Way(LAMB, communication, "preempt") for communication in communications),
        Way(LAMB, first, "between"),
        *(Way(optimizer, first, "preempt") for optimizer in others),
    ]


def runs(
    setting: Setting, measured: int, communications: Sequence[float]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Runs DropCompute in each configuration."""
    for way in ways(setting, communications):
        yield (
            way.name,
            choose_and_run(setting, way.optimizer, measured, way.communication, way.stop),
        )


def smooth(losses: np.ndarray) -> np.ndarray:
    """Returns means over `WINDOW` rounds, `[seeds, rounds]` to `[seeds, rounds - WINDOW + 1]`."""
    return np.lib.stride_tricks.sliding_window_view(losses, WINDOW, axis=1).mean(axis=-1)


def goals(history: dict[str, np.ndarray]) -> list[float]:
    """Returns the goals: mean losses over seeds that the run without drops reaches."""
    curve = smooth(history["train_loss"][:, 1:]).mean(axis=0)
    return [float(curve[round(share * len(curve)) - 1]) for share in GOALS]


def rounds_to_goal(history: dict[str, np.ndarray], goal: float) -> np.ndarray:
    """Returns the rounds after which each seed's smoothed loss first reaches the goal, by linear
    interpolation; NaN if it never does.
    """
    curves = smooth(history["train_loss"][:, 1:])
    rounds = np.broadcast_to(WINDOW + np.arange(curves.shape[1]), curves.shape)
    return statistics.crossing(rounds, curves, goal)


def clock_at(history: dict[str, np.ndarray], rounds: np.ndarray) -> np.ndarray:
    """Returns the seconds after the given rounds, `[seeds]`; NaN for NaN."""
    each = [
        np.interp(at, history["step"], clock)
        for at, clock in zip(rounds, history["clock"], strict=True)
    ]
    return np.array(each)


def add_communication(
    history: dict[str, np.ndarray], communication: float
) -> dict[str, np.ndarray]:
    """Returns the history if each round takes longer by the given communication."""
    return {**history, "clock": history["clock"] + communication * history["step"]}


def gain(without: dict[str, np.ndarray], history: dict[str, np.ndarray], goal: float) -> Gain:
    """Returns the gains of one run over another, paired by seed."""
    first, second = (rounds_to_goal(each, goal) for each in (without, history))
    return Gain(second / first, clock_at(history, second) / clock_at(without, first))


def table(
    setting: Setting, histories: Histories, measured: int, communications: Sequence[float]
) -> Table:
    """Tabulates the results of figure 5, ours and the paper's."""
    shown = tables.table(
        f"{setting.name}, {setting.workers} workers x {setting.micro_batches} micro-batches, "
        f"{statistics.runs(setting.seeds)}:\ncost of DropCompute to reach the same loss, change "
        "in %",
        ("", "T^c", "drop", "step", "loss", "steps", "time", "planned"),
        "T^c: seconds of communication. drop: dropped micro-batches, %.\nstep: seconds relative "
        "to those without drops. ±: half-width of the 95 % interval,\npaired over seeds. planned: "
        "1/S_eff - 1, the time if all dropped\nmicro-batches must be made up for.",
    )
    shown.add_row(
        "paper",
        "-",
        "-",
        f"{RATIO:.3f}",
        "-",
        f"+{PAPER['steps']:.0f}",
        f"-{PAPER['time']:.0f}",
        "-",
    )
    for way in ways(setting, communications):
        shown.add_section()
        without, history = (
            add_communication(histories[whole(way.optimizer).name], way.communication),
            histories[way.name],
        )
        step = (
            np.diff(history["clock"])[:, measured + 1 :].mean()
            / np.diff(without["clock"])[:, measured + 1 :].mean()
        )
        time = f"{100 * (1 / plan_speedup(setting, history, way) - 1):+.1f}"
        first = (
            way.optimizer,
            f"{way.communication:g}",
            f"{100 * drop_rate(history, measured):.1f}",
            f"{step:.3f}",
        )
        for i, goal in enumerate(goals(without)):
            ratios = gain(without, history, goal)
            found = (
                "not reached" if np.isnan(ratio).any() else format_difference(100 * (ratio - 1), 1)
                for ratio in ratios
            )
            shown.add_row(
                *((way.stop, "", "", "") if i else first), f"{goal:.3g}", *found, "" if i else time
            )
    return shown


def drop_rate(history: dict[str, np.ndarray], measured: int) -> float:
    """Returns the share of micro-batches dropped since the threshold was chosen."""
    return float(history["dropped"][:, measured + 2 :].mean())


def plan_speedup(setting: Setting, history: dict[str, np.ndarray], way: Way) -> float:
    """Returns S_eff of the chosen thresholds, evaluated on other rounds than those from which they
    were chosen.
    """
    N = setting.workers
    times = latencies(delayed_cluster(N), N, setting.micro_batches, setting.seed)
    chosen = history["threshold"][:, -1].astype(float)
    return float(
        dropcompute.measured_effect(times, chosen, way.communication, way.stop).speedup.mean()
    )


def needed_communication(setting: Setting) -> float:
    """Returns the T^c, seconds, for which the best threshold saves as much of a step as in the
    paper, found by bisection.
    """
    N = setting.workers
    times = latencies(delayed_cluster(N), N, setting.micro_batches, setting.seed)
    low, high = 0.0, 1e3
    while high - low > 1e-2:
        middle = (low + high) / 2
        effect = dropcompute.measured_effect(times, dropcompute.threshold(times, middle))
        ratio = float((effect.step_time + middle) / (effect.without + middle))
        low, high = (middle, high) if ratio < RATIO else (low, middle)
    return (low + high) / 2


def draw(
    losses: Axes,
    seconds: Axes,
    setting: Setting,
    histories: Histories,
    communications: Sequence[float],
) -> None:
    """Draws figure 5, with LAMB: the loss against steps, and against seconds at the first T^c."""
    communication = communications[0]
    without = add_communication(histories[whole(LAMB).name], communication)
    both = {
        "all computed": without,
        "DropCompute": histories[Way(LAMB, communication, "preempt").name],
    }
    for axes, cost in ((losses, "step"), (seconds, "clock")):
        lines = {
            label: (
                np.atleast_2d(history[cost]).mean(axis=0)[WINDOW:],
                smooth(history["train_loss"][:, 1:]),
            )
            for label, history in both.items()
        }
        plots.draw_lines(axes, lines)
        for goal in goals(without):
            axes.axhline(goal, color="0.4", linewidth=0.8)
        figures.describe(axes, y="training loss", log="y", legend=True)
    losses.set(xlabel="steps", title="Figure 5: loss over steps")
    seconds.set(xlabel="simulated seconds", title=f"and over seconds, $T^c$ = {communication:g} s")
