"""Figure 5 of DropCompute: how many more steps, and how many fewer seconds, to the same loss."""

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
    by_itself,
    delayed,
    latencies,
    signed,
)
from experiments.shared import figures, statistics, tables

PAPER = {"steps": 3.0, "time": 13.0}  # %: more, less
RATIO = (1 - PAPER["time"] / 100) / (1 + PAPER["steps"] / 100)  # of the seconds of a step, by these
WINDOW = 9  # rounds whose mean loss is one point of a curve
# shares of the rounds after which the losses without drops are the goals
GOALS = (0.35, 0.7)


class Gain(NamedTuple):
    """At one goal, `[seeds]`; NaN where it was not reached.

    Args:
        steps: with DropCompute over without.
        seconds: the same ratio of seconds.
    """

    steps: np.ndarray
    seconds: np.ndarray


def whole(optimizer: str) -> Point:
    """The run that drops nothing, at a constant step size."""
    return Point(f"{optimizer}, all computed", math.inf, math.inf)


class Way(NamedTuple):
    """Of DropCompute.

    Args:
        optimizer: by name.
        communication: T^c, seconds.
        stop: "preempt" or "between".
    """

    optimizer: str
    communication: float
    stop: Stop

    @property
    def name(self) -> str:
        """Of the history."""
        return f"{self.optimizer}, DropCompute, T^c {self.communication:g} s, {self.stop}"


def ways(setting: Setting, communications: Sequence[float]) -> list[Way]:
    """LAMB with all seconds of communication; with the first of them workers that look at their
    clock between micro-batches, and other optimisers."""
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
    """DropCompute in each way."""
    for way in ways(setting, communications):
        yield way.name, by_itself(setting, way.optimizer, measured, way.communication, way.stop)


def smooth(losses: np.ndarray) -> np.ndarray:
    """Means of so many rounds up to each, `[seeds, rounds]` to `[seeds, rounds - WINDOW + 1]`."""
    return np.lib.stride_tricks.sliding_window_view(losses, WINDOW, axis=1).mean(axis=-1)


def goals(history: dict[str, np.ndarray]) -> list[float]:
    """Returns losses, the mean over seeds, that the run without drops reaches."""
    curve = smooth(history["train_loss"][:, 1:]).mean(axis=0)
    return [float(curve[round(share * len(curve)) - 1]) for share in GOALS]


def reached(history: dict[str, np.ndarray], goal: float) -> np.ndarray:
    """Rounds after which each seed's smoothed loss is the goal for the first time, between two of
    them; NaN where it never is.
    """
    curves = smooth(history["train_loss"][:, 1:])
    rounds = np.broadcast_to(WINDOW + np.arange(curves.shape[1]), curves.shape)
    return statistics.crossing(rounds, curves, goal)


def clock_at(history: dict[str, np.ndarray], rounds: np.ndarray) -> np.ndarray:
    """Seconds after so many rounds, `[seeds]`; NaN after NaN."""
    each = [
        np.interp(at, history["step"], clock)
        for at, clock in zip(rounds, history["clock"], strict=True)
    ]
    return np.array(each)


def with_communication(
    history: dict[str, np.ndarray], communication: float
) -> dict[str, np.ndarray]:
    """The same where each round takes so much longer."""
    return {**history, "clock": history["clock"] + communication * history["step"]}


def gain(without: dict[str, np.ndarray], history: dict[str, np.ndarray], goal: float) -> Gain:
    """Of one run over another, seed by seed."""
    first, second = (reached(each, goal) for each in (without, history))
    return Gain(second / first, clock_at(history, second) / clock_at(without, first))


def table(
    setting: Setting, histories: Histories, measured: int, communications: Sequence[float]
) -> Table:
    """What is said of figure 5, ours beside the paper's."""
    shown = tables.table(
        f"{setting.name}, {setting.workers} workers x {setting.micro_batches} "
        f"micro-batches, {statistics.runs(setting.seeds)}:\n"
        "DropCompute to the same loss, in % more than without",
        ("", "T^c", "drop", "step", "loss", "steps", "time", "planned"),
        "T^c: seconds of communication. drop: micro-batches, in %.\n"
        "step: its seconds over those without drops. ±: half the 95 % interval,\n"
        "paired over seeds. planned: 1/S_eff - 1, the time if all that is\ndropped has to be made "
        "up for.",
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
            with_communication(histories[whole(way.optimizer).name], way.communication),
            histories[way.name],
        )
        step = (
            np.diff(history["clock"])[:, measured + 1 :].mean()
            / np.diff(without["clock"])[:, measured + 1 :].mean()
        )
        time = f"{100 * (1 / planned(setting, history, way) - 1):+.1f}"
        first = (
            way.optimizer,
            f"{way.communication:g}",
            f"{100 * dropped(history, measured):.1f}",
            f"{step:.3f}",
        )
        for i, goal in enumerate(goals(without)):
            ratios = gain(without, history, goal)
            found = (
                "not reached" if np.isnan(ratio).any() else signed(100 * (ratio - 1), 1)
                for ratio in ratios
            )
            shown.add_row(
                *((way.stop, "", "", "") if i else first), f"{goal:.3g}", *found, "" if i else time
            )
    return shown


def dropped(history: dict[str, np.ndarray], measured: int) -> float:
    """The share of micro-batches since the threshold was chosen."""
    return float(history["dropped"][:, measured + 2 :].mean())


def planned(setting: Setting, history: dict[str, np.ndarray], way: Way) -> float:
    """S_eff of the thresholds that were chosen, on other rounds than they were chosen from."""
    N = setting.workers
    times = latencies(delayed(N), N, setting.micro_batches, setting.seed)
    chosen = history["threshold"][:, -1].astype(float)
    return float(np.mean(dropcompute.effective_speedup(times, way.communication, chosen, way.stop)))


def needed_communication(setting: Setting) -> float:
    """T^c, seconds, where the threshold that is best saves as much of a step as the paper's figures
    say: by bisection.
    """
    N = setting.workers
    times = latencies(delayed(N), N, setting.micro_batches, setting.seed)
    all_computed, (low, high) = float(dropcompute.step_time(times, math.inf)), (0.0, 1e3)
    while high - low > 1e-2:
        middle = (low + high) / 2
        tau = dropcompute.threshold(times, middle)
        ratio = (float(dropcompute.step_time(times, tau)) + middle) / (all_computed + middle)
        low, high = (middle, high) if ratio < RATIO else (low, middle)
    return (low + high) / 2


def draw(
    losses: Axes,
    seconds: Axes,
    setting: Setting,
    histories: Histories,
    communications: Sequence[float],
) -> None:
    """Figure 5, with LAMB: the loss over steps, and over seconds at the first T^c."""
    communication = communications[0]
    without = with_communication(histories[whole(LAMB).name], communication)
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
